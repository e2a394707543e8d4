#!/usr/bin/env python3
"""What a recorder costs publishers, whether it keeps up, and how well a replay keeps time: 1080p RGB at 30 Hz on four topics, in
turns with and without a recorder, then a replay of the last recording, whose bytes are compared with what was published; beside
`dd` and the bare `mcap` crate to the same disk. The last line is JSON. Needs the wheel in .venv (`make wheel`); the floor of the
crate needs cargo, or its program (`--floor`).

    .venv/bin/python bench/record.py --seconds 20 --turns 3 --folder /data
    .venv/bin/python bench/record.py --uhd --seconds 20 --turns 3 --folder /data     # 8 topics of 3840 x 2160
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import rgaps

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "demo"))
from about import about  # noqa: E402

HZ = 30
Frame = npt.NDArray[np.uint8]


def program() -> str:
    return shutil.which("rgaps", path=str(Path(sys.executable).parent)) or "rgaps"


def picture(shape: tuple[int, ...]) -> Frame:
    """The frame that all messages have, but for their number in its first bytes."""
    return np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)


def number_of(frame: Frame) -> Frame:
    """The bytes of a frame that have its number."""
    return frame.reshape(-1)[:8]


def publish(topics: int, shape: tuple[int, ...], seconds: float) -> dict[str, Any]:
    """Publishes to all topics; times of loan, fill and publish in microseconds."""
    frame = picture(shape)
    publishers = [rgaps.publisher(f"bench/{number}", history=8) for number in range(topics)]
    times, late = [], 0
    due = time.perf_counter()
    for number in range(int(seconds * HZ)):
        due += 1 / HZ
        number_of(frame)[:] = np.frombuffer(number.to_bytes(8, "little"), np.uint8)
        for publisher in publishers:
            begun = time.perf_counter()
            with publisher.loan(shape, np.uint8) as loan:
                np.copyto(loan, frame)
            times.append((time.perf_counter() - begun) * 1e6)
        late += time.perf_counter() > due
        time.sleep(max(0.0, due - time.perf_counter()))
    for publisher in publishers:
        publisher.close()
    p50, p99 = np.percentile(times, [50, 99])
    return {"messages": len(times), "late_rounds": late, "p50_us": round(p50, 1), "p99_us": round(p99, 1)}


def turn(arguments: argparse.Namespace, folder: Path, is_recorded: bool) -> dict[str, Any]:
    """Publishers in a process of their own, with a recorder or without. The recording stays until the next one."""
    file = folder / "bench.mcap"
    recorder = None
    if is_recorded:
        file.unlink(missing_ok=True)
    if is_recorded:
        names = [f"bench/{number}" for number in range(arguments.topics)]
        command = [program(), "record", "-o", str(file), "--json", "--every", "0.2", *names]
        recorder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert recorder.stdout is not None
        for line in recorder.stdout:
            if json.loads(line)["topics"] == arguments.topics:
                break
    own = [sys.executable, __file__, "--publish", "--seconds", str(arguments.seconds), "--topics", str(arguments.topics)]
    own += ["--height", str(arguments.height), "--width", str(arguments.width)]
    result: dict[str, Any] = json.loads(subprocess.run(own, check=True, stdout=subprocess.PIPE).stdout)
    if recorder is not None and recorder.stdout is not None:
        recorder.send_signal(signal.SIGINT)
        last = json.loads(recorder.stdout.read().splitlines()[-1])
        recorder.wait()
        result |= {key: last[key] for key in ("recorded", "dropped", "dropped_by", "file_bytes")}
    return result


def corrupt(file: Path, shape: tuple[int, ...]) -> int:
    """Messages of a recording that are not what was published. All publishers count rounds from 0, and so do sequence numbers."""
    wanted, wrong = picture(shape), 0
    for _, message in rgaps.open(str(file)):
        number_of(wanted)[:] = np.frombuffer(message.sequence.to_bytes(8, "little"), np.uint8)
        wrong += not np.array_equal(message.numpy(), wanted)
    return wrong


def sleep(seconds: float, hz: float) -> dict[str, float]:
    """How late a process wakes up that does nothing but sleep, in microseconds: what the machine allows."""
    due, late = time.monotonic(), []
    for _ in range(int(seconds * hz)):
        due += 1 / hz
        time.sleep(max(0.0, due - time.monotonic()))
        late.append((time.monotonic() - due) * 1e6)
    p50, p99 = np.percentile(late, [50, 99])
    return {"late_p50_us": round(float(p50), 1), "late_p99_us": round(float(p99), 1), "late_max_us": round(max(late), 1)}


def replay(file: Path, topics: list[str], seconds: float) -> dict[str, Any]:
    """How far from its time a replay publishes each message, in microseconds. The messages' own times of publishing are compared,
    so what the subscriber takes does not count. Beside it, a process that only sleeps."""
    recorded = [(topic, message.sequence, message.log_ns) for topic, message in rgaps.open(str(file))]
    # Each publisher of the replay counts from 0, in the order of the recording.
    wanted: dict[str, list[int]] = {topic: [] for topic in topics}
    for topic, _, log_ns in recorded:
        wanted[topic].append(log_ns)
    subscribers = [rgaps.subscriber(topic, reliable=True) for topic in topics]
    player = subprocess.Popen([program(), "replay", str(file), "--wait-subscribers", "1"], stdout=subprocess.DEVNULL)
    own = [sys.executable, __file__, "--sleep", "--seconds", str(seconds), "--topics", str(len(topics))]
    sleeper = subprocess.Popen(own, stdout=subprocess.PIPE)
    offsets = []
    with rgaps.WaitSet(*subscribers) as ready:
        while len(offsets) < len(recorded):
            for subscriber in ready.wait(timeout=60):
                while (sample := subscriber.try_recv()) is not None:
                    offsets.append(sample.publish_ns - wanted[sample.topic][sample.sequence])
                    sample.release()
    if player.wait() != 0:
        raise SystemExit("the replay failed")
    for subscriber in subscribers:
        subscriber.close()
    # The clocks differ by a constant: what most messages have.
    offsets_us = (np.array(offsets) - int(np.median(offsets))) / 1e3
    p50, p99 = np.percentile(np.abs(offsets_us), [50, 99])
    return {
        "messages": len(offsets),
        "off_p50_us": round(float(p50), 1),
        "off_p99_us": round(float(p99), 1),
        "off_max_us": round(float(np.abs(offsets_us).max()), 1),
        "sleep": json.loads(sleeper.communicate()[0]),
    }


def floor(folder: Path, built: str | None, bytes_each: int, count: int) -> dict[str, float | None]:
    """GB/s of `dd` into the kernel's cache, as the recorder writes, and to the disk; and of the bare `mcap` crate, with chunks as
    the recorder's, into the kernel's cache."""
    found: dict[str, float | None] = {"mcap_cached_gb_s": None}
    cargo = ["cargo", "run", "--release", "--locked", "--quiet", "-p", "rgaps-recording", "--example", "floor", "--"]
    if built or shutil.which("cargo"):
        command = [built] if built else cargo
        command += [str(folder / "floor"), str(bytes_each), str(count)]
        root = Path(__file__).resolve().parents[1]
        said = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root).stdout
        found["mcap_cached_gb_s"] = round(bytes_each * count / float(said) / 1e9, 2)
        (folder / "floor").unlink()
    for name, sync in (("dd_cached_gb_s", []), ("dd_synced_gb_s", ["conv=fdatasync"])):
        file = folder / "floor"
        command = ["dd", "if=/dev/zero", f"of={file}", f"bs={bytes_each}", f"count={count}", *sync]
        said = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"}).stderr
        seconds = re.search(r"copied, ([\d.e-]+) s", said)
        assert seconds, said
        found[name] = round(bytes_each * count / float(seconds[1]) / 1e9, 2)
        file.unlink()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--topics", type=int, default=4)
    parser.add_argument("--height", type=int, default=1080)
    parser.add_argument("--width", type=int, default=1920)
    parser.add_argument("--uhd", action="store_true", help="8 topics of 3840 x 2160")
    parser.add_argument("--folder", type=Path, help="on the disk to record to")
    parser.add_argument("--floor", help="the example 'floor' of crates/recording, built; without it cargo builds it")
    parser.add_argument("--publish", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--sleep", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.uhd:
        arguments.topics, arguments.height, arguments.width = 8, 2160, 3840
    shape = (arguments.height, arguments.width, 3)
    if arguments.publish:
        print(json.dumps(publish(arguments.topics, shape, arguments.seconds)))
        return
    if arguments.sleep:
        print(json.dumps(sleep(arguments.seconds, HZ * arguments.topics)))
        return
    folder = Path(tempfile.mkdtemp(prefix="rgaps-bench-record-", dir=arguments.folder))
    os.environ.update(RGAPS_SOCKET=f"{folder}/socket", RGAPS_REALM="bench-record")
    without, recorded = [], []
    try:
        with rgaps.Node("bench-record") as node:
            for _ in range(arguments.turns):
                without.append(turn(arguments, folder, False))
                recorded.append(turn(arguments, folder, True))
            replayed = replay(folder / "bench.mcap", [f"bench/{number}" for number in range(arguments.topics)], arguments.seconds)
            node.stop_daemon()
        wrong = corrupt(folder / "bench.mcap", shape)
        bytes_each = int(np.prod(shape))
        (folder / "bench.mcap").unlink()
        count = max(1, int(arguments.seconds * HZ))
        result = about("bench/record.py") | floor(folder, arguments.floor, bytes_each, count)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    p99 = [statistics.median(row["p99_us"] for row in rows) for rows in (without, recorded)]
    result |= {
        "topics": arguments.topics,
        "hz": HZ,
        "bytes_each": bytes_each,
        "wanted_gb_s": round(arguments.topics * HZ * bytes_each / 1e9, 3),
        "without": without,
        "with": recorded,
        "p99_ratio": round(p99[1] / p99[0], 3),
        "recorded": sum(row["recorded"] for row in recorded),
        "dropped": sum(row["dropped"] for row in recorded),
        "recorded_gb_s": round(statistics.median(row["file_bytes"] for row in recorded) / arguments.seconds / 1e9, 3),
        "corrupt": wrong,
        "replay": replayed,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
