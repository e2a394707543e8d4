//! What the stand-in pretends to be.

use crate::faults::Fault;

/// Most GPUs: access rights are kept in a mask of this width.
pub(crate) const MAX_DEVICES: usize = 32;

/// A GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Gpu {
    pub(crate) uuid: [u8; 16],
    /// It shares the host's memory.
    pub(crate) is_integrated: bool,
}

/// Settings, from the environment and the control function.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Config {
    /// All GPUs of the pretended host, in its order.
    pub(crate) gpus: Vec<Gpu>,
    /// Positions in `gpus` of those that this process sees, by ordinal.
    pub(crate) visible: Vec<usize>,
    pub(crate) memory_bytes: u64,
    pub(crate) has_vmm: bool,
    pub(crate) has_fd: bool,
    pub(crate) has_rdma: bool,
    /// Memory can be exported as a dma-buf.
    pub(crate) has_dmabuf: bool,
    /// The host can flush what NICs wrote.
    pub(crate) has_rdma_flush: bool,
    /// What CUDA calls the order of NICs' writes: 0, 100 or 200.
    pub(crate) rdma_order: i32,
    /// Streams can write and wait for numbers.
    pub(crate) has_memory_operations: bool,
    /// Host memory can be registered.
    pub(crate) has_registration: bool,
    /// Host memory that may only be read can be registered, too.
    pub(crate) has_read_only_registration: bool,
    /// Any two GPUs can access each other's memory.
    pub(crate) are_peers: bool,
    /// Hardware queues of a context; 0: one for each stream.
    pub(crate) queues: u64,
    /// Operations that a hardware queue holds.
    pub(crate) depth: u64,
    /// How long a stream may wait for something before the process is ended.
    pub(crate) patience_ms: u64,
    pub(crate) delay_us: u64,
    pub(crate) seed: Option<u64>,
    pub(crate) faults: Vec<Fault>,
}

/// Settings that may be given, in lower case.
const NAMES: [&str; 13] = [
    "devices",
    "uuids",
    "integrated",
    "memory_mb",
    "lack",
    "delay_us",
    "seed",
    "fail",
    "peers",
    "queues",
    "depth",
    "patience_ms",
    "rdma_order",
];

/// What a GPU can be made to lack.
const LACKS: [&str; 8] = [
    "vmm", "fd", "rdma", "dmabuf", "flush", "memops", "register", "readonly",
];

impl Default for Config {
    fn default() -> Self {
        Config {
            gpus: vec![default_gpu(0)],
            visible: vec![0],
            memory_bytes: 64 << 30,
            has_vmm: true,
            has_fd: true,
            has_rdma: true,
            has_dmabuf: true,
            has_rdma_flush: true,
            rdma_order: 0,
            has_memory_operations: true,
            has_registration: true,
            has_read_only_registration: true,
            are_peers: false,
            queues: 0,
            depth: 1024,
            patience_ms: 60_000,
            delay_us: 0,
            seed: None,
            faults: Vec::new(),
        }
    }
}

impl Config {
    /// Settings of this process's environment.
    pub(crate) fn from_environment() -> Result<Config, String> {
        let mut config = Config::default();
        for name in NAMES {
            let variable = format!("RGAPS_TEST_DRIVER_{}", name.to_uppercase());
            if let Ok(value) = std::env::var(&variable) {
                config
                    .set(name, &value)
                    .map_err(|reason| format!("{variable}: {reason}"))?;
            }
        }
        if let Ok(list) = std::env::var("CUDA_VISIBLE_DEVICES") {
            config.visible = visible(&config.gpus, &list);
        }
        Ok(config)
    }

    /// Applies `name=value;name=value`.
    pub(crate) fn apply(&mut self, settings: &str) -> Result<(), String> {
        for setting in settings.split(';').map(str::trim).filter(|s| !s.is_empty()) {
            let (name, value) = setting
                .split_once('=')
                .ok_or_else(|| format!("'{setting}' has no '='"))?;
            self.set(name.trim(), value.trim())?;
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "devices" => {
                let count = number(value)? as usize;
                if count > MAX_DEVICES {
                    return Err(format!("at most {MAX_DEVICES} devices"));
                }
                self.show_all((0..count).map(default_gpu).collect());
            }
            "uuids" => {
                let gpus: Result<Vec<_>, _> =
                    value.split(',').map(|text| uuid(text).map(gpu)).collect();
                self.show_all(gpus?);
            }
            "integrated" => {
                let list = value.split(',').filter(|entry| !entry.is_empty());
                let wanted: Vec<usize> = list
                    .map(|entry| number(entry).map(|position| position as usize))
                    .collect::<Result<_, _>>()?;
                if let Some(position) = wanted.iter().find(|p| **p >= self.gpus.len()) {
                    return Err(format!("there is no GPU {position}"));
                }
                for (position, gpu) in self.gpus.iter_mut().enumerate() {
                    gpu.is_integrated = wanted.contains(&position);
                }
            }
            "memory_mb" => self.memory_bytes = number(value)? << 20,
            "lack" => {
                let lacks: Vec<_> = value.split(',').filter(|l| !l.is_empty()).collect();
                if let Some(odd) = lacks.iter().find(|l| !LACKS.contains(l)) {
                    return Err(format!("'{odd}' is nothing that can be lacking"));
                }
                let has = |what| !lacks.contains(&what);
                (self.has_vmm, self.has_fd, self.has_rdma) = (has("vmm"), has("fd"), has("rdma"));
                (self.has_dmabuf, self.has_rdma_flush) = (has("dmabuf"), has("flush"));
                self.has_memory_operations = has("memops");
                self.has_registration = has("register");
                self.has_read_only_registration = has("readonly");
            }
            "delay_us" => self.delay_us = number(value)?,
            "peers" => {
                self.are_peers = match value {
                    "all" => true,
                    "none" => false,
                    _ => return Err(format!("'{value}' is neither all nor none")),
                }
            }
            "queues" => self.queues = number(value)?,
            "depth" => self.depth = number(value)?.max(1),
            "patience_ms" => self.patience_ms = number(value)?,
            "rdma_order" => {
                self.rdma_order = match value {
                    "none" => 0,
                    "owner" => 100,
                    "all" => 200,
                    _ => return Err(format!("'{value}' is no order")),
                }
            }
            "seed" if value.is_empty() => self.seed = None,
            "seed" => self.seed = Some(number(value)?),
            "fail" => {
                let faults = value.split(',').filter(|f| !f.is_empty());
                self.faults = faults.map(Fault::parse).collect::<Result<_, _>>()?;
            }
            _ => return Err(format!("'{name}' is not one of {NAMES:?}")),
        }
        Ok(())
    }

    fn show_all(&mut self, gpus: Vec<Gpu>) {
        self.visible = (0..gpus.len()).collect();
        self.gpus = gpus;
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("'{text}' is not a number"))
}

/// The same in every process, and told apart at a glance.
fn default_gpu(position: usize) -> Gpu {
    let mut uuid = *b"rgaps test gpu\0\0";
    uuid[15] = position as u8;
    gpu(uuid)
}

fn gpu(uuid: [u8; 16]) -> Gpu {
    Gpu {
        uuid,
        is_integrated: false,
    }
}

fn uuid(text: &str) -> Result<[u8; 16], String> {
    let bad = || format!("'{text}' is not a UUID");
    let digits: String = text
        .trim()
        .trim_start_matches("GPU-")
        .chars()
        .filter(|c| *c != '-')
        .collect();
    if digits.len() != 32 || !digits.is_ascii() {
        return Err(bad());
    }
    Ok(u128::from_str_radix(&digits, 16)
        .map_err(|_| bad())?
        .to_be_bytes())
}

/// As the driver does, the list ends at the first entry that names no GPU.
fn visible(gpus: &[Gpu], list: &str) -> Vec<usize> {
    let position = |entry: &str| match entry.trim().parse::<usize>() {
        Ok(ordinal) => (ordinal < gpus.len()).then_some(ordinal),
        Err(_) => gpus.iter().position(|gpu| Ok(gpu.uuid) == uuid(entry)),
    };
    list.split(',').map_while(position).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_wrong_ones_refused() {
        let mut config = Config::default();
        config.apply("devices=3; delay_us=5;lack=fd,rdma").unwrap();
        assert_eq!(
            (config.gpus.len(), config.visible.len(), config.delay_us),
            (3, 3, 5)
        );
        assert_eq!(
            (config.has_vmm, config.has_fd, config.has_rdma),
            (true, false, false)
        );
        config.apply("integrated=0,2").unwrap();
        let integrated: Vec<bool> = config.gpus.iter().map(|gpu| gpu.is_integrated).collect();
        assert_eq!(integrated, [true, false, true]);
        config
            .apply("uuids=GPU-00112233-4455-6677-8899-aabbccddeeff")
            .unwrap();
        assert_eq!(config.gpus[0].uuid[..3], [0, 0x11, 0x22]);
        for wrong in [
            "devices=x",
            "devices=33",
            "uuids=GPU-1",
            "lack=air",
            "delay_us=-1",
            "other=1",
            "peers=some",
            "rdma_order=some",
            "integrated=7",
            "fail",
        ] {
            assert!(config.apply(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn visible_devices_are_chosen_by_ordinal_or_uuid() {
        let gpus: Vec<_> = (0..3).map(default_gpu).collect();
        assert_eq!(visible(&gpus, "2,0"), [2, 0]);
        assert_eq!(
            visible(&gpus, "GPU-72676170-7320-7465-7374-206770750001"),
            [1]
        );
        assert_eq!(visible(&gpus, "1,9,0"), [1]);
        assert!(visible(&gpus, "").is_empty());
    }
}
