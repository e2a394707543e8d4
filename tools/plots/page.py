"""docs/performance/results.md: plots and tables, what each shows, and at the end where the figures are from."""
SAYS = {
    "latency": ("Latency against size", """From the call of publish to the return of `recv`, one subscriber, one message at a time. The
*floor* is a 64-byte slot between the same processes, in the same run: polled, or slept on with a futex. *Copied* is the path without shared GPU
memory: to pinned host memory and back."""),
    "handoff": ("From kernel to kernel", """From the end of a publisher's kernel to the start of a subscriber's, in two processes. *Queued
before*: the publisher's kernel takes 200 us, so the subscriber's work waits on the GPU already, and only the GPU's part is left. The floor is
the same kernels in the same order, with a bare number in memory."""),
    "fanout": ("Fan-out", """One publisher, until the last of N subscribers has the message. The bytes exist once. The floor is a 64-byte
store, and a futex wake for each subscriber that sleeps."""),
    "transfer": ("Compared with how it is done today", """A tensor on the GPU, from one Python process to others on the same GPU, until the
last one has it and its stream is synchronised. Every word of every message is compared. The floors: a number through a pipe, and a copy to
pinned memory and back within one process."""),
    "pipeline": ("A vision pipeline", """Photographs to 512 x 512 float16, then blur, then DeepLabV3 and ResNet-50, in four processes; real
architectures with random weights. The bound is a batch over the sum of what each stage takes alone: what one GPU can do if the stages take turns
and transport is free."""),
    "profile": ("What bounds the pipeline", """A batch of 4, one at a time, every part synchronised: computation and transport of all four
processes, added."""),
    "link-rate": ("Between hosts: rates", """Bursts on all topics between two hosts on one machine, from the first call of publish until the
last subscriber has the last message. The floor is the same number of bare connections (rustls with TLS), in the same run."""),
    "thesis-2-2": ("Pinned and pageable memory (thesis, Figure 2.2)", """A copy between a GPU and memory that the driver does not know,
divided by one between the GPU and pinned memory. The thesis: 1.8-2.0 over PCIe 4.0 x16, 1.0-1.1 over 3.0 x8."""),
    "thesis-4-1": ("From the GPU to the process that sends (thesis, Figure 4.1)", """A copy into pinned shared memory, compared with a pageable
copy and a Unix socket. On a machine without a GPU, plain copies stand in for CUDA's, here and below. The thesis (copies alone): 224, 2906, 47905
us against 451, 5709, 85806 us for 4 MB, 64 MB, 1 GB; its Unix socket took 1184, 17810, 208318 us."""),
    "thesis-4-2": ("The wire (thesis, Figure 4.2)", """One message from shared memory into shared memory. The thesis compares RDMA with TCP:
305 us against 3365 us for 4 MB; here both are TCP."""),
    "thesis-4-3-to-5": ("A copy for each subscriber (thesis, Figures 4.3 to 4.5)", """Each of N subscribers copies for itself, all at once. The
thesis: 0.40, 0.52, 0.87, 2.24 ms for 4 MB; 5.6, 7.4, 12.5, 24.4 ms for 64 MB; 85, 118, 191, 382 ms for 1 GB, with 1, 2, 4, 8."""),
    "thesis-4-6": ("From publishing to the last subscriber (thesis, Figure 4.6)", """rgaps; pinned memory with one stage after the other, as RGAPS
does it; and its baseline; all over TCP. The thesis, over RDMA against TCP: 0.76, 10.4, 165 ms against 7.2, 87.7, 1279 ms at 8 subscribers."""),
}


def sources(shown, results):
    """A row for each file that a section shows: machine, revision and command."""
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


def text(drawn, tables, left_out, results):
    parts = [
        "# Results\n\nThese plots and tables are drawn by `make plots` from the files in `bench/results`, which the"
        " [table at the end](#sources) lists. [How it is measured](benchmarks.md) explains each figure. Every figure stands"
        " beside its *floor*: the least that could do the same job on the same machine, in the same run.",
    ]
    shown = []
    for name, (title, says) in SAYS.items():
        if name in drawn:
            parts.append(f"## {title}\n\n{says}\n\n![{title}](plots/{name}.svg)")
            shown.append((title, drawn[name]))
    for title, (says, found, table) in tables.items():
        parts.append("\n\n".join(filter(None, [f"## {title}", says, table])))
        shown.append((title, found))
    parts.append(f"## Sources\n\n{sources(shown, results)}")
    if left_out:
        parts.append("## Not drawn\n\n" + "\n".join(f"- `{name}`: {reason}" for name, reason in left_out))
    return "\n\n".join(parts) + "\n"
