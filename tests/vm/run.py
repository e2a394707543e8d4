#!/usr/bin/env python3
"""Boots two virtual machines joined by a wire and runs suites in them, one pair of machines after the other.

The guests see this machine's files read-only. Each suite's logs, and what the guests hand back, are in
target/vm/NAME. Without KVM, so that it runs wherever QEMU does.
"""

import argparse
import contextlib
import os
import pathlib
import platform
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
QEMU = "qemu-system-x86_64"
# A guest that failed or ended leaves its peer this long.
GRACE_S = 20
# How much of a log is shown when a suite fails.
LINES_SHOWN = 40


class Suite:
    """A script for both guests. A line `# vm: guests=1 cpus=2 memory_mib=2048 limit_s=300` in it replaces these."""

    def __init__(self, path, name=None):
        self.path = path.resolve()
        self.name = name or path.stem
        self.guests, self.cpus, self.memory_mib, self.limit_s = 2, 1, 768, 240
        for line in self.path.read_text().splitlines():
            if line.startswith("# vm:"):
                for key, value in re.findall(r"(\w+)=(\d+)", line):
                    setattr(self, key, int(value))

    def roles(self):
        return "ab"[: self.guests]


def why_not():
    """Why QEMU cannot run here at all, or None. What is merely not installed is a failure, not a reason."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"guests are Linux on x86-64 and run this machine's programs; this is {platform.system()} on {platform.machine()}"
    return None


def make_image():
    made = subprocess.run([HERE / "image.sh"], stdout=subprocess.PIPE, text=True, check=True)
    return pathlib.Path(made.stdout.strip())


def wire_ends(wire, stack):
    """QEMU's end of the wire and the file descriptors it needs, for each guest."""
    if wire == "multicast":
        # Datagrams that QEMU drops when they come too fast. On the loopback only, and a number of our own.
        end = f"socket,id=wire,mcast=230.0.0.1:{20000 + os.getpid() % 20000},localaddr=127.0.0.1"
        return {role: (end, ()) for role in "ab"}
    pair = [stack.enter_context(end) for end in socket.socketpair()]
    return {role: (f"socket,id=wire,fd={end.fileno()}", (end.fileno(),)) for role, end in zip("ab", pair)}


def qemu_command(image, suite, role, wire, folder):
    return [
        # Ends with us, however we end.
        *("setpriv", "--pdeathsig", "KILL", "--"),
        *(QEMU, "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", str(suite.cpus), "-m", str(suite.memory_mib)),
        *("-nodefaults", "-no-reboot", "-display", "none", "-monitor", "none"),
        # Ctrl-C is the guest's.
        *("-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"),
        *("-kernel", image / "vmlinuz", "-initrd", image / "initramfs.gz"),
        # On a busy machine the emulated timer is late, and the kernel would give it up.
        *("-append", f"console=ttyS0 panic=-1 quiet no_timer_check ROLE={role}"),
        *("-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"),
        *("-virtfs", f"local,path={folder / 'shared'},mount_tag=shared,security_model=none"),
        *("-netdev", wire),
        *("-device", f"virtio-net-pci,netdev=wire,mac=52:54:00:00:00:0{'ab'.index(role) + 1},host_mtu=4200,romfile="),
    ]


def prepare(suite, folder):
    """An empty folder for logs and results, with what the guests have to know."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("sync", "results"):
        (folder / "shared" / name).mkdir(parents=True)
    # Wherever it is, here the guests see it.
    shutil.copy(suite.path, folder / "shared" / "suite.sh")
    known = {
        "REPOSITORY": REPOSITORY,
        "GUESTS": suite.guests,
        "TERMINAL": os.environ.get("TERM", "dumb"),
    }
    lines = [f"{name}={shlex.quote(str(value))}\n" for name, value in known.items()]
    (folder / "shared" / "machine").write_text("".join(lines))


def boot(image, suite, wire, folder, terminal, stack):
    """The running machines by role. `terminal` is the role that has our terminal, if one has."""
    ends = wire_ends(wire, stack)
    machines = {}
    for role in suite.roles():
        end, descriptors = ends[role]
        log = None if role == terminal else stack.enter_context(open(folder / f"{role}.log", "wb"))
        machine = subprocess.Popen(
            qemu_command(image, suite, role, end, folder),
            stdin=None if role == terminal else subprocess.DEVNULL,
            stdout=log,
            stderr=None if role == terminal else subprocess.STDOUT,
            pass_fds=descriptors,
        )
        stack.callback(machine.wait)
        stack.callback(machine.kill)
        machines[role] = machine
    return machines


def wait(machines, limit_s):
    """Until all have ended, or the time is over; a machine that ends takes the others with it a little later."""
    deadline = time.monotonic() + limit_s
    first_end = None
    while True:
        running = [machine for machine in machines.values() if machine.poll() is None]
        if not running:
            return None
        if len(running) < len(machines) and first_end is None:
            first_end = time.monotonic()
        if first_end is not None and time.monotonic() > first_end + GRACE_S:
            return f"still running {GRACE_S} s after its peer ended"
        if time.monotonic() > deadline:
            return f"not done after {limit_s} s"
        time.sleep(0.1)


def status_of(log, role):
    """What the guest says that its suite ended with, or None if it did not get so far. Also tidies the log."""
    text = log.read_bytes().replace(b"\r\n", b"\n").decode(errors="replace")
    log.write_text(text)
    said = re.findall(rf"^vm-status {role} (\d+)$", text, re.MULTILINE)
    return int(said[-1]) if said else None


def run_suite(image, suite, wire, folder):
    """Why it failed, or None."""
    prepare(suite, folder)
    with contextlib.ExitStack() as stack:
        ended = wait(boot(image, suite, wire, folder, None, stack), suite.limit_s)
    statuses = {role: status_of(folder / f"{role}.log", role) for role in suite.roles()}
    # The one that failed first; its peer may only have waited for it.
    for role, status in sorted(statuses.items(), key=lambda item: not item[1]):
        if status is None:
            return f"guest {role} {ended or 'ended without a status'}"
        if status:
            return f"guest {role} ended with {status}"
    return None


def show_failure(suite, folder):
    for role in suite.roles():
        log = folder / f"{role}.log"
        print(f"---- the end of {log}")
        print("\n".join(log.read_text().splitlines()[-LINES_SHOWN:]))
    print("----")


def run_suites(suites, wire):
    image = make_image()
    failed = []
    for suite in suites:
        suffix = "" if wire == "pair" else f"-{wire}"
        folder = REPOSITORY / "target" / "vm" / (suite.name + suffix)
        begun = time.monotonic()
        why = run_suite(image, suite, wire, folder)
        seconds = time.monotonic() - begun
        print(f"vm: {suite.name}: {why or 'passed'} ({seconds:.0f} s), logs in {folder}", flush=True)
        if why:
            failed.append(suite.name)
            show_failure(suite, folder)
        for result in sorted((folder / "shared" / "results").glob("*.jsonl")):
            print(f"vm: {suite.name}: {result.stem}:", *result.read_text().splitlines(), sep="\n  ", flush=True)
    if failed:
        sys.exit(f"vm: FAILED: {', '.join(failed)}")


def run_shell():
    """A shell in guest a, on our terminal, until it ends."""
    suite = Suite(HERE / "shell.sh")
    folder = REPOSITORY / "target" / "vm" / "shell"
    prepare(suite, folder)
    with contextlib.ExitStack() as stack:
        boot(make_image(), suite, "pair", folder, "a", stack)["a"].wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", type=pathlib.Path, help="scripts; without any, all of tests/vm/suites")
    parser.add_argument("--wire", choices=["pair", "multicast"], default="pair", help="multicast loses packets")
    parser.add_argument("--shell", action="store_true", help="a shell in guest a instead, with b running")
    arguments = parser.parse_args()
    if reason := why_not():
        print(f"vm: skipped: {reason}")
        return
    # A signal unwinds, so that nothing is left behind.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    if arguments.shell:
        run_shell()
    else:
        paths = arguments.suites or sorted((HERE / "suites").glob("*.sh"))
        run_suites([Suite(path) for path in paths], arguments.wire)


main()
