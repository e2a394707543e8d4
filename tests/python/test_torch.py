"""torch, on the host and on GPUs that are there (not on the test driver: torch has its own).

Here they run with the system's torch, for the CPU (tools/torch.sh); on a machine with a GPU, with its own.
"""

import gc
import inspect
import warnings

import numpy as np
import pytest

import rgaps
from conftest import REAL_GPU

torch = pytest.importorskip("torch", reason="torch is not installed here (539 MB)")

HAS_CUDA = REAL_GPU and torch.cuda.is_available() and len(rgaps.domains()) > 1
on_gpu = pytest.mark.skipif(not HAS_CUDA, reason="no GPU that torch and rgaps can use")
two_gpus = pytest.mark.skipif(
    not HAS_CUDA or torch.cuda.device_count() < 2, reason="fewer than two GPUs"
)
DOMAINS = ["host", pytest.param("cuda", marks=on_gpu)]
DTYPES = [
    name
    for name in """bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32
    float64 complex32 complex64 complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2
    float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2""".split()
    if hasattr(torch, name)
]
# Types that torch itself does not take by DLPack, depending on its version; Sample.torch() gives them.
NOT_BY_DLPACK = ("float8", "float4")
try:
    torch.from_dlpack(torch.zeros(1, dtype=torch.bool))
except RuntimeError:
    NOT_BY_DLPACK += ("bool",)
takes_versions = pytest.mark.skipif(
    "max_version" not in inspect.signature(torch.Tensor.__dlpack__).parameters, reason="this torch takes no capsules with a version"
)
SHAPES = [(), (0,), (3, 0, 2), (7,), (2, 3, 4), (1, 2) * 4]
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


@pytest.fixture(params=DOMAINS)
def pair(node, request):
    with node.publisher("t", domain=request.param) as pub, node.subscriber("t") as sub:
        yield pub, sub


@pytest.fixture
def device(pair):
    return "cpu" if pair[0].domain == "host" else "cuda:0"


def random(shape, dtype, device="cpu"):
    """Any bits, of any type."""
    count = torch.empty(shape).numel()
    if dtype == "bool":
        return torch.randint(0, 2, shape, dtype=torch.bool, device=device)
    dtype = getattr(torch, dtype)
    bits = torch.randint(0, 255, (count * torch.empty(0, dtype=dtype).element_size(),), dtype=torch.uint8, device=device)
    return bits.view(dtype).reshape(shape)


def same(one, other):
    """Whether two tensors have the same type, shape and bits."""
    bits = [each.contiguous().view(-1).view(torch.uint8).cpu() for each in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bits)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_and_shape_both_ways(pair, device, dtype):
    pub, sub = pair
    for shape in SHAPES:
        given = random(shape, dtype, device)
        pub.put(given)
        loan = pub.loan(shape, getattr(torch, dtype))
        where = loan.address
        with loan as t:
            assert (t.dtype, t.shape, str(t.device)) == (given.dtype, given.shape, device)
            assert t.numel() == 0 or t.data_ptr() == where
            t.copy_(given)
        assert t.numel() == 0  # it has no bytes any more
        for _ in range(2):
            sample = sub.recv(60)
            assert (sample.dtype, sample.shape) == (dtype, shape)
            seen = sample.torch()
            assert seen.numel() == 0 or seen.data_ptr() == sample.address
            assert same(seen, given)
            if not dtype.startswith(NOT_BY_DLPACK):
                assert same(torch.from_dlpack(sample), given)


def test_parts_are_tensors_on_the_publishers_device(pair, device):
    pub, sub = pair
    given = {name: random((3, 5), name, device) for name in ("uint8", "float16", "int64")}
    pub.put(given, meta={"frame_id": "torch"})
    with pub.loan({name: (t.shape, t.dtype) for name, t in given.items()}) as m:
        for name, t in given.items():
            torch.from_dlpack(m[name]).copy_(t)
    for _ in range(2):
        sample = sub.recv(60)
        assert sample.keys() == list(given)
        for name, t in given.items():
            seen = torch.from_dlpack(sample.part(name))
            assert str(seen.device) == device and same(seen, t)
            assert seen.data_ptr() % 64 == 0


def test_what_cannot_be_carried(pair):
    pub, _ = pair
    with pytest.raises(rgaps.InvalidArgument, match="9 dimensions"):
        pub.put(torch.zeros((1,) * 9))
    with pytest.raises(rgaps.InvalidArgument, match="qint8"):
        pub.loan(3, torch.qint8)


def test_a_tensor_holds_the_block_and_lets_go(pair, device):
    pub, sub = pair
    pub.put(torch.arange(24, dtype=torch.float32, device=device).reshape(4, 6).T)
    sample = sub.recv(60)
    tensor = torch.from_dlpack(sample)
    assert tensor.data_ptr() == sample.address and tensor.is_contiguous()
    row = tensor[1]
    del sample, tensor
    gc.collect()
    assert row.tolist() == [1.0, 7.0, 13.0, 19.0] and sub.held == 1
    del row
    assert sub.held == 0


def test_gradients_do_not_matter(pair, device):
    pub, sub = pair
    weights = torch.ones(4, requires_grad=True, device=device)
    pub.put(weights * 2)
    with pub.loan(4, torch.float32) as t:
        t.copy_(weights * 3)
    assert [sub.recv(60).torch().tolist() for _ in range(2)] == [[2.0] * 4, [3.0] * 4]


def test_what_is_kept_of_the_tensor_makes_a_copy(pair, device):
    pub, sub = pair
    keeps = [lambda t: t[1:], lambda t: (t, t), lambda t: t.view(-1), lambda t: t.unbind()]
    if device == "cpu":
        keeps += [lambda t: t.numpy(), lambda t: np.from_dlpack(t), lambda t: memoryview(t.numpy())]
    for keep in keeps:
        with pytest.warns(rgaps.CopyWarning):
            with pub.loan(4, torch.uint8) as t:
                t.fill_(1)
                kept = keep(t)
        t.fill_(9)
        if isinstance(kept, torch.Tensor):
            kept.fill_(9)
        assert sub.recv(60).tobytes() == b"\1" * 4
        del kept


def test_in_place_work_makes_no_copy(pair, device):
    pub, sub = pair
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pub.loan((3, 4), torch.float32) as t:
            torch.ones(3, 4, out=t, device=device)
            t[1] *= 2
            t.T[0].add_(1)
            torch.add(t, 1, out=t)
    assert sub.recv(60).torch().tolist() == [[3, 2, 2, 2], [4, 3, 3, 3], [3, 2, 2, 2]]


def test_an_exception_discards(pair):
    pub, sub = pair
    with pytest.raises(ZeroDivisionError):
        with pub.loan(3, torch.uint8) as t:
            1 / 0
    assert t.numel() == 0 and sub.try_recv() is None


def test_strides(pair, device):
    pub, sub = pair
    pictures = torch.rand(2, 3, 8, 8, device=device).to(memory_format=torch.channels_last)
    strides = [4 * stride for stride in pictures.stride()]
    with pub.loan(pictures.shape, torch.float32, strides=strides) as t:
        assert t.is_contiguous(memory_format=torch.channels_last)
        t.copy_(pictures)
    pub.put(pictures)
    kept, made_contiguous = sub.recv(60).torch(), sub.recv(60).torch()
    assert kept.stride() == pictures.stride() and made_contiguous.is_contiguous()
    assert torch.equal(kept, pictures) and torch.equal(made_contiguous, pictures)
    for given in (pictures[:, ::2], pictures[..., 3], pictures.expand(4, 2, 3, 8, 8)):
        pub.put(given)
        assert torch.equal(sub.recv(60).torch(), given)
    pub.put(torch.tensor([1 + 2j]).conj())
    assert sub.recv(60).torch().tolist() == [1 - 2j]


@takes_versions
def test_copies_by_dlpack(pair, device):
    pub, sub = pair
    pub.put(torch.arange(6))
    sample = sub.recv(60)
    capsule = sample.__dlpack__(max_version=(1, 0), copy=True)
    copied = torch.from_dlpack(capsule)
    assert copied.data_ptr() != sample.address and str(copied.device) == device
    copied.fill_(1)
    on_host = torch.from_dlpack(sample.__dlpack__(max_version=(1, 0), dl_device=(1, 0)))
    assert str(on_host.device) == "cpu" and on_host.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_declared_type(node):
    with node.publisher("t", dtype=torch.bfloat16, shape=(2, None)) as pub:
        with node.subscriber("t", dtype=torch.bfloat16, shape=(2, None)) as sub:
            with pytest.raises(rgaps.TypeMismatch, match=r"float32\[2,3\].*bfloat16\[2,\*\]"):
                pub.put(torch.zeros(2, 3))
            with pub.loan((2, 3)) as t:
                assert t.dtype == torch.bfloat16
                t.zero_()
            assert sub.recv(60).torch().dtype == torch.bfloat16


def test_a_write_is_found(program):
    """torch knows no read-only tensors, so this is what the debug mode is for."""
    run = program(
        """
        import torch, warnings
        import rgaps
        sub, pub = rgaps.subscriber("camera"), rgaps.publisher("camera")
        pub.put(torch.zeros(5))
        tensor = torch.from_dlpack(sub.recv(60))
        tensor.add_(1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del tensor
        print(caught[0].message)
        """,
        env={"RGAPS_DEBUG": "writes"},
    )
    printed = run.finish(60)
    assert "message 0 of topic 'camera'" in printed and "<string>:6" in printed


# On a GPU.


def busy(milliseconds=50):
    """Work on torch's current stream that takes a while."""
    torch.cuda._sleep(int(milliseconds * 1.5e6))


@on_gpu
def test_a_publish_comes_behind_the_current_stream(node):
    with node.publisher("t", domain="cuda") as pub, node.subscriber("t") as sub:
        stream = torch.cuda.Stream()
        for number in range(20):
            with torch.cuda.stream(stream):
                with pub.loan(1 << 20, torch.uint8) as t:
                    busy(5)
                    t.fill_(number)
            other = torch.cuda.Stream()
            with torch.cuda.stream(other):
                seen = torch.from_dlpack(sub.recv(60))
                assert bool((seen == number).all())
                del seen


@on_gpu
def test_a_put_reads_the_tensor_in_its_streams_order(node):
    with node.publisher("t", domain="cuda") as pub, node.subscriber("t") as sub:
        stream = torch.cuda.Stream()
        for number in range(20):
            with torch.cuda.stream(stream):
                tensor = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
                busy(5)
                tensor.fill_(number)
                pub.put(tensor)
                tensor.fill_(255)
                del tensor
            assert bool((sub.recv(60).torch() == number).all())


@on_gpu
def test_a_block_waits_for_its_readers(node):
    """The consumer's stream still reads when the tensor is dropped and the publisher goes on."""
    with node.subscriber("t", reliable=True) as sub:
        with node.publisher("t", domain="cuda", history=1, deadline=60) as pub:
            stream = torch.cuda.Stream()
            results = []
            for number in range(50):
                pub.put(torch.full((1 << 20,), number % 251, dtype=torch.uint8, device="cuda"))
                with torch.cuda.stream(stream):
                    seen = torch.from_dlpack(sub.recv(60))
                    busy(2)
                    results.append((seen == number % 251).all())
                    del seen
            torch.cuda.synchronize()
            assert all(bool(result) for result in results)


@on_gpu
def test_between_host_and_gpu(node):
    data = torch.arange(1000, dtype=torch.int32)
    with node.publisher("h") as host, node.subscriber("h") as on_host:
        with node.publisher("g", domain="cuda") as gpu, node.subscriber("g") as on_gpu_:
            for given in (data, data.pin_memory(), data.cuda(), data.cuda()[::3], data[::2]):
                for pub, sub in ((host, on_host), (gpu, on_gpu_)):
                    pub.put(given)
                    assert torch.equal(sub.recv(60).torch().cpu(), given.cpu())


@two_gpus
def test_a_tensor_of_another_gpu(node):
    given = torch.arange(1000, device="cuda:1")
    with node.publisher("t", domain="cuda:0") as pub, node.subscriber("t") as sub:
        pub.put(given)
        assert torch.equal(sub.recv(60).torch().cpu(), given.cpu())


@two_gpus
def test_a_consumer_opens_only_its_own_gpu(program):
    """A context takes hundreds of megabytes of the other GPU's memory."""
    run = program(
        """
        import ctypes, torch
        import rgaps
        with rgaps.Node() as node, node.publisher("t", domain="cuda:1") as pub:
            with node.subscriber("t") as sub:
                with pub.loan(10, torch.uint8) as t:
                    t.fill_(3)
                assert sub.recv(60).torch().tolist() == [3] * 10
        driver = ctypes.CDLL("libcuda.so.1")
        for device in range(2):
            flags, active = ctypes.c_uint(), ctypes.c_int()
            state = driver.cuDevicePrimaryCtxGetState(
                device, ctypes.byref(flags), ctypes.byref(active))
            assert state == 0
            print(active.value)
        """
    )
    assert run.finish(60).split() == ["0", "1"]
