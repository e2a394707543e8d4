//! The Unix socket of a session: whole packets with file descriptors, and the credentials of the peer.

use crate::{DaemonLock, MAX_PACKET_BYTES, MAX_PACKET_FDS};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::{de::DeserializeOwned, Serialize};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Connections that wait for the daemon to accept them; the system may allow fewer.
const BACKLOG: i32 = 1024;
/// How long a client waits for room in the daemon's backlog.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long it waits between two tries.
const CONNECT_AGAIN: Duration = Duration::from_millis(10);
/// The most supplementary groups of a process (`NGROUPS_MAX`).
const MAX_GROUPS: usize = 65536;
/// A listening socket is bound at its path plus this suffix, and renamed to the path when it is ready. `/proc/net/unix` lists it
/// by the first name for ever.
pub(crate) const MAKING_SUFFIX: &str = ".new";
/// `SO_PEERPIDFD` of Linux 6.5, which the libc crate does not know on every target.
const SO_PEERPIDFD: libc::c_int = 77;
/// `SO_PASSRIGHTS` of Linux 6.16: whether a Unix socket accepts descriptors.
const SO_PASSRIGHTS: libc::c_int = 83;
/// The most descriptors in one packet that the kernel allows (`SCM_MAX_FD`).
pub const KERNEL_FDS_MAX: usize = 253;
/// A lower bound, in bytes, for what the kernel charges a socket's buffer for a packet: its own record of a packet is larger.
const MIN_PACKET_COST: usize = 512;
/// The most packets that are discarded when a session ends. A socket's buffer holds fewer.
const MAX_DISCARDED: usize = 4096;

/// An error of a session's socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// A system call failed.
    #[error("{call} on the daemon's socket failed: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// The path cannot be a socket's.
    #[error("'{}' cannot be the daemon's socket: {reason}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// The daemon accepts no connections.
    #[error(
        "the daemon at '{}' has not accepted a connection for {} s: it is stopped or overloaded; if it is stopped, \
         continue it (kill -CONT), else end it", path.display(), CONNECT_LIMIT.as_secs()
    )]
    NotAccepted {
        /// Its socket.
        path: PathBuf,
    },
    /// A nonblocking socket has no packet to receive, or no room to send one.
    #[error("the socket is not ready; try again when poll reports it as ready")]
    WouldBlock,
    /// The other end has closed the session, or has ended.
    #[error("the other end has closed the session")]
    Closed,
    /// A packet that is too long to send.
    #[error("a packet of {bytes} bytes is over the limit of {MAX_PACKET_BYTES}; split it")]
    TooLarge {
        /// Its length.
        bytes: usize,
    },
    /// More descriptors than a packet may carry.
    #[error("a packet with {count} descriptors is over the limit of {MAX_PACKET_FDS}; split it")]
    TooManyDescriptors {
        /// How many.
        count: usize,
    },
    /// The peer sent more than the limits of a packet, or this process has too few free descriptors for those in the packet.
    #[error(
        "a packet arrived truncated: the peer violates the protocol, or this process has reached \
         its limit of open files (ulimit -n)"
    )]
    Truncated,
    /// A peer that may send no descriptors sent some.
    #[error("the peer sent descriptors that were not requested; run the same version of rgaps in all processes")]
    UnexpectedDescriptors,
    /// Bytes that are no packet.
    #[error(
        "a packet does not decode ({0}): the peer violates the protocol or has another version"
    )]
    Malformed(String),
}

impl SocketError {
    fn system(call: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| match errno {
            Errno::AGAIN => SocketError::WouldBlock,
            Errno::PIPE | Errno::CONNRESET => SocketError::Closed,
            other => SocketError::System {
                call,
                source: other.into(),
            },
        }
    }

    /// The error number, if a system call failed.
    pub fn errno(&self) -> Option<i32> {
        match self {
            SocketError::System { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

/// The credentials of a socket's peer, from the time when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Its process in our PID namespace; None if it is not visible from here.
    pub pid: Option<u32>,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// One end of a session.
#[derive(Debug)]
pub struct SessionSocket {
    fd: OwnedFd,
}

impl AsFd for SessionSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<SessionSocket> for OwnedFd {
    fn from(channel: SessionSocket) -> OwnedFd {
        channel.fd
    }
}

impl SessionSocket {
    /// Connects to a daemon's socket. The errors of an absent daemon (`ENOENT`, `ECONNREFUSED`)
    /// come as [`SocketError::System`].
    pub fn connect(path: &Path) -> Result<SessionSocket, SocketError> {
        let address = address(path)?;
        let fd = new_socket()?;
        rustix::io::ioctl_fionbio(&fd, true).map_err(SocketError::system("ioctl"))?;
        let deadline = Instant::now() + CONNECT_LIMIT;
        loop {
            match rustix::io::retry_on_intr(|| net::connect(&fd, &address)) {
                Ok(()) => break,
                // The daemon's backlog is full.
                Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(CONNECT_AGAIN),
                Err(Errno::AGAIN) => {
                    return Err(SocketError::NotAccepted {
                        path: path.to_owned(),
                    })
                }
                Err(errno) => {
                    return Err(SocketError::System {
                        call: "connect",
                        source: errno.into(),
                    })
                }
            }
        }
        let channel = SessionSocket { fd };
        channel.set_nonblocking(false)?;
        Ok(channel)
    }

    /// A channel over a connected `SOCK_SEQPACKET` socket.
    pub fn from_fd(fd: OwnedFd) -> SessionSocket {
        SessionSocket { fd }
    }

    /// Two connected channels.
    pub fn pair() -> Result<(SessionSocket, SessionSocket), SocketError> {
        let (a, b) = net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(SocketError::system("socketpair"))?;
        Ok((SessionSocket { fd: a }, SessionSocket { fd: b }))
    }

    /// With `true`, `send` and `receive` return [`SocketError::WouldBlock`] instead of waiting.
    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<(), SocketError> {
        rustix::io::ioctl_fionbio(&self.fd, nonblocking).map_err(SocketError::system("ioctl"))
    }

    /// Sends one packet, whole or not at all.
    pub fn send(&self, packet: &impl Serialize, fds: &[BorrowedFd<'_>]) -> Result<(), SocketError> {
        let bytes = postcard::to_stdvec(packet)
            .map_err(|error| SocketError::Malformed(error.to_string()))?;
        if bytes.len() > MAX_PACKET_BYTES {
            return Err(SocketError::TooLarge { bytes: bytes.len() });
        }
        if fds.len() > MAX_PACKET_FDS {
            return Err(SocketError::TooManyDescriptors { count: fds.len() });
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PACKET_FDS))];
        rustix::io::retry_on_intr(|| {
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() {
                let fits = control.push(SendAncillaryMessage::ScmRights(fds));
                debug_assert!(
                    fits,
                    "the space is for as many as the check above lets through"
                );
            }
            let data = [IoSlice::new(&bytes)];
            // NOSIGNAL: a library must not die of SIGPIPE in its user's process.
            net::sendmsg(&self.fd, &data, &mut control, SendFlags::NOSIGNAL)
        })
        .map_err(SocketError::system("sendmsg"))?;
        Ok(())
    }

    /// Receives one packet. `None`: the other end closed the session (or died).
    ///
    /// A packet that is too long, carries too many descriptors, does not decode or has surplus bytes is an error, and all its
    /// descriptors are closed.
    pub fn receive<T: DeserializeOwned>(&self) -> Result<Option<(T, Vec<OwnedFd>)>, SocketError> {
        self.receive_or_discard(&mut drop)
    }

    /// Like [`SessionSocket::receive`], but passes the descriptors of an invalid packet to `discard`, since closing a stranger's
    /// descriptor may block. The kernel itself closes, in this call, descriptors for which this process has no room
    /// (`ulimit -n`): see [`SessionSocket::carries_descriptors`].
    pub fn receive_or_discard<T: DeserializeOwned>(
        &self,
        discard: &mut dyn FnMut(Vec<OwnedFd>),
    ) -> Result<Option<(T, Vec<OwnedFd>)>, SocketError> {
        let mut bytes = vec![0u8; MAX_PACKET_BYTES];
        // Room for all descriptors of any packet: the kernel would close the others in this call.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNEL_FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut once = || {
            rustix::io::retry_on_intr(|| {
                let mut data = [IoSliceMut::new(&mut bytes)];
                net::recvmsg(&self.fd, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)
            })
        };
        // ECONNRESET: the peer closed while packets of ours were unread. The kernel reports it once, then returns the peer's
        // earlier packets, and then the end of the session.
        let message = match once() {
            Err(Errno::CONNRESET) => once(),
            other => other,
        }
        .map_err(SocketError::system("recvmsg"))?;
        let mut fds = Vec::new();
        for entry in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = entry {
                fds.extend(rights);
            }
        }
        match decode(&bytes[..message.bytes], message.flags, fds.len()) {
            Ok(packet) => Ok(packet.map(|packet| (packet, fds))),
            Err(error) => {
                discard(fds);
                Err(error)
            }
        }
    }

    /// Whether the next packet carries descriptors. The packet stays in the socket: no descriptor is received or closed.
    pub fn carries_descriptors(&self) -> Result<bool, SocketError> {
        let look = || self.peek(&mut RecvAncillaryBuffer::default());
        // As in `receive_or_discard`: the kernel reports once that the peer closed.
        let flags = match look() {
            Err(Errno::CONNRESET) => look(),
            other => other,
        };
        let flags = flags.map_err(SocketError::system("recvmsg"))?;
        Ok(flags.contains(ReturnFlags::CTRUNC))
    }

    /// Limits the bytes that the kernel queues for a peer that does not read, to roughly `bytes`. A packet of
    /// [`MAX_PACKET_BYTES`] always fits.
    pub fn limit_unread(&self, bytes: usize) -> Result<(), SocketError> {
        // The kernel doubles the value, for its own bookkeeping.
        let half = bytes.max(MAX_PACKET_BYTES + MIN_PACKET_COST) / 2;
        net::sockopt::set_socket_send_buffer_size(&self.fd, half)
            .map_err(SocketError::system("setsockopt(SO_SNDBUF)"))
    }

    /// An upper bound for the number of sent packets that the peer has not read yet.
    pub fn unread_packets_max(&self) -> usize {
        let mut bytes: libc::c_int = 0;
        // SAFETY: `self` keeps the descriptor open, and TIOCOUTQ writes one integer, into `bytes`.
        let rc = unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        match rc {
            0 => (bytes.max(0) as usize).div_ceil(MIN_PACKET_COST),
            _ => usize::MAX,
        }
    }

    /// Ends the session and discards unread packets, up to the first one with descriptors. `false`: there is such a packet, and
    /// closing the socket will close its descriptors, which may block.
    pub fn discard_unread(&self) -> bool {
        self.shutdown();
        // From here on every packet, even an empty one, carries its sender's credentials; the end of the session carries none.
        if net::sockopt::set_socket_passcred(&self.fd, true).is_err() {
            return false;
        }
        for _ in 0..MAX_DISCARDED {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            match self.peek(&mut control) {
                Ok(flags) if flags.contains(ReturnFlags::CTRUNC) => return false,
                Ok(_) if control.drain().next().is_none() => return true,
                Ok(_) | Err(Errno::CONNRESET) => {}
                Err(errno) => return errno == Errno::AGAIN,
            }
            // If this fails, the next round peeks at the same packet again.
            let _ = net::recv(&self.fd, &mut [0u8; 1], RecvFlags::DONTWAIT);
        }
        false
    }

    /// Peeks at the next packet without receiving it. `CTRUNC`: it carries more ancillary data than `control` has room for.
    fn peek(&self, control: &mut RecvAncillaryBuffer<'_>) -> Result<ReturnFlags, Errno> {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let message = rustix::io::retry_on_intr(|| net::recvmsg(&self.fd, &mut [], control, flags));
        message.map(|message| message.flags)
    }

    /// Sets whether the peer may send descriptors from now on. Without permission, its `send` fails with `EPERM`. Has no effect
    /// before Linux 6.16.
    pub fn accept_descriptors(&self, accept: bool) {
        pass_rights(self.as_fd(), accept);
    }

    /// Ends both directions, which wakes all threads that wait on the socket, on both sides.
    pub fn shutdown(&self) {
        // It fails only when the session has ended already.
        let _ = net::shutdown(&self.fd, net::Shutdown::Both);
    }

    /// The peer's credentials.
    pub fn peer(&self) -> Result<Credentials, SocketError> {
        let mut credentials = libc::ucred {
            pid: 0,
            uid: u32::MAX,
            gid: u32::MAX,
        };
        // SAFETY: a `ucred` consists of integers, so any bytes that the kernel writes are valid.
        let bytes = unsafe { option(self.as_fd(), libc::SO_PEERCRED, &mut credentials) }
            .map_err(SocketError::system("getsockopt(SO_PEERCRED)"))?;
        debug_assert_eq!(bytes, size_of::<libc::ucred>());
        Ok(Credentials {
            // 0: the peer is in a PID namespace that cannot be seen from ours.
            pid: u32::try_from(credentials.pid).ok().filter(|pid| *pid != 0),
            uid: credentials.uid,
            gid: credentials.gid,
        })
    }

    /// The peer's supplementary groups.
    pub fn peer_groups(&self) -> Result<Vec<u32>, SocketError> {
        let mut groups = vec![0 as libc::gid_t; 64];
        loop {
            let mut bytes = size_of_val(groups.as_slice()) as libc::socklen_t;
            // SAFETY: `groups` has room for `bytes` bytes, the kernel writes no more, and any bytes are valid integers.
            let rc = unsafe {
                libc::getsockopt(
                    self.fd.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_PEERGROUPS,
                    groups.as_mut_ptr().cast(),
                    &mut bytes,
                )
            };
            let needed = bytes as usize / size_of::<libc::gid_t>();
            if rc == 0 {
                groups.truncate(needed);
                return Ok(groups);
            }
            let error = std::io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::ERANGE)
                || needed <= groups.len()
                || needed > MAX_GROUPS
            {
                return Err(SocketError::System {
                    call: "getsockopt(SO_PEERGROUPS)",
                    source: error,
                });
            }
            groups.resize(needed, 0);
        }
    }

    /// A descriptor that becomes readable when the peer's process has ended and its files are closed. None if the peer was reaped
    /// already, or if the kernel lacks `SO_PEERPIDFD` and the peer's PID is not visible from here.
    pub fn peer_pidfd(&self) -> Option<OwnedFd> {
        let mut raw: libc::c_int = -1;
        // SAFETY: `raw` is an integer, for which any bytes are valid.
        match unsafe { option(self.as_fd(), SO_PEERPIDFD, &mut raw) } {
            Ok(_) if raw >= 0 => {
                // SAFETY: the kernel has just created this descriptor for this call, so nobody else owns it.
                return Some(unsafe { OwnedFd::from_raw_fd(raw) });
            }
            _ => {}
        }
        // Before Linux 6.5. Another process may have the PID already. That is unlikely: the daemon calls this right after
        // accepting, while the peer waits for its welcome.
        let pid = i32::try_from(self.peer().ok()?.pid?).ok()?;
        let pid = rustix::process::Pid::from_raw(pid)?;
        rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
    }
}

/// Decodes a packet. `None`: the end of the session.
fn decode<T: DeserializeOwned>(
    bytes: &[u8],
    flags: ReturnFlags,
    fds: usize,
) -> Result<Option<T>, SocketError> {
    if flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(SocketError::Truncated);
    }
    if fds > MAX_PACKET_FDS {
        return Err(SocketError::TooManyDescriptors { count: fds });
    }
    if bytes.is_empty() {
        return match fds {
            0 => Ok(None),
            _ => Err(SocketError::Malformed("descriptors alone".to_owned())),
        };
    }
    let (packet, rest) = postcard::take_from_bytes(bytes)
        .map_err(|error| SocketError::Malformed(error.to_string()))?;
    if !rest.is_empty() {
        return Err(SocketError::Malformed(format!(
            "{} bytes left over",
            rest.len()
        )));
    }
    Ok(Some(packet))
}

/// Sets `SO_PASSRIGHTS`. A kernel before 6.16 lacks this option and always accepts descriptors.
fn pass_rights(fd: BorrowedFd<'_>, accept: bool) {
    let value = libc::c_int::from(accept);
    // SAFETY: the descriptor is open while it is borrowed, and `value` is an integer of the size that we pass.
    unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        );
    }
}

/// Reads a socket option of fixed size into `value`, and returns how many bytes the kernel wrote.
///
/// # Safety
/// Any bytes are a valid `T`.
unsafe fn option<T>(fd: BorrowedFd<'_>, name: libc::c_int, value: &mut T) -> Result<usize, Errno> {
    let mut bytes = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` has room for `bytes` bytes, and the kernel writes no more. Our caller promises that any bytes are a valid
    // `T`.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            (value as *mut T).cast(),
            &mut bytes,
        )
    };
    if rc == 0 {
        Ok(bytes as usize)
    } else {
        let code = std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO);
        Err(Errno::from_raw_os_error(code))
    }
}

fn new_socket() -> Result<OwnedFd, SocketError> {
    net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(SocketError::system("socket"))
}

fn address(path: &Path) -> Result<SocketAddrUnix, SocketError> {
    SocketAddrUnix::new(path).map_err(|errno| SocketError::Path {
        path: path.to_owned(),
        reason: match errno {
            Errno::NAMETOOLONG => "it is longer than the 107 bytes that the system allows; set \
                                   'socket' in rgaps.toml or RGAPS_SOCKET to a shorter one"
                .to_owned(),
            other => std::io::Error::from(other).to_string(),
        },
    })
}

/// The daemon's socket in the file system. Dropping it removes the path.
#[derive(Debug)]
pub struct SessionListener {
    fd: OwnedFd,
    path: PathBuf,
    /// Device and inode of our socket's path, so that we remove only our own socket.
    identity: (u64, u64),
    retired: bool,
}

impl AsFd for SessionListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl SessionListener {
    /// Listens at `path`. The path appears atomically, with its mode and ready for connections. Replaces the socket of a dead
    /// daemon: whoever holds the path's lock knows that no daemon listens there. Anything else at the path is an error. The
    /// listener is nonblocking.
    pub fn bind(
        path: &Path,
        mode: u32,
        _lock: &DaemonLock,
    ) -> Result<SessionListener, SocketError> {
        let refuse = |reason: String| SocketError::Path {
            path: path.to_owned(),
            reason,
        };
        match std::fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                return Err(refuse(
                    "it exists and is not a socket; move it away, or set another \
                     'socket' in rgaps.toml"
                        .to_owned(),
                ));
            }
            _ => {}
        }
        // Bind under another name first, so that nobody sees a half-made socket at `path`.
        let mut making = path.as_os_str().to_owned();
        making.push(MAKING_SUFFIX);
        let making = PathBuf::from(making);
        let address = address(&making)?;
        let name = |what: &'static str| {
            let path = path.to_owned();
            move |error: std::io::Error| SocketError::Path {
                path,
                reason: format!("{what}: {error}"),
            }
        };
        match std::fs::remove_file(&making) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(name("removing an old file failed")(error));
            }
            _ => {}
        }
        let fd = new_socket()?;
        net::bind(&fd, &address).map_err(|errno| name("bind")(errno.into()))?;
        std::fs::set_permissions(&making, std::fs::Permissions::from_mode(mode))
            .map_err(name("setting its mode failed"))?;
        // Accepted connections inherit this, until `accept_descriptors` changes it.
        pass_rights(fd.as_fd(), false);
        net::listen(&fd, BACKLOG).map_err(SocketError::system("listen"))?;
        rustix::io::ioctl_fionbio(&fd, true).map_err(SocketError::system("ioctl"))?;
        let made = std::fs::symlink_metadata(&making).map_err(name("it vanished"))?;
        std::fs::rename(&making, path).map_err(name("moving it into place failed"))?;
        let identity = (made.dev(), made.ino());
        Ok(SessionListener {
            fd,
            path: path.to_owned(),
            identity,
            retired: false,
        })
    }

    /// The path it was bound to.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts the next connection, if one waits. Its socket is blocking.
    pub fn accept(&self) -> Result<Option<SessionSocket>, SocketError> {
        match rustix::io::retry_on_intr(|| net::accept_with(&self.fd, SocketFlags::CLOEXEC)) {
            Ok(fd) => Ok(Some(SessionSocket { fd })),
            // CONNABORTED: the client has closed its connection before it was accepted.
            Err(Errno::AGAIN | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(SocketError::system("accept")(errno)),
        }
    }

    /// Whether clients that connect to the path still reach this listener: nobody has removed or replaced the socket.
    pub fn is_reachable(&self) -> bool {
        std::fs::symlink_metadata(&self.path)
            .is_ok_and(|there| (there.dev(), there.ino()) == self.identity)
    }

    /// Removes the path, so that no new clients connect; waiting connections can still be accepted. A daemon that ends calls this
    /// first, and then accepts once more.
    pub fn retire(&mut self) {
        if self.retired {
            return;
        }
        self.retired = true;
        if self.is_reachable() {
            // The path was ours. It does not matter if somebody else has removed it meanwhile.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Drop for SessionListener {
    fn drop(&mut self) {
        self.retire();
    }
}
