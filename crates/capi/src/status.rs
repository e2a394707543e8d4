//! Status codes, and the code of each error of the Rust library.

use rgaps_pool::PoolError;
use rgaps_rs::{ClientError, HeaderError, LoanError, OpenError, PublishError, RecvError};
use rgaps_session::{LaunchError, Refusal, RefusalCode};
use std::ffi::{c_char, c_void, CStr};

/// `rgaps_status_t`: `RGAPS_OK`, or the negative number of a [`Code`].
pub type rgaps_status_t = i32;

/// `rgaps_stream_t`: a `CUstream`.
pub type rgaps_stream_t = *mut c_void;

/// Declares the codes with their names in C.
macro_rules! codes {
    ($( $code:ident = $number:literal, $name:literal; )*) => {
        /// Why a function failed; `rgaps.h` explains each code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        pub(crate) enum Code {
            $( $code = $number, )*
        }

        const NAMES: &[(rgaps_status_t, &CStr)] = &[(RGAPS_OK, c"RGAPS_OK"), $( ($number, $name), )*];
    };
}

/// Success.
pub(crate) const RGAPS_OK: rgaps_status_t = 0;

codes! {
    Argument = -1, c"RGAPS_ERROR_ARGUMENT";
    TimedOut = -2, c"RGAPS_ERROR_TIMED_OUT";
    Empty = -3, c"RGAPS_ERROR_EMPTY";
    TooLarge = -4, c"RGAPS_ERROR_TOO_LARGE";
    PoolFull = -5, c"RGAPS_ERROR_POOL_FULL";
    TooManyLoans = -6, c"RGAPS_ERROR_TOO_MANY_LOANS";
    TooManyHeld = -7, c"RGAPS_ERROR_TOO_MANY_HELD";
    BackPressured = -8, c"RGAPS_ERROR_BACK_PRESSURED";
    NotHeld = -9, c"RGAPS_ERROR_NOT_HELD";
    NoTensor = -10, c"RGAPS_ERROR_NO_TENSOR";
    Busy = -11, c"RGAPS_ERROR_BUSY";
    NoDaemon = -12, c"RGAPS_ERROR_NO_DAEMON";
    DaemonLost = -13, c"RGAPS_ERROR_DAEMON_LOST";
    Permission = -14, c"RGAPS_ERROR_PERMISSION";
    TypeMismatch = -15, c"RGAPS_ERROR_TYPE_MISMATCH";
    DomainMismatch = -16, c"RGAPS_ERROR_DOMAIN_MISMATCH";
    DomainUnavailable = -17, c"RGAPS_ERROR_DOMAIN_UNAVAILABLE";
    Limit = -19, c"RGAPS_ERROR_LIMIT";
    NotFound = -20, c"RGAPS_ERROR_NOT_FOUND";
    Version = -21, c"RGAPS_ERROR_VERSION";
    Forked = -22, c"RGAPS_ERROR_FORKED";
    Protocol = -23, c"RGAPS_ERROR_PROTOCOL";
    System = -24, c"RGAPS_ERROR_SYSTEM";
    Cuda = -25, c"RGAPS_ERROR_CUDA";
    Internal = -26, c"RGAPS_ERROR_INTERNAL";
    Aborted = -27, c"RGAPS_ERROR_ABORTED";
    Unfinished = -28, c"RGAPS_ERROR_UNFINISHED";
    PathTooSlow = -29, c"RGAPS_ERROR_PATH_TOO_SLOW";
}

#[cfg(test)]
pub(crate) fn names() -> impl Iterator<Item = (i64, &'static str)> {
    NAMES
        .iter()
        .map(|(number, name)| (i64::from(*number), name.to_str().expect("names are ASCII")))
}

/// The name of a code; `RGAPS_ERROR_?` for an unknown one.
#[no_mangle]
pub extern "C" fn rgaps_status_name(status: rgaps_status_t) -> *const c_char {
    let known = NAMES.iter().find(|(number, _)| *number == status);
    known.map_or(c"RGAPS_ERROR_?", |(_, name)| name).as_ptr()
}

/// The code that a failed function returns, and its error message.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) message: String,
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Failure {
        let message = message.into();
        Failure { code, message }
    }

    pub(crate) fn argument(message: impl Into<String>) -> Failure {
        Failure::new(Code::Argument, message)
    }
}

/// Errors that have a code.
pub(crate) trait Coded: std::fmt::Display {
    fn code(&self) -> Code;
}

impl<E: Coded> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::new(error.code(), error.to_string())
    }
}

// The error enums are non-exhaustive. A variant that has no code here gets a general one; its message says what happened.

impl Coded for PoolError {
    fn code(&self) -> Code {
        match self {
            PoolError::System { .. } => Code::System,
            PoolError::Cuda { .. } => Code::Cuda,
            PoolError::Unavailable { .. } => Code::DomainUnavailable,
            PoolError::Untrusted(_) => Code::Protocol,
            PoolError::OutOfRange { .. } | PoolError::ReadOnly | PoolError::BadSize { .. } => {
                Code::Argument
            }
            PoolError::CapReached { .. } => Code::PoolFull,
            _ => Code::System,
        }
    }
}

impl Coded for LaunchError {
    fn code(&self) -> Code {
        match self {
            LaunchError::Config(_) => Code::Argument,
            LaunchError::NotPermitted { .. } => Code::Permission,
            _ => Code::NoDaemon,
        }
    }
}

impl Coded for Refusal {
    fn code(&self) -> Code {
        match self.code {
            RefusalCode::NotPermitted => Code::Permission,
            RefusalCode::DomainMismatch => Code::DomainMismatch,
            RefusalCode::PathTooSlow => Code::PathTooSlow,
            RefusalCode::LimitReached => Code::Limit,
            RefusalCode::PoolFull => Code::PoolFull,
            RefusalCode::DomainUnavailable => Code::DomainUnavailable,
            RefusalCode::VersionMismatch => Code::Version,
            RefusalCode::NotFound => Code::NotFound,
            RefusalCode::BadRequest => Code::Argument,
            RefusalCode::ZoneLost | RefusalCode::Recovering => Code::DaemonLost,
            RefusalCode::Internal => Code::System,
        }
    }
}

impl Coded for ClientError {
    fn code(&self) -> Code {
        match self {
            ClientError::Launch(error) => error.code(),
            ClientError::Refused(refusal) => refusal.code(),
            ClientError::DaemonLost { .. }
            | ClientError::Stopped
            | ClientError::NoAnswer { .. }
            | ClientError::ZoneLost { .. }
            | ClientError::Closed => Code::DaemonLost,
            ClientError::Pool(error) => error.code(),
            ClientError::Protocol(_) => Code::Protocol,
            ClientError::Argument(_) => Code::Argument,
            ClientError::Forked => Code::Forked,
            _ => Code::System,
        }
    }
}

impl Coded for OpenError {
    fn code(&self) -> Code {
        match self {
            OpenError::Client(error) => error.code(),
            OpenError::Argument(_) => Code::Argument,
            OpenError::Device(error) => error.code(),
            _ => Code::System,
        }
    }
}

impl Coded for LoanError {
    fn code(&self) -> Code {
        match self {
            LoanError::PoolFull { .. } => Code::PoolFull,
            LoanError::TooLarge { .. } => Code::TooLarge,
            LoanError::NoBlocks { .. } | LoanError::TooManyLoans { .. } => Code::TooManyLoans,
            LoanError::Client(error) => error.code(),
            LoanError::Pool(error) => error.code(),
            LoanError::Attachment { .. } | LoanError::Parts(_) => Code::Argument,
            LoanError::Header(error) => error.code(),
            LoanError::Argument(_) => Code::Argument,
            _ => Code::System,
        }
    }
}

impl Coded for HeaderError {
    fn code(&self) -> Code {
        match self {
            HeaderError::Malformed { .. } => Code::Protocol,
            _ => Code::Argument,
        }
    }
}

impl Coded for PublishError {
    fn code(&self) -> Code {
        match self {
            PublishError::BackPressured { .. } => Code::BackPressured,
            PublishError::LoanLost(_) => Code::Protocol,
            PublishError::TypeMismatch { .. } => Code::TypeMismatch,
            PublishError::Argument(_) => Code::Argument,
            PublishError::Pool(error) => error.code(),
            PublishError::Client(error) => error.code(),
            _ => Code::System,
        }
    }
}

impl Coded for RecvError {
    fn code(&self) -> Code {
        match self {
            RecvError::TimedOut(_) => Code::TimedOut,
            RecvError::TooManyHeld { .. } => Code::TooManyHeld,
            RecvError::Untrusted { .. } => Code::Protocol,
            RecvError::Aborted { .. } => Code::Aborted,
            RecvError::Unfinished { .. } => Code::Unfinished,
            RecvError::NotOnHost { .. } => Code::Argument,
            RecvError::Parts { .. } => Code::NotFound,
            RecvError::Client(error) => error.code(),
            RecvError::Pool(error) => error.code(),
            _ => Code::System,
        }
    }
}
