"""docs/performance/results.md: plots and tables, what each shows, and at the end where the figures are from."""
from ways import is_finished

SAYS = {
    "latency": ("Latency against size", """From the call of publish to the return of `recv`, one subscriber, one message at a time. The
*floor* is a 64-byte slot between the same processes, in the same run: the receiver polls it, or sleeps on it with a futex. *Copied* is the path
without shared GPU memory: a copy to pinned host memory and one back."""),
    "handoff": ("From kernel to kernel", """From the end of a publisher's kernel to the start of a subscriber's, in two processes. *Queued
before*: the publisher's kernel takes 200 us, so the subscriber's work already waits on the GPU, and only the GPU's part of the hand-over is
measured. The floor runs the same kernels in the same order, and hands over a bare number in memory."""),
    "fanout": ("Fan-out", """The time from one publisher's call until the last of N subscribers has the message. The bytes exist once. The floor
is a 64-byte store, and one futex wake per sleeping subscriber."""),
    "gaps-6a": ("Many to one (GAPS, Figure 6a)", """All publishers publish 64 KiB at the same moment to one subscriber, which sleeps; a dot for each
pair. The floor is a slot and a futex for each publisher. In the paper the slowest pair waits longer with each publisher, since one thread handles all
messages."""),
    "gaps-6b": ("One to many (GAPS, Figure 6b)", """One publisher, 64 KiB, a dot for each pair. In the paper each further subscriber hears 0.8 us later
than the one before it; here a sleeping subscriber costs one futex wake, and one that polls nothing."""),
    "transfer": ("Compared with other ways", """One Python process sends a tensor on the GPU to other processes on the same GPU. The time ends
when the last of them has the tensor and has synchronised its stream. Every word of every message is compared. The floors are a number through a
pipe, and a copy to pinned memory and back within one process."""),
    "fan-out-rates": ("Where sharing pays: several consumers", """The same run: messages per second to the most consumers, rgaps divided by each other
way. Copying ways move each message once for every consumer and once more; CUDA IPC by torch shares, as rgaps does, and differs in what it costs to say so.
Below 1 the other way is faster."""),
    "sharing": ("Where sharing pays: transport by compute", """One to eight consumers on one GPU, each of which computes on every set of messages; the table below says what the
scenarios are. A line joins the sizes of one
frame. Dashed: what a model expects if copies and work take turns; dotted: if copies hide behind the work."""),
    "pipeline": ("A vision pipeline", """Four processes turn photographs into 512 x 512 float16, blur faces in them, and run DeepLabV3 and ResNet-50 (real
architectures with random weights; before 2026-11-26 there was no face detector, and a queue of 4 messages between two processes, not 100). The bound is the batch size divided by the sum of the times that the stages take alone: the most that one GPU
can do if the stages take turns and transport costs nothing."""),
    "profile": ("What limits the pipeline", """Computation and transport of all four processes, added up. The batch size is 4, one batch is in
flight at a time, and every part is synchronised."""),
    "device-latency": ("Device topics: kernel to kernel", """Kernels that already run publish to kernels of another process; half of a round trip, every
word of the answer verified. *Bare flag*: a number without a topic. Kernels that hosts launch (`rgaps bench handoff`, under MPS) are drawn where the same day has
them."""),
    "device-rate": ("Device topics: messages a second", """Each block publishes on a topic of its own to a kernel of another process, every word
verified."""),
    "gpu-verbs-ladder": ("RDMA that kernels post: the ladder", """How many posts a second a kernel makes, with a software card that completes and carries out
nothing: ratios within a run. No network card took part, so nothing here is a rate of RDMA."""),
    "link-rate": ("Between hosts: throughput", """Bursts on all topics between two hosts on one machine, from the first call of publish until the
last subscriber has the last message. The floor is the same number of plain TCP connections (with TLS: of rustls), in the same run."""),
    "trees": ("Large messages to many hosts: a tree in virtual time", """The machines that decide about trees and delivery run with up to 1,000 hosts on one switch,
in virtual time: cables of 100 Gbit/s, `fanout = 2`, two messages, and in half of the runs an inner host that dies in the midst of the second one. What its death costs is above all the 2 s until the other hosts know of it; nothing is lost. It is a
simulation: nothing here is a measurement of a network. The same with real links and eight hosts: `rgaps bench link --tree`."""),
    "thesis-2-2": ("Pinned and pageable memory (thesis, Figure 2.2)", """The time of a copy between a GPU and pageable memory, divided by that of
a copy between the GPU and pinned memory. The thesis measured 1.8-2.0 over PCIe 4.0 x16, and 1.0-1.1 over 3.0 x8."""),
    "thesis-4-1": ("From the GPU to the sending process (thesis, Figure 4.1)", """A copy into pinned shared memory, compared with a pageable
copy and a Unix socket. On a machine without a GPU, plain copies stand in for CUDA's, here and below. The thesis measured 224, 2906, 47905 us for
the pinned and 451, 5709, 85806 us for the pageable copies of 4 MB, 64 MB, 1 GB, and 1184, 17810, 208318 us for its Unix socket."""),
    "thesis-4-2": ("The wire (thesis, Figure 4.2)", """One message from shared memory of one host into shared memory of the other. The thesis
compares RDMA (305 us for 4 MB) with TCP (3365 us). Both bars here are TCP: as many connections as rgaps has, and one. So the figure says nothing about
RDMA."""),
    "thesis-3-9": ("Clearing memory (thesis, Figure 3.9)", """What a ring pays that clears its pinned memory after each message (`bench/zeroing.py`), divided by the
time of a write at 400 Gbit/s, which is computed, not measured. Links of rgaps clear nothing."""),
    "thesis-4-3-to-5": ("One copy per subscriber (thesis, Figures 4.3 to 4.5)", """Each of N subscribers makes its own copy, all at once. The
thesis measured, with 1, 2, 4, 8 subscribers, 0.40, 0.52, 0.87, 2.24 ms for 4 MB; 5.6, 7.4, 12.5, 24.4 ms for 64 MB; 85, 118, 191, 382 ms for 1 GB."""),
    "thesis-4-6": ("From publishing to the last subscriber (thesis, Figure 4.6)", """Three designs, all over TCP: rgaps; pinned memory with one
stage after the other, as in RGAPS; and the thesis's baseline. With 8 subscribers the thesis measured 0.76, 10.4, 165 ms over RDMA, and 7.2, 87.7,
1279 ms for its baseline over TCP."""),
    "dmaplane-copies": ("dmaplane: copies between NUMA nodes", """The processors of one node copy to the memory of another, by the kernel module, in a
virtual machine that emulates two nodes: it shows that each pair is measured, and nothing of the bandwidth of nodes. The paper's figures are of
AWS c5.metal. [dmaplane's tables](dmaplane.md) say what can be compared."""),
    "dmaplane-sweep": ("dmaplane: streams by depth", """Messages of 64 KiB by kernel verbs over Soft-RoCE, in the same virtual machine. Saturated is the
least depth with 95 % of the best throughput."""),
    "weights": ("Model weights: time and memory", """Medians of [the table below](#model-weights). Lengths of bars are times; the texts beside them have the
memory of all readers together."""),
}


def sources(shown, results):
    """One row per file with shown figures: machine, revision and command."""
    rows, seen = [], {}
    for title, figures in shown:
        for source in {str(each.source.path): each.source for each in figures}.values():
            seen.setdefault(str(source.path), (source, []))[1].append(title)
    for source, titles in seen.values():
        about = source.about
        rows.append(
            f"| `bench/results/{source.path.relative_to(results)}` | {'; '.join(titles)} | "
            f"{about.get('machine') or 'machine not named'} | {str(about.get('revision') or 'not named')[:80]} | "
            f"`{about.get('command') or command_of(source)}` |"
        )
    return "\n".join(["| file | shown in | machine | revision | command |", "|---|---|---|---|---|", *rows])


def command_of(source):
    """gpu-check names its files <section>-<name>."""
    section, _, name = source.path.stem.partition("-")
    return f"dist/gpu-check --only {section} --match {name}" if name else "dist/gpu-check"


def ended_early(figures):
    """What is said of figures of a run of bench/compare that did not end by itself."""
    is_whole = all(is_finished(figure.value) for figure in figures if figure.kind == "compare")
    return "" if is_whole else "\n\nThe run ended early; only the ways that it finished are shown."


def text(drawn, tables, left_out, results):
    parts = [
        "# Results\n\nThese plots and tables are drawn by `make plots` from the files in `bench/results`, which the"
        " [table at the end](#sources) lists. [How it is measured](benchmarks.md) explains each figure. Every figure stands"
        " beside its *floor*: the least that could do the same job on the same machine, in the same run.",
    ]
    shown = []
    for name, (title, says) in SAYS.items():
        if name in drawn:
            parts.append(f"## {title}\n\n{says}{ended_early(drawn[name])}\n\n![{title}](plots/{name}.svg)")
            shown.append((title, drawn[name]))
    for title, (says, found, table) in tables.items():
        parts.append("\n\n".join(filter(None, [f"## {title}", says + ended_early(found), table])))
        shown.append((title, found))
    parts.append(f"## Sources\n\n{sources(shown, results)}")
    if left_out:
        parts.append("## Not drawn\n\n" + "\n".join(f"- `{name}`: {reason}" for name, reason in left_out))
    return "\n\n".join(parts) + "\n"
