"""RGAPS_DEBUG=writes: who writes to a message that was received is told so."""

import os

import pytest

import rgaps
from conftest import REAL_GPU

HERE = os.path.dirname(__file__)

# Where: the domain; what: how the bytes are reached.
CAUGHT = """
    import ctypes, sys, warnings
    sys.path.insert(0, sys.argv[1])
    import numpy as np
    import rgaps
    from capsules import Capsule

    domain, how = sys.argv[2:]
    with rgaps.Node() as node, node.subscriber("t") as sub, \\
            node.publisher("t", domain=domain) as pub:
        pub.put(np.arange(6, dtype="u1"))
        pub.put(np.arange(6, dtype="u1"))
        sub.recv(60).release()
        sample = sub.recv(60)
        if how == "memoryview":
            where = np.asarray(sample).__array_interface__["data"][0]
        elif how == "interface":
            name = "__array_interface__" if domain == "host" else "__cuda_array_interface__"
            where = getattr(sample, name)["data"][0]
        else:
            capsule = Capsule(sample.__dlpack__(max_version=(1, 1)))
            where = capsule.data
        assert ctypes.string_at(where, 6) == bytes(range(6))
        if how != "clean":
            ctypes.memset(where + 2, 9, 1)  # as torch's t.fill_() would
        # What others read is as it was.
        assert sample.tobytes() == bytes(range(6))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if how in ("dlpack", "clean"):
                sample.release()
                assert not caught and sub.held == 1
                capsule.delete()
            elif how == "interface":
                del sample
            else:
                sample.release()
            assert sub.held == 0
        for each in caught:
            assert each.category is rgaps.WriteWarning
            print(each.message)
"""


@pytest.mark.parametrize("how", ["memoryview", "interface", "dlpack"])
def test_a_write_is_found(program, how):
    printed = program(CAUGHT, HERE, "host", how, env={"RGAPS_DEBUG": "writes"}).finish()
    assert "message 1 of topic 't' was written to" in printed and "<string>:" in printed


def test_no_write_no_warning(program):
    assert program(CAUGHT, HERE, "host", "clean", env={"RGAPS_DEBUG": "other, writes"}).finish() == ""


@pytest.mark.skipif(
    REAL_GPU or len(rgaps.domains()) < 2, reason="writes device memory from the host, as the test driver lets it"
)
@pytest.mark.parametrize("how", ["interface", "dlpack", "clean"])
def test_a_write_on_a_gpu_is_found(program, how):
    printed = program(CAUGHT, HERE, "cuda", how, env={"RGAPS_DEBUG": "writes"}).finish()
    assert ("message 1 of topic 't' was written to" in printed) == (how != "clean")


def test_release_raises_where_warnings_are_errors(program):
    run = program(
        """
        import ctypes, warnings
        import numpy as np
        import rgaps
        warnings.simplefilter("error", rgaps.WriteWarning)
        sub, pub = rgaps.subscriber("t"), rgaps.publisher("t")
        pub.put(b"hello")
        try:
            with sub.recv(60) as sample:
                ctypes.memset(np.asarray(sample).__array_interface__["data"][0], 0, 1)
        except rgaps.WriteWarning as error:
            print(error, sub.held)
        """,
        env={"RGAPS_DEBUG": "writes"},
    )
    assert "message 0" in (printed := run.finish()) and printed.endswith(" 0")


def test_a_publisher_that_writes_after_publishing_is_found(program):
    run = program(
        """
        import ctypes, warnings
        import numpy as np
        import rgaps
        sub, pub = rgaps.subscriber("t"), rgaps.publisher("t")
        loan = pub.loan(5)
        where = loan.address
        loan.publish()
        sample = sub.recv(60)
        array = np.asarray(sample)
        ctypes.memset(where, 1, 5)
        assert array.tolist() != [1] * 5
        del array
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sample.release()
        print(caught[0].message)
        """,
        env={"RGAPS_DEBUG": "writes"},
    )
    assert "its publisher wrote" in run.finish()
