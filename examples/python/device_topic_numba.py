"""Kernels that are written in Python, of two processes: one publishes arrays while it runs, the other receives them and verifies every word.

    python device_topic_numba.py --include /usr/local/include [--frames 100]

Numba compiles the kernels. They call the functions of `device_topic.cu`, which nvcc compiles to PTX, and Numba links both. Needs numba-cuda,
nvcc on the PATH, the headers of rgaps and a GPU. `make test-device` compiles and links all of it for every GPU that Numba knows.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import numpy
from numba import cuda, int32, types, uint32, uint64  # type: ignore[import-not-found,unused-ignore]

SHIM = pathlib.Path(__file__).with_name("device_topic.cu")
THREADS = 256
#: 32-bit words of a message, and ticks of a wait: some 10 s.
WORDS, TICKS_MAX = numpy.uint32(4096), numpy.uint64(20_000_000_000)

bytes_of_u32 = types.CPointer(uint32)
publisher = cuda.declare_device("rgaps_publisher", int32(*[uint64] * 8), abi="c")
loan = cuda.declare_device("rgaps_loan", int32(uint64, uint64), abi="c")
loan_data = cuda.declare_device("rgaps_loan_data", bytes_of_u32(), abi="c")
publish = cuda.declare_device("rgaps_publish", int32(), abi="c")
subscriber = cuda.declare_device("rgaps_subscriber", int32(*[uint64] * 9), abi="c")
recv = cuda.declare_device("rgaps_recv", int32(uint64), abi="c")
sample_data = cuda.declare_device("rgaps_sample_data", bytes_of_u32(), abi="c")
release = cuda.declare_device("rgaps_release", int32(), abi="c")

#: The topic's words, the frames, the ticks of a wait; the last status.
SEND = types.void(uint64[::1], uint32[:, ::1], uint64, int32[::1])
#: The topic's words, the seat, messages, their words, the ticks of a wait; the last status, messages received, words that are wrong.
RECEIVE = types.void(uint64[::1], uint64, uint32, uint32, uint64, int32[::1])


def send(w: Any, frames: Any, ticks_max: Any, status: Any) -> None:
    # All threads have the same status.
    last = publisher(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7])
    for frame in range(frames.shape[0]):
        if last == 0:
            last = loan(4 * frames.shape[1], ticks_max)
        if last == 0:
            message = loan_data()
            for at in range(cuda.threadIdx.x, frames.shape[1], cuda.blockDim.x):
                message[at] = frames[frame, at]
            last = publish()
    if cuda.threadIdx.x == 0:
        status[0] = last


def receive(w: Any, seat: Any, count: Any, words: Any, ticks_max: Any, found: Any) -> None:
    last = subscriber(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], seat)
    received = wrong = int32(0)
    for frame in range(count):
        if last == 0:
            last = recv(ticks_max)
        if last == 0:
            message = sample_data()
            for at in range(cuda.threadIdx.x, words, cuda.blockDim.x):
                if message[at] != uint32(frame * words + at):
                    wrong += 1
            last = release()
            received += 1
    cuda.atomic.add(found, 2, wrong)
    if cuda.threadIdx.x == 0:
        found[0], found[1] = last, received


def linked(signature: Any, kernel: Any, include: str) -> Any:
    major, minor = cuda.get_current_device().compute_capability
    with tempfile.TemporaryDirectory() as folder:
        functions = f"{folder}/device_topic.ptx"
        nvcc = ["nvcc", "-std=c++17", "-ptx", "-rdc=true", f"-arch=sm_{major}{minor}", f"-I{include}", "-o", functions, str(SHIM)]
        subprocess.run(nvcc, check=True)
        return cuda.jit(signature, link=[functions])(kernel)


def subscribe(name: str, include: str, frames: int) -> None:
    """The process that receives."""
    import rgaps

    kernel = linked(RECEIVE, receive, include)
    topic = rgaps.default_node().open_device(name)
    place = topic.subscriber()
    words, found = cuda.to_device(numpy.array(topic.words, numpy.uint64)), cuda.to_device(numpy.zeros(3, numpy.int32))
    # A kernel that receives nothing joins; the next one with the seat goes on there.
    for count in (0, frames):
        kernel[1, THREADS](words, numpy.uint64(place.seat), numpy.uint32(count), WORDS, TICKS_MAX, found)
        cuda.synchronize()
        print(*found.copy_to_host(), flush=True)
    place.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--include", required=True, help="the folder that has rgaps/device.cuh")
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--subscribe", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.subscribe:
        return subscribe(options.subscribe, options.include, options.frames)

    import rgaps

    kernel = linked(SEND, send, options.include)
    topic = rgaps.DeviceTopic("cuda", depth=16, blocks=24, block_bytes=4 * int(WORDS))
    words, status = cuda.to_device(numpy.array(topic.words, numpy.uint64)), cuda.to_device(numpy.ones(1, numpy.int32))
    frames = cuda.to_device(numpy.arange(options.frames * int(WORDS), dtype=numpy.uint32).reshape(options.frames, -1))
    # The bridge gives the topic its name. It is a subscriber, too.
    with rgaps.default_node().bridge("frames", topic):
        command = [sys.executable, __file__, "--include", options.include, "--frames", str(options.frames), "--subscribe", "frames"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            joined = other.stdout.readline().split()
            assert joined == ["0", "0", "0"], joined
            # A stream of its own: the bridge copies on another one while the kernel runs. All is there before it starts.
            cuda.synchronize()
            stream = cuda.stream()
            kernel[1, THREADS, stream](words, frames, TICKS_MAX, status)
            stream.synchronize()
            last, received, wrong = map(int, other.stdout.readline().split())
    assert int(status.copy_to_host()[0]) == 0, f"the kernel that publishes ended with {int(status.copy_to_host()[0])}"
    assert (last, received, wrong) == (0, options.frames, 0), f"status {last}, {received} messages received, {wrong} words wrong"
    print(f"{received} messages of {4 * WORDS} bytes received by a kernel of another process, 0 words wrong")


if __name__ == "__main__":
    main()
