"""Runs a page's blocks in order, as a reader would: in a folder and a realm of the page's own."""

from __future__ import annotations

import doctest
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from page import ROOT, RUN, SHOWN, Block, Page

#: A block that takes longer hangs.
LIMIT = 120
INSTALLED = ROOT / "target/docs-test/installed"
CHECKER = doctest.OutputChecker()
ELLIPSIS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def built(name: str) -> str:
    """The newest build of a program or library."""
    roots = [ROOT, Path(os.environ.get("RGAPS_DOCS_BUILT", ROOT))]
    found = [root / "target" / profile / name for root in roots for profile in ("release", "debug")]
    found = sorted((path for path in found if path.exists()), key=lambda path: path.stat().st_mtime)
    if not found:
        raise AssertionError(f"{name} is not built: `make docs-test` builds what pages need")
    return str(found[-1])


class Failed(AssertionError):
    def __init__(self, block: Block, what: str) -> None:
        super().__init__(f"{block.where}: {what}")


class Host:
    """Where commands run: a folder, an environment, and perhaps a network namespace."""

    def __init__(self, folder: Path, gpu: bool, enter: tuple[str, ...] = ()) -> None:
        self.folder, self.enter = folder, enter
        folder.mkdir(exist_ok=True)
        scripts = Path(sysconfig.get_path("scripts"))
        kept = {name: os.environ[name] for name in ("LANG", "PYTHONPATH", "CARGO_HOME", "RUSTUP_HOME", "HOME", "PROFILE") if name in os.environ}
        self.environment = {
            **kept,
            "PATH": f"{scripts}:{os.environ['PATH']}",
            "RGAPS_SOCKET": str(folder / "rgaps.sock"),
            "RGAPS_DAEMON": built("rgapsd"),
            "RGAPS_LINKS_PROGRAM": built("rgaps-links"),
            "RGAPS_CUDA_LIBRARY": built("librgaps_test_driver.so") if gpu else "/nonexistent/libcuda.so.1",
            "RGAPS_TEST_DRIVER_MEMORY_MB": "1024",
            "RGAPS_POOL__HOST__CAP": "1GiB",
            "PKG_CONFIG_PATH": str(INSTALLED / "lib/pkgconfig"),
            "LD_LIBRARY_PATH": str(INSTALLED / "lib"),
            "PYTHONUNBUFFERED": "1",
        }
        if "RGAPS_TEST_RUN" in os.environ:
            self.environment["RGAPS_TEST_RUN"] = os.environ["RGAPS_TEST_RUN"]

    def be_a_clone(self) -> None:
        """Everything of the repository is there, and a home; programs are found as a user's are."""
        for entry in ROOT.iterdir():
            if entry.name not in {".git", ".venv"}:
                (self.folder / entry.name).symlink_to(entry)
        home = Path(self.environment.get("HOME", "/root"))
        for name, folder in (("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")):
            self.environment.setdefault(name, str(home / folder))
        self.environment["HOME"] = str(self.folder)
        for name in ("RGAPS_DAEMON", "RGAPS_LINKS_PROGRAM", "PKG_CONFIG_PATH", "LD_LIBRARY_PATH"):
            del self.environment[name]


class Runner:
    def __init__(self, page: Page, ran, not_run) -> None:
        self.page, self.ran, self.not_run = page, ran, not_run
        self.folder = Path(tempfile.mkdtemp(prefix="rgaps-docs-"))
        self.started: list[tuple[Block, subprocess.Popen, Path]] = []
        self.called: list[int] = []  # process groups
        self.printed = ""
        self.cable: list[str] = []
        gpu = "gpu" in page.words
        self.hosts = {"": Host(self.folder / "here", gpu)}
        if "clone" in page.words:
            self.hosts[""].be_a_clone()
        else:
            (self.folder / "here/examples").symlink_to(ROOT / "examples")
        self.unreachable = ""
        if "hosts" in page.words:
            self._lay_cable(page.words["hosts"].split(), gpu)

    # Two network namespaces with a cable between them.

    def _lay_cable(self, words: list[str], gpu: bool) -> None:
        names, addresses = words[::2], words[1::2]
        spaces = [f"rgaps-docs-{os.getpid()}-{name}" for name in names]
        ends = [f"rgd{os.getpid()}{at}" for at in range(len(names))]
        commands = [f"ip netns add {space}" for space in spaces]
        commands.append(f"ip link add {ends[0]} netns {spaces[0]} type veth peer name {ends[1]} netns {spaces[1]}")
        for space, end, address in zip(spaces, ends, addresses):
            commands += [f"ip -n {space} addr add {address}/24 dev {end}", f"ip -n {space} link set {end} up"]
            commands.append(f"ip -n {space} link set lo up")
        for command in commands:
            try:
                run = subprocess.run(command.split(), capture_output=True, text=True, timeout=30)
            except FileNotFoundError as error:
                self.unreachable = f"there are no network namespaces here: {error}"
                return
            if run.returncode:
                self.unreachable = f"there are no network namespaces here: {run.stderr.strip()}"
                return
        self.cable = spaces
        for name, space in zip(names, spaces):
            self.hosts[name] = Host(self.folder / name, gpu, ("ip", "netns", "exec", space))

    def run(self) -> None:
        shared = [block for block in self.page.blocks if block.language == "python" and not block.words]
        done = False
        for block in self.page.blocks:
            if block.language in SHOWN and not block.words.keys() & {"output", "prints", "file"}:
                continue
            if block.language not in RUN | SHOWN:
                raise Failed(block, f"language {block.language!r}: name one of {', '.join(sorted(RUN | SHOWN))}")
            reason = self._reason(block)
            if reason:
                self.not_run.append((block.where, reason))
                continue
            if "shared" in self.page.words and block in shared:
                if not done:
                    self._python(block, shared)
                done = True
            else:
                self._one(block)
            self.ran[block.language] += 1
        for block, process, output in self.started:
            if process.poll() not in (None, 0):
                raise Failed(block, f"ended by itself with {process.returncode}:\n{output.read_text()}")

    def _reason(self, block: Block) -> str:
        if "skip" in block.words:
            if not block.words["skip"]:
                raise Failed(block, "`skip` needs a reason")
            return block.words["skip"]
        if "needs" in block.words and find_spec(block.words["needs"]) is None:
            return f"{block.words['needs']} is not installed here"
        if "on" in block.words and self.unreachable:
            return self.unreachable
        return ""

    def _one(self, block: Block) -> None:
        host = self.hosts[block.words.get("on", "")]
        if "file" in block.words:
            path = host.folder / block.words["file"]
            if path.is_symlink():
                raise Failed(block, f"{path.name} is a file of the repository, which a page does not write")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
            if block.words["file"] == "rgaps.toml":
                self._toml(block, host)
        elif "output" in block.words:
            self._compare(block, block.text, self.printed)
        elif "prints" in block.words:
            self._compare(block, block.text, self._beginning(block, block.text.count("\n")))
        elif block.language == "sh":
            if "background" in block.words:
                self._start(block, host)
            else:
                self.printed = self._call(block, host, ["bash", "-euo", "pipefail", "-c", block.text])
        else:
            getattr(self, f"_{block.language}")(block, *([[block]] if block.language == "python" else [host]))

    def _beginning(self, block: Block, lines: int) -> str:
        """The first lines of the program that was started last."""
        _, process, output = self.started[-1]
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            ended = process.poll() is not None
            printed = output.read_text().splitlines(keepends=True)
            if ended or len(printed) > lines or (len(printed) == lines and printed[-1].endswith("\n")):
                return "".join(printed[:lines])
            time.sleep(0.02)
        raise Failed(block, f"not {lines} lines within {LIMIT} s\n{self._logs()}")

    def _compare(self, block: Block, wanted: str, got: str) -> None:
        if not CHECKER.check_output(wanted, got, ELLIPSIS):
            raise Failed(block, f"the page says\n{wanted}\nbut it printed\n{got}")

    # Languages.

    def _python(self, block: Block, together: list[Block]) -> None:
        """Lines of the program have the numbers that they have in the page."""
        host = self.hosts[block.words.get("on", "")]
        lines: list[str] = []
        for each in together:
            lines += [""] * (each.line - len(lines)) + each.text.split("\n")[:-1]
        program = host.folder / f".block-{block.line}.py"
        program.write_text("\n".join(lines))
        run = f"exec(compile(open({str(program)!r}).read(), {self.page.name!r}, 'exec'), {{'__name__': '__main__'}})"
        self.printed = self._call(block, host, [sys.executable, "-c", run])

    def _console(self, block: Block, host: Host) -> None:
        """`$ ` begins a command; the lines after it are what it prints."""
        command, wanted = "", ""
        for line in [*block.text.split("\n")[:-1], None]:
            if line is not None and not line.startswith("$ "):
                wanted += line + "\n"
                continue
            if command:
                got = self._call(block, host, ["bash", "-euo", "pipefail", "-c", command + " 2>&1"])
                self._compare(block, f"$ {command}\n{wanted}", f"$ {command}\n{got}")
            command, wanted = (line or "")[2:], ""

    def _toml(self, block: Block, host: Host) -> None:
        """A configuration that the daemon would take."""
        path = host.folder / f".block-{block.line}.toml"
        path.write_text(block.text)
        check = f"""
import rgaps
try:
    rgaps.Node("docs", config={str(path)!r})
except rgaps.DaemonUnavailable:
    pass
"""
        environment = {"RGAPS_AUTOSTART": "false"}
        self._call(block, host, [sys.executable, "-c", check], environment)

    def _rust(self, block: Block, host: Host) -> None:
        """A program, or the body of a main that may fail."""
        text = block.text
        if "fn main" not in text:
            text = f"fn main() -> Result<(), Box<dyn std::error::Error>> {{\n{text}\nOk(())\n}}\n"
        source, program = host.folder / "block.rs", host.folder / "block"
        source.write_text(text)
        library = Path(built("librgaps.rlib"))
        target = ["-C", "target-feature=+cmpxchg16b"] if os.uname().machine == "x86_64" else []
        self._call(block, host, [
            "rustc", "--edition", "2021", "--extern", f"rgaps={library}", "-L", f"dependency={library.parent / 'deps'}",
            *target, "-o", str(program), str(source),
        ])  # fmt: skip
        self.printed = self._call(block, host, [str(program)])

    def _c(self, block: Block, host: Host) -> None:
        source, program = host.folder / "block.c", host.folder / "block-c"
        source.write_text(block.text)
        build = f"cc -Wall -Werror {source} -o {program} $(pkg-config --cflags --libs rgaps)"
        self._call(block, host, ["bash", "-euo", "pipefail", "-c", build])
        self.printed = self._call(block, host, [str(program)])

    # Processes.

    def _call(self, block: Block, host: Host, command: list[str], more: dict[str, str] | None = None) -> str:
        """What it prints on standard output; it must end well."""
        out, errors = (self.folder / f"block-{block.line}.{end}" for end in ("out", "err"))
        with open(out, "w") as to, open(errors, "w") as errors_to:
            process = subprocess.Popen(
                [*host.enter, *command], cwd=host.folder, env=host.environment | (more or {}), stdin=subprocess.DEVNULL,
                stdout=to, stderr=errors_to, start_new_session=True, preexec_fn=_default_signals,
            )  # fmt: skip
            self.called.append(process.pid)
            try:
                process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise Failed(block, f"did not end within {LIMIT} s\n{out.read_text()}{errors.read_text()}") from None
        if process.returncode:
            raise Failed(block, f"ended with {process.returncode}\n{out.read_text()}{errors.read_text()}{self._logs()}")
        return out.read_text()

    def _start(self, block: Block, host: Host) -> None:
        output = self.folder / f"block-{block.line}.out"
        with open(output, "w") as to:
            process = subprocess.Popen(
                [*host.enter, "bash", "-c", f"exec {block.text.strip()}"], cwd=host.folder, env=host.environment,
                stdin=subprocess.DEVNULL, stdout=to, stderr=to, start_new_session=True, preexec_fn=_default_signals,
            )  # fmt: skip
        self.started.append((block, process, output))

    def _logs(self) -> str:
        return "".join(f"\n--- {block.where} printed:\n{output.read_text()}" for block, _, output in self.started)

    def end(self) -> None:
        """Ends what the page started, and what that started."""
        for _, process, _ in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
        for _, process, _ in self.started:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        # What a block left in the background.
        for group in self.called:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)
        for host in self.hosts.values():
            if Path(host.environment["RGAPS_SOCKET"]).exists():
                with suppress(subprocess.TimeoutExpired):
                    subprocess.run(
                        [*host.enter, "rgaps", "down"], env=host.environment, capture_output=True, timeout=30
                    )
        for space in self.cable:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, timeout=30)
        shutil.rmtree(self.folder, ignore_errors=True)


def _default_signals() -> None:
    # Of a run in the background, SIGINT is ignored, and children would inherit that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
