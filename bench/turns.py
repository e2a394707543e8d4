#!/usr/bin/env python3
"""Two builds of rgaps in turns: what `rgaps bench` says of each, and the ratio after / before. A folder of a build has rgaps, rgapsd and
rgaps-links. The last line is JSON, of what there is when it is ended early, too; a ratio is the median of the ratios of the rounds, and `worse` names those over 1.03.

    bench/turns.py --before old/target/release --after target/release --rounds 7 --match link
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "demo"))
from about import about  # noqa: E402

#: A median may be this much worse.
WORSE = 1.03
CPU = {"sending_cpu": "cpu.sending_links_s_per_gb", "landing_cpu": "cpu.landing_links_s_per_gb"}


def plans() -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """Name, arguments of `rgaps bench`, and where the figures are in its JSON. Less is better in all of them."""
    for wait in ("poll", "block"):
        more = CPU if wait == "block" else {}
        command = ["link", "--size", "64", "--lanes", "1", "--messages", "2000", "--wait", wait]
        yield f"link-64B-{wait}", command, {"p50": "p50_us", "of_floor": "of_floor", **more}
    for tls in ([], ["--tls"]):
        for size, messages in (("64KiB", "500"), ("1MiB", "200"), ("64MiB", "10")):
            for subscribers in ("1", "8"):
                name = f"link-{size}-k{subscribers}{''.join(tls).replace('--', '-')}"
                yield name, ["link", "--size", size, "--messages", messages, "--subscribers", subscribers, *tls], {"p50": "p50_us"}
    for wait in ("poll", "block"):
        yield f"latency-{wait}", ["latency", "--messages", "5000", "--wait", wait], {"p50": "p50_us"}
    yield "fanout", ["fanout", "--messages", "1000"], {"awake": "counts.0.awake.latency.p50_us", "sleeping": "counts.2.sleeping.last.p50_us"}
    yield "throughput", ["throughput"], {"us_per_message": "messages_per_s"}
    yield "alloc", ["alloc"], {"loan": "counts.0.loan.cpu_ns", "release": "counts.0.release.cpu_ns"}


def at(document: Any, path: str) -> float:
    for key in path.split("."):
        document = document[int(key)] if key.isdigit() else document[key]
    # Of rates, the time of one.
    return 1e6 / document if path.endswith("_per_s") else float(document)


def bench(build: Path, arguments: list[str], figures: dict[str, str]) -> dict[str, float] | None:
    """What one run says. None: it failed, or a message was lost or corrupt."""
    own = {"RGAPS_DAEMON": str(build / "rgapsd"), "RGAPS_LINKS_PROGRAM": str(build / "rgaps-links")}
    command = [str(build / "rgaps"), "bench", *arguments, "--json"]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, timeout=300)
    if done.returncode:
        print(f"{' '.join(command)}: {done.stderr[-500:]}", file=sys.stderr)
        return None
    said = json.loads(done.stdout.splitlines()[-1])
    if any(said.get(key, 0) for key in ("lost", "duplicate", "corrupt")):
        print(f"{' '.join(command)}: {said}", file=sys.stderr)
        return None
    return {name: at(said, path) for name, path in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--after", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--match", default="", help="only plans with this text in their names")
    arguments = parser.parse_args()
    builds = {"before": arguments.before, "after": arguments.after}
    found: dict[str, dict[str, Any]] = {}
    failed: list[str] = []
    # A limit of time (`timeout`) ends the measuring and not the output.
    is_ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: is_ended.append(number))
    for name, command, figures in plans():
        if arguments.match not in name or is_ended:
            continue
        rounds = []
        for number in range(arguments.rounds):
            if is_ended:
                break
            # Who comes first changes, so that neither always runs on a machine that the other left warm.
            order = list(builds) if number % 2 == 0 else list(builds)[::-1]
            said = {}
            for which in order:
                one = bench(builds[which], command, figures)
                if one is None:
                    failed.append(f"{name} {which}")
                else:
                    said[which] = one
            if len(said) == len(builds):
                rounds.append(said)
        for figure in figures:
            values = {which: [round(one[which][figure], 4) for one in rounds] for which in builds}
            if not rounds:
                continue
            ratios = [after / before for before, after in zip(values["before"], values["after"])]
            found[f"{name} {figure}"] = {
                "ratio": round(statistics.median(ratios), 3),
                **{which: statistics.median(values[which]) for which in builds},
                "rounds": values,
            }
            print(name, figure, found[f"{name} {figure}"]["ratio"], file=sys.stderr, flush=True)
    worse = [name for name, one in found.items() if one["ratio"] > WORSE]
    print(json.dumps(about("bench/turns.py") | {"figures": found, "worse": worse, "failed": failed}))


if __name__ == "__main__":
    main()
