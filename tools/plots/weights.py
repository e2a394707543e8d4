"""A trainer's weights to inference processes (bench/weights.py): time, and memory of all readers."""
import matplotlib.pyplot as plt

from look import COLOURS, Nothing, size_text
from read import newest

#: Ways, as people know them.
WAYS = {
    "rgaps": "`rgaps.weights`", "file": "`torch.save`, `torch.load`", "mmap": "the same with `mmap=True`",
    "gloo": "torch.distributed `broadcast` (gloo)", "socket": "a socket each",
}


def runs(figures):
    """The figures, and for each size and place the ways with their names: runs that differ in the fan-out only are one."""
    found = newest([f for f in figures if f.kind == "weights"])
    places = {}
    for value in sorted((f.value for f in found), key=lambda value: (value["hosts"], value["mbit"], value["readers_on_each_host"], fanout_of(value))):
        ways = places.setdefault((value["mib"], place_of(value)), {})
        for way, of in value["ways"].items():
            fanout = f", `links.fanout = {fanout_of(value)}`" if way == "rgaps" and value["hosts"] else ""
            ways[WAYS[way] + fanout] = of
    # rgaps first, however many runs it is of.
    return found, {place: dict(sorted(ways.items(), key=lambda way: not way[0].startswith(WAYS["rgaps"]))) for place, ways in places.items()}


def fanout_of(value):
    """Before there were trees each host got its own copy, as with a fan-out of 0; a run without the option had the default."""
    fanout = value.get("fanout", 0)
    return 2 if fanout is None else fanout


def place_of(value):
    readers = f"{value['readers_on_each_host']} reader{'s' if value['readers_on_each_host'] > 1 else ''}"
    if not value["hosts"]:
        return f"1 host, {readers}"
    return f"{value['hosts']} hosts, {readers} each" + (f", {value['mbit'] / 1000:g} Gbit/s" if value["mbit"] else "")


def table(figures):
    found, places = runs(figures)
    rows = []
    for (mib, place), ways in places.items():
        for name, of in ways.items():
            times = f"{of['median_ms'] / 1000:.2f} ({of['min_ms'] / 1000:.2f}-{of['max_ms'] / 1000:.2f})"
            rows.append((size_text(mib << 20), place, name, times, round(of["readers_pss_mib"]), of["wrong_tensors"]))
    return found, ["weights", "to", "way", "seconds, median (range)", "MiB in all readers", "wrong tensors"], rows


def plot(figures):
    found, places = runs(figures)
    if not places:
        raise Nothing("no weights")
    figure, axes = plt.subplots(len(places), 1, figsize=(7.5, 0.5 + sum(0.5 + 0.26 * len(ways) for ways in places.values())), squeeze=False,
                                gridspec_kw={"height_ratios": [1 + len(ways) for ways in places.values()]})
    for (axis,), ((mib, place), ways) in zip(axes, places.items()):
        seconds = [of["median_ms"] / 1000 for of in ways.values()]
        colours = [COLOURS["rgaps"] if name.startswith(WAYS["rgaps"]) else COLOURS["floor"] for name in ways]
        axis.barh(range(len(ways)), seconds, color=colours, height=0.7)
        for row, (length, of) in enumerate(zip(seconds, ways.values())):
            axis.text(length, row, f" {length:.1f} s, {of['readers_pss_mib'] / 1024:.1f} GiB", va="center", fontsize=7)
        axis.set_yticks(range(len(ways)), [name.replace("`", "") for name in ways], fontsize=8)
        axis.invert_yaxis()
        axis.margins(x=0.2)
        axis.set_title(f"{size_text(mib << 20)} to {place}")
    axes[-1][0].set_xlabel("seconds until all readers have read it; memory of all readers together")
    return figure, found


PLOTS = {"weights": plot}
TABLES = {
    "Model weights": ("""A trainer's weights to inference processes, on its host or on others (`bench/weights.py`): from the call until every reader has
read every page. The ways take turns, and every byte is compared in every reader, outside the time. *MiB in all readers* is their PSS together; for
rgaps with what the trainer and the links share of the same pages. rgaps keeps a second version's memory in each host's pool, for the next one. Hosts are
network namespaces of one machine, joined by a switch: their links, daemons and readers share its cores. With a speed, each host's cable carries no more; with
[`links.fanout`](../how-to/links.md#large-messages-to-many-hosts), hosts send on to others what they receive.""", table),
}
