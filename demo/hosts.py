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
from run import OUT, SUBSCRIBERS, Part, end, follow, table, unfinished

#: How long the cable is out.
PULLED_SECONDS = 2.0
FRAME_BYTES = HEIGHT * WIDTH * 3
#: Set in the process that has a user namespace of its own.
INSIDE = "RGAPS_DEMO_INSIDE"

CONFIGURATION = """
socket = "{socket}"
realm = "demo"
autostart = false
[links]
enabled = true
host = "{name}"
listen = "{address}:0"
control = ["tcp/{address}:7447"]
connect = ["tcp/{other}:7447"]
insecure = true  # a cable of our own
outage_ms = 30000
"""


def command(*words: str) -> str:
    """What it prints; its errors are the demo's."""
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, timeout=20).stdout


class Host:
    """A network namespace with a daemon in it."""

    def __init__(self, name: str, address: str, folder: Path) -> None:
        self.name = name
        self.address = address
        self.folder = folder / name
        self.folder.mkdir()
        self.namespace = f"rgaps-demo-{os.getpid()}-{name}"
        self.cable = f"rgd{os.getpid()}{name}"
        self.enter = ["ip", "netns", "exec", self.namespace]
        self.env = {"RGAPS_SOCKET": str(self.folder / "socket"), "RGAPS_REALM": "demo"}
        self.daemon: subprocess.Popen[bytes] | None = None
        command("ip", "netns", "add", self.namespace)

    def ip(self, *words: str) -> str:
        return command("ip", "-n", self.namespace, *words)

    def plug_in(self) -> None:
        """Its end of the cable."""
        self.ip("link", "set", self.cable, "up")

    def pull(self) -> None:
        """Pulls the cable out."""
        self.ip("link", "set", self.cable, "down")

    def start(self, other: Host, programs: Path) -> None:
        """The daemon, and with it the links."""
        self.ip("addr", "add", f"{self.address}/24", "dev", self.cable)
        self.ip("link", "set", "lo", "up")
        self.plug_in()
        path = self.folder / "rgaps.toml"
        socket = self.env["RGAPS_SOCKET"]
        text = CONFIGURATION.format(
            socket=socket, name=self.name, address=self.address, other=other.address
        )
        path.write_text(text)
        with open(OUT / f"daemon {self.name}.log", "w") as log:
            self.daemon = subprocess.Popen(
                [*self.enter, str(programs / "rgapsd"), "--foreground", "--config", str(path)],
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + 20
        while not Path(socket).exists():
            if self.daemon.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"no daemon on host {self.name}: see '{log.name}'")
            time.sleep(0.05)

    def sent_bytes(self) -> int:
        """What has left by the cable."""
        (link,) = json.loads(self.ip("-s", "-j", "link", "show", "dev", self.cable))
        return int(link["stats64"]["tx"]["bytes"])

    def end(self) -> None:
        if self.daemon is not None:
            self.daemon.terminate()
            try:
                self.daemon.wait(10)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
                self.daemon.wait()
        subprocess.run(["ip", "netns", "del", self.namespace], check=False, timeout=20)


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


def enter_namespaces() -> None:
    """Namespaces need root: one's own will do."""
    if os.geteuid() == 0 and INSIDE not in os.environ:
        return
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "1"
        words = ["unshare", "--user", "--map-root-user", "--net", "--mount", sys.executable, *sys.argv]
        try:
            os.execvp(words[0], words)
        except OSError as error:
            raise SystemExit(f"run it as root: {error}") from error
    command("mount", "-t", "tmpfs", "tmpfs", "/run")


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
        ends = ["netns", here.namespace, "type", "veth", "peer", "name", there.cable]
        command("ip", "link", "add", here.cable, *ends, "netns", there.namespace)
        here.start(there, programs)
        there.start(here, programs)
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
