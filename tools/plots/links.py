"""The plots of links between hosts: of one machine's figures each, one with a GPU if there is one; in GPU memory
if there are figures of that. The thesis's figures carry its numbers."""
import matplotlib.pyplot as plt

from look import COLOURS, Nothing, legend_below, line, size_axis, size_text
from read import newest

WAYS = (("rgaps", COLOURS["rgaps"]), ("RGAPS's order", COLOURS["iceoryx2"]), ("baseline", COLOURS["zenoh"]))


def of_one_machine(figures, kind, wanted=lambda value: True):
    """Those of the machine that has the most to say: on a GPU before the host."""
    found = [f for f in newest([f for f in figures if f.kind == kind]) if wanted(f.value)]
    machines = {}
    for figure in found:
        machines.setdefault(figure.source.about.get("machine"), []).append(figure)
    on_gpu = lambda group: sum(f.value.get("domain", "cuda") != "host" for f in group)
    return max(machines.values(), key=lambda group: (on_gpu(group), len(group)), default=[])


def thesis(figures):
    found = of_one_machine(figures, "link", lambda v: v.get("thesis") and v["topics"] == 1 and not v["tls"])
    on_gpu = [f for f in found if f.value["domain"] != "host"]
    found = on_gpu or found
    if not found:
        raise Nothing("no link with its baseline")
    return sorted(found, key=lambda f: (f.value["size"], f.value["subscribers"]))


def copies(figures):
    """Figure 2.2: pageable by pinned."""
    found = of_one_machine(figures, "copies")
    if not found:
        raise Nothing("no copies from pinned and pageable memory")
    figure, axis = plt.subplots(figsize=(5, 3.4))
    rows = [row for f in found for row in f.value["copies"]]
    for way, text, colour in (("d2h", "GPU to host", COLOURS["rgaps"]), ("h2d", "host to GPU", COLOURS["zenoh"])):
        line(axis, [(row["size"], row[f"{way}_ratio"]) for row in rows], text, colour)
    axis.axhline(1, color=COLOURS["floor"], lw=1)
    size_axis(axis, {row["size"] for row in rows})
    axis.set_ylabel("pageable copy by pinned copy")
    axis.legend()
    return figure, found


def grouped(axis, groups, bars):
    """`bars`: (label, colour, one value per group)."""
    width = 0.8 / len(bars)
    for number, (label, colour, values) in enumerate(bars):
        at = [group - 0.4 + width * (number + 0.5) for group in range(len(groups))]
        axis.bar(at, values, width, color=colour, label=label)
        for x, value in zip(at, values):
            axis.text(x, value, f"{value:.3g}", ha="center", va="bottom", fontsize=6)
    axis.set_xticks(range(len(groups)), groups)
    axis.set_yscale("log")


def of_one_subscriber(found):
    least = {}
    for figure in found:
        least.setdefault(figure.value["size"], figure)
    return list(least.values())


def to_the_host(figures):
    """Figure 4.1: from the GPU to the process that sends."""
    found = of_one_subscriber(thesis(figures))
    figure, axis = plt.subplots(figsize=(5, 3.4))
    parts = [f.value["thesis"] for f in found]
    grouped(axis, [size_text(f.value["size"]) for f in found], [
        ("pinned, shared memory", COLOURS["rgaps"], [p["series_stages"]["d2h_pinned_us"] for p in parts]),
        ("pageable, Unix socket", COLOURS["zenoh"], [
            p["baseline_stages"]["d2h_pageable_us"] + p["baseline_stages"]["unix_socket_us"] for p in parts
        ]),
    ])
    axis.set_ylabel("us")
    axis.legend()
    return figure, found


def over_the_wire(figures):
    """Figure 4.2: the wire alone."""
    found = of_one_subscriber(thesis(figures))
    figure, axis = plt.subplots(figsize=(5, 3.4))
    grouped(axis, [size_text(f.value["size"]) for f in found], [
        (f"TCP, {found[0].value['lanes']} connections, as rgaps has", COLOURS["rgaps"], [f.value["stages"]["wire_us"] for f in found]),
        ("TCP, one connection: the thesis's baseline", COLOURS["zenoh"], [f.value["thesis"]["baseline_stages"]["wire_us"] for f in found]),
    ])
    axis.set_ylabel("us")
    axis.set_title("TCP on both sides, no RDMA")
    axis.legend()
    return figure, found


def own_copies(figures):
    """Figures 4.3 to 4.5: what each subscriber's own copy takes where all copy at once."""
    found = thesis(figures)
    sizes = sorted({f.value["size"] for f in found})
    figure, axes = plt.subplots(1, len(sizes), figsize=(3.2 * len(sizes) + 1, 3.2), squeeze=False)
    for axis, size in zip(axes[0], sizes):
        for each in (f.value for f in found if f.value["size"] == size):
            own = each["thesis"]["baseline_stages"]["h2d_each_us"]
            axis.plot(range(1, len(own) + 1), own, "o-", ms=4, lw=1.2, label=f"{each['subscribers']} at once")
        axis.set_title(size_text(size))
        axis.set_xlabel("subscriber")
        axis.set_ylim(bottom=0)
        axis.legend()
    axes[0][0].set_ylabel("copy to the GPU, us")
    return figure, found


def total(figures):
    """Figure 4.6: from publishing until the subscribers have it on the GPU."""
    found = thesis(figures)
    sizes = sorted({f.value["size"] for f in found})
    figure, axes = plt.subplots(1, len(sizes), figsize=(3.4 * len(sizes) + 1, 3.4), squeeze=False)
    for axis, size in zip(axes[0], sizes):
        these = [f.value for f in found if f.value["size"] == size]
        # One point per number of subscribers.
        these = list({v["subscribers"]: v for v in reversed(these)}.values())[::-1]
        values = ([v["p50_us"] for v in these], [v["thesis"]["series_us"] for v in these], [v["thesis"]["baseline_us"] for v in these])
        grouped(axis, [str(v["subscribers"]) for v in these], [(name, colour, us) for (name, colour), us in zip(WAYS, values)])
        axis.set_title(size_text(size))
        axis.set_xlabel("subscribers")
    axes[0][0].set_ylabel("until the last one has it, us")
    legend_below(figure, axes[0][0])
    return figure, found


def rate(figures):
    """A link's rate beside as many bare connections."""
    found = of_one_machine(figures, "link", lambda v: v["size"] >= 1 << 16)
    if not found:
        raise Nothing("no rate of a link")
    found.sort(key=lambda f: (f.value["domain"] != "host", f.value["tls"], f.value["size"], f.value["lanes"], f.value["topics"], f.value["subscribers"]))
    figure, axis = plt.subplots(figsize=(7.5, 1.2 + 0.24 * len(found)))
    rows = range(len(found))
    values = [f.value for f in found]
    place = lambda v: "host" if v["domain"] == "host" else "GPU"
    axis.barh(rows, [v["gbit_s"] for v in values], color=[COLOURS["torch-ipc" if v["tls"] else "rgaps"] for v in values], height=0.7, label="rgaps")
    raw = [v["raw_tls_gbit_s"] if v["tls"] else v["raw_tcp_gbit_s"] for v in values]
    axis.plot(raw, rows, "|", color="black", ms=11, mew=2, label="floor: as many bare connections")
    axis.set_yticks(rows, [
        f"{place(v)}, {size_text(v['size'])}, {v['lanes']} lanes, {v['topics']} topics, {v['subscribers']} subscribers{', TLS' if v['tls'] else ''}"
        for v in values
    ], fontsize=7)
    axis.invert_yaxis()
    axis.set_xlabel("Gbit/s of payload")
    axis.legend(loc="lower right")
    return figure, found


def by_size(found):
    """Size -> subscribers -> document."""
    sizes = {}
    for figure in found:
        sizes.setdefault(figure.value["size"], {}).setdefault(figure.value["subscribers"], figure.value)
    return sizes


#: Table 4.2: bytes -> TLSF malloc, cudaMemcpy, notification, us. Table 4.4: the same with notifications of 1, 2, 4, 8 subscribers.
THESIS_4_2 = {4 << 20: (1, 224, 1), 64 << 20: (1, 2906, 1), 1 << 30: (1, 47905, 1)}
THESIS_4_4 = {4 << 20: (1, 216, 6, 7, 9, 11), 64 << 20: (1, 2872, 6, 7, 9, 11), 1 << 30: (1, 43677, 6, 7, 9, 11)}


def us(time):
    return f"{time:.0f}" if time >= 100 else f"{time:.3g}"


def table_4_2(figures):
    found = of_one_subscriber(thesis_or_none(figures))
    rows = []
    for value in (f.value for f in found):
        stages = value["stages"]
        here = [us(stages[key]) for key in ("alloc_us", "d2h_us", "notify_us")]
        pairs = zip(here, THESIS_4_2.get(value["size"], ("",) * 3))
        rows.append((size_text(value["size"]), *(cell for pair in pairs for cell in pair)))
    return found, ["size", *(f"{stage}: {who}" for stage in ("loan", "copy from the GPU", "notification") for who in ("here", "thesis"))], rows


def table_4_4(figures):
    found = thesis_or_none(figures)
    rows = []
    for size, of in by_size(found).items():
        least = of[min(of)]["stages"]
        notify = [us(of[count]["stages"]["notify_us"]) if count in of else "" for count in (1, 2, 4, 8)]
        rows.append((size_text(size), "here", us(least["alloc_us"]), us(least["h2d_us"]), *notify))
        if size in THESIS_4_4:
            rows.append((size_text(size), "thesis", *THESIS_4_4[size]))
    return found, ["size", "where", "loan", "copy to the GPU, once", *(f"notification of {count}" for count in (1, 2, 4, 8))], rows


def series(figures):
    """RGAPS's order beside rgaps, those first in which it is faster. The bound: stages that overlap take as long as the longest of them."""
    found = of_one_machine(figures, "link", lambda v: v.get("thesis") and v["domain"] != "host" and not v["tls"])
    rows = []
    for value in (f.value for f in found):
        stages = [*value["thesis"]["series_stages"].values()]
        bound = (sum(stages) + value["stages"]["notify_us"]) / max(stages)
        ratio = value["thesis"]["series_us"] / value["p50_us"]
        rows.append((ratio, (
            size_text(value["size"]), value["subscribers"], value["lanes"], us(value["p50_us"]), us(value["thesis"]["series_us"]), f"{ratio:.2f}", f"{bound:.2f}",
        )))
    head = ["size", "subscribers", "lanes", "rgaps, us", "RGAPS's order, us", "RGAPS's order by rgaps", "bound"]
    return found, head, [cells for _, cells in sorted(rows)]


def thesis_or_none(figures):
    try:
        return thesis(figures)
    except Nothing:
        return []


def zeroing(figures):
    """Figure 3.9: clearing memory against the wire."""
    found = newest([f for f in figures if f.kind == "zeroing"])[:1]
    if not found:
        raise Nothing("no zeroing of pinned memory")
    value = found[0].value
    figure, axis = plt.subplots(figsize=(5, 3.4))
    for threads, colour in ((1, COLOURS["rgaps"]), (16, COLOURS["rgaps-put"])):
        points = [(row["mib"] << 20, 100 / row["of_400_gbit_link"]) for row in value["rows"] if row["threads"] == threads]
        line(axis, points, f"{threads} thread{'s' if threads > 1 else ''}", colour)
    axis.plot([1 << 30], [91.4], "*", ms=10, color=COLOURS["zenoh"], label="thesis, 1 GB, measured against its RDMA write")
    axis.axhline(100, color=COLOURS["floor"], lw=1)
    size_axis(axis, {row["mib"] << 20 for row in value["rows"]})
    axis.set_yscale("log")
    axis.set_ylabel("clearing by a write at 400 Gbit/s, %")
    axis.legend()
    return figure, found


def trees(figures):
    """A large message to many hosts over a tree, in virtual time."""
    found = newest([f for f in figures if f.kind == "tree"])
    if not found:
        raise Nothing("no trees in virtual time")
    values = [f.value for f in found]
    sizes = sorted({v["message_bytes"] for v in values})
    colours = dict(zip(sizes, (COLOURS["zenoh"], COLOURS["iceoryx2"], COLOURS["rgaps"])))
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.6))
    copies = lambda v: v["origin_cable_bytes"] / (v["messages"] * v["message_bytes"])
    for size in sizes:
        calm, fault = ([v for v in values if v["message_bytes"] == size and v["fault"] == of] for of in ("none", "inner host"))
        text, colour = size_text(size), colours[size]
        line(axes[0], [(v["hosts"], v["seconds"] / v["messages"] / v["hop_seconds"]) for v in calm], text, colour)
        line(axes[1], [(v["hosts"], copies(v)) for v in calm], text, colour)
        line(axes[1], [(v["hosts"], copies(v)) for v in fault], f"{text}, an inner host dies", colour, "--")
        line(axes[2], [(v["hosts"], v["depth"]) for v in calm], text, colour)
    labels = ("time of a message, in times of one hop", "copies on the origin's cable", "hops to the last host")
    for axis, label in zip(axes, labels):
        axis.set_ylabel(label)
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_ylim(bottom=0)
        axis.set_xlabel("hosts")
    legend_below(figure, axes[1])
    return figure, found


TABLES = {
    "RGAPS's own order": ("""GPU to GPU between two hosts on one machine, over TCP: rgaps, and RGAPS's order (pinned memory, one stage after the other) in turns with it in the
same run. Rows in which RGAPS's order is faster come first. The *bound* is what overlapping all stages could give at most: the sum of the stages, each alone,
divided by the longest, which is the wire. A gain of 1.8, the goal, needs a wire that takes at most 2.5 times as long as one copy; here it takes 4 to 9 times as long.
The rows of 4 MiB are from before the copy to the host had parts that are sent while it runs. Since then rgaps is faster there, too: 1.04, 1.05, 1.08 and 1.12 with 1, 2, 4 and
8 subscribers, medians of four runs each (`bench/results/nvidia-h200-2026-11-29-2/series-4MiB.json`).""", series),
    "From the GPU to the sending process, by stage (thesis, Table 4.2)": ("""Microseconds of each stage alone, in the run of the plots above. The
thesis copies over PCIe 4.0 x16 from an RTX 3090; its notification is one of shared memory, ours wakes a sleeping subscriber.""", table_4_2),
    "From the receiving process to the GPU, by stage (thesis, Table 4.4)": ("""Microseconds of each stage alone: one copy for all subscribers, then
a notification until the last of them has it, asleep.""", table_4_4),
}

PLOTS = {
    "thesis-3-9": zeroing, "link-rate": rate, "thesis-2-2": copies, "thesis-4-1": to_the_host, "thesis-4-2": over_the_wire,
    "thesis-4-3-to-5": own_copies, "thesis-4-6": total, "trees": trees,
}
