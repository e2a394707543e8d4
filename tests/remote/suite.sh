#!/usr/bin/env bash
# Runs all programs of tests/remote on a server with the test driver, over TCP and over a Unix socket with shared memory, and some over TLS and
# over a plug-in's communicator; streams start their work late, so that what is not waited for shows. Arguments go to run.py. The last line is JSON.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=$(mktemp -d)
servers=()
end() {
  [ ${#servers[@]} = 0 ] || kill "${servers[@]}" 2>/dev/null || true
  rm -rf "$folder"
}
trap end EXIT
# The page of functions says what there is.
page=docs/reference/gpu-remoting.md
tools/gpu-libs.py table target/debug/librgaps_gpu.so >"$folder/page"
cmp -s "$page" "$folder/page" || { cp "$folder/page" "$page"; echo "$page was older than the functions and is written again; commit it" >&2; exit 1; }
# And the table of functions what the rules make of NVIDIA's headers.
table=crates/remoting/src/math/functions.txt
tools/math-calls.py table .cache/math/include >"$folder/table"
cmp -s "$table" "$folder/table" || { echo "$table is not what tools/math-calls.py makes: 'make math-calls', and commit it" >&2; exit 1; }
mkfifo "$folder/said"
# Starts a server; `said` is where it listens, once it does.
serve() {
  LD_LIBRARY_PATH=$libraries RGAPS_TEST_DRIVER_DEVICES=2 RGAPS_TEST_DRIVER_DELAY_US=100 RGAPS_CUDA_LIBRARY=$PWD/target/debug/librgaps_test_driver.so \
    target/debug/rgaps gpu serve --clients 64 "$@" >"$folder/said" 2>>"$folder/log" &
  servers+=($!)
  if ! read -r said <"$folder/said"; then cat "$folder/log" >&2; exit 1; fi
}
run() {
  LD_LIBRARY_PATH=$PWD/target/debug/gpu-libs tests/remote/run.py --programs target/remote --rgaps target/debug/rgaps \
    --libraries target/debug/gpu-libs "$@" || { cat "$folder/log" >&2; exit 1; }
}
libraries='' serve --listen "unix:$folder/plain" --no-pinning
# Every call waits, and no memory is shared.
RGAPS_GPU_BLOCKING=1 run --on "unix:$folder/plain" --match host/
# Certificates of a realm; a plug-in.
(
  cd "$folder"
  new_key() { openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -nocrypt -out "$1.key"; }
  new_key ca
  openssl req -x509 -new -key ca.key -days 2 -subj "/CN=rgaps tests" -out ca.pem
  new_key gpu7
  openssl req -new -key gpu7.key -subj "/CN=gpu7" |
    openssl x509 -req -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile <(echo subjectAltName=DNS:gpu7) -out gpu7.pem
) 2>/dev/null
cc -shared -fPIC -I crates/capi/include -o "$folder/abstract.so" examples/communicator/abstract.c
cat >"$folder/rgaps.toml" <<END
[links]
host = "gpu7"
tls = { ca = "$folder/ca.pem", certificate = "$folder/gpu7.pem", key = "$folder/gpu7.key" }
[gpu.communicators]
abstract = "$folder/abstract.so"
END
export RGAPS_CONFIG=$folder/rgaps.toml
libraries='' serve --listen "abstract/rgaps-suite-$$" --listen tls/127.0.0.1:0
for group in copy/ callback/ threads/; do
  run --on "abstract/rgaps-suite-$$" --match "$group"
  RGAPS_GPU_STRIPES=3 run --on "tls/gpu7@${said##*tls/}" --match "$group"
done
# Without the libraries above the runtime, each function says so.
said=$(target/debug/rgaps gpu run --libraries target/debug/gpu-libs --on "unix:$folder/plain" -- target/remote/absent no_library 2>&1) ||
  { echo "without libraries: $said" >&2; exit 1; }
for word in 'no libcublas.so' 'no libcudnn.so' 'cublasLoggerConfigure is not forwarded'; do
  grep -q -- "$word" <<<"$said" || { echo "it does not say '$word': $said" >&2; exit 1; }
done
# Topics of the server's host: the program's own; then a filter of ours between a publisher and a subscriber on that host, every byte compared.
cat >"$folder/topics.toml" <<END
socket = "$folder/rgaps.sock"
idle_exit_ms = 3000
[gpu]
topics = ["t/**"]
[pool.cuda]
cap = "16MiB"
END
driver=$PWD/target/debug/librgaps_test_driver.so
there() { RGAPS_CUDA_LIBRARY=$driver RGAPS_TEST_DRIVER_DEVICES=2 RGAPS_CONFIG=$folder/topics.toml target/debug/rgaps "$@"; }
export RGAPS_CONFIG=$folder/topics.toml
libraries='' serve --listen "unix:$folder/topics" --listen 127.0.0.1:0
export RGAPS_CONFIG=$folder/rgaps.toml
topics=${said##*, }
run --on "unix:$folder/topics" --topics
run --on "$topics" --topics
RGAPS_GPU_BLOCKING=1 run --on "$topics" --topics
head -c 300000 /dev/urandom >"$folder/camera"
target/debug/rgaps gpu run --libraries target/debug/gpu-libs --on "$topics" -- target/remote/negative t/camera t/negative 1 >"$folder/filter" &
filter=$!
there topic pub t/camera --file "$folder/camera" --domain cuda --wait-subscribers 1 --timeout 30 >/dev/null
there topic echo t/negative --domain host --late all --count 1 --timeout 30 --save "$folder/negative.raw" >/dev/null &
reader=$!
wait "$filter"
wait "$reader"
python3 -c 'import sys; there, back = (open(name, "rb").read() for name in sys.argv[1:]); sys.exit(back != bytes(255 - byte for byte in there))' \
  "$folder/camera" "$folder/negative.raw" || { echo "the filter gave other bytes" >&2; exit 1; }
# Two servers at once, one over a network and one with shared memory; then the second dies.
libraries='' serve --listen "unix:$folder/second" --listen 127.0.0.1:0
second=${said##*, }
run --on "unix:$folder/plain,$second:1" --servers
RGAPS_GPU_STRIPES=2 run --on "$topics,unix:$folder/second:0" --servers
RGAPS_GPU_BLOCKING=1 run --on "$topics,$second:1" --servers
RGAPS_TEST_SERVER=${servers[-1]} run --on "$topics,unix:$folder/second:1" --servers --match server_that_dies
unset "servers[-1]"
libraries=$PWD/target/remote/standins
serve --listen "unix:$folder/socket" --listen 127.0.0.1:0
RGAPS_GPU_STRIPES=2 run --on "${said##*, }" --math standins "$@"
RGAPS_GPU_STRIPES=2 run --on "unix:$folder/socket" --math standins "$@"
# No variable of the page is called unknown.
said=$(RGAPS_GPU_INLINE=0 RGAPS_GPU_STRIPES=2 RGAPS_GPU_BLOCKING=1 RGAPS_GPU_STATISTICS=$folder/ignored target/debug/rgaps gpu run \
  --libraries target/debug/gpu-libs --on "unix:$folder/socket" -- target/remote/saxpy 256 1 2>&1 >/dev/null)
[ -z "$said" ] || { echo "variables: $said" >&2; exit 1; }
# A repetition of SAXPY waits for two allocations and for the bytes that come back, and for nothing else.
waits() {
  RGAPS_GPU_STATISTICS=$folder/counted target/debug/rgaps gpu run --libraries target/debug/gpu-libs --on "unix:$folder/socket" -- "target/remote/$1" "${@:2}" >/dev/null
  tail -n 1 "$folder/counted" | python3 -c 'import json, sys; print(json.load(sys.stdin)["round_trips"])'
}
waited=$(($(waits saxpy 16384 11) - $(waits saxpy 16384 1)))
[ "$waited" = 30 ] || { echo "ten repetitions of SAXPY wait $waited times, not 30" >&2; exit 1; }
# A plan of cuDNN waits for what its program asks, and not for the variant pack of its execution.
waited=$(waits math standin_plans_are_executed)
[ "$waited" = 13 ] || { echo "a plan of cuDNN waits $waited times, not 13" >&2; exit 1; }
# A program with a static runtime ends at once, and says how to build it.
said=$(target/debug/rgaps gpu run --libraries target/debug/gpu-libs --on "unix:$folder/socket" -- target/remote/static 2>&1) &&
  { echo "a program with a static runtime ran: $said" >&2; exit 1; }
grep -q -- '-cudart shared' <<<"$said" || { echo "it does not say how to build it: $said" >&2; exit 1; }
