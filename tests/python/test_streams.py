"""Order on streams, on the test driver: the CPU waits for no stream, and streams wait for what they
read and for who still reads. A stream is held where a missing wait is to be seen."""

import ctypes
import os
import threading

import numpy as np
import pytest

import rgaps
from capsules import IS_COPIED, Capsule
from conftest import REAL_GPU
from driver import Driver

pytestmark = pytest.mark.skipif(
    REAL_GPU or len(rgaps.domains()) < 2, reason="holds streams, as only the test driver lets it"
)
SIZE = 1000


@pytest.fixture
def driver():
    return Driver()


@pytest.fixture
def cuda(node):
    with node.publisher("t", domain="cuda", history=1) as pub, node.subscriber("t") as sub:
        yield pub, sub


def published(pub, stream, value):
    """A message that the stream has yet to write."""
    loan = pub.loan(SIZE)
    stream.fill(loan.address, value, SIZE)
    loan.publish(stream=stream)


def test_a_publish_waits_for_nothing(cuda, driver):
    pub, sub = cuda
    stream = driver.stream()
    with stream.held():
        published(pub, stream, 7)
        sample = sub.recv(60)
        assert not sample.is_ready() and not sample.synchronize(0.05)
    assert sample.synchronize(60) and sample.is_ready()
    assert sample.tobytes() == b"\7" * SIZE


@pytest.mark.parametrize("consumer", [None, 1, 2, "own", "object"])
def test_a_consumers_stream_comes_behind_the_publishers(cuda, driver, consumer):
    """All numbers of the array API: the default stream by two names, the thread's, one of one's
    own, and that as an object."""
    pub, sub = cuda
    writes, own, scratch = driver.stream(), driver.stream(), driver.allocate(SIZE)
    named = {"own": own.cuda_stream, "object": own}.get(consumer, consumer)
    reads = {"own": own.cuda_stream, "object": own.cuda_stream, None: 1}.get(consumer, consumer)
    with writes.held():
        published(pub, writes, 7)
        sample = sub.recv(60)
        capsule = Capsule(sample.__dlpack__(stream=named, max_version=(1, 1)))
        driver.copy(scratch, capsule.data, SIZE, reads)
        assert driver.stays_busy(reads)
    driver.synchronize(reads)
    assert ctypes.string_at(scratch, SIZE) == b"\7" * SIZE
    capsule.delete()


def test_a_consumer_that_sees_to_the_order_itself(cuda, driver):
    pub, sub = cuda
    writes = driver.stream()
    with writes.held():
        published(pub, writes, 7)
        sample = sub.recv(60)
        before = driver.calls("cuStreamWaitValue64")
        Capsule(sample.__dlpack__(stream=-1, max_version=(1, 1))).delete()
        assert driver.calls("cuStreamWaitValue64") == before
        Capsule(sample.__dlpack__(stream=1, max_version=(1, 1))).delete()
        assert driver.calls("cuStreamWaitValue64") == before + 1


def test_a_publisher_that_has_waited_asks_no_stream(cuda, driver):
    pub, sub = cuda
    writes = driver.stream()
    for keeps_an_array in (False, True):
        loan = pub.loan(SIZE)
        capsule = Capsule(loan.__dlpack__(stream=1, max_version=(1, 1)))
        writes.fill(loan.address, 7, SIZE)
        writes.synchronize()
        if keeps_an_array:
            with pytest.warns(rgaps.CopyWarning):
                loan.publish(stream=-1)
            capsule.delete()
        else:
            capsule.delete()
            before = driver.calls("cuStreamQuery")
            loan.publish(stream=-1)
            assert driver.calls("cuStreamQuery") == before
        sample = sub.recv(60)
        assert sample.is_ready() and sample.tobytes() == b"\7" * SIZE


@pytest.mark.parametrize("wrong", [0, -2, "stream", 2.5])
def test_what_is_no_stream(cuda, wrong):
    pub, sub = cuda
    pub.put(b"x")
    for exporter in (sub.recv(60), pub.loan(3)):
        with pytest.raises(rgaps.InvalidArgument, match="stream"):
            exporter.__dlpack__(stream=wrong)
    # A number that is no handle is found out where it is used.
    with pytest.raises(rgaps.Error):
        pub.loan(3).publish(stream=3)


def test_a_block_is_kept_until_its_readers_streams_have_passed(cuda, driver):
    pub, sub = cuda
    reads, scratch = driver.stream(), driver.allocate(SIZE)
    for number, let_go in enumerate(["capsule", "record", "release", "interface"]):
        pub.put(bytes([number]) * SIZE)
        sample = sub.recv(60)
        where = sample.address
        with reads.held():
            driver.copy(scratch, where, SIZE, reads.cuda_stream)
            if let_go == "capsule":
                capsule = Capsule(sample.__dlpack__(stream=reads.cuda_stream, max_version=(1, 1)))
                del sample
                capsule.delete()
            elif let_go == "record":
                sample.record_stream(reads)
                del sample
            elif let_go == "release":
                sample.release(stream=reads.cuda_stream)
            else:
                assert sample.__cuda_array_interface__["data"] == (where, True)
                sample.record_stream(reads)
                del sample
            # Let go of, for this process; not for the publisher.
            assert sub.held == 0
            taken = [pub.loan(SIZE) for _ in range(8)]
            assert where not in [loan.address for loan in taken]
            for loan in taken:
                loan.publish()
        reads.synchronize()
        assert ctypes.string_at(scratch, SIZE) == bytes([number]) * SIZE
        while sub.try_recv() is not None:
            pass


@pytest.mark.parametrize(
    ("held", "named"), [(0, 1), (1, 1), (0, None), (0, 0)], ids=["other", "own", "none", "same"]
)
def test_a_publish_comes_behind_all_who_wrote(cuda, driver, held, named):
    """A consumer named the first stream; the loan is published on that, on another or on none."""
    pub, sub = cuda
    streams = driver.stream(), driver.stream()
    loan = pub.loan(SIZE)
    with streams[held].held():
        capsule = Capsule(loan.__dlpack__(stream=streams[0].cuda_stream, max_version=(1, 1)))
        streams[0].fill(capsule.data, 5, SIZE // 2)
        capsule.delete()
        streams[named or 0].fill(loan.address + SIZE // 2, 5, SIZE // 2)
        loan.publish(stream=None if named is None else streams[named])
        sample = sub.recv(60)
        assert not sample.is_ready() and not sample.synchronize(0.05)
    assert sample.tobytes() == b"\5" * SIZE


def test_a_loan_that_is_given_up_is_not_used_again_too_early(cuda, driver):
    pub, _ = cuda
    first, second = driver.stream(), driver.stream()
    for both in (False, True):
        loan = pub.loan(SIZE)
        where = loan.address
        with first.held():
            for stream in (first, second)[: both + 1]:
                capsule = Capsule(loan.__dlpack__(stream=stream.cuda_stream, max_version=(1, 1)))
                capsule.delete()
            first.fill(where, 9, SIZE)
            loan.discard()
            taken = [pub.loan(SIZE) for _ in range(8)]
            assert where not in [loan.address for loan in taken]
            del taken
        first.synchronize()
        second.synchronize()


DIES = """
    import sys
    sys.path.insert(0, sys.argv[1])
    import rgaps
    from driver import Driver

    with rgaps.Node() as node, node.publisher("t", domain="cuda", history=2) as pub:
        stream = Driver().stream()
        assert pub.wait_for_subscribers(1, 60)
        pub.put(b"whole")
        loan = pub.loan(5)
        with stream.held():
            stream.fill(loan.address, 7, 5)
            loan.publish(stream=stream)
            print("published")
            sys.stdin.readline()
"""


def test_a_publisher_that_dies_leaves_no_one_waiting(node, program):
    with node.subscriber("t") as sub:
        run = program(DIES, os.path.dirname(__file__))
        assert run.line() == "published"
        whole, unfinished = sub.recv(60), sub.recv(60)
        assert not unfinished.is_ready()
        run.process.kill()
        with pytest.raises(rgaps.Aborted, match="is aborted"):
            unfinished.synchronize(20)
        for view in (unfinished.tobytes, lambda: unfinished.__dlpack__(stream=1)):
            with pytest.raises(rgaps.Aborted):
                view()
        assert whole.tobytes() == b"whole"


def test_a_copy_in_place_of_a_live_view_comes_behind_too(cuda, driver):
    pub, sub = cuda
    stream = driver.stream()
    loan = pub.loan(SIZE)
    capsule = Capsule(loan.__dlpack__(stream=stream.cuda_stream, max_version=(1, 1)))
    stream.fill(capsule.data, 3, SIZE)
    with pytest.warns(rgaps.CopyWarning):
        loan.publish()
    assert sub.recv(60).tobytes() == b"\3" * SIZE
    capsule.delete()


def test_the_array_interface_names_a_stream_to_wait_for(cuda, driver):
    pub, sub = cuda
    stream, scratch = driver.stream(), driver.allocate(SIZE)
    with stream.held():
        published(pub, stream, 6)
        sample = sub.recv(60)
        interface = sample.__cuda_array_interface__
        assert (interface["stream"], interface["version"]) == (1, 3)
        driver.copy(scratch, interface["data"][0], SIZE, interface["stream"])
        assert driver.stays_busy(interface["stream"])
    driver.synchronize(1)
    assert ctypes.string_at(scratch, SIZE) == b"\6" * SIZE
    assert sample.synchronize(60) and sample.__cuda_array_interface__["stream"] is None
    loan = pub.loan((2, 3), "int16", strides=(10, 2))
    interface = loan.__cuda_array_interface__
    assert (interface["strides"], interface["stream"]) == ((10, 2), None)


class Interface:
    """Only the array interface, as numba's arrays."""

    def __init__(self, address, shape, typestr, stream=None, **more):
        self.__cuda_array_interface__ = {
            "data": (address, False), "shape": shape, "typestr": typestr, "version": 3,
            "stream": stream, **more,
        }  # fmt: skip


def test_put_comes_behind_the_work_on_its_source(cuda, driver, node):
    pub, sub = cuda
    stream, source = driver.stream(), driver.allocate(SIZE)
    with node.publisher("host") as host, node.subscriber("host") as on_host:
        for number, (array, named) in enumerate(
            [
                (Interface(source, (10, 25), "<f4"), stream),
                (Interface(source, (10, 25), "<f4", stream.cuda_stream), None),
                (Interface(source, (SIZE,), "|u1"), stream.cuda_stream),
            ]
        ):
            for to, subscriber in ((pub, sub), (host, on_host)):
                stream.fill(source, number, SIZE)
                to.put(array, stream=named)
                stream.fill(source, 99, SIZE)
                sample = subscriber.recv(60)
                assert sample.shape == array.__cuda_array_interface__["shape"]
                assert sample.tobytes() == bytes([number]) * SIZE
    for wrong in (
        {"typestr": "<V4"},
        {"typestr": ">f4"},
        {"strides": (400, 8)},
        {"strides": (102, 5)},
    ):
        given = {"address": source, "shape": (10, 25), "typestr": "<f4", **wrong}
        with pytest.raises(rgaps.InvalidArgument):
            pub.put(Interface(**given))


@pytest.mark.parametrize("domain", ["cuda", "host"])
@pytest.mark.parametrize("named", [False, True])
def test_put_waits_for_the_work_on_its_source(node, driver, domain, named):
    with node.publisher("t", domain=domain) as pub, node.subscriber("t") as sub:
        stream, source = driver.stream(), driver.allocate(SIZE)
        array = Interface(source, (SIZE,), "|u1", None if named else stream.cuda_stream)
        putting = threading.Thread(target=pub.put, args=(array,), daemon=True)
        if named:
            putting = threading.Thread(
                target=pub.put, args=(array,), kwargs={"stream": stream}, daemon=True
            )
        with stream.held():
            stream.fill(source, 4, SIZE)
            putting.start()
            putting.join(0.1)
            assert putting.is_alive() and sub.try_recv() is None
        putting.join(60)
        assert not putting.is_alive()
        assert sub.recv(60).tobytes() == b"\4" * SIZE


def test_put_is_done_with_its_source_when_it_returns(cuda, driver):
    """The source may be freed by whoever knows nothing of the stream."""
    pub, sub = cuda
    stream, source = driver.stream(), driver.allocate(SIZE)
    with driver.delay(20):
        pub.put(Interface(source, (SIZE,), "|u1"), stream=stream)
        assert driver.is_idle(stream.cuda_stream)
        pub.put(sub.recv(60))
        assert driver.is_idle(1)


def test_a_copy_on_the_gpu(cuda, driver):
    pub, sub = cuda
    stream = driver.stream()
    pub.put(np.arange(24, dtype="i2").reshape(4, 6))
    sample = sub.recv(60)
    before = driver.live("allocations")
    capsule = Capsule(sample.__dlpack__(stream=1, max_version=(1, 1), copy=True))
    assert (capsule.flags, capsule.device, capsule.shape) == (IS_COPIED, (2, 0), (4, 6))
    assert capsule.data != sample.address and driver.live("allocations") == before + 1
    del sample
    assert sub.held == 0
    assert ctypes.string_at(capsule.data, 48) == np.arange(24, dtype="i2").tobytes()
    stream.fill(capsule.data, 0, 48)
    capsule.delete()
    assert driver.live("allocations") == before
    pub.put(np.zeros((0, 3)))
    capsule = Capsule(sub.recv(60).__dlpack__(max_version=(1, 1), copy=True))
    assert capsule.shape == (0, 3)
    capsule.delete()


def test_copies_to_the_host_wait_for_the_publisher(cuda, driver):
    pub, sub = cuda
    stream = driver.stream()
    for read in (
        lambda sample: sample.tobytes(),
        lambda sample: np.from_dlpack(sample, device="cpu").tobytes(),
    ):
        published(pub, stream, 8)
        assert read(sub.recv(60)) == b"\x08" * SIZE


ONLY_ITS_OWN = """
    import ctypes, os, sys
    sys.path.insert(0, sys.argv[1])
    import rgaps
    from capsules import Capsule

    number = int(sys.argv[2])
    assert len(rgaps.domains()) == 3
    node = rgaps.Node()
    sub, pub = node.subscriber("t"), node.publisher("t", domain=f"cuda:{number}")
    pub.put(b"hello")
    sample = sub.recv(60)
    assert sample.__dlpack_device__() == (2, number)
    for copy in (None, True):
        capsule = Capsule(sample.__dlpack__(stream=1, max_version=(1, 1), copy=copy))
        assert capsule.device == (2, number) and ctypes.string_at(capsule.data, 5) == b"hello"
        capsule.delete()
    assert sample.tobytes() == b"hello" and sample.__cuda_array_interface__
    driver = ctypes.CDLL(os.environ["RGAPS_CUDA_LIBRARY"])
    for device in range(2):
        flags, active = ctypes.c_uint(), ctypes.c_int()
        state = driver.cuDevicePrimaryCtxGetState
        assert state(device, ctypes.byref(flags), ctypes.byref(active)) == 0
        print(active.value)
"""


@pytest.mark.parametrize("number", [0, 1])
def test_a_process_opens_only_its_own_gpu(program, number):
    here = os.path.dirname(__file__)
    run = program(ONLY_ITS_OWN, here, number, env={"RGAPS_TEST_DRIVER_DEVICES": "2"})
    active = run.finish(60).split()
    assert active == ["1", "0"] if number == 0 else active == ["0", "1"]
