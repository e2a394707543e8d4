"""GAPS's figures with several publishers or subscribers (6a, 6b), and its table of allocations (Table I)."""
import matplotlib.pyplot as plt

from look import COLOURS, Nothing
from read import newest


def pairs_plot(groups, floors, axis, label):
    """`groups`: count -> each pair's median; beside them the floors'."""
    for number, (count, medians) in enumerate(groups.items()):
        axis.plot([number] * len(medians), medians, "o", ms=4, alpha=0.6, color=COLOURS["rgaps"], label="rgaps, each pair" if number == 0 else None)
        floor = floors[count]
        axis.plot([number + 0.2] * len(floor), floor, "_", ms=9, color=COLOURS["floor"], label="floor" if number == 0 else None)
    axis.set_xticks(range(len(groups)), [str(count) for count in groups])
    axis.set_xlabel(label)
    axis.set_ylim(bottom=0)
    axis.legend()


def many_to_one(figures):
    """Figure 6a: all publishers at the same moment, one subscriber."""
    found = newest([f for f in figures if f.kind == "fanin"])[:1]
    if not found:
        raise Nothing("no many-to-one")
    counts = found[0].value["counts"]
    groups = {c["publishers"]: [pair["p50_us"] for pair in c["pairs"]] for c in counts}
    floors = {c["publishers"]: [pair["floor"]["p50_us"] for pair in c["pairs"]] for c in counts}
    figure, axis = plt.subplots(figsize=(5, 3.4))
    pairs_plot(groups, floors, axis, "publishers that publish at the same moment")
    axis.set_ylabel("publish to handler, p50 of each pair, us")
    return figure, found


def one_to_many(figures):
    """Figure 6b: one publisher, each subscriber's times by themselves."""
    found = newest([f for f in figures if f.kind == "fanout" and "pairs" in f.value["counts"][0]["sleeping"]])[:1]
    if not found:
        raise Nothing("no one-to-many with times of each pair")
    counts = found[0].value["counts"]
    figure, axes = plt.subplots(1, 2, figsize=(8.8, 3.4))
    for axis, way in zip(axes, ("awake", "sleeping")):
        groups = {c["subscribers"]: [pair["p50_us"] for pair in c[way]["pairs"]] for c in counts}
        floors = {c["subscribers"]: [c[way]["floor"]["latency"]["p50_us"]] for c in counts}
        pairs_plot(groups, floors, axis, "subscribers")
        axis.set_title(way)
    axes[0].set_ylabel("publish to handler, p50 of each pair, us")
    return figure, found


#: Table I (Jetson AGX Orin), microseconds: processes -> TlsfMalloc with ticket lock and semaphore, TlsfFree with both.
PAPER_ALLOC = {1: (3.1, 2.9, 0.3, 0.3), 2: (15.0, 13.0, 8.2, 7.5), 4: (127.7, 99.9, 31.2, 34.9), 8: (513.9, 330.2, 105.4, 128.0)}


def alloc(figures):
    """Table I: what a loan and its release take while other processes do the same."""
    found = newest([f for f in figures if f.kind == "alloc"])[:1]
    rows = []
    for value in (f.value for f in found):
        for count in value["counts"]:
            of = [count["ticket_lock"], count["semaphore"], count, count["floor"]]
            times = [f"{way[call]['p50_ns'] / 1000:.2f} ({way[call]['cpu_ns'] / 1000:.2f})" for call in ("loan", "release") for way in of]
            paper = PAPER_ALLOC.get(count["processes"], ("",) * 4)
            rows.append((count["processes"], *times, "{} / {}".format(*paper[:2]), "{} / {}".format(*paper[2:])))
    ways = ["ticket lock", "semaphore", "rgaps", "floor"]
    head = ["processes", *(f"{call}: {way}" for call in ("loan", "release") for way in ways), "paper: malloc", "paper: free"]
    return found, head, rows


PLOTS = {"gaps-6a": many_to_one, "gaps-6b": one_to_many}
TABLES = {
    "Allocation under contention (GAPS, Table I)": ("""Loans of 4 KiB to 1 MiB in batches of 64 and their release in another order, by as many processes at
once: p50 in us, in brackets the processor time per call. *Ticket lock* and *semaphore* are the paper's design, rebuilt: one TLSF in shared memory for all
processes. rgaps gives each publisher an arena of its own, so its time does not grow; with one process the paper's design is faster, since it keeps no
holder words. The floor is a TLSF in each process's own memory. The paper's figures (Jetson AGX Orin): ticket lock / semaphore.""", alloc),
}
