//! The implementation of `Fabric` on libibverbs: devices, registered memory and events.

use crate::abi::*;
use crate::device::Device;
use crate::error::VerbsError;
use crate::fabric::{Access, Concerns, Depths, Fabric, Keys, QueuePair, Registration};
use crate::library::{self, Table};
use crate::ports::{self, Port, PortAddress};
use crate::queue_pair::LibraryPair;
use crate::status::DeviceEvent;
use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};
use std::ffi::{c_int, CStr, OsStr};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// The environment variable with the path of a library to load in place of the system's.
pub const LIBRARY_ENV: &str = "RGAPS_VERBS_LIBRARY";
const SYSTEM_LIBRARY: &str = "libibverbs.so.1";

/// libibverbs, loaded.
pub struct Verbs {
    table: Table,
}

impl Verbs {
    /// Loads the library that [`LIBRARY_ENV`] names, or else the system's.
    pub fn load() -> Result<Arc<Self>, VerbsError> {
        match std::env::var_os(LIBRARY_ENV).filter(|path| !path.is_empty()) {
            Some(path) => Self::load_from(&path),
            None => Self::load_from(OsStr::new(SYSTEM_LIBRARY)),
        }
    }

    /// Loads the library at `path`.
    pub fn load_from(path: &OsStr) -> Result<Arc<Self>, VerbsError> {
        let table = library::load(path)?;
        Ok(Arc::new(Self { table }))
    }

    /// All ports of RDMA devices on this machine, also those that cannot be used.
    pub fn ports() -> Vec<Port> {
        ports::read(Path::new(ports::SYSFS))
    }

    /// Opens a port's device, with a protection domain of its own.
    pub fn open(self: &Arc<Self>, port: &Port) -> Result<Arc<Device>, VerbsError> {
        let none = || VerbsError::NoAddress {
            device: port.device.clone(),
        };
        let address = port
            .address
            .clone()
            .filter(|_| port.is_up)
            .ok_or_else(none)?;
        let context = self.open_context(&port.device)?;
        let opened = Opened::new(
            Arc::clone(self),
            context,
            port.device.clone(),
            port.number,
            address,
        )?;
        Ok(Device::new(Box::new(Library(Arc::new(opened)))))
    }

    fn open_context(&self, name: &str) -> Result<NonNull<ibv_context>, VerbsError> {
        let table = &self.table;
        let mut count = 0;
        // SAFETY: the library writes `count`, which is on this stack. The list is null or has `count` devices until it is freed,
        // which is after its last use; an opened context keeps its device.
        unsafe {
            let list = (table.ibv_get_device_list)(&mut count);
            let list = NonNull::new(list).ok_or_else(|| failed("ibv_get_device_list"))?;
            let devices =
                std::slice::from_raw_parts(list.as_ptr(), usize::try_from(count).unwrap_or(0));
            let is_named = |device: &&*mut ibv_device| {
                CStr::from_ptr((table.ibv_get_device_name)(**device)).to_bytes() == name.as_bytes()
            };
            let opened = match devices.iter().find(is_named) {
                None => Err(VerbsError::NoDevice {
                    device: name.into(),
                }),
                Some(device) => NonNull::new((table.ibv_open_device)(*device))
                    .ok_or_else(|| failed("ibv_open_device")),
            };
            (table.ibv_free_device_list)(list.as_ptr());
            opened
        }
    }
}

impl std::fmt::Debug for Verbs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Verbs")
    }
}

/// The error of a call that failed and set errno. Nothing may change errno in between.
pub(crate) fn failed(call: &'static str) -> VerbsError {
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    VerbsError::Call { call, errno }
}

/// The result of a call that returns 0, or an error's number, or -1 and sets errno.
pub(crate) fn checked(call: &'static str, code: c_int) -> Result<(), VerbsError> {
    match code {
        0 => Ok(()),
        -1 => Err(failed(call)),
        errno => Err(VerbsError::Call {
            call,
            errno: errno.abs(),
        }),
    }
}

/// Makes reads of this descriptor return at once.
pub(crate) fn set_nonblocking(fd: RawFd, call: &'static str) -> Result<(), VerbsError> {
    // SAFETY: the library opened the descriptor and keeps it open while the context or channel lives that it belongs to;
    // both callers have just made that object.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fcntl_getfl(fd)
        .and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK))
        .map_err(|errno| VerbsError::Call {
            call,
            errno: errno.raw_os_error(),
        })
}

/// A device's context and its protection domain.
pub(crate) struct Opened {
    pub(crate) context: NonNull<ibv_context>,
    pub(crate) domain: NonNull<ibv_pd>,
    pub(crate) address: PortAddress,
    pub(crate) port: u8,
    pub(crate) mtu: u8,
    /// The most works, and the most receives, of a queue pair.
    pub(crate) works_max: u32,
    /// The most completions that a completion queue holds.
    pub(crate) completions_max: u32,
    name: String,
    verbs: Arc<Verbs>,
}

// SAFETY: verbs' functions may be called from any thread; the pointers are only passed to them, and what is read
// behind them (functions, descriptors) does not change after opening.
unsafe impl Send for Opened {}
// SAFETY: verbs' functions may be called from several threads at a time, and no field changes after `new`.
unsafe impl Sync for Opened {}

impl Opened {
    fn new(
        verbs: Arc<Verbs>,
        context: NonNull<ibv_context>,
        name: String,
        port: u8,
        address: PortAddress,
    ) -> Result<Self, VerbsError> {
        let table = &verbs.table;
        // SAFETY: `open` has just opened the context, and hands it to us: nobody else can close it.
        let domain = unsafe { (table.ibv_alloc_pd)(context.as_ptr()) };
        let Some(domain) = NonNull::new(domain) else {
            let error = failed("ibv_alloc_pd");
            // SAFETY: `open` has just opened the context for us, nothing was made with it, and the error is all that leaves.
            unsafe { (table.ibv_close_device)(context.as_ptr()) };
            return Err(error);
        };
        // From here on, dropping `opened` closes both.
        let mut opened = Self {
            context,
            domain,
            address,
            port,
            mtu: 0,
            works_max: 0,
            completions_max: 0,
            name,
            verbs,
        };
        opened.query()?;
        // SAFETY: `opened` keeps the context open.
        set_nonblocking(unsafe { context.as_ref() }.async_fd, "fcntl of events")?;
        Ok(opened)
    }

    fn query(&mut self) -> Result<(), VerbsError> {
        let table = &self.verbs.table;
        // SAFETY: both structures contain only integers, for which zeros are values. The library fills in no more than their
        // sizes, which `abi` asserts. `self` keeps the context open.
        let (device, port) = unsafe {
            let (mut device, mut port): (ibv_device_attr, ibv_port_attr) = (zeroed(), zeroed());
            let code = (table.ibv_query_device)(self.context.as_ptr(), &mut device);
            checked("ibv_query_device", code)?;
            let code = (table.ibv_query_port)(self.context.as_ptr(), self.port, &mut port);
            checked("ibv_query_port", code)?;
            (device, port)
        };
        if port.state != IBV_PORT_ACTIVE {
            let device = self.name.clone();
            return Err(VerbsError::NoAddress { device });
        }
        self.mtu = u8::try_from(port.active_mtu).unwrap_or(1);
        self.works_max = u32::try_from(device.max_qp_wr).unwrap_or(0);
        self.completions_max = u32::try_from(device.max_cqe).unwrap_or(0);
        Ok(())
    }

    pub(crate) fn table(&self) -> &Table {
        &self.verbs.table
    }

    fn registered(
        self: &Arc<Self>,
        memory: *mut ibv_mr,
        call: &'static str,
    ) -> Result<Box<dyn Registration>, VerbsError> {
        let memory = NonNull::new(memory).ok_or_else(|| failed(call))?;
        let opened = Arc::clone(self);
        Ok(Box::new(Registered { memory, opened }))
    }

    fn event_of(&self, event: &ibv_async_event) -> Option<(Concerns, DeviceEvent)> {
        let queue_pair = || {
            // SAFETY: this runs for events of queue pairs only. Our caller has not acknowledged the event yet, and
            // `ibv_destroy_qp` waits for that, so the queue pair is there.
            Concerns::QueuePair(unsafe { (*event.element.cast::<ibv_qp>()).qp_num })
        };
        // Events of a port have its number in place of the pointer.
        let is_ours = event.element as usize as u32 & 0xff == u32::from(self.port);
        Some(match event.event_type {
            // Each queue pair has a completion queue of its own, in which `LibraryPair::new` wrote the pair's number.
            IBV_EVENT_CQ_ERR => {
                // SAFETY: this is an event of a completion queue. Our caller has not acknowledged it yet, and
                // `ibv_destroy_cq` waits for that, so the queue is there.
                let number = unsafe { (*event.element.cast::<ibv_cq>()).cq_context } as usize;
                (
                    Concerns::QueuePair(number as u32),
                    DeviceEvent::CompletionQueue,
                )
            }
            IBV_EVENT_QP_FATAL => (queue_pair(), DeviceEvent::QueuePair),
            IBV_EVENT_QP_REQ_ERR => (queue_pair(), DeviceEvent::QueuePairRequest),
            IBV_EVENT_QP_ACCESS_ERR => (queue_pair(), DeviceEvent::QueuePairAccess),
            IBV_EVENT_DEVICE_FATAL => (Concerns::All, DeviceEvent::DeviceFatal),
            IBV_EVENT_PORT_ERR if is_ours => (Concerns::All, DeviceEvent::PortDown),
            // Changes of the port's other addresses do not matter.
            IBV_EVENT_GID_CHANGE if is_ours && self.address_changed() => {
                (Concerns::All, DeviceEvent::AddressChanged)
            }
            _ => return None,
        })
    }

    fn address_changed(&self) -> bool {
        let mut gid = [0; 16];
        let index = c_int::from(self.address.index);
        // SAFETY: the context is open, and a GID has 16 bytes.
        let code = unsafe {
            (self.table().ibv_query_gid)(self.context.as_ptr(), self.port, index, &mut gid)
        };
        code != 0 || gid != self.address.gid
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: everything that was made with them holds an `Arc` of this, so it was destroyed before. Nobody else closes them.
        unsafe {
            (self.table().ibv_dealloc_pd)(self.domain.as_ptr());
            (self.table().ibv_close_device)(self.context.as_ptr());
        }
    }
}

struct Registered {
    memory: NonNull<ibv_mr>,
    opened: Arc<Opened>,
}

// SAFETY: verbs' functions may be called from any thread; the pointer is only passed to them, and read by `keys`.
unsafe impl Send for Registered {}
// SAFETY: the library changes nothing behind the pointer until `drop` deregisters it.
unsafe impl Sync for Registered {}

impl Registration for Registered {
    fn keys(&self) -> Keys {
        // SAFETY: the library keeps it unchanged until it is deregistered.
        let memory = unsafe { self.memory.as_ref() };
        Keys {
            local: memory.lkey,
            remote: memory.rkey,
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: the library returned the registration to `registered`, and only this `drop` deregisters it. `opened` keeps its domain.
        unsafe { (self.opened.table().ibv_dereg_mr)(self.memory.as_ptr()) };
    }
}

struct Library(Arc<Opened>);

fn flags(access: Access) -> c_int {
    match access {
        Access::LocalRead => 0,
        // Verbs demands the local right for the remote one.
        Access::RemoteWrite => IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
    }
}

impl Fabric for Library {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn mtu(&self) -> u8 {
        self.0.mtu
    }

    unsafe fn register(
        &self,
        start: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Box<dyn Registration>, VerbsError> {
        let (table, domain) = (self.0.table(), self.0.domain.as_ptr());
        // SAFETY: `domain` is an open protection domain, which `self.0` owns. Our caller promises that `bytes` bytes at `start` stay mapped
        // until the registration is dropped.
        let memory = unsafe { (table.ibv_reg_mr)(domain, start.cast(), bytes, flags(access)) };
        self.0.registered(memory, "ibv_reg_mr")
    }

    fn register_dmabuf(
        &self,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        address: u64,
        access: Access,
    ) -> Result<Box<dyn Registration>, VerbsError> {
        let call = "ibv_reg_dmabuf_mr";
        let register = self.0.table().ibv_reg_dmabuf_mr.ok_or(VerbsError::TooOld {
            library: SYSTEM_LIBRARY.into(),
            symbol: call,
        })?;
        let (domain, fd) = (self.0.domain.as_ptr(), dmabuf.as_raw_fd());
        // SAFETY: `domain` is an open protection domain, which `self.0` owns, and `dmabuf` is an open descriptor. The kernel keeps
        // the buffer for as long as the registration.
        let memory = unsafe { register(domain, offset, bytes, address, fd, flags(access)) };
        self.0.registered(memory, call)
    }

    fn queue_pair(&self, wanted: Depths) -> Result<Box<dyn QueuePair>, VerbsError> {
        Ok(Box::new(LibraryPair::new(&self.0, wanted)?))
    }

    fn events_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context keeps the descriptor open, and `self` keeps the context, for at least the lifetime of the borrow.
        unsafe { BorrowedFd::borrow_raw(self.0.context.as_ref().async_fd) }
    }

    fn event(&self) -> Option<(Concerns, DeviceEvent)> {
        let table = self.0.table();
        loop {
            // SAFETY: all fields of `ibv_async_event` are integers, and a pointer that may be null.
            let mut event = unsafe { zeroed() };
            // SAFETY: `self` keeps the context open; the library fills in the event. `Opened::new` made the descriptor non-blocking.
            if unsafe { (table.ibv_get_async_event)(self.0.context.as_ptr(), &mut event) } != 0 {
                return None;
            }
            let concerns = self.0.event_of(&event);
            // SAFETY: the event came from the call above, and only this line acknowledges it.
            unsafe { (table.ibv_ack_async_event)(&mut event) };
            if concerns.is_some() {
                return concerns;
            }
        }
    }
}
