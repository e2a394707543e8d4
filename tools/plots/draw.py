"""Draws bench/results/*.json: docs/performance/plots/*.svg, and docs/performance/results.md, which shows them.

Usage: draw.py [--results bench/results] [--out docs/performance]

Each plot is of one day's figures, the newest that has any for it, beside their floor. Prints what it left out.
"""
import argparse
import sys
from pathlib import Path

import matplotlib.pyplot as plt

import device
import dmaplane
import gaps
import links
import page
import tables
import ways
import weights
from look import COLOURS, Nothing, legend_below, line, size_axis, size_text
from read import newest, read


def latency(figures):
    """Time against size, host and GPU, with floors and the copying way."""
    # What was measured under MPS is another plot's, and with pauses none's.
    found = newest([
        f for f in figures
        if f.kind == "latency" and f.value["subscribers"] == 1 and not (f.value.get("gpu") or {}).get("mps")
        and not f.value.get("pause_us")
    ])
    places = [p for p in ("host", "cuda") if any(f.value["domain"].startswith(p) for f in found)]
    if not places:
        raise Nothing("no latency of one subscriber")
    figure, axes = plt.subplots(1, len(places), figsize=(4.4 * len(places), 3.4), sharey=True, squeeze=False)
    for axis, place in zip(axes[0], places):
        docs = [f.value for f in found if f.value["domain"].startswith(place)]
        for wait, style, marker, text in (("poll", "-", "o", "polled"), ("block", "--", "s", "blocking")):
            these = [d for d in docs if d["wait"] == wait]
            line(axis, [(d["size"], d["p50_us"]) for d in these], f"rgaps, {text}", COLOURS["rgaps"], style, marker)
            floor = [(d["size"], d["floor"]["p50_us"]) for d in these]
            line(axis, floor, f"floor, {text}", COLOURS["floor"], style, marker)
            copied = [(d["size"], d["gpu"]["copied"]["p50_us"]) for d in these if (d.get("gpu") or {}).get("copied")]
            line(axis, copied, f"copied, {text}", COLOURS["copied"], style, marker)
        axis.set_yscale("log")
        size_axis(axis, {d["size"] for d in docs})
        axis.set_title("in GPU memory" if place == "cuda" else "in host memory")
    legend_below(figure, axes[0][-1])
    axes[0][0].set_ylabel("publish to handler, p50, us")
    return figure, found


def handoff(figures):
    """Kernel to kernel, each beside the bare pattern."""
    found = newest([f for f in figures if f.kind == "handoff" and not f.value.get("cpu_load")])
    bars = []
    for figure in found:
        value = figure.value
        where = "two GPUs" if value["clock"] == "halved" else "MPS" if value["mps"] else "no MPS"
        for each in value["sizes"]:
            # Where the publisher's kernel is long the subscriber's work is queued by then: the GPU's part alone.
            when = "" if each["kernel_us"] == 0 else ", queued before"
            text = f"{where}, {value['wait']}, {size_text(each['size'])}{when}"
            bars.append((where, text, each["p50_us"], each["p99_us"], each["floor_us"]))
    if not bars:
        raise Nothing("no hand-over from kernel to kernel")
    bars.sort(key=lambda bar: (["no MPS", "MPS", "two GPUs"].index(bar[0]), bar[1]))
    figure, axis = plt.subplots(figsize=(7.5, 1.2 + 0.24 * len(bars)))
    colours = {"no MPS": COLOURS["zenoh"], "MPS": COLOURS["rgaps"], "two GPUs": COLOURS["torch-ipc"]}
    rows = range(len(bars))
    axis.barh(rows, [bar[2] for bar in bars], color=[colours[bar[0]] for bar in bars], height=0.7, label="rgaps, p50")
    axis.plot([bar[4] for bar in bars], rows, "|", color="black", ms=11, mew=2, label="floor: the bare pattern, p50")
    axis.plot([bar[3] for bar in bars], rows, ".", color=COLOURS["floor"], ms=5, label="rgaps, p99")
    for row, bar in enumerate(bars):
        axis.text(bar[2] * 1.06, row, f"{bar[2]:.3g}", va="center", fontsize=7)
    axis.set_yticks(rows, [bar[1] for bar in bars], fontsize=8)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlabel("end of the publisher's kernel to begin of the subscriber's, us")
    axis.legend(loc="lower right")
    return figure, found


def fanout(figures):
    """Time until the last of N subscribers has it."""
    found = newest([f for f in figures if f.kind == "fanout"])
    if not found:
        raise Nothing("no fan-out")
    figure, axes = plt.subplots(1, len(found), figsize=(4.4 * len(found), 3.4), sharey=True, squeeze=False)
    for axis, each in zip(axes[0], found):
        counts = each.value["counts"]
        # Older documents have no `last`: the publish-to-handler time is the nearest.
        key = "last" if "last" in counts[0]["awake"] else "latency"
        for way, style, marker in (("awake", "-", "o"), ("sleeping", "--", "s")):
            points = [(c["subscribers"], c[way][key]["p50_us"]) for c in counts]
            line(axis, points, f"rgaps, {way}", COLOURS["rgaps"], style, marker)
            floor = [(c["subscribers"], c[way]["floor"]["latency"]["p50_us"]) for c in counts]
            line(axis, floor, f"floor, {way}", COLOURS["floor"], style, marker)
        axis.set_xscale("log", base=2)
        numbers = [c["subscribers"] for c in counts]
        axis.set_xticks(numbers, [str(n) for n in numbers])
        axis.set_yscale("log")
        domain = "GPU" if each.value["domain"].startswith("cuda") else "host"
        axis.set_title(f"{size_text(each.value['size'])}, {domain}{', MPS' if each.name.startswith('mps') else ''}")
        axis.set_xlabel("subscribers")
        axis.legend()
    until = "until the last has it" if key == "last" else "publish to handler"
    axes[0][0].set_ylabel(f"{until}, p50, us")
    return figure, found


PLOTS = {
    "latency": latency, "handoff": handoff, "fanout": fanout, **gaps.PLOTS, **ways.PLOTS, **device.PLOTS, **links.PLOTS, **dmaplane.PLOTS,
    **weights.PLOTS,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = Path(__file__).resolve().parents[2]
    parser.add_argument("--results", type=Path, default=root / "bench/results")
    parser.add_argument("--out", type=Path, default=root / "docs/performance")
    options = parser.parse_args()
    figures, left_out = read(options.results)
    (options.out / "plots").mkdir(parents=True, exist_ok=True)
    drawn = {}
    for name, plot in PLOTS.items():
        path = options.out / "plots" / f"{name}.svg"
        try:
            figure, sources = plot(figures)
        except Nothing as reason:
            left_out.append((f"plots/{name}.svg", str(reason)))
            path.unlink(missing_ok=True)
            continue
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
        drawn[name] = sources
    made = tables.made(figures)
    used = {id(each.source) for sources in drawn.values() for each in sources}
    used |= {id(each.source) for _, found, _ in made.values() for each in found}
    ended_early = {id(f.source) for f in figures if f.kind == "compare" and not ways.is_finished(f.value)}
    for source in {id(f.source): f.source for f in figures}.values():
        if id(source) not in used:
            reason = "the run ended early" if id(source) in ended_early else "a newer day, or another file, has the same"
            left_out.append((str(source.path.relative_to(options.results)), reason))
    (options.out / "results.md").write_text(page.text(drawn, made, left_out, options.results))
    for name, reason in left_out:
        print(f"plots: left out {name}: {reason}", file=sys.stderr)
    print(f"plots: {', '.join(drawn) or 'nothing'} in {options.out / 'plots'}")


if __name__ == "__main__":
    main()
