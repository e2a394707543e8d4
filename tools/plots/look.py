"""What all plots have in common."""
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {
    "rgaps": "#0072b2", "rgaps-put": "#56b4e9", "torch-ipc": "#009e73", "iceoryx2": "#e69f00", "iceoryx2-pageable": "#f0c060",
    "iceoryx2-crops": "#a6761d", "iceoryx2-safetensors": "#8c510a", "iceoryx2-safetensors-pageable": "#bf812d", "zenoh": "#d55e00", "zenoh-bytes": "#f4a582",
    "floor": "#777777", "copied": "#cc79a7",
}
plt.rcParams.update({
    "svg.fonttype": "none", "svg.hashsalt": "rgaps", "font.size": 9, "font.family": "sans-serif", "axes.grid": True,
    "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False, "legend.fontsize": 8,
    "legend.framealpha": 0.8, "figure.constrained_layout.use": True,
})


class Nothing(Exception):
    """There is nothing to draw, and why."""


def size_text(size):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def size_axis(axis, sizes):
    axis.set_xscale("log", base=2)
    sizes = sorted(sizes)
    axis.set_xticks(sizes, [size_text(size) for size in sizes], rotation=30, ha="right")
    axis.minorticks_off()


def line(axis, points, label, colour, style="-", marker="o"):
    points = sorted(dict(reversed(list(points))).items())  # of several at one place the first
    if points:
        axis.plot(*zip(*points), style, color=colour, marker=marker, ms=4, lw=1.5, label=label)


def legend_below(figure, axis):
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=3)
