"""A kernel of your own, launched by CuPy, publishes while it runs: the norm of each frame, which a host subscriber receives meanwhile.

    python device_topic_cupy.py --include /usr/local/include [--frames 100]

Needs CuPy, nvcc on the PATH, the headers of rgaps and a GPU. `make test-device` compiles KERNEL for every GPU; the whole ran on one H200.
"""

import argparse
import struct

import cupy  # type: ignore[import-not-found,unused-ignore]
import numpy

import rgaps

KERNEL = r"""
#include <rgaps/device.cuh>
#include <string.h>

using namespace rgaps::device;
typedef unsigned long long word;

/* The topic comes as its eight words, as DeviceTopic.words has them. */
extern "C" __global__ void norms(word w0, word w1, word w2, word w3, word w4, word w5, word w6, word w7, const float *frames,
                                 word floats, word count, word ticks_max, int *status) {
    const word words[8] = {w0, w1, w2, w3, w4, w5, w6, w7};
    rgaps_device_topic_t topic;
    memcpy(&topic, words, sizeof topic);
    const auto group = cooperative_groups::this_thread_block();
    __shared__ float sum;
    Publisher publisher;
    publisher.attach(group, topic);
    Status last = Status::ok;
    for (word frame = 0; frame < count && last == Status::ok; ++frame) {
        if (group.thread_rank() == 0) sum = 0;
        group.sync();
        float own = 0;
        for (word at = group.thread_rank(); at < floats; at += group.size()) own += frames[frame * floats + at] * frames[frame * floats + at];
        atomicAdd(&sum, own);
        group.sync();
        Loan loan;
        last = publisher.loan(group, sizeof(float), &loan, ticks_max);
        if (last != Status::ok) break;
        if (group.thread_rank() == 0) *static_cast<float *>(loan.data) = sqrtf(sum);
        publisher.publish(group, &loan);
    }
    if (group.thread_rank() == 0) *status = static_cast<int>(last);
}
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--include", required=True, help="the folder that has rgaps/device.cuh")
    parser.add_argument("--frames", type=int, default=100)
    options = parser.parse_args()

    module = cupy.RawModule(code=KERNEL, backend="nvcc", options=("-std=c++17", f"-I{options.include}"))
    kernel = module.get_function("norms")
    frames = cupy.random.standard_normal((options.frames, 1 << 16), dtype=cupy.float32)
    wanted = cupy.linalg.norm(frames, axis=1).get()
    status = cupy.zeros(1, dtype=cupy.int32)

    topic = rgaps.DeviceTopic("cuda", depth=16, blocks=24, block_bytes=256)
    with rgaps.default_node().bridge("norms", topic), rgaps.subscriber("norms", reliable=True) as subscriber:
        # A stream of its own: the bridge copies on another one while the kernel runs.
        with cupy.cuda.Stream(non_blocking=True) as stream:
            words = [numpy.uint64(word) for word in topic.words]
            sizes = [numpy.uint64(size) for size in (frames.shape[1], frames.shape[0], 20_000_000_000)]
            cupy.cuda.Device().synchronize()
            kernel((1,), (256,), (*words, frames, *sizes, status))
            for number in range(options.frames):
                sample = subscriber.recv(timeout=60.0)
                (norm,) = struct.unpack("f", sample.tobytes())
                sample.release()
                assert abs(norm - wanted[number]) < 1e-3 * wanted[number], (number, norm)
            stream.synchronize()
    assert int(status[0]) == 0, f"the kernel ended with {int(status[0])}"
    print(f"{options.frames} norms came while the kernel ran")


if __name__ == "__main__":
    main()
