//! The statuses with which works end, and the events of a device that end a channel.

use std::fmt;

macro_rules! statuses {
    ($($code:literal $name:ident $verbs:literal $meaning:literal;)*) => {
        /// How a work request ended: `enum ibv_wc_status`, all of it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Status {
            $(#[doc = $meaning] $name,)*
            /// A code that has no name here.
            Other(u32),
        }

        impl Status {
            /// All statuses that have names.
            pub const ALL: &'static [Status] = &[$(Status::$name,)*];

            /// From verbs' code.
            pub fn from_code(code: u32) -> Self {
                match code {
                    $($code => Self::$name,)*
                    other => Self::Other(other),
                }
            }

            /// Verbs' code.
            pub fn code(self) -> u32 {
                match self {
                    $(Self::$name => $code,)*
                    Self::Other(code) => code,
                }
            }

            /// Verbs' name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $verbs,)*
                    Self::Other(_) => "a status without a name",
                }
            }

            /// What it means.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $meaning,)*
                    Self::Other(_) => "not known to this program",
                }
            }
        }
    };
}

statuses! {
    0 Success "IBV_WC_SUCCESS" "done";
    1 LocalLength "IBV_WC_LOC_LEN_ERR" "more bytes than the local buffers or the device take";
    2 LocalQueuePair "IBV_WC_LOC_QP_OP_ERR" "the queue pair is broken on this side";
    3 LocalEndToEnd "IBV_WC_LOC_EEC_OP_ERR" "the end-to-end context is broken on this side";
    4 LocalProtection "IBV_WC_LOC_PROT_ERR" "local memory that is not registered for this";
    5 Flushed "IBV_WC_WR_FLUSH_ERR" "flushed: the queue pair had failed before";
    6 MemoryWindow "IBV_WC_MW_BIND_ERR" "a memory window could not be bound";
    7 BadResponse "IBV_WC_BAD_RESP_ERR" "the peer answered something unexpected";
    8 LocalAccess "IBV_WC_LOC_ACCESS_ERR" "the peer wrote to local memory that it may not write";
    9 RemoteInvalidRequest "IBV_WC_REM_INV_REQ_ERR" "the peer's device refused the request as invalid";
    10 RemoteAccess "IBV_WC_REM_ACCESS_ERR" "this side may not write that memory of the peer, or not any more";
    11 RemoteOperation "IBV_WC_REM_OP_ERR" "the peer's device failed";
    12 RetryExceeded "IBV_WC_RETRY_EXC_ERR" "the peer's device does not answer: its link or its process is gone";
    13 ReceiverNotReady "IBV_WC_RNR_RETRY_EXC_ERR" "the peer has posted no receive for it";
    14 LocalDomain "IBV_WC_LOC_RDD_VIOL_ERR" "the reliable datagram domains differ";
    15 RemoteInvalidDatagram "IBV_WC_REM_INV_RD_REQ_ERR" "an invalid reliable datagram";
    16 RemoteAborted "IBV_WC_REM_ABORT_ERR" "the peer aborted it";
    17 EndToEndNumber "IBV_WC_INV_EECN_ERR" "an end-to-end context that does not exist";
    18 EndToEndState "IBV_WC_INV_EEC_STATE_ERR" "the end-to-end context is in no state for it";
    19 Fatal "IBV_WC_FATAL_ERR" "the device has failed";
    20 ResponseTimeout "IBV_WC_RESP_TIMEOUT_ERR" "no answer in time";
    21 General "IBV_WC_GENERAL_ERR" "the device has failed in an unnamed way";
    22 TagMatching "IBV_WC_TM_ERR" "tag matching failed";
    23 TagIncomplete "IBV_WC_TM_RNDV_INCOMPLETE" "tag matching is not complete";
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.name(), self.code(), self.meaning())
    }
}

/// The asynchronous events of a device (`enum ibv_event_type`) that end a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// The completion queue is broken.
    CompletionQueue,
    /// A queue pair is broken.
    QueuePair,
    /// The peer sent a request that this queue pair cannot take.
    QueuePairRequest,
    /// The peer wrote where it may not.
    QueuePairAccess,
    /// A port has no link.
    PortDown,
    /// The device is gone or has failed.
    DeviceFatal,
    /// The port's address changed or disappeared.
    AddressChanged,
}

impl fmt::Display for DeviceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CompletionQueue => "IBV_EVENT_CQ_ERR: the completion queue is broken",
            Self::QueuePair => "IBV_EVENT_QP_FATAL: the queue pair is broken",
            Self::QueuePairRequest => {
                "IBV_EVENT_QP_REQ_ERR: the peer sent what the queue pair cannot take"
            }
            Self::QueuePairAccess => "IBV_EVENT_QP_ACCESS_ERR: the peer wrote where it may not",
            Self::PortDown => "IBV_EVENT_PORT_ERR: the port has no link",
            Self::DeviceFatal => "IBV_EVENT_DEVICE_FATAL: the device failed or was removed",
            Self::AddressChanged => "IBV_EVENT_GID_CHANGE: the port's address changed",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_statuses_are_one_to_one() {
        for (code, status) in (0u32..).zip(Status::ALL) {
            assert_eq!((Status::from_code(code), status.code()), (*status, code));
        }
        assert_eq!(Status::ALL.len(), 24);
        assert_eq!(Status::from_code(24).code(), 24);
    }
}
