/// Why a lane between hosts ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneEnd {
    /// This host closed it: the link ended, or the other host restarted.
    Closed,
    /// A lane over RDMA took its place.
    Replaced,
    /// Its connection ended, or nothing arrived for too long.
    Connection,
    /// The other host violated the protocol and was disconnected.
    ProtocolViolation,
    /// RDMA: a work request failed.
    Completion,
    /// RDMA: the card reported a fault.
    Event,
    /// RDMA: a call of the library failed.
    Call,
}

impl LaneEnd {
    /// All reasons, in the order in which the links report their counts to the daemon.
    pub const ALL: [LaneEnd; 7] = [
        LaneEnd::Closed,
        LaneEnd::Replaced,
        LaneEnd::Connection,
        LaneEnd::ProtocolViolation,
        LaneEnd::Completion,
        LaneEnd::Event,
        LaneEnd::Call,
    ];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            LaneEnd::Closed => "closed",
            LaneEnd::Replaced => "replaced",
            LaneEnd::Connection => "connection",
            LaneEnd::ProtocolViolation => "violation",
            LaneEnd::Completion => "completion",
            LaneEnd::Event => "event",
            LaneEnd::Call => "call",
        }
    }
}
