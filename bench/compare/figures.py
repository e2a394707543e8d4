"""Figures of what was measured; needs no torch."""

#: Ways that copy through the host.
COPYING = ["iceoryx2", "zenoh"]


def rank(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))]


def times(values_ns):
    """What is told of a distribution."""
    return {f"p{part}_us": round(rank(values_ns, part / 100) / 1000, 2) for part in (50, 99)} | {
        "min_us": round(min(values_ns) / 1000, 2),
        "max_us": round(max(values_ns) / 1000, 2),
    }


def against(rows):
    """rgaps beside the best copying way, case by case: times as many frames, and what part of the latency."""
    found = []
    best = {}
    for row in rows:
        key = (row["models"], row["batch"], tuple(row["sinks"]))
        best.setdefault(key, []).append(row)
    for (pair, batch, sinks), there in best.items():
        copying = [row for row in there if row["way"] in COPYING]
        for row in there:
            if row["way"].startswith("rgaps") and copying:
                compared = {"models": pair, "batch": batch, "sinks": list(sinks), "way": row["way"]}
                for name in sinks:
                    fastest = max(copying, key=lambda other: other["frames_per_s"][name])
                    quickest = min(copying, key=lambda other: other["latency"][name]["p50_us"])
                    compared[name] = {
                        "frames_times": round(row["frames_per_s"][name] / fastest["frames_per_s"][name], 2),
                        "than": fastest["way"],
                        "latency_times": round(quickest["latency"][name]["p50_us"] / row["latency"][name]["p50_us"], 2),
                        "latency_than": quickest["way"],
                        "of_bound": round(row["frames_per_s"][name] / row["bound_frames_per_s"], 3),
                        "of_bound_copying": round(fastest["frames_per_s"][name] / fastest["bound_frames_per_s"], 3),
                    }
                found.append(compared)
    return found
