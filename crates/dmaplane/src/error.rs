//! Errors of the module's calls, with hints on what to do.

use rustix::io::Errno;
use std::io;

/// A call of the module failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device cannot be opened.
    #[error("open({device}) failed: {source}; {hint}")]
    Open {
        /// The device's path.
        device: &'static str,
        /// The system's error.
        source: io::Error,
        /// What to do about it.
        hint: &'static str,
    },
    /// The loaded module is of another version, or lacks something.
    #[error("{device} {found}, but this program needs {needed}; build and load the module that belongs to it (make kernel)")]
    Version {
        /// The device's path.
        device: &'static str,
        /// The version and features of the module.
        found: String,
        /// The version and features that are needed.
        needed: String,
    },
    /// The module refused a call.
    #[error("{call} failed: {source}; {hint}")]
    Call {
        /// The call's name in the module's header.
        call: &'static str,
        /// The system's error.
        source: io::Error,
        /// What to do about it.
        hint: &'static str,
    },
}

impl Error {
    /// The number of the system's error; `None` for [`Error::Version`].
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
            Errno::NOSPC => "the module's table of such objects is full; free some",
            Errno::NODEV => "the device or its memory is gone, or the module was built without support for it",
            Errno::NOTCONN => "it needs an RDMA context: name a device (rdma link)",
            Errno::BUSY => "the object is in use",
            Errno::NOENT => "this open file has no object with this handle",
            Errno::NOTTY => "the loaded module does not know this call; load a newer one",
            Errno::PERM => "the call needs a capability, or the memory belongs to another realm (docs/how-to/dmaplane.md#permissions-and-limits)",
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
