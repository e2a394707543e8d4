//! What follows the options in each `--help`: examples, and the fields of the JSON.
//!
//! A line that begins with `  rgaps`, or pipes into `rgaps`, is an example. The test below parses each, so none can
//! name an option that does not exist.

pub const RGAPS: &str = "\
Examples:
  # Publish a message, and print the messages of a topic.
  rgaps topic echo greetings
  rgaps topic pub greetings --text hello
  # Publish what another command prints: standard input is the default.
  date | rgaps topic pub time
  # Record all topics to a file, and publish them again later.
  rgaps record -o run.mcap '**'
  rgaps replay run.mcap
  # Show what happens on this host, and what is missing on it.
  rgaps top
  rgaps view
  rgaps doctor

Exit codes:
  0    success; also when Ctrl-C or a closed pipe ends a command that runs until then
  1    failure
  2    wrong usage or configuration
  3    no daemon runs, or it went away
  4    no such topic
  5    timeout: no message, no subscriber, or a reliable subscriber that did not read in time
  6    refused: permission, type, quality of service, a limit, a full pool
  130  a second Ctrl-C ended the command at once

Configuration: rgaps.toml in ., ~/.config/rgaps or /etc/rgaps. Environment variables RGAPS_* override the file.
Logs go to standard error. RUST_LOG chooses what is logged, for example RUST_LOG=rgaps=debug.";

pub const UP: &str = "\
Examples:
  # Start the daemon in the background.
  rgaps up
  # Run it in this terminal, or as a service that a supervisor restarts.
  rgaps up --foreground
  # Let processes share the GPU through MPS.
  rgaps up --mps

JSON fields: started, pid, socket, version, idle_exit_ms, mps";

pub const DOWN: &str = "\
Examples:
  rgaps down
  # Stop the daemon of another realm.
  rgaps down --realm robot

JSON fields: stopped, pid, dropped, clients";

pub const STATUS: &str = "\
Examples:
  rgaps status
  # Print the names of the client processes.
  rgaps status --json | jq -r '.processes[].name'

JSON fields: version, realm, pid, socket, uptime_ms, clients, topics, zones (groups of topics, one for each access rule), rss_bytes, idle_exit_ms,
clients_reaped, blocks_reclaimed, sessions_cut_off, recovering, kept, warnings, links (the state of the links to other
hosts, and why they failed), mps, processes, log, daemons (all daemons of the realm that this user can see)";

pub const ENV: &str = "\
Examples:
  # Set the variables in this shell.
  eval \"$(rgaps env)\"

JSON fields: state, variables";

pub const RUN: &str = "\
Examples:
  # Start two processes that share the GPU through MPS.
  rgaps run -- python camera.py
  rgaps run -- python detector.py";

pub const DOCTOR: &str = "\
Examples:
  rgaps doctor
  # Print only what is missing, with the advice.
  rgaps doctor --json | jq '.checks[] | select(.verdict != \"ok\")'
  # Measure what MPS gains on this machine's GPUs.
  rgaps doctor --handover

JSON fields: usable, domains, checks (name, verdict: ok, lack or fail, found, advice), rdma, handovers";

pub const TOPIC: &str = "\
Examples:
  rgaps topic list
  rgaps topic echo camera/left
  rgaps topic pub greetings --text hello
  rgaps topic hz camera/left";

pub const LIST: &str = "\
Examples:
  rgaps topic list
  # Topics below camera/.
  rgaps topic list 'camera/**'
  # Print the names only.
  rgaps topic list --json | jq -r '.[].name'

JSON fields of each topic: name, type_name (empty if untyped), domain, publishers, subscribers, orphans, messages, bytes,
received, missed, kept, held, remote, waiting (publishers that wait for reliable subscribers), is_device";

pub const INFO: &str = "\
Examples:
  rgaps topic info camera/left
  rgaps topic info 'camera/*'
  # Print how messages reach each subscriber, and why that way.
  rgaps topic info camera/left --json | jq '.subscriber_list[].path'

JSON fields, one document per topic: those of topic list, zone, publisher_list, subscriber_list, hosts, mismatches,
device (the device topic that messages come from or go to: sizes, counts, seats)";

pub const HZ: &str = "\
Examples:
  rgaps topic hz camera/left
  # All topics below camera/, also those that appear later.
  rgaps topic hz 'camera/**'
  # Measure 100 messages, then exit.
  rgaps topic hz camera/left --count 100 --json

JSON fields, one document per topic and report: topic, messages, missed, window, last_ms, rate_hz, interval_min_ms, interval_mean_ms, interval_max_ms,
interval_stddev_ms";

pub const BW: &str = "\
Examples:
  rgaps topic bw camera/left lidar/points
  # Report every 5 seconds, for one minute.
  rgaps topic bw camera/left --every 5 --duration 60

JSON fields, one document per topic and report: topic, messages, missed, window, last_ms, bytes_per_s, bytes_min, bytes_mean, bytes_max";

pub const DELAY: &str = "\
Examples:
  rgaps topic delay camera/left
  # Measure the delay of 1000 messages, then exit.
  rgaps topic delay camera/left --count 1000 --json
  # Of every message, not only of the newest.
  rgaps topic delay camera/left --all

JSON fields, one document per topic and report: topic, messages, missed, window, last_ms, min_us, p50_us, p99_us, max_us";

pub const ECHO: &str = "\
Examples:
  rgaps topic echo camera/left
  # Print every message, not only the newest.
  rgaps topic echo log --all
  # Print what a transient-local publisher published last, then exit.
  rgaps topic echo map --late latest --count 1
  # Save one image, or every image.
  rgaps topic echo camera/left --save frame.png
  rgaps topic echo camera/left --save frame-%06d.png --count 100 --all
  # Save the parts of a message: robot-rgb.npy, robot-depth.npy, ...
  rgaps topic echo robot --save robot.npy
  # Write the bytes of ten messages to a file.
  rgaps topic echo log --reliable --count 10 --format raw > log.bin

JSON fields: topic, sequence, publisher, publisher_id, publish_ns, delay_us, missed, tag, bytes, domain, header,
attachment (hex), tensor, numbers (count, min, max, mean, nan, first), parts, text or hex, truncated, saved";

pub const PUB: &str = "\
Examples:
  rgaps topic pub greetings --text hello
  # Publish each line of a file, ten per second.
  rgaps topic pub log --file log.txt --lines --rate 10
  # Keep a value for subscribers that come later.
  rgaps topic pub config --text '{\"gain\": 2}' --transient-local
  # Publish an image, an array, or raw bytes that are an array.
  rgaps topic pub camera/left --file frame.png --frame-id left --capture-now
  rgaps topic pub weights --file weights.npy
  rgaps topic pub depth --file depth.raw --dtype uint16 --shape 480,640
  # Publish a camera of this host, a camera on the network, a file.
  rgaps topic pub camera/left --v4l2 /dev/video0 --ffmpeg-option video_size=1280x720
  rgaps topic pub camera/yard --ffmpeg rtsp://10.0.0.5/stream --ffmpeg-option rtsp_transport=tcp
  rgaps topic pub camera/left --ffmpeg drive.mp4
  # Attach your own keys.
  rgaps topic pub camera/left --file frame.png --meta exposure_us=800 --meta lens=wide
  # Publish 1 MiB messages, 100 per second, until Ctrl-C.
  rgaps topic pub load --size 1MiB --rate 100
  # Do not wait longer than half a second for a reliable subscriber.
  rgaps topic pub load --size 1MiB --rate 100 --slow-reader 0.5

Exit code 1: standard input was empty, or Ctrl-C came before its end, so nothing was published.

JSON fields: topic, messages, bytes, seconds, drops, subscribers";

pub const FORGET: &str = "\
Examples:
  # Drop a value that an earlier run kept with --transient-local.
  rgaps topic forget map

JSON fields: publishers, messages";

pub const RECORD: &str = "\
Examples:
  # All topics of this host, until Ctrl-C. Topics of other hosts need their exact names.
  rgaps record '**'
  rgaps record -o run.mcap camera/front 'lidar/*'
  # Files of 1 GiB, compressed.
  rgaps record -o run.mcap --split-size 1GiB --compression zstd '**'
  # Images as JPEG of quality 80.
  rgaps record -o run.mcap --jpeg=80 'camera/*'
  # Keep the last 30 s in memory; `kill -USR1 PID` writes them to crash-0000.mcap.
  rgaps record -o crash.mcap --keep 30 --queue 4GiB '**'

JSON fields: file, topics, recorded, dropped, dropped_by, not_ros2 (topics left out, and why),
pushed_out, files, file_bytes, queue_messages, queue_bytes, bytes_per_s, ended";

pub const REPLAY: &str = "\
Examples:
  rgaps replay run.mcap
  # Half as fast, from the 10th second on, again and again, only the cameras.
  rgaps replay run.mcap --rate 0.5 --start 10 --loop --topics 'camera/**'
  # The files of one recording.
  rgaps replay run-0000.mcap run-0001.mcap

JSON fields: replayed, bytes, corrupt, late_max_us";

pub const FILE_INFO: &str = "\
Examples:
  rgaps info run.mcap
  rgaps info run.mcap --json | jq '.topics[] | {topic, messages}'

JSON fields: file, file_bytes, finished, missing_bytes, missing, begun_ns, duration_s, chunks, messages,
dropped_by, topics (topic, messages, publishers, type_name, schema, content, transient_local)";

pub const VIEW: &str = "\
Examples:
  # Then open http://127.0.0.1:8765 in a browser, or connect Foxglove to ws://127.0.0.1:8765.
  rgaps view
  # Cameras only, 2 small images a second of each.
  rgaps view 'camera/**' --rate 2 --max-bytes 100KiB
  # For other hosts, who need the token: http://HOST:8765/?token=...
  rgaps view --listen 0.0.0.0 --token-file view.token
  # On a robot, for one who may log in there: no token, and the bytes are encrypted.
  #   ssh -L 8765:127.0.0.1:8765 robot rgaps view

JSON fields: address, url, websocket, foxglove, needs_token";

pub const BRIDGE: &str = "\
Examples:
  rgaps bridge zenoh --connect tcp/10.0.0.2:7447 --to camera/front
  rgaps bridge ros2 --config bridge.toml";

pub const BRIDGE_ROS2: &str = "\
Examples:
  # The topics of bridge.toml, through the router of this host (ros2 run rmw_zenoh_cpp rmw_zenohd).
  rgaps bridge ros2 --config bridge.toml
  # Through that of another.
  rgaps bridge ros2 --config bridge.toml --connect tcp/10.0.0.2:7447
  # What to write into bridge.toml: topics, types, hashes.
  rgaps bridge ros2 --list

JSON fields: as of rgaps bridge zenoh; with --list: topics (name, type, hash, publishers, subscribers)";

pub const BRIDGE_ZENOH: &str = "\
Examples:
  # Cameras to the router of a fleet as robot1/camera/..., plans from there as plan/...
  rgaps bridge zenoh --connect tcp/10.0.0.2:7447 --prefix robot1 --to 'camera/*' --from 'plan/**'
  # One topic under a key of its own, both ways, with a Zenoh program on this host that connects to us.
  rgaps bridge zenoh --listen tcp/127.0.0.1:7447 --both robot/joints=demo/joints
  # The rules of a configuration file.
  rgaps bridge zenoh --config bridge.toml

JSON fields: peers, topics_out, topics_in, sent, sent_bytes, received, received_bytes, not_returned, dropped,
dropped_by, ended";

pub const TOP: &str = "\
Examples:
  rgaps top
  # Print one document, without a terminal.
  rgaps top --json --count 1 | jq '.topics[] | {topic, messages_per_s}'

JSON fields: interval_s, daemon, topics, links, pools, clients";

pub const POOL: &str = "\
Examples:
  rgaps pool
  # Print the bytes leased per domain.
  rgaps pool --json | jq '.[] | {domain, leased_bytes}'

JSON fields of each pool: domain, access (the access rule of its topics), zone (a number for that rule), cap_bytes, segment_bytes, segments, leased_bytes, provider, pages,
numa_node, numa_percent, copied_messages, copied_bytes, warnings";

pub const PEERS: &str = "\
Examples:
  rgaps peers
  # Print hosts that are not linked.
  rgaps peers --json | jq '.peers[] | select(.state != \"linked\") | {host, state, detail}'

JSON fields: host, peers, not_reached, dma_bufs, traces";

pub const DMAPLANE: &str = "\
Examples:
  rgaps dmaplane status
  rgaps dmaplane bench --json > dmaplane.json";

pub const DMAPLANE_STATUS: &str = "\
Examples:
  rgaps dmaplane status
  # Print the free memory of each NUMA node.
  rgaps dmaplane status --json | jq '.nodes[] | {node, free_bytes}'

JSON fields: nodes, counts, pools, gpu (why they cannot be used, or null)";

pub const DMAPLANE_BENCH: &str = "\
Examples:
  rgaps dmaplane bench
  # Stream 1 MiB messages for 30 s, 64 in flight.
  rgaps dmaplane bench --device rxe0 --message 1MiB --depth 64 --seconds 30
  # Print at which depth throughput is at its best.
  rgaps dmaplane bench --json | jq .sweep.saturation_depth

JSON fields: copy_bytes, copies (from, to, mb_per_s, copy_us), streams_left_out, device, stream (message_bytes, depth,
seconds, messages, mb_per_s, window_mb_per_s_min, window_mb_per_s_max, stalls, overflows), sweep (message_bytes,
messages, saturation_depth, points (depth, mb_per_s, mean_us, p99_us)), gpu (gpu, bar (bytes, host_to_gpu_mb_per_s,
gpu_to_host_mb_per_s), bar_left_out, copies (bytes, and each of pinned and pageable, both ways)), or null";

pub const BENCH: &str = "\
Examples:
  rgaps bench latency
  rgaps bench fanout --subscribers 1,8,32
  # Write the figures to a file.
  rgaps bench throughput --json > throughput.json";

pub const BENCH_LATENCY: &str = "\
Examples:
  rgaps bench latency
  # Frames of 6 MiB at 30 Hz to four subscribers.
  rgaps bench latency --size 6MiB --subscribers 4 --pause-us 33000 --messages 300
  # With a header of 200 bytes and without one, in turns.
  rgaps bench latency --header 200
  # Messages in the memory of the first GPU.
  rgaps bench latency --domain cuda";

pub const BENCH_HANDOFF: &str = "\
Examples:
  # Between two processes on the first GPU.
  rgaps bench handoff
  # From GPU 0 to GPU 1.
  rgaps bench handoff --gpus 0,1 --size 4MiB";

pub const BENCH_SPREAD: &str = "\
Examples:
  # From GPU 0 to four readers on GPU 1.
  rgaps bench spread
  # From the host to GPU 0.
  rgaps bench spread --from host --to cuda:0 --readers 2";

pub const GPU: &str = "\
Examples:
  # On the host with the GPU, then on another.
  rgaps gpu serve --listen 10.0.0.7
  rgaps gpu run --on 10.0.0.7 -- ./program";
pub const GPU_SERVE: &str = "\
Examples:
  rgaps gpu serve --listen 10.0.0.7 --listen unix:/run/rgaps-gpu.sock
  # Few clients, each with little memory.
  rgaps gpu serve --clients 2 --memory 8GiB";
pub const GPU_RUN: &str = "\
Examples:
  rgaps gpu run --on 10.0.0.7 -- ./program --its-option
  # Take the libraries from another folder, and use another port.
  rgaps gpu run --on 10.0.0.7:9000 --libraries /opt/rgaps/gpu -- ./program
  # All GPUs of one host, and behind them GPU 1 of another.
  rgaps gpu run --on 10.0.0.7,10.0.0.8:1 -- ./program

RGAPS_GPU, or gpu.servers of the configuration, names the servers in place of --on.";
pub const GPU_LIST: &str = "\
Examples:
  # All servers that the configuration names in gpu.servers.
  rgaps gpu list
  # Print the GPU memory that clients hold.
  rgaps gpu list --on 10.0.0.7 --json | jq '.clients[] | {program, memory_bytes}'

JSON fields: devices, clients, clients_max";
pub const GPU_TOP: &str = "\
Examples:
  rgaps gpu top --on 10.0.0.7
  rgaps gpu top --on 10.0.0.7 --json --count 1

JSON: an array with an entry for each client; calls, bytes and waited_ns are of one second.";
pub const BENCH_ALLOC: &str = "\
Examples:
  rgaps bench alloc
  rgaps bench alloc --processes 1,16";

pub const BENCH_FANOUT: &str = "\
Examples:
  rgaps bench fanout
  rgaps bench fanout --subscribers 1,60 --size 4KiB";

pub const BENCH_FANIN: &str = "\
Examples:
  rgaps bench fanin
  rgaps bench fanin --publishers 1,16 --wait poll";

pub const BENCH_THROUGHPUT: &str = "\
Examples:
  rgaps bench throughput
  rgaps bench throughput --size 4KiB";

pub const BENCH_MEMORY: &str = "\
Examples:
  rgaps bench memory
  rgaps bench memory --topics 200";

pub const BENCH_LINK: &str = "\
Examples:
  # 64 MiB messages over TCP.
  rgaps bench link
  # Small messages over four encrypted lanes.
  rgaps bench link --size 4KiB --lanes 4 --tls
  # From a GPU of one host to a GPU of the other.
  rgaps bench link --domain cuda:0 --to cuda:1
  # 256 MiB from one host to seven others over a tree, with cables of 1 Gbit/s.
  rgaps bench link --tree --hosts 8 --size 256MiB --rate-mbit 1000";

pub const BENCH_COPIES: &str = "\
Examples:
  rgaps bench copies
  rgaps bench copies --domain cuda:1 --size 64MiB --count 100";

pub const COMPLETION: &str = "\
Examples:
  # In ~/.bashrc. Then `rgaps topic echo cam<Tab>` completes names of topics.
  source <(rgaps completion bash)
  # In ~/.zshrc:
  source <(rgaps completion zsh)
  # Once, for fish:
  rgaps completion fish > ~/.config/fish/completions/rgaps.fish";

#[cfg(test)]
mod tests {
    use super::super::Cli;
    use clap::{Command, CommandFactory, Parser as _};

    /// The words of the rgaps commands in a line of shell.
    fn commands(line: &str) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        let line = line.replace("source <(", "").replace("eval \"$(", "");
        for part in line.split(" | ") {
            let Some(at) = part.find("rgaps ") else {
                continue;
            };
            if !part[..at].trim().is_empty() {
                continue;
            }
            let part = part.split(" > ").next().unwrap_or(part);
            let words = shlex::split(part.trim_end_matches([')', '"'])).expect("a line of shell");
            found.push(words);
        }
        found
    }

    fn check(command: &Command, path: &str, seen: &mut usize) {
        let help = command.get_after_help();
        if !command.is_hide_set() {
            let help = help
                .unwrap_or_else(|| panic!("{path} has no examples"))
                .to_string();
            assert!(help.starts_with("Examples:\n"), "{path}: {help}");
            let examples = help.split("\n\n").next().unwrap_or_default();
            let lines = examples
                .lines()
                .skip(1)
                .filter(|line| !line.trim().starts_with('#'));
            for line in lines {
                let commands = commands(line);
                assert!(!commands.is_empty(), "{path}: '{line}' runs no rgaps");
                for words in commands {
                    *seen += 1;
                    if let Err(error) = Cli::try_parse_from(&words) {
                        panic!("{path}: {words:?}: {error}");
                    }
                }
            }
        }
        for below in command.get_subcommands().filter(|c| c.get_name() != "help") {
            check(below, &format!("{path} {}", below.get_name()), seen);
        }
    }

    #[test]
    fn every_command_has_examples_that_parse() {
        let mut seen = 0;
        check(&Cli::command(), "rgaps", &mut seen);
        assert!(seen > 50, "{seen} examples");
    }
}
