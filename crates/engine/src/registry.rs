//! The registry: the file in which the daemon records clients, pools and topics of a zone for its successor.
//!
//! The daemon itself relies on its own memory, and reads the registry only when it takes over a zone. It writes the state of
//! a record last. It uses `pwrite` and `pread` and maps nothing: records change rarely, reading holes of the sparse file takes
//! no memory, and no reference to shared bytes exists.

use crate::refuse::{bad, memory, refuse, system};
use crate::step::step;
use crate::topic::{Publisher, Subscriber};
use rgaps_layout::{
    ClientRecord, ControlHeader, PoolRecord, PublisherRecord, RegistryHeader, SegmentRecord,
    SubscriberRecord, TopicRecord, LAYOUT_VERSION, MAX_TOPICS, RECORD_FREE, REGISTRY_MAGIC,
    TYPE_NAME_BYTES,
};
use rgaps_pool::{create_sealed_memfd, verify_memfd};
use rgaps_session::{Refusal, RefusalCode, ZoneId};
use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::io;
use std::mem::{offset_of, size_of, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A structure whose bytes in memory are its bytes in the file.
///
/// # Safety
/// `repr(C)`, made of integers only (any bytes are a value), and without padding within its
/// first `BYTES` bytes.
unsafe trait Record: Copy {
    /// How many bytes are written: all but the padding at the end.
    const BYTES: usize;
}

macro_rules! records {
    ($($of:ident)*) => {$(
        // SAFETY: layout's `record!` defines the structure. It makes it `repr(C)`, takes integers only, and asserts at
        // compile time that its first `BYTES` bytes are its fields with no gap between them.
        unsafe impl Record for $of {
            const BYTES: usize = $of::BYTES;
        }
    )*};
}
records!(ControlHeader RegistryHeader ClientRecord PoolRecord SegmentRecord PublisherRecord SubscriberRecord TopicRecord);

/// A zone's registry, open for writing.
#[derive(Debug)]
pub(crate) struct RegistryFile {
    fd: OwnedFd,
    inode: u64,
}

/// Gives only the daemon's user the right to open a file. Other users keep the descriptors that they were given, and cannot
/// open a read-only one again for writing.
pub(crate) fn make_private(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::fs::fchmod(fd, Mode::RUSR | Mode::WUSR)?)
}

/// Refuses a file that does not belong to the daemon's user. Only a process of that user can have created one that does.
pub(crate) fn check_owner(fd: BorrowedFd<'_>) -> Result<(), Refusal> {
    let about =
        rustix::fs::fstat(fd).map_err(|e| system("inspect what a client handed back", e))?;
    if about.st_uid != rustix::process::geteuid().as_raw() {
        return Err(bad("the client handed back a memfd of another user"));
    }
    Ok(())
}

/// Opens `fd`'s file anew: an open file description that shares neither locks nor access mode.
pub(crate) fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(rustix::fs::open(
        path,
        flags | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

impl RegistryFile {
    /// A registry of a new zone.
    pub(crate) fn create(zone: ZoneId, control_inode: u64) -> Result<RegistryFile, Refusal> {
        let fd = create_sealed_memfd("rgaps-registry", RegistryHeader::bytes()).map_err(memory)?;
        let inode = verify_memfd(fd.as_fd(), RegistryHeader::bytes()).map_err(memory)?;
        let registry = RegistryFile { fd, inode };
        let header = RegistryHeader {
            magic: REGISTRY_MAGIC,
            version: LAYOUT_VERSION,
            zone_id: zone.to_le_bytes(),
            control_inode,
            daemons: 1,
            ..RegistryHeader::default()
        };
        make_private(registry.fd.as_fd())
            .and_then(|()| registry.put(0, &header))
            .map_err(|error| system("write a registry", error))?;
        Ok(registry)
    }

    /// The registry of a predecessor's zone, from a client's read-only descriptor of it; and its header.
    pub(crate) fn adopt(
        fd: BorrowedFd<'_>,
        zone: ZoneId,
        saved_inode: u64,
    ) -> Result<(RegistryFile, RegistryHeader), Refusal> {
        let inode = verify_memfd(fd, RegistryHeader::bytes()).map_err(memory)?;
        if inode != saved_inode {
            return Err(bad("the client handed back the registry of another zone"));
        }
        check_owner(fd)?;
        let fd = reopen(fd, OFlags::RDWR)
            .map_err(|e| system("open the registry that a client handed back", e))?;
        let registry = RegistryFile { fd, inode };
        let header: RegistryHeader = registry
            .get(0)
            .map_err(|e| system("read the registry that a client handed back", e))?;
        let sound = header.magic == REGISTRY_MAGIC
            && header.version == LAYOUT_VERSION
            && header.zone_id == zone.to_le_bytes();
        if !sound {
            return Err(refuse(
                RefusalCode::ZoneLost,
                "the registry that the client handed back is damaged or of another version; restart the clients",
            ));
        }
        Ok((registry, header))
    }

    /// The inode, by which a successor recognises the file.
    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    /// Opens a descriptor for a client: read-only, and with locks of its own.
    pub(crate) fn client_fd(&self) -> io::Result<OwnedFd> {
        reopen(self.fd.as_fd(), OFlags::RDONLY)
    }

    /// Whether some process holds the lock of a client, which is on the byte of its number.
    pub(crate) fn is_locked(&self, client: u32) -> io::Result<bool> {
        let mut lock = libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: libc::off_t::from(client),
            l_len: 1,
            l_pid: 0,
        };
        // SAFETY: `self.fd` keeps the descriptor open during the call. `lock` is a local `flock`, borrowed mutably, which is what
        // F_OFD_GETLK reads and fills in.
        let rc = unsafe { libc::fcntl(self.fd.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
    }

    /// Notes that another daemon serves the zone.
    pub(crate) fn count_daemon(&self, daemons: u64) -> io::Result<()> {
        self.write(
            offset_of!(RegistryHeader, daemons) as u64,
            &daemons.to_ne_bytes(),
        )
    }

    /// Records the end of the highest range of the control segment that is handed out.
    pub(crate) fn set_control_used(&self, end: u64) -> io::Result<()> {
        self.write(
            offset_of!(RegistryHeader, control_used) as u64,
            &end.to_ne_bytes(),
        )
    }

    pub(crate) fn client(&self, index: u32) -> io::Result<ClientRecord> {
        self.get(RegistryHeader::client(index as usize))
    }

    pub(crate) fn set_client(&self, index: u32, record: &ClientRecord) -> io::Result<()> {
        self.publish(RegistryHeader::client(index as usize), record)
    }

    pub(crate) fn clear_client(&self, index: u32) {
        let cleared = self.set_state(RegistryHeader::client(index as usize), RECORD_FREE);
        log_failure(cleared, "the end of a client");
    }

    pub(crate) fn pool(&self, index: u32) -> io::Result<PoolRecord> {
        self.get(RegistryHeader::pool(index as usize))
    }

    pub(crate) fn set_pool(&self, index: u32, record: &PoolRecord) -> io::Result<()> {
        self.publish(RegistryHeader::pool(index as usize), record)
    }

    /// Appends segment number `segment`; the count is written last.
    pub(crate) fn add_segment(
        &self,
        pool: u32,
        segment: u32,
        bytes: u64,
        inode: u64,
    ) -> io::Result<()> {
        let at = RegistryHeader::pool(pool as usize);
        let entry = offset_of!(PoolRecord, segments) + segment as usize * SegmentRecord::BYTES;
        self.put(at + entry as u64, &SegmentRecord { bytes, inode })?;
        self.set_segment_count(pool, segment + 1)
    }

    pub(crate) fn set_segment_count(&self, pool: u32, count: u32) -> io::Result<()> {
        let at = RegistryHeader::pool(pool as usize) + offset_of!(PoolRecord, segment_count) as u64;
        self.write(at, &count.to_ne_bytes())
    }

    /// Notes that a pool's pages are registered with a driver.
    pub(crate) fn set_pinned(&self, pool: u32) -> io::Result<()> {
        let at = RegistryHeader::pool(pool as usize) + offset_of!(PoolRecord, pinned) as u64;
        self.write(at, &1u32.to_ne_bytes())
    }

    pub(crate) fn set_topic(&self, index: u32, record: &TopicRecord) -> io::Result<()> {
        self.publish(RegistryHeader::topic(index as usize), record)
    }

    /// Ends a topic's record and gives its page back.
    pub(crate) fn clear_topic(&self, index: u32) -> io::Result<()> {
        let at = RegistryHeader::topic(index as usize);
        self.set_state(at, RECORD_FREE)?;
        let (types, bytes) = RegistryHeader::types(index as usize);
        punch(self.fd.as_fd(), types, bytes)?;
        punch(self.fd.as_fd(), at, size_of::<TopicRecord>() as u64)
    }

    pub(crate) fn set_topic_pool(&self, topic: u32, pool: u32) {
        let at = RegistryHeader::topic(topic as usize) + offset_of!(TopicRecord, pool) as u64;
        log_failure(self.write(at, &pool.to_ne_bytes()), "the pool of a topic");
    }

    pub(crate) fn set_publisher(&self, topic: u32, publisher: &Publisher) -> io::Result<()> {
        let slot = publisher.slot;
        let at = RegistryHeader::publisher_type(topic as usize, slot as usize);
        self.write(at, publisher.type_name.as_bytes())?;
        self.publish(publisher_at(topic, slot), &publisher.record())
    }

    /// The type name of a publisher, as long as its record says.
    pub(crate) fn publisher_type(&self, topic: u32, slot: u32, bytes: u32) -> io::Result<String> {
        self.type_name(
            RegistryHeader::publisher_type(topic as usize, slot as usize),
            bytes,
        )
    }

    /// Records that a publisher has become an orphan, or has ended.
    pub(crate) fn set_publisher_state(&self, topic: u32, slot: u32, state: u32) {
        let set = self.set_state(publisher_at(topic, slot), state);
        log_failure(set, "the end of a publisher");
    }

    pub(crate) fn set_subscriber(&self, topic: u32, subscriber: &Subscriber) -> io::Result<()> {
        let slot = subscriber.slot;
        let at = RegistryHeader::subscriber_type(topic as usize, slot as usize);
        self.write(at, subscriber.type_name.as_bytes())?;
        self.publish(subscriber_at(topic, slot), &subscriber.record())
    }

    /// The type name of a subscriber, as long as its record says.
    pub(crate) fn subscriber_type(&self, topic: u32, slot: u32, bytes: u32) -> io::Result<String> {
        self.type_name(
            RegistryHeader::subscriber_type(topic as usize, slot as usize),
            bytes,
        )
    }

    fn type_name(&self, at: u64, bytes: u32) -> io::Result<String> {
        let mut name = [0; TYPE_NAME_BYTES];
        let name = name
            .get_mut(..bytes as usize)
            .ok_or(io::ErrorKind::InvalidData)?;
        self.read(at, name)?;
        let name = std::str::from_utf8(name).map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(name.to_owned())
    }

    pub(crate) fn clear_subscriber(&self, topic: u32, slot: u32) {
        let cleared = self.set_state(subscriber_at(topic, slot), RECORD_FREE);
        log_failure(cleared, "the end of a subscriber");
    }

    /// Notes who leases `count` granules.
    pub(crate) fn set_granules(
        &self,
        pool: u32,
        first: usize,
        count: usize,
        owner: u32,
    ) -> io::Result<()> {
        self.write(
            RegistryHeader::granule(pool as usize, first),
            &owner.to_ne_bytes().repeat(count),
        )
    }

    /// Owners of the first `count` granules of a pool.
    pub(crate) fn granules(&self, pool: u32, count: usize) -> io::Result<Vec<u32>> {
        let mut bytes = vec![0; count * 4];
        self.read(RegistryHeader::granule(pool as usize, 0), &mut bytes)?;
        Ok(bytes
            .chunks_exact(4)
            .map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
            .collect())
    }

    /// All topic records that are in use. Pages that were never written are skipped.
    pub(crate) fn topics(&self) -> io::Result<Vec<(u32, TopicRecord)>> {
        let size = size_of::<TopicRecord>() as u64;
        let first = RegistryHeader::topic(0);
        let end = RegistryHeader::topic(MAX_TOPICS);
        let mut found = Vec::new();
        let mut at = first;
        while at < end {
            at = match rustix::fs::seek(&self.fd, SeekFrom::Data(at)) {
                // Data begins at a page, and a record is one.
                Ok(data) => data - data % size,
                Err(Errno::NXIO) => break,
                Err(errno) => return Err(errno.into()),
            };
            if at < end {
                let record: TopicRecord = self.get(at)?;
                if record.state != RECORD_FREE {
                    found.push((((at - first) / size) as u32, record));
                }
                at += size;
            }
        }
        Ok(found)
    }

    /// Writes a record whose first word is its state. Writes that word last.
    fn publish<T: Record>(&self, at: u64, record: &T) -> io::Result<()> {
        let bytes = bytes_of(record);
        self.write(at + 4, &bytes[4..])?;
        self.write(at, &bytes[..4])
    }

    fn set_state(&self, at: u64, state: u32) -> io::Result<()> {
        self.write(at, &state.to_ne_bytes())
    }

    fn put<T: Record>(&self, at: u64, record: &T) -> io::Result<()> {
        self.write(at, bytes_of(record))
    }

    fn get<T: Record>(&self, at: u64) -> io::Result<T> {
        let mut record = MaybeUninit::<T>::zeroed();
        // SAFETY: the `T::BYTES` bytes lie within `record`, a local that was zeroed, so they are initialised. Nothing else refers to
        // them while the slice lives.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(record.as_mut_ptr().cast::<u8>(), T::BYTES) };
        self.read(at, bytes)?;
        // SAFETY: `T` consists of integers, as `Record` requires, so any bytes are a value; all of them were zeroed above.
        Ok(unsafe { record.assume_init() })
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        step!("registry.write");
        write_at(self.fd.as_fd(), at, bytes)
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pread(&self.fd, &mut bytes[done..], at + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

/// Logs a failure to record an end, which cannot be refused.
pub(crate) fn log_failure(recorded: io::Result<()>, what: &str) {
    if let Err(error) = recorded {
        tracing::error!(%error, "recording {what} failed");
    }
}

fn write_at(fd: BorrowedFd<'_>, at: u64, bytes: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pwrite(fd, &bytes[done..], at + done as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Writes the header of a new control segment.
pub(crate) fn write_control_header(fd: BorrowedFd<'_>, header: &ControlHeader) -> io::Result<()> {
    write_at(fd, 0, bytes_of(header))
}

/// Returns the memory of a range of a memfd to the system. The range reads as zeros afterwards.
pub(crate) fn punch(fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::io::retry_on_intr(|| {
        rustix::fs::fallocate(fd, flags, offset, bytes)
    })?)
}

fn publisher_at(topic: u32, slot: u32) -> u64 {
    let at = offset_of!(TopicRecord, publishers) + slot as usize * PublisherRecord::BYTES;
    RegistryHeader::topic(topic as usize) + at as u64
}

fn subscriber_at(topic: u32, slot: u32) -> u64 {
    let at = offset_of!(TopicRecord, subscribers) + slot as usize * SubscriberRecord::BYTES;
    RegistryHeader::topic(topic as usize) + at as u64
}

fn bytes_of<T: Record>(record: &T) -> &[u8] {
    // SAFETY: `Record` requires that the first `BYTES` bytes have no padding, so all are initialised. The slice borrows `record`,
    // so it does not outlive it.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(record).cast::<u8>(), T::BYTES) }
}
