//! Errors of the CUDA driver, with advice for users.

use crate::abi::*;
use rgaps_layout::{Domain, GpuUuid};
use rgaps_pool::PoolError;

/// Why a GPU cannot be used, or which call to the driver failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no driver library, or it cannot be loaded.
    #[error(
        "no CUDA driver: loading {library} failed ({reason}); install the NVIDIA driver, or start the \
         container with GPU access"
    )]
    LibraryMissing {
        /// The name or path that the loader looked for.
        library: String,
        /// The loader's message.
        reason: String,
    },
    /// The library is older than this crate needs.
    #[error(
        "the CUDA driver {library} (it supports CUDA {version}) has no {symbol}; \
         update the NVIDIA driver to one for CUDA 11.4 or later"
    )]
    TooOld {
        /// The library.
        library: String,
        /// The first function that it lacks.
        symbol: &'static str,
        /// The CUDA version that it reports to support.
        version: String,
    },
    /// A call of the driver failed.
    #[error("{call} failed: {name} ({code}); {hint}")]
    Call {
        /// The driver function.
        call: &'static str,
        /// CUDA's name of the error.
        name: String,
        /// Its number.
        code: i32,
        /// What to do about it.
        hint: &'static str,
    },
    /// No GPU with this UUID is visible to this process.
    #[error(
        "this process does not see the GPU {uuid} (it sees: {visible}); check CUDA_VISIBLE_DEVICES and the \
         container's devices"
    )]
    NoSuchDevice {
        /// The GPU that was asked for.
        uuid: GpuUuid,
        /// The UUIDs of the visible GPUs, or "none".
        visible: String,
    },
    /// The GPU lacks something that pools need.
    #[error("{uuid} ({name}) cannot hold a pool: it lacks {lack}; use the host domain")]
    Unsupported {
        /// The GPU.
        uuid: GpuUuid,
        /// Its name.
        name: String,
        /// What it lacks.
        lack: &'static str,
    },
    /// Network cards cannot read and write the GPU's memory.
    #[error("{uuid} ({name}): {lack}")]
    NoDirect {
        /// The GPU.
        uuid: GpuUuid,
        /// Its name.
        name: String,
        /// What is lacking.
        lack: &'static str,
    },
    /// The value is not the handle of a stream.
    #[error("0x{0:x} is not a CUDA stream; pass a CUstream, or 0 for the default stream")]
    NotAStream(u64),
    /// The stream is capturing a graph: its work does not run, so no one can wait for it.
    #[error(
        "the stream is capturing a CUDA graph; publish and release outside the capture, \
         or on another stream"
    )]
    Capturing,
    /// The driver lacks a function that pools do not need but the caller does.
    #[error(
        "the CUDA driver (it supports CUDA {version}) has no {call}; update the NVIDIA driver to \
         one for CUDA 12.0 or later"
    )]
    Lacks {
        /// The function.
        call: &'static str,
        /// The CUDA version that the driver reports to support.
        version: String,
    },
    /// The driver has memory operations on streams, but a probe of them failed. Contains the step that failed.
    #[error("stream memory operations do not work here: {0}")]
    MemoryOperations(&'static str),
}

impl CudaError {
    /// Converts to an error of the pool in the memory of `uuid`.
    pub fn into_pool(self, uuid: GpuUuid) -> PoolError {
        match self {
            CudaError::Call {
                call,
                name,
                code,
                hint,
            } => PoolError::Cuda {
                call,
                name,
                code,
                hint: hint.to_owned(),
            },
            CudaError::NotAStream(_) => PoolError::Cuda {
                call: "cuStreamSynchronize",
                name: "CUDA_ERROR_INVALID_HANDLE".to_owned(),
                code: CUDA_ERROR_INVALID_HANDLE,
                hint: self.to_string(),
            },
            CudaError::Capturing => PoolError::Cuda {
                call: "cuStreamSynchronize",
                name: "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED".to_owned(),
                code: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                hint: self.to_string(),
            },
            CudaError::Lacks { call, .. } => PoolError::Cuda {
                call,
                name: "CUDA_ERROR_NOT_SUPPORTED".to_owned(),
                code: CUDA_ERROR_NOT_SUPPORTED,
                hint: self.to_string(),
            },
            other => PoolError::Unavailable {
                domain: Domain::Cuda(uuid),
                reason: other.to_string(),
            },
        }
    }

    /// How MPS failed the process. None: the error does not come from MPS.
    pub fn mps(&self) -> Option<MpsFailure> {
        self.code().and_then(MpsFailure::of)
    }

    /// The driver's error code. None: the error is not that of a call.
    pub fn code(&self) -> Option<i32> {
        match self {
            CudaError::Call { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the error may mean that the stream was destroyed. (A destroyed context has the same code.)
    pub fn is_lost_stream(&self) -> bool {
        self.code() == Some(CUDA_ERROR_CONTEXT_IS_DESTROYED)
    }

    /// Whether the context is lost: every further call in it fails, and only a new process helps.
    pub fn is_lost(&self) -> bool {
        match self {
            // We retained the primary context, so only a reset of the device can have destroyed it.
            CudaError::Call {
                call: "cuCtxPushCurrent",
                code: CUDA_ERROR_INVALID_CONTEXT,
                ..
            } => true,
            CudaError::Call { code, .. } => is_lost_context(*code),
            _ => false,
        }
    }
}

/// How CUDA's Multi-Process Service (MPS) failed a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MpsFailure {
    /// MPS's control daemon or server does not answer this process.
    ConnectionFailed,
    /// The server ended, or the fault of another client ended the contexts of all clients.
    ServerLost,
    /// The server is starting or recovering from a fault, which takes until its earlier clients have ended.
    ServerNotReady,
    /// The server has its maximum of clients.
    TooManyClients,
    /// MPS has no hardware connection to the GPU left.
    TooManyConnections,
    /// An operator ended this process's contexts through MPS (`terminate_client`).
    Terminated,
}

impl MpsFailure {
    /// The failure that a driver's error code stands for. None: the code is not one of MPS.
    pub fn of(code: i32) -> Option<MpsFailure> {
        Some(match code {
            805 => MpsFailure::ConnectionFailed,
            CUDA_ERROR_MPS_RPC_FAILURE => MpsFailure::ServerLost,
            807 => MpsFailure::ServerNotReady,
            808 => MpsFailure::TooManyClients,
            809 => MpsFailure::TooManyConnections,
            CUDA_ERROR_MPS_CLIENT_TERMINATED => MpsFailure::Terminated,
            _ => return None,
        })
    }

    /// What a user can do about it.
    fn hint(self) -> &'static str {
        match self {
            MpsFailure::ConnectionFailed => {
                "MPS does not accept this process: MPS has ended, or serves another user (it serves one at \
                 a time): see 'rgaps doctor', and start the process anew with 'rgaps run'"
            }
            MpsFailure::ServerLost => {
                "the MPS server has ended, or another process's fault ended all its clients' contexts; this \
                 process's CUDA context is lost: restart the process"
            }
            MpsFailure::ServerNotReady => {
                "the MPS server is starting, recovering from a fault until its earlier clients have \
                 ended, or serves another user: try again, and end processes whose context is lost"
            }
            MpsFailure::TooManyClients => {
                "MPS has the most clients that it can have (48 on a GPU, 16 before Volta): end some, or \
                 start this process outside MPS"
            }
            MpsFailure::TooManyConnections => {
                "MPS has no connection to the GPU left: end some clients, or set \
                 CUDA_DEVICE_MAX_CONNECTIONS lower before they start"
            }
            MpsFailure::Terminated => {
                "MPS's control ended this process's CUDA context (terminate_client): restart the \
                 process"
            }
        }
    }
}

/// Whether a driver's error code means that the context is lost: cuda.h says that the error leaves
/// the process in an inconsistent state, or the context has been destroyed.
pub fn is_lost_context(code: i32) -> bool {
    matches!(
        code,
        CUDA_ERROR_ECC_UNCORRECTABLE
            | CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUDA_ERROR_CONTAINED
            | CUDA_ERROR_ILLEGAL_ADDRESS
            | CUDA_ERROR_LAUNCH_TIMEOUT
            | CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUDA_ERROR_ASSERT
            | CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUDA_ERROR_MISALIGNED_ADDRESS
            | CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUDA_ERROR_INVALID_PC
            | CUDA_ERROR_LAUNCH_FAILED
            | CUDA_ERROR_MPS_RPC_FAILURE
            | CUDA_ERROR_MPS_CLIENT_TERMINATED
    )
}

/// What a user can do about an error code.
pub(crate) fn hint(code: CUresult) -> &'static str {
    if let Some(failure) = MpsFailure::of(code) {
        return failure.hint();
    }
    match code {
        CUDA_ERROR_OUT_OF_MEMORY => {
            "the GPU has no free memory; end other processes that use it (nvidia-smi shows them) or lower \
             the pool's cap in rgaps.toml"
        }
        CUDA_ERROR_NO_DEVICE => "no GPU is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES",
        CUDA_ERROR_STUB_LIBRARY => {
            "the library found is the toolkit's stub for linking: remove its folder from \
             LD_LIBRARY_PATH"
        }
        CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
            "library and kernel module are of different versions: reboot, or reload the module"
        }
        CUDA_ERROR_NOT_INITIALIZED | CUDA_ERROR_DEINITIALIZED => {
            "the driver is not usable in this process: after a fork open rgaps anew in a process \
             that was started with exec"
        }
        CUDA_ERROR_NOT_SUPPORTED | CUDA_ERROR_NOT_PERMITTED => {
            "the GPU or its driver's configuration does not allow it ('rgaps doctor' shows what it \
             does)"
        }
        CUDA_ERROR_INVALID_VALUE => "a handle, address or size was refused by the driver",
        CUDA_ERROR_INVALID_HANDLE => "the stream or handle does not exist (any more)",
        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => {
            "a stream is capturing a CUDA graph: use a stream of its own outside the capture"
        }
        code if is_lost_context(code) => {
            "this process's CUDA context is lost (an earlier kernel failed, under MPS perhaps another \
             process's): restart the process"
        }
        _ => "see the CUDA driver's documentation of this code",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_mps_s_errors_says_what_to_do() {
        let failures: Vec<_> = (805..=810).map(MpsFailure::of).collect();
        assert!(failures.iter().all(Option::is_some));
        for (number, code) in (805..=810).enumerate() {
            let hint = hint(code);
            assert!(hint.contains("MPS"), "{code}: {hint}");
            assert!(!failures[..number].contains(&failures[number]));
            let call = "cuCtxCreate";
            let name = String::new();
            let error = CudaError::Call {
                call,
                name,
                code,
                hint,
            };
            assert_eq!(error.mps(), failures[number]);
        }
        assert_eq!((MpsFailure::of(804), MpsFailure::of(811)), (None, None));
        assert_eq!(CudaError::Capturing.mps(), None);
    }
}
