//! The machine that a figure was measured on.

use rgaps_cuda::Driver;
use serde::Serialize;

/// The properties of a machine that matter when figures are compared.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct Machine {
    pub cpu: String,
    pub cores: usize,
    pub memory_bytes: u64,
    pub kernel: String,
    pub gpus: Vec<String>,
    /// Average number of runnable processes in the minute before the benchmark.
    pub load: f64,
    /// Shortest difference of two readings of the clock, one right after the other.
    pub clock_ns: u64,
}

impl Machine {
    /// Describes this machine.
    pub fn describe() -> Machine {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let system = rustix::system::uname();
        let arch = system.machine().to_string_lossy().into_owned();
        let info = rustix::system::sysinfo();
        Machine {
            cpu: cpu_name(&cpuinfo).unwrap_or(arch),
            cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
            memory_bytes: info.totalram as u64 * u64::from(info.mem_unit),
            kernel: system.release().to_string_lossy().into_owned(),
            gpus: gpus(),
            load: load(),
            clock_ns: clock_ns(),
        }
    }
}

fn cpu_name(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo
        .lines()
        .find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn gpus() -> Vec<String> {
    // Without a driver there is no GPU. `rgaps doctor` reports why.
    let devices = Driver::load().and_then(|driver| driver.devices());
    devices.map_or_else(
        |_| Vec::new(),
        |found| found.into_iter().map(|gpu| gpu.name).collect(),
    )
}

fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ')
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or(0.0)
}

fn clock_ns() -> u64 {
    let mut least = u64::MAX;
    for _ in 0..1000 {
        let begun = rgaps_sync::monotonic_ns();
        least = least.min(rgaps_sync::monotonic_ns() - begun);
    }
    least
}
