#!/usr/bin/env python3
"""A trainer's weights to several inference processes of one host: rgaps.weights beside what people use now.

Usage: bench/weights.py [--mib 64] [--readers 4] [--rounds 5] [--ways rgaps,file,mmap,gloo,socket]

    rgaps   WeightsPublisher.publish; each reader waits for the version and reads views of the one copy
    file    torch.save to a file on /dev/shm, a new one each round; each reader torch.load, which copies
    mmap    the same with torch.load(mmap=True): readers share the file's pages
    gloo    torch.distributed.broadcast of each tensor, every reader in the group
    socket  a Unix socket to each reader, written in turn: the raw bytes of each tensor

In each round the ways take turns, in an order that rotates. A round's time is from the call until every reader has all
tensors. After it, outside the time, every reader compares every byte with what the trainer sent. Memory is the sum of the
readers' PSS (/proc/PID/smaps_rollup) while all hold the version, less that of the same processes before the first one. PSS gives
each process its share of a page: the trainer's share of rgaps's copy, one in readers + 1, is not among the readers'. Prints progress
on standard error, one JSON document as the last line; exits 1 if a byte was wrong or a way failed. Needs torch.
"""
import argparse, ctypes, datetime, json, multiprocessing, os, platform, socket, statistics, sys, tempfile, time
from pathlib import Path

import torch

import rgaps
from rgaps.weights import WeightsPublisher, WeightsSubscriber

WAYS = ["rgaps", "file", "mmap", "gloo", "socket"]
LIMIT_SECONDS = 120


def shapes(mib):
    """A model of 16 layers and one that is small: its tensors come to `mib` MiB of float32."""
    rows = mib * (1 << 20) // (16 * 4 * 1024)
    return {**{f"layer.{n}.weight": (rows, 1024) for n in range(16)}, "head.bias": (17,)}


def state(mib, number):
    """The tensors of one round, every element of its own and of that round."""
    made = {}
    for at, (name, shape) in enumerate(shapes(mib).items()):
        generator = torch.Generator().manual_seed(1000 * number + at)
        made[name] = torch.randint(-(2**31), 2**31 - 1, shape, generator=generator, dtype=torch.int32).view(torch.float32)
    return made


def wrong(found, mib, number):
    """How many tensors are not what was sent, byte for byte."""
    wanted = state(mib, number)
    bad = set(wanted) ^ set(found)
    return len(bad) + sum(
        not torch.equal(found[name].view(torch.int32), tensor.view(torch.int32)) for name, tensor in wanted.items() if name in found
    )


def pss_kib():
    """This process's memory, without what the allocator keeps of freed tensors (such as those of the checks)."""
    ctypes.CDLL(None).malloc_trim(0)
    text = Path("/proc/self/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


def read_all(connection, tensor):
    view = memoryview(tensor.view(-1).view(torch.uint8).numpy())
    while view:
        view = view[connection.recv_into(view) or sys.exit("the trainer closed its socket") :]


class Reader:
    """One inference process: a way's tensors, ready to be used."""

    def __init__(self, way, rank, options):
        self.way, self.mib, self.folder = way, options.mib, options.folder
        if way == "rgaps":
            self.weights = WeightsSubscriber(rgaps.Node(f"reader-{rank}"), "bench/weights")
        elif way == "gloo":
            join(rank + 1, options)
        elif way == "socket":
            self.connection = socket.socket(socket.AF_UNIX)
            self.connection.connect(f"{options.folder}/socket-{rank}")

    def take(self, number):
        if self.way == "rgaps":
            return self.weights.wait(number, timeout=LIMIT_SECONDS)
        if self.way in ("file", "mmap"):
            return torch.load(f"{self.folder}/{self.way}-{number}.pt", weights_only=True, mmap=self.way == "mmap")
        found = {name: torch.empty(shape) for name, shape in shapes(self.mib).items()}
        for tensor in found.values():
            if self.way == "gloo":
                torch.distributed.broadcast(tensor, 0)
            else:
                read_all(self.connection, tensor)
        return found


def join(rank, options):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{options.folder}/group", rank=rank, world_size=options.readers + 1,
        timeout=datetime.timedelta(seconds=LIMIT_SECONDS),
    )


def read(way, rank, options, pipe):
    torch.set_num_threads(1)
    # What the check and the reads load is not the weights' memory: once before the measurement.
    wrong(state(1, 0), 1, 0)
    reader = Reader(way, rank, options)
    held = None
    pipe.send(("ready", None))
    while (asked := pipe.recv())[0] != "end":
        what, number = asked
        if what == "take":
            held = None
            held = reader.take(number)
            # Every page is there and read once: a view that nobody has touched would cost nothing yet.
            sums = sum(int(tensor.view(torch.int32).sum()) for tensor in held.values())
            pipe.send(("took", sums))
        elif what == "memory":
            pipe.send(("memory", pss_kib()))
        elif what == "check":
            pipe.send(("checked", wrong(held, options.mib, number)))
    pipe.send(("ended", None))


class Trainer:
    """The publishing side of a way, and its readers."""

    def __init__(self, way, options):
        self.way, self.options = way, options
        context = multiprocessing.get_context("spawn")
        listeners = []
        if way == "socket":
            for rank in range(options.readers):
                listeners.append(socket.socket(socket.AF_UNIX))
                listeners[-1].bind(f"{options.folder}/socket-{rank}")
                listeners[-1].listen()
        self.pipes, self.processes = [], []
        for rank in range(options.readers):
            ours, theirs = context.Pipe()
            self.pipes.append(ours)
            self.processes.append(context.Process(target=read, args=(way, rank, options, theirs), daemon=True))
            self.processes[-1].start()
        if way == "rgaps":
            self.weights = WeightsPublisher(rgaps.Node("trainer"), "bench/weights")
        elif way == "gloo":
            join(0, options)
        self.connections = [each.accept()[0] for each in listeners]
        self.answers("ready")
        self.before = 0
        if way == "rgaps":
            assert self.weights.wait_for_subscribers(options.readers, LIMIT_SECONDS)

    def ask(self, what, number=0):
        for pipe in self.pipes:
            pipe.send((what, number))

    def answers(self, what):
        found = []
        for pipe in self.pipes:
            if not pipe.poll(LIMIT_SECONDS):
                raise TimeoutError(f"{self.way}: a reader did not answer ({what})")
            word, value = pipe.recv()
            assert word == what, (word, what)
            found.append(value)
        return found

    def round(self, sent, number):
        begun = time.perf_counter()
        path = Path(self.options.folder, f"{self.way}-{number}.pt")
        if self.way in ("file", "mmap"):  # readers may read it when it is whole
            torch.save(sent, path)
            self.ask("take", number)
        else:
            self.ask("take", number)
            self.publish(sent, number)
        sums = self.answers("took")
        seconds = time.perf_counter() - begun
        memory = self.memory() - self.before
        self.ask("check", number)
        bad = sum(self.answers("checked")) + (len(set(sums)) - 1)
        path.unlink(missing_ok=True)
        return seconds, memory, bad

    def memory(self):
        self.ask("memory")
        return sum(self.answers("memory"))

    def publish(self, sent, number):
        if self.way == "rgaps":
            self.weights.publish(sent, version=number)
        elif self.way == "gloo":
            for tensor in sent.values():
                torch.distributed.broadcast(tensor, 0)
        else:
            for connection in self.connections:
                for tensor in sent.values():
                    connection.sendall(memoryview(tensor.view(-1).view(torch.uint8).numpy()))

    def end(self):
        self.ask("end")
        self.answers("ended")
        for process in self.processes:
            process.join(LIMIT_SECONDS)


def measure(options, ways):
    trainers = {way: Trainer(way, options) for way in ways}
    # When all processes run: the libraries that they share count less in each, the more they are.
    for trainer in trainers.values():
        trainer.before = trainer.memory()
    rows = {way: [] for way in ways}
    # The first round warms up, and does not count.
    for number in range(options.rounds + 1):
        sent = state(options.mib, number)
        turn = number % len(ways)
        for way in ways[turn:] + ways[:turn]:
            rows[way].append(trainers[way].round(sent, number))
            seconds, memory, bad = rows[way][-1]
            print(f"round {number}: {way:7} {seconds * 1e3:8.1f} ms, {memory / 1024:7.1f} MiB in all readers, {bad} wrong",
                  file=sys.stderr, flush=True)
    for trainer in trainers.values():
        trainer.end()
    return {
        way: {
            "median_ms": round(statistics.median(each[0] for each in found[1:]) * 1e3, 2),
            "min_ms": round(min(each[0] for each in found[1:]) * 1e3, 2),
            "max_ms": round(max(each[0] for each in found[1:]) * 1e3, 2),
            "readers_pss_mib": round(statistics.median(each[1] for each in found[1:]) / 1024, 1),
            "wrong_tensors": sum(each[2] for each in found),
        }
        for way, found in rows.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", default=",".join(WAYS))
    options = parser.parse_args()
    ways = options.ways.split(",")
    if unknown := set(ways) - set(WAYS):
        parser.error(f"unknown ways: {sorted(unknown)}")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="rgaps-weights-") as folder:
        options.folder = folder
        os.environ["RGAPS_SOCKET"] = f"{folder}/rgaps.sock"
        os.environ["RGAPS_POOL__HOST__CAP"] = f"{4 * options.mib + 64}MiB"
        try:
            found = measure(options, ways)
        finally:
            if "rgaps" in ways:
                with rgaps.Node("end") as node:
                    node.stop_daemon()
    bad = sum(each["wrong_tensors"] for each in found.values())
    print(json.dumps({
        "tool": "weights", "ok": bad == 0, "mib": options.mib, "readers": options.readers, "rounds": options.rounds,
        "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2), "kernel": platform.release(), "torch": torch.__version__,
        "rgaps": rgaps.__version__, "ways": found,
    }))
    return 0 if bad == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
