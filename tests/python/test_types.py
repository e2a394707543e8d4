"""The stubs are complete, and say what is there."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="mypy is not installed")
ROOT = Path(__file__).resolve().parents[2]


def run(*command, cwd):
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)], capture_output=True, text=True, cwd=cwd
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_mypy_is_content_with_the_package_and_the_examples(tmp_path):
    users = [path for path in (ROOT / "examples/python", ROOT / "demo") if path.exists()]
    # By its name and not its path: below site-packages, mypy takes every neighbour for a source too.
    run("mypy", "--strict", "--cache-dir", tmp_path, "-p", "rgaps", cwd=tmp_path)
    run("mypy", "--strict", "--cache-dir", tmp_path, *users, cwd=tmp_path)


@pytest.mark.timeout(300)
def test_the_stubs_are_what_the_module_is(tmp_path):
    allowed = Path(__file__).with_name("stubtest.allow")
    run("mypy.stubtest", "rgaps", "--allowlist", allowed, "--ignore-unused-allowlist", cwd=tmp_path)
