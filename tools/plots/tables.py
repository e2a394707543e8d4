"""Tables of docs/performance/results.md: what is figures and no plot. Each gives its rows' figures, and the text."""
from statistics import median

import device
import gaps
import links
import ways
import weights
from look import size_text
from read import newest


def table(head, rows):
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows])


def p50_p99(times, digits=0):
    return f"{times['p50_us']:.{digits}f} ({times['p99_us']:.{digits}f})"


def serialisation_documents(figures):
    return newest([f for f in figures if f.kind == "compare" and f.value.get("device") == "cuda" and (f.value.get("serialisation") or {}).get("rows")])[:1]


def serialisation(figures):
    found = serialisation_documents(figures)
    rows = []
    for part in (f.value["serialisation"] for f in found):
        for row in part["rows"]:
            rows.append((row["way"], row["bytes"], *(p50_p99(row[key]) for key in ("serialise", "deserialise"))))
        if part.get("floor_copy"):
            rows.append(("floor: the bytes copied once", 4_000_000, f"{part['floor_copy']['p50_us']:.0f}", ""))
    return found, ["1000 x 1000 float32", "bytes", "serialise, us p50 (p99)", "back"], rows


def python(figures):
    found = newest([f for f in figures if f.kind == "python"])
    rows = []
    for value in sorted((f.value for f in found), key=lambda value: (value["domain"], value["wait"])):
        grown = {(each["size"], each["pace"]): each["us"] for each in value["growth"]}
        for row in value["rows"]:
            of = grown.get((row["size"], row["pace"])) if row["state"] == "in_flight" else None
            rows.append((
                value["domain"], value["wait"], size_text(row["size"]), row["pace"], row["state"].replace("_", " "),
                p50_p99(row, 1), p50_p99(row["floor"], 1), p50_p99(row["pattern"], 1) if "pattern" in row else "",
                f"{of['in_flight']:+.1f}" if of else "",
            ))
    head = ["domain", "wait", "size", "pace", "state", "rgaps, us p50 (p99)", "floor", "bare calls", "beyond idle"]
    return found, head, rows


def header(figures):
    found = newest([f for f in figures if f.kind == "header"])
    rows = []
    for value in sorted((f.value for f in found), key=lambda value: (value["domain"].split(":")[0], value["wait"])):
        of = value["header"]
        rows.append((
            value["domain"].split(":")[0], value["wait"], size_text(value["size"]), of["header_bytes"],
            p50_p99(value, 2), p50_p99(of, 2), of["ratio"],
        ))
    head = ["domain", "wait", "size", "header, bytes", "without, us p50 (p99)", "with", "ratio of the medians"]
    return found, head, rows


def races(figures):
    found = newest([f for f in figures if f.kind == "races"])
    rows = []
    for value in (f.value for f in found):
        where = f"another GPU, {value['across']}" if value.get("across") else "the publisher's GPU"
        left_out = {run["scenario"]: run for run in value["runs"] if run["skip"]}
        for run in value["runs"]:
            if not run["skip"]:
                without = left_out.get(run["scenario"])
                seen = f"{without['wrong']} of {without['checked']}" if without else ""
                rows.append((value["gpus"], where, run["scenario"], run["checked"], run["wrong"], seen))
    head = ["GPUs", "read on", "scenario", "messages checked", "wrong", "wrong without its wait"]
    return found, head, rows


def kills(figures):
    found = newest([f for f in figures if f.kind == "kills"])
    keys = ["kills", "leaked_blocks", "corrupt", "stuck", "double_frees"]
    rows = [(f.source.path.stem.removeprefix("chaos-"), *(f.value.get(key, "") for key in keys)) for f in found]
    return found, ["run", *(key.replace("_", " ") for key in keys)], rows


#: Ways of examples/kv-cache, as people know them.
KV_CACHE = {
    "kv": "`rgaps.kv`, by layer", "consolidated": "consolidate, then send", "pickle": "pickle over a TCP socket",
    "gloo": "gloo `send`/`recv`", "gloo-layers": "gloo `isend`, by layer", "local": "the decoder computes it itself",
}
PHASES = ["prefill", "consolidate", "transfer", "reconstruct", "ttft"]


def kv_cache(figures):
    found = newest([f for f in figures if f.kind == "kv-cache"])[:1]
    rows = []
    for value in (f.value for f in found):
        for group in sorted({row["group"] for row in value["rows"]}):
            of = {way: [row for row in value["rows"] if (row["way"], row["group"]) == (way, group)] for way in KV_CACHE}
            ms = {way: {phase: median(row["ms"][phase] for row in each) for phase in PHASES} for way, each in of.items()}
            for way, text in KV_CACHE.items():
                hidden = f"{1 - ms[way]['transfer'] / ms['consolidated']['transfer']:.0%}" if way in ("kv", "gloo-layers") else ""
                tokens_per_s = round(median(row["tokens_per_s"] for row in of[way]))
                wrong = sum(row["wrong_tokens"] + row["corrupt"] for row in of[way])
                rows.append((group, text, *(f"{ms[way][phase]:.1f}" for phase in PHASES), hidden, tokens_per_s, wrong))
    return found, ["tokens", "way", *PHASES[:-1], "first token", "transfer hidden", "tokens/s", "wrong"], rows


#: Table 3 of the dmaplane paper: average, least and best second in MB/s, stalls, overflows.
DMAPLANE_PAPER = {"small": (1037, 1047, 1087, 0, 0), "stress": ("-", "-", "-", "72.7 million in 5 s", 0)}
DMAPLANE_RUNS = {"small": "64 credits", "stress": "4 credits, watermarks 3 and 1"}


def dmaplane_streams(figures):
    found = newest([f for f in figures if f.kind == "dmaplane"])[:1]
    rows = []
    for value in (f.value for f in found):
        for run, text in DMAPLANE_RUNS.items():
            of = value[run]["stream"]
            here = [of[key] for key in ("mb_per_s", "window_mb_per_s_min", "window_mb_per_s_max", "stalls", "overflows")]
            rows += [(text, "paper", *DMAPLANE_PAPER[run]), (text, "here", *here)]
    return found, ["stream", "where", "MB/s", "least second", "best second", "stalls", "overflows"], rows


#: Title -> what it says, and what makes it.
TABLES = {
    "From Python": ("""The time from the publish call to the line after `recv`, in two Python processes (`bench/python_latency.py`).
*Awake* and *asleep* say how the publisher waits between messages. The states: *there*, no stream is asked; *idle*, on a stream without work; *in
flight*, behind a kernel of 1 ms; *beside*, such a kernel runs, and no stream is asked. *Bare calls* is the floor plus the two driver calls that
ordering needs. *Beyond idle* is how much a kernel in flight adds to the median of the idle stream.""", python),
    "With and without a header": ("""Messages with and without a header take turns in one run (`rgaps bench latency --header`). The time with a
header includes setting it before publishing and reading it in the subscriber. A message without a header pays nothing.""", header),
    **weights.TABLES,
    "KV cache from prefill to decode": ("""A prompt is computed on one host and decoded on another (`make demo-kv`), in a process with one thread each; a cable of
1 Gbit/s between two network namespaces of one machine. Medians in ms; the ways take turns. *Transfer* is what is left of it when the prefill, and
consolidation, have ended; *hidden* is what the overlap takes away from the transfer after consolidation, which is the paper's way. *Wrong* counts tokens
and arrays that differ in a bit from those of one process.""", kv_cache),
    "dmaplane: streams with credits": ("""Messages of 64 KiB by kernel verbs over Soft-RoCE loopback (`make bench-dmaplane`), beside Table 3 of the
paper, whose machine was real; this one is emulated. What must agree is the last column.""", dmaplane_streams),
    "Races": ("""Slow kernels write and read late, and every word of every message is checked on the GPU. The last column is a control: the
same run with one wait removed must find wrong words (`rgaps-races`).""", races),
    "Kills": ("Publishers, subscribers and the daemon are killed with work queued on the GPU (`rgaps-chaos`). All columns but *kills* must be 0.", kills),
    **gaps.TABLES,
    **device.TABLES,
    **links.TABLES,
    **ways.TABLES,
    "Serialization": ("""The time to serialize and deserialize one array of 4 MB, in microseconds.""", serialisation),
}


def made(figures):
    """Title -> what it says, the figures, the table; of those that have rows."""
    tables = {}
    for title, (says, make) in TABLES.items():
        found, head, rows = make(figures)
        if rows:
            tables[title] = (says, found, table(head, rows))
    return tables
