#!/usr/bin/env python3
"""From the publish call to the handler, between two Python processes; prints one JSON document.

Usage: bench/python_latency.py [--domain host|cuda] [--sizes 4096,...] [--messages N] [--wait poll|block]

Wants rgaps and, for --domain cuda, torch. A message's words are all its number; the subscriber compares each of
them when it has taken the time. The bytes are there before the publish call (`publish(stream=-1)`); on a GPU the
same is measured with a kernel of 1 ms in flight on the stream that the message is published on. The floor: a number
in shared memory, polled, or read from a pipe, between the same processes in turns. Exits 0 only if nothing was lost
or corrupt.
"""
import argparse, json, mmap, os, platform, struct, subprocess, sys, tempfile, time

TOPIC = "bench/python-latency"
LIMIT = 60.0
#: What a sleeper is given to fall asleep.
SETTLE = 0.0005
WORD = struct.Struct("=Q")


def times(values_ns):
    values = sorted(values_ns)
    rank = lambda part: round(values[min(len(values) - 1, int(part * len(values)))] / 1000, 3)
    return {"p50_us": rank(0.5), "p99_us": rank(0.99), "min_us": rank(0), "max_us": rank(1)}


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
            self.clocks_ms = int(clocks / begin.elapsed_time(end))

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
        self.torch.cuda._sleep(self.clocks_ms)


def receive(sub, wait):
    if wait == "block":
        return sub.recv(LIMIT)
    until = time.monotonic() + LIMIT
    while (sample := sub.try_recv()) is None:
        if time.monotonic() > until:
            raise TimeoutError("no message came")
    return sample


def subscriber(arguments):
    import rgaps

    words = Words(arguments.domain)
    board = mmap.mmap(arguments.board, mmap.PAGESIZE)
    found = {"messages": [], "floor": [], "lost": 0, "corrupt": 0}
    with rgaps.subscriber(TOPIC, reliable=True) as sub:
        print("ready", flush=True)
        for number in range(1, arguments.messages + 1):
            if arguments.wait == "poll":
                until = time.monotonic() + LIMIT
                while WORD.unpack_from(board, 0)[0] != number:
                    if time.monotonic() > until:
                        raise TimeoutError("no number came")
            else:
                sys.stdin.buffer.raw.read(1)
            now = time.monotonic_ns()
            found["floor"].append(now - WORD.unpack_from(board, 8)[0])
            print("hop", flush=True)
            with receive(sub, arguments.wait) as sample:
                now = time.monotonic_ns()
                found["messages"].append(now - sample.publish_ns)
                found["lost"] += sample.missed
                found["corrupt"] += words.wrong(sample, number) > 0
            print("message", flush=True)
    print(json.dumps(found), flush=True)


def exchange(arguments, words, size, messages, in_flight):
    """Times `messages` messages, and as many bare hops."""
    import rgaps

    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        board = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        command = [sys.executable, __file__, "--subscriber", "--domain", arguments.domain, "--wait", arguments.wait]
        command += ["--messages", str(messages), "--board", str(file.fileno())]
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[file.fileno()]
        )
        try:
            heard = lambda word: child.stdout.readline().strip() == word or sys.exit("the subscriber has ended")
            publish = []
            with rgaps.publisher(TOPIC, domain=arguments.domain, history=1, deadline=LIMIT) as pub:
                heard("ready")
                if not pub.wait_for_subscribers(1, LIMIT):
                    sys.exit("no subscriber came")
                for number in range(1, messages + 1):
                    loan = pub.loan((size // 8,), "int64")
                    words.fill(loan, number)
                    time.sleep(SETTLE)
                    WORD.pack_into(board, 8, time.monotonic_ns())
                    if arguments.wait == "poll":
                        WORD.pack_into(board, 0, number)
                    else:
                        os.write(child.stdin.fileno(), b"x")
                    heard("hop")
                    time.sleep(SETTLE)
                    if in_flight:
                        words.keep_busy()
                    begun = time.monotonic_ns()
                    loan.publish(stream=words.stream if in_flight else -1)
                    publish.append(time.monotonic_ns() - begun)
                    heard("message")
                found = json.loads(child.stdout.readline())
            if child.wait(LIMIT):
                sys.exit("the subscriber failed")
        finally:
            child.kill()
            child.wait()
    row = {"size": size, "messages": messages, "kernel_in_flight_us": 1000 if in_flight else 0}
    row |= times(found["messages"]) | {"publish": times(publish), "floor": times(found["floor"])}
    return row | {"lost": found["lost"], "corrupt": found["corrupt"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domain", default="host", choices=["host", "cuda"])
    parser.add_argument("--sizes", default="4096,4194304,1073741824", help="bytes, multiples of 8")
    parser.add_argument("--messages", type=int, default=1000)
    parser.add_argument("--wait", default="poll", choices=["poll", "block"])
    parser.add_argument("--subscriber", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--board", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.subscriber:
        return subscriber(arguments)
    words = Words(arguments.domain)
    rows = []
    for size in map(int, arguments.sizes.split(",")):
        # Large ones take long to write and to compare.
        messages = min(arguments.messages, max(10, (8 << 30) // size))
        for in_flight in [False, True] if words.on_gpu else [False]:
            rows.append(exchange(arguments, words, size, messages, in_flight))
    machine = {"cores": os.cpu_count(), "kernel": platform.release(), "load": round(os.getloadavg()[0], 2)}
    if words.on_gpu:
        machine["gpu"] = words.torch.cuda.get_device_name(0)
    report = {"domain": arguments.domain, "wait": arguments.wait, "python": platform.python_version()}
    print(json.dumps(report | {"rows": rows, "machine": machine}))
    return int(any(row["lost"] or row["corrupt"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
