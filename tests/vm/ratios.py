"""Medians of what tests/vm/bench.sh measured, as ratios: `rgaps bench link` over RDMA to TCP, and to perftest."""

import json
import statistics
import sys


def main():
    with open(sys.argv[1]) as file:
        lines = [json.loads(line) for line in file]
    perftest = [line for line in lines if "perftest" in line]
    links = [line for line in lines if "transport" in line]

    def of_link(transport, size, key):
        return statistics.median(line[key] for line in links if (line["transport"], line["size"]) == (transport, size))

    for size in sorted({line["size"] for line in links}):
        rdma, tcp = ({key: of_link(t, size, key) for key in ("p50_us", "messages_per_s")} for t in ("rdma", "tcp"))
        ratios = {
            "bytes": size,
            "rdma_p50_of_tcp": rdma["p50_us"] / tcp["p50_us"],
            "rdma_rate_of_tcp": rdma["messages_per_s"] / tcp["messages_per_s"],
        }
        if size == 8:
            floor = statistics.median(line["ib_write_lat_8_b_us"] for line in perftest)
            ratios |= {f"{name}_p50_of_ib_write_lat": of["p50_us"] / floor for name, of in (("rdma", rdma), ("tcp", tcp))}
        if size == 65536:
            floor = statistics.median(line["ib_write_bw_64_kib_mib_s"] for line in perftest)
            ratios |= {
                f"{name}_rate_of_ib_write_bw": of["messages_per_s"] * size / (1 << 20) / floor
                for name, of in (("rdma", rdma), ("tcp", tcp))
            }
        print(json.dumps({key: round(value, 3) for key, value in ratios.items()}))


main()
