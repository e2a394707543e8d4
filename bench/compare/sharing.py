"""Where sharing pays: one process gives large messages to several, each of which computes little on them (scenes.py).

All ways in the same processes, in turns. A case begins with CHECKED messages of which every word is compared, not timed; then as many sets of
messages as fit into a fixed time, at most DEPTH under way, each with the work on it. `compute_ms` is the work of all processes on one set, each alone,
added up: what one GPU needs if they take turns. `copy_ms` is what the copies through pinned memory take alone: one to the host, one from there for each
consumer (of a way that copies crops, of these). So the model says what sharing may give: `in_turn` (compute + copies) / compute, and `overlapped` the
larger of both / compute.
"""
import statistics
import time

import torch

import scenes
import vision
import ways
from pool import Failed, Pool
from turns import SEED, Crew, take_turns

#: A copying way that consumers can take who look at a part of a message: they copy that alone.
CROPS = "iceoryx2-crops"
#: Enough for every buffer and mapping of a way to have been used.
CHECKED = ways.DEPTH + 2
#: Sets that are timed at least, however long they take.
LEAST = 4
ROUNDS = 3
#: Of all rounds.
SECONDS_MAX = 200


def roles(scene):
    return ["giver", *(f"taker{index}" for index in range(scene.takers))]


def topic_of(scene, topic, case):
    """iceoryx2 has room for the receivers that its topics' first part has, so scenes with more or fewer have topics of their own."""
    return f"{scene.takers}to{topic}/{case}"


def scene_on(device, name):
    scene = scenes.SCENES[name][0]
    return scene if device.type == "cuda" else scene.on_cpu()


def scene_of(state, name):
    return scene_on(state["setup"].device, name)


def kept(state, name):
    """The giver or taker of the scene; of one at a time, since their memory is large."""
    if state.get("name") != name:
        state["name"], state["work"] = name, None
        scene, device = scene_of(state, name), state["setup"].device
        role = state["role"]
        state["work"] = scene.giver(device) if role == "giver" else scene.taker(device, int(role.removeprefix("taker")))
    return state["work"]


def give(state, way, case, name, seconds):
    setup, scene, work = state["setup"], scene_of(state, name), kept(state, name)
    senders = [ways.sender(way, setup, topic_of(scene, topic, case), scene.nbytes, scene.takers) for topic in range(scene.topics)]
    begun = []
    try:
        for sender in senders:
            sender.wait_for(scene.takers)
        over = False
        while not over:
            number = len(begun) + 1
            over = number >= CHECKED + LEAST and time.monotonic_ns() - begun[CHECKED] > seconds * 1e9
            begun.append(time.monotonic_ns())
            for topic, sender in enumerate(senders):
                message = sender.buffer()
                work.give(topic, message, number)
                del message
                sender.send(number | (ways.LAST if over else 0))
            if number == CHECKED or over:
                for index in range(scene.takers):
                    ways.expect(setup.acks[index], f"answer of consumer {index}")
    finally:
        for sender in senders:
            sender.close()
    return begun


def take(state, way, case, name, index):
    setup, scene, work = state["setup"], scene_of(state, name), kept(state, name)
    receivers = [ways.receiver(way, setup, topic_of(scene, topic, case), scene.nbytes, index) for topic in range(scene.topics)]
    wrong = torch.zeros((), dtype=torch.int64, device=setup.device)
    came, lost, over = 0, 0, False
    try:
        while not over:
            messages = []
            came += 1
            for receiver in receivers:
                if not receiver.wait(ways.SECONDS_MAX):
                    raise TimeoutError(f"no message {came}")
                marked, message = receiver.take()
                over, number = bool(marked & ways.LAST), marked & ~ways.LAST
                lost += number != came
                messages.append(message)
            if came <= CHECKED:
                wrong += sum(work.check(topic, message, came) for topic, message in enumerate(messages))
            wrong += work.take(messages, came)
            del messages, message
            for receiver in receivers:
                receiver.done()
            if came == CHECKED or over:
                ways.synchronize(setup.device)
                ended = time.monotonic_ns()
                setup.acks[index].put(None)
        return {"came": came, "ended": ended, "lost": lost, "wrong": int(wrong)}
    finally:
        for receiver in receivers:
            receiver.close()


def alone(state, name):
    """Milliseconds of this process's work on a set of messages while others have none; the giver's also of the copies."""
    setup, scene, work = state["setup"], scene_of(state, name), kept(state, name)
    device, rounds = setup.device, 20 if setup.device.type == "cuda" else 3
    here = [torch.zeros(scene.nbytes, dtype=torch.uint8, device=device) for _ in range(scene.topics)]
    if state["role"] != "giver":
        return {"compute": vision.timed(lambda: work.take(here, 1), device, rounds)}
    host = ways.host_buffer(scene.nbytes, device)
    found = {"compute": vision.timed(lambda: [work.give(topic, each, 1) for topic, each in enumerate(here)], device, rounds)}
    found["d2h"] = vision.timed(lambda: [host.copy_(each, non_blocking=True) for each in here], device, rounds)
    found["h2d"] = vision.timed(lambda: [each.copy_(host, non_blocking=True) for each in here], device, rounds)
    return found


TASKS = {"give": give, "take": take, "alone": alone}


def alone_of(pool, name):
    return {role: pool.ask({role: ("alone", {"name": name})}, 120)[role] for role in roles(scenes.SCENES[name][0])}


def row_of(name, way, nbytes, alone_ms):
    compute = sum(part["compute"] for part in alone_ms.values())
    scene = scenes.SCENES[name][0]
    part = scene.cropped_part if way == CROPS else 1
    copies = alone_ms["giver"]["d2h"] + scene.takers * alone_ms["giver"]["h2d"] * part
    return {
        "scenario": name, "way": way, "consumers": scene.takers, "bytes": nbytes, "rounds": 0, "sets": 0, "runs_per_s": [], "lost": 0, "corrupt_words": 0,
        "compute_ms": round(compute, 3), "copy_ms": round(copies, 3), "transport_of_compute": round(copies / compute, 3),
        "model": {"in_turn": round((compute + copies) / compute, 2), "overlapped": round(max(compute, copies) / compute, 2)},
    }


def add(row, begun, answers):
    row["lost"] += sum(answer["lost"] + len(begun) - answer["came"] for answer in answers)
    row["corrupt_words"] += sum(answer["wrong"] for answer in answers)
    timed = len(begun) - CHECKED
    seconds = (max(answer["ended"] for answer in answers) - begun[CHECKED]) / 1e9
    row["runs_per_s"].append(round(timed / seconds, 2))
    row["rounds"] += 1
    row["sets"] += timed
    row["sets_per_s"] = statistics.median(row["runs_per_s"])
    row["gib_per_s"] = round(row["sets_per_s"] * row["bytes"] / (1 << 30), 2)


def with_ratios(rows):
    """Each row of rgaps beside those of the other ways: how many times as many sets."""
    for row in rows:
        if row["way"] == "rgaps":
            others = {o["way"]: o["sets_per_s"] for o in rows if o["scenario"] == row["scenario"] and o is not row}
            row["times"] = {way: round(row["sets_per_s"] / rate, 2) for way, rate in others.items()}
    return rows


def run(options, found, save, say):
    """Fills `found`, and yields what failed."""
    from torchvision import models  # what it needs is missed before anything is begun

    device = torch.device(options.device)
    names = [name for name in scenes.SCENES if options.match in name]
    seconds = 0.2 if options.quick or device.type == "cpu" else 0.6
    found.update(
        what="sets of messages a second that all consumers have computed on", depth=ways.DEPTH, seconds_each=seconds, seed=SEED,
        scenarios={name: scenes.SCENES[name][1] for name in names}, ways={way: ways.WAYS[way][2] for way in options.ways}, rows=[],
    )
    all_of_them = [scenes.SCENES[name][0] for name in names]
    links = {f"{scene.takers}to{topic}": scene.takers for scene in all_of_them for topic in range(scene.topics)}
    most = max(all_of_them, key=lambda scene: scene.takers)
    crew = Crew(lambda: Pool(roles(most), links, range(most.takers), "sharing", options.device, 380))
    rows = {}

    dead = set()

    def one(round_number, number, name, way):
        pool = crew.ready(name, lambda pool: alone_of(pool, name))
        common = {"way": way, "case": f"{round_number}-{number}", "name": name}
        scene = scene_on(device, name)
        tasks = {f"taker{index}": ("take", common | {"index": index}) for index in range(scene.takers)}
        answers = pool.ask({**tasks, "giver": ("give", common | {"seconds": seconds})}, ways.SECONDS_MAX)
        begun = answers.pop("giver")
        row = rows.setdefault((name, way), row_of(name, way, scene.nbytes * scene.topics, crew.alone[name]))
        add(row, begun, answers.values())
        found["rows"] = with_ratios(list(rows.values()))
        save()
        return f"{way}: lost {row['lost']}, corrupt words {row['corrupt_words']}" if row["lost"] or row["corrupt_words"] else None

    def attempt(round_number, number, name):
        """All ways of a scenario, whose makers are made once for them; each round begins with another way."""
        hows = []
        these = [way for way in options.ways if way != CROPS or scenes.SCENES[name][0].cropped_part < 1]
        for at in range(len(these)):
            way = these[(at + round_number) % len(these)]
            if (name, way) in dead:
                continue
            try:
                hows.append(one(round_number, number, name, way))
            except Failed as error:
                dead.add((name, way))
                crew.close()
                hows.append(f"{way}: {error}")
        return "; ".join(filter(None, hows))

    rounds = 1 if options.quick else ROUNDS
    try:
        yield from take_turns(crew, names, rounds, SECONDS_MAX, attempt, lambda text: say(f"sharing: {text}"))
    finally:
        crew.close()
