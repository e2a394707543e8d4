"""Hosts of demos and benchmarks: network namespaces with a cable between two, or from each to a switch, and a daemon with links in each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

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
connect = {others}
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

    def start(self, others: list[Host], programs: Path, logs: Path) -> None:
        """The daemon, and with it the links to the others."""
        self.ip("addr", "add", f"{self.address}/24", "dev", self.cable)
        self.ip("link", "set", "lo", "up")
        self.plug_in()
        path = self.folder / "rgaps.toml"
        socket = self.env["RGAPS_SOCKET"]
        text = CONFIGURATION.format(
            socket=socket, name=self.name, address=self.address, others=json.dumps([f"tcp/{other.address}:7447" for other in others])
        )
        path.write_text(text)
        with open(logs / f"daemon {self.name}.log", "w") as log:
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

    def limit(self, mbit: int) -> bool:
        """Limits what it sends, in Mbit/s; False if this kernel has no token bucket."""
        words = ["root", "tbf", "rate", f"{mbit}mbit", "burst", "256k", "latency", "50ms"]
        return not subprocess.run([*self.enter, "tc", "qdisc", "add", "dev", self.cable, *words], capture_output=True, timeout=20).returncode

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


def connect(here: Host, there: Host) -> None:
    """Lays the cable between two hosts."""
    ends = ["netns", here.namespace, "type", "veth", "peer", "name", there.cable]
    command("ip", "link", "add", here.cable, *ends, "netns", there.namespace)


class Switch:
    """A namespace that has nothing but a switch, with a cable to each host."""

    def __init__(self, hosts: list[Host]) -> None:
        self.namespace = f"rgaps-demo-{os.getpid()}-switch"
        command("ip", "netns", "add", self.namespace)
        ip = ["ip", "-n", self.namespace, "link"]
        command(*ip, "add", "switch", "type", "bridge")
        command(*ip, "set", "switch", "up")
        for host in hosts:
            port = f"port-{host.name}"
            command("ip", "link", "add", host.cable, "netns", host.namespace, "type", "veth", "peer", "name", port, "netns", self.namespace)
            command(*ip, "set", port, "master", "switch", "up")

    def end(self) -> None:
        subprocess.run(["ip", "netns", "del", self.namespace], check=False, timeout=20)


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
