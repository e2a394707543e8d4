//! Domains: the memory that holds a message's bytes.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A GPU's UUID as `cuDeviceGetUuid_v2` gives it (a MIG instance has one of its own).
///
/// Shown as `GPU-8-4-4-4-12`, the form that `nvidia-smi -L` prints.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GpuUuid(pub [u8; 16]);

/// The memory that holds a message's bytes: host memory, or the memory of one GPU.
///
/// Written `host` or `cuda:GPU-<uuid>`; never an ordinal, which differs between processes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Domain {
    /// Shared host memory.
    Host,
    /// The memory of the GPU with this UUID.
    Cuda(GpuUuid),
}

/// The text is neither `host` nor `cuda:GPU-<uuid>`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a domain; write 'host' or 'cuda:GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx' (see 'rgaps doctor')")]
pub struct DomainParseError(pub String);

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU-")?;
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Domain::Host => f.write_str("host"),
            Domain::Cuda(uuid) => write!(f, "cuda:{uuid}"),
        }
    }
}

impl FromStr for GpuUuid {
    type Err = DomainParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || DomainParseError(text.to_owned());
        let body = text
            .strip_prefix("GPU-")
            .or_else(|| text.strip_prefix("MIG-"))
            .unwrap_or(text);
        let digits: Vec<u8> = body.bytes().filter(|b| *b != b'-').collect();
        if digits.len() != 32 || body.len() > 36 {
            return Err(bad());
        }
        let mut bytes = [0u8; 16];
        for (out, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let high = (pair[0] as char).to_digit(16).ok_or_else(bad)?;
            let low = (pair[1] as char).to_digit(16).ok_or_else(bad)?;
            *out = (high * 16 + low) as u8;
        }
        Ok(GpuUuid(bytes))
    }
}

impl FromStr for Domain {
    type Err = DomainParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("cuda:") {
            Some(uuid) => Ok(Domain::Cuda(
                uuid.parse()
                    .map_err(|_| DomainParseError(text.to_owned()))?,
            )),
            None if text == "host" => Ok(Domain::Host),
            None => Err(DomainParseError(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_survives_text() {
        let uuid = GpuUuid([0xab, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xff]);
        for domain in [Domain::Host, Domain::Cuda(uuid)] {
            assert_eq!(domain.to_string().parse::<Domain>(), Ok(domain));
        }
        for wrong in ["", "Host", "cuda:0", "cuda:GPU-12", "cuda", "gpu"] {
            assert!(wrong.parse::<Domain>().is_err(), "{wrong}");
        }
    }
}
