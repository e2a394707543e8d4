//! Measures the costs of an arena beyond the messages in it: fragmentation, headers, time.
//!
//! `cargo run --release -p rgaps-pool --example fragmentation [-- SEED]` prints one JSON object.
//! Each workload publishes messages of its sizes; a message lives until `depth` younger ones of
//! its topic exist, and a slow subscriber holds one in eight for longer. As a publisher does, the program
//! leases memory when it finds no block; it never returns memory. `leased_per_live` is the leased bytes
//! divided by the most bytes of live messages at one time: 1 would be perfect.

use rgaps_layout::BLOCK_ALIGN;
use rgaps_pool::Tlsf;
use serde_json::{json, Value};
use std::collections::BinaryHeap;
use std::time::Instant;

const MESSAGES: u64 = 400_000;
/// A slow subscriber holds a sample longer than others by up to this many times the topic's depth, in messages.
const SLOW: u64 = 4;

/// xorshift64*: the same seed gives the same numbers on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// A number from `low` to `high` whose logarithm is uniformly distributed.
    fn log_uniform(&mut self, low: u64, high: u64) -> u64 {
        let share = self.below(1 << 32) as f64 / (1u64 << 32) as f64;
        (low as f64 * (high as f64 / low as f64).powf(share)) as u64
    }
}

struct Workload {
    name: &'static str,
    depth: u64,
    size: fn(&mut Random) -> u64,
}

const WORKLOADS: [Workload; 6] = [
    // One topic: 1080p RGB.
    Workload {
        name: "camera_1080p",
        depth: 16,
        size: |_| 1920 * 1080 * 3,
    },
    // 1080p RGB, 720p RGB, VGA depth and a thumbnail through one publisher's arena.
    Workload {
        name: "cameras_mixed",
        depth: 64,
        size: |r| {
            [1920 * 1080 * 3, 1280 * 720 * 3, 640 * 480 * 2, 160 * 90 * 3][r.below(4) as usize]
        },
    },
    // JPEG-like: a size around 400 KB, different every time.
    Workload {
        name: "compressed_frames",
        depth: 64,
        size: |r| 200_000 + r.below(400_000),
    },
    // Point clouds: 16 bytes a point, 20,000 to 130,000 points.
    Workload {
        name: "point_clouds",
        depth: 64,
        size: |r| 16 * (20_000 + r.below(110_000)),
    },
    Workload {
        name: "tensors_1KiB_64MiB",
        depth: 128,
        size: |r| r.log_uniform(1 << 10, 64 << 20),
    },
    Workload {
        name: "small_0_4KiB",
        depth: 1024,
        size: |r| r.below(4097),
    },
];

fn main() {
    let seed = std::env::args()
        .nth(1)
        .map_or(1, |text| text.parse().expect("SEED is a number"));
    let results: Vec<Value> = WORKLOADS
        .iter()
        .map(|workload| run(workload, seed))
        .collect();
    let report = json!({"seed": seed, "messages": MESSAGES, "workloads": results});
    println!(
        "{}",
        serde_json::to_string_pretty(&report).expect("numbers are JSON")
    );
}

#[derive(Default)]
struct Times {
    allocate_ns: Vec<u64>,
    free_ns: Vec<u64>,
}

fn run(workload: &Workload, seed: u64) -> Value {
    let mut random = Random(seed.max(1));
    let mut tlsf = Tlsf::with_blocks((workload.depth * (SLOW + 1)) as u32);
    let mut times = Times::default();
    // Live messages, the one that ends first at the top: (the message number at which it ends, handle, requested bytes).
    let mut alive = BinaryHeap::new();
    let (mut leased, mut live, mut live_most, mut granted_live, mut granted_most) = (0, 0, 0, 0, 0);
    for message in 0..MESSAGES {
        while let Some(&std::cmp::Reverse((end, handle, bytes))) = alive.peek() {
            if end > message {
                break;
            }
            alive.pop();
            let start = Instant::now();
            let granted = tlsf.free(handle).expect("each is freed once");
            times.free_ns.push(start.elapsed().as_nanos() as u64);
            live -= bytes;
            granted_live -= granted;
        }
        let bytes = (workload.size)(&mut random);
        let start = Instant::now();
        let given = tlsf.allocate(bytes, BLOCK_ALIGN);
        times.allocate_ns.push(start.elapsed().as_nanos() as u64);
        let given = given.unwrap_or_else(|| {
            let lease = Tlsf::lease_bytes(bytes, BLOCK_ALIGN).expect("it fits a pool");
            tlsf.add_region(leased, lease)
                .expect("behind the last region");
            leased += lease;
            tlsf.allocate(bytes, BLOCK_ALIGN).expect("leased for it")
        });
        let slow = if random.below(8) == 0 {
            random.below(workload.depth * SLOW)
        } else {
            0
        };
        alive.push(std::cmp::Reverse((
            message + workload.depth + slow,
            given.handle,
            bytes,
        )));
        live += bytes;
        granted_live += given.bytes;
        live_most = live_most.max(live);
        granted_most = granted_most.max(granted_live);
    }
    report(workload, &tlsf, times, [leased, live_most, granted_most])
}

fn report(workload: &Workload, tlsf: &Tlsf, mut times: Times, bytes: [u64; 3]) -> Value {
    let [leased, live_most, granted_most] = bytes;
    let stats = tlsf.stats();
    let ratio = |a: u64, b: u64| (a as f64 / b as f64 * 1e4).round() / 1e4;
    json!({
        "name": workload.name,
        "live_most_bytes": live_most,
        "leased_bytes": leased,
        "leased_per_live": ratio(leased, live_most),
        "granted_per_asked": ratio(granted_most, live_most),
        "largest_free_per_free": ratio(stats.largest_free_bytes, stats.free_bytes),
        "headers": stats.headers,
        "header_bytes": stats.header_bytes,
        "header_bytes_per_pool_byte": stats.header_bytes_per_pool_byte(),
        "allocate": percentiles(&mut times.allocate_ns),
        "free": percentiles(&mut times.free_ns),
    })
}

/// Percentiles of times in nanoseconds, which include reading the clock (about 25 ns).
fn percentiles(ns: &mut [u64]) -> Value {
    ns.sort_unstable();
    let at = |share: f64| ns[((ns.len() - 1) as f64 * share) as usize];
    json!({"p50_ns": at(0.5), "p99_ns": at(0.99), "p999_ns": at(0.999), "max_ns": at(1.0)})
}
