"""A block stays held for as long as anyone sees its bytes, and no longer."""

import copy
import gc
import threading
import warnings
import weakref

import numpy as np
import pytest

import rgaps
from capsules import Capsule


def churn(pub, messages=200, size=1000):
    """Publishes so much that every block that may be reused is."""
    for number in range(messages):
        pub.put(bytes([number % 251]) * size)


def drain(sub):
    while sub.try_recv() is not None:
        pass


@pytest.mark.parametrize(
    "view",
    [
        np.asarray,
        np.from_dlpack,
        memoryview,
        lambda sample: sample.numpy()[2:10:3],
        lambda sample: memoryview(sample)[5:],
        lambda sample: np.asarray(_AddressOnly(sample)),
        lambda sample: np.asarray(memoryview(sample)).reshape(2, -1),
    ],
    ids=["asarray", "from_dlpack", "memoryview", "slice", "subview", "interface", "reshaped"],
)
def test_a_view_holds_the_block(node, view):
    with node.subscriber("t") as sub, node.publisher("t", history=2) as pub:
        pub.put(b"0123456789" * 100)
        kept = view(sub.recv(60))
        gc.collect()
        expected = bytes(kept)
        assert sub.held == 1 and expected
        churn(pub)
        drain(sub)
        assert bytes(kept) == expected and sub.held == 1
        del kept
        assert sub.held == 0


class _AddressOnly:
    """Takes the address, and keeps the sample as numpy does."""

    def __init__(self, sample):
        self.sample = sample
        self.__array_interface__ = sample.__array_interface__


def test_a_released_sample_refuses(pair):
    pub, sub = pair
    pub.put(b"abc")
    with sub.recv(60) as sample:
        assert sub.held == 1
    assert sub.held == 0 and sample.released
    assert (sample.sequence, sample.nbytes, sample.shape) == (0, 3, (3,))
    for call in (sample.tobytes, sample.numpy, sample.__dlpack__, lambda: memoryview(sample)):
        with pytest.raises(rgaps.Closed):
            call()
    with pytest.raises(rgaps.Closed):
        sample.__array_interface__
    sample.release()  # a second time does nothing


def test_a_released_samples_views_stay_valid(node):
    with node.subscriber("t") as sub, node.publisher("t", history=2) as pub:
        pub.put(b"abc" * 100)
        sample = sub.recv(60)
        views = [np.asarray(sample), np.from_dlpack(sample), memoryview(sample)]
        sample.release()
        churn(pub)
        drain(sub)
        assert all(bytes(view) == b"abc" * 100 for view in views) and sub.held == 1
        del views[:]
        assert sub.held == 0


def test_an_address_that_was_given_out_keeps_the_block_until_the_sample_is_gone(pair):
    pub, sub = pair
    pub.put(b"abc")
    sample = sub.recv(60)
    assert sample.__array_interface__["data"][0] == sample.address
    sample.release()
    assert sample.released and sub.held == 1
    del sample
    assert sub.held == 0


def test_arrays_outlive_everything():
    node = rgaps.Node("short")
    sub, pub = node.subscriber("t"), node.publisher("t")
    data = np.random.default_rng(5).integers(0, 255, 1 << 20, dtype=np.uint8)
    pub.put(data)
    array = np.from_dlpack(sub.recv(60))
    sub.close()
    pub.close()
    node.close()
    del node, sub, pub
    gc.collect()
    assert np.array_equal(array, data)
    # Others reuse what they may.
    with rgaps.Node("other") as other, other.publisher("t") as pub:
        for _ in range(20):
            pub.put(np.zeros_like(data))
    assert np.array_equal(array, data)


def test_a_deleter_may_be_called_on_any_thread_without_the_interpreter(pair):
    pub, sub = pair
    capsules = []
    for number in range(20):
        pub.put(bytes([number]) * 100)
        version = (1, 0) if number % 2 else None
        capsules.append(Capsule(sub.recv(60).__dlpack__(max_version=version)))
    assert sub.held == 20
    threads = [threading.Thread(target=capsule.delete) for capsule in capsules]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sub.held == 0


def test_samples_can_be_dropped_by_threads_while_others_receive(node):
    with node.subscriber("t", reliable=True) as sub, node.publisher("t", deadline=60) as pub:
        failures = []

        def read():
            for _ in range(250):
                sample = sub.recv(60)
                array = np.asarray(sample)
                del sample
                if not (array == array[0]).all():
                    failures.append(array)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        churn(pub, 1000, 5000)
        for thread in threads:
            thread.join()
        assert not failures and sub.held == 0


def test_too_many_held(node):
    with node.subscriber("t", max_held=3) as sub, node.publisher("t") as pub:
        churn(pub, 5)
        held = [sub.recv(60) for _ in range(3)]
        with pytest.raises(rgaps.TooManyHeld, match="max_held"):
            sub.recv(1)
        held.pop()
        assert sub.recv(60).sequence == 3


def test_a_loan_with_a_live_array_is_published_by_a_copy(pair):
    pub, sub = pair
    with pytest.warns(rgaps.CopyWarning, match="del array"):
        with pub.loan(100, "uint8", tag=3) as loan:
            array = loan.numpy()
            array[:] = 1
    sample = sub.recv(60)
    array[:] = 2  # too late, and into a block that nobody reads
    assert bytes(sample) == b"\1" * 100 and sample.tag == 3
    assert not loan.open


@pytest.mark.parametrize("view", [memoryview, np.asarray, np.from_dlpack])
def test_the_copy_can_be_forbidden(pair, view):
    pub, sub = pair
    loan = pub.loan(100)
    kept = view(loan)
    with warnings.catch_warnings():
        warnings.simplefilter("error", rgaps.CopyWarning)
        with pytest.raises(rgaps.CopyWarning):
            loan.publish()
        assert loan.open and sub.try_recv() is None
        kept[:3] = view(bytearray(b"abc")) if view is not np.from_dlpack else 7
        del kept
        loan.publish()
    assert sub.recv(60).nbytes == 100


def test_a_live_array_does_not_write_what_is_loaned_next(pair):
    pub, sub = pair
    with pytest.warns(rgaps.CopyWarning):
        with pub.loan(1000) as loan:
            stale = loan.numpy()
    del loan
    drain(sub)
    for number in range(100):
        stale[:] = 255
        with pub.loan(1000) as loan:
            loan[...] = number
        stale[:] = 255
        assert (sub.recv(60).numpy() == number).all()


def test_objects_go_when_nobody_needs_them(node):
    sub, pub = node.subscriber("t"), node.publisher("t")
    pub.put(b"x")
    sample, loan = sub.recv(60), pub.loan(5)
    listener = sub.listen(lambda sample: None)
    gone = [weakref.ref(each) for each in (sub, pub, sample, loan, listener)]
    del sub, pub, sample, loan, listener
    assert [each() for each in gone] == [None] * 5
    info = node.topics()
    assert info == [] or (info[0]["publishers"], info[0]["subscribers"]) == (0, 0)


def test_no_memory_is_lost_over_many_messages(node):
    """Each way of looking at a sample gives everything back that it took."""
    import resource

    with node.subscriber("t") as sub, node.publisher("t") as pub:

        def rounds(count):
            for _ in range(count):
                with pub.loan((10, 10), "float32") as loan:
                    loan.numpy()[...] = 1
                sample = sub.recv(60)
                np.asarray(sample), np.from_dlpack(sample), bytes(memoryview(sample))
                sample.__dlpack__(), sample.__array_interface__

        rounds(2000)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        rounds(10000)
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown_kib < 1500 and sub.held == 0


def test_a_clone_holds_the_bytes_by_itself(pair):
    pub, sub = pair
    pub.put(b"kept", tag=3)
    first = sub.recv(60)
    second, third = first.clone(), copy.copy(first)
    assert sub.held == 1
    first.release()
    with pytest.raises(rgaps.Closed):
        first.clone()
    assert (second.tobytes(), second.tag, second.sequence) == (b"kept", 3, 0)
    second.release()
    assert bytes(third) == b"kept" and sub.held == 1
    third.release()
    assert sub.held == 0


def test_a_view_of_a_closed_subscriber_keeps_bytes_and_holds_nobody_back(node):
    pub = node.publisher("closed", history=2)
    sub = node.subscriber("closed", reliable=True)
    pub.put(np.arange(4))
    view = np.from_dlpack(sub.recv(60))
    sub.close()
    for n in range(20):
        pub.put(np.full(4, n))
    assert view.tolist() == [0, 1, 2, 3]
