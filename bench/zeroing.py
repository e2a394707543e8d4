#!/usr/bin/env python3
"""How fast a processor zeroes pinned host memory, as a ring does that polls memory for what comes: JSON.

Usage: zeroing.py [--repeats 9]

GB/s (10^9 bytes) by libc's memset of one thread, and of one for each core, on memory that CUDA has pinned where there is a GPU
(`pinned`); medians. Beside it, what a link of 400 Gb/s brings: 50 GB/s.
"""
import argparse, ctypes, json, os, statistics, threading, time

MIB = 1 << 20
SIZES_MIB = [1, 16, 64, 1024]
LINK_GB_S = 50.0


def pinned(size):
    try:
        import torch

        if torch.cuda.is_available():
            return torch.empty(size, dtype=torch.uint8, pin_memory=True), True
    except ImportError:
        pass
    return ctypes.create_string_buffer(size), False


def address(memory):
    return memory.data_ptr() if hasattr(memory, "data_ptr") else ctypes.addressof(memory)


def zero(memory, size, threads, repeats):
    """Median seconds. Threads begin together, each with its part."""
    libc = ctypes.CDLL(None)
    libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    start, part = address(memory), size // threads
    took = []
    for repeat in range(repeats + 2):
        gate = threading.Barrier(threads + 1)

        def work(at):
            gate.wait()
            libc.memset(start + at * part, 0, part)
            gate.wait()

        workers = [threading.Thread(target=work, args=(at,)) for at in range(threads)]
        for worker in workers:
            worker.start()
        gate.wait()
        begun = time.perf_counter()
        gate.wait()
        took.append(time.perf_counter() - begun)
        for worker in workers:
            worker.join()
    if any(ctypes.string_at(start + at, 1) != b"\0" for at in range(0, size, 4096)):
        raise SystemExit("it was not zeroed")
    return statistics.median(took[2:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    cpu = [l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")]
    rows = []
    for mib in SIZES_MIB:
        size = mib * MIB
        memory, is_pinned = pinned(size)
        for threads in sorted({1, os.cpu_count()}):
            gb_s = size / zero(memory, size, threads, repeats) / 1e9
            rows.append({"mib": mib, "threads": threads, "gb_s": round(gb_s, 2), "of_400_gbit_link": round(gb_s / LINK_GB_S, 3)})
    print(json.dumps({"tool": "zeroing", "pinned": is_pinned, "link_gb_s": LINK_GB_S, "rows": rows,
                      "machine": {"cpu": cpu[0] if cpu else "", "cores": os.cpu_count(), "kernel": os.uname().release}}, indent=1))


if __name__ == "__main__":
    main()
