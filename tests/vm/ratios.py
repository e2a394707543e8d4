"""Ratios of what tests/vm/figures.sh (`channels`), tests/vm/bench.sh (`links`) and tests/vm/suites/gpu-remoting.sh (`programs`) measured, each of one round: what else the
host does changes from minute to minute. Prints the median, least and most of all rounds."""

import collections
import json
import statistics
import sys

MIB = 1 << 20


def of_lane(lines, latency, rate):
    """What lane-check says, of perftest."""
    for line in lines:
        if "lane_latency_8_b_us" in line:
            yield f"lane_p50_{line['waiting']}", line["lane_latency_8_b_us"]["p50"] / latency
        for key in ("lane_first_64_kib_mib_s", "lane_stream_64_kib_mib_s"):
            if key in line:
                yield key.removesuffix("_64_kib_mib_s") + "_rate", line[key] / rate


def of_channels(lines):
    """Channels and lanes of perftest."""
    floor = {key: value for line in lines if line["run"] == "perftest" for key, value in line.items()}
    latency, rate = floor["ib_write_lat_8_b_us"], floor["ib_write_bw_65536_mib_s"]
    yield from of_lane(lines, latency, rate)
    for line in lines:
        if "latency_8_b_us" in line:
            yield f"channel_p50_{line['waiting']}", line["latency_8_b_us"]["p50"] / latency
        if "stream_64_kib_mib_s" in line:
            way = "direct" if line["direct"] else "ring"
            yield f"channel_{way}_rate", line["stream_64_kib_mib_s"] / rate


def of_link_builds(lines):
    """What `of_links` says of this build, and how its times are to those of another build before it."""
    now, before = ([line for line in lines if line.get("build") != other] for other in ("before", "after"))
    of_now, of_before = dict(of_links(now)), dict(of_links(before)) if len(before) > 1 else {}
    yield from of_now.items()
    for name, ratio in of_before.items():
        # Of rates, the times.
        yield f"{name}_after_of_before", of_now[name] / ratio if "_rate" not in name else ratio / of_now[name]


def of_links(lines):
    """`rgaps bench link` over RDMA of the same over TCP, and of perftest."""
    floor = lines[0]
    yield from of_lane(lines, floor["ib_write_lat_8_b_us"], floor["ib_write_bw_65536_mib_s"])
    links = {(line["transport"], line["size"]): line for line in lines if "transport" in line}
    for (transport, size), line in links.items():
        if transport == "rdma":
            over_tcp = links["tcp", size]
            yield f"rdma_p50_of_tcp_{size}", line["p50_us"] / over_tcp["p50_us"]
            yield f"rdma_rate_of_tcp_{size}", line["messages_per_s"] / over_tcp["messages_per_s"]
        if size == 8:
            yield f"{transport}_p50_of_ib_write_lat_8", line["p50_us"] / floor["ib_write_lat_8_b_us"]
        else:
            rate = line["messages_per_s"] * size / MIB
            yield f"{transport}_rate_of_ib_write_bw_{size}", rate / floor[f"ib_write_bw_{size}_mib_s"]


def of_programs(lines):
    """CUDA programs on a GPU of the other host: over RDMA, of the same over TCP."""
    found = collections.defaultdict(dict)
    for line in lines:
        times = {line["program"]: line["ms"]} if "ms" in line else {
            f"copy_{way}_{size['bytes'] >> 10}_kib": size[f"{way}_us"] for size in line["sizes"] for way in ("in", "out")
            if size["bytes"] in (1 << 10, 64 << 10, 256 << 10)
        }
        found[line["protocol"]].update(times)
    for name, time in found["rdma"].items():
        yield f"{name}_rdma_of_tcp", time / found["tcp"][name]


def main():
    of, path = {"channels": of_channels, "links": of_link_builds, "programs": of_programs}[sys.argv[1]], sys.argv[2]
    rounds = collections.defaultdict(list)
    with open(path) as file:
        for line in map(json.loads, file):
            rounds[line.get("round", "all")].append(line)
    rounds.pop("all", None)  # What is measured once.
    ratios = collections.defaultdict(list)
    for lines in rounds.values():
        for name, ratio in of(lines):
            ratios[name].append(ratio)
    for name, values in ratios.items():
        summary = {"median": statistics.median(values), "least": min(values), "most": max(values)}
        summary = {key: round(value, 2) for key, value in summary.items()}
        print(json.dumps({"ratio": name, **summary, "rounds": len(values)}))


main()
