//! Checks network cards with RDMA: each port, and which memory of host and GPUs the card can register.

use super::gpu::Gpu;
use super::Check;
use crate::providers;
use rgaps_pool::{Provider, Segment};
use rgaps_verbs::{Device, HostTrial, Port, SegmentTrial, Verbs, VerbsError};
use rustix::io::Errno;
use serde::Serialize;
use std::os::fd::AsFd;
use std::sync::Arc;

const INSTALL: &str =
    "for links over RDMA, install libibverbs1 and ibverbs-providers (Debian, Ubuntu) or rdma-core \
                       (Fedora, RHEL); without it, messages to other hosts use TCP";
/// The bit of this capability in the masks of `/proc/self/status`.
const CAP_IPC_LOCK: u64 = 1 << 14;

/// A port, and the outcome of what was tried on its card.
#[derive(Serialize)]
pub struct Card {
    device: String,
    port: u8,
    state: String,
    gid: Option<String>,
    gid_index: Option<u8>,
    interface: Option<String>,
    mtu_bytes: Option<u32>,
    numa_node: Option<u32>,
    pci_path: Option<String>,
    /// The distance to each GPU.
    distances: Vec<GpuDistance>,
    /// None: the check tried to register nothing.
    registers: Option<Registers>,
}

#[derive(Serialize)]
struct GpuDistance {
    gpu: String,
    distance: String,
}

/// Which memory the card registers.
#[derive(Serialize)]
struct Registers {
    host_writable: Outcome,
    host_read_only: Outcome,
    /// The outcomes for segments of the providers that work here and give dma-bufs.
    providers: Vec<ProviderOutcome>,
    gpus: Vec<GpuOutcome>,
}

#[derive(Serialize)]
struct ProviderOutcome {
    provider: &'static str,
    dma_buf: Outcome,
    address: Outcome,
}

#[derive(Serialize)]
struct GpuOutcome {
    gpu: String,
    dma_buf: Outcome,
}

/// Serialized as `works`, or as the error.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Works,
    Failed(String),
}

impl Outcome {
    fn of(result: &Result<(), VerbsError>) -> Outcome {
        match result {
            Ok(()) => Outcome::Works,
            Err(error) => Outcome::Failed(error.to_string()),
        }
    }
}

/// Runs the checks, and describes the ports. `gpus`: the GPUs that can hold messages.
pub fn checks(gpus: &[Gpu]) -> (Vec<Check>, Vec<Card>) {
    let ports = Verbs::ports();
    let mut checks = Vec::new();
    let verbs = match Verbs::load() {
        Ok(verbs) => {
            checks.push(Check::ok("RDMA library", "libibverbs found"));
            Some(verbs)
        }
        Err(error) => {
            checks.push(Check::lack("RDMA library", error.to_string(), INSTALL));
            None
        }
    };
    checks.extend(ports.is_empty().then(|| {
        Check::lack(
            "RDMA devices",
            "none",
            "messages to other hosts use TCP; see 'rdma link' (a container needs /dev/infiniband); for a software device, run \
             'rdma link add rxe0 type rxe netdev eth0'",
        )
    }));
    let segments = match ports.is_empty() {
        true => Vec::new(),
        false => dma_bufs(),
    };
    let mut cards = Vec::new();
    for port in &ports {
        let opened = verbs.as_ref().map(|verbs| verbs.open(port));
        let (found, card) = port_checks(port, opened, &segments, gpus);
        checks.extend(found);
        cards.push(card);
    }
    (checks, cards)
}

/// A segment of each provider that works here and gives dma-bufs.
fn dma_bufs() -> Vec<(Provider, Segment)> {
    let providers = providers::ALL.into_iter();
    let given = providers.filter(|provider| !provider.gives_files());
    given
        .filter_map(|provider| Some((provider, providers::segment(provider).ok()?)))
        .collect()
}

fn port_checks(
    port: &Port,
    opened: Option<Result<Arc<Device>, VerbsError>>,
    segments: &[(Provider, Segment)],
    gpus: &[Gpu],
) -> (Vec<Check>, Card) {
    let name = format!("RDMA {}/{}", port.device, port.number);
    let mut card = card(port, gpus);
    let device = match opened {
        // The caller has reported that the library is missing.
        None => return (vec![Check::ok(&name, describe_card(&card))], card),
        Some(Err(error)) => {
            let found = format!("{}; {error}", describe_card(&card));
            let advice = advice(&error);
            return (vec![Check::lack(&name, found, advice)], card);
        }
        Some(Ok(device)) => device,
    };
    card.mtu_bytes = Some(device.mtu_bytes());
    let host = device.try_host();
    let mut checks = vec![host_check(&name, describe_card(&card), &host)];
    let mut of_providers = Vec::new();
    for (provider, segment) in segments {
        let tried = device.try_segment(segment.fd.as_fd(), segment.bytes as usize);
        checks.push(segment_check(port, *provider, &tried));
        of_providers.push(ProviderOutcome {
            provider: provider.name(),
            dma_buf: Outcome::of(&tried.dma_buf),
            address: Outcome::of(&tried.address),
        });
    }
    let mut of_gpus = Vec::new();
    for gpu in gpus {
        let Ok(exported) = &gpu.exported else {
            // The GPU's own check reports that.
            continue;
        };
        let tried = device.try_dmabuf(exported.dmabuf.as_fd(), exported.address, exported.bytes);
        checks.push(gpu_check(port, gpu, &tried));
        of_gpus.push(GpuOutcome {
            gpu: gpu.uuid.to_string(),
            dma_buf: Outcome::of(&tried),
        });
    }
    card.registers = Some(Registers {
        host_writable: Outcome::of(&host.writable),
        host_read_only: Outcome::of(&host.read_only),
        providers: of_providers,
        gpus: of_gpus,
    });
    (checks, card)
}

/// Describes a port as far as the kernel knows it, before its card is opened.
fn card(port: &Port, gpus: &[Gpu]) -> Card {
    let pci_path = port.location.pci_path.as_ref();
    Card {
        device: port.device.clone(),
        port: port.number,
        state: port.state.clone(),
        gid: port.address.as_ref().map(|address| shown(&address.gid)),
        gid_index: port.address.as_ref().map(|address| address.index),
        interface: port.address.as_ref().and_then(|of| of.interface.clone()),
        mtu_bytes: None,
        numa_node: port.location.numa_node,
        distances: distances(port, gpus),
        pci_path: pci_path.map(|path| path.display().to_string()),
        registers: None,
    }
}

fn host_check(name: &str, found: String, host: &HostTrial) -> Check {
    match (&host.writable, &host.read_only) {
        (Ok(()), Ok(())) => Check::ok(name, format!("{found}; registers host memory")),
        (Ok(()), Err(error)) => Check::ok(
            name,
            format!(
                "{found}; registers host memory (but not read-only mappings: {error}; pools are mapped writable \
                 while they are registered)"
            ),
        ),
        (Err(error), _) => Check::lack(
            name,
            format!("{found}; cannot register host memory: {error}"),
            advice(error),
        ),
    }
}

fn segment_check(port: &Port, provider: Provider, tried: &SegmentTrial) -> Check {
    let provider = provider.name();
    let name = format!("dma-bufs of {provider} on {}", port.device);
    match (&tried.dma_buf, &tried.address) {
        (Ok(()), _) => Check::ok(&name, "the card registers segments of pools as dma-bufs"),
        (Err(error), Ok(())) => Check::ok(
            &name,
            format!("the card registers segments of pools by their addresses, and not as dma-bufs: {error}"),
        ),
        (Err(error), Err(by_address)) => Check::lack(
            &name,
            format!(
                "the card registers segments of pools neither as dma-bufs ({error}) nor by their addresses ({by_address})"
            ),
            "over RDMA, messages of pools of this provider are copied; pool.host.provider = \"memfd\" needs no copy",
        ),
    }
}

fn gpu_check(port: &Port, gpu: &Gpu, tried: &Result<(), VerbsError>) -> Check {
    let name = format!("GPUDirect {} of {}", port.device, gpu.uuid);
    match tried {
        Ok(()) => Check::ok(
            &name,
            "the card registers the GPU's memory (as a dma-buf; nvidia-peermem is not needed)",
        ),
        Err(error) => Check::lack(
            &name,
            format!("the card cannot register the GPU's memory: {error}"),
            dmabuf_advice(error),
        ),
    }
}

/// A GID as an IPv6 address, such as `::ffff:10.9.0.1`.
fn shown(gid: &[u8; 16]) -> String {
    std::net::Ipv6Addr::from(*gid).to_string()
}

fn describe_card(card: &Card) -> String {
    let mut parts = vec![card.state.to_lowercase()];
    parts.extend(card.gid.as_ref().zip(card.gid_index).map(|(gid, index)| {
        let on = card.interface.as_deref().unwrap_or("no interface");
        format!("GID {index} {gid} of {on}")
    }));
    parts.extend(card.mtu_bytes.map(|mtu| format!("MTU {mtu}")));
    parts.push(match card.numa_node {
        Some(node) => format!("NUMA node {node}"),
        None => "no NUMA node known".to_owned(),
    });
    for GpuDistance { gpu, distance } in &card.distances {
        parts.push(format!("{gpu} is {distance}"));
    }
    parts.join(", ")
}

fn distances(port: &Port, gpus: &[Gpu]) -> Vec<GpuDistance> {
    let located = gpus
        .iter()
        .filter_map(|gpu| Some((gpu, gpu.location.as_ref()?)));
    let far = located.map(|(gpu, location)| GpuDistance {
        gpu: gpu.uuid.to_string(),
        distance: location.distance(&port.location).to_string(),
    });
    far.collect()
}

fn errno(error: &VerbsError) -> Option<Errno> {
    match error {
        VerbsError::Call { errno, .. } => Some(Errno::from_raw_os_error(*errno)),
        _ => None,
    }
}

fn advice(error: &VerbsError) -> String {
    let advice = match (error, errno(error)) {
        (VerbsError::NoAddress { .. }, _) => "bring the port's network interface up, and give it an IPv4 address",
        (VerbsError::LibraryMissing { .. } | VerbsError::TooOld { .. }, _) => INSTALL,
        (_, Some(Errno::NOMEM | Errno::AGAIN)) => {
            "allow more locked memory: 'ulimit -l unlimited', LimitMEMLOCK=infinity in a unit of systemd, --ulimit \
             memlock=-1 for a container"
        }
        (_, Some(Errno::PERM | Errno::ACCESS)) => {
            "allow this user to open /dev/infiniband/uverbs*, and a container to see it (--device /dev/infiniband)"
        }
        _ => "see the kernel's log, and 'ibv_devinfo -v'",
    };
    advice.to_owned()
}

fn dmabuf_advice(error: &VerbsError) -> String {
    let advice = match errno(error) {
        Some(Errno::OPNOTSUPP | Errno::NOSYS) => {
            "this card's driver does not support dma-buf (Soft-RoCE never does; mlx5 does since Linux 5.12 and rdma-core 34); \
             messages go through pinned memory"
        }
        _ => {
            "messages go through pinned memory; see the kernel's log (an IOMMU or PCIe access control between card and \
             GPU may block it)"
        }
    };
    advice.to_owned()
}

/// Whether this process has CAP_IPC_LOCK, with which no limit of locked memory applies.
pub fn may_lock_all() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & CAP_IPC_LOCK != 0)
}

#[cfg(test)]
mod tests {
    use super::super::gpu::Exported;
    use super::super::Verdict;
    use super::*;
    use rgaps::GpuUuid;
    use rgaps_verbs::in_process::{Faults, SoftwareNetwork};
    use rgaps_verbs::{Location, PortAddress};

    fn port(is_up: bool) -> Port {
        Port {
            device: "mlx5_0".to_owned(),
            number: 1,
            is_up,
            state: if is_up { "ACTIVE" } else { "DOWN" }.to_owned(),
            address: is_up.then(|| PortAddress {
                index: 3,
                gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 1],
                interface: Some("eth0".to_owned()),
            }),
            location: Location {
                numa_node: Some(1),
                pci_path: None,
            },
        }
    }

    fn gpu() -> Gpu {
        let dmabuf = rustix::fs::memfd_create("gpu", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        Gpu {
            uuid: GpuUuid([7; 16]),
            location: Some(Location {
                numa_node: Some(0),
                pci_path: None,
            }),
            exported: Ok(Exported {
                dmabuf,
                address: 1 << 40,
                bytes: 2 << 20,
                _mapping: None,
            }),
        }
    }

    /// A memfd in place of a dma-buf: the in-process network does not check which it is.
    fn segment() -> Segment {
        providers::segment(Provider::Memfd).unwrap()
    }

    fn tried(refuse: Option<(&'static str, i32)>) -> (Vec<Check>, serde_json::Value) {
        let network = SoftwareNetwork::new(Faults::default());
        refuse.inspect(|(call, errno)| network.refuse(call, *errno));
        let device = network.device("mlx5_0").unwrap();
        let segments = [(Provider::Dmaplane, segment())];
        let (checks, card) = port_checks(&port(true), Some(Ok(device)), &segments, &[gpu()]);
        (checks, serde_json::to_value(card).unwrap())
    }

    #[test]
    fn what_a_card_registers_is_said_with_the_reason_and_what_to_do() {
        let (checks, card) = tried(None);
        assert!(checks.iter().all(|check| check.verdict == Verdict::Ok));
        for part in [
            "GID 3 ::ffff:10.9.0.1 of eth0",
            "MTU 4096",
            "node 1",
            "is near another NUMA node",
            "registers",
        ] {
            assert!(checks[0].found.contains(part), "{}", checks[0].found);
        }
        assert!(checks[1].found.contains("as dma-bufs"));
        assert!(checks[2].found.contains("nvidia-peermem is not needed"));
        assert_eq!(card["registers"]["providers"][0]["dma_buf"], "works");
        assert_eq!(card["registers"]["host_writable"], "works");
        assert_eq!(card["registers"]["gpus"][0]["dma_buf"], "works");

        let (checks, card) = tried(Some(("ibv_reg_dmabuf_mr", 95)));
        assert!(checks[0].verdict == Verdict::Ok && checks[2].verdict == Verdict::Lack);
        assert!(checks[2].advice.as_ref().unwrap().contains("dma-buf"));
        // The card registers the memory by address, which is enough.
        assert!(checks[1].verdict == Verdict::Ok);
        let found = &checks[1].found;
        assert!(found.contains("by their addresses") && found.contains("ibv_reg_dmabuf_mr"));
        let reason = card["registers"]["gpus"][0]["dma_buf"]["failed"].as_str();
        assert!(reason.unwrap().contains("ibv_reg_dmabuf_mr"), "{card}");

        let (checks, card) = tried(Some(("ibv_reg_mr", 12)));
        assert!(checks[0].verdict == Verdict::Lack);
        assert!(checks[0].advice.as_ref().unwrap().contains("locked memory"));
        assert!(card["registers"]["host_read_only"]["failed"].is_string());
    }

    #[test]
    fn a_port_that_cannot_be_used_says_so() {
        let error = VerbsError::NoAddress {
            device: "mlx5_0".to_owned(),
        };
        let (checks, card) = port_checks(&port(false), Some(Err(error)), &[], &[gpu()]);
        assert!(checks.len() == 1 && checks[0].verdict == Verdict::Lack);
        assert!(checks[0].found.starts_with("down"), "{}", checks[0].found);
        assert!(checks[0].advice.as_ref().unwrap().contains("IPv4"));
        assert!(card.registers.is_none() && card.gid.is_none());
        // Without a library; the check of the library reports that.
        let (checks, _) = port_checks(&port(true), None, &[], &[]);
        assert!(checks.len() == 1 && checks[0].verdict == Verdict::Ok);
    }
}
