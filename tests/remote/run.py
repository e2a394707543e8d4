#!/usr/bin/env python3
"""Runs the CUDA programs of tests/remote, compiled by build.sh, on this machine's GPU or remotely, and compares.

  run.py --programs FOLDER                                    natively
  run.py --programs FOLDER --rgaps PROGRAM --libraries FOLDER --on ADDRESS      on a server
  ... --compare FILE                                          outputs and exit codes must be those of a run before (--save FILE)

The last line is JSON: {programs, calls, round_trips, bytes, wrong, failed}. Each case is a process of its own. Exits 0 only if
nothing is wrong or failed.
"""
import argparse, concurrent.futures, json, os, pathlib, subprocess, sys, tempfile

# Cases that a GPU and the test driver, or a GPU near and far, may answer differently; see docs/reference/gpu-remoting.md.
DIFFERENT = {"host/pointers_to_pinned_memory", "blas/statuses_of_wrong_calls"}
GROUPS = ["device", "memory", "copy", "rows", "array", "stream", "launch", "symbol", "error", "host", "threads", "kernels", "driver", "callback", "graph", "nodes", "managed", "pool", "peer"]
# Programs that call libraries above the runtime.
MATH = ["blas", "math"]
# Programs whose kernels the test driver cannot run.
GPU = ["texture"]
TIMEOUT_S = 60


def listed(folder, math, only, gpu):
    env = {key: value for key, value in os.environ.items() if not key.startswith("RGAPS_GPU")}
    # Listing makes no call of CUDA, but the loader wants a runtime.
    for group in [only] if only else [*GROUPS, *(MATH if math else []), *(GPU if gpu else [])]:
        out = subprocess.run([folder / group], check=True, capture_output=True, text=True, env=env).stdout
        for case in out.split():
            if math == "standins" or not case.startswith("standin_"):
                yield group, case


def run_case(arguments, group, case, statistics):
    env = dict(os.environ, RGAPS_GPU_STATISTICS=str(statistics))
    prefix = []
    if arguments.on:
        prefix = [*arguments.prefix.split(), arguments.rgaps, "gpu", "run", "--on", arguments.on, "--libraries", arguments.libraries, "--"]
    try:
        done = subprocess.run([*prefix, arguments.programs / group, case], capture_output=True, text=True, env=env, timeout=TIMEOUT_S)
        return {"code": done.returncode, "out": done.stdout, "err": done.stderr}
    except subprocess.TimeoutExpired:
        return {"code": "timeout", "out": "", "err": f"not done in {TIMEOUT_S} s"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=pathlib.Path, required=True)
    parser.add_argument("--rgaps")
    parser.add_argument("--libraries", type=pathlib.Path)
    parser.add_argument("--on")
    parser.add_argument("--prefix", default="", help="words before the command, such as those that enter a namespace")
    parser.add_argument("--match", default="", metavar="TEXT,...", help="only the cases with a TEXT in their name")
    parser.add_argument("--math", choices=["standins", "real"], help="programs that call cuBLAS and others, too; the standins of tests/remote/math do what real ones refuse")
    parser.add_argument("--gpu", action="store_true", help="the server has a GPU, not the test driver: also programs with kernels that only a GPU runs; they run natively in any case")
    parser.add_argument("--topics", action="store_true", help="only the programs that publish and receive on the server's host; gpu.topics there names t/**")
    parser.add_argument("--servers", action="store_true", help="only the programs that use several servers: --on names one with two GPUs, and a GPU of another")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--save", type=pathlib.Path)
    parser.add_argument("--compare", type=pathlib.Path)
    arguments = parser.parse_args()
    wanted = json.loads(arguments.compare.read_text()) if arguments.compare else {}
    only = "topics" if arguments.topics else "servers" if arguments.servers else None
    results, failed, wrong = {}, 0, 0
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        statistics = pathlib.Path(folder) / "statistics"
        runs = {
            f"{group}/{case}": pool.submit(run_case, arguments, group, case, statistics)
            for group, case in listed(arguments.programs, arguments.math, only, arguments.gpu or not arguments.on)
            if any(text in f"{group}/{case}" for text in arguments.match.split(","))
        }
        for name, run in runs.items():
            result = results[name] = run.result()
            if result["code"] != 0:
                failed += 1
                print(f"{name}: exit {result['code']}: {(result['out'] + result['err']).strip()}", file=sys.stderr)
            before = wanted.get(name)
            if before and name not in DIFFERENT and (before["code"], before["out"]) != (result["code"], result["out"]):
                wrong += 1
                print(f"{name}: differs: {before['out']!r} natively, {result['out']!r} remotely", file=sys.stderr)
        lines = [json.loads(line) for line in statistics.read_text().splitlines()] if statistics.exists() else []
        lines = [line for line in lines if line["at"] == "exit"]
    if arguments.save:
        arguments.save.write_text(json.dumps(results))
    total = lambda key: sum(line[key] for line in lines)
    print(json.dumps({
        "programs": len(results), "calls": total("calls"), "round_trips": total("round_trips"),
        "bytes": total("bytes_out") + total("bytes_in") + total("bytes_shared"), "wrong": wrong, "failed": failed,
    }))
    return bool(wrong or failed)


if __name__ == "__main__":
    sys.exit(main())
