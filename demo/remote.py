"""A CUDA program on a host without a GPU: two hosts (network namespaces), a server on one, programs on the other.

The server is on the test driver, or on another machine's GPU with --gpu-host ADDRESS. Every byte is verified by the programs. The last
line is JSON: {programs, calls, round_trips, bytes, wrong, failed}.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from netns import Host, connect, enter_namespaces

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = [["saxpy", "65536"], ["matmul", "64"]]
PORT = 7462


#: The cable between the namespaces has nobody else on it.
TRUSTED = {"RGAPS_LINKS__INSECURE": "true"}


def serve(host: Host, rgaps: Path, driver: Path, log: Path, more: Sequence[str] = ()) -> subprocess.Popen[str]:
    """A server that listens when this returns."""
    env = dict(os.environ, RGAPS_CUDA_LIBRARY=str(driver), **TRUSTED)
    words = [*host.enter, str(rgaps), "gpu", "serve", "--listen", f"{host.address}:{PORT}", *more]
    server = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=open(log, "w"), text=True)
    assert server.stdout is not None
    if not server.stdout.readline().startswith("serving "):
        raise SystemExit(f"no server: {log.read_text()}")
    return server


def run(host: Host, on: str, rgaps: Path, libraries: Path, words: list[str], env: dict[str, str]) -> tuple[bool, bool]:
    """Runs a program on a host without a GPU; whether it failed, and whether it computed something wrong."""
    program = [str(ROOT / "target/remote" / words[0]), *words[1:]]
    begun = time.monotonic()
    done = subprocess.run(
        [*host.enter, str(rgaps), "gpu", "run", "--on", on, "--libraries", str(libraries), "--", *program],
        env=env, stdout=subprocess.PIPE, text=True, timeout=120,
    )
    print(f"{' '.join(words)}: exit {done.returncode} after {time.monotonic() - begun:.2f} s: {done.stdout.strip()}", flush=True)
    try:
        return done.returncode != 0, json.loads(done.stdout.strip().split("\n")[-1])["wrong"] != 0
    except (ValueError, KeyError):
        return True, False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=ROOT / "target/debug", help="the folder of rgaps and of the libraries")
    parser.add_argument("--gpu-host", metavar="ADDRESS", help="a server with a GPU, which this machine reaches; without namespaces")
    arguments = parser.parse_args()
    rgaps, libraries = arguments.build / "rgaps", arguments.build / "gpu-libs"
    if not arguments.gpu_host:
        enter_namespaces()
    with tempfile.TemporaryDirectory() as folder:
        statistics = Path(folder) / "statistics"
        env = dict(os.environ, RGAPS_GPU_STATISTICS=str(statistics))
        env.pop("RGAPS_CUDA_LIBRARY", None)
        hosts: list[Host] = []
        server = None
        try:
            if arguments.gpu_host:
                on = arguments.gpu_host
                here = type("Here", (), {"enter": []})()
            else:
                env.update(TRUSTED)
                hosts = [Host("gpu", "10.87.0.1", Path(folder)), Host("far", "10.87.0.2", Path(folder))]
                connect(*hosts)
                for host in hosts:
                    host.ip("addr", "add", f"{host.address}/24", "dev", host.cable)
                    host.ip("link", "set", "lo", "up")
                    host.plug_in()
                here, on = hosts[1], f"{hosts[0].address}:{PORT}"
                server = serve(hosts[0], rgaps, arguments.build / "librgaps_test_driver.so", Path(folder) / "server.log")
            ran = [run(here, on, rgaps, libraries, words, env) for words in PROGRAMS]
            lines = [json.loads(line) for line in statistics.read_text().splitlines()] if statistics.exists() else []
            lines = [line for line in lines if line["at"] == "exit"]
        finally:
            if server is not None:
                server.kill()
                server.wait()
            for host in hosts:
                host.end()
    failed, wrong = (sum(column) for column in zip(*ran))
    result = {
        "programs": len(PROGRAMS),
        "calls": sum(line["calls"] for line in lines),
        "round_trips": sum(line["round_trips"] for line in lines),
        "bytes": sum(line["bytes_out"] + line["bytes_in"] + line["bytes_shared"] for line in lines),
        "wrong": wrong,
        "failed": failed,
    }
    print(json.dumps(result))
    return 1 if failed or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
