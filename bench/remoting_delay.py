#!/usr/bin/env python3
"""CUDA programs on a GPU server behind a delay: what a round trip more costs, one JSON document.

  bench/remoting_delay.py [--build target/debug] [--programs target/remote] [--driver FILE]     here, on the test driver
  remoting_delay.py --build dist ... --on ADDRESS:PORT                                            on a server that runs

Each program runs through bench/delay.c, which adds half of a delay in each direction, so the delay is added to each round trip. (Netem does
the same where the kernel has it.) `direct` is without the relay. A program is timed by itself, with its copies, and verifies every
element; its round trips of one repetition are those of a run with more repetitions less those of one with one.
`way` is `batched`, or `one-by-one`: each call waits for its answer, as with GVirtuS.
"""
import argparse, json, os, pathlib, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DELAYS_US = [0, 20, 100, 500]
WAYS = {"batched": {}, "one-by-one": {"RGAPS_GPU_BLOCKING": "1", "RGAPS_GPU_STRIPES": "0"}}
# Small, since the test driver interprets kernels.
PROGRAMS = ["saxpy:256", "matmul:16"]
REPETITIONS = 10
TIMEOUT_S = 300


def started(words, env, ready):
    """A process, and what its first line says."""
    process = subprocess.Popen([str(word) for word in words], env=env, stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{words[0]} does not start")
    return process, ready(line)


def run(arguments, on, words, env):
    """The program's last line and what its session counted."""
    with tempfile.TemporaryDirectory() as folder:
        statistics = pathlib.Path(folder) / "statistics"
        env = dict(env, RGAPS_GPU_STATISTICS=str(statistics))
        command = [arguments.rgaps, "gpu", "run", "--libraries", arguments.libraries, "--on", on, "--", *words]
        done = subprocess.run([str(word) for word in command], env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, words))}: exit {done.returncode}: {done.stdout + done.stderr}")
        result = json.loads(done.stdout.strip().splitlines()[-1])
        if result.get("wrong"):
            raise SystemExit(f"{' '.join(map(str, words))}: wrong elements: {result}")
        return result, json.loads(statistics.read_text().splitlines()[-1])


def measured(arguments, on, program, way):
    """Milliseconds of the fastest repetition, and what one repetition counts."""
    name, size = program.split(":")
    env = dict(os.environ, LD_LIBRARY_PATH=str(arguments.libraries), **WAYS[way])
    env.pop("RGAPS_CUDA_LIBRARY", None)
    words = [arguments.programs / name, size]
    _, once = run(arguments, on, [*words, 1], env)
    result, more = run(arguments, on, [*words, REPETITIONS], env)
    counts = {key: (more[key] - once[key]) / (REPETITIONS - 1) for key in ("calls", "round_trips", "writes", "reads")}
    return {"ms": result["ms"], **counts}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "target/debug", help="the folder of rgaps and of gpu-libs")
    parser.add_argument("--rgaps", type=pathlib.Path)
    parser.add_argument("--libraries", type=pathlib.Path)
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT / "target/remote")
    parser.add_argument("--driver", type=pathlib.Path, help="the driver of the server that is started; default: the test driver")
    parser.add_argument("--on", metavar="ADDRESS:PORT", help="a server that runs, instead of one that is started")
    parser.add_argument("--relay", type=pathlib.Path, help="bench/delay.c, compiled; without it this compiles it")
    parser.add_argument("--program", action="append", metavar="NAME:SIZE", help=f"default: {' '.join(PROGRAMS)}")
    parser.add_argument("--delays", default=",".join(map(str, DELAYS_US)), help="microseconds")
    arguments = parser.parse_args()
    arguments.rgaps = arguments.rgaps or arguments.build / "rgaps"
    arguments.libraries = (arguments.libraries or arguments.build / "gpu-libs").resolve()
    processes, rows = [], []
    with tempfile.TemporaryDirectory() as folder:
        relay = arguments.relay
        if relay is None:
            relay = pathlib.Path(folder) / "delay"
            subprocess.run(["cc", "-O2", "-pthread", "-o", relay, ROOT / "bench/delay.c"], check=True)
        try:
            on = arguments.on
            if on is None:
                driver = arguments.driver or arguments.build / "librgaps_test_driver.so"
                env = dict(os.environ, RGAPS_CUDA_LIBRARY=str(driver.resolve()))
                words = [arguments.rgaps, "gpu", "serve", "--json", "--listen", "127.0.0.1:0"]
                server, on = started(words, env, lambda line: json.loads(line)["listen"][0])
                processes.append(server)
            address, port = on.rsplit(":", 1)
            endpoints = {"direct": on}
            for delay in map(float, arguments.delays.split(",")):
                process, at = started([relay, address, port, delay / 2], None, lambda line: f"127.0.0.1:{line.strip()}")
                processes.append(process)
                endpoints[delay] = at
            for program in arguments.program or PROGRAMS:
                for way in WAYS:
                    for delay, at in endpoints.items():
                        row = {"program": program, "way": way, "delay_us": delay, **measured(arguments, at, program, way)}
                        print(json.dumps(row), file=sys.stderr, flush=True)
                        rows.append(row)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    print(json.dumps({"repetitions": REPETITIONS, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
