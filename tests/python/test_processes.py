"""Several processes: every byte checked; forks; deaths."""

import multiprocessing
import os
import signal

import numpy as np
import pytest

import rgaps

SUBSCRIBER = """
    import sys, zlib, rgaps
    import numpy as np
    topic, messages = sys.argv[1], int(sys.argv[2])
    with rgaps.subscriber(topic, reliable=True) as sub:
        print("ready")
        held, seen = [], {}
        while sum(seen.values()) < messages:
            sample = sub.recv(60)
            count = seen.get(sample.publisher_id, 0)
            array = np.asarray(sample)
            assert sample.sequence == count and sample.missed == 0, (sample.sequence, count)
            assert zlib.crc32(array) == sample.tag
            seen[sample.publisher_id] = count + 1
            held = (held + [(array, sample.tag)])[-8:]
        assert all(zlib.crc32(array) == tag for array, tag in held)
        print("done", sorted(seen.values()))
"""

PUBLISHER = """
    import sys, zlib, rgaps
    import numpy as np
    topic, messages, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    random = np.random.default_rng(seed)
    with rgaps.publisher(topic, deadline=60) as pub:
        assert pub.wait_for_subscribers(3, 60)
        for _ in range(messages):
            size = int(random.integers(0, 300_000))
            with pub.loan(size) as loan:
                data = random.integers(0, 255, size, dtype=np.uint8)
                loan[...] = data
                loan.tag = zlib.crc32(data)
    print("done")
"""


def test_three_subscribers_two_publishers_every_byte(program):
    subs = [program(SUBSCRIBER, "t", 400) for _ in range(3)]
    assert [sub.line() for sub in subs] == ["ready"] * 3
    pubs = [program(PUBLISHER, "t", 200, seed) for seed in (1, 2)]
    assert [pub.finish() for pub in pubs] == ["done"] * 2
    assert [sub.finish() for sub in subs] == ["done [200, 200]"] * 3


def test_a_killed_publishers_messages_stay_with_those_who_hold_them(program, node):
    with node.subscriber("t") as sub:
        run = program(
            """
            import rgaps
            pub = rgaps.publisher("t")
            for number in range(10):
                pub.put(bytes([number]) * 100_000)
            print("published")
            input()
            """
        )
        assert run.line() == "published"
        array = np.asarray(sub.recv(60))
        run.process.kill()
        run.process.wait()
        assert [sub.recv(60).tobytes()[0] for _ in range(9)] == list(range(1, 10))
        with node.publisher("t") as pub:
            for _ in range(50):
                pub.put(bytes([77]) * 100_000)
        assert (array == 0).all()


def test_a_killed_reliable_subscriber_holds_nobody_back(program, node):
    with node.publisher("t", history=4, deadline=60) as pub:
        run = program(
            """
            import rgaps
            sub = rgaps.subscriber("t", reliable=True)
            print("ready")
            sub.recv(60)
            print("stuck")
            input()
            """
        )
        assert run.line() == "ready"
        pub.put(b"x")
        assert run.line() == "stuck"
        os.kill(run.process.pid, signal.SIGKILL)
        # A publisher that waits for it fails after its deadline.
        for _ in range(20):
            pub.put(b"x")


def test_the_daemon_may_die(node):
    with node.subscriber("t") as sub, node.publisher("t") as pub:
        pub.put(b"before")
        array = np.asarray(sub.recv(60))
        os.kill(node.status()["pid"], signal.SIGKILL)
        for number in range(50):
            pub.put(bytes([number]))
            assert sub.recv(60).tobytes() == bytes([number])
        assert bytes(array) == b"before"
        with node.subscriber("later") as later, node.publisher("later") as pub:
            pub.put(b"after")
            assert later.recv(60).tobytes() == b"after"


def _child(target, *arguments):
    """Runs a function in a forked child; gives what it sends back."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments))
    process.start()
    assert ours.poll(60)
    answer = ours.recv()
    process.join(60)
    assert process.exitcode == 0
    return answer


def _use_parents(pipe, node, pub, sub, waiting, loan):
    outcomes = []
    calls = [
        lambda: pub.put(b"x"),
        lambda: pub.loan(5),
        lambda: sub.recv(60),
        sub.try_recv,
        lambda: sub.wait(0.1),
        lambda: sub.listen(print),
        sub.fileno,
        lambda: waiting.wait(0.1),
        lambda: pub.wait_for_subscribers(1, 0.1),
        loan.publish,
        loan.numpy,
        node.topics,
        lambda: node.publisher("u"),
    ]
    for call in calls:
        try:
            outcomes.append(repr(call()))
        except rgaps.Error as error:
            outcomes.append(type(error).__name__)
    pipe.send(outcomes)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_childs_handles_refuse_and_the_parents_go_on(node):
    with node.subscriber("t") as sub, node.publisher("t") as pub:
        waiting = rgaps.WaitSet(sub)
        loan = pub.loan(3)
        loan.write(b"abc")
        outcomes = _child(_use_parents, node, pub, sub, waiting, loan)
        assert outcomes == ["Forked"] * len(outcomes)
        loan.publish()
        assert sub.recv(60).tobytes() == b"abc"


def _use_own(pipe, data):
    with rgaps.publisher("t") as pub:
        pub.put(data)
    pipe.send("sent")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_can_make_its_own():
    with rgaps.subscriber("t") as sub:
        assert _child(_use_own, b"from the child") == "sent"
        assert sub.recv(60).tobytes() == b"from the child"
