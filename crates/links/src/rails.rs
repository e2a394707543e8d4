//! The host's network cards with RDMA, and the memory that lanes register with them.

use crate::lock;
use crate::wire::clip;
use rgaps_client::links::{GpuRange, HostMemory, Links, MappedRange, Rdma as Wanted};
use rgaps_client::GpuUuid;
use rgaps_cuda::{CudaMapping, CudaSource, Driver};
use rgaps_pool::{Access as Writable, Mapping, SegmentSource};
use rgaps_transport::machine::frame::RAILS_MAX;
use rgaps_transport::{Rdma, RdmaError, Registered, Registrar};
use rgaps_verbs::cursors::Watermark;
use rgaps_verbs::{Access, ChannelConfig, Device, Distance, Location, Memory, Port, Verbs};
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

/// Which memory the cards should be near.
#[derive(Clone, Debug, Default)]
pub struct CardPreference {
    /// The GPUs on which rules let messages land. Without such rules: all GPUs, or none if pools have no GPU memory.
    pub gpus: Vec<Location>,
    /// Whether rules let messages land on GPUs: then `gpus` counts before `numa_node`.
    pub lands_on_gpus: bool,
    /// The configured NUMA node of host memory.
    pub numa_node: Option<u32>,
}

impl CardPreference {
    /// A sort key: smaller for a port that is nearer.
    fn distance(&self, port: &Port) -> (bool, Option<Distance>, bool) {
        let distances = self.gpus.iter().map(|gpu| gpu.distance(&port.location));
        let elsewhere = self.numa_node.is_some() && port.location.numa_node != self.numa_node;
        // Configured preferences count first: the GPUs of rules, or else the NUMA node of host memory.
        let first = elsewhere && !self.lands_on_gpus;
        (first, distances.min(), elsewhere)
    }
}

/// Opens the cards that lanes use; or says why there are none, which is an error if `links.rdma` is "only".
pub fn open(links: &Links, near: &CardPreference) -> anyhow::Result<Result<Rdma, String>> {
    if links.rdma == Wanted::Off {
        return Ok(Err("links.rdma is \"off\"".to_owned()));
    }
    if !links.trusted_fabric {
        return Ok(Err(
            "links.trusted_fabric is false, and RDMA is not encrypted".to_owned(),
        ));
    }
    match rails(links, near) {
        Ok(rails) => Ok(Ok(Rdma {
            rails,
            trusted_fabric: true,
            channel: ChannelConfig {
                spin: links.spin(),
                watermark: match links.rdma_watermark {
                    rgaps_client::links::Watermark::Each => Watermark::Zero,
                    rgaps_client::links::Watermark::Eighth => Watermark::Eighth,
                    rgaps_client::links::Watermark::Quarter => Watermark::Quarter,
                    rgaps_client::links::Watermark::Half => Watermark::Half,
                },
                ..ChannelConfig::default()
            },
        })),
        Err(why) if links.rdma == Wanted::Only => {
            anyhow::bail!("links.rdma = \"only\", and there is none: {why}")
        }
        Err(why) => Ok(Err(why)),
    }
}

fn rails(links: &Links, near: &CardPreference) -> Result<Vec<Arc<Device>>, String> {
    let verbs = Verbs::load().map_err(|error| error.to_string())?;
    let ports = Verbs::ports();
    let chosen = choose(&ports, &links.rdma_devices, near)?;
    let mut rails = Vec::new();
    for port in chosen {
        let device = verbs.open(port);
        rails.push(device.map_err(|error| format!("{}: {error}", port.device))?);
    }
    Ok(rails)
}

pub fn names(rdma: &Rdma) -> String {
    let names: Vec<&str> = rdma.rails.iter().map(|rail| rail.name()).collect();
    names.join(", ")
}

/// The ports that lanes use, the best first: those that the configuration names, or else those that are up, the nearest first.
fn choose<'a>(
    ports: &'a [Port],
    named: &[String],
    near: &CardPreference,
) -> Result<Vec<&'a Port>, String> {
    let is_ready = |port: &&Port| port.is_up && port.address.is_some();
    if !named.is_empty() {
        let find = |name: &String| {
            let of_name = |port: &&Port| port.device == *name;
            if !ports.iter().any(|port| of_name(&port)) {
                return Err(format!("links.rdma_devices: there is no card '{name}'"));
            }
            let mut ready = ports.iter().filter(of_name).filter(is_ready);
            ready.next().ok_or_else(|| {
                format!("links.rdma_devices: '{name}' has no port that is up and has an address of RoCE v2 over IPv4")
            })
        };
        return named.iter().map(find).collect();
    }
    let mut ready: Vec<&Port> = ports.iter().filter(is_ready).collect();
    if ready.is_empty() {
        return Err(match ports.is_empty() {
            true => "there is no card with RDMA".to_owned(),
            false => "no card with RDMA is up and has an address of RoCE v2 over IPv4".to_owned(),
        });
    }
    ready.sort_by_key(|port| near.distance(port));
    ready.truncate(RAILS_MAX);
    Ok(ready)
}

/// The network cards of this host that lanes use.
pub struct Cards {
    /// Registers memory with the cards; or the reason why there are none.
    memory: Result<Arc<CardMemory>, String>,
}

impl Cards {
    pub fn new(memory: Result<Arc<CardMemory>, String>) -> Cards {
        Cards { memory }
    }

    /// Why there are none; empty if there are some.
    pub fn why_none(&self) -> &str {
        self.memory.as_ref().err().map_or("", String::as_str)
    }

    /// Whether the cards read messages in a GPU's memory, or why not. A trial finds out, once for each GPU.
    pub fn reads(&self, gpu: GpuUuid) -> Result<(), String> {
        match &self.memory {
            Ok(memory) => memory.tried(gpu, Access::LocalRead),
            Err(_) => Err("this host has no RDMA".to_owned()),
        }
    }

    /// Records why the cards must not read messages in a GPU's memory.
    pub fn reads_not(&self, gpu: GpuUuid, why: &str) {
        if let Ok(memory) = &self.memory {
            lock(&memory.trials).insert((gpu, false), Err(why.to_owned()));
        }
    }

    /// Whether the cards write messages into a GPU's memory, or why not: by the last registration of such memory, or else a trial.
    pub fn writes(&self, gpu: GpuUuid) -> Result<(), String> {
        let memory = self.memory.as_ref().map_err(String::clone)?;
        let last = lock(&memory.gpus).get(&gpu).cloned();
        last.unwrap_or_else(|| memory.tried(gpu, Access::RemoteWrite))
    }

    /// Whether the host's pools are registered as dma-bufs, or why by their addresses. None: no range lies in a dma-buf.
    pub fn dma_bufs(&self) -> Option<Result<(), String>> {
        lock(&self.memory.as_ref().ok()?.dma_bufs).clone()
    }
}

/// Registers the host's memory with the cards: segments to read from, and leases, which peers may write as long as they last.
pub struct CardMemory {
    registrar: Registrar,
    /// The outcome of registering the last range of host memory that lies in one dma-buf. None: there was none.
    dma_bufs: Mutex<Option<Result<(), String>>>,
    /// Registered segments, which stay mapped until the process ends.
    segments: Mutex<Vec<Registered>>,
    /// By GPUs, the outcome of registering the last memory there.
    gpus: Mutex<BTreeMap<GpuUuid, Result<(), String>>>,
    /// The outcomes of trials with a little memory of each GPU: of reading from it (false), and of writing to it (true).
    trials: Mutex<BTreeMap<(GpuUuid, bool), Result<(), String>>>,
}

impl fmt::Debug for CardMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known").finish_non_exhaustive()
    }
}

impl CardMemory {
    pub fn new(registrar: Registrar) -> Arc<CardMemory> {
        Arc::new(CardMemory {
            registrar,
            dma_bufs: Mutex::default(),
            segments: Mutex::default(),
            gpus: Mutex::default(),
            trials: Mutex::default(),
        })
    }

    fn tried(&self, gpu: GpuUuid, access: Access) -> Result<(), String> {
        let mut trials = lock(&self.trials);
        let trial = trials.entry((gpu, matches!(access, Access::RemoteWrite)));
        let made = || try_gpu(&self.registrar, gpu, access).map_err(|error| error.to_string());
        trial.or_insert_with(made).clone()
    }

    fn register_gpu(&self, range: &GpuRange, access: Access) -> Option<Registered> {
        let registered = range.dmabuf().map_err(|error| error.to_string());
        let registered = registered.and_then(|dmabuf| {
            let memory: Arc<dyn Memory> = Arc::new(OnGpu(range.clone()));
            let registered = self
                .registrar
                .register_dmabuf(dmabuf.as_fd(), 0, &memory, access);
            registered.map_err(|error| error.to_string())
        });
        let gpu = range.gpu();
        let outcome = registered.as_ref().map(drop).map_err(String::clone);
        let before = lock(&self.gpus).insert(gpu, outcome.clone());
        if before.as_ref() != Some(&outcome) {
            match &outcome {
                Ok(()) => {
                    tracing::info!(%gpu, "network cards can access the GPU's memory (GPUDirect)")
                }
                Err(why) => tracing::info!(
                    %gpu,
                    "network cards cannot access the GPU's memory, so messages are copied through host memory: {why}"
                ),
            }
        }
        registered.ok()
    }

    /// Registers a range as a part of its dma-buf, if it lies in one and the card's driver accepts that; else by its address.
    fn register(&self, range: &MappedRange, access: Access) -> Result<Registered, RdmaError> {
        let memory: Arc<dyn Memory> = Arc::new(Mapped(range.clone()));
        let Some((fd, offset)) = range.dma_buf() else {
            return self.registrar.register(&memory, access);
        };
        let fd = fd.as_fd();
        let registered = self.registrar.register_dmabuf(fd, offset, &memory, access);
        let registered = registered.map_err(|error| error.to_string());
        self.note_dma_buf(registered.as_ref().map(drop).map_err(|why| clip(why)));
        registered.or_else(|_| self.registrar.register(&memory, access))
    }

    fn note_dma_buf(&self, outcome: Result<(), String>) {
        let mut known = lock(&self.dma_bufs);
        let before = known.replace(outcome.clone());
        if before.as_ref() == Some(&outcome) {
            return;
        }
        match outcome {
            Ok(()) => tracing::info!("network cards know the host's pools as dma-bufs"),
            Err(why) => tracing::info!(
                "network cards know the host's pools by their addresses, and not as dma-bufs: {why}"
            ),
        }
    }
}

impl HostMemory for CardMemory {
    fn mapped(&self, range: MappedRange) {
        let registered = self.register(&range, Access::LocalRead);
        // Kernels before about 6.2 refuse to pin shared pages that the process cannot write. Pinned pages need not stay writable.
        let registered = registered.or_else(|refused| {
            let again = range.writable_while(|| self.register(&range, Access::LocalRead));
            again.unwrap_or(Err(refused))
        });
        let registered = reported(&range, registered);
        let mut segments = lock(&self.segments);
        segments.extend(registered);
    }

    fn leased(&self, range: MappedRange) -> Box<dyn Send + Sync> {
        Box::new(reported(&range, self.register(&range, Access::RemoteWrite)))
    }

    fn gpu_mapped(&self, range: GpuRange) {
        let registered = self.register_gpu(&range, Access::LocalRead);
        let mut segments = lock(&self.segments);
        segments.extend(registered);
    }

    fn gpu_leased(&self, range: GpuRange) -> Box<dyn Send + Sync> {
        Box::new(self.register_gpu(&range, Access::RemoteWrite))
    }
}

fn reported(range: &MappedRange, registered: Result<Registered, RdmaError>) -> Option<Registered> {
    let warn = |error: &_| {
        tracing::warn!(
            bytes = range.bytes(),
            "network cards cannot access a range of host memory, so its messages are copied: {error}"
        );
    };
    registered.inspect_err(warn).ok()
}

/// Tries to register a little memory of a GPU with the cards, and frees it again.
fn try_gpu(registrar: &Registrar, gpu: GpuUuid, access: Access) -> anyhow::Result<()> {
    let driver = Driver::load()?;
    let mut source = CudaSource::new(driver.clone(), gpu)?;
    let segment = source.create(source.granularity())?;
    let mapping = CudaMapping::new(driver, gpu, segment.bytes, Writable::ReadWrite)?;
    mapping.extend(segment.fd.as_fd(), segment.bytes)?;
    let dmabuf = mapping.dmabuf(0, segment.bytes)?;
    let memory: Arc<dyn Memory> = Arc::new(Trial(mapping));
    registrar.register_dmabuf(dmabuf.as_fd(), 0, &memory, access)?;
    Ok(())
}

struct Trial(CudaMapping);

// SAFETY: `CudaMapping` reserves its address range once and unmaps it in `drop`, so `base` and the mapped bytes stay valid as long as
// the value. `try_gpu` made the memory, gives its address to no peer and makes no reference to it, so nobody reads or writes it.
#[allow(unsafe_code)]
unsafe impl Memory for Trial {
    fn start(&self) -> *mut u8 {
        self.0.base() as *mut u8
    }
    fn bytes(&self) -> usize {
        self.0.mapped() as usize
    }
}

/// A range that stays mapped as long as this lives.
struct Mapped(MappedRange);

// SAFETY: a `MappedRange` holds its pool mapping or its pinned pages, which keep their address until they are dropped. Cards write only
// ranges that the daemon leased to a publisher of this process. This process makes a reference to such bytes when their message has
// landed whole: the notice of a chunk follows its bytes, and the machine publishes after the last chunk. Cards read only messages
// that this process holds as samples, and a publisher writes a block again only when no holder is left. A misbehaving peer can write
// a lease at any time: `links.trusted_fabric` says that there is none.
#[allow(unsafe_code)]
unsafe impl Memory for Mapped {
    fn start(&self) -> *mut u8 {
        self.0.start()
    }
    fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

/// A range of a GPU's memory that stays mapped as long as this lives.
struct OnGpu(GpuRange);

// SAFETY: a `GpuRange` holds its pool mapping, which keeps its address on the GPU until it is dropped. The CPU makes no reference to the
// bytes: it passes their address on. Cards write only ranges that the daemon leased to a publisher of this process. Work on the GPU reads
// them after the message is published, and the publisher calls `order_direct_writes` before that. Cards read only messages that this
// process holds as samples. A misbehaving peer can write a lease at any time: `links.trusted_fabric` says that there is none.
#[allow(unsafe_code)]
unsafe impl Memory for OnGpu {
    fn start(&self) -> *mut u8 {
        self.0.address() as *mut u8
    }
    fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rgaps_verbs::PortAddress;

    fn port(device: &str, is_up: bool, numa_node: Option<u32>, pci: &str) -> Port {
        Port {
            device: device.to_owned(),
            number: 1,
            is_up,
            state: String::new(),
            address: Some(PortAddress {
                index: 1,
                gid: [0; 16],
                interface: None,
            }),
            location: location(numa_node, pci),
        }
    }

    fn location(numa_node: Option<u32>, pci: &str) -> Location {
        let path = format!("/sys/devices/{pci}");
        Location {
            numa_node,
            pci_path: (!pci.is_empty()).then(|| path.into()),
        }
    }

    fn names(chosen: Vec<&Port>) -> Vec<String> {
        chosen.iter().map(|port| port.device.clone()).collect()
    }

    fn of_node(numa_node: Option<u32>) -> CardPreference {
        CardPreference {
            numa_node,
            ..CardPreference::default()
        }
    }

    #[test]
    fn cards_that_are_up_and_near_come_first_and_named_ones_as_they_are_named() {
        let mut bare = port("e", true, Some(1), "");
        bare.address = None;
        let ports = [
            port("a", true, Some(0), ""),
            port("b", false, Some(1), ""),
            port("c", true, Some(1), ""),
            port("d", true, None, ""),
            bare,
        ];
        let chosen = |node| names(choose(&ports, &[], &of_node(node)).unwrap());
        assert_eq!(chosen(Some(1)), ["c", "a", "d"]);
        assert_eq!(chosen(None), ["a", "c", "d"]);
        let named = ["d".to_owned(), "a".to_owned()];
        let chosen = choose(&ports, &named, &of_node(Some(0))).unwrap();
        assert_eq!(names(chosen), ["d", "a"]);
        for (named, said) in [("b", "'b' has no port that is up"), ("x", "no card 'x'")] {
            let error =
                choose(&ports, &[named.to_owned()], &CardPreference::default()).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        let none = choose(&ports[1..2], &[], &CardPreference::default());
        assert!(none.unwrap_err().contains("is up"));
        let none = choose(&[], &[], &CardPreference::default());
        assert!(none.unwrap_err().contains("no card with RDMA"));
    }

    #[test]
    fn cards_near_gpus_come_first_and_where_messages_land_counts_before_memory() {
        let ports = [
            port("far", true, Some(0), "pci0000:00/0000:00:01.0/0000:01:00.0"),
            port(
                "node",
                true,
                Some(1),
                "pci0000:90/0000:90:01.0/0000:91:00.0",
            ),
            port(
                "host",
                true,
                Some(1),
                "pci0000:80/0000:80:03.0/0000:85:00.0",
            ),
            port(
                "next",
                true,
                Some(1),
                "pci0000:80/0000:80:01.0/0000:82:00.0",
            ),
            port("soft", true, None, ""),
        ];
        let gpu = location(Some(1), "pci0000:80/0000:80:01.0/0000:81:00.0");
        let mut near = CardPreference {
            gpus: vec![gpu],
            ..CardPreference::default()
        };
        let chosen = |near: &CardPreference| names(choose(&ports, &[], near).unwrap());
        assert_eq!(chosen(&near), ["next", "host", "node", "far"]);
        // Of several GPUs the nearest counts.
        near.gpus
            .push(location(Some(0), "pci0000:00/0000:00:01.0/0000:02:00.0"));
        assert_eq!(chosen(&near), ["far", "next", "host", "node"]);
        near.gpus.pop();
        near.numa_node = Some(0);
        assert_eq!(chosen(&near), ["far", "next", "host", "node"]);
        near.lands_on_gpus = true;
        assert_eq!(chosen(&near), ["next", "host", "node", "far"]);
        // Named cards are used in their order, near or not.
        let named = ["soft".to_owned(), "far".to_owned()];
        assert_eq!(names(choose(&ports, &named, &near).unwrap()), named);
    }

    #[test]
    fn rdma_has_to_be_trusted() {
        let mut links = Links::default();
        assert!(open(&links, &CardPreference::default())
            .unwrap()
            .unwrap_err()
            .contains("trusted_fabric"));
        links.rdma = Wanted::Off;
        assert!(open(&links, &CardPreference::default())
            .unwrap()
            .unwrap_err()
            .contains("off"));
        links.rdma = Wanted::Only;
        links.trusted_fabric = true;
        links.rdma_devices = vec!["no_such_card".to_owned()];
        let error = open(&links, &CardPreference::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("only"), "{error}");
    }
}
