"""tools/plots: what it draws of which files, and that it says what it left out."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DRAW = ROOT / "tools/plots/draw.py"
pytestmark = [
    pytest.mark.skipif(not DRAW.exists(), reason="tools/plots is not here"),
    pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"),
]


def spread(us):
    return {"p50_us": us, "p99_us": us * 2, "min_us": us / 2, "max_us": us * 3}


def latency(domain, size, wait, us):
    found = spread(us) | {"domain": domain, "size": size, "subscribers": 1, "wait": wait, "floor": spread(us / 2)}
    if domain != "host":
        found["gpu"] = {"mps": False, "copied": spread(us * 9)}
    return found


def handoff(mps, us):
    sizes = [spread(us) | {"size": size, "kernel_us": k, "floor_us": us / 1.5} for size in (4096, 4 << 20) for k in (0, 200)]
    return {"clock": "one", "mps": mps, "wait": "poll", "sizes": sizes}


def fanout(domain):
    way = {"last": spread(3.0), "latency": spread(2.0), "floor": {"send": spread(0.5), "latency": spread(1.0)}}
    counts = [{"subscribers": n, "awake": way, "sleeping": way} for n in (1, 2, 4)]
    return {"domain": domain, "size": 64 << 20, "per_subscriber_us": {}, "counts": counts}


def compare(device, finished=True):
    faster = {"rgaps": 1.0, "torch-ipc": 0.5, "zenoh": 9.0, "hop": 0.1}
    rows = [
        {"way": way, "size": size, "consumers": n, "last": spread(size / 1000), "rate": {"messages_per_s": 900.0 / faster[way]}}
        for way in faster for size in (4096, 65536) for n in (1, 4)
    ]
    parts = {"wait": 1.0, "transport": 0.5, "compute": 2.0, "transport out": 0.25}
    pipeline = [
        {
            "way": way, "models": "standard", "batch": batch, "sinks": ["segment", "classify"],
            "frames_per_s": {"segment": 100.0, "classify": 90.0}, "bound_frames_per_s": 200.0,
            "latency": {"segment": spread(9e3), "classify": spread(5e3)},
            "alone_ms": {"source": 1, "blur": 1, "segment": 3, "classify": 2},
            "profile_ms": {stage: parts for stage in ("source", "blur", "segment", "classify")},
        }
        for way in ("rgaps", "torch-ipc", "iceoryx2", "zenoh") for batch in (1, 4)
    ]
    rates = {"rgaps": 300.0, "torch-ipc": 400.0, "iceoryx2": 100.0}
    sharing = [
        {
            "scenario": name, "way": way, "consumers": 4, "bytes": 4 << 20, "sets_per_s": rate, "gib_per_s": 1.0, "rounds": 3, "compute_ms": 2.0, "copy_ms": 3.0,
            "transport_of_compute": 1.5, "model": {"in_turn": 2.5, "overlapped": 1.5},
        }
        for name in ("cameras", "sweep-4K") for way, rate in rates.items()
    ]
    serialise = {"way": "pickle", "bytes": 4000000, "serialise": spread(700.0), "deserialise": spread(300.0)}
    return {
        "tool": "compare", "device": device, "sections": ["serialisation", "transfer", "pipeline", "sharing"], "revision": "c0ffee", "command": "compare/run --only all",
        "machine": {"gpu": "NVIDIA Test", "cores": 2, "cpu": "Some", "kernel": "6"},
        "failures": [{"name": "pipeline: iceoryx2, batch 4", "how": "it stood still"}],
        "serialisation": {"finished": True, "rows": [serialise], "floor_copy": spread(250.0)},
        "transfer": {"finished": finished, "rows": rows, "floor_copy": [{"size": 4096} | spread(20.0), {"size": 65536} | spread(30.0)]},
        "pipeline": {"finished": finished, "rows": pipeline},
        "sharing": {"finished": finished, "rows": sharing},
    }


def draw(folder, files):
    results, out = folder / "results", folder / "docs"
    for name, value in files.items():
        path = results / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value))
    run = subprocess.run(
        [sys.executable, str(DRAW), "--results", str(results), "--out", str(out)],
        capture_output=True, text=True, timeout=120,
    )
    assert run.returncode == 0, run.stderr
    plots = {path.stem: path.read_text() for path in (out / "plots").glob("*.svg")}
    return plots, (out / "results.md").read_text(), run.stderr


def test_files_of_a_section_each(tmp_path):
    report = {"revision": "abc123", "machine": {"gpus": ["GPU 0: NVIDIA Test"], "cores": 2, "cpu": "Some", "kernel": "6"}}
    files = {
        f"h200-2026-11-22/figures-cuda-{size}-{wait}.json": latency("cuda:GPU-0", size, wait, us)
        for size in (4096, 1 << 22) for wait, us in (("poll", 0.5), ("block", 4.0))
    }
    files |= {
        "h200-2026-11-22/report.json": report | {"figures": {"again": latency("cuda:GPU-0", 4096, "poll", 0.5)}},
        "h200-2026-11-22/figures-handoff-poll.json": handoff(False, 142.0),
        "h200-2026-11-22/mps-handoff-poll.json": handoff(True, 5.0),
        "h200-2026-11-22/figures-cuda-fanout-64MiB.json": fanout("cuda:GPU-0"),
        "h200-2026-11-22/compare-all.json": compare("cuda"),
    }
    plots, page, _ = draw(tmp_path, files)
    assert sorted(plots) == ["fan-out-rates", "fanout", "handoff", "latency", "pipeline", "profile", "sharing", "transfer"]
    for name, plot in plots.items():
        assert "floor" in plot or "bound" in plot or "rgaps by" in plot, name
        assert len(plot) < 200_000
    assert "copied" in plots["latency"] and "MPS, poll, 4 MiB" in plots["handoff"]
    # Machine, revision and command of each.
    assert "| abc123 |" in page and "NVIDIA Test" in page and "compare/run --only all" in page
    assert "dist/gpu-check --only mps --match handoff-poll" in page
    assert "| pickle | 4000000 | 700 (1400) | 300 (600) |" in page
    # Rows that another way wins are there, one that stood still is not; CUDA IPC is in every comparison.
    assert "| no | standard | 1 | segment + classify | segment | rgaps | 100 | 1.00 x iceoryx2 | 1.00 x zenoh | 1.00 x torch-ipc | 1.00 | 50% |" in page
    assert "| no | standard | 4 | segment + classify | segment | rgaps | 100 |  | 1.00 x zenoh | 1.00 x torch-ipc | 1.00 | 50% |" in page
    assert "| 4 KiB | 4 | 900 | 0.50 | 9.00 |" in page
    assert "| no | cameras | 4 | 4.0 | 300.0 | 0.75 | 3.00 | 1.50 | 1.50-2.50 |" in page


def test_of_a_run_that_ended_early_only_the_finished_ways_are_drawn(tmp_path):
    plots, page, _ = draw(tmp_path, {"h200-2026-11-22/compare-all.json": compare("cuda", finished=False)})
    assert sorted(plots) == ["fan-out-rates", "transfer"]
    # The rows of the last way, hop, may not be all; no table has them.
    assert "zenoh" in plots["transfer"] and "hop" not in page and page.count("The run ended early") == 4


def link(size, subscribers, domain="cuda:GPU-0", tls=False):
    own = [size / 1e3] * subscribers
    return spread(size / 1e3) | {
        "transport": "tcp", "domain": domain, "size": size, "subscribers": subscribers, "lanes": 2, "topics": 1,
        "tls": tls, "wait": "block", "gbit_s": 9.0, "raw_tcp_gbit_s": 10.0, "raw_tls_gbit_s": 5.0 if tls else None,
        "floor": spread(1.0), "stages": {"alloc_us": 0.4, "d2h_us": 80.0, "wire_us": size / 2e3, "h2d_us": 1234.5, "notify_us": 6.0 + subscribers},
        "thesis": {
            "baseline_us": size / 1e2, "series_us": size / 5e2,
            "baseline_stages": {"d2h_pageable_us": 2.0, "unix_socket_us": 3.0, "wire_us": 4.0, "h2d_each_us": own},
            "series_stages": {"d2h_pinned_us": 1.0, "wire_us": 2.0, "h2d_once_us": 1.0},
        },
    }


def test_links_are_those_of_one_machine(tmp_path):
    gpu, vm = ({"machine": {"gpus": gpus, "cores": 2, "cpu": cpu}} for gpus, cpu in ((["GPU 0: NVIDIA Test"], "A"), ([], "B")))
    files = {
        f"h200-2026-11-22/links-{size}-k{k}.json": link(size, k) | gpu for size in (4 << 20, 64 << 20) for k in (1, 8)
    }
    files |= {
        "h200-2026-11-22/links-tls.json": link(64 << 20, 1, "host", True) | gpu,
        "h200-2026-11-22/links-copies.json": gpu | {
            "gpu": "NVIDIA Test", "copies": [{"size": 4096, "d2h_ratio": 1.9, "h2d_ratio": 1.8}],
        },
        "vm-2026-11-22/links-host.json": link(4 << 20, 1, "host") | vm,
    }
    plots, page, told = draw(tmp_path, files)
    assert sorted(plots) == ["link-rate", "thesis-2-2", "thesis-4-1", "thesis-4-2", "thesis-4-3-to-5", "thesis-4-6"]
    assert "64 MiB" in plots["thesis-4-6"] and "host, 64 MiB, 2 lanes, 1 topics, 1 subscribers, TLS" in plots["link-rate"]
    assert "| 4 MiB | 1 | 2 | 4194 | 8389 | 2.00 | 5.50 |" in page
    assert "TCP on both sides" in plots["thesis-4-2"]
    assert "| 4 MiB | 0.4 | 1 | 80 | 224 | 7 | 1 |" in page and "| 64 MiB | here | 0.4 | 1234 | 7 |  |  | 14 |" in page
    assert "links-host.json" in told and "dist/gpu-check --only links --match tls" in page


def test_gaps_and_device_topics(tmp_path):
    times = {"p50_ns": 200, "cpu_ns": 150.0}
    lock = {"loan": times, "release": times}
    pair = spread(7.0) | {"floor": spread(6.0)}
    fan = fanout("host")
    for count in fan["counts"]:
        count |= {way: count[way] | {"pairs": [spread(7.0)] * count["subscribers"]} for way in ("awake", "sleeping")}
    latency_of = lambda way, size, peer: {
        "back_end": "cuda", "way": way, "domain": "cuda", "peer": peer, "bytes": size, "subscribers": 1, "threads": 32, "half_round_trip_p50_us": 1.5, "round_trip_p99_us": 5.0,
    }
    rate = {"back_end": "cuda", "domain": "cuda", "peer": "cuda", "bytes": 64, "messages_per_s": 1e5, "gib_per_s": 0.1}
    rungs = [{"rung": name, "posts_per_s": posts, "groups": 1} for name, posts in (("naive", 1e5), ("pipelined", 2e5))]
    files = {
        "a-2026-11-22/figures-host-fanin.json": {"counts": [{"publishers": n, "pairs": [pair] * n} for n in (1, 2)]},
        "a-2026-11-22/figures-host-fanout.json": fan,
        "a-2026-11-22/figures-host-alloc.json": {"batch": 64, "size_min": 4096, "counts": [
            {"processes": 1, "semaphore": lock, "ticket_lock": lock, "floor": lock} | lock,
        ]},
        "a-2026-11-22/figures-zeroing.json": {"tool": "zeroing", "rows": [{"mib": 1024, "threads": 1, "of_400_gbit_link": 0.2}]},
        "a-2026-11-22/device-bare.json": latency_of("bare", 8, "cuda"),
        "a-2026-11-22/device-latency-8B.json": latency_of("topic", 8, "cuda"),
        "a-2026-11-22/device-latency-two-gpus.json": latency_of("topic", 4096, "cuda:1"),
        "a-2026-11-22/device-rate.json": [rate | {"blocks": n} for n in (1, 4)][0],
        "a-2026-11-22/device-handoff-poll.json": handoff(True, 5.0),
        "a-2026-11-22/device-latency-8B-busy.json": latency_of("topic", 8, "cuda") | {"cpu_load": 16, "half_round_trip_p50_us": 1.8},
        "a-2026-11-22/device-handoff-poll-busy.json": handoff(True, 50.0) | {"cpu_load": 16},
        "a-2026-11-22/gpu-verbs-ladder.json": {"kernels": "cuda", "ladder": rungs, "posting_alone": []},
    }
    plots, page, _ = draw(tmp_path, files)
    assert sorted(plots) == ["device-latency", "device-rate", "fanout", "gaps-6a", "gaps-6b", "gpu-verbs-ladder", "handoff", "thesis-3-9"]
    assert "| device topic, 8 B, one way, p50, us | 1.5 | 1.8 | 1.20 |" in page
    assert "| launched by hosts, 4 KiB, queued before, one way, p50, us | 5.0 | 50.0 | 10.00 |" in page
    assert "| 1 | 0.20 (0.15) |" in page and "| 3.1 / 2.9 | 0.3 / 0.3 |" in page
    assert "kernels launched by hosts" in plots["device-latency"] and "bare flag" in plots["device-latency"]


def python_latency(wait):
    at = lambda state, us: {"size": 4096, "pace": "awake", "state": state} | spread(us) | {"floor": spread(us / 2)}
    in_flight = at("in_flight", 4.0) | {"pattern": spread(3.0)}
    growth = [{"size": 4096, "pace": "awake", "us": {"in_flight": 1.5}}]
    return {"domain": "cuda", "wait": wait, "python": "3", "rows": [at("there", 2.0), in_flight], "growth": growth}


def weights(hosts, readers, mbit):
    ways = {"rgaps": {"median_ms": 1500.0, "min_ms": 1250.0, "max_ms": 2000.0, "readers_pss_mib": 2048.4, "wrong_tensors": 0}}
    return {"tool": "weights", "mib": 1024, "hosts": hosts, "readers_on_each_host": readers, "mbit": mbit, "ways": ways}


def kv_cache():
    left = {"kv": 5.0, "consolidated": 50.0}
    ms = lambda way: {"prefill": 600.0, "consolidate": 1.0, "transfer": left.get(way, 60.0), "reconstruct": 0.5, "ttft": 700.0}
    ways = ("kv", "consolidated", "pickle", "gloo", "gloo-layers", "local")
    same = {"group": 1920, "tokens_per_s": 200.0, "wrong_tokens": 0, "corrupt": 0}
    return {"tool": "kv-cache", "rows": [{"way": way, "ms": ms(way)} | same for way in ways for _ in range(3)]}


def test_tables(tmp_path):
    ran = lambda scenario, skip, wrong: {"scenario": scenario, "skip": skip, "checked": 9, "wrong": wrong}
    races = {"gpus": 2, "across": "copy", "runs": [ran("publish", False, 0), ran("publish", True, 7), ran("evict", False, 0)]}
    none = {"kills": 52, "leaked_blocks": 0, "corrupt": 0, "stuck": 0, "double_frees": 0}
    files = {
        "a-2026-11-22/python-latency-poll.json": python_latency("poll"),
        "a-2026-11-22/races-across-copy-read.json": races,
        "a-2026-11-22/chaos-kills.json": none,
        "a-2026-11-22/report.json": {"chaos": {"kills": none}},
        "b-2026-11-22/chaos-kills-across-gpus.json": none,
        "kv-cache-2026-11-22.json": kv_cache(),
        "weights-2026-11-22.json": weights(0, 4, 0),
        "weights-hosts-2026-11-22.json": weights(3, 1, 1000),
    }
    plots, page, told = draw(tmp_path, files)
    assert set(plots) == {"weights"}
    assert "| cuda | poll | 4 KiB | awake | there | 2.0 (4.0) | 1.0 (2.0) |  |  |" in page
    assert "| cuda | poll | 4 KiB | awake | in flight | 4.0 (8.0) | 2.0 (4.0) | 3.0 (6.0) | +1.5 |" in page
    assert "| 2 | another GPU, copy | publish | 9 | 0 | 7 of 9 |" in page
    assert "| 2 | another GPU, copy | evict | 9 | 0 |  |" in page
    assert "| 1 GiB | 1 host, 4 readers | `rgaps.weights` | 1.50 (1.25-2.00) | 2048 | 0 |" in page
    assert "| 1 GiB | 3 hosts, 1 reader each, 1 Gbit/s | `rgaps.weights`, `links.fanout = 0` |" in page
    assert "| 1920 | `rgaps.kv`, by layer | 600.0 | 1.0 | 5.0 | 0.5 | 700.0 | 90% | 200 | 0 |" in page
    # Of two machines, once each, though they found the same.
    assert page.count("| 52 | 0 | 0 | 0 | 0 |") == 2
    assert "dist/gpu-check --only races --match across-copy-read" in page
    assert "chaos-kills" not in told


def test_what_is_left_out_is_named(tmp_path):
    files = {
        "new-2026-11-22.json": {"a": latency("host", 4096, "poll", 0.3)},
        "old-2026-11-21.json": {"a": latency("host", 4096, "poll", 0.9)},
        "broken.json": "{",
        "other.json": {"seed": 1},
        "compare-cpu-2026-11-22.json": compare("cpu"),  # tests the program, and measures nothing
    }
    plots, page, told = draw(tmp_path, files)
    assert list(plots) == ["latency"] and "new-2026-11-22.json" in page
    for name in ("old-2026-11-21.json", "broken.json", "other.json", "compare-cpu", "handoff.svg"):
        assert name in told and name in page.split("## Not drawn")[1], name


def test_a_plot_that_nothing_is_there_for_goes(tmp_path):
    draw(tmp_path, {"a-2026-11-22.json": {"a": handoff(False, 1.0)}})
    (tmp_path / "results/a-2026-11-22.json").unlink()
    plots, _, _ = draw(tmp_path, {"b-2026-11-22.json": {"a": latency("host", 4096, "poll", 0.3)}})
    assert list(plots) == ["latency"]


def test_the_files_that_are_here(tmp_path):
    run = subprocess.run(
        [sys.executable, str(DRAW), "--out", str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert list((tmp_path / "plots").glob("*.svg"))


def test_the_page_names_what_is_there():
    page = (ROOT / "docs/performance/results.md").read_text()
    named = re.findall(r"\((plots/[\w-]+\.svg)\)", page)
    assert named and all((ROOT / "docs/performance" / name).exists() for name in named)
    files = re.findall(r"^\| `(bench/results/[^`]+)` \| ", page, re.MULTILINE)
    assert files and all((ROOT / name).exists() for name in files)
