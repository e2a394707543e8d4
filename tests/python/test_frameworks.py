"""JAX, CuPy and numba read samples. JAX and numba also do on the host; CI has none of them."""

import numpy as np
import pytest

import rgaps
from conftest import REAL_GPU

on_gpu = pytest.mark.skipif(
    not REAL_GPU or len(rgaps.domains()) < 2, reason="no GPU (these know no test driver)"
)
#: What they start, and what they say of newer versions, is not ours.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def host(node):
    with node.subscriber("t") as sub, node.publisher("t") as pub:
        yield pub, sub


@pytest.fixture
def cuda(node):
    with node.publisher("t", domain="cuda") as pub, node.subscriber("t") as sub:
        yield pub, sub


TYPES = ["bool", "uint8", "int16", "uint32", "float16", "float32", "bfloat16", "complex64"]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(), (2, 3), (1, 2) * 4])
def test_jax_reads_and_is_put_on_the_host(host, dtype, shape):
    jnp = pytest.importorskip("jax.numpy")
    pub, sub = host
    given = (jnp.arange(int(np.prod(shape))) % 2).reshape(shape).astype(dtype)
    if "cuda" in str(given.devices()):
        pytest.skip("JAX computes on the GPU here")
    pub.put(given)
    sample = sub.recv(60)
    seen = jnp.from_dlpack(sample)
    assert (seen.shape, seen.dtype) == (shape, given.dtype) and bool((seen == given).all())
    assert seen.unsafe_buffer_pointer() == sample.address
    del sample
    assert sub.held == 1
    assert bool((seen == given).all())
    del seen
    assert sub.held == 0


def test_numba_reads_on_the_host(host):
    numba = pytest.importorskip("numba")
    pub, sub = host

    @numba.njit
    def total(array):
        found = 0.0
        for value in array.flat:
            found += value
        return found

    with pub.loan((3, 4), np.float32) as array:
        array[...] = 2
    assert total(np.asarray(sub.recv(60))) == 24


@on_gpu
def test_jax_reads_on_a_gpu(cuda):
    jnp = pytest.importorskip("jax.numpy")
    import jax

    if jax.default_backend() != "gpu":
        pytest.skip("this JAX knows no GPU")
    pub, sub = cuda
    given = jnp.arange(24, dtype="float32").reshape(4, 6)
    pub.put(given)
    sample = sub.recv(60)
    seen = jnp.from_dlpack(sample)
    assert seen.unsafe_buffer_pointer() == sample.address
    del sample
    assert bool((seen * 2 == given * 2).all())


@on_gpu
def test_cupy_writes_and_reads(cuda):
    import numpy

    if not hasattr(numpy, "row_stack"):
        numpy.row_stack = numpy.vstack  # NumPy 2.5 has it no more; CuPy 14.2 looks for it
    try:
        cupy = pytest.importorskip("cupy")
    except AttributeError as error:
        pytest.skip(f"this CuPy does not go with this NumPy: {error}")
    pub, sub = cuda
    pub.put(cupy.arange(24, dtype="f4").reshape(4, 6))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        with pub.loan((4, 6), np.float32) as loan:
            cupy.from_dlpack(loan)[...] = 7
    with pub.loan((4, 6), "float32") as loan:
        cupy.asarray(loan)[...] = 8
    samples = [sub.recv(60) for _ in range(3)]
    expected = [cupy.arange(24, dtype="f4").reshape(4, 6), 7, 8]
    for see in (cupy.from_dlpack, cupy.asarray):
        for sample, value in zip(samples, expected):
            seen = see(sample)
            assert seen.data.ptr == sample.address and bool((seen == value).all())


@on_gpu
def test_numba_reads_and_is_put(cuda):
    cuda_of_numba = pytest.importorskip("numba.cuda")
    pub, sub = cuda

    @cuda_of_numba.jit
    def double(array, doubled):
        at = cuda_of_numba.grid(1)
        if at < array.size:
            doubled[at] = 2 * array[at]

    pub.put(cuda_of_numba.to_device(np.arange(100, dtype="f4")))
    sample = sub.recv(60)
    seen = cuda_of_numba.as_cuda_array(sample)
    assert seen.device_ctypes_pointer.value == sample.address
    doubled = cuda_of_numba.device_array(100, "f4")
    double[4, 32](seen, doubled)
    assert doubled.copy_to_host().tolist() == [2 * value for value in range(100)]
