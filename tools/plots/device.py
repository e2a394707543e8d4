"""Device topics (kernels that publish to kernels) and RDMA that kernels post."""
import re

import matplotlib.pyplot as plt

from look import COLOURS, Nothing, legend_below, line, size_axis, size_text
from read import newest

#: Where the two kernels are: colour, style.
PLACES = {"one GPU, MPS": (COLOURS["rgaps"], "-"), "two GPUs, NVLink": (COLOURS["torch-ipc"], "--")}


def place_of(value):
    return "one GPU, MPS" if value["domain"] == value["peer"] else "two GPUs, NVLink"


def on_gpus(figures, kind):
    """Those of the day's last run, and of others of that day on GPUs of the same model, which its folder names."""
    found = newest([f for f in figures if f.kind == kind and f.value["back_end"] == "cuda" and not f.value.get("cpu_load")])
    found.sort(key=lambda f: f.source.path, reverse=True)
    return [f for f in found if model_of(f) == model_of(found[0])]


def model_of(figure):
    return re.sub(r"(-x\d+)?-20\d\d-.*", "", figure.source.path.parent.name)


def latency(figures):
    """One way by payload, and by subscribers; the bare flag beside, and hosts that launch kernels if the same day has them."""
    found = on_gpus(figures, "device-latency")
    topics = [f.value for f in found if f.value["way"] == "topic"]
    if not topics:
        raise Nothing("no latency of device topics on a GPU")
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.8, 3.8))
    for place, (colour, style) in PLACES.items():
        these = [v for v in topics if place_of(v) == place]
        one = [(v["bytes"], v["half_round_trip_p50_us"]) for v in these if v["subscribers"] == 1 and v["threads"] > 1]
        line(left, one, f"{place}: warp or block", colour, style)
        line(left, [(v["bytes"], v["half_round_trip_p50_us"]) for v in these if v["threads"] == 1], f"{place}: one thread", colour, style, "x")
        many = [(v["subscribers"], v["half_round_trip_p50_us"]) for v in these if v["bytes"] == 8 and v["threads"] == 32]
        line(right, many, f"{place}, 8 B", colour, style)
        bare = [f.value["half_round_trip_p50_us"] for f in found if f.value["way"] == "bare" and place_of(f.value) == place]
        if bare:
            left.axhline(bare[0], color=colour, ls=":", lw=1, label=f"{place}: bare flag")
    handed = [
        f for f in newest([f for f in figures if f.kind == "handoff" and f.value["mps"] and f.name.startswith("device") and not f.value.get("cpu_load")])
        if (f.source.date, model_of(f)) == (found[0].source.date, model_of(found[0]))
    ]
    for f in handed:
        launched = [(each["size"], each["p50_us"]) for each in f.value["sizes"] if each["kernel_us"]]
        line(left, launched, "kernels launched by hosts, queued before", COLOURS["copied"], "-", "s")
    left.set_yscale("log")
    size_axis(left, {v["bytes"] for v in topics})
    right.set_ylim(bottom=0)
    right.set_xlabel("subscribers")
    left.set_ylabel("one way: half of a round trip, p50, us")
    legend_below(figure, left)
    return figure, found + handed


def rate(figures):
    """Messages a second by blocks, each with a topic of its own."""
    found = on_gpus(figures, "device-rate")
    if not found:
        raise Nothing("no rate of device topics on a GPU")
    figure, axis = plt.subplots(figsize=(5.4, 3.6))
    markers = {64: "o", 4096: "s", 65536: "^"}
    for place, (colour, style) in PLACES.items():
        for size in sorted({f.value["bytes"] for f in found}):
            points = [(f.value["blocks"], f.value["messages_per_s"]) for f in found if f.value["bytes"] == size and place_of(f.value) == place]
            line(axis, points, f"{place}, {size_text(size)}", colour, style, markers.get(size, "d"))
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    blocks = sorted({f.value["blocks"] for f in found})
    axis.set_xticks(blocks, [str(n) for n in blocks])
    axis.set_xlabel("blocks that publish, each on a topic of its own")
    axis.set_ylabel("messages/s")
    axis.legend()
    return figure, found


def ladder(figures):
    """The steps of posting RDMA from kernels, against the first one."""
    found = newest([f for f in figures if f.kind == "ladder" and f.value["kernels"] == "cuda" and not f.value.get("cpu_load")])
    if not found:
        raise Nothing("no ladder of posting on a GPU")
    found.sort(key=lambda f: max(rung["groups"] for rung in f.value["ladder"]))
    names = [rung["rung"] for rung in found[0].value["ladder"]]
    figure, axis = plt.subplots(figsize=(7.5, 1.2 + 0.3 * len(names)))
    height = 0.8 / len(found)
    for number, (each, colour) in enumerate(zip(found, (COLOURS["rgaps"], COLOURS["rgaps-put"], COLOURS["torch-ipc"]))):
        first = each.value["ladder"][0]["posts_per_s"]
        ratios = [rung["posts_per_s"] / first for rung in each.value["ladder"]]
        at = [row - 0.4 + height * (number + 0.5) for row in range(len(names))]
        axis.barh(at, ratios, height, color=colour, label=each.name.removeprefix("gpu-verbs-ladder-").replace("-", ", "))
        for y, ratio in zip(at, ratios):
            axis.text(ratio * 1.03, y, f"{ratio:.3g}", va="center", fontsize=6)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlabel("posts/s, divided by those of the first row of the same run")
    axis.legend(loc="upper right")
    return figure, found


def times_of(figure):
    """What a CPU's load may change: what, and its figure."""
    value = figure.value
    if figure.kind == "device-latency":
        yield "device topic, 8 B, one way, p50, us", value["half_round_trip_p50_us"]
        yield "device topic, 8 B, round trip, p99, us", value["round_trip_p99_us"]
    elif figure.kind == "handoff":
        for each in value["sizes"]:
            when = ", queued before" if each["kernel_us"] else ""
            yield f"launched by hosts, {size_text(each['size'])}{when}, one way, p50, us", each["p50_us"]
            yield f"launched by hosts, {size_text(each['size'])}{when}, one way, p99, us", each["p99_us"]
    else:
        for each in value["posting_alone"]:
            every = f"a doorbell for {each['doorbell_for']}" if each["doorbell_for"] else "no doorbell"
            yield f"RDMA post, {each['rings']}, {every}, ns", round(each["ns_per_post"])


def beside_load(figures):
    """The same with idle and with busy processors, in the same run."""
    loaded = newest([f for f in figures if f.value.get("cpu_load")])
    found, rows = [], []
    for busy in loaded:
        same = {"device-latency": "device-latency-8B", "handoff": "device-handoff-poll", "ladder": "gpu-verbs-ladder-blocks1-warps1"}[busy.kind]
        idle = [f for f in figures if f.source.path.parent == busy.source.path.parent and f.source.path.stem == same]
        if idle:
            found += [busy, idle[0]]
            before = dict(times_of(idle[0]))
            rows += [(what, before[what], now, f"{now / before[what]:.2f}") for what, now in times_of(busy) if before.get(what)]
    return found, ["what", "idle processors", "all processors busy", "ratio"], rows


TABLES = {
    "Beside busy processors": ("""Kernels that already run wait for no CPU; kernels that hosts launch do. The same runs while a process
computes on every processor.""", beside_load),
}
PLOTS = {"device-latency": latency, "device-rate": rate, "gpu-verbs-ladder": ladder}
