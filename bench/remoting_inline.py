#!/usr/bin/env python3
"""Copies with several values of RGAPS_GPU_INLINE, up to which size bytes travel inside the batch of calls: one JSON document.

  bench/remoting_inline.py [--build target/debug] [--programs target/remote]     here, on the test driver, over TCP and a Unix socket
  remoting_inline.py --build dist ... --on NAME=ADDRESS [--on ...]               on servers that run

GVirtuS's thesis sweeps the size from which its RDMA communicator registers a buffer, and takes 5 KiB. Here larger bytes go through memory that both
ends share (Unix socket), or are written from where they lie (TCP); smaller ones are copied into the batch, which goes out in one write. `transfers` copies
each size in and out, in ordinary and in pinned memory, and verifies every byte; a value is the least of the rounds, which take turns.
"""
import argparse, json, os, pathlib, sys, tempfile

from remoting_delay import ROOT, run, started

THRESHOLDS = [0, 1 << 10, 5 << 10, 16 << 10, 64 << 10, 256 << 10]
KEYS = ["in_us", "out_us", "pinned_in_us", "pinned_out_us"]


def least(runs):
    """Of each size the least time of each kind."""
    sizes = [row["bytes"] for row in runs[0]["sizes"]]
    return [{"bytes": size, **{key: min(one["sizes"][at][key] for one in runs) for key in KEYS}} for at, size in enumerate(sizes)]


def best(rows):
    """For each way, kind and size the threshold that was fastest."""
    found = {}
    for row in rows:
        for size in row["sizes"]:
            for key in KEYS:
                place = found.setdefault((row["way"], key, size["bytes"]), (size[key], row["inline_bytes"]))
                if size[key] < place[0]:
                    found[row["way"], key, size["bytes"]] = (size[key], row["inline_bytes"])
    return [{"way": way, "kind": key, "bytes": size, "us": us, "inline_bytes": threshold} for (way, key, size), (us, threshold) in found.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "target/debug", help="the folder of rgaps and of gpu-libs")
    parser.add_argument("--rgaps", type=pathlib.Path)
    parser.add_argument("--libraries", type=pathlib.Path)
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT / "target/remote")
    parser.add_argument("--on", action="append", metavar="NAME=ADDRESS", help="a server that runs, instead of one that is started")
    parser.add_argument("--largest", type=int, default=512 << 10, help="bytes of the largest copy")
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    arguments.rgaps = arguments.rgaps or arguments.build / "rgaps"
    arguments.libraries = (arguments.libraries or arguments.build / "gpu-libs").resolve()
    server, runs = None, {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            ways = dict(way.split("=", 1) for way in arguments.on or [])
            if not ways:
                unix = f"unix:{folder}/gpu.sock"
                env = dict(os.environ, RGAPS_CUDA_LIBRARY=str((arguments.build / "librgaps_test_driver.so").resolve()))
                words = [arguments.rgaps, "gpu", "serve", "--json", "--listen", "127.0.0.1:0", "--listen", unix]
                server, tcp = started(words, env, lambda line: json.loads(line)["listen"][0])
                ways = {"tcp": tcp, "unix": unix}
            words = [arguments.programs / "transfers", arguments.largest, arguments.repetitions]
            for turn in range(arguments.rounds):
                for threshold in THRESHOLDS:
                    for way, on in ways.items():
                        env = dict(os.environ, LD_LIBRARY_PATH=str(arguments.libraries), RGAPS_GPU_INLINE=str(threshold))
                        env.pop("RGAPS_CUDA_LIBRARY", None)
                        result, counted = run(arguments, on, words, env)
                        runs.setdefault((way, threshold), []).append((result, counted))
                        print(f"round {turn}: {way}, {threshold} bytes inline", file=sys.stderr, flush=True)
        finally:
            if server:
                server.kill()
                server.wait()
    rows = [
        {"way": way, "inline_bytes": threshold, "writes": all[0][1]["writes"], "round_trips": all[0][1]["round_trips"], "sizes": least([one for one, _ in all])}
        for (way, threshold), all in runs.items()
    ]
    print(json.dumps({"repetitions": arguments.repetitions, "rounds": arguments.rounds, "rows": rows, "best": best(rows)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
