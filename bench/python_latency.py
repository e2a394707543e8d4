#!/usr/bin/env python3
"""From the publish call to the handler, between two Python processes; prints one JSON document.

Usage: bench/python_latency.py [--domain host|cuda] [--sizes 4096,...] [--messages N] [--wait poll|block]

Wants rgaps and, for --domain cuda, torch. A message's words are all its number; the subscriber compares each of
them when it has taken the time. The bytes are there before the publish call. Each size is measured

- at two paces: the publisher is `awake` until it sends, or `asleep` as one is between frames, so that what it runs
  next is in no cache, and
- on a GPU in four states: `there`, published with stream=-1, so that no stream is asked; `idle`, on the stream that
  wrote the message, whose work is done; `in_flight`, on that stream with a kernel of 1 ms on it; `beside`, with
  that kernel and stream=-1, so that the machine is as in flight and rgaps does what it does in `there`.

Beside each message, in the same state: the `floor`, a number in shared memory that is polled, or read from a pipe;
and on a stream the `pattern`, the same number behind the bare calls of the driver that order takes, made by ctypes: is
the stream idle, and if not, write a number behind its work. `growth` has the differences of the medians: what rgaps
adds with a kernel in flight is `in_flight`, which `rgaps bench latency` calls `grew_us`. Exits 0 only if nothing was
lost or corrupt.
"""
import argparse, ctypes, json, mmap, os, platform, struct, subprocess, sys, tempfile, time

TOPIC = "bench/python-latency"
LIMIT = 60.0
#: How long the publisher is awake, or asleep, before it sends.
AWAKE, ASLEEP = 0.0001, 0.0005
PACES = ["awake", "asleep"]
STATES = ["there", "idle", "in_flight", "beside"]
#: Messages and hops before those that are timed.
WARM = 5
KERNEL_MS = 1
WORD = struct.Struct("=Q")
#: Words of the board: hops so far, when the last one was sent, what the subscriber has answered, and when publish was called.
HOPS, SENT, ANSWERS, CALLED = 0, 8, 16, 24


def times(values_ns):
    values = sorted(values_ns)
    rank = lambda part: round(values[min(len(values) - 1, int(part * len(values)))] / 1000, 3)
    return {"p50_us": rank(0.5), "p99_us": rank(0.99), "min_us": rank(0), "max_us": rank(1)}


def until(board, word, number, what, alive=lambda: True):
    """Polls a word of the board."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end and alive():
        for _ in range(1000):
            if WORD.unpack_from(board, word)[0] >= number:
                return
    raise TimeoutError(f"no {what} came")


class Words:
    """Arrays of 64-bit words on the host or a GPU."""

    def __init__(self, domain):
        self.on_gpu = domain != "host"
        if self.on_gpu:
            import torch

            self.torch = torch
            self.stream = torch.cuda.Stream()
            torch.cuda.set_stream(self.stream)
            # How many clocks a millisecond has, as `_sleep` counts them.
            clocks = 20_000_000
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(1000)
            begin.record()
            torch.cuda._sleep(clocks)
            end.record()
            end.synchronize()
            self.clocks = int(KERNEL_MS * clocks / begin.elapsed_time(end))

    def fill(self, loan, number):
        if self.on_gpu:
            view = self.torch.from_dlpack(loan)
            view.fill_(number)
            self.stream.synchronize()
        else:
            import numpy

            view = numpy.asarray(loan)
            view[...] = number
        del view

    def wrong(self, sample, number):
        if self.on_gpu:
            return int((self.torch.from_dlpack(sample) != number).sum().item())
        import numpy

        return int((numpy.asarray(sample) != number).sum())

    def keep_busy(self):
        self.torch.cuda._sleep(self.clocks)

    def finish(self):
        if self.on_gpu:
            self.stream.synchronize()


class Bare:
    """The calls of CUDA's driver that telling of work in flight takes, without rgaps."""

    NOT_READY = 600

    def __init__(self, words):
        # The one that rgaps loads.
        driver = ctypes.CDLL(os.environ.get("RGAPS_CUDA_LIBRARY", "libcuda.so.1"))
        self.query, self.write = driver.cuStreamQuery, driver.cuStreamWriteValue64_v2
        self.query.argtypes = [ctypes.c_void_p]
        self.write.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint]
        # Pinned memory has one address, on the host and on GPUs.
        self.number = words.torch.zeros(1, dtype=words.torch.int64, pin_memory=True)
        self.address, self.stream = self.number.data_ptr(), words.stream.cuda_stream
        self.begin()

    def begin(self):
        self.queries, self.writes = [], []

    def point(self, number):
        begun = time.monotonic_ns()
        code = self.query(self.stream)
        asked = time.monotonic_ns()
        self.queries.append(asked - begun)
        if code == self.NOT_READY:
            code = self.write(self.stream, self.address, number, 0)
            self.writes.append(time.monotonic_ns() - asked)
        if code:
            sys.exit(f"the driver says {code}")

    def times(self):
        kinds = {"query": self.queries[WARM:], "write": self.writes[WARM:]}
        return {kind: times(values) for kind, values in kinds.items() if values}


def receive(sub, wait):
    if wait == "block":
        return sub.recv(LIMIT)
    end = time.monotonic() + LIMIT
    while (sample := sub.try_recv()) is None:
        if time.monotonic() > end:
            raise TimeoutError("no message came")
    return sample


def order():
    """The next of a subscriber's orders, as a line of JSON; none when there are no more."""
    line = b""
    while not line.endswith(b"\n"):
        read = sys.stdin.buffer.raw.read(1)
        if not read:
            return None
        line += read
    return json.loads(line)


def subscriber(arguments):
    import rgaps

    words = Words(arguments.domain)
    board = mmap.mmap(arguments.board, mmap.PAGESIZE)
    hops = answers = 0
    while (run := order()) is not None:
        found = {"messages": [], "calls": [], "hops": [[] for _ in range(run["hops"])], "lost": 0, "corrupt": 0}
        with rgaps.subscriber(TOPIC, reliable=True) as sub:
            print("ready", flush=True)
            for number in range(1, run["messages"] + 1):
                for kind in found["hops"]:
                    hops += 1
                    if arguments.wait == "poll":
                        until(board, HOPS, hops, "number")
                    else:
                        sys.stdin.buffer.raw.read(1)
                    now = time.monotonic_ns()
                    kind.append(now - WORD.unpack_from(board, SENT)[0])
                    answers += 1
                    WORD.pack_into(board, ANSWERS, answers)
                with receive(sub, arguments.wait) as sample:
                    now = time.monotonic_ns()
                    found["messages"].append(now - sample.publish_ns)
                    found["calls"].append(now - WORD.unpack_from(board, CALLED)[0])
                    found["lost"] += sample.missed
                    found["corrupt"] += words.wrong(sample, number) > 0
                answers += 1
                WORD.pack_into(board, ANSWERS, answers)
        print(json.dumps(found), flush=True)


class Partner:
    """The subscriber's process, and what both see."""

    def __init__(self, arguments):
        self.wait = arguments.wait
        self.hops = self.answers = 0
        self.file = tempfile.TemporaryFile()
        self.file.truncate(mmap.PAGESIZE)
        self.board = mmap.mmap(self.file.fileno(), mmap.PAGESIZE)
        command = [sys.executable, __file__, "--subscriber", "--domain", arguments.domain, "--wait", arguments.wait]
        command += ["--board", str(self.file.fileno())]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "pass_fds": [self.file.fileno()]}
        self.child = subprocess.Popen(command, text=True, **pipes)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.child.kill()
        self.child.wait()
        self.file.close()

    def begin(self, messages, hops):
        """Has it subscribe."""
        os.write(self.child.stdin.fileno(), json.dumps({"messages": messages, "hops": hops}).encode() + b"\n")
        if self.child.stdout.readline().strip() != "ready":
            sys.exit("the subscriber has ended")

    def found(self):
        return json.loads(self.child.stdout.readline() or sys.exit("the subscriber has ended"))

    def send(self):
        self.hops += 1
        if self.wait == "poll":
            WORD.pack_into(self.board, HOPS, self.hops)
        else:
            os.write(self.child.stdin.fileno(), b"x")

    def heard(self):
        self.answers += 1
        until(self.board, ANSWERS, self.answers, "answer", lambda: self.child.poll() is None)


class Run:
    """A size at a pace in a state."""

    def __init__(self, partner, words, bare, size, messages, pace, state):
        self.partner, self.words, self.size, self.pace, self.state = partner, words, size, pace, state
        self.messages = messages + WARM
        self.bare = bare if state in ("idle", "in_flight") else None
        self.publish = []

    def row(self, domain):
        import rgaps

        if self.bare:
            self.bare.begin()
        self.partner.begin(self.messages, 2 if self.bare else 1)
        with rgaps.publisher(TOPIC, domain=domain, history=1, deadline=LIMIT) as pub:
            if not pub.wait_for_subscribers(1, LIMIT):
                sys.exit("no subscriber came")
            for number in range(1, self.messages + 1):
                self.exchange(pub, number)
            return self.told(self.partner.found())

    def exchange(self, pub, number):
        loan = pub.loan((self.size // 8,), "int64")
        self.words.fill(loan, number)
        self.hop(number, None)
        if self.bare:
            self.hop(number, self.bare)
        self.prepare()
        stream = -1 if self.state in ("there", "beside") else self.words.stream
        begun = time.monotonic_ns()
        WORD.pack_into(self.partner.board, CALLED, begun)
        loan.publish(stream=stream)
        self.publish.append(time.monotonic_ns() - begun)
        self.partner.heard()

    def hop(self, number, bare):
        self.prepare()
        WORD.pack_into(self.partner.board, SENT, time.monotonic_ns())
        if bare:
            bare.point(number)
        self.partner.send()
        self.partner.heard()

    def prepare(self):
        """Comes to the state in which something is sent, at this run's pace."""
        self.words.finish()
        if self.pace == "asleep":
            time.sleep(ASLEEP)
        else:
            end = time.monotonic() + AWAKE
            while time.monotonic() < end:
                pass
        if self.state in ("in_flight", "beside"):
            self.words.keep_busy()

    def told(self, found):
        in_flight = self.state in ("in_flight", "beside")
        row = {"size": self.size, "pace": self.pace, "state": self.state, "messages": self.messages - WARM}
        row |= {"kernel_in_flight_us": 1000 * KERNEL_MS if in_flight else 0}
        row |= times(found["messages"][WARM:]) | {"from_the_call": times(found["calls"][WARM:])}
        row |= {"publish": times(self.publish[WARM:]), "floor": times(found["hops"][0][WARM:])}
        if self.bare:
            row |= {"pattern": times(found["hops"][1][WARM:]), "driver": self.bare.times()}
        return row | {"lost": found["lost"], "corrupt": found["corrupt"]}


def growth(rows):
    """Of the rows of one size and pace, what comes with what: differences of medians, in microseconds."""
    of = {row["state"]: row for row in rows}
    less = lambda a, b: round(a["p50_us"] - b["p50_us"], 3)
    there, idle, in_flight, beside = (of[state] for state in STATES)
    return {
        # What Rust's `grew_us` is.
        "in_flight": less(in_flight, idle),
        "publish_in_flight": less(in_flight["publish"], idle["publish"]),
        # Asking the stream, and the point behind its work; the same two without rgaps.
        "idle_over_there": less(idle, there),
        "in_flight_over_beside": less(in_flight, beside),
        "pattern_idle_over_floor": less(idle["pattern"], idle["floor"]),
        "pattern_in_flight_over_floor": less(in_flight["pattern"], in_flight["floor"]),
        # The machine: the same work of rgaps's, and none of it, with and without the kernel.
        "beside_over_there": less(beside, there),
        "floor_in_flight": less(in_flight["floor"], idle["floor"]),
        "floor_beside": less(beside["floor"], there["floor"]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domain", default="host", choices=["host", "cuda"])
    parser.add_argument("--sizes", default="4096,4194304,1073741824", help="bytes, multiples of 8")
    parser.add_argument("--messages", type=int, default=500)
    parser.add_argument("--wait", default="poll", choices=["poll", "block"])
    parser.add_argument("--subscriber", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--board", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.subscriber:
        return subscriber(arguments)
    words = Words(arguments.domain)
    bare = Bare(words) if words.on_gpu else None
    rows, grown = [], []
    with Partner(arguments) as partner:
        for size in map(int, arguments.sizes.split(",")):
            # Large ones take long to write and to compare.
            messages = min(arguments.messages, max(10, (8 << 30) // size))
            for pace in PACES:
                states = STATES if words.on_gpu else STATES[:1]
                runs = [Run(partner, words, bare, size, messages, pace, state) for state in states]
                these = [run.row(arguments.domain) for run in runs]
                rows += these
                if words.on_gpu:
                    grown.append({"size": size, "pace": pace, "us": growth(these)})
    machine = {"cores": os.cpu_count(), "kernel": platform.release(), "load": round(os.getloadavg()[0], 2)}
    if words.on_gpu:
        machine["gpu"] = words.torch.cuda.get_device_name(0)
    report = {"domain": arguments.domain, "wait": arguments.wait, "python": platform.python_version()}
    report |= {"rows": rows, "growth": grown, "machine": machine}
    print(json.dumps(report))
    return int(any(row["lost"] or row["corrupt"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
