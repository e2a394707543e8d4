"""Finds figures in JSON files, whatever file and depth they are at, by what they look like.

A figure is one of: `latency`, `header`, `handoff`, `fanout`, `fanin`, `alloc`, `spread`, `link`, `copies` (documents of `rgaps bench` and
`rgaps-compare`), `compare` (of bench/compare/run), `python` (bench/python_latency.py), `zeroing` (bench/zeroing.py), `weights` (bench/weights.py), `kv-cache`
(make demo-kv), `dmaplane` (make bench-dmaplane), `tree` (routing's test of a thousand hosts), `races`, `kills` (rgaps-races, rgaps-chaos), `device-latency`, `device-rate`, `ladder` (the checks of device
topics and of RDMA that kernels post). Files may be whole reports or one figure each; a figure that is in several is taken once.
"""
import json
import re
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Figure:
    kind: str
    name: str  # where in the file it was
    value: dict
    source: "Source"


@dataclass
class Source:
    """A file, and what it says of the run that it is from."""

    path: Path
    date: str
    about: dict = field(default_factory=dict)  # machine, revision, command


def kind_of(value):
    keys = value.keys()
    if value.get("tool") == "compare":
        return "compare"
    if value.get("tool") in ("weights", "kv-cache", "dmaplane", "zeroing"):
        return value["tool"]
    if {"clock", "sizes"} <= keys:
        return "handoff"
    if {"counts", "per_subscriber_us"} <= keys:
        return "fanout"
    if "counts" in keys and "publishers" in value["counts"][0]:
        return "fanin"
    if {"batch", "counts", "size_min"} <= keys:
        return "alloc"
    if "half_round_trip_p50_us" in keys:
        return "device-latency"
    if {"blocks", "messages_per_s", "gib_per_s"} <= keys:
        return "device-rate"
    if {"ladder", "posting_alone"} <= keys:
        return "ladder"
    if {"of_bare", "arrived"} <= keys:
        return "spread"
    if {"transport", "raw_tcp_gbit_s"} <= keys:
        return "link"
    if "copies" in keys and "gpu" in keys:
        return "copies"
    if {"python", "rows", "growth"} <= keys:
        return "python"
    if {"hop_seconds", "hosts_below_dead"} <= keys:
        return "tree"
    if {"runs", "across"} <= keys:
        return "races"
    if {"kills", "stuck"} <= keys:
        return "kills"
    if {"wait", "size", "p50_us", "floor", "subscribers"} <= keys:
        return "header" if "header" in keys else "latency"
    return None


def walk(value, name):
    if isinstance(value, dict):
        kind = kind_of(value)
        if kind:
            yield kind, name, value
            return
        for key, each in value.items():
            yield from walk(each, f"{name}/{key}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from walk(each, f"{name}/{number}")


def first(value, key):
    """The first value of that key, the outermost first."""
    found = value.get(key)
    if found:
        return found
    for each in value.values():
        if isinstance(each, dict) and (found := first(each, key)):
            return found
    return None


def machine_text(machine):
    if not isinstance(machine, dict):
        return str(machine) if machine else None
    gpus = machine.get("gpus") or ([machine["gpu"]] if machine.get("gpu") else [])
    parts = [re.sub(r"^GPU \d+: ", "", gpus[0]) + (f" x {len(gpus)}" if len(gpus) > 1 else "")] if gpus else []
    parts += [f"{machine.get('cores')} cores of {machine.get('cpu')}", f"Linux {machine.get('kernel')}"]
    return ", ".join(parts)


def date_of(path, root, value):
    """Of its name, or its folder's, or what it says. Without any it counts as the newest."""
    for text in (str(path.relative_to(root)), str(value.get("date") or "")):
        found = re.search(r"(20\d\d)-?(\d\d)-?(\d\d)", text)
        if found:
            return "-".join(found.groups())
    return "9999"


def read(root):
    """All figures, and what was left out and why."""
    figures, left_out, seen = [], [], set()
    files = sorted(Path(root).rglob("*.json"))
    # Whole reports last: what has a file of its own is taken from there.
    for path in sorted(files, key=lambda path: path.name.endswith("report.json")):
        name = str(path.relative_to(root))
        try:
            value = json.loads(path.read_text())
        except ValueError as error:
            left_out.append((name, f"no JSON: {error}"))
            continue
        if not isinstance(value, dict):
            left_out.append((name, "is no object"))
            continue
        report = path.parent / "report.json"
        about = value
        if report.exists() and report != path and not value.get("revision"):
            about = json.loads(report.read_text()) | {key: value[key] for key in ("command",) if key in value}
        commands = value.get("command") or value.get("commands")
        source = Source(path, date_of(path, Path(root), value), {
            "machine": machine_text(first(value, "machine") or first(about, "machine")),
            "revision": first(about, "revision") or about.get("build"),
            "command": "; ".join(commands.values()) if isinstance(commands, dict) else commands,
        })
        found = list(walk(value, path.stem))
        for kind, where, each in found:
            text = json.dumps(each, sort_keys=True)
            if kind == "kills":
                # Two runs that found nothing may say the same.
                text += str(path.parent)
            if text not in seen:
                seen.add(text)
                figures.append(Figure(kind, where, each, source))
        if not found:
            left_out.append((name, "holds nothing that is drawn"))
    return figures, left_out


def newest(figures):
    """Those of the newest date only: what was measured on different days is not put into one plot."""
    dates = sorted({figure.source.date for figure in figures})
    return [figure for figure in figures if figure.source.date == dates[-1]] if dates else []
