#!/usr/bin/env python3
"""Boots two virtual machines joined by a wire and runs suites in them, one after the other.

The guests see this machine's files read-only. Their logs are in target/vm/NAME, and what a suite hands back below it in
shared/SUITE/results. Without KVM, so that it runs wherever QEMU does.
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
import termios
import time

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
QEMU = "qemu-system-x86_64"
# A guest that ended leaves its peer this long, and a suite that is over its limit, in which a guest ends it by itself, the guest.
GRACE_S = 20
# From the start until the first suite may begin to count.
BOOT_S = 60
# How much of a log is shown when a suite fails.
LINES_SHOWN = 40


class Suite:
    """A script for both guests. A line `# vm: guests=1 cpus=2 memory_mib=2048 limit_s=300` in it replaces these."""

    def __init__(self, path):
        self.path = path.resolve()
        self.name = path.stem
        self.guests, self.cpus, self.memory_mib, self.limit_s = 2, 1, 768, 900
        for line in self.path.read_text().splitlines():
            if line.startswith("# vm:"):
                for key, value in re.findall(r"(\w+)=(\d+)", line):
                    setattr(self, key, int(value))

    def roles(self):
        return "ab"[: self.guests]


class Plan:
    """Suites that run in the same machines, which have what any of them wants, and the folder of it all."""

    def __init__(self, suites, wire):
        self.suites, self.wire = suites, wire
        self.roles = "ab"[: max(suite.guests for suite in suites)]
        self.cpus = max(suite.cpus for suite in suites)
        self.memory_mib = max(suite.memory_mib for suite in suites)
        name = suites[0].name if len(suites) == 1 else "suites"
        self.folder = REPOSITORY / "target" / "vm" / (name if wire == "pair" else f"{name}-{wire}")

    def shared(self, suite):
        return self.folder / "shared" / suite.name

    def log(self, role):
        return self.folder / f"{role}.log"

    def status(self, suite, role):
        """What a guest says that a suite ended with, or None if it did not get so far."""
        try:
            return int((self.shared(suite) / "sync" / f"ended.{role}").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def statuses(self, suite):
        return {role: self.status(suite, role) for role in suite.roles()}


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


def clock():
    """What the guest's kernel is told of its clock: the time stamp counter, and how fast that is. On a busy machine a guest that
    finds out by itself was wrong by a factor of 22, and its time ran as much too fast."""
    return subprocess.run([REPOSITORY / "kernel/tests/guest-clock.sh"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def qemu_command(image, plan, role, wire):
    # The emulator carries out `rep movsb` byte by byte, which no processor does: programs are told that it is not fast. Left to
    # itself the kernel takes the HPET for its clock, of which each look is a trap.
    cpu = "max,-erms,-fsrm"
    return [
        # Ends with us, however we end.
        *("setpriv", "--pdeathsig", "KILL", "--"),
        *(QEMU, "-accel", "tcg,thread=multi", "-cpu", cpu, "-smp", str(plan.cpus), "-m", str(plan.memory_mib)),
        *("-nodefaults", "-no-reboot", "-display", "none", "-monitor", "none"),
        # Ctrl-C is the guest's.
        *("-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"),
        *("-kernel", image / "vmlinuz", "-initrd", image / "initramfs.gz"),
        # On a busy machine the emulated timer is late, and the kernel would give it up. Nobody attacks it.
        *("-append", f"console=ttyS0 panic=-1 quiet no_timer_check mitigations=off {clock()} ROLE={role}"),
        *("-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"),
        *("-virtfs", f"local,path={plan.folder / 'shared'},mount_tag=shared,security_model=none"),
        *("-netdev", wire),
        *("-device", f"virtio-net-pci,netdev=wire,mac=52:54:00:00:00:0{'ab'.index(role) + 1},host_mtu=4200,romfile="),
    ]


def write_variables(path, **variables):
    path.write_text("".join(f"{name}={shlex.quote(str(value))}\n" for name, value in variables.items()))


def prepare(plan):
    """An empty folder for logs and results, with what the guests have to know."""
    shutil.rmtree(plan.folder, ignore_errors=True)
    for suite in plan.suites:
        for name in ("sync", "results"):
            (plan.shared(suite) / name).mkdir(parents=True)
        # Wherever it is, here the guests see it.
        shutil.copy(suite.path, plan.shared(suite) / "suite.sh")
        write_variables(plan.shared(suite) / "about", GUESTS=suite.guests, LIMIT_S=suite.limit_s)
    terminal = shutil.get_terminal_size()
    write_variables(
        plan.folder / "shared" / "machine",
        REPOSITORY=REPOSITORY,
        PROFILE=os.environ.get("PROFILE", "release"),
        TERMINAL=os.environ.get("TERM", "dumb"),
        TERMINAL_COLUMNS=terminal.columns,
        TERMINAL_ROWS=terminal.lines,
        SUITES=" ".join(suite.name for suite in plan.suites),
    )


def boot(image, plan, terminal, stack):
    """The running machines by role. `terminal` is the role that has our terminal, if one has."""
    ends = wire_ends(plan.wire, stack)
    machines = {}
    for role in plan.roles:
        end, descriptors = ends[role]
        log = None if role == terminal else stack.enter_context(open(plan.log(role), "wb"))
        machine = subprocess.Popen(
            qemu_command(image, plan, role, end),
            stdin=None if role == terminal else subprocess.DEVNULL,
            stdout=log,
            stderr=None if role == terminal else subprocess.STDOUT,
            pass_fds=descriptors,
        )
        stack.callback(machine.wait)
        stack.callback(machine.kill)
        machines[role] = machine
    return machines


def wait(machines, plan, tell):
    """Until all suites have ended, which are told of one by one, or one cannot any more; then why."""
    begun = time.monotonic()
    waiting_for = list(plan.suites)
    deadline = begun + BOOT_S + waiting_for[0].limit_s + GRACE_S
    first_end = None
    while waiting_for:
        time.sleep(0.1)
        # Looked at before the files: who ended has written them.
        ended = [machine for machine in machines.values() if machine.poll() is not None]
        now = time.monotonic()
        suite = waiting_for[0]
        if None not in plan.statuses(suite).values():
            tell(waiting_for.pop(0), now - begun, None)
            begun = now
            deadline = now + (waiting_for[0].limit_s if waiting_for else 0) + GRACE_S
            continue
        if len(ended) == len(machines):
            return "ended without a status"
        if ended and first_end is None:
            first_end = now
        if first_end is not None and now > first_end + GRACE_S:
            return f"is still running {GRACE_S} s after its peer ended"
        if now > deadline:
            return f"is not done after {suite.limit_s} s"
    return None


def why_it_failed(statuses, ended):
    """None: it did not. The guest that failed first; its peer may only have waited for it."""
    for role, status in sorted(statuses.items(), key=lambda item: not item[1]):
        if status is None:
            return f"guest {role} {ended or 'ended without a status'}"
        if status:
            return f"guest {role} ended with {status}"
    return None


def show_failure(plan, suite):
    for role in suite.roles():
        text = plan.log(role).read_bytes().replace(b"\r\n", b"\n").decode(errors="replace")
        _, begun, of_suite = text.partition(f"\nvm-suite {suite.name}\n")
        if not begun and suite is not plan.suites[0]:
            print(f"---- '{suite.name}' did not begin in guest {role}")
            continue
        # What was printed in this suite, or before the first.
        shown = of_suite.split("\nvm-suite ")[0] if begun else text
        print(f"---- the end of '{suite.name}' in {plan.log(role)}")
        print("\n".join(shown.splitlines()[-LINES_SHOWN:]))
    print("----")


def run_suites(plan):
    image = make_image()
    prepare(plan)
    failed = []
    told = set()

    def tell(suite, seconds, ended):
        told.add(suite.name)
        why = why_it_failed(plan.statuses(suite), ended)
        print(f"vm: {suite.name}: {why or 'passed'} ({seconds:.0f} s)", flush=True)
        if why:
            failed.append(suite.name)
            show_failure(plan, suite)
        for result in sorted((plan.shared(suite) / "results").glob("*.jsonl")):
            print(f"vm: {suite.name}: {result.stem}:", *result.read_text().splitlines(), sep="\n  ", flush=True)

    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        machines = boot(image, plan, None, stack)
        ended = wait(machines, plan, tell)
    for suite in plan.suites:
        if suite.name not in told:
            tell(suite, 0, ended)
    print(f"vm: all: {time.monotonic() - begun:.0f} s, logs in {plan.folder}", flush=True)
    if failed:
        sys.exit(f"vm: FAILED: {', '.join(failed)}")


def run_shell():
    """A shell in guest a, on our terminal, until it ends."""
    if not sys.stdin.isatty():
        sys.exit("vm: a shell wants a terminal")
    image = make_image()
    plan = Plan([Suite(HERE / "shell.sh")], "pair")
    prepare(plan)
    with contextlib.ExitStack() as stack:
        # A machine that is killed leaves the terminal as it had it.
        stack.callback(termios.tcsetattr, sys.stdin, termios.TCSADRAIN, termios.tcgetattr(sys.stdin))
        boot(image, plan, "a", stack)["a"].wait()


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
        run_suites(Plan([Suite(path) for path in paths], arguments.wire))


main()
