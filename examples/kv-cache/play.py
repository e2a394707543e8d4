"""Moves KV caches between two hosts, which are network namespaces with a cable between them. See README.md.

The last line is JSON; the exit code is 1 unless every token and every byte was right.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch

from about import about
from model import load, one_thread
from netns import Host, connect, enter_namespaces
from tokenizer import Tokenizer
from train import corpus
from ways import WAYS

HERE = Path(__file__).parent
#: Of all processes. Without the last two, prefill took 9 to 26 % longer in three of the six ways: presumably glibc gives the scores of each
#: chunk back to the system, except in processes that happen to have freed something larger before.
ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(256 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
}
#: How long the cable is out.
PULLED_S = 2.0
#: Prompts of these many tokens are disturbed: their transfer lasts long enough.
LONGEST = 2048
DISTURB = ["pull", "kill", "pull", "kill", "pull"]
#: Prompts of these lengths are measured.
GROUPS = [128, 512, 1920]
LIMIT_S = 1200.0
PHASES = ["tokenise", "prefill", "consolidate", "transfer", "reconstruct", "ttft"]
NAMES = {
    "kv": "rgaps.kv, by layer",
    "consolidated": "consolidate, then send",
    "pickle": "TCP socket, pickle",
    "gloo": "gloo send/recv",
    "gloo-layers": "gloo isend, by layer",
    "local": "local recompute",
}


def proof_prompts(tokens: list[int], count: int, chance: random.Random) -> list[dict[str, Any]]:
    """Windows of the text, most of them short. Every fourth begins like an earlier one, so that blocks are reused."""
    lengths = [16, LONGEST] + [round(2 ** chance.uniform(4, 9)) for _ in range(count)]
    lengths += [chance.randint(600, 1400) for _ in range(count // 20)]
    lengths = lengths[: count - len(DISTURB)] if count > 40 else lengths[:count]
    prompts: list[dict[str, Any]] = []
    for number, length in enumerate(lengths):
        start = chance.randrange(len(tokens) - length)
        prompt = tokens[start : start + length]
        if number % 4 == 3:
            earlier = chance.choice(prompts)["tokens"]
            prompt[: min(len(earlier), length - 1)] = earlier[: length - 1]
        prompts.append({"tokens": prompt})
    for at, what in enumerate(DISTURB, start=1):
        start = chance.randrange(len(tokens) - LONGEST)
        disturbed = {"tokens": tokens[start : start + LONGEST], "disturb": what}
        prompts.insert(at * len(prompts) // (len(DISTURB) + 1), disturbed)
    return [{**prompt, "number": number} for number, prompt in enumerate(prompts)]


def measured_prompts(tokens: list[int], tokenizer: Tokenizer, each: int, chance: random.Random) -> list[dict[str, Any]]:
    prompts = []
    for _ in range(each):
        for length in GROUPS:
            start = chance.randrange(len(tokens) - length)
            prompts.append({"text": tokenizer.decode(tokens[start : start + length]), "group": length})
    return prompts


class Demo:
    """The hosts, and the processes on them."""

    def __init__(self, model: Path, out: Path, programs: Path) -> None:
        self.model, self.out, self.programs = model, out, programs
        self.folder = Path(tempfile.mkdtemp(prefix="rgaps-kv-"))
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.a = Host("a", "10.213.79.1", self.folder)
        self.b = Host("b", "10.213.79.2", self.folder)

    def start_hosts(self, mbit: int) -> str:
        """Returns what the cable is."""
        connect(self.a, self.b)
        self.a.start([self.b], self.programs, self.out)
        self.b.start([self.a], self.programs, self.out)
        if not mbit:
            return "a cable without a limit"
        if not all([host.limit(mbit) for host in (self.a, self.b)]):
            return "a cable without a limit (this kernel has no token bucket)"
        return f"a cable of {mbit / 1000:g} Gbit/s"

    def spawn(self, name: str, host: Host | None, program: str, *words: str) -> subprocess.Popen[str]:
        """A program of this folder, on a host or (without one) outside of both."""
        command = [sys.executable, str(HERE / program), *words, "--model", str(self.model)]
        env = os.environ | ENVIRONMENT
        if host is not None:
            command, env = [*host.enter, *command], env | host.env | {"GLOO_SOCKET_IFNAME": host.cable}
        with open(self.out / f"{name}.log", "a") as log:
            process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self.processes[name] = process
        return process

    def start_worker(self, name: str) -> None:
        """Returns when it takes requests."""
        self.spawn(name, self.a, "prefill.py", "--name", name)
        self.wait_ready(name)

    def wait_ready(self, name: str) -> None:
        out = self.processes[name].stdout
        assert out is not None
        if out.readline() != "ready\n":
            raise SystemExit(f"{name} did not start: see {self.out / name}.log")

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        """What a process says, until it ends."""
        process = self.processes[name]
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
        if process.wait():
            raise SystemExit(f"{name} failed: see {self.out / name}.log")

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.a.end()
        self.b.end()
        shutil.rmtree(self.folder, ignore_errors=True)


def write(path: Path, prompts: list[dict[str, Any]]) -> str:
    path.write_text(json.dumps(prompts))
    return str(path)


def one_process(demo: Demo, prompts: list[dict[str, Any]]) -> dict[int, list[int]]:
    """What one process says to each prompt. Two of them share the prompts, for time."""
    names = [f"reference-{half}" for half in (0, 1)]
    for half, name in enumerate(names):
        path = write(demo.out / f"{name}.json", prompts[half::2])
        demo.spawn(name, None, "decode.py", "reference", "--prompts", path)
    return {said["number"]: said["answer"] for name in names for said in demo.lines(name)}


class Disturbance:
    """Pulls cables and kills workers when the decoder asks for it, while it waits for the rest of a prompt."""

    def __init__(self, demo: Demo) -> None:
        self.demo = demo

    def begin(self, what: str, worker: str) -> None:
        decoder = self.demo.processes["prove"]
        assert decoder.stdin is not None
        if what == "pull":
            self.demo.b.pull()
            time.sleep(PULLED_S)
            over_ns = time.monotonic_ns()
            self.demo.b.plug_in()
            print(f"  the cable was out for {PULLED_S:.0f} s, with two layers of {LONGEST} tokens across", flush=True)
        else:
            self.demo.kill(worker)
            over_ns = time.monotonic_ns()
            print(f"  worker {worker} was killed, with two layers of {LONGEST} tokens across", flush=True)
            self.demo.start_worker(worker)
        decoder.stdin.write(json.dumps({"over_ns": over_ns}) + "\n")
        decoder.stdin.flush()


def prove(demo: Demo, prompts: list[dict[str, Any]], right: dict[int, list[int]]) -> tuple[dict[str, int], list[str]]:
    """Loads every prompt from the other host. Returns counts, and what is wrong."""
    path = write(demo.out / "prove.json", prompts)
    demo.spawn("prove", demo.b, "decode.py", "prove", "--prompts", path)
    counts = {"prompts": 0, "tokens": 0, "wrong_tokens": 0, "lost": 0, "reused": 0, "retried": 0}
    wrong: list[str] = []
    disturbance = Disturbance(demo)
    for said in demo.lines("prove"):
        if "disturb" in said:
            disturbance.begin(said["disturb"], said["worker"])
            continue
        number, counts["prompts"] = said["number"], counts["prompts"] + 1
        if "lost" in said:
            counts["lost"] += 1
            wrong.append(f"prompt {number}: {said['lost']}")
            continue
        counts["tokens"] += len(said["answer"])
        counts["reused"] += said["reused"]
        counts["retried"] += said["attempts"] > 1
        different = sum(one != other for one, other in zip(said["answer"], right[number]))
        counts["wrong_tokens"] += different
        if different:
            wrong.append(f"prompt {number} of {len(prompts[number]['tokens'])} tokens: {different} tokens differ")
        what = prompts[number].get("disturb")
        if what and not said["late"]:
            wrong.append(f"prompt {number}: all layers had come before the disturbance was over")
        if what == "kill" and said["attempts"] < 2:
            wrong.append(f"prompt {number}: no second worker was asked, though the first was killed")
    return counts, wrong


def measure(demo: Demo, prompts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    path = write(demo.out / "measure.json", prompts)
    here, there = demo.a.address, demo.b.address
    for way in WAYS:
        demo.spawn(way, demo.a, "ways.py", way, "--here", here, "--there", there)
        if not way.startswith("gloo"):  # these two wait for the decoder instead
            demo.wait_ready(way)
    demo.spawn("measure", demo.b, "decode.py", "measure", "--prompts", path, "--here", there, "--there", here)
    return list(demo.lines("measure"))


def hidden(rows: list[dict[str, Any]], group: int) -> float:
    """How much of the transfer is hidden behind the prefill: what is left of it after the prefill, beside all of it."""
    left, whole = (median(row["ms"]["transfer"] for row in rows if row["way"] == way and row["group"] == group) for way in ("kv", "consolidated"))
    return 1 - left / whole


def table(rows: list[dict[str, Any]]) -> str:
    """As the paper's Table 2: medians, in ms."""
    found = []
    for group in GROUPS:
        found.append(f"prompts of {group} tokens; {100 * hidden(rows, group):.0f} % of the transfer hidden")
        found.append(f"  {'ms':<24}" + "".join(f"{phase:>12}" for phase in PHASES) + f"{'tokens/s':>12}")
        for way, name in NAMES.items():
            of = [row for row in rows if row["way"] == way and row["group"] == group]
            cells = [f"{median(row['ms'][phase] for row in of):12.2f}" for phase in PHASES]
            found.append(f"  {name:<24}" + "".join(cells) + f"{median(row['tokens_per_s'] for row in of):12.0f}")
    return "\n".join(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for logs and results")
    parser.add_argument("--programs", type=Path, required=True, help="folder of rgaps, rgapsd and rgaps-links")
    parser.add_argument("--prompts", type=int, default=200, help="that are compared with one process")
    parser.add_argument("--measured", type=int, default=5, help="prompts of each length that are measured")
    parser.add_argument("--mbit", type=int, default=1000, help="what the cable carries, in Mbit/s; 0: no limit")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    enter_namespaces()
    one_thread()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for old in arguments.out.glob("*.log"):
        old.unlink()
    _, tokenizer = load(arguments.model)
    tokens, chance = tokenizer.encode(corpus()), random.Random(arguments.seed)
    prompts = proof_prompts(tokens, arguments.prompts, chance)
    demo = Demo(arguments.model.resolve(), arguments.out, arguments.programs.resolve())
    watchdog = threading.Timer(LIMIT_S, demo.end)
    watchdog.daemon = True
    watchdog.start()
    try:
        print(f"{len(prompts)} prompts of 16 to {LONGEST} tokens, in one process", flush=True)
        right = one_process(demo, prompts)
        sample = min(prompts, key=lambda prompt: abs(len(prompt["tokens"]) - 60))
        print(f"  {tokenizer.decode(sample['tokens'])!r}\n  -> {tokenizer.decode(right[sample['number']])!r}", flush=True)
        cable = demo.start_hosts(arguments.mbit)
        for worker in ("p0", "p1"):
            demo.start_worker(worker)
        print(f"the same: prefill on host a (two workers), decode on host b, {cable} between them", flush=True)
        counts, wrong = prove(demo, prompts, right)
        print(f"  {counts['tokens']} tokens of {counts['prompts']} prompts, {counts['wrong_tokens']} wrong; {counts['reused']} blocks reused", flush=True)
        demo.kill("p1")
        print("every way in turn, medians:", flush=True)
        rows = measure(demo, measured_prompts(tokens, tokenizer, arguments.measured, chance))
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"FAILED: {error}; network namespaces and 'ip' (iproute2) are needed")
        return 1
    finally:
        watchdog.cancel()
        demo.end()
    print(table(rows))
    totals: dict[str, int] = defaultdict(int, counts)
    for row in rows:
        totals["prompts"] += 1
        totals["tokens"] += row["new_tokens"]
        totals["wrong_tokens"] += row["wrong_tokens"]
        totals["corrupt"] += row["corrupt"]
    result = {
        "prompts": totals["prompts"],
        "tokens": totals["tokens"],
        "wrong_tokens": totals["wrong_tokens"],
        "ttft_ms": {way: round(median(row["ms"]["ttft"] for row in rows if row["way"] == way and row["group"] == GROUPS[-1]), 1) for way in NAMES},
        "transfer_hidden": round(hidden(rows, GROUPS[-1]), 3),
        "corrupt": totals["corrupt"],
        "lost": totals["lost"],
    }
    run = {"tool": "kv-cache", **about("make demo-kv"), "options": sys.argv[1:], "torch": torch.__version__, "cable": cable}
    (arguments.out / "results.json").write_text(json.dumps({**run, **result, "rows": rows}))
    if wrong:
        print("FAILED\n" + "\n".join(wrong))
    print(json.dumps(result))
    return 1 if wrong or result["wrong_tokens"] or result["corrupt"] or result["lost"] else 0


if __name__ == "__main__":
    sys.exit(main())
