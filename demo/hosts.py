"""Runs the demo on two hosts, which are network namespaces with a cable between them. See README.md."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

from frames import FPS, HEIGHT, WIDTH
from netns import Host, connect, enter_namespaces
from run import OUT, SUBSCRIBERS, Part, end, follow, table, unfinished

#: How long the cable is out.
PULLED_SECONDS = 2.0
FRAME_BYTES = HEIGHT * WIDTH * 3


class Cable(Protocol):
    """What can be pulled."""

    def pull(self) -> None: ...

    def plug_in(self) -> None: ...


class Interruption:
    """Pulls the cable when a part has had a third of the frames, and plugs it in again."""

    def __init__(self, cable: Cable, part: Part, frames: int) -> None:
        self.cable, self.part, self.frames = cable, part, frames
        self.pulled_at: float | None = None
        self.is_over = False

    def look(self) -> None:
        now = time.monotonic()
        if self.pulled_at is None:
            if self.part.last["frames"] >= self.frames // 3:
                self.cable.pull()
                self.pulled_at = now
                print("\n         the cable is pulled", flush=True)
        elif not self.is_over and now - self.pulled_at >= PULLED_SECONDS:
            self.cable.plug_in()
            self.is_over = True
            print("\n         the cable is plugged in again", flush=True)


def peers(host: Host, programs: Path) -> list[dict[str, Any]]:
    """What the host's links say of the others."""
    program = [*host.enter, str(programs / "rgaps"), "peers", "--json"]
    done = subprocess.run(
        program, env=os.environ | host.env, check=True, capture_output=True, text=True, timeout=20
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)["peers"]
    return found


def play(here: Host, there: Host, frames: int, programs: Path) -> int:
    """Runs all parts; returns the exit code."""
    common = ["--domain", "host", "--frames", str(frames)]
    before = here.sent_bytes()
    parts: list[Part] = []
    try:
        for host in (here, there):
            for name in SUBSCRIBERS:
                picture = str(OUT / f"{name}-{host.name}.png")
                parts.append(Part(name, *common, "--picture", picture, on=host))
        count = str(len(parts))
        camera = Part("camera", *common, "--subscribers", count, on=here)
        parts.insert(0, camera)
        interruption = Interruption(there, camera, frames)
        follow(parts, frames, interruption.look)
        crossed = sum(peer["messages_out"] for peer in peers(here, programs))
    finally:
        wrong = end(parts)
    if wrong:
        print("\nFAILED\n" + "\n".join(wrong))
        return 1
    wire = here.sent_bytes() - before
    subscribers = parts[1:]
    remote = subscribers[len(SUBSCRIBERS) :]
    delivered = sum(part.last["frames"] for part in remote) * FRAME_BYTES
    rate = camera.last["frames"] / camera.last["seconds"]
    megabytes = FRAME_BYTES / 1e6
    print(f"\n{frames} frames of {WIDTH}x{HEIGHT} RGB ({megabytes:.1f} MB) at {rate:.1f}/s\n")
    print(table(subscribers))
    print(
        f"\n{wire / 1e6:.0f} MB on the wire, {delivered / 1e6:.0f} MB delivered to {len(remote)} "
        f"subscribers on the other host; messages that crossed: {crossed}"
    )
    wrong = unfinished(parts, frames)
    if not interruption.is_over:
        wrong.append("the cable was not pulled and plugged in again")
    if crossed != frames:
        wrong.append(f"{crossed} messages crossed for {frames} frames")
    if wire > 1.5 * frames * FRAME_BYTES:
        wrong.append(f"{wire} bytes on the wire are more than each frame once")
    first, *others = (part.last["places"] for part in remote)
    if any(places != first for places in others):
        wrong.append("subscribers of the other host did not read the same memory")
    if wrong:
        print("\nFAILED\n" + "\n".join(wrong))
        return 1
    print(
        f"every frame arrived at all {len(subscribers)}, in order, with its checksum right, though the "
        f"cable was out for {PULLED_SECONDS:.0f} s; it crossed once and lies there once"
    )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=10 * FPS)
    parser.add_argument("--programs", type=Path, required=True, help="folder of rgaps, rgapsd and rgaps-links")
    arguments = parser.parse_args()
    programs = arguments.programs.resolve()
    OUT.mkdir(parents=True, exist_ok=True)
    enter_namespaces()
    folder = Path(tempfile.mkdtemp(prefix="rgaps-demo-"))
    hosts: list[Host] = []
    try:
        for number, name in enumerate(("a", "b"), start=1):
            hosts.append(Host(name, f"10.213.78.{number}", folder))
        here, there = hosts
        connect(here, there)
        here.start([there], programs, OUT)
        there.start([here], programs, OUT)
        return play(here, there, arguments.frames, programs)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"FAILED: {error}; network namespaces and 'ip' (iproute2) are needed")
        return 1
    finally:
        for host in hosts:
            host.end()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
