"""Subscribers that name where they read, on a machine with two GPUs: of the test driver, whose device
memory the host can look at. Each test is a process of its own, since a driver is loaded once."""

import os

import pytest

import rgaps
from conftest import REAL_GPU

pytestmark = pytest.mark.skipif(
    REAL_GPU or len(rgaps.domains()) < 2, reason="wants two GPUs of the test driver"
)
TWO = {"RGAPS_TEST_DRIVER_DEVICES": "2", "RGAPS_TEST_DRIVER_DELAY_US": "2000"}

READS_ELSEWHERE = """
    import sys
    import numpy as np
    import rgaps

    source, *wanted = sys.argv[1:]
    host, one, two = rgaps.domains()
    named = {"host": host, "cuda:0": one, "cuda": one, "cuda:1": two}
    device = {host: (1, 0), one: (2, 0), two: (2, 1)}
    data = np.arange(1_500_000, dtype="i4").reshape(3, -1)
    with rgaps.Node() as node:
        subs = [node.subscriber("t", domain=domain, reliable=True) for domain in wanted]
        twins = [node.subscriber("t", domain=domain, reliable=True) for domain in wanted]
        with node.publisher("t", domain=source, history=2) as pub:
            for number in range(4):
                pub.put(data + number, tag=number)
                for sub, twin, domain in zip(subs, twins, wanted):
                    sample, other = sub.recv(60), twin.recv(60)
                    assert sample.domain == named[domain], (sample.domain, domain)
                    assert sample.__dlpack_device__() == device[sample.domain]
                    assert (sample.shape, sample.dtype, sample.tag) == (data.shape, "int32", number)
                    assert sample.tobytes() == other.tobytes() == (data + number).tobytes()
                    if domain == "host":
                        assert (np.from_dlpack(sample) == data + number).all()
                        same = sample.__array_interface__["data"], other.__array_interface__["data"]
                    else:
                        same = (sample.__cuda_array_interface__["data"],
                                other.__cuda_array_interface__["data"])
                    assert same[0] == same[1], "one copy for a domain, whoever reads there"
            paths = {row["domain"] or pub.domain: row["path"] for row in node.topic("t")["subscriber_list"]}
            for domain in wanted:
                print(paths[named[domain]])
"""


@pytest.mark.parametrize(
    "source, wanted, reasons",
    [
        ("cuda:0", ["host", "cuda:0", "cuda:1"], ["CPU cannot map", "zero copy", "no peer access"]),
        ("host", ["cuda:1", "host", "cuda:0"], ["are on the host", "zero copy", "are on the host"]),
        ("cuda:1", ["cuda"], ["no peer access"]),
    ],
)
def test_a_subscriber_reads_where_it_says(program, source, wanted, reasons):
    run = program(READS_ELSEWHERE, source, *wanted, env=TWO)
    for path, reason in zip(run.finish(60).splitlines(), reasons, strict=True):
        assert reason in path


def test_a_subscriber_of_another_domain_is_behind_the_publishers_stream(program):
    """What a kernel has yet to write is not copied before it has."""
    program(
        """
        import sys
        sys.path.insert(0, sys.argv[1])
        import rgaps
        from driver import Driver

        driver = Driver()
        stream = driver.stream()
        with rgaps.Node() as node, node.subscriber("t", domain="host") as sub:
            with node.publisher("t", domain="cuda:0") as pub:
                pub.put(bytes(1000))
                assert sub.recv(60).tobytes() == bytes(1000)
                loan = pub.loan(1000)
                with stream.held():
                    stream.fill(loan.address, 7, 1000)
                    loan.publish(stream=stream)
                    sample = sub.recv(60)
                    assert sample.domain == "host" and not sample.is_ready()
                    assert not sample.synchronize(0.05)
                assert sample.synchronize(60) and sample.tobytes() == b"\\x07" * 1000
        """,
        rgaps_tests(),
        env=TWO,
    ).finish(60)


def test_a_path_that_is_slower_than_required_is_refused(program):
    program(
        """
        import pytest
        import rgaps

        host, one, two = rgaps.domains()
        with rgaps.Node() as node:
            with node.publisher("t", domain="host", require="zero_copy") as pub:
                with node.subscriber("t", domain="host", require="zero_copy") as sub:
                    words = "publisher requires a path of zero_copy.*this one is pinned"
                    with pytest.raises(rgaps.PathTooSlow, match=words):
                        node.subscriber("t", domain=one)
                    pub.put(b"here")
                    assert sub.recv(60).tobytes() == b"here"
            # Whoever comes second: here the publisher.
            with node.subscriber("u", domain=one, require="peer"):
                with pytest.raises(rgaps.PathTooSlow, match="subscriber requires.*pinned"):
                    node.publisher("u", domain="host")
                node.publisher("u", domain=one, require="zero_copy").close()
            # Two GPUs that are no peers: the subscriber finds it out.
            with node.publisher("v", domain=one):
                with pytest.raises(rgaps.PathTooSlow, match="no peer access"):
                    node.subscriber("v", domain=two, require="peer")
                node.subscriber("v", domain=two, require="pinned").close()
        """,
        env=TWO,
    ).finish(60)


def test_an_integrated_gpu_reads_the_hosts_messages_in_place(program):
    out = program(
        READS_ELSEWHERE, "host", "cuda:1", env={**TWO, "RGAPS_TEST_DRIVER_INTEGRATED": "1"}
    ).finish(60)
    assert "integrated" in out


def test_a_domain_that_is_none(node):
    for wrong in ("gpu", "cuda:x", "cuda:99", "cuda:GPU-00000000-0000-0000-0000-000000000000"):
        with pytest.raises((ValueError, rgaps.Error)):
            node.subscriber("t", domain=wrong)
    # The topic is not spoilt by it.
    with node.publisher("t") as pub, node.subscriber("t") as sub:
        pub.put(b"x")
        assert sub.recv(60).tobytes() == b"x"


def rgaps_tests():
    return os.path.dirname(__file__)


def test_no_memory_for_a_replica_is_a_full_pool_and_loses_nothing(program):
    run = program(
        """
        import rgaps

        with rgaps.Node() as node:
            sub = node.subscriber("short", domain="host", reliable=True)
            with node.publisher("short", domain="cuda", history=1, loan_timeout=0.05) as pub:
                pub.put(bytes(6 << 20), tag=1)
                held = sub.recv(60)
                loan = pub.loan(6 << 20)
                try:
                    loan.publish()
                except rgaps.PoolFull as error:
                    print(error)
                held.release()
                loan.publish()
                print(len(sub.recv(60).tobytes()))
        """,
        env={**TWO, "RGAPS_POOL__HOST__CAP": "8MiB", "RGAPS_POOL__HOST__SEGMENT": "8MiB"},
    )
    said, received = run.finish().splitlines()
    assert said.startswith("no memory for a replica in the domain of some subscribers, so nothing was published: no memory for")
    assert received == str(6 << 20)
