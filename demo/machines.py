"""What one of two machines runs of the demo: a has the camera, and both have the three subscribers; b pulls the cable.

tests/vm/demo.sh starts it on both, with a daemon and links on each. See README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frames import HEIGHT, WIDTH
from hosts import FRAME_BYTES, PULLED_SECONDS, Interruption
from netns import command
from run import OUT, SUBSCRIBERS, Finished, Part, end, follow, table, unfinished

#: A machine is emulated, on a computer that is busy.
PATIENCE = 12.0
SECONDS_MAX = 300.0
CABLE = "eth0"


@dataclass
class Machine:
    """This one."""

    name: str
    enter: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)

    def pull(self) -> None:
        command("ip", "link", "set", CABLE, "down")

    def plug_in(self) -> None:
        command("ip", "link", "set", CABLE, "up")


@dataclass
class Elsewhere:
    """A process of the other machine."""

    name: str
    last: dict[str, Any]


def sent_bytes() -> int:
    """What has left by the cable."""
    return int(Path(f"/sys/class/net/{CABLE}/statistics/tx_bytes").read_text())


def peer(programs: Path) -> dict[str, Any]:
    """What the links say of the other machine."""
    done = subprocess.run(
        [str(programs / "rgaps"), "peers", "--json"], check=True, stdout=subprocess.PIPE, timeout=60
    )
    (found,) = json.loads(done.stdout)["peers"]
    return dict(found)


def path(of: dict[str, Any]) -> str:
    """What lanes go over, and why it is nothing better."""
    over = f"{of['path']}, {of['lanes']} lanes over {of['over']}"
    return over + (f" ({of['why_not']})" if of["why_not"] else "")


def wait_for_rdma(programs: Path) -> dict[str, Any]:
    """What the links say once they are as before."""
    until = time.monotonic() + SECONDS_MAX
    while (of := peer(programs))["path"] != "rdma":
        if time.monotonic() > until:
            raise SystemExit(f"no RDMA again: {path(of)}")
        time.sleep(0.2)
    return of


def play(here: Machine, frames: int) -> tuple[list[Part], list[str]]:
    """Runs this machine's part of it; the processes, and what is wrong."""
    common = ["--domain", "host", "--frames", str(frames), "--patience", str(PATIENCE)]
    parts: list[Part] = []
    interruption: Interruption | None = None
    try:
        for name in SUBSCRIBERS:
            picture = str(OUT / f"{name}-{here.name}.png")
            parts.append(Part(name, *common, "--picture", picture, on=here))
        if here.name == "a":
            count = str(2 * len(SUBSCRIBERS))
            parts.append(Part("camera", *common, "--subscribers", count, on=here))
            follow(parts, frames, seconds_max=SECONDS_MAX)
        else:
            interruption = Interruption(here, parts[0], frames)
            follow(parts, frames, interruption.look, SECONDS_MAX)
    finally:
        wrong = end(parts)
    if interruption and not interruption.is_over:
        wrong.append("the cable was not pulled and plugged in again")
    return parts, wrong


def judge(parts: list[Finished], frames: int, wire: int, crossed: int) -> list[str]:
    """All that is not as it should be."""
    wrong = unfinished(parts, frames)
    if crossed != frames:
        wrong.append(f"{crossed} messages crossed for {frames} frames")
    if wire > 1.5 * frames * FRAME_BYTES:
        wrong.append(f"{wire} bytes on the wire are more than each frame once")
    return wrong


def tell(parts: list[Finished], frames: int, wire: int, paths: list[str], of: dict[str, Any]) -> str:
    """The result, for people."""
    camera, *subscribers = parts
    remote = subscribers[len(SUBSCRIBERS) :]
    delivered = sum(part.last["frames"] for part in remote) * FRAME_BYTES
    rate = camera.last["frames"] / camera.last["seconds"]
    direct = of["link"]["rdma"]["direct_bytes_out"]
    return (
        f"{frames} frames of {WIDTH}x{HEIGHT} RGB ({FRAME_BYTES / 1e6:.1f} MB) at {rate:.1f}/s, between two machines; the "
        f"cable was out for {PULLED_SECONDS:.0f} s\n\n{table(subscribers)}\n\n"
        f"path before  {paths[0]}\npath after   {paths[1]}\n"
        f"{wire / 1e6:.0f} MB on the wire, {delivered / 1e6:.0f} MB delivered to {len(remote)} subscribers on the other "
        f"machine; {direct / 1e6:.0f} MB were written into their place by the card; messages that crossed: "
        f"{of['messages_out']}\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["a", "b"])
    parser.add_argument("--frames", type=int, required=True)
    parser.add_argument("--programs", type=Path, required=True, help="folder of rgaps")
    parser.add_argument("--shared", type=Path, required=True, help="folder that both machines see")
    arguments = parser.parse_args()
    here, frames = Machine(arguments.role), arguments.frames
    before, sent = path(peer(arguments.programs)), sent_bytes()
    parts, wrong = play(here, frames)
    if wrong:
        print("FAILED\n" + "\n".join(wrong))
        return 1
    told: Path = arguments.shared / "b.json"
    if here.name == "b":
        new = told.with_suffix(".new")
        new.write_text(json.dumps([[part.name, part.last] for part in parts]))
        os.rename(new, told)
        return 0
    until = time.monotonic() + SECONDS_MAX
    while not told.exists():
        if time.monotonic() > until:
            print("FAILED: nothing was heard of the other machine")
            return 1
        time.sleep(0.2)
    after = wait_for_rdma(arguments.programs)
    wire = sent_bytes() - sent
    *near, camera = parts
    far = [Elsewhere(name, last) for name, last in json.loads(told.read_text())]
    everybody: list[Finished] = [camera, *near, *far]
    text = tell(everybody, frames, wire, [before, path(after)], after)
    wrong = judge(everybody, frames, wire, after["messages_out"])
    last = "FAILED\n" + "\n".join(wrong) if wrong else "every frame arrived at all, in order, with its checksum right"
    (arguments.shared / "demo.txt").write_text(f"{text}{last}\n")
    print(text, last, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
