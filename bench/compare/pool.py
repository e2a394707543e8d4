"""Worker processes that do named tasks, each with a limit, and end with the program that started them."""
import ctypes
import fcntl
import os
import signal
import socket
import time
import traceback
import warnings
from pathlib import Path

import torch
import torch.multiprocessing

import ways


PIPE_BYTES = 1 << 20


class Failed(Exception):
    """What a worker said that went wrong, or that it said nothing."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def work(conn, role, tasks, setup_arguments, threads):
    """A worker: does what it is told until nobody is there to tell it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with its parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    # Every tensor here is a message's own or goes on living; what torch says about shared memory is noise.
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    import importlib

    state = {"setup": ways.Setup(**setup_arguments), "role": role}
    functions = importlib.import_module(tasks).TASKS
    try:
        if state["setup"].device.type == "cuda":
            torch.cuda.init()
        conn.send(("done", None))
        while True:
            name, arguments = conn.recv()
            if name == "end":
                state["setup"].end()
                conn.send(("done", None))
                break
            try:
                conn.send(("done", functions[name](state, **arguments)))
            except Exception:
                conn.send(("failed", traceback.format_exc(limit=6)))
    except (EOFError, BrokenPipeError):
        pass
    os._exit(0)  # not by way of threads that others left


class Pool:
    """Processes of roles. Links is topic -> receivers, for the queues that torch's way needs; acks names the
    queues that lead back to the first."""

    def __init__(self, roles, links, acks, tasks, device, limit, depth=ways.DEPTH):
        context = torch.multiprocessing.get_context("spawn")
        queues = {
            (topic, index): (context.SimpleQueue(), context.SimpleQueue())
            for topic, receivers in links.items()
            for index in range(receivers)
        }
        for pair in queues.values():
            for queue in pair:
                # Or torch's handles of a long queue would not fit in.
                fcntl.fcntl(queue._writer.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        setup = {
            "device": device,
            "depth": depth,
            "run": f"compare-{os.getpid()}-{time.monotonic_ns()}",
            "port": {topic: free_port() for topic in links},
            "queues": queues,
            "acks": {name: context.SimpleQueue() for name in acks},
        }
        # Threads of torch's own on the CPU: all that there are, shared.
        threads = max(1, (os.cpu_count() or 1) // len(roles))
        self.conns = {}
        self.processes = {}
        self.there = set(Path("/dev/shm").glob("*.zenoh"))
        self.until = time.monotonic() + limit
        try:
            for role in roles:
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=work, args=(theirs, role, tasks, setup, threads), daemon=True, name=f"compare-{role}"
                )
                process.start()
                theirs.close()
                self.conns[role] = ours
                self.processes[role] = process
            self.collect(list(roles))
        except BaseException:
            self.close()
            raise

    def collect(self, roles, limit=None):
        """What each answered. All have until the pool's limit, or the task's."""
        until = min(self.until, time.monotonic() + limit) if limit else self.until
        answers = {}
        waiting = list(roles)
        while waiting:
            for role in list(waiting):
                conn = self.conns[role]
                try:
                    if not conn.poll(0.005):
                        continue
                    kind, value = conn.recv()
                except (EOFError, ConnectionError):
                    raise Failed(f"{role} ended") from None
                if kind == "failed":
                    raise Failed(f"{role}: {value}")
                answers[role] = value
                waiting.remove(role)
            if waiting and time.monotonic() > until:
                raise Failed(f"{', '.join(waiting)}: not done in time")
        return answers

    def ask(self, tasks, limit=None):
        """Tasks is role -> (name, arguments), done at the same time."""
        for role, task in tasks.items():
            self.conns[role].send(task)
        return self.collect(list(tasks), limit)

    def sweep(self):
        """What zenoh left in /dev/shm: made since this pool, and mapped by nobody."""
        mapped = set()
        for maps in Path("/proc").glob("[0-9]*/maps"):
            try:
                mapped.update(line.split()[-1] for line in maps.read_text().splitlines() if "/dev/shm/" in line)
            except OSError:
                pass
        for file in set(Path("/dev/shm").glob("*.zenoh")) - self.there:
            if str(file) not in mapped:
                file.unlink(missing_ok=True)

    def close(self):
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.join(10)
        for conn in self.conns.values():
            conn.close()
        self.sweep()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            try:
                # So that nothing of other libraries' stays in /dev/shm.
                self.ask({role: ("end", {}) for role in self.conns}, 20)
            except Failed:
                pass
        self.close()
