"""GAPS's vision pipeline: decode and preprocess photographs -> blur -> segmentation and classification.

Four processes, three of them computing on what came from another. Each case is run five times:
free     three times, as fast as it goes: frames a second, the middle run's; what each process's CPU did meanwhile (waiting,
         transport, computing)
paced    one batch under way at a time: from the begin of preprocessing (decoded ahead) to each result on the host
profile  like paced, and every part synchronised: how long each part takes, the device's work included
`alone_ms` is what each stage's work takes while no other process has any: `bound_frames_per_s`, a batch by the sum
of them, is what one GPU can do if the stages take turns on it and transport costs nothing.
"""
import os
import time

import torch

import decoding
import vision
import ways
from figures import against, times
from pool import Failed, Pool

SINKS = ["segment", "classify"]
WARM = 5
FREE_RUNS = 3


class Meter:
    """Where a process's time goes: each call closes a part. In a profile the device's work counts with its part."""

    def __init__(self, device, whole):
        self.device, self.whole = device, whole
        self.parts = {}
        self.last = time.monotonic_ns()
        self.count = 0

    def part(self, name):
        if self.whole:
            ways.synchronize(self.device)
        now = time.monotonic_ns()
        self.parts.setdefault(name, []).append(now - self.last)
        self.last = now

    def found(self):
        """Milliseconds a batch, the warming ones left out."""
        return {
            name: round(sum(each[WARM:]) / max(1, len(each[WARM:])) / 1e6, 4) for name, each in self.parts.items()
        }


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


def source(state, way, case, batch, mode, batches, seconds, sinks):
    setup = state["setup"]
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
        meter = Meter(setup.device, mode == "profile")
        over = False
        while not over:
            number = len(begun) + 1
            over = number == batches or (number > WARM + 4 and time.monotonic_ns() - begun[WARM] > seconds * 1e9)
            decoded = decoder.batch(batch)
            meter.part("decode")
            begun.append(time.monotonic_ns())
            message = sender.buffer()
            meter.part("transport")
            fill(message, decoded, number)
            del message
            meter.part("compute")
            sender.send(number | (ways.LAST if over else 0))
            meter.part("transport out")
            if mode != "free":
                for name in sinks:
                    ways.expect(setup.acks["source", name], f"result of {name}")
            meter.part("wait")
        for name in sinks:
            ways.expect(setup.acks["source", name], f"end of {name}")
    finally:
        sender.close()
    return {"begun": begun, "parts": meter.found()}


def blur(state, way, case, batch, mode, sinks):
    setup = state["setup"]
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
        meter = Meter(setup.device, mode == "profile")
        over, came, lost = False, 0, 0
        while not over:
            if not receiver.wait(ways.SECONDS_MAX):
                raise TimeoutError("no frames")
            meter.part("wait")
            marked, message = receiver.take()
            out = sender.buffer()
            meter.part("transport")
            over, number = bool(marked & ways.LAST), marked & ~ways.LAST
            came += 1
            lost += number != came
            pass_on(message, out, number)
            del message, out
            meter.part("compute")
            receiver.done()
            sender.send(marked)
            meter.part("transport out")
        for name in sinks:
            ways.expect(setup.acks["blur", name], f"end of {name}")
        ways.synchronize(setup.device)
    finally:
        sender.close()
        if receiver is not None:
            receiver.close()
    return {"lost": lost, "corrupt": int(seal.bad), "parts": meter.found()}


def sink(state, way, case, batch, mode, pair, index):
    setup, name = state["setup"], state["role"]
    model = made(state, f"model {pair}", lambda: vision.Model(name, pair, setup.device))
    seal = seal_for(state, batch)
    nbytes = vision.payload_bytes(batch, setup.device) + vision.TRAILER
    receiver = ways.receiver(way, setup, f"blurred/{case}", nbytes, index)

    def look(message, number):
        seal.check(message, number)
        return model.run(vision.pixels(message, batch))

    try:
        meter = Meter(setup.device, mode == "profile")
        over, ended, lost = False, [], 0
        while not over:
            if not receiver.wait(ways.SECONDS_MAX):
                raise TimeoutError("no frames")
            meter.part("wait")
            marked, message = receiver.take()
            meter.part("transport")
            over, number = bool(marked & ways.LAST), marked & ~ways.LAST
            found = look(message, number)
            del message
            result = found.tolist()  # the result is on the host: it ends here
            ended.append(time.monotonic_ns())
            if len(result) != batch:
                raise ValueError(f"{len(result)} results of {batch}")
            lost += number != len(ended)
            meter.part("compute")
            receiver.done()
            meter.part("transport out")
            if mode != "free":
                setup.acks["source", name].put(None)
        for to in ("source", "blur"):
            setup.acks[to, name].put(None)
        ways.synchronize(setup.device)
    finally:
        receiver.close()
    return {"ended": ended, "lost": lost, "corrupt": int(seal.bad), "parts": meter.found()}


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


def run_case(pool, way, name, pair, batch, sinks, mode, batches, seconds):
    common = {"way": way, "case": name, "batch": batch, "mode": mode}
    tasks = {"source": ("source", common | {"batches": batches, "seconds": seconds, "sinks": sinks})}
    tasks["blur"] = ("blur", common | {"sinks": sinks})
    for index, sink_name in enumerate(sinks):
        tasks[sink_name] = ("sink", common | {"pair": pair, "index": index})
    return pool.ask(tasks, 60 + 10 * seconds)


def measure(pool, way, number, pair, batch, sinks, alone_ms, batches, seconds):
    """One row: all runs of a case. Of the free ones the middle one counts."""
    row = {"way": way, "models": pair, "batch": batch, "sinks": sinks, "lost": 0, "corrupt": 0, "batches": 0}
    free = []
    for run, mode in enumerate(["free"] * FREE_RUNS + ["paced", "profile"]):
        answers = run_case(pool, way, f"{number}-{run}", pair, batch, sinks, mode, batches, seconds)
        begun = answers["source"]["begun"]
        for role, answer in answers.items():
            row["lost"] += answer.get("lost", 0) + abs(len(begun) - len(answer.get("ended", begun)))
            row["corrupt"] += answer.get("corrupt", 0)
        if mode == "free":
            rate = {}
            for name in sinks:
                ended = answers[name]["ended"]
                rate[name] = round((len(ended) - WARM) * batch / ((ended[-1] - ended[WARM - 1]) / 1e9), 1)
            free.append((rate, {role: answer["parts"] for role, answer in answers.items()}))
            row["batches"] += len(begun) - WARM
        elif mode == "paced":
            row["latency"] = {
                name: times([end - begin for begin, end in zip(begun, answers[name]["ended"])][WARM:]) for name in sinks
            }
        else:
            row["profile_ms"] = {role: answer["parts"] for role, answer in answers.items()}
    free.sort(key=lambda run: min(run[0].values()))
    row["frames_per_s"], row["cpu_ms"] = free[len(free) // 2]
    row["runs_frames_per_s"] = [min(rate.values()) for rate, _ in free]
    stages = {role: alone_ms[role] for role in ("source", "blur", *sinks)}
    row["alone_ms"] = stages
    row["bound_frames_per_s"] = round(batch / (sum(stages.values()) / 1000), 1)
    return row


def plan(options):
    """Pair of models, batch, sinks."""
    if options.device == "cpu":
        batches, pairs = options.batches or [1, 2], ["light"]
    else:
        batches = options.batches or ([1, 4] if options.quick else [1, 2, 4, 8])
        pairs = ["standard", "light"]
    for pair in pairs:
        for batch in batches:
            if pair == "standard" or batch == 4 or options.device == "cpu":
                yield pair, batch, SINKS
        if 4 in batches:
            for name in SINKS:
                yield pair, 4, [name]


def run(options, found, save, say):
    """Fills `found`, and yields what failed."""
    from torchvision import models  # what it needs is missed before anything is begun

    cases = list(plan(options))
    batches, seconds = (12, 1.0) if options.device == "cpu" else (200, 0.4 if options.quick else 0.6)
    device = torch.device(options.device)
    found.update(
        photographs=decoding.PHOTOS, models=vision.PAIRS, weights="random", side=vision.side_of(device), dtype="float16",
        model_dtype=str(vision.dtype_of(device)).split(".")[1], cuda_graphs=options.device == "cuda", depth=ways.DEPTH,
        ways={way: ways.WAYS[way][2] for way in options.ways}, rows=[], against_copying=[],
    )
    roles = ["source", "blur", *SINKS]
    acks = [(to, name) for to in ("source", "blur") for name in SINKS]
    alone_ms = {}
    for way in options.ways:
        begun = time.monotonic()
        try:
            with Pool(roles, {"frames": 1, "blurred": len(SINKS)}, acks, "pipeline", options.device, 400) as pool:
                warm = set()
                for number, (pair, batch, sinks) in enumerate(cases):
                    # In each way's processes, so that none of them builds its models while it is measured.
                    if (pair, batch) not in warm:
                        warm.add((pair, batch))
                        stages = {
                            role: pool.ask({role: ("alone", {"batch": batch, "pair": pair})}, 120)[role] for role in roles
                        }
                        alone_ms.setdefault((pair, batch), stages)
                    row = measure(pool, way, number, pair, batch, sinks, alone_ms[pair, batch], batches, seconds)
                    found["rows"].append(row)
                    found["against_copying"] = against(found["rows"])
                    save()
                    if row["lost"] or row["corrupt"]:
                        yield f"{way}, batch {batch}", f"lost {row['lost']}, corrupt {row['corrupt']}"
                    if row["batches"] < FREE_RUNS * (batches // 8):
                        yield f"{way}, batch {batch}", f"only {row['batches']} batches were measured: something stood still"
        except Failed as error:
            yield way, str(error)
        say(f"pipeline: {way}: {time.monotonic() - begun:.1f} s")
