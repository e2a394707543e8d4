"""A kernel that is written in Python publishes while it runs: the norm of each frame, which a host subscriber receives meanwhile.

    python device_topic_numba.py --include /usr/local/include [--frames 100]

Numba compiles the kernel. It calls four functions of `device_topic_numba.cu`, which nvcc compiles to PTX, and Numba links both. Needs numba-cuda,
nvcc on the PATH, the headers of rgaps and a GPU. `make test-device` compiles and links both for every GPU that Numba knows.
"""

import argparse
import math
import pathlib
import struct
import subprocess
import tempfile
from typing import Any

import numpy
from numba import cuda, float32, int32, types, uint64  # type: ignore[import-not-found,unused-ignore]

SHIM = pathlib.Path(__file__).with_suffix(".cu")
THREADS = 256

attach = cuda.declare_device("rgaps_attach", int32(*[uint64] * 8))
loan = cuda.declare_device("rgaps_loan", int32(uint64, uint64))
put_f32 = cuda.declare_device("rgaps_put_f32", int32(uint64, float32))
publish = cuda.declare_device("rgaps_publish", int32())

#: What the kernel takes: the topic's eight words, the frames, the ticks of a wait, and a place for the last status.
SIGNATURE = types.void(*[uint64] * 8, float32[:, ::1], uint64, int32[::1])


def norms(w0: Any, w1: Any, w2: Any, w3: Any, w4: Any, w5: Any, w6: Any, w7: Any, frames: Any, ticks_max: Any, status: Any) -> None:
    total = cuda.shared.array(1, float32)
    thread = cuda.threadIdx.x
    last = attach(w0, w1, w2, w3, w4, w5, w6, w7)
    for frame in range(frames.shape[0]):
        if thread == 0:
            total[0] = 0
        cuda.syncthreads()
        own = float32(0)
        for at in range(thread, frames.shape[1], cuda.blockDim.x):
            own += frames[frame, at] * frames[frame, at]
        cuda.atomic.add(total, 0, own)
        cuda.syncthreads()
        last = loan(4, ticks_max)
        # All threads have the same status.
        if last != 0:
            break
        if thread == 0:
            put_f32(0, math.sqrt(total[0]))
        last = publish()
    if thread == 0:
        status[0] = last


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--include", required=True, help="the folder that has rgaps/device.cuh")
    parser.add_argument("--frames", type=int, default=100)
    options = parser.parse_args()

    import rgaps

    frames = numpy.random.default_rng(1).standard_normal((options.frames, 1 << 16), dtype=numpy.float32)
    wanted = numpy.linalg.norm(frames, axis=1)
    major, minor = cuda.get_current_device().compute_capability
    with tempfile.TemporaryDirectory() as folder:
        shim = f"{folder}/shim.ptx"
        nvcc = ["nvcc", "-std=c++17", "-ptx", "-rdc=true", f"-arch=sm_{major}{minor}", f"-I{options.include}", "-o", shim, str(SHIM)]
        subprocess.run(nvcc, check=True)
        kernel = cuda.jit(SIGNATURE, link=[shim])(norms)
    topic = rgaps.DeviceTopic("cuda", depth=16, blocks=24, block_bytes=256)
    with rgaps.default_node().bridge("norms", topic), rgaps.subscriber("norms", reliable=True) as subscriber:
        # A stream of its own: the bridge copies on another one while the kernel runs. All is there before it starts.
        stream = cuda.stream()
        words = [numpy.uint64(word) for word in topic.words]
        there, status = cuda.to_device(frames), cuda.to_device(numpy.ones(1, dtype=numpy.int32))
        cuda.synchronize()
        kernel[1, THREADS, stream](*words, there, numpy.uint64(20_000_000_000), status)
        for number in range(options.frames):
            sample = subscriber.recv(timeout=60.0)
            (norm,) = struct.unpack("f", sample.tobytes())
            sample.release()
            assert abs(norm - wanted[number]) < 1e-3 * wanted[number], (number, norm)
        stream.synchronize()
    assert int(status.copy_to_host()[0]) == 0, f"the kernel ended with {int(status.copy_to_host()[0])}"
    print(f"{options.frames} norms came while the kernel ran")


if __name__ == "__main__":
    main()
