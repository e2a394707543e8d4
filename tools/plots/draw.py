"""Draws bench/results/*.json: docs/performance/plots/*.svg, and docs/performance/results.md, which shows them.

Usage: draw.py [--results bench/results] [--out docs/performance]

Each plot is of one day's figures, the newest that has any for it, beside their floor. Prints what it left out.
"""
import argparse
import sys
from pathlib import Path

import matplotlib.pyplot as plt

import dmaplane
import links
import page
import tables
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
    found = newest([f for f in figures if f.kind == "handoff"])
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


def compared(figures, section, mps=False):
    """The document of bench/compare with the most of that section. From a GPU; others only test the program."""
    found = newest([
        f for f in figures
        if f.kind == "compare" and f.value.get("device") == "cuda" and bool(f.value.get("mps")) == mps
        and (f.value.get(section) or {}).get("rows")
    ])
    return sorted(found, key=lambda f: (bool(f.value.get("quick")), -len(f.value[section]["rows"])))[:1]


def ways_of(rows):
    return [way for way in COLOURS if any(row["way"] == way for row in rows)]


def transfer(figures):
    """A tensor from process to process, rgaps and others, with both floors."""
    found = compared(figures, "transfer")
    if not found:
        raise Nothing("no transfer of bench/compare from a GPU")
    value = found[0].value["transfer"]
    counts = sorted({row["consumers"] for row in value["rows"]})
    counts = [counts[0]] + counts[-1:] * (len(counts) > 1)
    figure, axes = plt.subplots(1, len(counts), figsize=(4.4 * len(counts), 3.6), sharey=True, squeeze=False)
    for axis, count in zip(axes[0], counts):
        rows = [row for row in value["rows"] if row["consumers"] == count]
        for way in ways_of(rows):
            points = [(row["size"], row["last"]["p50_us"]) for row in rows if row["way"] == way]
            line(axis, points, way, COLOURS[way])
        copy = [(each["size"], each["p50_us"]) for each in value.get("floor_copy", [])]
        line(axis, copy, "floor: pinned copies", COLOURS["floor"], "--", "")
        hops = [row["last"]["p50_us"] for row in rows if row["way"] == "hop"]
        if hops:
            axis.axhline(hops[0], color=COLOURS["floor"], ls=":", lw=1.5, label="floor: a number through a pipe")
        axis.set_yscale("log")
        size_axis(axis, {row["size"] for row in rows if row["way"] != "hop"})
        axis.set_title(f"{count} consumer{'s' if count > 1 else ''}")
    axes[0][0].set_ylabel("until the last has it on the GPU, p50, us")
    legend_below(figure, axes[0][0])
    return figure, found


def pipeline(figures):
    """Frames a second and latency against the batch, with what one GPU can do."""
    found = compared(figures, "pipeline")
    if not found:
        raise Nothing("no pipeline of bench/compare from a GPU")
    rows = [r for r in found[0].value["pipeline"]["rows"] if r["models"] == "standard" and len(r["sinks"]) == 2]
    if not rows:
        raise Nothing("no pipeline with both models")
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.8, 3.6))
    for way in ways_of(rows):
        these = [row for row in rows if row["way"] == way]
        line(left, [(row["batch"], min(row["frames_per_s"].values())) for row in these], way, COLOURS[way])
        slowest = [(row["batch"], max(each["p50_us"] for each in row["latency"].values()) / 1000) for row in these]
        line(right, slowest, way, COLOURS[way])
    bounds = {row["batch"]: row["bound_frames_per_s"] for row in rows}
    alone = {row["batch"]: sum(row["alone_ms"].values()) for row in rows}
    line(left, bounds.items(), "bound: stages take turns", COLOURS["floor"], "--", "")
    line(right, alone.items(), "floor: the stages' own work", COLOURS["floor"], "--", "")
    for axis, text in ((left, "frames/s"), (right, "preprocessing to the last result, p50, ms")):
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted(bounds), [str(batch) for batch in sorted(bounds)])
        axis.set_xlabel("batch")
        axis.set_ylabel(text)
        axis.set_ylim(bottom=0)
    left.set_title("as fast as it goes")
    right.set_title("one batch under way at a time")
    lines, labels = left.get_legend_handles_labels()
    labels[-1] = "bound: stages take turns; floor: their own work"
    figure.legend(lines, labels, loc="outside lower center", ncols=3)
    return figure, found


def profile(figures):
    """Where a batch's time goes, way by way."""
    found = compared(figures, "pipeline")
    if not found:
        raise Nothing("no pipeline of bench/compare from a GPU")
    rows = [
        r for r in found[0].value["pipeline"]["rows"]
        if r["models"] == "standard" and len(r["sinks"]) == 2 and r["batch"] == 4
    ]
    if not rows:
        raise Nothing("no pipeline at batch 4")
    figure, axis = plt.subplots(figsize=(7.5, 1.4 + 0.45 * len(rows)))
    shades = {"source": "#9ecae1", "blur": "#4292c6", "segment": "#08519c", "classify": "#08306b"}
    for number, row in enumerate(rows):
        left = 0
        for stage, colour in shades.items():
            parts = row["profile_ms"].get(stage, {})
            width = parts.get("compute", 0)
            axis.barh(number, width, left=left, color=colour, label=f"{stage}: computing" if number == 0 else None)
            left += width
        carried = sum(
            parts.get(part, 0) for parts in row["profile_ms"].values() for part in ("transport", "transport out")
        )
        label = "transport, all stages" if number == 0 else None
        axis.barh(number, carried, left=left, color=COLOURS["zenoh"], label=label)
        axis.text(left + carried, number, f" {carried:.2f} ms transport", va="center", fontsize=8)
    axis.axvline(sum(rows[0]["alone_ms"].values()), color="black", ls="--", lw=1, label="floor: each stage's work alone")
    axis.set_yticks(range(len(rows)), [row["way"] for row in rows])
    axis.invert_yaxis()
    axis.set_xlabel("milliseconds of a batch of 4, one under way at a time, every part synchronised")
    axis.margins(x=0.25)
    axis.legend(loc="upper center", bbox_to_anchor=(0.45, -0.25), ncol=3)
    return figure, found


PLOTS = {
    "latency": latency, "handoff": handoff, "fanout": fanout, "transfer": transfer, "pipeline": pipeline,
    "profile": profile, **links.PLOTS, **dmaplane.PLOTS,
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
    for source in {id(f.source): f.source for f in figures}.values():
        if id(source) not in used:
            left_out.append((str(source.path.relative_to(options.results)), "a newer day, or another file, has the same"))
    (options.out / "results.md").write_text(page.text(drawn, made, left_out, options.results))
    for name, reason in left_out:
        print(f"plots: left out {name}: {reason}", file=sys.stderr)
    print(f"plots: {', '.join(drawn) or 'nothing'} in {options.out / 'plots'}")


if __name__ == "__main__":
    main()
