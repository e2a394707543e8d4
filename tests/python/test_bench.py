"""bench/python_latency.py: that it runs, on the host and with a kernel in flight, and has all that it says. No times."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REAL_GPU

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "bench/python_latency.py"
STAND_IN = Path(__file__).parent / "stand_in"
MESSAGES = 4


def measured(*arguments, **env):
    command = [sys.executable, str(PROGRAM), "--sizes", "4096", "--messages", str(MESSAGES), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ordered(times):
    assert 0 < times["min_us"] <= times["p50_us"] <= times["p99_us"] <= times["max_us"]


@pytest.mark.parametrize("wait", ["poll", "block"])
def test_on_the_host(wait):
    found = measured("--wait", wait)
    assert [(row["pace"], row["state"]) for row in found["rows"]] == [("awake", "there"), ("asleep", "there")]
    for row in found["rows"]:
        assert (row["messages"], row["lost"], row["corrupt"]) == (MESSAGES, 0, 0)
        for times in (row, row["from_the_call"], row["publish"], row["floor"]):
            ordered(times)
    assert found["growth"] == []


@pytest.mark.skipif(REAL_GPU, reason="has a stand-in for torch over the test driver")
@pytest.mark.parametrize("wait", ["poll", "block"])
def test_with_a_kernel_in_flight(wait):
    found = measured("--wait", wait, "--domain", "cuda", PYTHONPATH=str(STAND_IN), RGAPS_TEST_DRIVER_DELAY_US="800")
    states = ["there", "idle", "in_flight", "beside"]
    assert [(r["pace"], r["state"]) for r in found["rows"]] == [(p, s) for p in ("awake", "asleep") for s in states]
    for row in found["rows"]:
        assert (row["messages"], row["lost"], row["corrupt"]) == (MESSAGES, 0, 0)
        ordered(row)
        ordered(row["floor"])
        # Only on a stream is the driver asked, and only with a kernel on it is a number written.
        calls = {"idle": ["query"], "in_flight": ["query", "write"]}.get(row["state"], [])
        assert list(row.get("driver", {})) == calls
        assert ("pattern" in row) == bool(calls)
        assert row["kernel_in_flight_us"] == (1000 if row["state"] in ("in_flight", "beside") else 0)
    at = {(row["pace"], row["state"]): row for row in found["rows"]}
    for grown in found["growth"]:
        rows = [at[grown["pace"], state] for state in states]
        there, idle, in_flight, beside = rows
        less = lambda a, b: pytest.approx(a["p50_us"] - b["p50_us"], abs=0.01)
        assert grown["us"]["in_flight"] == less(in_flight, idle)
        assert grown["us"]["in_flight_over_beside"] == less(in_flight, beside)
        assert grown["us"]["beside_over_there"] == less(beside, there)
        assert grown["us"]["pattern_in_flight_over_floor"] == less(in_flight["pattern"], in_flight["floor"])


@pytest.mark.timeout(600)
def test_weights_to_readers_of_one_host():
    pytest.importorskip("torch", reason="torch is not installed here")
    command = [sys.executable, str(ROOT / "bench/weights.py"), "--mib", "16", "--readers", "2", "--rounds", "1", "--ways", "rgaps,file,gloo,socket"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ok"] and list(found["ways"]) == ["rgaps", "file", "gloo", "socket"]
    for of in found["ways"].values():
        assert of["wrong_tensors"] == 0 and 0 < of["min_ms"] <= of["median_ms"] <= of["max_ms"] and of["readers_pss_mib"] > 0
