"""bench/compare without torch: its arithmetic, and that it fails truthfully. The rest wants torch, which CI has not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# In dist/ it lies elsewhere.
HERE = next(path for path in (ROOT / "bench/compare", ROOT / "compare") if path.exists())


@pytest.fixture
def figures(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    import figures

    yield figures
    sys.modules.pop("figures")


def compare(*arguments, **env):
    return subprocess.run(
        [sys.executable, str(HERE / "run"), *arguments],
        capture_output=True, text=True, timeout=60, env=os.environ | env,
    )


def test_times(figures):
    found = figures.times([1000 * (n + 1) for n in range(100)][::-1])
    assert found == {"p50_us": 51.0, "p99_us": 100.0, "min_us": 1.0, "max_us": 100.0}
    assert figures.times([7000])["p99_us"] == 7.0


@pytest.mark.parametrize("wrong", [("--only", "transfers"), ("--ways", "ros"), ("--only", "")])
def test_wrong_usage(wrong):
    run = compare(*wrong)
    assert run.returncode == 2 and wrong[0] in run.stderr and run.stdout == ""


def test_what_cannot_run_says_so(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch on this day')\n")
    out = tmp_path / "out"
    run = compare("--quick", "--only", "transfer", PYTHONPATH=str(tmp_path), OUT=str(out))
    report = json.loads(run.stdout)
    assert run.returncode == 1 and not report["ok"] and not report["finished"]
    assert "no torch on this day" in report["failures"][0]["how"]
