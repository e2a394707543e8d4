#!/usr/bin/env python3
"""A trainer's weights to several inference processes: rgaps.weights beside what people use now.

Usage: bench/weights.py [--mib 64] [--readers 4] [--rounds 5] [--ways rgaps,file,mmap,gloo,socket] [--hosts 3 [--mbit 1000] [--fanout 1]]

    rgaps   WeightsPublisher.publish; each reader waits for the version and reads views of its host's one copy
    file    torch.save to a file on /dev/shm, a new one each round; each reader torch.load, which copies
    mmap    the same with torch.load(mmap=True): readers share the file's pages; needs torch 2.1
    gloo    torch.distributed.broadcast of each tensor, every reader in the group
    socket  a connection and a thread for each reader: the raw bytes of each tensor

Without --hosts, all processes are on one host, and sockets are Unix sockets. With --hosts, the trainer is on one host and --readers
are on each of so many others: network namespaces, each with a cable to one switch, a daemon and links. --mbit limits what each host
sends. rgaps sends each message to so many hosts as --fanout says, and the others get it from those. A file crosses once to each host, by sendfile over TCP into /dev/shm, before its readers load it. Needs root or user namespaces.

In each round the ways take turns, in an order that rotates. A round's time is from the call until every reader has all
tensors and has read every page. After it, outside the time, every reader compares every byte with what the trainer sent.

Memory is the sum of the readers' PSS (/proc/PID/smaps_rollup) while all hold the version, less that of the same processes before the
first one. PSS gives each process its share of a page, so the shares that the trainer (on one host) or the links (on others) have of
rgaps's pool are added. It is that of one way at a time: readers drop the version when their way's turn is over.

Prints progress on standard error, one JSON document as the last line; exits 1 if a byte was wrong or a way failed.
"""
import argparse, ctypes, datetime, inspect, json, multiprocessing, os, re, shlex, shutil, socket, statistics, sys, tempfile, time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch

import rgaps
from rgaps.weights import WeightsPublisher, WeightsSubscriber

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "demo"))
from about import about  # noqa: E402
from netns import Host, Switch, enter_namespaces  # noqa: E402

WAYS = ["rgaps", "file", "mmap", "gloo", "socket"]
FILES = ("file", "mmap")
LIMIT_SECONDS = 300
CLONE_NEWNET = 0x40000000


@dataclass
class Place:
    """Where a process runs."""

    folder: str  # of this host alone
    namespace: str | None = None
    env: dict = field(default_factory=dict)

    def enter(self):
        os.environ.update(self.env)
        if self.namespace is not None:
            handle = os.open(f"/run/netns/{self.namespace}", os.O_RDONLY | os.O_CLOEXEC)
            if ctypes.CDLL(None, use_errno=True).setns(handle, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns {self.namespace}")
            os.close(handle)


def shapes(mib):
    """A model of 16 layers and one that is small: its tensors come to `mib` MiB of float32."""
    rows = mib * (1 << 20) // (16 * 4 * 1024)
    return {**{f"layer.{n}.weight": (rows, 1024) for n in range(16)}, "head.bias": (17,)}


def state(mib, number):
    """The tensors of one round, one by one, every element of its own and of that round."""
    for at, (name, shape) in enumerate(shapes(mib).items()):
        generator = torch.Generator().manual_seed(1000 * number + at)
        yield name, torch.randint(-(2**31), 2**31 - 1, shape, generator=generator, dtype=torch.int32).view(torch.float32)


def wrong(found, mib, number):
    """How many tensors are not what was sent, byte for byte."""
    bad = len(set(shapes(mib)) ^ set(found))
    for name, wanted in state(mib, number):
        bad += name in found and not torch.equal(found[name].view(torch.int32), wanted.view(torch.int32))
    return bad


def pss_kib():
    """This process's memory, without what the allocator keeps of freed tensors (such as those of the checks)."""
    ctypes.CDLL(None).malloc_trim(0)
    text = Path("/proc/self/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


def pools_kib(pid):
    """A process's share of rgaps's pools."""
    sum_kib, ours = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = "/memfd:rgaps" in line
        elif ours and line.startswith("Pss:"):
            sum_kib += int(line.split()[1])
    return sum_kib


def bytes_of(tensor):
    return memoryview(tensor.view(-1).view(torch.uint8).numpy())


def read_all(connection, view):
    while view:
        view = view[connection.recv_into(view) or sys.exit("the trainer closed its socket") :]


def dial(address):
    connection = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    connection.connect(address)
    return connection


def fetch(connection, path):
    """A file from the trainer's host."""
    left = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "little")
    with open(path, "wb") as file:
        while left:
            data = connection.recv(min(left, 1 << 20)) or sys.exit("the trainer closed its socket")
            left -= file.write(data)


class Reader:
    """One inference process: a way's tensors, ready to be used."""

    def __init__(self, way, rank, options):
        self.way, self.mib, self.folder = way, options.mib, options.places[rank + 1].folder
        if way == "rgaps":
            self.weights = WeightsSubscriber(rgaps.Node(f"reader-{rank}"), "bench/weights")
        elif way == "gloo":
            join(rank + 1, options)
        elif way == "socket" or (options.hosts and not rank % options.readers):
            self.connection = dial(options.addresses[way])

    def fetch(self, number):
        fetch(self.connection, f"{self.folder}/{self.way}-{number}.pt")

    def take(self, number):
        if self.way == "rgaps":
            return self.weights.wait(number, timeout=LIMIT_SECONDS)
        if self.way in FILES:
            return torch.load(f"{self.folder}/{self.way}-{number}.pt", weights_only=True, **({"mmap": True} if self.way == "mmap" else {}))
        found = {name: torch.empty(shape) for name, shape in shapes(self.mib).items()}
        for tensor in found.values():
            if self.way == "gloo":
                torch.distributed.broadcast(tensor, 0)
            else:
                read_all(self.connection, bytes_of(tensor))
        return found


def join(rank, options):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{options.folder}/group", rank=rank, world_size=len(options.places),
        timeout=datetime.timedelta(seconds=LIMIT_SECONDS),
    )


def read(way, rank, options, pipe):
    options.places[rank + 1].enter()
    torch.set_num_threads(1)
    # What the check and the reads load is not the weights' memory: once before the measurement.
    wrong(dict(state(1, 0)), 1, 0)
    reader = Reader(way, rank, options)
    held = None
    pipe.send(("ready", None))
    while (asked := pipe.recv())[0] != "end":
        what, number = asked
        said = None
        if what == "take":
            held = reader.take(number)
            # Every page is there and read once: a view that nobody has touched would cost nothing yet.
            said = sum(int(tensor.view(torch.int32).sum()) for tensor in held.values())
        elif what == "fetch":
            reader.fetch(number)
        elif what == "memory":
            said = pss_kib()
        elif what == "check":
            said = wrong(held, options.mib, number)
        elif what == "drop":
            held = None
        pipe.send((what, said))
    pipe.send(("end", None))


class Trainer:
    """The publishing side of a way, and its readers."""

    def __init__(self, way, options, pids):
        self.way, self.options, self.pids = way, options, pids
        context = multiprocessing.get_context("spawn")
        # Readers of a host may have one connection for all of them.
        count = len(options.places) - 1 if way == "socket" else options.hosts if way in FILES else 0
        listener = options.listen(way) if count else None
        self.pipes, self.processes = [], []
        for rank in range(len(options.places) - 1):
            ours, theirs = context.Pipe()
            self.pipes.append(ours)
            shown = argparse.Namespace(**{name: value for name, value in vars(options).items() if name != "listen"})
            self.processes.append(context.Process(target=read, args=(way, rank, shown, theirs), daemon=True))
            self.processes[-1].start()
        if way == "rgaps":
            self.weights = WeightsPublisher(rgaps.Node("trainer"), "bench/weights")
        elif way == "gloo":
            join(0, options)
        self.connections = [listener.accept()[0] for _ in range(count)]
        self.threads = ThreadPoolExecutor(max(count, 1))
        self.answers("ready")
        self.before = 0
        if way == "rgaps":
            # A host counts at least once.
            assert self.weights.wait_for_subscribers(options.hosts or options.readers, LIMIT_SECONDS)

    def ask(self, what, number=0, every=1):
        for pipe in self.pipes[::every]:
            pipe.send((what, number))
        return lambda: self.answers(what, every)

    def answers(self, what, every=1):
        found = []
        for pipe in self.pipes[::every]:
            if not pipe.poll(LIMIT_SECONDS):
                raise TimeoutError(f"{self.way}: a reader did not answer ({what})")
            word, value = pipe.recv()
            assert word == what, (word, what)
            found.append(value)
        return found

    def round(self, sent, number):
        begun = time.perf_counter()
        path = Path(self.options.places[0].folder, f"{self.way}-{number}.pt")
        if self.way in FILES:  # readers may read it when it is whole
            torch.save(sent, path)
            if self.options.hosts:
                fetched = self.ask("fetch", number, self.options.readers)
                self.to_all(lambda connection: self.send_file(connection, path))
                fetched()
            took = self.ask("take", number)
        else:
            took = self.ask("take", number)
            self.publish(sent, number)
        sums = took()
        seconds = time.perf_counter() - begun
        memory = self.memory() - self.before
        bad = sum(self.ask("check", number)()) + (len(set(sums)) - 1)
        self.ask("drop")()
        for place in self.options.places:
            Path(place.folder, path.name).unlink(missing_ok=True)
        return seconds, memory, bad

    def memory(self):
        pools = sum(pools_kib(pid) for pid in self.pids) if self.way == "rgaps" else 0
        return sum(self.ask("memory")()) + pools

    def to_all(self, send):
        for done in [self.threads.submit(send, connection) for connection in self.connections]:
            done.result()

    @staticmethod
    def send_file(connection, path):
        with open(path, "rb") as file:
            connection.sendall(path.stat().st_size.to_bytes(8, "little"))
            connection.sendfile(file)

    def publish(self, sent, number):
        if self.way == "rgaps":
            self.weights.publish(sent, version=number)
        elif self.way == "gloo":
            for tensor in sent.values():
                torch.distributed.broadcast(tensor, 0)
        else:
            self.to_all(lambda connection: [connection.sendall(bytes_of(tensor)) for tensor in sent.values()])

    def end(self):
        self.ask("end")()
        for process in self.processes:
            process.join(LIMIT_SECONDS)
        self.threads.shutdown()


def measure(options, ways, pids):
    trainers = {way: Trainer(way, options, pids) for way in ways}
    # When all processes run: the libraries that they share count less in each, the more they are.
    for trainer in trainers.values():
        trainer.before = trainer.memory()
    rows = {way: [] for way in ways}
    # The first round warms up, and does not count.
    for number in range(options.rounds + 1):
        sent = dict(state(options.mib, number))
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


def on_one_host(options, ways):
    os.environ["RGAPS_SOCKET"] = f"{options.folder}/rgaps.sock"
    options.places = [Place(options.folder)] * (1 + options.readers)
    options.addresses = {"socket": f"{options.folder}/socket"}

    def listen(way):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(options.addresses[way])
        listener.listen()
        return listener

    options.listen = listen
    try:
        return measure(options, ways, [os.getpid()])
    finally:
        if "rgaps" in ways:
            with rgaps.Node("end") as node:
                node.stop_daemon()


def links_of(host):
    """The process of its links, which its daemon started."""
    assert host.daemon is not None
    tasks = Path(f"/proc/{host.daemon.pid}/task").glob("*/children")
    children = [int(pid) for each in tasks for pid in each.read_text().split()]
    return next(pid for pid in children if b"rgaps-links" in Path(f"/proc/{pid}/cmdline").read_bytes())


def on_several_hosts(options, ways):
    hosts = [Host("abcdefghijklmnop"[n], f"10.213.77.{n + 1}", Path(options.folder)) for n in range(1 + options.hosts)]
    switch = None
    # A version is one message, which must fit: the default is 256 MiB.
    os.environ.update({f"RGAPS_LINKS__{limit}_MAX": f"{2 * options.mib + 64}MiB" for limit in ("IN_FLIGHT", "OUTAGE", "LANDING")})
    if options.fanout is not None:
        os.environ["RGAPS_LINKS__FANOUT"] = str(options.fanout)
    try:
        switch = Switch(hosts)
        for host in hosts:
            host.start([other for other in hosts if other is not host], Path(rgaps.__file__).parent / "bin", Path(options.folder))
            if options.mbit and not host.limit(options.mbit):
                raise SystemExit("this kernel cannot limit a cable (no token bucket); use --mbit 0")
        at = [Place(str(host.folder), host.namespace, host.env | {"GLOO_SOCKET_IFNAME": host.cable}) for host in hosts]
        options.places = at[:1] + [place for place in at[1:] for _ in range(options.readers)]
        options.addresses = {way: (hosts[0].address, 7500 + n) for n, way in enumerate(WAYS)}
        options.listen = lambda way: socket.create_server(options.addresses[way], backlog=64)
        at[0].enter()
        return measure(options, ways, [links_of(host) for host in hosts[1:]])
    finally:
        for host in hosts:
            host.end()
        if switch is not None:
            switch.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--readers", type=int, default=4, help="on each host")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--hosts", type=int, default=0, help="other hosts than the trainer's, at most 15; 0: all on one")
    parser.add_argument("--mbit", type=int, default=0, help="what each host's cable carries, in Mbit/s; 0: no limit")
    parser.add_argument("--fanout", type=int, help="rgaps: hosts that one host sends to (links.fanout); 0: all; by default what rgaps has by default")
    options = parser.parse_args()
    ways = options.ways.split(",")
    if unknown := set(ways) - set(WAYS):
        parser.error(f"unknown ways: {sorted(unknown)}")
    if "mmap" in ways and "mmap" not in inspect.signature(torch.load).parameters:
        parser.error(f"torch {torch.__version__} cannot load with mmap; leave it out of --ways")
    if not 0 <= options.hosts <= 15 or options.readers < 1 or ((options.mbit or options.fanout is not None) and not options.hosts):
        parser.error("--hosts is 0 to 15, --readers at least 1, and --mbit and --fanout need --hosts")
    if options.hosts:
        enter_namespaces()
    torch.set_num_threads(1)
    # A version that readers hold, the newest, and the one that comes.
    os.environ["RGAPS_POOL__HOST__CAP"] = f"{4 * options.mib + 64}MiB"
    options.folder = tempfile.mkdtemp(dir="/dev/shm", prefix="rgaps-weights-")
    try:
        found = (on_several_hosts if options.hosts else on_one_host)(options, ways)
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)
    bad = sum(each["wrong_tensors"] for each in found.values())
    print(json.dumps({
        "tool": "weights", "ok": bad == 0, **about(shlex.join(["bench/weights.py", *sys.argv[1:]])), "torch": torch.__version__,
        "rgaps": rgaps.__version__, "mib": options.mib, "hosts": options.hosts, "readers_on_each_host": options.readers,
        "mbit": options.mbit, "fanout": options.fanout, "rounds": options.rounds, "ways": found,
    }))
    return 0 if bad == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
