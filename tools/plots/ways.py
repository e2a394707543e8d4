"""The plots of bench/compare: rgaps beside other ways, on one GPU. A run that ended early, and a case that stood still, is not drawn."""
import matplotlib.pyplot as plt

from look import COLOURS, Nothing, legend_below, line, size_axis, size_text
from read import newest

STAGES = {"source": "#9ecae1", "blur": "#4292c6", "segment": "#08519c", "classify": "#08306b"}


def compared(figures, section, mps=False):
    """The document with the most of that section. From a GPU; others only test the program."""
    found = newest([
        f for f in figures
        if f.kind == "compare" and f.value.get("device") == "cuda" and bool(f.value.get("mps")) == mps
        and finished_rows(f.value, section)
    ])
    return sorted(found, key=lambda f: (bool(f.value.get("quick")), -len(finished_rows(f.value, section))))[:1]


def is_finished(value):
    return all((value.get(section) or {}).get("finished") for section in value.get("sections", ()))


def finished_rows(value, section):
    """The rows of all ways that the run finished, less those that failed. Ways of a transfer follow each other, so of a run that ended early all
    but the last one are finished; other sections take turns, so then none is."""
    part = value.get(section) or {}
    rows = part.get("rows") or []
    if not part.get("finished"):
        rows = [row for row in rows if row["way"] != rows[-1]["way"]] if section == "transfer" else []
    failed = {failure["name"] for failure in value.get("failures", [])}
    return [row for row in rows if f"{section}: {row['way']}, batch {row.get('batch')}" not in failed]


def ways_of(rows):
    return [way for way in COLOURS if any(row["way"] == way for row in rows)]


def transfer(figures):
    """A tensor from process to process, rgaps and others, with both floors."""
    found = compared(figures, "transfer")
    if not found:
        raise Nothing("no transfer of bench/compare from a GPU")
    value = found[0].value["transfer"]
    all_rows = finished_rows(found[0].value, "transfer")
    counts = sorted({row["consumers"] for row in all_rows})
    counts = [counts[0]] + counts[-1:] * (len(counts) > 1)
    figure, axes = plt.subplots(1, len(counts), figsize=(4.4 * len(counts), 3.6), sharey=True, squeeze=False)
    for axis, count in zip(axes[0], counts):
        rows = [row for row in all_rows if row["consumers"] == count]
        for way in ways_of(rows):
            points = [(row["size"], row["last"]["p50_us"]) for row in rows if row["way"] == way]
            line(axis, points, way, COLOURS[way])
        copy = [(each["size"], each["p50_us"]) for each in value.get("floor_copy", [])]
        line(axis, copy, "floor: pinned copies", COLOURS["floor"], "--", "")
        hops = [row["last"]["p50_us"] for row in value["rows"] if row["way"] == "hop" and row["consumers"] == count]
        if hops:
            axis.axhline(hops[0], color=COLOURS["floor"], ls=":", lw=1.5, label="floor: a number through a pipe")
        axis.set_yscale("log")
        size_axis(axis, {row["size"] for row in rows if row["way"] != "hop"})
        axis.set_title(f"{count} consumer{'s' if count > 1 else ''}")
    axes[0][0].set_ylabel("until the last has it on the GPU, p50, us")
    legend_below(figure, axes[0][0])
    return figure, found


def fan_out_rates(figures):
    """The section transfer once more: messages a second to the most consumers, each way against rgaps."""
    found = compared(figures, "transfer")
    rows = [row for row in finished_rows(found[0].value, "transfer") if row["way"] != "hop"] if found else []
    most = max((row["consumers"] for row in rows), default=0)
    rates = {(row["way"], row["size"]): row["rate"]["messages_per_s"] for row in rows if row["consumers"] == most}
    sizes = sorted({size for way, size in rates if way == "rgaps"})
    return found, most, sizes, rates


def fan_out(figures):
    """How many times the messages of each other way."""
    found, most, sizes, rates = fan_out_rates(figures)
    if not sizes:
        raise Nothing("no transfer of bench/compare to several consumers")
    figure, axis = plt.subplots(figsize=(6, 3.6))
    for way in COLOURS:
        points = [(size, rates["rgaps", size] / rates[way, size]) for size in sizes if (way, size) in rates and way != "rgaps"]
        line(axis, points, f"beside {way}", COLOURS[way])
    axis.axhline(1, color=COLOURS["floor"], lw=1)
    axis.set_yscale("log")
    size_axis(axis, set(sizes))
    axis.set_ylabel(f"messages/s to {most} consumers,\nrgaps by the other way")
    axis.legend()
    return figure, found


def pipeline(figures):
    """Frames a second of each sink and latency against the batch, with what one GPU can do."""
    found = compared(figures, "pipeline")
    if not found:
        raise Nothing("no finished pipeline of bench/compare from a GPU")
    rows = [r for r in finished_rows(found[0].value, "pipeline") if r["models"] == "standard" and len(r["sinks"]) == 2]
    if not rows:
        raise Nothing("no pipeline with both models")
    sinks = rows[0]["sinks"]
    figure, axes = plt.subplots(1, len(sinks) + 1, figsize=(4.2 * (len(sinks) + 1), 3.8))
    for way in ways_of(rows):
        these = [row for row in rows if row["way"] == way]
        for axis, sink in zip(axes, sinks):
            line(axis, [(row["batch"], row["frames_per_s"][sink]) for row in these], way, COLOURS[way])
        slowest = [(row["batch"], max(each["p50_us"] for each in row["latency"].values()) / 1000) for row in these]
        line(axes[-1], slowest, way, COLOURS[way])
    bounds = {row["batch"]: row["bound_frames_per_s"] for row in rows}
    alone = {row["batch"]: sum(row["alone_ms"].values()) for row in rows}
    for axis, sink in zip(axes, sinks):
        line(axis, bounds.items(), "bound: stages take turns; floor: their own work", COLOURS["floor"], "--", "")
        axis.set_title(f"{sink}, as fast as it goes")
        axis.set_ylabel("frames/s")
    line(axes[-1], alone.items(), "floor: the stages' own work", COLOURS["floor"], "--", "")
    axes[-1].set_title("one batch under way at a time")
    axes[-1].set_ylabel("preprocessing to the last result, p50, ms")
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted(bounds), [str(batch) for batch in sorted(bounds)])
        axis.set_xlabel("batch")
        axis.set_ylim(bottom=0)
    legend_below(figure, axes[0])
    return figure, found


def profile(figures):
    """Where a batch's time goes, way by way."""
    found = compared(figures, "pipeline")
    if not found:
        raise Nothing("no finished pipeline of bench/compare from a GPU")
    rows = [
        r for r in finished_rows(found[0].value, "pipeline")
        if r["models"] == "standard" and len(r["sinks"]) == 2 and r["batch"] == 4 and r.get("profile_ms")
    ]
    if not rows:
        raise Nothing("no profile of a pipeline at batch 4")
    figure, axis = plt.subplots(figsize=(7.5, 1.4 + 0.45 * len(rows)))
    for number, row in enumerate(rows):
        left = 0
        for stage, colour in STAGES.items():
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


#: What a way is in the comparison of the pipeline.
COPYING = ("iceoryx2", "iceoryx2-pageable", "zenoh-bytes")
SERIALISING = ("iceoryx2-safetensors", "iceoryx2-safetensors-pageable", "zenoh")


def times_of(row, others, sink):
    """How many times the frames of the best of the others, and of which."""
    if not others:
        return ""
    best = max(others, key=lambda other: other["frames_per_s"][sink])
    return f"{row['frames_per_s'][sink] / best['frames_per_s'][sink]:.2f} x {best['way']}"


def against(figures):
    """rgaps beside the best other way of each kind, the rows in which it does worst first."""
    found = newest([
        f for f in figures if f.kind == "compare" and f.value.get("device") == "cuda" and finished_rows(f.value, "pipeline")
    ])
    rows = {}
    for figure in found:
        all_rows = finished_rows(figure.value, "pipeline")
        for row in all_rows:
            others = [o for o in all_rows if (o["models"], o["batch"], o["sinks"]) == (row["models"], row["batch"], row["sinks"])]
            for sink in row["sinks"] if row["way"].startswith("rgaps") else ():
                of = [[o for o in others if o["way"] in kind] for kind in (COPYING, SERIALISING, ("torch-ipc",))]
                best = max((o["frames_per_s"][sink] for o in others if not o["way"].startswith("rgaps")), default=None)
                if best is None:
                    continue
                latency = min((o["latency"][sink]["p50_us"] for kind in of for o in kind), default=0) / row["latency"][sink]["p50_us"]
                cells = (
                    "yes" if figure.value.get("mps") else "no", row["models"], row["batch"], " + ".join(row["sinks"]), sink, row["way"],
                    round(row["frames_per_s"][sink]), *(times_of(row, kind, sink) for kind in of), f"{latency:.2f}",
                    f"{row['frames_per_s'][sink] / row['bound_frames_per_s']:.0%}",
                )
                rows.setdefault(cells, row["frames_per_s"][sink] / best)
    head = ["MPS", "models", "batch", "stages", "of", "way", "frames/s", "best that copies", "best with safetensors", "torch IPC", "latency", "of the bound"]
    return found, head, sorted(rows, key=rows.get)


def fan_out_table(figures):
    """The same figures as numbers, the rows first in which another way has more messages."""
    found, most, sizes, rates = fan_out_rates(figures)
    others = [way for way in COLOURS if way != "rgaps" and any(w == way for w, _ in rates)]
    ratios = {size: {way: rates["rgaps", size] / rates[way, size] for way in others if (way, size) in rates} for size in sizes}
    rows = [
        (size_text(size), most, f"{rates['rgaps', size]:.0f}", *(f"{ratios[size][way]:.2f}" if way in ratios[size] else "" for way in others))
        for size in sorted(sizes, key=lambda size: min(ratio for way, ratio in ratios[size].items() if not way.startswith("rgaps")))
    ]
    return found, ["size", "consumers", "rgaps, messages/s", *(f"by {way}" for way in others)], rows


def sharing_rows(figures):
    """Every scenario: rgaps beside the row of each other way, without MPS and under it; the document of each."""
    found, rows = [], []
    for mps in (False, True):
        for figure in compared(figures, "sharing", mps):
            found.append(figure)
            all_rows = finished_rows(figure.value, "sharing")
            for row in all_rows:
                if row["way"] == "rgaps":
                    others = {o["way"]: o for o in all_rows if o["scenario"] == row["scenario"] and o is not row}
                    rows.append((mps, row, others))
    return found, rows


def gain(row, other):
    return row["sets_per_s"] / other["sets_per_s"]


def sharing(figures):
    """What sharing gives against transport by compute, with the model's two bounds."""
    found, rows = sharing_rows(figures)
    rows = [(mps, row, others) for mps, row, others in rows if others]
    if not rows:
        raise Nothing("no sharing of bench/compare from a GPU")
    panels = sorted({mps for mps, _, _ in rows})
    figure, axes = plt.subplots(1, len(panels), figsize=(5.4 * len(panels), 4.2), sharey=True, squeeze=False)
    for axis, panel in zip(axes[0], panels):
        these = [(row, others) for mps, row, others in rows if mps == panel]
        for way in COLOURS:
            points = {row["scenario"]: (others[way]["transport_of_compute"], gain(row, others[way])) for row, others in these if way in others}
            line(axis, [at for name, at in points.items() if name.startswith("sweep")], None, COLOURS[way], "-", "")
            if points:
                axis.plot(*zip(*points.values()), "o", ms=4, color=COLOURS[way], label=f"rgaps by {way}")
            for name, at in points.items() if way == "iceoryx2" else ():
                axis.annotate(name, at, fontsize=6, textcoords="offset points", xytext=(4, -8))
        models = sorted({(row["transport_of_compute"], row["model"]["in_turn"], row["model"]["overlapped"]) for row, _ in these})
        line(axis, [(x, turn) for x, turn, _ in models], "model: copies and work in turn", COLOURS["floor"], "--", "")
        line(axis, [(x, overlap) for x, _, overlap in models], "model: copies behind the work", COLOURS["floor"], ":", "")
        axis.axhline(1, color=COLOURS["floor"], lw=1)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_title("MPS" if panel else "no MPS")
        axis.set_xlabel("copies by work, each alone")
    axes[0][0].set_ylabel("sets/s, rgaps by the other way")
    legend_below(figure, axes[0][0])
    return figure, found


def sharing_table(figures):
    found, rows = sharing_rows(figures)
    ways = [way for way in COLOURS if any(way in others for _, _, others in rows)]
    cells = [
        (
            "yes" if mps else "no", row["scenario"], row["consumers"], f"{row['bytes'] / (1 << 20):.1f}", row["sets_per_s"],
            *(f"{gain(row, others[way]):.2f}" if way in others else "" for way in ways),
            f"{row['transport_of_compute']:.2f}", f"{row['model']['overlapped']:.2f}-{row['model']['in_turn']:.2f}",
        )
        for mps, row, others in sorted(rows, key=lambda each: min((gain(each[1], other) for other in each[2].values()), default=0))
    ]
    return found, ["MPS", "scenario", "consumers", "MiB", "rgaps, sets/s", *(f"by {way}" for way in ways), "copies by work", "model"], cells


TABLES = {
    "Where sharing pays": ("""Consumers on one GPU, each of which computes on every set of messages (`compare/run --only sharing`): rgaps, and rgaps divided by each other
way. Below 1 the other way is faster; such rows come first. *Copies by work*: pinned copies of the set, one to the host and one back for each consumer, divided by
the work of all processes, each measured alone. The model says what sharing gives over copying: from copies that hide behind the work to copies and work in
turn.""", sharing_table),
    "One tensor to several consumers": ("""Messages a second that all consumers have received and compared word by word, at most 4 in flight: rgaps, and
rgaps divided by each other way. Below 1 the other way is faster; such rows come first.""", fan_out_table),
    "The pipeline compared with other ways": ("""How many times the frames per second of the best other way of each kind: ways that copy bytes, ways that
also serialise (as the paper's do), and CUDA IPC by torch. Rows in which rgaps does worst come first. *Latency* is that of the best other way divided by
that of rgaps. The last column is the fraction of the bound that rgaps reaches.""", against),
}
PLOTS = {"transfer": transfer, "fan-out-rates": fan_out, "sharing": sharing, "pipeline": pipeline, "profile": profile}
