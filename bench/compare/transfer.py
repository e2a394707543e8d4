"""One publisher to several processes: how long until they have the message on the device, and how many a second.

Latency: one message under way at a time, from the call that hands it over (the tensor is written, and the
stream has passed) until a consumer has a tensor on the device that its stream may read, synchronised. Then
every word is compared with what it has to be, which is not timed.
Rate: as many as each way lets be under way; producing (one kernel) and comparing every word is inside.

Each of the two lasts a fixed time, or MESSAGES messages if that is shorter, so a slow way has fewer messages: every row
says how many were timed, and `timed` how many each way had at least. With fewer than 100, p99 is the slowest.
"""
import time

import torch

import ways
from figures import times
from pool import Failed, Pool

CONSUMERS_MAX = 4
STEP = 1000003
#: The first messages are not timed: caches, and mappings of the way's own, of which there are as many as messages under way.
WARM = ways.DEPTH
#: Messages that are timed at least, however long they take.
LEAST = 4
KIB, MIB = 1 << 10, 1 << 20
#: A way whose messages of that many bytes take most of a second: to the fewest and to the most consumers only, and with
#: one message that is not timed, since it has no mappings.
SLOW, SLOW_BYTES = "zenoh", 64 * MIB


def pattern(state, nbytes):
    """What message 0 holds; every word of message n is that plus n * STEP, so that all messages differ."""
    kept = state.get("pattern")
    if kept is None or kept.numel() * 4 != nbytes:
        words = torch.arange(nbytes // 4, dtype=torch.int64, device=state["setup"].device)
        kept = state["pattern"] = ((words * 2654435761) % (1 << 31)).to(torch.int32)
    return kept


def step(number):
    value = (number * STEP) % (1 << 32)
    return value - (1 << 32) if value >= 1 << 31 else value


def produce(sender, base, number):
    """Writes the message where the way wants it; nothing of its tensor is kept."""
    torch.add(base, step(number), out=sender.buffer().view(torch.int32))


def is_slow(way, nbytes):
    return way == SLOW and nbytes >= SLOW_BYTES


def publish(state, way, topic, nbytes, consumers, paced, warm, messages, seconds):
    setup = state["setup"]
    base = pattern(state, nbytes)
    sender = ways.sender(way, setup, topic, nbytes, consumers)
    sent = []
    try:
        sender.wait_for(consumers)
        over = False
        while not over:
            number = len(sent) + 1
            is_late = number >= warm + LEAST and time.monotonic_ns() - sent[warm] > seconds * 1e9
            over = number == messages or is_late
            produce(sender, base, number)
            if paced:
                ways.synchronize(setup.device)
            sent.append(time.monotonic_ns())
            sender.send(number | (ways.LAST if over else 0))
            if paced:
                for index in range(consumers):
                    ways.expect(setup.acks[index], f"answer of consumer {index}")
        for index in range(consumers):
            ways.expect(setup.acks[index], f"end of consumer {index}")
    finally:
        sender.close()
    return sent


def consume(state, way, topic, nbytes, index, paced):
    setup = state["setup"]
    base = pattern(state, nbytes)
    receiver = ways.receiver(way, setup, topic, nbytes, index)
    bad = torch.zeros((), dtype=torch.int64, device=setup.device)
    came, lost = [], 0
    try:
        over = False
        while not over:
            if not receiver.wait(ways.SECONDS_MAX):
                raise TimeoutError(f"no message after {len(came)}")
            number, tensor = receiver.take()
            if paced:
                ways.synchronize(setup.device)
            came.append(time.monotonic_ns())
            over, number = bool(number & ways.LAST), number & ~ways.LAST
            lost += number != len(came)
            if tensor is not None:
                if tensor.numel() != nbytes or tensor.device.type != setup.device.type:
                    raise ValueError(f"{tensor.numel()} bytes on {tensor.device}")
                bad += (tensor.view(torch.int32) != base + step(number)).sum()
            if paced:
                ways.synchronize(setup.device)
            del tensor
            receiver.done()
            if paced:
                setup.acks[index].put(None)
        ways.synchronize(setup.device)
        ended = time.monotonic_ns()
        pinned = getattr(receiver, "pinned", None)
        found = {"came": came, "ended": ended, "lost": lost, "corrupt_words": int(bad)}
        if pinned is not None:
            found["pinned"] = pinned.all
        setup.acks[index].put(None)
        return found
    finally:
        receiver.close()


def floor_copy(state, nbytes, rounds):
    """The least that copying through the host takes: to pinned memory and back, in one process."""
    device = state["setup"].device
    here = torch.empty(nbytes, dtype=torch.uint8, device=device)
    host = ways.host_buffer(nbytes, device)
    taken = []
    for _ in range(rounds + WARM):
        begun = time.monotonic_ns()
        host.copy_(here, non_blocking=True)
        ways.synchronize(device)
        here.copy_(host, non_blocking=True)
        ways.synchronize(device)
        taken.append(time.monotonic_ns() - begun)
    return taken[WARM:]


TASKS = {"publish": publish, "consume": consume, "floor_copy": floor_copy}


def measure(pool, way, number, nbytes, consumers, messages, seconds):
    """A row: both latency and rate."""
    warm = 1 if is_slow(way, nbytes) else WARM
    row = {"way": way, "size": nbytes, "consumers": consumers, "warm": warm}
    for paced in (True, False):
        common = {"way": way, "topic": f"t/{number}-{int(paced)}", "nbytes": nbytes, "paced": paced}
        tasks = {f"consumer{index}": ("consume", common | {"index": index}) for index in range(consumers)}
        tasks["publisher"] = (
            "publish",
            common | {"consumers": consumers, "warm": warm, "messages": warm + messages, "seconds": seconds},
        )
        answers = pool.ask(tasks, seconds * 10 + 60)
        sent = answers.pop("publisher")
        came = [answer["came"] for answer in answers.values()]
        row["lost"] = row.get("lost", 0) + sum(a["lost"] + len(sent) - len(a["came"]) for a in answers.values())
        row["corrupt_words"] = row.get("corrupt_words", 0) + sum(a["corrupt_words"] for a in answers.values())
        for answer in answers.values():
            if "pinned" in answer:
                row["pinned"] = row.get("pinned", True) and answer["pinned"]
        if paced:
            hops = [[there - here for here, there in zip(sent, each)][warm:] for each in came]
            row["messages"] = len(hops[0])
            row["latency"] = times([hop for each in hops for hop in each])
            row["last"] = times([max(each) for each in zip(*hops)])
        else:
            counted = len(sent) - warm
            elapsed = (max(a["ended"] for a in answers.values()) - sent[warm]) / 1e9
            row["rate"] = {
                "messages": counted,
                "messages_per_s": round(counted / elapsed, 1),
                "bytes_per_s": round(counted * nbytes / elapsed),
            }
    return row


def plan(quick, device):
    """Sizes, numbers of consumers, most messages, and how long each is measured. The whole takes about 100 s on an H200,
    40 of it to start processes."""
    if device == "cpu":
        return [4 * KIB, MIB], [1, 2], 60, 0.5
    if quick:
        return [4 * KIB, 4 * MIB, 64 * MIB], [1, 4], 100, 0.1
    return [4 * KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB], [1, 2, 4], 1000, 0.15


def cases(way, sizes, counts):
    """What a way is measured with: consumers and bytes."""
    for consumers in counts:
        for nbytes in sizes if way != "hop" else sizes[:1]:
            if not is_slow(way, nbytes) or consumers in (counts[0], counts[-1]):
                yield consumers, nbytes


def timed(rows):
    """How many messages each way's figures are of."""
    found = {}
    for row in rows:
        counts = (row["messages"], row["rate"]["messages"])
        there = found.setdefault(row["way"], {"rows": 0, "messages": 0, "least": min(counts)})
        there["rows"] += 1
        there["messages"] += sum(counts)
        there["least"] = min(there["least"], *counts)
    return found


def run(options, found, save, say):
    """Fills `found`, and yields what failed."""
    sizes, counts, messages, seconds = plan(options.quick, options.device)
    found.update(
        what="one way, publish call to a synchronised tensor on the device; every word of every message compared",
        depth=ways.DEPTH, seconds_each=seconds, messages_max=messages, ways={}, timed={}, floor_copy=[], rows=[],
    )
    for way in options.ways + ["hop"]:
        found["ways"][way] = ways.WAYS[way][2]
        begun = time.monotonic()
        try:
            roles = ["publisher"] + [f"consumer{index}" for index in range(max(counts))]
            with Pool(roles, {"t": max(counts)}, range(max(counts)), "transfer", options.device, 300) as pool:
                if way == "hop":
                    for nbytes in sizes:
                        answers = pool.ask({"publisher": ("floor_copy", {"nbytes": nbytes, "rounds": 20})}, 60)
                        found["floor_copy"].append({"size": nbytes} | times(answers["publisher"]))
                for number, (consumers, nbytes) in enumerate(cases(way, sizes, counts)):
                    row = measure(pool, way, number, nbytes, consumers, messages, seconds)
                    found["rows"].append(row)
                    found["timed"] = timed(found["rows"])
                    save()
                    if row["lost"] or row["corrupt_words"]:
                        how = f"lost {row['lost']}, corrupt words {row['corrupt_words']}"
                        yield f"{way}, {nbytes} bytes to {consumers}", how
        except Failed as error:
            yield way, str(error)
        say(f"transfer: {way}: {time.monotonic() - begun:.1f} s")
