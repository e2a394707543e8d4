"""The CUDA domain: on a GPU where there is one, else through the test driver, whose device memory
is host memory, so that addresses can be looked at."""

import ctypes

import numpy as np
import pytest

import rgaps
from capsules import Capsule, IS_COPIED, READ_ONLY
from conftest import REAL_GPU

pytestmark = pytest.mark.skipif(
    len(rgaps.domains()) < 2, reason="no GPU answers, and the test driver was not built"
)
on_test_driver = pytest.mark.skipif(REAL_GPU, reason="looks at device memory from the host")


@pytest.fixture
def cuda(node, monkeypatch):
    with node.publisher("t", domain="cuda") as pub, node.subscriber("t") as sub:
        yield pub, sub


def test_the_domain_has_its_gpus_name(cuda):
    pub, _ = cuda
    assert pub.domain == rgaps.domains()[1] and pub.domain.startswith("cuda:GPU-")


def test_bytes_arrive(cuda):
    pub, sub = cuda
    data = np.random.default_rng(1).integers(0, 255, (100, 7), dtype=np.uint8)
    pub.put(data, tag=5)
    sample = sub.recv(60)
    assert sample.tobytes() == data.tobytes()
    assert (sample.shape, sample.dtype, sample.tag) == ((100, 7), "uint8", 5)
    assert sample.domain == pub.domain and sample.__dlpack_device__() == (2, 0)
    with pub.loan((3, 4), "float32") as loan:
        loan.write(np.arange(12, dtype="f4"))
    assert np.frombuffer(sub.recv(60).tobytes(), "f4").tolist() == list(range(12))


def test_a_forwarded_sample_stays_on_the_gpu(cuda):
    pub, sub = cuda
    pub.put(np.arange(10, dtype="i8"))
    pub.put(sub.recv(60))
    sample = sub.recv(60)
    assert sample.sequence == 1 and np.frombuffer(sample.tobytes(), "i8").tolist() == list(range(10))


def test_a_gpus_array_is_copied_to_a_topic_on_the_host_and_the_reverse(cuda, node):
    pub, sub = cuda
    data = np.arange(6, dtype="f4").reshape(2, 3)
    pub.put(data)
    with node.subscriber("host") as on_host, node.publisher("host") as host_pub:
        host_pub.put(sub.recv(60))
        assert on_host.recv(60).numpy().tolist() == data.tolist()
        with host_pub.loan(5) as loan:
            pub.put(b"hello")
            loan.write(sub.recv(60))
        arrived = on_host.recv(60)
        assert arrived.tobytes() == b"hello"
        pub.put(arrived)
        assert sub.recv(60).tobytes() == b"hello"


def test_the_host_cannot_look_at_it(cuda):
    pub, sub = cuda
    pub.put(np.arange(3))
    sample, loan = sub.recv(60), pub.loan(3)
    for each in (sample, loan):
        with pytest.raises(BufferError, match="from_dlpack"):
            memoryview(each)
        with pytest.raises(TypeError, match="from_dlpack"):
            each.numpy()
        assert not hasattr(each, "__array_interface__")


def test_copies_to_the_host_by_dlpack(cuda):
    pub, sub = cuda
    pub.put(np.arange(6, dtype="i4").reshape(2, 3))
    sample = sub.recv(60)
    array = np.from_dlpack(sample, device="cpu")
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]] and array.flags.writeable
    capsule = Capsule(sample.__dlpack__(dl_device=(1, 0), max_version=(1, 0)))
    assert capsule.flags == IS_COPIED and capsule.device == (1, 0)
    capsule.delete()
    for refused in ({"dl_device": (1, 0), "copy": False}, {"dl_device": (2, 7)}):
        with pytest.raises(BufferError):
            sample.__dlpack__(**refused)


@on_test_driver
def test_a_consumer_sees_the_same_memory(cuda):
    pub, sub = cuda
    data = np.arange(24, dtype="i2").reshape(4, 6)
    pub.put(data)
    sample = sub.recv(60)
    for stream in (None, 1, -1):
        capsule = Capsule(sample.__dlpack__(stream=stream, max_version=(1, 1)))
        assert (capsule.flags, capsule.device) == (READ_ONLY, (2, 0))
        assert (capsule.data, capsule.shape) == (sample.address, (4, 6))
        assert ctypes.string_at(capsule.data, 48) == data.tobytes()
        capsule.delete()
    interface = sample.__cuda_array_interface__
    assert interface["data"] == (sample.address, True) and interface["version"] == 3
    assert (interface["shape"], interface["typestr"], interface["stream"]) == ((4, 6), "<i2", None)
    del sample
    assert sub.held == 0


@on_test_driver
def test_what_a_producer_writes_is_what_arrives(cuda):
    pub, sub = cuda
    with pub.loan(5) as loan:
        assert loan.__dlpack_device__() == (2, 0)
        assert loan.__cuda_array_interface__["data"] == (loan.address, False)
        capsule = Capsule(loan.__dlpack__(stream=1, max_version=(1, 1)))
        assert capsule.flags == 0
        ctypes.memmove(capsule.data, b"hello", 5)
        capsule.delete()
    assert sub.recv(60).tobytes() == b"hello"


@on_test_driver
def test_a_live_tensor_over_a_loan_makes_a_copy(cuda):
    pub, sub = cuda
    loan = pub.loan(5)
    capsule = Capsule(loan.__dlpack__(max_version=(1, 1)))
    ctypes.memmove(capsule.data, b"hello", 5)
    with pytest.warns(rgaps.CopyWarning):
        loan.publish()
    ctypes.memmove(capsule.data, b"later", 5)
    assert sub.recv(60).tobytes() == b"hello"
    capsule.delete()


def test_a_gpu_that_is_not_there(node):
    with pytest.raises(rgaps.DomainUnavailable, match="GPU 99"):
        node.publisher("t", domain="cuda:99")
    with pytest.raises(rgaps.Error):
        node.publisher("t", domain="cuda:GPU-00000000-0000-0000-0000-000000000000")


def test_without_a_driver(program):
    run = program(
        """
        import rgaps
        assert rgaps.domains() == ["host"]
        try:
            rgaps.publisher("t", domain="cuda")
        except rgaps.DomainUnavailable as error:
            print(error)
        """,
        env={"RGAPS_CUDA_LIBRARY": "/nonexistent/libcuda.so.1"},
    )
    assert "/nonexistent/libcuda.so.1" in run.finish()
