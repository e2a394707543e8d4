//! Checks GPUs: loads the driver, and creates, maps, writes and reads a segment on each GPU.

use super::{cause, Check};
use crate::units;
use rgaps::{Config, GpuUuid};
use rgaps_cuda::{
    memory_operations_work, Context, CudaError, CudaMapping, CudaSource, Device, Driver,
    WritesOrder,
};
use rgaps_pool::{Access, Mapping, PoolError, SegmentSource};
use rgaps_session::CudaUse;
use rgaps_verbs::Location;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// The bytes that the check writes to a GPU and reads back.
const PROBE: [u8; 16] = *b"rgaps doctor was";

/// A GPU that can hold messages.
pub struct Gpu {
    pub uuid: GpuUuid,
    /// Where the GPU is in the PCI tree. None: the driver does not tell its address.
    pub location: Option<Location>,
    /// Memory of the GPU for network cards to register; or why the driver exports none.
    pub exported: Result<Exported, String>,
}

/// Memory of a GPU as a dma-buf.
pub struct Exported {
    pub dmabuf: OwnedFd,
    pub address: u64,
    pub bytes: usize,
    /// Keeps the memory mapped at `address`.
    pub _mapping: Option<CudaMapping>,
}

impl Gpu {
    pub fn domain(&self) -> String {
        format!("cuda:{}", self.uuid)
    }
}

/// Runs the checks. Also returns the GPUs that can hold messages.
pub fn checks(config: &Config) -> (Vec<Check>, Vec<Gpu>) {
    const NAME: &str = "CUDA driver";
    if config.pool.cuda.enabled == CudaUse::Off {
        let check = Check::lack(
            NAME,
            "switched off",
            "pool.cuda.enabled = \"auto\" in rgaps.toml",
        );
        return (vec![check], Vec::new());
    }
    let driver = match Driver::load() {
        Ok(driver) => driver,
        Err(error) => {
            let advice =
                "for messages in GPU memory, install the NVIDIA driver, or give the container \
                          its libraries (--gpus all)";
            return (vec![Check::lack(NAME, cause(&error), advice)], Vec::new());
        }
    };
    let (major, minor) = driver.version();
    let mut checks = vec![Check::ok(
        NAME,
        format!("CUDA {major}.{minor}, {}", driver.library()),
    )];
    let mut gpus = Vec::new();
    match driver.devices() {
        Ok(devices) if devices.is_empty() => checks.push(Check::lack(
            "GPUs",
            "none",
            "see nvidia-smi; CUDA_VISIBLE_DEVICES may hide them from this process",
        )),
        Ok(devices) => {
            for device in devices {
                let (check, is_usable) = gpu(&driver, &device);
                checks.push(check);
                if is_usable {
                    checks.push(order(&driver, &device));
                    let exported = export(&driver, device.uuid);
                    checks.push(dmabuf(&device, &exported));
                    gpus.push(Gpu {
                        uuid: device.uuid,
                        location: driver
                            .pci_bus_id(&device)
                            .ok()
                            .map(|address| Location::of_pci(&address)),
                        exported: exported.map_err(|error| error.to_string()),
                    });
                }
            }
        }
        Err(error) => checks.push(Check::lack("GPUs", error.to_string(), "see nvidia-smi")),
    }
    (checks, gpus)
}

fn gpu(driver: &Arc<Driver>, device: &Device) -> (Check, bool) {
    let domain = format!("cuda:{}", device.uuid);
    match try_gpu(driver, device.uuid) {
        Ok(()) => {
            let (major, minor) = device.compute_capability;
            let rdma = if device.gpu_direct_rdma {
                "with"
            } else {
                "without"
            };
            let integrated = match (device.integrated, device.reads_host_memory()) {
                (false, _) => "",
                (true, true) => ", integrated: it reads messages in host memory in place",
                (true, false) => {
                    ", integrated, but its driver cannot register read-only memory, so messages are copied"
                }
            };
            let found = format!(
                "{}, {}, compute capability {major}.{minor}, {rdma} memory for NICs{integrated}",
                device.name,
                units::bytes(device.total_bytes)
            );
            (Check::ok(&domain, found), true)
        }
        Err(error) => {
            let found = format!("{}: {error}", device.name);
            let advice = "this GPU cannot hold messages; other GPUs and the host are not affected";
            (Check::lack(&domain, found, advice), false)
        }
    }
}

/// Exports memory of the GPU as a dma-buf.
fn export(driver: &Arc<Driver>, uuid: GpuUuid) -> Result<Exported, PoolError> {
    let mut source = CudaSource::new(driver.clone(), uuid)?;
    let segment = source.create(source.granularity())?;
    let mapping = CudaMapping::new(driver.clone(), uuid, segment.bytes, Access::ReadWrite)?;
    mapping.extend(segment.fd.as_fd(), segment.bytes)?;
    Ok(Exported {
        dmabuf: mapping.dmabuf(0, segment.bytes)?,
        address: mapping.base(),
        bytes: segment.bytes as usize,
        _mapping: Some(mapping),
    })
}

/// Checks whether network cards can access the GPU's memory, and how their writes are ordered.
fn dmabuf(device: &Device, exported: &Result<Exported, PoolError>) -> Check {
    let name = format!("dma-buf of {}", device.uuid);
    let order = match device.writes_order {
        WritesOrder::AllDevices => "ordered for all GPUs",
        WritesOrder::Owner => "ordered for this GPU, and flushed for others",
        WritesOrder::None => "flushed before each message",
    };
    match exported {
        Ok(_) => Check::ok(
            &name,
            format!("the driver exports one of the GPU's memory; writes of a network card are {order}"),
        ),
        Err(error) => Check::lack(
            &name,
            error.to_string(),
            "network cards cannot access this GPU's memory, so messages to other hosts go through pinned host memory",
        ),
    }
}

/// Checks whether streams of this GPU can wait for each other on the GPU; otherwise a CPU waits.
fn order(driver: &Arc<Driver>, device: &Device) -> Check {
    let name = format!("streams of {}", device.uuid);
    let works = Context::retain(driver.clone(), device.uuid)
        .and_then(|context| memory_operations_work(&context));
    match works {
        Ok(()) => Check::ok(&name, "ordered on the GPU"),
        Err(error) => Check::lack(
            &name,
            format!(
                "ordered on the CPU, which waits when a message is published or released: {error}"
            ),
            advice(&error),
        ),
    }
}

/// What the user can do so that streams wait on the GPU.
fn advice(error: &CudaError) -> &'static str {
    match error {
        CudaError::Lacks { .. } => "update NVIDIA's driver to one for CUDA 12.0 or later",
        CudaError::Call {
            call: "cuMemHostRegister",
            ..
        } => "allow more locked memory (ulimit -l; --ulimit memlock=-1 for a container)",
        _ => "see the driver's release notes on stream memory operations; all else works",
    }
}

fn try_gpu(driver: &Arc<Driver>, uuid: GpuUuid) -> Result<(), PoolError> {
    let mut source = CudaSource::new(driver.clone(), uuid)?;
    let segment = source.create(source.granularity())?;
    let mapping = CudaMapping::new(driver.clone(), uuid, segment.bytes, Access::ReadWrite)?;
    mapping.extend(segment.fd.as_fd(), segment.bytes)?;
    let at = segment.bytes - PROBE.len() as u64;
    mapping.write(at, &PROBE)?;
    let mut back = [0; PROBE.len()];
    mapping.read(at, &mut back)?;
    if back != PROBE {
        return Err(PoolError::Untrusted(
            "reading back bytes that were written to the GPU gave other bytes".to_owned(),
        ));
    }
    Ok(())
}
