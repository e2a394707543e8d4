"""Kernels of Triton, of two processes: one publishes a tensor while it runs, the other receives it and verifies every word.

    python device_topic_triton.py --include /usr/local/include [--frames 100]

The kernels call the functions of `device_topic.cu`, which nvcc compiles to PTX. All threads of a program call a function with scalar arguments once, as
rgaps/device.cuh wants it. Triton links external functions from LLVM's bitcode only, so `link` puts the PTX of ours into Triton's, through Triton's hook
for the stages of its compiler. Needs torch with Triton, nvcc on the PATH, the headers of rgaps and a GPU.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any

import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from triton.language import core  # type: ignore[import-not-found,unused-ignore]

SHIM = pathlib.Path(__file__).with_name("device_topic.cu")
#: 32-bit words of a message, and ticks of a wait: some 10 s.
WORDS, TICKS_MAX = 4096, 20_000_000_000


def call(name: str, result: Any, arguments: list[Any], semantic: Any) -> Any:
    """A call of a function of device_topic.cu with 64-bit arguments. It is not pure: Triton leaves each call where it is."""
    wide = [semantic.cast(semantic.to_tensor(argument), core.int64) for argument in arguments]
    symbols = {(core.int64,) * len(wide): (name, result)}
    return core.extern_elementwise("", "", wide, symbols, is_pure=False, _semantic=semantic)


@core.extern
def publisher(w0, w1, w2, w3, w4, w5, w6, w7, _semantic=None):  # type: ignore[no-untyped-def]
    return call("rgaps_publisher", core.int32, [w0, w1, w2, w3, w4, w5, w6, w7], _semantic)


@core.extern
def loan(size, ticks_max, _semantic=None):  # type: ignore[no-untyped-def]
    return call("rgaps_loan", core.int32, [size, ticks_max], _semantic)


@core.extern
def loan_data(_semantic=None):  # type: ignore[no-untyped-def]
    return call("rgaps_loan_data", core.int64, [], _semantic)


@core.extern
def publish(_semantic=None):  # type: ignore[no-untyped-def]
    return call("rgaps_publish", core.int32, [], _semantic)


@core.extern
def subscriber(w0, w1, w2, w3, w4, w5, w6, w7, seat, _semantic=None):  # type: ignore[no-untyped-def]
    return call("rgaps_subscriber", core.int32, [w0, w1, w2, w3, w4, w5, w6, w7, seat], _semantic)


@core.extern
def recv(ticks_max, _semantic=None):  # type: ignore[no-untyped-def]
    return call("rgaps_recv", core.int32, [ticks_max], _semantic)


@core.extern
def sample_data(_semantic=None):  # type: ignore[no-untyped-def]
    return call("rgaps_sample_data", core.int64, [], _semantic)


@core.extern
def release(_semantic=None):  # type: ignore[no-untyped-def]
    return call("rgaps_release", core.int32, [], _semantic)


@triton.jit(do_not_specialize=["count", "ticks_max"])  # type: ignore[untyped-decorator,unused-ignore]
def send(w, frames, count, ticks_max, status, WORDS: tl.constexpr):  # type: ignore[no-untyped-def]
    last = publisher(tl.load(w), tl.load(w + 1), tl.load(w + 2), tl.load(w + 3), tl.load(w + 4), tl.load(w + 5), tl.load(w + 6), tl.load(w + 7))
    at = tl.arange(0, WORDS)
    for frame in range(count):
        if last == 0:
            last = loan(4 * WORDS, ticks_max)
        if last == 0:
            message = loan_data().to(tl.pointer_type(tl.int32))
            tl.store(message + at, tl.load(frames + frame * WORDS + at))
            last = publish()
    tl.store(status, last)


@triton.jit(do_not_specialize=["seat", "count", "ticks_max"])  # type: ignore[untyped-decorator,unused-ignore]
def receive(w, seat, count, ticks_max, found, WORDS: tl.constexpr):  # type: ignore[no-untyped-def]
    """`found`: the last status, messages received, words that are wrong."""
    last = subscriber(tl.load(w), tl.load(w + 1), tl.load(w + 2), tl.load(w + 3), tl.load(w + 4), tl.load(w + 5), tl.load(w + 6), tl.load(w + 7), seat)
    at = tl.arange(0, WORDS)
    received = 0
    wrong = 0
    for frame in range(count):
        if last == 0:
            last = recv(ticks_max)
        if last == 0:
            message = sample_data().to(tl.pointer_type(tl.int32))
            wrong += tl.sum((tl.load(message + at) != frame * WORDS + at).to(tl.int32))
            last = release()
            received += 1
    tl.store(found, last)
    tl.store(found + 1, received)
    tl.store(found + 2, wrong)


def functions(include: str, architecture: int) -> str:
    """device_topic.cu in PTX, without its head."""
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder) / "device_topic.ptx"
        subprocess.run(["nvcc", "-std=c++17", "-ptx", "-rdc=true", f"-arch=sm_{architecture}", f"-I{include}", "-o", made, SHIM], check=True)
        return re.sub(r"^\.(version|target|address_size) .*$", "", made.read_text(), flags=re.MULTILINE)


def link(include: str) -> None:
    """From here on Triton puts our functions where its PTX declares them."""

    def stages(_backend: Any, stages: dict[str, Any], _options: Any, _language: Any, capability: int) -> None:
        compile_to_ptx = stages["ptx"]

        def linked(source: Any, metadata: Any) -> str:
            text = re.sub(r"^\.extern \.func[^;]*\brgaps_[^;]*;", "", compile_to_ptx(source, metadata), flags=re.MULTILINE)
            head, size, rest = text.partition(".address_size 64")
            return head + size + functions(include, capability) + rest

        stages["ptx"] = linked

    triton.knobs.runtime.add_stages_inspection_hook = stages


def subscribe(name: str, frames: int) -> None:
    """The process that receives."""
    import torch  # type: ignore[import-not-found,unused-ignore]

    import rgaps

    topic = rgaps.default_node().open_device(name)
    place = topic.subscriber()
    words, found = torch.tensor(topic.words, device="cuda"), torch.zeros(3, dtype=torch.int32, device="cuda")
    # A kernel that receives nothing joins; the next one with the seat goes on there.
    for count in (0, frames):
        receive[(1,)](words, place.seat, count, TICKS_MAX, found, WORDS=WORDS)
        print(*found.tolist(), flush=True)
    place.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--include", required=True, help="the folder that has rgaps/device.cuh")
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--subscribe", help=argparse.SUPPRESS)
    options = parser.parse_args()
    link(options.include)
    if options.subscribe:
        return subscribe(options.subscribe, options.frames)

    import torch

    import rgaps

    topic = rgaps.DeviceTopic("cuda", depth=16, blocks=24, block_bytes=4 * WORDS)
    words, status = torch.tensor(topic.words, device="cuda"), torch.ones(1, dtype=torch.int32, device="cuda")
    frames = torch.arange(options.frames * WORDS, dtype=torch.int32, device="cuda")
    # Compiles the kernel, before anybody waits for its messages.
    send[(1,)](words, frames, 0, TICKS_MAX, status, WORDS=WORDS)
    # The bridge gives the topic its name. It is a subscriber, too.
    with rgaps.default_node().bridge("frames", topic):
        command = [sys.executable, __file__, "--include", options.include, "--frames", str(options.frames), "--subscribe", "frames"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            joined = other.stdout.readline().split()
            assert joined == ["0", "0", "0"], joined
            # A stream of its own: the bridge copies on another one while the kernel runs. All is there before it starts.
            torch.cuda.synchronize()
            with torch.cuda.stream(torch.cuda.Stream()) as stream:
                send[(1,)](words, frames, options.frames, TICKS_MAX, status, WORDS=WORDS)
            torch.cuda.synchronize()
            last, received, wrong = map(int, other.stdout.readline().split())
    assert int(status[0]) == 0, f"the kernel that publishes ended with {int(status[0])}"
    assert (last, received, wrong) == (0, options.frames, 0), f"status {last}, {received} messages received, {wrong} words wrong"
    print(f"{received} messages of {4 * WORDS} bytes received by a kernel of another process, 0 words wrong")


if __name__ == "__main__":
    main()
