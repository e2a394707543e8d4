"""A daemon of its own for every test, and where to find the programs.

`RGAPS_DAEMON` names the daemon; without it, that of `make build`, else the one in the wheel. The
CUDA tests run with the test driver (tests/driver) where it was built and no GPU answers.
"""

import contextlib
import ctypes
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path

import pytest

import rgaps
from rgaps import _default

ROOT = Path(__file__).resolve().parents[2]
# Seconds that anything may take on any machine.
LIMIT = 120


def _built(name):
    found = [ROOT / "target" / profile / name for profile in ("release", "debug")]
    return next((str(path) for path in found if path.exists()), None)


def _gpu_answers():
    try:
        return ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    except OSError:
        return False


REAL_GPU = _gpu_answers()
if "RGAPS_DAEMON" not in os.environ and _built("rgapsd"):
    os.environ["RGAPS_DAEMON"] = _built("rgapsd")
if not REAL_GPU and "RGAPS_CUDA_LIBRARY" not in os.environ:
    driver = os.environ.get("RGAPS_TEST_DRIVER") or _built("librgaps_test_driver.so")
    # A library that is not there is no driver either, but says so.
    os.environ["RGAPS_CUDA_LIBRARY"] = driver or "/nonexistent/libcuda.so.1"
    os.environ.setdefault("RGAPS_TEST_DRIVER_MEMORY_MB", "1024")
    # A wait for a stream that a test holds ends its process.
    os.environ.setdefault("RGAPS_TEST_DRIVER_PATIENCE_MS", "120000")


@pytest.fixture(autouse=True)
def realm(monkeypatch):
    """A folder with a daemon's socket, which the first node starts the daemon at."""
    folder = tempfile.mkdtemp(prefix="rgaps-py-")
    monkeypatch.setenv("RGAPS_SOCKET", f"{folder}/socket")
    monkeypatch.setenv("RGAPS_IDLE_EXIT_MS", "2000")
    monkeypatch.setenv("RGAPS_POOL__HOST__CAP", "256MiB")
    monkeypatch.chdir(folder)
    yield folder
    _default._forget()
    try:
        with rgaps.Node("teardown", config={"autostart": False}) as node:
            node.stop_daemon()
    except rgaps.DaemonUnavailable:
        pass
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def node():
    with rgaps.Node("test") as node:
        yield node


@pytest.fixture
def pair(node):
    """A publisher and a subscriber of one topic."""
    with node.subscriber("pair") as sub, node.publisher("pair") as pub:
        yield pub, sub


def _at_start():
    # A test run in the background has SIGINT ignored, and its children inherit that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # A run that is ended by its time-out leaves nothing behind.
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Program:
    """A Python program in a process of its own, which talks to the test by lines."""

    def __init__(self, code, *arguments, env=None):
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", textwrap.dedent(code), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
            preexec_fn=_at_start,
        )
        self._lines = queue.SimpleQueue()
        self._errors = []
        self._readers = [
            threading.Thread(target=self._read_lines, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_lines(self):
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self):
        self._errors.extend(self.process.stderr)

    def line(self, timeout=LIMIT):
        """The next line that it prints."""
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"the program printed nothing within {timeout} s") from None
        if line is None:
            self._lines.put(None)
            raise AssertionError(f"the program ended: {self.errors()}")
        return line.strip()

    def say(self, text):
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def errors(self):
        """What it printed on standard error until its end."""
        self._readers[1].join(LIMIT)
        return "".join(self._errors)

    def finish(self, timeout=LIMIT):
        """Waits for its end; gives what it still printed. It must end well."""
        self.process.stdin.close()
        self.process.wait(timeout)
        assert self.process.returncode == 0, self.errors()
        out = []
        while (line := self._lines.get(timeout=LIMIT)) is not None:
            out.append(line)
        return "".join(out).strip()

    def end(self):
        """Ends it, if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LIMIT)
        for reader in self._readers:
            reader.join(LIMIT)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def program():
    """Starts programs, and ends those that a failing test leaves."""
    started = []

    def start(code, *arguments, env=None):
        started.append(Program(code, *arguments, env=env))
        return started[-1]

    yield start
    for each in started:
        each.end()
