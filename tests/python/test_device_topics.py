"""Device topics from Python: tensors that kernels publish and receive, and bridges. On the test driver, which interprets the
kernels, or on a GPU; with torch where it has one. Kernels of Numba and Triton, on a GPU."""

import importlib.util
import os
import shutil
import subprocess
import sys

import numpy
import pytest
from conftest import REAL_GPU, ROOT

import rgaps

SOON = 100.0

gpu = pytest.mark.skipif(len(rgaps.domains()) < 2, reason="there is neither a GPU nor the test driver")


class OnGpu:
    """Bytes in GPU memory, as libraries give them out: those of a message, whose memory this keeps."""

    def __init__(self, publisher, data):
        self.loan = publisher.loan(len(data))
        self.loan.write(data)
        self.__cuda_array_interface__ = {
            "data": (self.loan.address, False),
            "shape": (len(data),),
            "typestr": "|u1",
            "strides": None,
            "version": 3,
        }


def _payload(number, size):
    return bytes((at * 31 + number * 7) % 256 for at in range(size))


@gpu
def test_what_one_stream_publishes_another_receives(node):
    topic = rgaps.DeviceTopic("cuda", depth=4, blocks=6, block_bytes=8192)
    with node.bridge("tensors", topic), node.publisher("memory", domain="cuda") as memory:
        publisher, subscriber = topic.publisher(), topic.subscriber()
        hosts = node.subscriber("tensors", reliable=True)
        # It joins with its first call, which finds nothing.
        target = OnGpu(memory, bytes(8192))
        subscriber.receive(target, timeout=0.0)
        for number, size in enumerate((8, 4096, 8192, 17), 1):
            source = OnGpu(memory, _payload(number, size))
            publisher.publish(source, timeout=SOON)
            subscriber.receive(target, timeout=SOON)
            sample = hosts.recv(timeout=SOON)
            assert (sample.tag, sample.tobytes()) == (number, _payload(number, size))
            sample.release()
            # The host has it, so the calls have ended or are about to.
            while subscriber.outcome()["calls"] < number + 1:
                pass
            assert subscriber.outcome() == {
                "calls": number + 1,
                "failed": 1,
                "status": 0,
                "sequence": number,
                "bytes": size,
                "missed": 0,
            }
        assert publisher.outcome()["failed"] == 0
        assert topic.newest == 4
        publisher.close()
        subscriber.close()


@gpu
def test_other_processes_open_a_device_topic_by_name(node):
    topic = rgaps.DeviceTopic("cuda", depth=4, blocks=6, block_bytes=1000)
    assert topic.block_bytes == 1024 and len(topic.words) == 8
    with pytest.raises(rgaps.NotFound):
        node.open_device("named")
    with node.bridge("named", topic) as bridge:
        opened = node.open_device("named", publishes=True)
        assert opened.block_bytes == 1024 and opened.words != topic.words
        assert node.topic("named")["device"]["blocks"] == 6
        assert bridge.figures() == {"forwarded": 0, "refused": 0, "failure": None}


def test_wrong_arguments_are_told(node):
    with pytest.raises(rgaps.InvalidArgument, match="power of two"):
        rgaps.DeviceTopic("host", depth=3)
    topic = rgaps.DeviceTopic("host", depth=4, blocks=6, block_bytes=64)
    with pytest.raises(rgaps.InvalidArgument, match="host memory"):
        topic.publisher()
    with pytest.raises(rgaps.InvalidArgument, match="'hosts' or 'kernels'"):
        node.bridge("t", topic, to="nowhere")


@gpu
def test_only_arrays_on_a_gpu_are_taken():
    topic = rgaps.DeviceTopic("cuda", depth=4, blocks=6, block_bytes=64)
    publisher = topic.publisher()
    with pytest.raises(rgaps.InvalidArgument, match="neither"):
        publisher.publish(numpy.zeros(8))
    publisher.close()


@gpu
def test_tensors_of_torch_pass_between_streams():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no GPU")
    topic = rgaps.DeviceTopic("cuda", depth=8, blocks=12, block_bytes=1 << 20)
    publisher, subscriber = topic.publisher(), topic.subscriber(history=True)
    writes, reads = torch.cuda.Stream(), torch.cuda.Stream()
    kept = []
    for number in range(100):
        with torch.cuda.stream(writes):
            frame = torch.arange(262144, device="cuda", dtype=torch.float32) + number
            publisher.publish(frame, stream=writes, timeout=SOON)
        with torch.cuda.stream(reads):
            found = torch.empty(262144, device="cuda")
            subscriber.receive(found, stream=reads, timeout=SOON)
            kept.append((frame, (found - torch.arange(262144, device="cuda")).unique()))
    torch.cuda.synchronize()
    assert [values.tolist() for _, values in kept] == [[float(number)] for number in range(100)]
    assert subscriber.outcome()["failed"] == publisher.outcome()["failed"] == 0
    publisher.close()
    subscriber.close()


@pytest.mark.parametrize("package", ["numba_cuda", "triton"])
def test_kernels_of_python_pass_messages_between_processes(package):
    path = f"{os.environ['PATH']}:/usr/local/cuda/bin"
    if not REAL_GPU:
        pytest.skip("there is no GPU")
    for module in (package, "torch") if package == "triton" else (package,):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    if shutil.which("nvcc", path=path) is None:
        pytest.skip("there is no nvcc, which compiles the functions that the kernels call")
    # In a folder that `make dist` made, the headers stand beside the examples.
    include = next(folder for folder in (ROOT / "crates/capi/include", ROOT / "include") if folder.is_dir())
    example = ROOT / f"examples/python/device_topic_{package.removesuffix('_cuda')}.py"
    command = [sys.executable, str(example), "--include", str(include)]
    done = subprocess.run(command, env=dict(os.environ, PATH=path), capture_output=True, text=True, timeout=SOON)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 words wrong" in done.stdout
