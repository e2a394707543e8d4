#!/usr/bin/env python3
"""Runs everything of dist/ that wants a GPU, on a bare machine with CUDA, and prints one JSON document.

Usage: dist/gpu-check [--quick]. Exits 0 only if every test passed, no message was corrupt or lost and
the crash test leaked nothing. Progress goes to standard error.
"""
import json, os, platform, subprocess, sys, tempfile, time
from pathlib import Path

HERE = Path(__file__).resolve().parent
QUICK = "--quick" in sys.argv[1:]
failures = []


def run(name, command, timeout, env=None):
    """The command's standard output, or None where it failed; a failure is remembered."""
    print(f"gpu-check: {name} ...", file=sys.stderr, flush=True)
    begun = time.monotonic()
    try:
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=timeout, env=env
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        code, out, err = "timeout", "", str(late)
    print(f"gpu-check: {name}: {code} after {time.monotonic() - begun:.1f} s", file=sys.stderr, flush=True)
    if code != 0:
        failures.append({"name": name, "exit": code, "output": (out + err)[-2000:]})
        return None
    return out


def lines(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip().split("\n")
    except (OSError, subprocess.CalledProcessError):
        return []


def machine():
    cpu = [l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")]
    return {
        "cpu": cpu[0] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "glibc": platform.libc_ver()[1],
        "gpus": [l.split(" (UUID")[0] for l in lines("nvidia-smi", "-L")],
        "driver": lines("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
    }


def tests(env):
    """Test programs over real GPU memory. Those that need the test driver are left out by name."""
    programs = {
        "cuda-conformance": ["--exact", "gpu_memory_conforms"],
        "rgaps-cuda": [],
        "rgaps-pubsub": [],
        "kernels-kernels": [],
    }
    passed = {}
    for name, arguments in programs.items():
        program = HERE / "tests/bin" / name
        out = run(name, [program, "--test-threads=2", *arguments], 240, env)
        passed[name] = next((l for l in (out or "").split("\n") if l.startswith("test result")), "failed")
    return passed


def python(env, folder):
    """The wheel, with the tests of it that are installed here: torch, CuPy and JAX where they are."""
    site = Path(folder) / "site"
    wheel = next((HERE / "wheels").glob("rgaps-*.whl"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", site, wheel]
    if run("wheel", pip, 120) is None:
        return None
    env = dict(env, PYTHONPATH=str(site), PYTHONDONTWRITEBYTECODE="1", PATH=f"{HERE / 'bin'}:{env['PATH']}")
    del env["RGAPS_SOCKET"]
    tests = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", HERE / "tests/python"]
    out = run("python", tests, 400, env) or ""
    return {
        "summary": out.strip().split("\n")[-1] if out else "failed",
        "skipped": [l for l in out.split("\n") if l.startswith("SKIPPED")],
    }


def figure(name, env, *arguments):
    out = run(name, [HERE / "bin/rgaps", "bench", *arguments, "--json"], 240, env)
    try:
        figures = json.loads(out) if out is not None else None
    except ValueError:
        failures.append({"name": name, "exit": "no JSON", "output": out[-2000:]})
        return None
    if figures and (figures.get("lost") or figures.get("corrupt")):
        failures.append({"name": name, "exit": "lost or corrupt messages", "output": out[-2000:]})
    return figures


def figures(env):
    few, many = (500, 2000) if QUICK else (5000, 20000)
    cuda = ["latency", "--domain", "cuda"]
    plans = {
        "cuda-4KiB-poll": [*cuda, "--size", 4096, "--messages", few, "--wait", "poll"],
        "cuda-4KiB-block": [*cuda, "--size", 4096, "--messages", few, "--wait", "block"],
        "cuda-4MiB-poll": [*cuda, "--size", 4 << 20, "--messages", few // 10, "--wait", "poll"],
        "cuda-4MiB-block": [*cuda, "--size", 4 << 20, "--messages", few // 10, "--wait", "block"],
        "cuda-1GiB-poll": [*cuda, "--size", 1 << 30, "--messages", 20, "--wait", "poll"],
        "cuda-1GiB-block": [*cuda, "--size", 1 << 30, "--messages", 20, "--wait", "block"],
        "cuda-4KiB-8-subscribers": [*cuda, "--size", 4096, "--subscribers", 8, "--messages", few, "--wait", "poll"],
        "host-4KiB-poll": ["latency", "--size", 4096, "--messages", many, "--wait", "poll"],
        "host-4KiB-block": ["latency", "--size", 4096, "--messages", many, "--wait", "block"],
        "host-1GiB-poll": ["latency", "--size", 1 << 30, "--messages", 20, "--wait", "poll"],
        "host-throughput": ["throughput", "--size", 64],
        "host-alloc": ["alloc", "--processes", "1,2,4,8"],
        "host-fanout": ["fanout", "--subscribers", "1,2,4,8", "--size", 65536],
        "host-fanin": ["fanin", "--publishers", "1,2,4,8", "--size", 65536],
    }
    return {name: figure(name, env, *arguments) for name, arguments in plans.items()}


def races(env):
    """Kernels that write late and read late, every byte checked; and the same with a wait left out, which
    must be seen."""
    messages, skipped = (100, 12) if QUICK else (1000, 40)
    out = run("races", [
        HERE / "bin/rgaps-races", "--messages", messages, "--skip-messages", skipped,
        "--gpus", min(2, len(lines("nvidia-smi", "-L"))), "--kernel-ms", 50,
    ], 180 if QUICK else 900, env)
    return json.loads(out.strip().split("\n")[-1]) if out else None


def crashes(env):
    kills = 20 if QUICK else 100
    out = run("chaos", [HERE / "bin/rgaps-chaos", "--domain", "cuda", "--kills", kills, "--seed", 1], 420, env)
    last = (out or "").strip().split("\n")[-1]
    try:
        return json.loads(last)
    except ValueError:
        return None


def main():
    with tempfile.TemporaryDirectory() as folder:
        env = dict(
            os.environ,
            RGAPS_DAEMON=str(HERE / "bin/rgapsd"),
            RGAPS_SOCKET=f"{folder}/rgaps.sock",
            RGAPS_IDLE_EXIT_MS="2000",
            RGAPS_TEST_GPU="1",
            RUST_BACKTRACE="0",
        )
        report = {
            "machine": machine(),
            "revision": (HERE / "revision").read_text().strip(),
            "doctor": None,
            "tests": tests(env),
            "python": python(env, folder),
            "figures": figures(env),
            "races": races(env),
            "chaos": crashes(env),
        }
        out = run("doctor", [HERE / "bin/rgaps", "doctor", "--json"], 60, env)
        report["doctor"] = json.loads(out) if out else None
    report["failures"] = failures
    report["ok"] = not failures
    print(json.dumps(report, indent=1))
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
