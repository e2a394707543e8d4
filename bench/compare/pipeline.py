"""GAPS's vision pipeline: decode and preprocess photographs -> detect and blur faces -> segmentation and classification.

Four processes, three of them computing on what came from another; all ways in the same processes, in an order that is shuffled anew each round. Between two
processes up to 100 messages may be under way, as in the paper, so no sink waits for the other one. A case has four phases, on the same connections:
warm     as many batches as free has, not timed: caches, and memory that was never used
free     as fast as it goes: frames a second of each sink, from the begin of the first batch to that sink's own last result
paced    one batch under way at a time: from the begin of preprocessing (decoded ahead) to each result on the host; in the first round only
profile  like paced, and every part synchronised: how long each part takes, the device's work included; likewise
Of the free phases of all rounds the median counts. `alone_ms` is what each stage's work takes while no other process has any: `bound_frames_per_s`,
a batch by the sum of them, is what one GPU can do if the stages take turns on it and transport costs nothing.
"""
import os
import statistics
import time

import torch

import decoding
import vision
import ways
from figures import times
from pool import Pool
from turns import SEED, Crew, take_turns

SINKS = ["segment", "classify"]
ROLES = ["source", "blur", *SINKS]
#: Messages between two processes.
DEPTH = 100
#: Batches of each phase, in their order; on the CPU few.
PHASES = {"warm": DEPTH, "free": DEPTH, "paced": 25, "profile": 15}
PHASES_ON_CPU = {"warm": 4, "free": 6, "paced": 3, "profile": 3}
#: Paced and profiled batches that do not count.
LEFT_OUT = 2
ROUNDS = 3
#: Of all rounds, without MPS and under it.
SECONDS_MAX = {False: 190, True: 100}


class Phases:
    """Which phase a batch is of, by its number from 1 on."""

    def __init__(self, counts):
        self.counts = counts
        self.ends = {}
        self.total = 0
        for name, count in counts.items():
            self.total += count
            self.ends[name] = self.total

    def of(self, number):
        return next(name for name, end in self.ends.items() if number <= end)

    def is_last(self, number):
        return number in self.ends.values()

    def cut(self, values, name):
        """Those of the phase."""
        return values[self.ends[name] - self.counts[name] : self.ends[name]] if name in self.counts else []


class Meter:
    """Where a process's time goes: each call closes a part. In a profile the device's work counts with its part."""

    def __init__(self, device, phases):
        self.device, self.phases = device, phases
        self.number = 1
        self.parts = {}
        self.last = time.monotonic_ns()

    def part(self, name):
        phase = self.phases.of(self.number)
        if phase == "profile":
            ways.synchronize(self.device)
        now = time.monotonic_ns()
        self.parts.setdefault((phase, name), []).append(now - self.last)
        self.last = now

    def next(self):
        self.number = min(self.number + 1, self.phases.total)

    def found(self, phase):
        """Milliseconds a batch."""
        return {
            name: round(sum(each[LEFT_OUT:]) / max(1, len(each[LEFT_OUT:])) / 1e6, 4)
            for (of, name), each in self.parts.items() if of == phase
        }

    def all(self):
        return {phase: self.found(phase) for phase in self.phases.counts}


def seal_for(state, batch):
    nbytes = vision.payload_bytes(batch, state["setup"].device)
    key = f"seal {nbytes}"
    if key not in state:
        state[key] = vision.Seal(nbytes, state["setup"].device)
    state[key].bad.zero_()
    return state[key]


def made(state, key, make):
    if key not in state:
        state[key] = make()
    return state[key]


def decoder_of(state):
    """With half of the cores, 8 at most; its processes end with this one."""
    device = state["setup"].device
    processes = max(1, min(8, (os.cpu_count() or 1) // 2))
    return made(state, "decoder", lambda: decoding.Decoder(vision.side_of(device), device, processes))


def source(state, way, case, batch, counts, sinks):
    setup = state["setup"]
    phases = Phases(counts)
    decoder = decoder_of(state)
    preprocess = made(state, "preprocess", lambda: vision.Preprocess(setup.device))
    seal = seal_for(state, batch)
    sender = ways.sender(way, setup, f"frames/{case}", vision.payload_bytes(batch, setup.device) + vision.TRAILER, 1)

    def fill(message, decoded, number):
        preprocess.run(decoded, vision.pixels(message, batch))
        decoder.used()
        seal.close(message, number)

    begun = []
    try:
        sender.wait_for(1)
        meter = Meter(setup.device, phases)
        for number in range(1, phases.total + 1):
            decoded = decoder.batch(batch)
            meter.part("decode")
            begun.append(time.monotonic_ns())
            message = sender.buffer()
            meter.part("transport")
            fill(message, decoded, number)
            del message
            meter.part("compute")
            sender.send(number)
            meter.part("transport out")
            if phases.of(number) in ("paced", "profile") or phases.is_last(number):
                for name in sinks:
                    ways.expect(setup.acks["source", name], f"result {number} of {name}")
            meter.part("wait")
            meter.next()
    finally:
        sender.close()
    return {"begun": begun, "parts": meter.all()}


def blur(state, way, case, batch, counts, sinks):
    setup = state["setup"]
    phases = Phases(counts)
    stage = made(state, "blur", lambda: vision.Blur(setup.device))
    seal = seal_for(state, batch)
    nbytes = vision.payload_bytes(batch, setup.device) + vision.TRAILER
    sender = ways.sender(way, setup, f"blurred/{case}", nbytes, len(sinks))
    receiver = None

    def pass_on(message, out, number):
        seal.check(message, number)
        stage.run(vision.pixels(message, batch), vision.pixels(out, batch))
        seal.close(out, number)

    try:
        sender.wait_for(len(sinks))
        # Only now, so that the source begins when all are there.
        receiver = ways.receiver(way, setup, f"frames/{case}", nbytes, 0)
        meter = Meter(setup.device, phases)
        lost = 0
        for number in range(1, phases.total + 1):
            if not receiver.wait(ways.SECONDS_MAX):
                raise TimeoutError(f"no frames {number}")
            meter.part("wait")
            came, message = receiver.take()
            out = sender.buffer()
            meter.part("transport")
            lost += number != came
            pass_on(message, out, number)
            del message, out
            meter.part("compute")
            receiver.done()
            sender.send(number)
            meter.part("transport out")
            meter.next()
        for name in sinks:
            ways.expect(setup.acks["blur", name], f"end of {name}")
        ways.synchronize(setup.device)
    finally:
        sender.close()
        if receiver is not None:
            receiver.close()
    return {"lost": lost, "corrupt": int(seal.bad), "parts": meter.all()}


def sink(state, way, case, batch, counts, pair, index):
    setup, name = state["setup"], state["role"]
    phases = Phases(counts)
    model = made(state, f"model {pair}", lambda: vision.Model(name, pair, setup.device))
    seal = seal_for(state, batch)
    nbytes = vision.payload_bytes(batch, setup.device) + vision.TRAILER
    receiver = ways.receiver(way, setup, f"blurred/{case}", nbytes, index)

    def look(message, number):
        seal.check(message, number)
        return model.run(vision.pixels(message, batch))

    try:
        meter = Meter(setup.device, phases)
        ended, lost = [], 0
        for number in range(1, phases.total + 1):
            if not receiver.wait(ways.SECONDS_MAX):
                raise TimeoutError(f"no frames {number}")
            meter.part("wait")
            came, message = receiver.take()
            meter.part("transport")
            found = look(message, number)
            del message
            result = found.tolist()  # the result is on the host: it ends here
            ended.append(time.monotonic_ns())
            if len(result) != batch:
                raise ValueError(f"{len(result)} results of {batch}")
            lost += number != came
            meter.part("compute")
            receiver.done()
            meter.part("transport out")
            if phases.of(number) in ("paced", "profile") or phases.is_last(number):
                setup.acks["source", name].put(None)
            meter.next()
        setup.acks["blur", name].put(None)
        ways.synchronize(setup.device)
    finally:
        receiver.close()
    return {"ended": ended, "lost": lost, "corrupt": int(seal.bad), "parts": meter.all()}


def alone(state, batch, pair):
    """What this stage's work takes while others have none."""
    setup, role = state["setup"], state["role"]
    device, nbytes = setup.device, vision.payload_bytes(batch, setup.device) + vision.TRAILER
    rounds = 20 if device.type == "cuda" else 3
    here, there = (torch.zeros(nbytes, dtype=torch.uint8, device=device) for _ in range(2))
    seal = seal_for(state, batch)
    if role == "source":
        decoder = decoder_of(state)
        preprocess = made(state, "preprocess", lambda: vision.Preprocess(device))
        decoded = decoder.batch(batch)
        work = lambda: (preprocess.run(decoded, vision.pixels(here, batch)), seal.close(here, 1))
    elif role == "blur":
        stage = made(state, "blur", lambda: vision.Blur(device))
        work = lambda: (
            seal.check(here, 0), stage.run(vision.pixels(here, batch), vision.pixels(there, batch)), seal.close(there, 1)
        )
    else:
        model = made(state, f"model {pair}", lambda: vision.Model(role, pair, device))
        work = lambda: (seal.check(here, 0), model.run(vision.pixels(here, batch)))
    taken = vision.timed(work, device, rounds)
    if role == "source":
        decoder.used()
    return taken


TASKS = {"source": source, "blur": blur, "sink": sink, "alone": alone}


def run_case(pool, number, way, pair, batch, sinks, counts):
    common = {"way": way, "case": number, "batch": batch, "counts": counts}
    tasks = {"source": ("source", common | {"sinks": sinks})}
    tasks["blur"] = ("blur", common | {"sinks": sinks})
    for index, sink_name in enumerate(sinks):
        tasks[sink_name] = ("sink", common | {"pair": pair, "index": index})
    return pool.ask(tasks, ways.SECONDS_MAX)


class Row:
    """What a case found, round by round."""

    def __init__(self, way, pair, batch, sinks, alone_ms):
        stages = {role: alone_ms[role] for role in ("source", "blur", *sinks)}
        self.value = {
            "way": way, "models": pair, "batch": batch, "sinks": sinks, "rounds": 0, "batches": 0, "lost": 0, "corrupt": 0,
            "runs_frames_per_s": {name: [] for name in sinks}, "alone_ms": stages,
            "bound_frames_per_s": round(batch / (sum(stages.values()) / 1000), 1),
        }

    def add(self, answers, counts):
        row, phases = self.value, Phases(counts)
        begun = answers["source"]["begun"]
        for role, answer in answers.items():
            row["lost"] += answer.get("lost", 0)
            row["corrupt"] += answer.get("corrupt", 0)
        for name in row["sinks"]:
            seconds = (phases.cut(answers[name]["ended"], "free")[-1] - phases.cut(begun, "free")[0]) / 1e9
            row["runs_frames_per_s"][name].append(round(counts["free"] * row["batch"] / seconds, 1))
        row["frames_per_s"] = {name: statistics.median(rates) for name, rates in row["runs_frames_per_s"].items()}
        row["rounds"] += 1
        row["batches"] += counts["free"]
        if "paced" in counts:
            row["latency"] = {
                name: times([
                    end - begin for begin, end in zip(phases.cut(begun, "paced"), phases.cut(answers[name]["ended"], "paced"))
                ][LEFT_OUT:])
                for name in row["sinks"]
            }
        if "profile" in counts:
            row["profile_ms"] = {role: answer["parts"]["profile"] for role, answer in answers.items()}
        row["cpu_ms"] = {role: answer["parts"]["free"] for role, answer in answers.items()}


def plan(options):
    """Pair of models, batch, sinks."""
    on_cpu = options.device == "cpu"
    batches = options.batches or ([1, 2] if on_cpu else [4] if options.quick else [1, 4, 8])
    for pair in options.models or ["light" if on_cpu else "standard"]:
        for batch in batches:
            yield pair, batch, SINKS


def counts_of(device, round_number):
    counts = PHASES_ON_CPU if device == "cpu" else PHASES
    return counts if round_number == 0 else {name: counts[name] for name in ("warm", "free")}


def alone_of(pool, pair, batch):
    """What each stage takes alone."""
    return {role: pool.ask({role: ("alone", {"batch": batch, "pair": pair})}, 120)[role] for role in ROLES}


def run(options, found, save, say):
    """Fills `found`, and yields what failed."""
    from torchvision import models  # what it needs is missed before anything is begun

    device = torch.device(options.device)
    found.update(
        photographs=decoding.PHOTOS, models=vision.PAIRS, weights="random", side=vision.side_of(device), dtype="float16",
        model_dtype=str(vision.dtype_of(device)).split(".")[1], cuda_graphs=options.device == "cuda", depth=DEPTH, seed=SEED,
        ways={way: ways.WAYS[way][2] for way in options.ways}, rows=[],
    )
    acks = [(to, name) for to in ("source", "blur") for name in SINKS]
    crew = Crew(lambda: Pool(ROLES, {"frames": 1, "blurred": len(SINKS)}, acks, "pipeline", options.device, 550, DEPTH))
    rows = {}

    def attempt(round_number, number, case):
        way, pair, batch, sinks = case
        counts = counts_of(options.device, round_number)
        pool = crew.ready((pair, batch), lambda pool: alone_of(pool, pair, batch))
        answers = run_case(pool, f"{round_number}-{number}", way, pair, batch, sinks, counts)
        row = rows.setdefault((way, pair, batch), Row(way, pair, batch, sinks, crew.alone[pair, batch]))
        row.add(answers, counts)
        found["rows"] = [row.value for row in rows.values()]
        save()
        if row.value["lost"] or row.value["corrupt"]:
            return f"lost {row.value['lost']}, corrupt {row.value['corrupt']}"
        return None

    cases = [(way, pair, batch, sinks) for way in options.ways for pair, batch, sinks in plan(options)]
    rounds = 1 if options.quick else ROUNDS
    try:
        for case, how in take_turns(crew, cases, rounds, SECONDS_MAX[options.mps], attempt, lambda text: say(f"pipeline: {text}")):
            yield f"{case[0]}, batch {case[2]}", how
    finally:
        crew.close()
