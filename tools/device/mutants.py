#!/usr/bin/env python3
"""Runs tests/device/model.cpp on the header, and on every mutant of tests/device/mutants.txt, each of which must fail.

Usage: tools/device/mutants.py [--seconds N] [--seed N] [NAME...]
"""
import argparse, concurrent.futures, json, os, re, shutil, subprocess, sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "crates/capi/include"
TESTS = ROOT / "tests/device"
OUT = ROOT / "target/device/model"
#: Processor time for one mutant to fail in.
MUTANT_SECONDS = 30
FLAGS = ["-std=c++17", "-O1", "-U_FORTIFY_SOURCE"]


def build(include, program, *flags):
    command = [os.environ.get("CXX", "g++"), *FLAGS, *flags, f"-I{include}", f"-I{TESTS}", TESTS / "model.cpp", "-o", program]
    subprocess.run(command, check=True)


def pattern(text):
    """The text as a pattern that takes any white space for white space."""
    return r"\s*".join(re.escape(part) for part in text.split())


def mutants():
    for line in (TESTS / "mutants.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, scenario, old, new = [part.replace(r"\|", "|") for part in re.split(r"(?<!\\)\|", line)]
            yield name.strip(), scenario.strip(), old.strip(), new.strip()


def run(program, options, *more):
    command = [program, "--seed", str(options.seed), *more]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout


def one(options, number, name, scenario, old, new):
    folder = OUT / f"mutant-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(INCLUDE, folder)
    header = folder / "rgaps/device.cuh"
    text, count = re.subn(pattern(old), lambda _: new, header.read_text())
    if count != 1:
        return f"'{old}' stands {count} times in the header"
    header.write_text(text)
    build(folder, folder / "model")
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
    options = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    if not options.names:
        build(INCLUDE, OUT / "model", "-Wall", "-Wextra", "-Werror")
        code, said = run(OUT / "model", options, "--seconds", str(options.seconds))
        print(said, end="", flush=True)
        if code:
            sys.exit("the header fails in the model")
    wanted = [(n, *m) for n, m in enumerate(mutants()) if not options.names or m[0] in options.names]
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
