//! What goes wrong, and what to do about it.

use rustix::io::Errno;
use std::io;

/// A call of the module failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device cannot be opened.
    #[error("open({device}) failed: {source}; {hint}")]
    Open {
        /// Its path.
        device: &'static str,
        /// Why.
        source: io::Error,
        /// What to do about it.
        hint: &'static str,
    },
    /// The loaded module is of another version, or lacks something.
    #[error("{device} {found}, but this program needs {needed}; build and load the module that belongs to it (make kernel)")]
    Version {
        /// Its path.
        device: &'static str,
        /// What it has.
        found: String,
        /// What is needed.
        needed: String,
    },
    /// The module refused a call.
    #[error("{call} failed: {source}; {hint}")]
    Call {
        /// Its name in the module's header.
        call: &'static str,
        /// Why.
        source: io::Error,
        /// What to do about it.
        hint: &'static str,
    },
}

impl Error {
    /// The system's number of the error, if it is one of the system's.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Open { source, .. } | Error::Call { source, .. } => source.raw_os_error(),
            Error::Version { .. } => None,
        }
    }

    pub(crate) fn open(device: &'static str, error: Errno) -> Error {
        let hint = match error {
            Errno::NOENT | Errno::NXIO | Errno::NODEV => {
                "load the module (make kernel, then insmod; docs/how-to/dmaplane.md), in a container also pass the device"
            }
            Errno::ACCESS | Errno::PERM => {
                "let this user read and write it: a udev rule gives it to a group (docs/how-to/dmaplane.md)"
            }
            _ => "see the kernel's log",
        };
        Error::Open {
            device,
            source: error.into(),
            hint,
        }
    }

    pub(crate) fn call(call: &'static str, error: Errno) -> Error {
        let hint = match error {
            Errno::NOMEM => "free memory (of the node that was asked for, or huge pages), or raise the limit of this cgroup",
            Errno::DQUOT => "the limit of this user or realm is reached: free some, or raise user_mib_max in /sys/module/dmaplane/parameters",
            Errno::NOSPC => "the module has no more of these; free some",
            Errno::NODEV => "the device or its memory is gone, or the module was built without it",
            Errno::NOTCONN => "it needs an RDMA context: name a device (rdma link)",
            Errno::BUSY => "it is in use",
            Errno::NOENT => "there is no such thing in this open file",
            Errno::NOTTY => "the loaded module does not know this call; load a newer one",
            Errno::PERM => "it takes a capability, or is another realm's (docs/how-to/dmaplane.md#permissions-and-limits)",
            _ => "the kernel's log says why, and docs/how-to/dmaplane.md lists what each call refuses",
        };
        Error::Call {
            call,
            source: error.into(),
            hint,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_to_do() {
        let said = Error::open("/dev/dmaplane", Errno::NOENT);
        assert!(said.to_string().contains("insmod"), "{said}");
        assert_eq!(said.errno(), Some(Errno::NOENT.raw_os_error()));
        let said = Error::call("ALLOC", Errno::DQUOT);
        assert!(said.to_string().contains("user_mib_max"), "{said}");
    }
}
