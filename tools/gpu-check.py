#!/usr/bin/env python3
"""Runs everything of dist/ that wants a GPU, on a bare machine with CUDA, and prints one JSON document.

Usage: dist/gpu-check [--quick] [--only SECTION,...] [--match TEXT,...]

Sections: tests, python, figures, links, races, chaos, mps, device, gpu-verbs, compare, remoting, remoting-libs, remoting-several, doctor; without --only all of them. Under $OUT (default:
gpu-check-results) each result is written to a file as it comes, <section>-<name>.json, so that what was found
before a time limit ended this program is not lost; report.json is the whole, and says so when it is not
(`finished`). All that a failed program printed is in <name>.log. Exits 0 only if every test passed, no message was corrupt or lost, and nothing leaked or hung; a
section that cannot run here (one GPU, no torch) says so under `skipped`. Progress goes to standard error.
Ended by a signal, it ends what it started. --match runs only what has one of the texts in its name, of all sections but doctor,
for machines that are lent for minutes: --only races --match across-copy.
"""
import argparse, contextlib, importlib.util, json, os, platform, signal, statistics, subprocess, sys, tempfile, time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SECTIONS = ["tests", "python", "figures", "links", "races", "chaos", "mps", "device", "gpu-verbs", "compare", "remoting", "remoting-libs", "remoting-several", "doctor"]
OUTPUT_CHARS = 4000

RGAPS = HERE / "bin/rgaps"

report = {"finished": False, "failures": [], "skipped": []}
out_folder = None
quick = False
matches = [""]


def is_wanted(name):
    """Whether --match has a text that is in the name."""
    return any(text in name for text in matches)


def save(name, value):
    """Writes a file whole or not at all."""
    part = out_folder / f".{name}.part"
    part.write_text(json.dumps(value, indent=1) + "\n")
    part.replace(out_folder / f"{name}.json")


def say(text):
    print(f"gpu-check: {text}", file=sys.stderr, flush=True)


def failed(name, how, output=""):
    say(f"{name}: FAILED: {how}")
    if output:
        (out_folder / f"{name.replace(' ', '-')}.log").write_text(output)
    report["failures"].append({"name": name, "exit": how, "output": output[-OUTPUT_CHARS:]})
    save("report", report)


def skipped(name, reason):
    entry = {"name": name, "reason": reason}
    if entry not in report["skipped"]:
        say(f"{name}: skipped: {reason}")
        report["skipped"].append(entry)


def run(name, command, timeout, env, accept=(0,)):
    """The command's standard output, or None where it failed; a failure is remembered. The command and all
    that it started is ended when it takes too long."""
    say(f"{name} ...")
    begun = time.monotonic()
    try:
        process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, errors="replace", env=env, start_new_session=True,
        )
    except OSError as error:
        failed(name, f"cannot be started: {error}")
        return None
    try:
        out, err = process.communicate(timeout=timeout)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        try:
            out, err = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            # Somebody outside the group has the pipes.
            out, err = "", ""
        code = f"not done in {timeout} s"
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    say(f"{name}: {code} after {time.monotonic() - begun:.1f} s")
    if code not in accept:
        failed(name, code, (out or "") + (err or ""))
        # What it had to say is often on the last line all the same.
        return out if code == 1 else None
    return out


def document(name, out):
    """The JSON that a command printed: all of it, or its last line."""
    if not out or not out.strip():
        return None
    for text in (out, out.strip().split("\n")[-1]):
        try:
            return json.loads(text)
        except ValueError:
            pass
    failed(name, "no JSON", out)
    return None


def lines(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
        return done.stdout.strip().split("\n")
    except (OSError, subprocess.SubprocessError):
        return []


def gpus():
    """The GPUs that programs see, a line each."""
    found = [l for l in lines("nvidia-smi", "-L") if l.startswith("GPU ")]
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if seen is None:
        return found
    names = seen.split(",")
    return [l for at, l in enumerate(found) if str(at) in names or any(name and f"UUID: {name}" in l for name in names)]


def machine():
    cpu = [l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")]
    return {
        "cpu": cpu[0] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "glibc": platform.libc_ver()[1],
        "gpus": [l.split(" (UUID")[0] for l in gpus()],
        "driver": lines("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "topology": lines("nvidia-smi", "topo", "-m"),
    }


def tests(env, _folder):
    """Test programs over real GPU memory. Those that need the test driver are left out by name."""
    programs = {
        "cuda-conformance": ["--exact", "gpu_memory_conforms"],
        "cuda-direct": ["--exact", "memory_of_a_real_gpu_is_exported_where_its_driver_says_so"],
        "rgaps-cuda": [],
        "rgaps-several": [],
        "rgaps-streams": [],
        "rgaps-pubsub": [],
        "recording-cuda": [],
        "view-cuda": [],
        "kernels-kernels": [],
        "cli-bench_gpu": [],
    }
    env = dict(env, RGAPS_TEST_PROGRAM=str(HERE / "bin/rgaps"))
    for name, arguments in programs.items():
        if not is_wanted(name):
            continue
        program = HERE / "tests/bin" / name
        if not program.exists():
            failed(name, "is not in dist/")
            continue
        out = run(name, [program, "--test-threads=2", "--show-output", *arguments], 240, env) or ""
        # Tests that are processes of their own say results of theirs before the whole's.
        results = [l for l in out.split("\n") if l.startswith("test result")]
        # How soon others go on when somebody was killed; what of its memory a GPU gives to network cards.
        said = [l for l in out.split("\n") if l.startswith(("went on ", "the block was back ", "GPUDirect: "))]
        yield name, {"result": results[-1] if results else "failed"} | ({"said": said} if said else {})


def python(env, folder):
    """The wheel, with the tests of it that are installed here: torch, CuPy and JAX where they are."""
    site = install_wheel(folder)
    if site is None:
        return
    env = dict(env, PYTHONPATH=str(site), PYTHONDONTWRITEBYTECODE="1")
    del env["RGAPS_SOCKET"]
    if is_wanted("pytest"):
        tests = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", HERE / "tests/python"]
        out = run("python", tests, 400, env) or ""
        yield "pytest", {
            "summary": out.strip().split("\n")[-1] if out else "failed",
            "skipped": [l for l in out.split("\n") if l.startswith("SKIPPED")],
        }
    env["RGAPS_SOCKET"] = f"{folder}/python.sock"
    for wait in ("poll", "block") if torch_is_installed() else ():
        if not is_wanted(f"latency-{wait}"):
            continue
        measure = [sys.executable, HERE / "bench/python_latency.py", "--domain", "cuda", "--wait", wait]
        messages = ["--messages", 50 if quick else 400]
        name = f"python latency {wait}"
        yield f"latency-{wait}", document(name, run(name, [*measure, *messages], 200, env))


#: Before the arguments of a figure that `rgaps-compare` makes, beside designs of papers.
COMPARED = "rgaps-compare"


def figure(name, env, *arguments, timeout=240, prefix=()):
    """A document of `rgaps bench` or `rgaps-compare`. It fails by itself where messages were lost or wrong."""
    if arguments[0] == COMPARED:
        command = [HERE / "bin/rgaps-compare", *arguments[1:]]
    else:
        command = [HERE / "bin/rgaps", "bench", *arguments, "--json"]
    return document(name, run(name, [*prefix, *command], timeout, env))


def plans():
    few, many = (500, 2000) if quick else (5000, 20000)
    some, rounds = (100, 100) if quick else (500, 1000)
    latency = ["latency", "--domain", "cuda"]
    for wait in ("poll", "block"):
        yield f"handoff-{wait}", ["handoff", "--messages", rounds, "--wait", wait]
        yield f"cuda-4KiB-{wait}", [*latency, "--size", "4KiB", "--messages", few, "--wait", wait]
        yield f"cuda-4MiB-{wait}", [*latency, "--size", "4MiB", "--messages", some, "--wait", wait]
        yield f"cuda-1GiB-{wait}", [*latency, "--size", "1GiB", "--messages", 20, "--wait", wait]
        # As one publishes that has nothing to do between frames, for what bench/python_latency.py finds at that pace.
        yield f"cuda-4KiB-{wait}-paused", [*latency, "--size", "4KiB", "--messages", some, "--wait", wait, "--pause-us", 500]
    yield "cuda-4KiB-8-subscribers", [*latency, "--size", "4KiB", "--subscribers", 8, "--messages", few, "--wait", "poll"]
    yield "cuda-fanout-64MiB", ["fanout", "--domain", "cuda", "--size", "64MiB", "--subscribers", "1,2,4,8,16", "--messages", 24]
    spread = ["spread", "--messages", 30 if quick else 200]
    if len(gpus()) > 1:
        yield "handoff-two-gpus", ["handoff", "--gpus", "0,1", "--messages", rounds]
        for size in ("64MiB", "256MiB"):
            yield f"spread-{size}-copy", [*spread, "--size", size, "--peer", "copy"]
            yield f"spread-{size}-map", [*spread, "--size", size, "--peer", "map"]
        for size in ("4KiB", "256KiB", "4MiB"):
            for peer in ("copy", "map"):
                yield f"spread-{size}-{peer}", [*spread, "--size", size, "--peer", peer]
    else:
        skipped("handoff-two-gpus, spread between GPUs", "there is one GPU")
    yield "spread-host-to-gpu", [*spread, "--from", "host", "--to", "cuda"]
    yield "spread-gpu-to-host", [*spread, "--from", "cuda", "--to", "host"]
    yield "host-4KiB-poll", ["latency", "--size", "4KiB", "--messages", many, "--wait", "poll"]
    yield "host-4KiB-block", ["latency", "--size", "4KiB", "--messages", many, "--wait", "block"]
    yield "host-1GiB-poll", ["latency", "--size", "1GiB", "--messages", 20, "--wait", "poll"]
    yield "host-throughput", ["throughput", "--size", 64]
    yield "host-alloc", [COMPARED, "alloc", "--processes", "1,2,4,8"]
    yield "host-fanout", ["fanout", "--subscribers", "1,2,4,8", "--size", "64KiB"]
    yield "host-fanin", ["fanin", "--publishers", "1,2,4,8", "--size", "64KiB"]


def figures(env, _folder):
    # Outside any MPS; the section mps has those under it.
    env = dict(env, CUDA_MPS_PIPE_DIRECTORY="/nonexistent")
    for name, arguments in plans():
        if is_wanted(name):
            yield name, figure(name, env, *arguments)
    if is_wanted("zeroing"):
        yield "zeroing", document("zeroing", run("zeroing", [sys.executable, HERE / "bench/zeroing.py"], 120, env))


#: The section `links` begins nothing that it may not end within this many seconds of its begin.
LINKS_SECONDS = 350


def link_plans():
    """What a link is measured with, the most wanted first: how many seconds each may take, and how."""
    link, compared = ["link"], [COMPARED, "link"]
    yield "copies", 60, ["copies", "--count", 5 if quick else 20]
    for domain in ("cuda", "host"):
        yield f"{domain}-64MiB-k1", 40, [*compared, "--domain", domain, "--size", "64MiB", "--messages", 20]
        yield f"{domain}-64MiB-k8", 40, [*compared, "--domain", domain, "--size", "64MiB", "--messages", 10, "--subscribers", 8]
    for wait in ("block", "poll"):
        yield f"host-64B-{wait}", 30, [*link, "--size", 64, "--lanes", 1, "--messages", 2000, "--wait", wait]
    yield "cuda-1GiB-k1", 60, [*compared, "--domain", "cuda", "--size", "1GiB", "--messages", 3]
    yield "cuda-1GiB-k8", 60, [*compared, "--domain", "cuda", "--size", "1GiB", "--messages", 3, "--subscribers", 8]
    yield "cuda-1GiB-lanes4", 60, [*compared, "--domain", "cuda", "--size", "1GiB", "--messages", 3, "--lanes", 4]
    for count in (1, 8, 2, 4):
        yield f"cuda-4MiB-k{count}", 30, [*compared, "--domain", "cuda", "--size", "4MiB", "--messages", 40, "--subscribers", count]
    if len(gpus()) > 1:
        both = ["--domain", "cuda:0", "--to", "cuda:1"]
        yield "gpus-64MiB-k1", 40, [*compared, *both, "--size", "64MiB", "--messages", 20]
        yield "gpus-1GiB-k1", 60, [*link, *both, "--size", "1GiB", "--messages", 4]
    yield "cuda-5GiB-k1", 180, [*link, "--domain", "cuda", "--size", "5GiB", "--messages", 1]
    for lanes in (1, 4):
        for domain in ("host", "cuda"):
            yield f"{domain}-64MiB-lanes{lanes}", 30, [*link, "--domain", domain, "--size", "64MiB", "--messages", 10, "--lanes", lanes]
    for lanes in (1, 4):
        yield f"host-64MiB-tls-lanes{lanes}", 40, [*link, "--size", "64MiB", "--messages", 10, "--lanes", lanes, "--tls"]
    for topics in (2, 4, 8):
        yield f"host-4MiB-topics{topics}", 30, [*link, "--size", "4MiB", "--messages", 10, "--topics", topics]
    for count in (2, 4):
        yield f"cuda-64MiB-k{count}", 40, [*compared, "--domain", "cuda", "--size", "64MiB", "--messages", 10, "--subscribers", count]
        yield f"cuda-1GiB-k{count}", 60, [*compared, "--domain", "cuda", "--size", "1GiB", "--messages", 3, "--subscribers", count]
    for size in ("64KiB", "1MiB", "1GiB"):
        yield f"host-{size}-k1", 40, [*link, "--size", size, "--messages", 2 if size == "1GiB" else 40]
    for count in (1, 8):
        yield f"host-4MiB-k{count}", 30, [*link, "--size", "4MiB", "--messages", 40, "--subscribers", count]


def links(env, _folder):
    """Topics between two hosts on this machine. Each document says whether namespaces were to be had."""
    ends = time.monotonic() + LINKS_SECONDS
    env = dict(env, RGAPS_LINKS_PROGRAM=str(HERE / "bin/rgaps-links"), CUDA_MPS_PIPE_DIRECTORY="/nonexistent")
    for name, seconds, arguments in link_plans():
        if not is_wanted(name):
            continue
        if time.monotonic() + seconds > ends:
            skipped(f"links {name}", f"{LINKS_SECONDS} s are over")
            continue
        yield name, figure(f"links {name}", env, *arguments, timeout=seconds)
        # Other builds beside it, such as one with another constant: bin/rgaps-compare-NAME.
        for other in sorted(HERE.glob(f"bin/{COMPARED}-*")) if arguments[0] == COMPARED and "cuda-4MiB" in name else ():
            which = f"{name}-{other.name.removeprefix(COMPARED + '-')}"
            yield which, document(f"links {which}", run(f"links {which}", [other, *arguments[1:]], seconds, env))


#: Seconds that a run of the races may take.
RACES_SECONDS = 300


def race_plans():
    """Which GPUs take part, and how messages get from one to the other; each in two halves, so that a machine that is lent
    for minutes has whole results of one. Ten thousand messages of a scenario with kernels of 50 ms, as many at a time as run
    at once, take 33 to 58 s."""
    ways = [("gpus-1", ["--gpus", 1])]
    if len(gpus()) > 1:
        ways += [("gpus-2", ["--gpus", 2])]
        ways += [(f"across-{across}", ["--gpus", 2, "--across", across]) for across in ("copy", "map")]
    else:
        skipped("races of two GPUs", "there is one GPU")
    for name, arguments in ways:
        for half, scenarios in (("read", ["publish", "synchronize", "release"]), ("reuse", ["evict", "discard"])):
            yield f"{name}-{half}", [*arguments, *(part for scenario in scenarios for part in ("--scenario", scenario))]


def races(env, _folder):
    """Kernels that write late and read late, every byte checked; and the same with a wait left out, which
    must be seen."""
    messages, left_out = (100, 12) if quick else (10_000, 40)
    for name, arguments in race_plans():
        if is_wanted(name):
            common = ["--messages", messages, "--skip-messages", left_out, "--kernel-ms", 50]
            out = run(f"races {name}", [HERE / "bin/rgaps-races", *common, *arguments], RACES_SECONDS, env)
            yield name, document(f"races {name}", out)


def chaos(env, _folder):
    kills = 20 if quick else 200
    ways = [("kills", ["cuda"], kills), ("kills-across-host", ["cuda", "--across", "host"], kills // 4)]
    if len(gpus()) > 1:
        ways.append(("kills-across-gpus", ["cuda", "--across", "cuda:1"], kills // 4))
    for name, domains, count in ways:
        if is_wanted(name):
            command = [HERE / "bin/rgaps-chaos", "--domain", *domains, "--kills", count, "--seed", 1]
            yield name, document(f"chaos {name}", run(f"chaos {name}", command, 420, env))


@contextlib.contextmanager
def own_mps(env):
    """An MPS of our own: the environment for what runs under it by `rgaps run`, and what `rgaps up` said."""
    home = Path(tempfile.mkdtemp(prefix="rg", dir="/tmp"))  # short: MPS's sockets lie in it
    env = dict(env, RGAPS_SOCKET=str(home / "r.sock"), RGAPS_IDLE_EXIT_MS="60000")
    try:
        yield env, document("rgaps up --mps", run("rgaps up --mps", [RGAPS, "up", "--mps", "--json"], 60, env))
    finally:
        run("rgaps down", [RGAPS, "down"], 60, env, accept=(0, 3))


def mps(env, folder):
    """Hand-over and latency under an MPS of our own, then what the daemon promises about it."""
    with own_mps(env) as (env, up):
        yield "up", up
        if up is not None:
            for name, arguments in plans():
                under = name.startswith("handoff") or name in ("cuda-4KiB-poll", "cuda-4KiB-block", "cuda-fanout-64MiB")
                if not under or not is_wanted(name):
                    continue
                found = figure(f"mps {name}", env, *arguments, prefix=(RGAPS, "run", "--"))
                if found and "handoff" in name and not found["mps"]:
                    failed(f"mps {name}", "its processes were not under MPS")
                yield name, found
    # It wants rgaps and torch in this Python.
    site = install_wheel(folder) if is_wanted("checks") else None
    if site is not None:
        env = dict(env, PYTHONPATH=str(site))
        del env["RGAPS_SOCKET"]
        out = run("mps", [sys.executable, HERE / "gpu/mps.py", HERE / "bin"], 420, env)
        yield "checks", document("mps", out)


@contextlib.contextmanager
def busy_processors():
    """Every processor has a process that computes; how many there are."""
    count = os.cpu_count() or 1
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield count
    finally:
        for process in load:
            process.kill()
            process.wait()


def device_plans():
    """What is measured of device topics on one GPU under MPS, the most wanted first; and between two GPUs."""
    few, many = (2000, 20000) if quick else (20000, 200000)
    yield "accesses", ["accesses"]
    yield "bare", ["bare", "--messages", few]
    yield "latency-8B", ["latency", "--messages", few]
    yield "latency-8B-thread", ["latency", "--threads", 1, "--messages", few]
    yield "latency-8B-block128", ["latency", "--threads", 128, "--messages", few]
    for blocks in (1, 4, 16, 64):
        yield f"rate-64B-blocks{blocks}", ["rate", "--bytes", 64, "--blocks", blocks, "--messages", many]
    for count in range(2, 9):
        yield f"latency-8B-subscribers{count}", ["latency", "--subscribers", count, "--messages", few]
    for name, size in (("64B", 64), ("1KiB", 1 << 10), ("4KiB", 4 << 10), ("64KiB", 64 << 10), ("256KiB", 256 << 10), ("1MiB", 1 << 20)):
        yield f"latency-{name}", ["latency", "--bytes", size, "--messages", few // 10 if size > 1 << 16 else few]
    for name, size in (("4KiB", 4 << 10), ("64KiB", 64 << 10)):
        for blocks in (1, 16):
            yield f"rate-{name}-blocks{blocks}", ["rate", "--bytes", size, "--blocks", blocks, "--messages", many // 10]
    if len(gpus()) > 1:
        apart = ["--domain", "cuda:0", "--peer", "cuda:1"]
        yield "bare-two-gpus", ["bare", *apart, "--messages", few]
        yield "latency-8B-thread-two-gpus", ["latency", *apart, "--threads", 1, "--messages", few]
        for name, size in (("8B", 8), ("4KiB", 4 << 10), ("64KiB", 64 << 10), ("1MiB", 1 << 20)):
            messages = few // 10 if size > 1 << 16 else few
            yield f"latency-{name}-two-gpus", ["latency", *apart, "--bytes", size, "--messages", messages]
        for blocks in (1, 4, 16, 64):
            yield f"rate-64B-blocks{blocks}-two-gpus", ["rate", *apart, "--bytes", 64, "--blocks", blocks, "--messages", many]


def device_rounds():
    """What is measured in turns, several times, and the figure that counts."""
    few, many = (2000, 20000) if quick else (20000, 200000)
    return {
        "bare": (["bare", "--messages", few], "half_round_trip_p50_us"),
        "latency-8B": (["latency", "--messages", few], "half_round_trip_p50_us"),
        "latency-8B-thread": (["latency", "--threads", 1, "--messages", few], "half_round_trip_p50_us"),
        "latency-1MiB": (["latency", "--bytes", 1 << 20, "--messages", few // 10], "half_round_trip_p50_us"),
        "rate-64B-block": (["rate", "--bytes", 64, "--blocks", 1, "--messages", many], "messages_per_s"),
    }


def device_medians(checked, program):
    """The medians of rounds in which all programs take turns: ours, and others beside it (bin/rgaps-device-check-NAME), such as an
    earlier build."""
    programs = [program, *sorted(program.parent.glob(f"{program.name}-*"))]
    found = {}
    for number in range(1 if quick else 3):
        for name, (arguments, key) in device_rounds().items():
            for one in programs:
                out = checked(f"{name} {one.name} {number}", *arguments, program=one)
                if out:
                    found.setdefault(one.name, {}).setdefault(name, []).append(out[key])
    return {
        one: {name: {"rounds": values, "median": statistics.median(values)} for name, values in all_of_one.items()}
        for one, all_of_one in found.items()
    }


def device(env, folder):
    """Kernels that publish to kernels of other processes (rgaps/device.cuh), every word verified."""
    program = HERE / "bin/rgaps-device-check"
    if not program.exists():
        skipped("device", "bin/rgaps-device-check is not in dist/: it was made without nvcc")
        yield "skipped", {"reason": "no program"}
        return

    with own_mps(env) as (under, up):
        if up is not None:
            yield from device_under_mps(under, program)
    # Without MPS kernels of several processes take turns.
    yield from device_with_kills(dict(env, CUDA_MPS_PIPE_DIRECTORY="/nonexistent"), folder, program)


def device_checked(env, program, prefix=()):
    """A function that runs the program, by name and arguments."""
    def checked(name, *arguments, program=program):
        return document(f"device {name}", run(f"device {name}", [*prefix, program, *arguments], 150, env))

    return checked


def device_demo():
    return ["demo", "--domain", "cuda", "--seconds", 8 if quick else 15]


def device_under_mps(env, program):
    """Times and rates. Nobody is killed here: under MPS that ends the GPU work of all others, too."""
    under = (RGAPS, "run", "--")
    checked = device_checked(env, program, under)
    if is_wanted("rounds"):
        yield "rounds", device_medians(checked, program)
    for name, arguments in device_plans():
        if is_wanted(name):
            yield name, checked(name, *arguments)
    # The same hand-over by kernels that hosts launch.
    handoff = ["handoff", "--messages", 100 if quick else 1000, "--wait", "poll"]
    for name, more in (("handoff-poll", []), ("handoff-poll-two-gpus", ["--gpus", "0,1"])):
        if is_wanted(name) and (not more or len(gpus()) > 1):
            yield name, figure(f"device {name}", env, *handoff, *more, prefix=under)
    # Both once more while every processor is busy: kernels wait for no CPU.
    names = [name for name in ("latency-8B-busy", "handoff-poll-busy") if is_wanted(name)]
    with busy_processors() if names else contextlib.nullcontext() as load:
        for name in names:
            found = checked(name, "latency", "--messages", 2000) if "latency" in name else figure(f"device {name}", env, *handoff, prefix=under)
            yield name, found and dict(found, cpu_load=load)
    if is_wanted("meet-mps"):
        yield "meet-mps", checked("meet-mps", "meet", "--messages", 2000 if quick else 20000, "--kills", 0)
    if is_wanted("demo-mps"):
        yield "demo-mps", checked("demo-mps", *device_demo(), "--kills", 0)
    if is_wanted("far"):
        # Two hosts on this machine, each with daemon and links of its own.
        far = dict(env, BUILT=str(HERE / "bin"), CHECK=str(program))
        yield "far", document("device far", run("device far", [*under, HERE / "device/far.sh"], 200, far))


def device_with_kills(env, folder, program):
    checked = device_checked(env, program)
    if is_wanted("demo-kills"):
        yield "demo-kills", checked("demo-kills", *device_demo(), "--kills", 6 if quick else 12)
    if is_wanted("meet-kills"):
        yield "meet-kills", checked("meet-kills", "meet", "--messages", 500 if quick else 2000, "--kills", 2 if quick else 4)
    if is_wanted("seats-kills"):
        # A daemon of its own, which evicts soon.
        short = dict(env, RGAPS_SOCKET=f"{folder}/seats.sock", RGAPS_LIMITS__DEVICE_STALL_MS="5000")
        yield "seats-kills", device_checked(short, program)("seats-kills", "seats", "--kills", 4 if quick else 12)
    if is_wanted("cupy"):
        yield "cupy", device_example(env, folder, "cupy")
    site = install_wheel(folder) if is_wanted("pytest") else None
    if site is not None:
        # Python's kernels, with torch's tensors where it is, and those of Numba and Triton.
        env = dict(env, PYTHONPATH=str(site), PYTHONDONTWRITEBYTECODE="1")
        del env["RGAPS_SOCKET"]
        tests = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", HERE / "tests/python/test_device_topics.py"]
        yield "pytest", {"said": (run("device pytest", tests, 300, env) or "failed").strip().splitlines()}


def device_example(env, folder, package):
    """Kernels that a Python package launches publish while they run."""
    if importlib.util.find_spec(package) is None:
        skipped(f"device {package}", f"{package} is not installed")
        return {"reason": f"{package} is not installed"}
    site = install_wheel(folder)
    if site is None:
        return None
    command = [sys.executable, HERE / f"examples/python/device_topic_{package}.py", "--include", HERE / "include"]
    # With the compiler of the toolkit, wherever it is.
    env = dict(env, PYTHONPATH=str(site), PATH=f"{env['PATH']}:/usr/local/cuda/bin")
    out = run(f"device {package}", command, 120, env)
    return {"said": out.strip().splitlines()[-1] if out and out.strip() else None}


def install_wheel(folder):
    """The folder for PYTHONPATH that has the wheel; None where it cannot be installed."""
    site = Path(folder) / "site"
    if site.exists():
        return site
    wheel = next((HERE / "wheels").glob("rgaps-*.whl"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", site, wheel]
    return site if run("wheel", pip, 120, env=os.environ) is not None else None


def gpu_verbs_plans():
    """Kernels that post RDMA to a software card: what is right, then what posting costs, the most wanted first."""
    few, many = (200, 5000) if quick else (2000, 100000)
    yield "verify", ["verify", "--messages", few]
    yield "verify-payload-gpu", ["verify", "--messages", few // 10, "--payload", "gpu"]
    for blocks, warps in ((1, 1), (4, 2), (16, 4)):
        yield f"ladder-blocks{blocks}-warps{warps}", ["ladder", "--messages", many, "--blocks", blocks, "--warps", warps]
    yield "ladder-busy", ["ladder", "--messages", many // 10, "--blocks", 1, "--warps", 1]


def gpu_verbs(env, _folder):
    """Kernels that post RDMA (rgaps/device_rdma.cuh), every byte verified. No network card takes part: no figure is one of RDMA."""
    program, kernels = HERE / "bin/rgaps-gpu-verbs-check", HERE / "lib/librdma-jobs-cuda.so"
    if not kernels.exists():
        skipped("gpu-verbs", "lib/librdma-jobs-cuda.so is not in dist/: it was made without nvcc")
        yield "skipped", {"reason": "no kernels"}
        return
    # Kernels are loaded when the library is: a later load would wait for those that run.
    env = dict(env, CUDA_MODULE_LOADING="EAGER")
    for name, (command, *options) in gpu_verbs_plans():
        if is_wanted(name):
            with busy_processors() if name.endswith("-busy") else contextlib.nullcontext() as load:
                out = run(f"gpu-verbs {name}", [program, command, "--jobs", kernels, *options], 120, env)
            found = document(f"gpu-verbs {name}", out)
            yield name, dict(found, cpu_load=load) if found and load else found
    wanted = [(name, more) for name, more in (("hosts", []), ("hosts-topics", ["--topics", "yes"])) if is_wanted(name)]
    if wanted:
        # The kernels of two processes on one GPU.
        with own_mps(env) as (env, up):
            for name, more in wanted if up is not None else ():
                yield name, gpu_verbs_hosts(name, [RGAPS, "run", "--", program], ["--jobs", kernels, *more], env)


def gpu_verbs_hosts(name, program, options, env):
    """Kernels of one process post to the memory of another one, which a proxy carries over TCP; with topics, from device topic to device topic."""
    command = [*program, "receive", *options, "--listen", "127.0.0.1:0"]
    receiver = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        heard = []
        for line in receiver.stderr:
            heard.append(line)
            if line.startswith("listening at "):
                break
        else:
            failed(f"gpu-verbs {name}", "the receiver does not listen", "".join(heard))
            return None
        peer = heard[-1].removeprefix("listening at ").strip()
        sent = document(f"gpu-verbs {name}", run(f"gpu-verbs {name}", [*program, "send", *options, "--peer", peer], 120, env))
        out, err = receiver.communicate(timeout=60)
        if receiver.returncode != 0:
            failed(f"gpu-verbs {name}", f"the receiver: {receiver.returncode}", out + err)
        return {"sent": sent, "received": document(f"gpu-verbs {name}", out)}
    except subprocess.TimeoutExpired:
        failed(f"gpu-verbs {name}", "the receiver does not end")
        return None
    finally:
        receiver.kill()
        receiver.wait()


def torch_is_installed():
    return importlib.util.find_spec("torch") is not None


def compare(env, _folder):
    """rgaps beside the ways people do it now. Each part also writes what it has as it goes, to the same file."""
    if not torch_is_installed():
        skipped("compare", "torch is not installed")
        yield "skipped", {"reason": "torch is not installed"}
        return
    env = dict(env, OUT=str(out_folder))
    parts = {
        "serialisation": (["--only", "serialisation"], 150),
        "transfer": (["--only", "transfer"], 540),
        "pipeline": (["--only", "pipeline"], 570),
        "pipeline-mps": (["--only", "pipeline", "--batches", "4", "--mps"], 570),
        "sharing": (["--only", "sharing"], 420),
        "sharing-mps": (["--only", "sharing", "--mps"], 420),
    }
    for name, (arguments, timeout) in parts.items():
        if is_wanted(name):
            command = [sys.executable, HERE / "compare/run", *arguments, *(["--quick"] if quick else [])]
            yield name, document(f"compare {name}", run(f"compare {name}", command, timeout, env))


#: Programs of GPU remoting that are timed, with the thesis's elements of SAXPY and two sides of a matrix product.
REMOTE_PROGRAMS = {
    "saxpy": ["saxpy", 20 << 20], "saxpy-1Mi": ["saxpy", 1 << 20], "matmul-1024": ["matmul", 1024], "matmul-2048": ["matmul", 2048],
    # Copies of 1 KiB to 64 MiB: the thesis's threshold of registered buffers is 5 KiB.
    "transfers": ["transfers", 64 << 20],
}


#: Makes /dev of a mount namespace, in the folder $1, without GPUs, and stays. NVIDIA's driver makes the nodes that it misses; with `nodev` they open nothing.
FAR_DEVICES = """
mount --make-rprivate / && mkdir -p "$1" && mount -t tmpfs -o mode=755,nodev far "$1" || exit 1
for node in null zero full random urandom tty; do
  [ ! -e "/dev/$node" ] || { : >"$1/$node" && mount --bind "/dev/$node" "$1/$node"; } || exit 1
done
ln -s /proc/self/fd "$1/fd" && mkdir -m 1777 "$1/shm" && mount -t tmpfs far "$1/shm" && mount --rbind "$1" /dev || exit 1
echo made
exec sleep infinity
"""
#: Whether a program finds a GPU with NVIDIA's driver.
FAR_PROBE = """
import ctypes, glob, json
try:
    driver = ctypes.CDLL("libcuda.so.1").cuInit(0)
except OSError as error:
    driver = str(error)
print(json.dumps({"device_nodes": glob.glob("/dev/nvidia*"), "cuInit": driver}))
"""


class Far:
    """The host of the clients: a network namespace with a cable to this host, and a mount namespace whose /dev has no GPU. What this user may not make
    is missing, and `about` says so. `prefix` is what comes before a command there, `address` is this host's."""

    def __init__(self, folder):
        self.prefix, self.address, self.about = [], "127.0.0.1", {"network": "this host's"}
        self.name, self.has_namespace = f"rgaps-far-{os.getpid()}", False
        if lines("ip", "-V") and self.make_network():
            self.address = "10.88.0.1"
            self.about["network"] = "a namespace of its own, and a cable (veth)"
        words = ["unshare", "--mount", "sh", "-c", FAR_DEVICES, "far", f"{folder}/far-dev"]
        within = ["ip", "netns", "exec", self.name] if self.address == "10.88.0.1" else []
        self.holder = subprocess.Popen([*within, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self.holder.stdout.readline() == "made\n":
            self.prefix = ["nsenter", f"--target={self.holder.pid}", "--net", "--mount", "--"]
        else:
            self.about["devices"] = f"as here: {self.holder.stderr.read().strip()}"
            self.prefix = within
        probed = subprocess.run([*self.prefix, sys.executable, "-c", FAR_PROBE], capture_output=True, text=True, timeout=60)
        self.about["probe"] = json.loads(probed.stdout) if probed.returncode == 0 else probed.stderr
        if "devices" not in self.about and '"cuInit": 0' in probed.stdout:
            failed("remoting client", "its host has a GPU", probed.stdout)

    def make_network(self):
        def ip(*words):
            done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20)
            if done.returncode != 0:
                self.about["network"] = f"this host's: ip {' '.join(words)}: {done.stderr.strip()}"
            return done.returncode == 0

        cable, end = f"far{os.getpid()}", f"end{os.getpid()}"
        self.has_namespace = ip("netns", "add", self.name)
        return self.has_namespace and all(ip(*words.split()) for words in (
            f"link add {cable} type veth peer name {end} netns {self.name}", f"addr add 10.88.0.1/24 dev {cable}", f"link set {cable} up",
            f"-n {self.name} addr add 10.88.0.2/24 dev {end}", f"-n {self.name} link set {end} up", f"-n {self.name} link set lo up",
        ))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.holder.kill()
        self.holder.wait()
        if self.has_namespace:
            # The cable goes with it.
            subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True, timeout=20)


#: The cable has nobody else on it.
TRUSTED = {"RGAPS_LINKS__INSECURE": "true"}


@contextlib.contextmanager
def gpu_server(name, env, *options):
    """A GPU server: what it says when it listens, and its process; none if it does not start."""
    log = out_folder / f"{name.replace(' ', '-')}.log"
    words = [str(word) for word in (RGAPS, "gpu", "serve", "--json", "--clients", 64, *options)]
    with open(log, "w") as errors:
        server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True, env=dict(env, **TRUSTED, RUST_LOG="info"))
    try:
        line = server.stdout.readline()
        if not line:
            failed(name, "does not start", log.read_text())
        yield (json.loads(line) if line else None), server
    finally:
        server.terminate()
        server.wait()


def gpu_run(far, on):
    """What comes before a program on the far host that uses these servers."""
    return [*far.prefix, RGAPS, "gpu", "run", "--libraries", HERE / "gpu-libs", "--on", on, "--"]


def statistics_of(path):
    """What each process counted as a whole."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [row for row in rows if row["at"] == "exit"]


def timed(name, command, env, timeout=120):
    """The program's last line, with its voluntary context switches; None where it failed."""
    log = out_folder / f"{name.replace(' ', '-')}.out"
    with open(log, "w+") as out:
        process = subprocess.Popen([str(part) for part in command], stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True)
        until = time.monotonic() + timeout
        pid = 0
        while pid == 0:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            if pid == 0 and time.monotonic() > until:
                os.killpg(process.pid, signal.SIGKILL)
                pid, status, used = os.wait4(process.pid, 0)
            time.sleep(0.01 if pid == 0 else 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read()
    if process.returncode != 0:
        failed(name, process.returncode, text)
        return None
    found = document(name, text)
    return found and dict(found, voluntary_switches=used.ru_nvcsw)


def remoting_cases(name, far, on, options, env, timeout=300):
    """Programs of tests/remote on servers."""
    prefix = ["--prefix", " ".join(map(str, far.prefix))] if far.prefix else []
    words = [sys.executable, HERE / "remote/run.py", "--programs", HERE / "remote", "--rgaps", RGAPS, "--libraries", HERE / "gpu-libs", "--on", on]
    return document(name, run(name, [*words, *prefix, *options], timeout, env))


def remoting_suite(folder, native, client, far, ways, more_env):
    """The programs of tests/remote here and each way: the same outputs and error codes."""
    programs = HERE / "remote"
    saved = Path(folder) / "native.json"
    suite = [sys.executable, programs / "run.py", "--programs", programs, "--jobs", 8, "--save", saved]
    yield "suite-native", document("remoting suite native", run("remoting suite native", suite, 300, native, accept=(0, 1)))
    for way, on in ways.items():
        options = ["--gpu", "--jobs", 8, "--compare", saved]
        yield f"suite-{way}", remoting_cases(f"remoting suite {way}", far, on, options, dict(client, **more_env.get(way, {})))


def remoting_topics(folder, there, client, far, ways):
    """Messages of this host that programs publish and receive at their addresses on the GPU: the programs' own; then a filter between a publisher and a
    subscriber here, every byte compared."""
    for way in ("tcp", "unix"):
        yield f"topics-{way}", remoting_cases(f"remoting topics {way}", far, ways[way], ["--topics"], client, 120)
    camera, back = Path(folder) / "camera", Path(folder) / "negative.raw"
    camera.write_bytes(os.urandom(3 << 20))
    words = [*gpu_run(far, ways["tcp"]), HERE / "remote/negative", "t/camera", "t/negative", 1]
    with open(out_folder / "remoting-filter.out", "w") as out:
        filtering = subprocess.Popen([str(word) for word in words], env=client, stdout=out, stderr=subprocess.STDOUT)
    try:
        put = [RGAPS, "topic", "pub", "t/camera", "--file", camera, "--domain", "cuda", "--wait-subscribers", 1, "--timeout", 30]
        take = [RGAPS, "topic", "echo", "t/negative", "--domain", "host", "--late", "all", "--count", 1, "--timeout", 30, "--save", back]
        run("remoting filter publisher", put, 60, there)
        run("remoting filter subscriber", take, 60, there)
        is_equal = back.exists() and back.read_bytes() == bytes(255 - byte for byte in camera.read_bytes())
        if filtering.wait(30) != 0 or not is_equal:
            failed("remoting filter", f"exit {filtering.returncode}, equal: {is_equal}", Path(out.name).read_text())
        yield "topics-filter", {"bytes": camera.stat().st_size, "equal": is_equal}
    finally:
        filtering.kill()
        filtering.wait()


def remoting_times(folder, native, client, far, ways, more_env):
    """Programs that time themselves, in turns."""
    programs = HERE / "remote"
    repetitions, rounds = (3, 1) if quick else (5, 3)
    # What several connections and threads give for the bytes of large copies.
    single = {f"{way}-single": way for way in ("tcp", "unix")}
    ways = {**ways, **{name: ways[way] for name, way in single.items()}}
    more_env = {**more_env, **{name: {"RGAPS_GPU_STRIPES": "0"} for name in single}}
    for name, (program, size) in REMOTE_PROGRAMS.items():
        if not is_wanted(name):
            continue
        command = [programs / program, size, repetitions]
        found = {"native": [], **{way: [] for way in ways}}
        for turn in range(rounds):
            found["native"].append(timed(f"remoting {name} native {turn}", command, native))
            for way, on in ways.items():
                statistics = Path(folder) / "statistics"
                statistics.unlink(missing_ok=True)
                environment = dict(client, RGAPS_GPU_STATISTICS=str(statistics), **more_env.get(way, {}))
                result = timed(f"remoting {name} {way} {turn}", [*gpu_run(far, on), *command], environment)
                if result and statistics.exists():
                    result["statistics"] = statistics_of(statistics)[-1]
                found[way].append(result)
        least = {way: min((r["ms"] for r in results if r and "ms" in r), default=None) for way, results in found.items()}
        ratios = {way: least[way] / least["native"] for way in ways if least[way] and least["native"]}
        # The thesis counts them, too: of all repetitions of a run.
        switches = {way: min((r["voluntary_switches"] for r in results if r), default=None) for way, results in found.items()}
        yield name, {"runs": found, "least_ms": least, "ratio_to_native": ratios, "least_voluntary_switches": switches}


def remoting_lane(far):
    """Bare TCP between the client's host and this one."""
    lane = HERE / "bench/remoting_lane.py"
    server = subprocess.Popen([sys.executable, str(lane), "--serve", far.address], stdout=subprocess.PIPE, text=True)
    try:
        at = f"{far.address}:{server.stdout.readline().strip()}"
        return document("remoting lane", run("remoting lane", [*far.prefix, sys.executable, lane, "--on", at], 120, os.environ))
    finally:
        server.kill()
        server.wait()


def gb_per_s(runs, key):
    """Of the largest copies of `transfers`."""
    last = [found["sizes"][-1] for found in runs if found]
    return round(max(row["bytes"] / row[key] for row in last) / 1e3, 3) if last else None


def against_lane(transfers, lane):
    """The largest copies beside what the lane carries: over TCP bare connections, as many as there are stripes; over the Unix socket the GPU's own copies."""
    bare = lane["rows"][-1]
    kinds = {"in_us": "in", "out_us": "out", "pinned_in_us": "in", "pinned_out_us": "out"}
    rows = []
    for key, way in kinds.items():
        tcp, unix, native = (gb_per_s(transfers["runs"][name], key) for name in ("tcp", "unix", "native"))
        raw = bare[f"{way}_gb_per_s"]
        rows.append({"kind": key, "raw": raw, "tcp": tcp, "tcp_ratio": tcp and round(tcp / raw, 3), "native": native, "unix": unix,
                     "unix_ratio": unix and round(unix / native, 3)})
    return {"connections": bare["connections"], "gb_per_s": rows}


def remoting(env, folder):
    """CUDA programs here and on a host without a GPU, through a server on this machine, over TCP and over a Unix socket: the same outputs, and times. The
    client finds no CUDA library but ours. `one-by-one` reconstructs GVirtuS's way over TCP: each call of the driver waits for its answer, and the
    server registers no buffers. (GVirtuS waits for each call of the runtime, of which there are more.)"""
    native = dict(env, LD_LIBRARY_PATH=f"{HERE / 'remote/cudart'}:{env.get('LD_LIBRARY_PATH', '')}")
    # Listing cases loads a runtime, too.
    client = dict(env, LD_LIBRARY_PATH=str(HERE / "gpu-libs"), **TRUSTED)
    configuration = Path(folder) / "remoting.toml"
    configuration.write_text('[gpu]\ntopics = ["t/**"]\n[pool.cuda]\ncap = "64MiB"\n')
    there = dict(env, RGAPS_CONFIG=str(configuration), RGAPS_SOCKET=f"{folder}/remoting.sock")
    unix = f"unix:{folder}/gpu.sock"
    with Far(folder) as far, contextlib.ExitStack() as servers:
        listen = ["--listen", f"{far.address}:0"]
        serving, _ = servers.enter_context(gpu_server("remoting server", there, *listen, "--listen", unix))
        plain, _ = servers.enter_context(gpu_server("remoting server unpinned", there, *listen, "--no-pinning"))
        if not serving or not plain:
            return
        yield "server", {**serving, "client": far.about}
        ways = {"tcp": serving["listen"][0], "unix": unix, "one-by-one": plain["listen"][0]}
        blocking = {"one-by-one": {"RGAPS_GPU_BLOCKING": "1", "RGAPS_GPU_STRIPES": "0"}}
        if is_wanted("suite"):
            yield from remoting_suite(folder, native, client, far, ways, blocking)
        if is_wanted("topics"):
            yield from remoting_topics(folder, there, client, far, ways)
        bench = [*far.prefix, sys.executable]
        common = ["--rgaps", RGAPS, "--libraries", HERE / "gpu-libs", "--programs", HERE / "remote"]
        if is_wanted("delays"):
            # Times behind a delay of 0, 20, 100 and 500 us.
            words = [*bench, HERE / "bench/remoting_delay.py", *common, "--relay", HERE / "bin/rgaps-delay", "--on", ways["tcp"],
                     "--program", f"saxpy:{1 << 20}", "--program", "matmul:1024"]
            yield "delays", document("remoting delays", run("remoting delays", words, 300, client))
        if is_wanted("inline"):
            # The thesis's sweep of the size from which bytes go through registered buffers.
            words = [*bench, HERE / "bench/remoting_inline.py", *common, "--on", f"tcp={ways['tcp']}", "--on", f"unix={unix}"]
            words += ["--rounds", 1] if quick else []
            yield "inline", document("remoting inline", run("remoting inline", words, 300, client))
        times = {}
        for name, value in remoting_times(folder, native, client, far, ways, blocking):
            times[name] = value
            yield name, value
        if "transfers" in times and (lane := remoting_lane(far)):
            yield "lane", {**lane, "against": against_lane(times["transfers"], lane)}


def nvidia_folders():
    """Where this Python's packages have the libraries above the runtime."""
    import site
    roots = [Path(folder) / "nvidia" for folder in [*site.getsitepackages(), site.getusersitepackages()]]
    folders = [library.parent for root in roots for library in root.glob("**/lib/libcu*.so.*")]
    return [str(folder) for folder in dict.fromkeys(folders)]


def torch_run(prefix, env, steps, timeout):
    """Runs steps of torch, in as few processes as possible: one ends at the first step that fails. What each gave, and the functions that were
    called and are not forwarded."""
    found, unsupported, notices, left = {}, [], [], list(steps)
    while left:
        command = [str(word) for word in [*prefix, sys.executable, HERE / "remote/torch_steps.py", *left]]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", env=env, start_new_session=True)
        try:
            out, err = process.communicate(timeout=timeout)
            how = f"exit {process.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            how = f"not done in {timeout} s"
        begun = None
        for line in out.splitlines():
            if line.startswith("begin "):
                begun = line.split()[1]
            elif line.startswith("{"):
                result = json.loads(line)
                found[result["step"]] = result
        said = [line for line in err.splitlines() if line.startswith("rgaps: ")]
        unsupported += [line.split()[1] for line in said if "is not forwarded" in line]
        notices += [line for line in said if "is not forwarded" not in line]
        at = begun or left[0]
        if at not in found:
            found[at] = {"step": at, "error": how, "at": err[-1500:]}
            if process.returncode < 0 and not env.get("MALLOC_CHECK_"):
                # Again with a heap that finds damage earlier, each call waiting for its answer.
                checked = dict(env, MALLOC_CHECK_="3", LD_PRELOAD="libc_malloc_debug.so.0", RGAPS_GPU_BLOCKING="1")
                found[at]["checked"] = torch_run(prefix, checked, [at], timeout)[0]
        left = left[left.index(at) + 1:]
    return found, sorted(set(unsupported)), sorted(set(notices))


def is_near(one, other):
    if not isinstance(one, list) or not isinstance(other, list):
        return one == other
    return len(one) == len(other) and all(abs(a - b) <= 1e-3 * max(1, abs(a), abs(b)) for a, b in zip(one, other))


#: The steps that are timed behind a delay.
DELAYED_STEPS = ["resnet50", "resnet50_batch_32", "resnet50_training", "transformer_step", "decode_step"]


def remoting_torch_delays(env, far, on, native):
    """Steps of torch behind a delay, which is added to each round trip."""
    address, port = on.rsplit(":", 1)
    rows = []
    for delay in (0, 20, 100, 500):
        relay = subprocess.Popen([str(word) for word in (*far.prefix, HERE / "bin/rgaps-delay", address, port, delay / 2)], stdout=subprocess.PIPE, text=True)
        try:
            at = f"127.0.0.1:{relay.stdout.readline().strip()}"
            statistics = out_folder / f"torch-delay-{delay}.statistics"
            found, _, _ = torch_run(gpu_run(far, at), dict(env, RGAPS_GPU_STATISTICS=str(statistics)), DELAYED_STEPS, 240)
            for name, row in found.items():
                there = native.get(name, {}).get("ms")
                ratio = row["ms"] / there if row.get("ms") and there else None
                rows.append({"step": name, "delay_us": delay, "native_ms": there, "ratio": ratio, **{key: row.get(key) for key in ("ms", "counted", "error")}})
                rows[-1]["equal"] = is_near(native.get(name, {}).get("found"), row.get("found"))
        finally:
            relay.kill()
            relay.wait()
    yield "torch-delays", rows


def torch_compared(env, far, on, steps, native, name):
    """Steps of torch through servers, beside native ones."""
    statistics = out_folder / f"torch-{name}.statistics"
    found, unsupported, notices = torch_run(gpu_run(far, on), dict(env, RGAPS_GPU_STATISTICS=str(statistics)), steps, 240)
    table = {
        step: {
            "equal": "error" not in found[step] and is_near(native[step].get("found"), found[step].get("found")),
            "native_ms": native[step].get("ms"), **found[step],
        }
        for step in steps if step in found
    }
    return {
        "equal": [step for step, row in table.items() if row["equal"]], "not_equal": [step for step, row in table.items() if not row["equal"]],
        "unsupported": unsupported, "notices": notices, "steps": table, "processes": statistics_of(statistics),
    }


def torch_steps():
    sys.path.insert(0, str(HERE / "remote"))
    return importlib.import_module("torch_steps")


def remoting_torch(env, client, far, ways):
    """Unmodified torch here and through a server. Nothing that fails here fails the whole: the names of what is missing are the result."""
    steps = [name for name in torch_steps().STEPS if is_wanted(name) or is_wanted("torch")]
    delayed = DELAYED_STEPS if is_wanted("torch-delays") else []
    if not steps and not delayed:
        return
    # Before what is timed, since a card's clocks rise only while it works.
    torch_run([], env, ["resnet50_training"], 180)
    native, _, _ = torch_run([], env, list(dict.fromkeys([*steps, *delayed])), 240)
    yield "torch-native", native
    for way, on in ways.items() if steps else ():
        yield f"torch-{way}", torch_compared(client, far, on, steps, native, way)
    if delayed:
        yield from remoting_torch_delays(client, far, ways["tcp"], native)


def remoting_libs(env, folder):
    """Programs that call cuBLAS, cuRAND, cuFFT and cuDNN, here and through a server on this machine with the same libraries: the same outputs; then
    unmodified torch."""
    programs = HERE / "remote"
    folders = nvidia_folders()
    if not folders:
        skipped("remoting-libs", "this Python has no packages with cuBLAS and others")
        return
    yield "folders", folders
    native = dict(env, LD_LIBRARY_PATH=":".join([str(programs / "cudart"), *folders, env.get("LD_LIBRARY_PATH", "")]))
    client = dict(env, LD_LIBRARY_PATH=str(HERE / "gpu-libs"), **TRUSTED)
    unix = f"unix:{folder}/gpu-libs.sock"
    with Far(folder) as far, gpu_server("remoting-libs server", native, "--listen", f"{far.address}:0", "--listen", unix) as (serving, _):
        if not serving:
            return
        yield "client", far.about
        ways = {"unix": unix, "tcp": serving["listen"][0]}
        for group in ("blas/", "math/"):
            name = group.rstrip("/")
            if not is_wanted(name):
                continue
            suite = [sys.executable, programs / "run.py", "--programs", programs, "--jobs", 8, "--math", "real", "--match", group]
            saved = Path(folder) / "native-libs.json"
            out = run(f"remoting-libs {name} native", [*suite, "--save", saved], 300, native, accept=(0, 1))
            yield f"{name}-native", {"result": document(name, out), "cases": json.loads(saved.read_text()) if saved.exists() else None}
            if not saved.exists():
                continue
            for way, on in ways.items():
                kept = out_folder / f"remoting-libs-{name}-{way}-cases.json"
                options = ["--jobs", 8, "--math", "real", "--match", group, "--compare", saved, "--save", kept]
                yield f"{name}-{way}", remoting_cases(f"remoting-libs {name} {way}", far, on, options, client)
        if importlib.util.find_spec("torch"):
            yield from remoting_torch(native, client, far, ways)
        else:
            skipped("remoting-libs torch", "this Python has no torch")


def remoting_several(env, folder):
    """Several GPUs and several servers: one server has both GPUs, two have one each. A client on a host without a GPU uses all of them. Programs of
    tests/remote, copies between GPUs, and unmodified torch with a model on two GPUs, each compared with what this host finds or with what is right."""
    if len(gpus()) < 2:
        skipped("remoting-several", "there is one GPU")
        return
    folders = nvidia_folders()
    native = dict(env, LD_LIBRARY_PATH=":".join([str(HERE / "remote/cudart"), *folders, env.get("LD_LIBRARY_PATH", "")]))
    client = dict(env, LD_LIBRARY_PATH=str(HERE / "gpu-libs"), **TRUSTED)
    with Far(folder) as far, contextlib.ExitStack() as servers:
        listening, processes = {}, {}
        for name, devices in (("both", "0,1"), ("first", "0"), ("second", "1")):
            unix = f"unix:{folder}/{name}.sock"
            serving, processes[name] = servers.enter_context(
                gpu_server(f"remoting-several {name}", native, "--devices", devices, "--listen", f"{far.address}:0", "--listen", unix))
            if not serving:
                return
            listening[name] = {"tcp": serving["listen"][0], "unix": unix, "devices": serving["devices"]}
        yield "servers", {"listening": listening, "client": far.about}
        at = lambda name, way="tcp", gpu="": listening[name][way] + gpu
        lists = {
            # What a client sees: the GPUs of one server; one GPU of each of two; three servers, whose GPUs are numbered in one list.
            "one-server": at("both"), "one-server-unix": at("both", "unix"), "two-servers": f"{at('first')},{at('second')}",
            "two-servers-mixed": f"{at('first', 'unix')},{at('second')}", "three-servers": f"{at('both')},{at('first')},{at('second', 'unix')}",
        }
        yield from several_programs(folder, native, client, far, lists)
        yield from several_cases(client, far, at)
        if importlib.util.find_spec("torch"):
            steps = list(torch_steps().STEPS_OF_TWO)
            found, _, _ = torch_run([], native, steps, 180)
            yield "torch-native", found
            for name in ("one-server", "one-server-unix", "two-servers", "two-servers-mixed"):
                result = torch_compared(client, far, lists[name], steps, found, f"several-{name}")
                if result["not_equal"]:
                    failed(f"remoting-several torch {name}", f"not equal: {result['not_equal']}", json.dumps(result, indent=1))
                yield f"torch-{name}", result
        else:
            skipped("remoting-several torch", "this Python has no torch")
        # The last, since it kills a server.
        env = dict(client, RGAPS_TEST_SERVER=str(processes["second"].pid))
        options = ["--servers", "--gpu", "--match", "server_that_dies"]
        yield "cases-dies", remoting_cases("remoting-several cases dies", far, f"{at('both')},{at('second')}", options, env, 120)


def several_programs(folder, native, client, far, lists):
    """Programs that behave alike on the GPUs of this host and on those of one server; and copies between all GPUs of each list."""
    saved, groups = Path(folder) / "native-several.json", "peer/,device/,threads/,driver/"
    suite = [sys.executable, HERE / "remote/run.py", "--programs", HERE / "remote", "--match", groups, "--save", saved]
    yield "groups-native", document("remoting-several groups native", run("remoting-several groups native", suite, 120, native, accept=(0, 1)))
    for way in ("one-server", "one-server-unix"):
        options = ["--gpu", "--match", groups, "--compare", saved]
        yield f"groups-{way}", remoting_cases(f"remoting-several groups {way}", far, lists[way], options, client, 120)
    copies = [HERE / "remote/peers", 64 << 10 if quick else 64 << 20, 5]
    yield "peers-native", timed("remoting-several peers native", copies, native)
    for way, on in lists.items():
        yield f"peers-{way}", timed(f"remoting-several peers {way}", [*gpu_run(far, on), *copies], client)


def several_cases(client, far, at):
    """The programs that use several servers: GPUs 0 and 1 of one, and one of another."""
    lists = {"tcp": f"{at('both')},{at('second')}", "mixed": f"{at('both', 'unix')},{at('first')}", "one-gpu": f"{at('both')},{at('second', gpu=':0')}"}
    for way, on in lists.items():
        yield f"cases-{way}", remoting_cases(f"remoting-several cases {way}", far, on, ["--servers", "--gpu"], client, 180)


def doctor(env, _folder):
    out = run("doctor", [HERE / "bin/rgaps", "doctor", "--handover", "--json"], 120, env)
    yield "doctor", document("doctor", out)


def main():
    global out_folder, quick, matches
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer messages and kills")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    parser.add_argument("--match", default="", metavar="TEXT,...", help="only those with a TEXT in their name, of all sections but doctor")
    arguments = parser.parse_args()
    quick, matches = arguments.quick, arguments.match.split(",")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    wanted = [section for section in arguments.only.split(",") if section]
    wrong = [section for section in wanted if section not in SECTIONS]
    if wrong or not wanted:
        parser.error(f"--only: sections are {', '.join(SECTIONS)}; not {', '.join(wrong) or 'none'}")
    out_folder = Path(os.environ.get("OUT") or "gpu-check-results").resolve()
    out_folder.mkdir(parents=True, exist_ok=True)
    report.update(
        machine=machine(), revision=(HERE / "revision").read_text().strip(), quick=quick, sections=wanted, seconds={}
    )
    save("report", report)
    with tempfile.TemporaryDirectory() as folder:
        env = dict(
            os.environ,
            PATH=f"{HERE / 'bin'}:{os.environ['PATH']}",
            RGAPS_DAEMON=str(HERE / "bin/rgapsd"),
            RGAPS_SOCKET=f"{folder}/rgaps.sock",
            RGAPS_IDLE_EXIT_MS="2000",
            RGAPS_TEST_GPU="1",
            RUST_BACKTRACE="0",
        )
        for section in wanted:
            found = report[section] = {}
            begun = time.monotonic()
            try:
                for name, value in globals()[section.replace("-", "_")](env, folder):
                    found[name] = value
                    save(f"{section}-{name}", value)
                    save("report", report)
            except Exception as error:  # the other sections still run, and the failure is told
                failed(section, repr(error))
            report["seconds"][section] = round(time.monotonic() - begun, 1)
            if not found:
                failed(section, "found nothing")
    report["finished"] = True
    report["ok"] = not report["failures"]
    save("report", report)
    print(json.dumps(report, indent=1))
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
