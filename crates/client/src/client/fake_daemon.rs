//! A daemon for tests that logs its requests and dies on command, also in the middle of a request. It has one zone with one
//! host pool, and checks nothing.

use rgaps_layout::{
    ControlHeader, Domain, RegistryHeader, CONTROL_BYTES, CONTROL_MAGIC, DYNAMIC_OFFSET,
    GRANULE_BYTES, LAYOUT_VERSION, SEGMENT_UNIT_BYTES,
};
use rgaps_pool::{
    create_sealed_memfd, Access, HostConfig, HostSource, Segment, SegmentSource, SharedMap,
};
use rgaps_session::{
    Answer, ClientPacket, DaemonLock, DaemonPacket, Member, Notice, PoolGrant, Range, Refusal,
    RefusalCode, Request, Ring, Role, SessionListener, SessionSocket, Side, SocketError, ZoneGrant,
    ZoneId, MAX_PACKET_FDS,
};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

pub(super) const SEGMENT_BYTES: u64 = SEGMENT_UNIT_BYTES;
pub(super) const CAP_BYTES: u64 = 64 * SEGMENT_BYTES;

/// When the daemon dies: before it handles a request, or after that without answering.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Death {
    Before,
    After,
}

type Trigger = Box<dyn Fn(&Request) -> bool + Send>;

/// The state that a test may read and change while the daemon runs.
pub(super) struct FakeDaemonState {
    pub(super) log: Vec<Request>,
    pub(super) die_at: Option<(Death, Trigger)>,
    /// Refuses joins with `Recovering` this many times.
    pub(super) recovering: u32,
    pub(super) zone: Option<FakeZone>,
    /// The only zone that it accepts in a hand-back.
    expected: Option<ZoneId>,
    quit: Option<bool>,
    notices: Vec<(Notice, Vec<OwnedFd>)>,
}

pub(super) struct FakeZone {
    pub(super) id: ZoneId,
    registry: OwnedFd,
    control: OwnedFd,
    pub(super) segments: Vec<OwnedFd>,
    source: HostSource,
    leased_bytes: u64,
    members: u32,
}

pub(super) struct FakeDaemon {
    state: Arc<Mutex<FakeDaemonState>>,
    thread: Option<JoinHandle<()>>,
    pub(super) socket: PathBuf,
}

impl FakeDaemon {
    pub(super) fn start(socket: &Path, expected: Option<ZoneId>) -> FakeDaemon {
        let lock = DaemonLock::take(&DaemonLock::path_for(socket), "default").unwrap();
        let listener = SessionListener::bind(socket, 0o600, &lock).unwrap();
        let state = Arc::new(Mutex::new(FakeDaemonState {
            log: Vec::new(),
            die_at: None,
            recovering: 0,
            zone: None,
            expected,
            quit: None,
            notices: Vec::new(),
        }));
        let shared = state.clone();
        let thread = std::thread::spawn(move || {
            serve(listener, &shared);
            drop(lock);
        });
        FakeDaemon {
            state,
            thread: Some(thread),
            socket: socket.to_owned(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, FakeDaemonState> {
        self.state.lock().unwrap()
    }

    /// The requests since the last call, without hellos.
    pub(super) fn log(&self) -> Vec<Request> {
        let all = std::mem::take(&mut self.state().log);
        all.into_iter()
            .filter(|request| !matches!(request, Request::Hello { .. }))
            .collect()
    }

    pub(super) fn notify(&self, notice: Notice) {
        self.state().notices.push((notice, Vec::new()));
    }

    /// Adds a segment, sends it around, and dies before anyone can ask for it.
    pub(super) fn grow_and_die(mut self, zone: ZoneId) {
        let mut state = self.state();
        let segments = {
            let zone = state.zone.as_mut().unwrap();
            zone.grow();
            &zone.segments
        };
        let from = segments.len() as u32 - 1;
        let fd = reopen(segments[from as usize].as_fd(), false);
        let grown = Notice::PoolGrown {
            zone,
            pool: 0,
            from,
            bytes: vec![SEGMENT_BYTES],
            writable: false,
        };
        state.notices.push((grown, vec![fd]));
        state.quit = Some(false);
        drop(state);
        self.thread.take().unwrap().join().unwrap();
    }

    /// Adds a segment without a notice.
    pub(super) fn grow(&self) {
        self.state().zone.as_mut().unwrap().grow();
    }

    /// Dies, if it is not dead yet. With `stopping` it first sends [`Notice::Stopping`].
    pub(super) fn kill(mut self, stopping: bool) -> PathBuf {
        self.end(stopping);
        self.socket.clone()
    }

    fn end(&mut self, stopping: bool) {
        self.state().quit = Some(stopping);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for FakeDaemon {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.end(false);
        }
    }
}

fn serve(listener: SessionListener, state: &Mutex<FakeDaemonState>) {
    let mut channels: Vec<SessionSocket> = Vec::new();
    loop {
        while let Some(channel) = listener.accept().unwrap() {
            channel.accept_descriptors(true);
            channel.set_nonblocking(true).unwrap();
            channels.push(channel);
        }
        let mut state = state.lock().unwrap();
        for (notice, fds) in std::mem::take(&mut state.notices) {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            for channel in &channels {
                channel
                    .send(&DaemonPacket::Notice(notice.clone()), &fds)
                    .unwrap();
            }
        }
        if let Some(stopping) = state.quit {
            for channel in channels.iter().filter(|_| stopping) {
                let _ = channel.send(&DaemonPacket::Notice(Notice::Stopping), &[]);
            }
            // Like the real daemon, it removes its socket before it closes its sessions.
            drop(listener);
            return;
        }
        let mut dead = false;
        channels.retain(|channel| match channel.receive::<ClientPacket>() {
            Ok(Some((packet, fds))) => {
                dead |= !handle(&mut state, channel, packet, fds);
                true
            }
            Ok(None) => false,
            Err(SocketError::WouldBlock) => true,
            Err(error) => panic!("a client breaks the protocol: {error}"),
        });
        if dead {
            return;
        }
        drop(state);
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Handles a request. False: the daemon must die.
fn handle(
    state: &mut FakeDaemonState,
    channel: &SessionSocket,
    packet: ClientPacket,
    fds: Vec<OwnedFd>,
) -> bool {
    let ClientPacket { id, request } = packet;
    let death = match &state.die_at {
        Some((death, trigger)) if trigger(&request) => Some(*death),
        _ => None,
    };
    state.log.push(request.clone());
    if death == Some(Death::Before) {
        return false;
    }
    let (result, fds) = match answer(state, request, fds) {
        Ok((answer, fds)) => (Ok(answer), fds),
        Err(code) => (
            Err(Refusal {
                code,
                message: format!("{code:?}"),
            }),
            Vec::new(),
        ),
    };
    if death == Some(Death::After) {
        return false;
    }
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
    channel
        .send(&DaemonPacket::Answer { id, result }, &borrowed)
        .unwrap();
    true
}

type Answered = Result<(Answer, Vec<OwnedFd>), RefusalCode>;

fn answer(state: &mut FakeDaemonState, request: Request, mut fds: Vec<OwnedFd>) -> Answered {
    let plain = |answer: Answer| Ok((answer, Vec::new()));
    match request {
        Request::Hello { .. } => plain(Answer::Welcome {
            version: "fake".to_owned(),
            pid: std::process::id(),
            daemon: 1,
            expects_hand_back: state.expected.is_some(),
        }),
        Request::Join { role, .. } => join(state, role),
        Request::HandBack { zone, .. } if state.expected == Some(zone) => {
            let control = fds.pop().unwrap();
            let registry = fds.pop().unwrap();
            state.zone = Some(FakeZone::with(zone, registry, control));
            plain(Answer::Zone {
                wants_segments: true,
            })
        }
        Request::HandBack { .. } => Err(RefusalCode::ZoneLost),
        Request::HandBackSegments { from, .. } => {
            let zone = state.zone.as_mut().unwrap();
            assert_eq!(zone.segments.len(), from as usize);
            zone.segments.extend(fds);
            plain(Answer::Done)
        }
        Request::Pool { pool: 0, .. } => plain(Answer::Pool(FakeZone::grant(0))),
        Request::Segments { from, writable, .. } => {
            let zone = state.zone.as_ref().ok_or(RefusalCode::NotFound)?;
            let sent = zone
                .segments
                .iter()
                .skip(from as usize)
                .take(MAX_PACKET_FDS);
            let fds: Vec<OwnedFd> = sent.map(|fd| reopen(fd.as_fd(), writable)).collect();
            Ok((
                Answer::Segments {
                    bytes: vec![SEGMENT_BYTES; fds.len()],
                },
                fds,
            ))
        }
        Request::Lease { bytes, .. } => {
            let zone = state.zone.as_mut().ok_or(RefusalCode::NotFound)?;
            let ranges = vec![zone.lease(bytes)?];
            plain(Answer::Leased { ranges })
        }
        Request::TakeDoorbell { .. } => plain(Answer::Doorbell { doorbell: 77 }),
        Request::TakeTimeline { .. } => plain(Answer::Timeline { timeline: 33 }),
        Request::Topics { from } => {
            let left = 150u32.saturating_sub(from).min(64);
            plain(Answer::Topics((0..left).map(|i| row(from + i)).collect()))
        }
        Request::Stop => {
            state.quit = Some(true);
            plain(Answer::Done)
        }
        _ => plain(Answer::Done),
    }
}

impl FakeZone {
    fn lease(&mut self, bytes: u64) -> Result<Range, RefusalCode> {
        let bytes = bytes.next_multiple_of(GRANULE_BYTES);
        let offset = self.leased_bytes;
        if offset + bytes > CAP_BYTES {
            return Err(RefusalCode::PoolFull);
        }
        self.leased_bytes += bytes;
        while (self.segments.len() as u64) * SEGMENT_BYTES < self.leased_bytes {
            self.grow();
        }
        Ok(Range { offset, bytes })
    }
}

fn row(number: u32) -> rgaps_session::TopicRow {
    rgaps_session::TopicRow {
        name: format!("topic/{number}"),
        type_name: String::new(),
        domain: Some(Domain::Host),
        publishers: 0,
        subscribers: 1,
        orphans: 0,
        messages: 0,
        bytes: 0,
        received: 0,
        missed: 0,
        kept: 0,
        held: 0,
        remote: 0,
        waiting: 0,
        is_device: false,
    }
}

fn join(state: &mut FakeDaemonState, role: Role) -> Answered {
    if state.recovering > 0 {
        state.recovering -= 1;
        return Err(RefusalCode::Recovering);
    }
    let is_new = state.zone.is_none();
    let zone = state.zone.get_or_insert_with(FakeZone::new);
    zone.members += 1;
    let slot = zone.members;
    let side = match role {
        Role::Publisher(_) => Side::Publisher,
        Role::Subscriber(_) | Role::Observer(_) => Side::Subscriber,
    };
    let ring = match side {
        Side::Publisher => Ring {
            region_offset: DYNAMIC_OFFSET,
            ring_capacity: 8,
            ..Ring::default()
        },
        Side::Subscriber => Ring::default(),
    };
    let fds = match is_new {
        true => vec![
            reopen(zone.registry.as_fd(), false),
            reopen(zone.control.as_fd(), true),
        ],
        false => Vec::new(),
    };
    let joined = Answer::Joined {
        member: Member {
            zone: zone.id,
            topic: 0,
            side,
            slot,
            incarnation: u64::from(slot),
        },
        grant: is_new.then_some(ZoneGrant {
            client_index: 3,
            client_id: 33,
        }),
        region_offset: DYNAMIC_OFFSET,
        topic_id: 9,
        doorbell: slot,
        ring,
        pool: Some(FakeZone::grant(zone.segments.len() as u32)),
        reads: None,
    };
    Ok((joined, fds))
}

impl FakeZone {
    fn new() -> FakeZone {
        let id = 0x1234_5678_9abc_def0_0123_4567_89ab_cdefu128;
        let registry = create_sealed_memfd("registry", RegistryHeader::bytes()).unwrap();
        let control = create_sealed_memfd("control", CONTROL_BYTES).unwrap();
        let map = SharedMap::new(control.as_fd(), CONTROL_BYTES, Access::ReadWrite).unwrap();
        let header = ControlHeader {
            magic: CONTROL_MAGIC,
            version: LAYOUT_VERSION,
            reserved: 0,
            zone_id: id.to_le_bytes(),
            bytes: CONTROL_BYTES,
        };
        // SAFETY: the mapping was made above, is larger than the header and aligned to a page, and no other process has it yet.
        unsafe { map.base().cast::<ControlHeader>().write(header) };
        FakeZone::with(id, registry, control)
    }

    fn with(id: ZoneId, registry: OwnedFd, control: OwnedFd) -> FakeZone {
        FakeZone {
            id,
            registry,
            control,
            segments: Vec::new(),
            source: HostSource::new(HostConfig::default()),
            leased_bytes: 0,
            members: 0,
        }
    }

    fn grant(segments: u32) -> PoolGrant {
        PoolGrant {
            pool: 0,
            domain: Domain::Host,
            cap_bytes: CAP_BYTES,
            segments,
        }
    }

    fn grow(&mut self) {
        let Segment { fd, .. } = self.source.create(SEGMENT_BYTES).unwrap();
        self.segments.push(fd);
    }

    /// Whether a process holds the lock of client 3.
    pub(super) fn client_is_locked(&self) -> bool {
        // SAFETY: an all-zero `flock` is a valid value of that plain struct.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as _;
        lock.l_whence = libc::SEEK_SET as _;
        lock.l_start = 3;
        lock.l_len = 1;
        let writable = reopen(self.registry.as_fd(), true);
        // SAFETY: `writable` is open and `lock` is a valid `flock`, into which F_OFD_GETLK writes.
        let rc = unsafe { libc::fcntl(writable.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
        assert_eq!(rc, 0);
        lock.l_type != libc::F_UNLCK as libc::c_short
    }
}

fn reopen(fd: BorrowedFd<'_>, writable: bool) -> OwnedFd {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(writable)
        .open(format!("/proc/self/fd/{}", fd.as_raw_fd()))
        .unwrap();
    file.into()
}
