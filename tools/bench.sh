#!/usr/bin/env bash
# Runs every figure of `rgaps bench` and leaves a JSON file each in OUT (bench/out), with the machine
# in machine.json. DOMAIN chooses where payloads live, RGAPS the program, MESSAGES the length.
# Published results are moved to bench/results/ by hand, with the page in docs/ that reads them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rgaps=${RGAPS:-target/release/rgaps}
out=${OUT:-bench/out}
domain=${DOMAIN:-host}
messages=${MESSAGES:-20000}
mkdir -p "$out"

# The first argument names the file, the others are the benchmark's.
figure() {
  local file=$out/$1.json
  shift
  printf '%-60s ' "rgaps bench $*"
  "$rgaps" bench "$@" --json >"$file"
  tr -d '\n' <"$file" | cut -c1-160
}

python3 - >"$out/machine.json" <<'END'
import json, os, platform, subprocess
cpu = [l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")]
def lines(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    except (OSError, subprocess.CalledProcessError):
        return []
print(json.dumps({"cpu": cpu[0] if cpu else platform.machine(), "cores": os.cpu_count(),
                  "kernel": platform.release(), "load": os.getloadavg()[0],
                  "gpus": [l.split(" (UUID")[0] for l in lines("nvidia-smi", "-L")],
                  "revision": "".join(lines("git", "rev-parse", "--short", "HEAD"))}, indent=1))
END

for wait in poll block; do
  figure "latency-4KiB-$wait" latency --domain "$domain" --size 4096 --subscribers 1 --messages "$messages" --wait "$wait"
done
figure latency-4MiB latency --domain "$domain" --size 4194304 --subscribers 1 --messages 500 --wait block
figure latency-1GiB latency --domain "$domain" --size 1073741824 --subscribers 1 --messages 10 --wait block
figure alloc alloc --processes 1,2,4,8
figure fanout fanout --subscribers 1,2,4,8,16,32 --size 65536
figure fanin fanin --publishers 1,2,4,8,16 --size 65536
figure throughput throughput --size 64
