"""Runs the demo: a camera and three subscribers, over a daemon of their own. See README.md."""

from __future__ import annotations

import argparse
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from PIL import Image as Pillow

import rgaps
from frames import FPS, HEIGHT, WIDTH, gpu_domain

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "target" / "demo"
SUBSCRIBERS = ["edges", "histogram", "contact_sheet"]
#: The demo is given up after this long.
SECONDS_MAX = 90.0


class Host(Protocol):
    """Where a process runs, if not just here."""

    #: What to call it.
    name: str
    #: The command that starts another one there.
    enter: list[str]
    #: Environment of all processes there.
    env: dict[str, str]


class Finished(Protocol):
    """A process that ran here, or on a machine elsewhere."""

    name: str
    #: What it last reported.
    last: dict[str, Any]


class Part:
    """One of the demo's processes, and what it last reported."""

    def __init__(self, program: str, *arguments: str, on: Host | None = None) -> None:
        self.name = f"{program} {on.name}" if on else program
        self.last: dict[str, Any] = {"frames": 0}
        self.errors = open(OUT / f"{self.name}.log", "w+")
        command = [sys.executable, str(HERE / f"{program}.py"), *arguments]
        if on:
            command = [*on.enter, *command]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=os.environ | on.env if on else None,
        )
        assert self.process.stdout is not None
        self.pipe = self.process.stdout
        os.set_blocking(self.pipe.fileno(), False)
        self._unread = b""

    def read(self) -> bool:
        """Takes what it printed. False: it closed its output."""
        chunk = self.pipe.read()
        if chunk == b"":
            return False
        *lines, self._unread = (self._unread + (chunk or b"")).split(b"\n")
        for line in lines:
            self.last = json.loads(line)
        return True

    def wrong(self) -> str | None:
        """What is wrong with how it ended."""
        code = self.process.wait()
        if code == 0:
            return None
        self.errors.seek(0)
        return f"{self.name} ended with {code}:\n{self.errors.read().strip()}"


def progress(parts: list[Part], frames: int, begun: float) -> str:
    """A line about how far each part is."""
    counts = [f"{part.name} {part.last['frames']:>3}/{frames}" for part in parts]
    return f"{time.monotonic() - begun:5.1f} s   " + "   ".join(counts)


def follow(
    parts: list[Part],
    frames: int,
    meanwhile: Callable[[], None] = lambda: None,
    seconds_max: float = SECONDS_MAX,
) -> None:
    """Shows the progress until all parts have ended, or one ends too early; calls `meanwhile` often."""
    terminal = sys.stdout.isatty()
    begun = shown = time.monotonic()
    selector = selectors.DefaultSelector()
    for part in parts:
        selector.register(part.pipe, selectors.EVENT_READ, part)
    while selector.get_map():
        for key, _ in selector.select(timeout=0.1):
            if not key.data.read():
                selector.unregister(key.data.pipe)
                if key.data.process.wait() != 0:
                    return
        meanwhile()
        now = time.monotonic()
        if now - begun > seconds_max:
            print(f"\ngiven up after {seconds_max:.0f} s")
            return
        if now - shown >= (0.1 if terminal else 1.0):
            shown = now
            line = progress(parts, frames, begun)
            print(f"\r{line}" if terminal else line, end="" if terminal else "\n", flush=True)
    print(("\r" if terminal else "") + progress(parts, frames, begun), flush=True)


def table(subscribers: Sequence[Finished]) -> str:
    """What each subscriber found."""
    rows = [["subscriber", "frames", "missed", "corrupt", "bytes copied", "p50 us", "p99 us"]]
    for part in subscribers:
        last = part.last
        numbers = [str(last[key]) for key in ("frames", "missed", "corrupt", "copied_bytes")]
        latencies = [f"{last[key]:.0f}" for key in ("p50_us", "p99_us")]
        rows.append([part.name, *numbers, *latencies])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        lines.append("   ".join(cells))
    return "\n".join(lines)


def faults(camera: Part, subscribers: list[Part], frames: int) -> list[str]:
    """All that is not as it should be."""
    found = unfinished([camera, *subscribers], frames)
    written = camera.last["places"]
    for part in subscribers:
        elsewhere = sum(part.last["places"].get(str(n)) != place for n, place in enumerate(written))
        if elsewhere:
            found.append(f"{part.name}: {elsewhere} frames were not where the camera wrote them")
    return found


def unfinished(parts: Sequence[Finished], frames: int) -> list[str]:
    """Frames that are not there, or not as they were sent."""
    found = []
    for part in parts:
        if part.last["frames"] != frames:
            found.append(f"{part.name}: {part.last['frames']} of {frames} frames")
        for fault in ("missed", "corrupt", "copied_bytes"):
            if part.last.get(fault):
                found.append(f"{part.name}: {fault} {part.last[fault]}")
    return found


def compose(subscribers: list[Part]) -> Path:
    """Puts the subscribers' pictures together."""
    sheet, edges, histogram = (
        Pillow.open(OUT / f"{name}.png").convert("RGB")
        for name in ("contact_sheet", "edges", "histogram")
    )
    whole = Pillow.new("RGB", (1920, 540))
    whole.paste(sheet.resize((960, 540)), (0, 0))
    whole.paste(edges.resize((960, 540)), (960, 0))
    whole.paste(histogram.resize((400, 180)), (1500, 340))
    path = OUT / "demo.png"
    whole.save(path)
    return path


def end(parts: list[Part]) -> list[str]:
    """Ends those that have not ended; what is wrong with how they did."""
    for part in parts:
        if part.process.poll() is None:
            part.process.kill()
    wrong = [text for part in parts if (text := part.wrong())]
    for part in parts:
        part.errors.close()
    return wrong


def play(domain: str, frames: int, photos: str | None) -> int:
    """Runs all parts; returns the exit code."""
    common = ["--domain", domain, "--frames", str(frames)]
    folder = ["--photos", photos] if photos else []
    parts: list[Part] = []
    try:
        for name in SUBSCRIBERS:
            parts.append(Part(name, *common, "--picture", str(OUT / f"{name}.png")))
        camera = Part("camera", *common, "--subscribers", str(len(SUBSCRIBERS)), *folder)
        parts.insert(0, camera)
        follow(parts, frames)
    finally:
        wrong = end(parts)
    if wrong:
        print("\nFAILED\n" + "\n".join(wrong))
        return 1
    subscribers = parts[1:]
    rate = camera.last["frames"] / camera.last["seconds"]
    each_mb = HEIGHT * WIDTH * 3 / 1e6
    print(f"\n{domain}: {frames} frames of {WIDTH}x{HEIGHT} RGB ({each_mb:.1f} MB) at {rate:.1f}/s\n")
    print(table(subscribers))
    print(f"\np50 us, p99 us: from publishing to receiving\nthe subscribers' pictures: {compose(subscribers)}")
    wrong = faults(camera, subscribers, frames)
    if wrong:
        print("\nFAILED\n" + "\n".join(wrong))
        return 1
    print("every frame arrived, in order, with its checksum right, in the memory it was written to")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--domain", choices=["auto", "host", "cuda"], default="auto")
    parser.add_argument("--frames", type=int, default=10 * FPS)
    parser.add_argument("--photos", help="folder of scikit-image's photographs")
    arguments = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "demo.png").unlink(missing_ok=True)
    runtime = tempfile.mkdtemp(prefix="rgaps-demo-")
    os.environ.update(RGAPS_SOCKET=f"{runtime}/socket", RGAPS_REALM="demo")
    try:
        domain = None if arguments.domain == "host" else gpu_domain()
        if domain is None and arguments.domain == "cuda":
            print("no GPU answers, or torch is not installed or cannot use it")
            return 1
        with rgaps.Node("demo") as node:
            code = play(domain or "host", arguments.frames, arguments.photos)
            node.stop_daemon()
        return code
    finally:
        shutil.rmtree(runtime, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
