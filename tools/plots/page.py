"""docs/performance/results.md: the plots, what each shows, and where its figures are from."""
SAYS = {
    "latency": ("Latency against size", """From the publish call to the return of `recv`, one subscriber, nothing else under way. The floor is a
64-byte slot that is polled, or slept on with a futex, between the same processes in the same run. *Copied* is
the way without shared GPU memory: to pinned host memory and from there."""),
    "handoff": ("From kernel to kernel", """From the end of a publisher's kernel to the begin of a subscriber's, in two processes. *Queued before*:
the publisher's kernel takes 200 us, so the subscriber's work waits on the GPU already, and what is left is the
GPU's part. The floor is the same kernels in the same order with a bare number in memory."""),
    "fanout": ("Fan-out", """One publisher, until the last of N subscribers has the message. The bytes are there once. The floor is
a 64-byte store and, for sleepers, a futex wake each."""),
    "transfer": ("Beside the ways people do it now", """A tensor on the GPU from one Python process to others on the same GPU, until the last has it there,
its stream synchronised. Every word of every message is compared. Floors: a number through a pipe, and copying to
pinned memory and back in one process."""),
    "pipeline": ("The vision pipeline", """Photographs to 512 x 512 float16 -> blur -> DeepLabV3 and ResNet-50, four processes; real architectures
with random weights. The bound is a batch over the sum of what each stage takes alone: what one GPU does if the
stages take turns and transport is free."""),
    "profile": ("What bounds the pipeline", """A batch of 4, one at a time, every part synchronised: computing and
transport of all four processes, added."""),
    "link-rate": ("Between hosts: rates", """Bursts on all topics between two hosts on one machine, from the first publish call until the last
subscriber has the last message. The floor is as many bare connections (rustls with TLS), in the same run."""),
    "thesis-2-2": ("Pinned and pageable memory (thesis, Figure 2.2)", """A copy between a GPU and memory that the driver does not know, by one
between the GPU and pinned memory. The thesis: 1.8-2.0 over PCIe 4.0 x16, 1.0-1.1 over 3.0 x8."""),
    "thesis-4-1": ("From the GPU to the process that sends (thesis, Figure 4.1)", """A copy into pinned shared memory, beside a pageable
copy and a Unix socket. On a machine without a GPU plain copies stand in for CUDA's, here and below. The thesis (copies alone): 224, 2906, 47905
us against 451, 5709, 85806 us for 4 MB, 64 MB, 1 GB; its Unix socket took 1184, 17810, 208318 us."""),
    "thesis-4-2": ("The wire (thesis, Figure 4.2)", """One message from shared memory into shared memory. The thesis compares RDMA with TCP:
305 us against 3365 us for 4 MB; here both are TCP."""),
    "thesis-4-3-to-5": ("A copy for each subscriber (thesis, Figures 4.3 to 4.5)", """Where each of N subscribers copies for itself, all at once. The
thesis: 0.40, 0.52, 0.87, 2.24 ms for 4 MB; 5.6, 7.4, 12.5, 24.4 ms for 64 MB; 85, 118, 191, 382 ms for 1 GB, with 1, 2, 4, 8."""),
    "thesis-4-6": ("From publishing to the last subscriber (thesis, Figure 4.6)", """rgaps; pinned memory with one stage after the other, as RGAPS has
it; and its baseline; all over TCP. The thesis, over RDMA against TCP: 0.76, 10.4, 165 ms against 7.2, 87.7, 1279 ms at 8 subscribers."""),
}


def origin(sources, results):
    """Machine, revision and command of each file behind a plot."""
    lines = []
    for source in {str(each.source.path): each.source for each in sources}.values():
        about = source.about
        lines.append(
            f"- `bench/results/{source.path.relative_to(results)}`: {about.get('machine') or 'machine not named'}; "
            f"revision {str(about.get('revision') or 'not named')[:80]}; "
            f"command `{about.get('command') or command_of(source)}`"
        )
    return "\n".join(lines)


def command_of(source):
    """gpu-check names its files <section>-<name>."""
    section, _, name = source.path.stem.partition("-")
    return f"dist/gpu-check --only {section} --match {name}" if name else "dist/gpu-check"


def text(drawn, tables, left_out, results):
    parts = [
        "# Results\n\nDrawn by `make plots` from `bench/results/`; do not edit. How each figure is measured:"
        " [benchmarks.md](benchmarks.md).",
    ]
    for name, (title, says) in SAYS.items():
        if name in drawn:
            parts.append(f"## {title}\n{says}\n\n![{title}](plots/{name}.svg)\n\n{origin(drawn[name], results)}")
    for title, (says, found, table) in tables.items():
        parts.append("\n\n".join(filter(None, [f"## {title}", says, table, origin(found, results)])))
    if left_out:
        parts.append("## Not drawn\n" + "\n".join(f"- `{name}`: {reason}" for name, reason in left_out))
    return "\n\n".join(parts) + "\n"
