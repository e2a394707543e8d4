#!/usr/bin/env python3
"""Runs a suite's model.cpp on its header, and on every mutant of its mutants.txt, each of which must fail: tests/device (device
topics) or tests/rdma (RDMA that kernels post). A mutant that fails at card:TEST is run by gpu-verbs-check instead, against the
software card of crates/gpu-verbs.

Usage: tools/device/mutants.py [--suite device|rdma] [--seconds N] [--seed N] [NAME...]
"""
import argparse, concurrent.futures, json, os, re, shutil, subprocess, sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "crates/capi/include"
#: The header of each suite.
HEADERS = {"device": "device.cuh", "rdma": "device_rdma.cuh"}
#: Messages that show what is wrong with an entry.
CARD_MESSAGES = 64
#: Processor time for one mutant to fail in.
MUTANT_SECONDS = 30
FLAGS = ["-std=c++17", "-O1", "-U_FORTIFY_SOURCE"]


def build(options, include, program, *flags):
    """The model, or with -shared the jobs of a suite."""
    source = "jobs.cu" if "-shared" in flags else "model.cpp"
    folders = [f"-I{include}", f"-I{options.tests}", f"-I{ROOT}/tests/device"]
    command = [os.environ.get("CXX", "g++"), *FLAGS, *flags, *folders, "-x", "c++", options.tests / source, "-o", program]
    subprocess.run(command, check=True)


def pattern(text):
    """The text as a pattern that takes any white space for white space."""
    return r"\s*".join(re.escape(part) for part in text.split())


def mutants(options):
    for line in (options.tests / "mutants.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, scenario, old, new = [part.replace(r"\|", "|") for part in re.split(r"(?<!\\)\|", line)]
            yield name.strip(), scenario.strip(), old.strip(), new.strip()


def run(program, options, *more):
    command = [program, "--seed", str(options.seed), *more]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout


def at_card(options, folder, name, test):
    """Runs a mutant against the software card. Why it did not fail as it should, or None."""
    build(options, folder, folder / "jobs.so", "-shared", "-fPIC", "-pthread")
    command = [options.check, "verify", "--jobs", folder / "jobs.so", "--only", test, "--messages", CARD_MESSAGES, "--limit-s", 2]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode == 0:
        return "survived"
    if done.returncode != 1 or "FAILED: " not in done.stdout:
        return f"ended with {done.returncode}: {done.stdout}{done.stderr}"
    print(f"{name:46} fails: {test}: {done.stdout.split('FAILED: ')[1].splitlines()[0]}", flush=True)
    return None


def one(options, number, name, scenario, old, new):
    folder = options.out / f"mutant-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(INCLUDE, folder)
    header = folder / "rgaps" / HEADERS[options.suite]
    text, count = re.subn(pattern(old), lambda _: new, header.read_text())
    if count != 1:
        return f"'{old}' stands {count} times in the header"
    header.write_text(text)
    if scenario.startswith("card:"):
        why = at_card(options, folder, name, scenario.removeprefix("card:"))
        shutil.rmtree(folder)
        return why
    build(options, folder, folder / "model")
    # It ends when it fails; the limit is for machines that are slow.
    code, said = run(folder / "model", options, "--only", scenario, "--seconds", str(MUTANT_SECONDS))
    shutil.rmtree(folder)
    if code == 0:
        return "survived"
    if code != 1:
        return f"ended with {code}: {said}"
    failure = json.loads(said.splitlines()[-1])["scenarios"][0]
    print(f"{name:46} fails: {scenario}: {failure['failure']}", flush=True)
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=4, help="for each scenario of the header as it is")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--suite", choices=HEADERS, default="device")
    parser.add_argument("--check", type=Path, default=ROOT / "target" / os.environ.get("PROFILE", "release") / "examples/gpu-verbs-check")
    options = parser.parse_args()
    options.tests = ROOT / "tests" / options.suite
    options.out = ROOT / "target/device/model" / options.suite
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.names:
        build(options, INCLUDE, options.out / "model", "-Wall", "-Wextra", "-Werror")
        code, said = run(options.out / "model", options, "--seconds", str(options.seconds))
        print(said, end="", flush=True)
        if code:
            sys.exit("the header fails in the model")
    wanted = [(n, *m) for n, m in enumerate(mutants(options)) if not options.names or m[0] in options.names]
    survivors = 0
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        outcomes = pool.map(lambda m: (m[1], one(options, *m)), wanted)
        for name, why in outcomes:
            if why:
                survivors += 1
                print(f"{name:46} {why.upper() if why == 'survived' else why}", flush=True)
    print(json.dumps({"mutants": len(wanted), "survivors": survivors}))
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
