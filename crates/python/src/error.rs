//! Converts Rust's errors to Python's exceptions, which `rgaps/_errors.py` defines.

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyType;
use rgaps::{ClientError, HeaderError, LoanError, OpenError, PublishError, RecvError, SlowReader};
use rgaps_cuda::CudaError;
use rgaps_layout::MAX_HELD;
use rgaps_session::{ConfigError, LaunchError, RefusalCode};
use std::time::Duration;

/// The exception of that name with that message.
pub(crate) fn raise(name: &'static str, message: String) -> PyErr {
    Python::attach(|py| match class(py, name) {
        Ok(class) => PyErr::from_type(class, message),
        Err(error) => error,
    })
}

fn class<'py>(py: Python<'py>, name: &'static str) -> PyResult<Bound<'py, PyType>> {
    let found = py.import("rgaps._errors")?.getattr(name)?;
    Ok(found.cast_into::<PyType>()?)
}

/// Whether our code may handle an exception that Python code raised: only an `Exception`. Others, such as `KeyboardInterrupt`,
/// always reach the user.
pub(crate) fn is_answerable(error: &PyErr) -> bool {
    Python::attach(|py| error.is_instance_of::<PyException>(py))
}

/// The value that Python code returned, or None if it raised an `Exception`. Fails with other exceptions.
pub(crate) fn unless_raised<T>(outcome: Result<T, impl Into<PyErr>>) -> PyResult<Option<T>> {
    match outcome.map_err(Into::into) {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_answerable(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Issues a warning of the category of that name, at the user's line. Fails if the user makes warnings errors.
pub(crate) fn warn(py: Python<'_>, category: &'static str, message: &str) -> PyResult<()> {
    let category = class(py, category)?;
    let place = py.import("rgaps._place")?;
    place.call_method1("warn", (category, message))?;
    Ok(())
}

/// The error `Closed`. `what` is the kind of the handle.
pub(crate) fn closed(what: &str) -> PyErr {
    let text = match what {
        "loan" => "the loan is closed: it was published or discarded before; take a new one with publisher.loan()",
        "sample" => {
            "the sample is closed: it was released before; read it earlier, or keep a copy (sample.tobytes(), or \
             array.copy())"
        }
        "node" => "the node is closed; create another one with rgaps.Node()",
        "publisher" => "the publisher is closed; create another one with node.publisher() or rgaps.publisher()",
        _ => "the subscriber is closed; create another one with node.subscriber() or rgaps.subscriber()",
    };
    raise("Closed", text.to_owned())
}

pub(crate) fn invalid(message: impl Into<String>) -> PyErr {
    raise("InvalidArgument", message.into())
}

/// Advice in the texts of Rust and the daemon, and its translation to arguments of Python.
const IN_PYTHON: [(&str, &str); 6] = [
    (
        "publish transient-local, or subscribe volatile",
        "publish with transient_local=True, or subscribe without late=",
    ),
    (
        "publish reliably, or subscribe with best effort",
        "publish with reliable=True, or subscribe with reliable=False",
    ),
    (
        "publish with that type, or subscribe with the publisher's or with none",
        "give the publisher that type (type=, or dtype= and shape=), or the subscriber the publisher's or none",
    ),
    (
        "subscribe with a depth or best effort",
        "subscribe with depth=n or reliable=False",
    ),
    ("slow_reader=drop", "slow_reader=\"drop\""),
    ("request less", "lower history or max_loans"),
];

/// A text of Rust or the daemon, with its advice translated to Python.
pub(crate) fn in_python(text: String) -> String {
    IN_PYTHON
        .iter()
        .fold(text, |text, (rust, python)| text.replace(rust, python))
}

/// Converts an error to an exception of `rgaps._errors`.
pub(crate) trait IntoPyErr {
    fn into_py_err(self) -> PyErr;
}

impl IntoPyErr for ClientError {
    fn into_py_err(self) -> PyErr {
        let message = in_python(self.to_string());
        let name = match self {
            ClientError::Launch(LaunchError::NotPermitted { .. }) => "NotPermitted",
            ClientError::Launch(LaunchError::Config(_)) => "ConfigError",
            ClientError::Launch(_)
            | ClientError::DaemonLost { .. }
            | ClientError::Stopped
            | ClientError::NoAnswer { .. } => "DaemonUnavailable",
            ClientError::Refused(refusal) => refused(refusal.code),
            ClientError::ZoneLost { .. } => "ZoneLost",
            ClientError::Pool(_) | ClientError::System { .. } => "SystemFailure",
            ClientError::Forked => "Forked",
            ClientError::Closed => return closed("node"),
            ClientError::Argument(_) => "InvalidArgument",
            _ => "Error",
        };
        raise(name, message)
    }
}

fn refused(code: RefusalCode) -> &'static str {
    match code {
        RefusalCode::NotPermitted => "NotPermitted",
        RefusalCode::DomainMismatch => "DomainMismatch",
        RefusalCode::PathTooSlow => "PathTooSlow",
        RefusalCode::LimitReached => "LimitReached",
        RefusalCode::PoolFull => "PoolFull",
        RefusalCode::DomainUnavailable => "DomainUnavailable",
        RefusalCode::VersionMismatch => "VersionMismatch",
        RefusalCode::NotFound => "NotFound",
        RefusalCode::BadRequest => "InvalidArgument",
        RefusalCode::ZoneLost => "ZoneLost",
        RefusalCode::Recovering | RefusalCode::Internal => "DaemonUnavailable",
    }
}

impl IntoPyErr for OpenError {
    fn into_py_err(self) -> PyErr {
        match self {
            OpenError::Client(error) => error.into_py_err(),
            OpenError::Argument(message) => invalid(message),
            OpenError::Device(error) => error.into_py_err(),
            other => raise("Error", other.to_string()),
        }
    }
}

impl IntoPyErr for LoanError {
    fn into_py_err(self) -> PyErr {
        let message = match &self {
            LoanError::TooManyLoans { topic, limit } => format!(
                "{limit} loans are open on topic '{topic}', which is the limit; publish or discard one, or raise max_loans"
            ),
            other => other.to_string(),
        };
        let name = match self {
            LoanError::Client(error) => return error.into_py_err(),
            LoanError::PoolFull { .. } => "PoolFull",
            LoanError::TooLarge { .. } => "TooLarge",
            LoanError::NoBlocks { .. } => "NoBlocks",
            LoanError::TooManyLoans { .. } => "TooManyLoans",
            LoanError::Pool(_) => "SystemFailure",
            LoanError::Argument(_) | LoanError::Header(_) | LoanError::Parts(_) => {
                "InvalidArgument"
            }
            LoanError::Attachment { .. } => "InvalidArgument",
            _ => "Error",
        };
        raise(name, message)
    }
}

impl IntoPyErr for HeaderError {
    fn into_py_err(self) -> PyErr {
        let message = self.to_string();
        match self {
            HeaderError::Malformed { .. } => raise("Untrusted", message),
            _ => invalid(message),
        }
    }
}

/// The error `BackPressured`, with the names of the slow subscribers and how long the publish waited.
fn back_pressured(message: String, readers: Vec<SlowReader>, waited: Duration) -> PyErr {
    let error = raise("BackPressured", message);
    let names = readers
        .into_iter()
        .map(|reader| (reader.client, reader.pid));
    let names: Vec<(String, u32)> = names.collect();
    Python::attach(|py| {
        let value = error.value(py);
        let set = value.setattr("subscribers", names);
        set.and_then(|()| value.setattr("waited", waited.as_secs_f64()))
    })
    .map_or_else(|failed| failed, |()| error)
}

impl IntoPyErr for PublishError {
    fn into_py_err(self) -> PyErr {
        let message = in_python(self.to_string());
        let name = match self {
            PublishError::BackPressured {
                readers, waited, ..
            } => return back_pressured(message, readers, waited),
            PublishError::Client(error) => return error.into_py_err(),
            PublishError::Replica(error) if matches!(*error, LoanError::PoolFull { .. }) => {
                "PoolFull"
            }
            PublishError::LoanLost(_) => "LoanLost",
            PublishError::TypeMismatch { .. } => "TypeMismatch",
            PublishError::Argument(_) => "InvalidArgument",
            PublishError::Pool(_) => "SystemFailure",
            _ => "Error",
        };
        raise(name, message)
    }
}

impl IntoPyErr for RecvError {
    fn into_py_err(self) -> PyErr {
        let message = match &self {
            RecvError::TooManyHeld { topic, limit } => format!(
                "{limit} samples of topic '{topic}' are held, which is the limit; release some (sample.release(), or delete \
                 them and all arrays over them), copy what you keep, or raise max_held (at most {MAX_HELD})"
            ),
            RecvError::Aborted { topic, sequence } => format!(
                "message {sequence} on topic '{topic}' is aborted: its publisher died or lost its GPU context before the \
                 message was complete; release the sample and receive the next one"
            ),
            RecvError::NotOnHost {
                topic,
                sequence,
                domain,
            } => format!(
                "message {sequence} on topic '{topic}' is in {domain}, so it has no host bytes; use sample.torch(), or \
                 sample.tobytes() for a copy"
            ),
            other => other.to_string(),
        };
        let name = match self {
            RecvError::Client(error) => return error.into_py_err(),
            RecvError::TimedOut(_) => "TimedOut",
            RecvError::TooManyHeld { .. } => "TooManyHeld",
            RecvError::Untrusted { .. } => "Untrusted",
            RecvError::Aborted { .. } => "Aborted",
            RecvError::Unfinished { .. } => "TimedOut",
            RecvError::NotOnHost { .. } => "InvalidArgument",
            RecvError::Pool(_) => "SystemFailure",
            _ => "Error",
        };
        raise(name, message)
    }
}

impl IntoPyErr for CudaError {
    fn into_py_err(self) -> PyErr {
        raise("DomainUnavailable", self.to_string())
    }
}

impl IntoPyErr for ConfigError {
    fn into_py_err(self) -> PyErr {
        raise("ConfigError", self.to_string())
    }
}
