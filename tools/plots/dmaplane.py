"""The figures of the kernel module dmaplane: throughput and latency by depth, and copies between nodes beside the paper's."""
import matplotlib.pyplot as plt

from look import COLOURS, Nothing, line
from read import newest

#: Table 4 of the paper (AWS c5.metal), MB/s, by size and (from, to).
PAPER_COPIES = {
    1 << 20: {(0, 0): 13284, (0, 1): 13218, (1, 0): 12976, (1, 1): 13051},
    64 << 20: {(0, 0): 6778, (0, 1): 5577, (1, 0): 5013, (1, 1): 6095},
}


def found_in(figures):
    found = newest([f for f in figures if f.kind == "dmaplane"])[:1]
    if not found:
        raise Nothing("no figures of the module dmaplane")
    return found


def sweep(figures):
    """Throughput and latency against messages in flight."""
    found = found_in(figures)
    sweep = found[0].value["small"]["sweep"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.8, 3.4))
    line(left, [(p["depth"], p["mb_per_s"]) for p in sweep["points"]], "sweep", COLOURS["rgaps"])
    left.axvline(sweep["saturation_depth"], color=COLOURS["floor"], lw=1, label=f"saturated at {sweep['saturation_depth']}")
    left.set_ylabel("MB/s")
    left.set_ylim(bottom=0)
    line(right, [(p["depth"], p["mean_us"]) for p in sweep["points"]], "mean", COLOURS["rgaps"])
    line(right, [(p["depth"], p["p99_us"]) for p in sweep["points"]], "p99", COLOURS["zenoh"])
    right.set_ylabel("us")
    right.set_ylim(bottom=0)
    for axis in (left, right):
        axis.set_xlabel("messages in flight")
        axis.legend()
    return figure, found


def copies(figures):
    """From node to node, by size."""
    found = found_in(figures)
    runs = [found[0].value["small"], found[0].value["large"]]
    figure, axes = plt.subplots(1, 2, figsize=(8.8, 3.4))
    for axis, run in zip(axes, runs):
        pairs = [(c["from"], c["to"]) for c in run["copies"]]
        here = [c["mb_per_s"] for c in run["copies"]]
        paper = [PAPER_COPIES[run["copy_bytes"]].get(pair, 0) for pair in pairs]
        for shift, values, label, colour in ((-0.2, here, "here", COLOURS["rgaps"]), (0.2, paper, "paper", COLOURS["floor"])):
            at = [place + shift for place in range(len(pairs))]
            axis.bar(at, values, 0.4, label=label, color=colour)
            for x, value in zip(at, values):
                axis.text(x, value, str(value), ha="center", va="bottom", fontsize=6)
        axis.set_xticks(range(len(pairs)), [f"{a} to {b}" for a, b in pairs])
        axis.set_title(f"{run['copy_bytes'] >> 20} MiB")
        axis.set_ylabel("MB/s")
        axis.legend()
    return figure, found


PLOTS = {"dmaplane-sweep": sweep, "dmaplane-copies": copies}
