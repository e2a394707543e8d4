"""What others see of loans and samples: the buffer protocol, DLPack, the array interfaces."""

import ctypes
import gc
import signal

import numpy as np
import pytest

import rgaps
from capsules import Capsule, READ_ONLY, IS_COPIED


@pytest.fixture
def sample(pair):
    pub, sub = pair
    pub.put(np.arange(24, dtype="int16").reshape(2, 3, 4))
    return sub.recv(60)


def address(array):
    return array.__array_interface__["data"][0]


def test_a_samples_buffer(sample):
    view = memoryview(sample)
    assert (view.readonly, view.shape, view.format, view.itemsize) == (True, (2, 3, 4), "h", 2)
    assert view.strides == sample.strides == (24, 8, 2)
    assert view.c_contiguous and view.nbytes == 48
    with pytest.raises(TypeError):
        view[0, 0, 0] = 1
    with pytest.raises((TypeError, BufferError), match="not writable|read-only"):
        (ctypes.c_char * 48).from_buffer(sample)


def test_numpy_sees_a_sample_without_a_copy(sample):
    arrays = [np.asarray(sample), np.from_dlpack(sample), sample.numpy(), np.array(sample, copy=False)]
    arrays.append(np.ndarray(sample.shape, sample.dtype, memoryview(sample)))
    for array in arrays:
        assert address(array) == sample.address
        assert array.tolist() == np.arange(24).reshape(2, 3, 4).tolist()
        assert not array.flags.writeable
        with pytest.raises(ValueError):
            array.flags.writeable = True


def test_the_array_interface_of_a_sample(sample):
    interface = sample.__array_interface__
    assert interface["data"] == (sample.address, True)
    assert (interface["shape"], interface["typestr"], interface["version"]) == ((2, 3, 4), "<i2", 3)
    assert not hasattr(sample, "__cuda_array_interface__")


def test_a_loans_views_are_writable(pair):
    pub, sub = pair
    loan = pub.loan((2, 3), "float32")
    memoryview(loan)[0, 0] = 1.5
    np.asarray(loan)[0, 1] = 2.5
    np.from_dlpack(loan)[1, 0] = 3.5
    loan.numpy()[1, 1] = 4.5
    np.asarray(_Interface(loan))[1, 2] = 5.5
    loan[0, 2] = 6.5
    loan.publish()
    assert sub.recv(60).numpy().tolist() == [[1.5, 2.5, 6.5], [3.5, 4.5, 5.5]]


class _Interface:
    """Only the array interface of something."""

    def __init__(self, exporter):
        self.__array_interface__ = exporter.__array_interface__


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 1), (2, 0)])
def test_what_a_capsule_says(sample, version):
    capsule = Capsule(sample.__dlpack__(max_version=version))
    versioned = version is not None and version >= (1, 0)
    assert capsule.versioned == versioned
    assert capsule.version == ((1, 1) if versioned else None)
    assert capsule.flags == (READ_ONLY if versioned else None)
    assert capsule.device == sample.__dlpack_device__() == (1, 0)
    assert (capsule.shape, capsule.strides, capsule.dtype) == ((2, 3, 4), (12, 4, 1), (0, 16, 1))
    assert capsule.data == sample.address
    capsule.delete()


def test_a_loans_capsule_is_writable(pair):
    loan = pair[0].loan(4)
    capsule = Capsule(loan.__dlpack__(max_version=(1, 1)))
    assert capsule.flags == 0 and capsule.data == loan.address
    capsule.delete()
    loan.discard()


def test_copies_by_dlpack(sample):
    copied = np.from_dlpack(sample, copy=True)
    assert address(copied) != sample.address and copied.flags.writeable
    assert copied.tolist() == sample.numpy().tolist()
    capsule = Capsule(sample.__dlpack__(max_version=(1, 0), copy=True))
    assert capsule.flags == IS_COPIED
    capsule.delete()
    assert address(np.from_dlpack(sample, copy=False)) == sample.address
    assert address(np.from_dlpack(sample, device="cpu")) == sample.address
    with pytest.raises(BufferError, match="copy"):
        sample.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="copy=False"):
        sample.__dlpack__(dl_device=(2, 0), copy=False)


def test_a_capsule_that_nobody_takes_holds_and_lets_go(pair):
    pub, sub = pair
    pub.put(b"x")
    capsule = sub.recv(60).__dlpack__(max_version=(1, 0))
    assert sub.held == 1
    del capsule
    assert sub.held == 0


def test_an_independent_dlpack_consumer(sample):
    tvm_ffi = pytest.importorskip("tvm_ffi")
    tensor = tvm_ffi.from_dlpack(sample)
    assert tuple(tensor.shape) == sample.shape and str(tensor.dtype) == "int16"
    assert tensor.data_ptr() == sample.address
    assert np.from_dlpack(tensor).tolist() == sample.numpy().tolist()


def test_torch_sees_a_sample_without_a_copy(pair):
    torch = pytest.importorskip("torch", reason="torch is not installed here (539 MB)")
    pub, sub = pair
    pub.put(torch.arange(24, dtype=torch.float32).reshape(4, 6).T)
    sample = sub.recv(60)
    tensor = torch.from_dlpack(sample)
    assert tensor.data_ptr() == sample.address and tuple(tensor.shape) == (6, 4)
    del sample
    gc.collect()
    assert tensor.tolist() == np.arange(24.0).reshape(4, 6).T.tolist() and sub.held == 1
    del tensor
    assert sub.held == 0
    with pub.loan((2, 2), torch.float32) as loan:
        torch.from_dlpack(loan).fill_(3)
    assert (sub.recv(60).numpy() == 3).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_that_numpy_knows_from_ml_dtypes(pair, dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    pub, sub = pair
    data = np.arange(6).astype(getattr(ml_dtypes, dtype)).reshape(2, 3)
    pub.put(data.T)
    with pub.loan((3, 2), data.dtype) as loan:
        loan[...] = data.T
    for _ in range(2):
        sample = sub.recv(60)
        assert sample.dtype == dtype and sample.shape == (3, 2)
        array = sample.numpy()
        assert array.dtype == data.dtype and address(array) == sample.address
        assert array.tobytes() == data.T.tobytes()
        # The buffer protocol has no letter for it, and gives the bytes.
        assert memoryview(sample).format == "B" and bytes(memoryview(sample)) == data.T.tobytes()
        assert not hasattr(sample, "__array_interface__")
        with pytest.raises((BufferError, ValueError, RuntimeError)):
            np.from_dlpack(sample)


def test_samples_and_loans_are_not_made_by_hand():
    for made in (rgaps.Sample, rgaps.Loan):
        with pytest.raises(TypeError, match="come from"):
            made()
        with pytest.raises(TypeError):
            type("Sub", (made,), {})


def test_a_write_to_a_sample_faults(program):
    """What gets around the flags meets the mapping, which is read-only."""
    run = program(
        """
        import ctypes, rgaps
        sub, pub = rgaps.subscriber("t"), rgaps.publisher("t")
        pub.put(b"hello")
        sample = sub.recv(60)
        print(ctypes.string_at(sample.address, 5).decode())
        ctypes.memset(sample.address, 0, 5)
        """
    )
    assert run.line() == "hello"
    assert run.process.wait(60) == -signal.SIGSEGV
