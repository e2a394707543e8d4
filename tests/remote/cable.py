#!/usr/bin/env python3
"""Two hosts (network namespaces), CUDA programs on one and a GPU server on the other. First one of several connections of a program falls silent, as behind a
router that forgot it; then the cable is pulled. Nothing ends a connection. Each program must get CUDA's error, and the server's processes for them must end,
also for a program that is stopped and ends nothing itself. The last line is JSON: {programs, failed, clients_left}."""
import json, os, pathlib, signal, subprocess, sys, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "demo"))
from netns import Host, connect, enter_namespaces  # noqa: E402
from remote import PORT, TRUSTED, serve  # noqa: E402

BUILD = ROOT / "target/debug"
CASES = ["while_it_waits_for_a_kernel", "while_it_copies", "while_it_copies_much"]
# Far more than TCP's own questions take, and far less than the quarter of an hour after which it gives up by itself.
LIMIT_S = 180


class Hosts:
    """The host with the server, and the one with the programs."""

    def __init__(self, folder):
        self.there, self.here = Host("gpu", "10.87.0.1", folder), Host("far", "10.87.0.2", folder)
        self.folder, self.unix, self.processes, self.failed = folder, f"unix:{folder}/gpu.sock", [], 0

    def serve(self):
        connect(self.there, self.here)
        for host in (self.there, self.here):
            host.ip("addr", "add", f"{host.address}/24", "dev", host.cable)
            host.ip("link", "set", "lo", "up")
            host.plug_in()
        self.processes.append(serve(self.there, BUILD / "rgaps", BUILD / "librgaps_test_driver.so", self.folder / "server.log", ["--listen", self.unix]))

    def start(self, case):
        """A program that is ready."""
        words = [*self.here.enter, BUILD / "rgaps", "gpu", "run", "--on", f"{self.there.address}:{PORT}", "--libraries", BUILD / "gpu-libs", "--"]
        words = [str(word) for word in [*words, ROOT / "target/remote/cable", case]]
        env = dict(os.environ, RGAPS_GPU_STRIPES="2", **TRUSTED)
        program = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.processes.append(program)
        assert program.stdout.readline() == "ready\n", f"{case}: {program.stderr.read()}"
        return program

    def silence(self, program):
        """Loses all that the program sends over its last connection from now on."""
        links = sorted(pathlib.Path(f"/proc/{program.pid}/fd").iterdir(), key=lambda link: int(link.name))
        names = [os.readlink(link) for link in links]
        rows = [line.split() for line in pathlib.Path(f"/proc/{program.pid}/net/tcp").read_text().splitlines()[1:]]
        ports = {f"socket:[{row[9]}]": int(row[1].split(":")[1], 16) for row in rows}
        last = [ports[name] for name in names if name in ports][-1]
        self.here.ip("rule", "add", "ipproto", "tcp", "sport", str(last), "blackhole")

    def wait(self, program):
        """Until it has ended."""
        begun = time.monotonic()
        try:
            out, err = program.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            out, err = "", f"still runs after {LIMIT_S} s"
        print(f"{program.args[-1]}: exit {program.returncode} after {time.monotonic() - begun:.1f} s: {out}{err}".strip(), flush=True)
        self.failed += program.returncode != 0

    def clients(self):
        words = [str(BUILD / "rgaps"), "gpu", "list", "--json", "--on", self.unix]
        return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)["clients"]

    def left(self):
        """How many clients the server has in the end."""
        until = time.monotonic() + LIMIT_S
        while self.clients() and time.monotonic() < until:
            time.sleep(0.2)
        return len(self.clients())

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()
        for host in (self.there, self.here):
            host.end()


def main():
    enter_namespaces()
    with tempfile.TemporaryDirectory() as folder:
        hosts = Hosts(pathlib.Path(folder))
        try:
            hosts.serve()
            stopped, copying = hosts.start("while_it_waits_for_a_kernel"), hosts.start("while_it_copies_much")
            stopped.send_signal(signal.SIGSTOP)
            hosts.silence(stopped)
            hosts.silence(copying)
            hosts.wait(copying)
            left = hosts.left()
            stopped.send_signal(signal.SIGCONT)
            hosts.wait(stopped)
            programs = [hosts.start(case) for case in CASES]
            hosts.here.pull()
            for program in programs:
                hosts.wait(program)
            left += hosts.left()
        finally:
            hosts.end()
    print(json.dumps({"programs": 2 + len(CASES), "failed": hosts.failed, "clients_left": left}))
    return bool(hosts.failed or left)


if __name__ == "__main__":
    sys.exit(main())
