//! The numbers of CUDA's errors, which driver and runtime share.

/// What a call of CUDA returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code(pub i32);

#[allow(missing_docs, reason = "they are CUDA's")]
impl Code {
    pub const SUCCESS: Code = Code(0);
    pub const INVALID_VALUE: Code = Code(1);
    pub const OUT_OF_MEMORY: Code = Code(2);
    pub const INITIALIZATION: Code = Code(3);
    pub const INVALID_CONFIGURATION: Code = Code(9);
    pub const INVALID_PITCH: Code = Code(12);
    pub const INVALID_SYMBOL: Code = Code(13);
    pub const INVALID_CHANNEL_DESCRIPTOR: Code = Code(20);
    pub const INVALID_MEMCPY_DIRECTION: Code = Code(21);
    pub const DEVICES_UNAVAILABLE: Code = Code(46);
    pub const INVALID_DEVICE_FUNCTION: Code = Code(98);
    pub const NO_DEVICE: Code = Code(100);
    pub const INVALID_DEVICE: Code = Code(101);
    pub const INVALID_IMAGE: Code = Code(200);
    pub const PEER_ACCESS_UNSUPPORTED: Code = Code(217);
    pub const INVALID_HANDLE: Code = Code(400);
    pub const NOT_FOUND: Code = Code(500);
    pub const NOT_READY: Code = Code(600);
    pub const OUT_OF_RESOURCES: Code = Code(701);
    pub const PEER_ACCESS_NOT_ENABLED: Code = Code(705);
    pub const HOST_MEMORY_ALREADY_REGISTERED: Code = Code(712);
    pub const HOST_MEMORY_NOT_REGISTERED: Code = Code(713);
    pub const NOT_PERMITTED: Code = Code(800);
    pub const NOT_SUPPORTED: Code = Code(801);
    pub const SYSTEM_NOT_READY: Code = Code(802);
    pub const STREAM_CAPTURE_UNSUPPORTED: Code = Code(900);
    pub const TIMEOUT: Code = Code(909);
    pub const GRAPH_EXEC_UPDATE_FAILURE: Code = Code(910);
    pub const UNKNOWN: Code = Code(999);

    /// The code as a result.
    pub fn check(self) -> Result<(), Code> {
        match self {
            Code::SUCCESS => Ok(()),
            code => Err(code),
        }
    }

    /// Whether the context is lost: each further call fails the same way.
    pub fn is_sticky(self) -> bool {
        rgaps_cuda::is_lost_context(self.0)
    }
}
