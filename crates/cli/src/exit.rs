//! Exit codes. `rgaps --help` lists them.

use crate::output::OutputClosed;
use rgaps::{ClientError, LoanError, OpenError, PublishError, PutError, RecvError};
use rgaps_recording::{RecordError, ReplayError};
use rgaps_session::{ConfigError, LaunchError, RefusalCode, SocketError};
use rgaps_view::ViewError;
use std::io::ErrorKind;
use std::process::ExitCode;

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const NO_DAEMON: u8 = 3;
const NO_SUCH_TOPIC: u8 = 4;
const NOT_IN_TIME: u8 = 5;
const REFUSED: u8 = 6;

/// A timeout passed: no message, subscriber or memory came in time.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotInTime(pub String);

/// A subscriber was there but does not match the publisher, so it read nothing.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unmatched(pub String);

/// The name stands for no topic.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoSuchTopic(pub String);

/// No daemon answers a command that starts none.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoDaemon(pub String);

/// The arguments are well-formed but make no sense together or here.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Prints the error, if any, and turns the result into the exit code.
pub fn code(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    if error.is::<OutputClosed>() {
        // The reader has what it wants, as in `rgaps topic echo x | head -1`.
        return ExitCode::SUCCESS;
    }
    rgaps_session::print_error(format_args!(
        "rgaps: {}",
        rgaps_session::explain(error.as_ref())
    ));
    ExitCode::from(number(&error))
}

fn number(error: &anyhow::Error) -> u8 {
    let is_view_usage = matches!(
        error.downcast_ref(),
        Some(ViewError::NoToken { .. } | ViewError::ShortToken)
    );
    if is_view_usage || error.is::<Usage>() || error.is::<ConfigError>() {
        return USAGE;
    }
    if error.is::<NotInTime>() {
        return NOT_IN_TIME;
    }
    let no_topic = matches!(error.downcast_ref(), Some(ReplayError::NoTopic { .. }));
    if no_topic || error.is::<NoSuchTopic>() {
        return NO_SUCH_TOPIC;
    }
    if error.is::<NoDaemon>() {
        return NO_DAEMON;
    }
    if error.is::<Unmatched>() {
        return REFUSED;
    }
    let put = error.downcast_ref::<PutError>();
    let loan = error.downcast_ref::<LoanError>().or(match put {
        Some(PutError::Loan(loan)) => Some(loan),
        _ => None,
    });
    let publish = error.downcast_ref::<PublishError>().or(match put {
        Some(PutError::Publish(publish)) => Some(publish),
        _ => None,
    });
    match (loan, publish) {
        (Some(LoanError::Client(error)), _) => return of_client(error),
        (Some(LoanError::Argument(_)), _) => return USAGE,
        (Some(LoanError::Pool(_)), _) => return FAILED,
        (Some(_), _) => return REFUSED,
        (_, Some(PublishError::BackPressured { .. })) => return NOT_IN_TIME,
        (_, Some(PublishError::TypeMismatch { .. })) => return REFUSED,
        (_, Some(PublishError::Client(error))) => return of_client(error),
        _ => {}
    }
    let open = error
        .downcast_ref::<OpenError>()
        .or(open_of_recording(error));
    match open {
        Some(OpenError::Client(error)) => return of_client(error),
        Some(OpenError::Argument(_)) => return USAGE,
        _ => {}
    }
    match error.downcast_ref::<RecvError>() {
        Some(RecvError::TimedOut(_)) => return NOT_IN_TIME,
        Some(RecvError::Client(error)) => return of_client(error),
        _ => {}
    }
    if let Some(error) = error.downcast_ref::<LaunchError>() {
        return of_launch(error);
    }
    error
        .downcast_ref::<ClientError>()
        .map_or(FAILED, of_client)
}

/// The error of opening a topic, if that is why a recording or a replay failed.
fn open_of_recording(error: &anyhow::Error) -> Option<&OpenError> {
    match (error.downcast_ref(), error.downcast_ref()) {
        (Some(RecordError::Topic { error, .. }), _) => Some(error),
        (_, Some(ReplayError::Topic { error, .. })) => Some(error),
        _ => None,
    }
}

fn of_client(error: &ClientError) -> u8 {
    match error {
        ClientError::Launch(error) => of_launch(error),
        ClientError::Refused(refusal) => match refusal.code {
            RefusalCode::NotFound => NO_SUCH_TOPIC,
            RefusalCode::BadRequest => USAGE,
            RefusalCode::Internal | RefusalCode::ZoneLost => FAILED,
            RefusalCode::Recovering => NOT_IN_TIME,
            _ => REFUSED,
        },
        ClientError::DaemonLost { .. } | ClientError::Stopped | ClientError::NoAnswer { .. } => {
            NO_DAEMON
        }
        _ => FAILED,
    }
}

fn of_launch(error: &LaunchError) -> u8 {
    match error {
        LaunchError::Config(_) => USAGE,
        LaunchError::Socket(SocketError::Path { .. }) => USAGE,
        LaunchError::NotPermitted { .. } => REFUSED,
        LaunchError::File { source, .. } if source.kind() == ErrorKind::PermissionDenied => REFUSED,
        _ => NO_DAEMON,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rgaps_session::Refusal;

    fn refused(code: RefusalCode) -> anyhow::Error {
        let refusal = Refusal {
            code,
            message: "no".to_owned(),
        };
        OpenError::from(ClientError::from(refusal)).into()
    }

    #[test]
    fn errors_have_their_codes() {
        assert_eq!(number(&refused(RefusalCode::NotFound)), NO_SUCH_TOPIC);
        assert_eq!(number(&refused(RefusalCode::PathTooSlow)), REFUSED);
        assert_eq!(number(&refused(RefusalCode::PoolFull)), REFUSED);
        let none = LaunchError::NoDaemon { tried: Vec::new() };
        assert_eq!(number(&ClientError::from(none).into()), NO_DAEMON);
        let late = RecvError::TimedOut("t".to_owned());
        assert_eq!(
            number(&anyhow::Error::from(late).context("while listening")),
            NOT_IN_TIME
        );
        assert_eq!(number(&Usage("x".to_owned()).into()), USAGE);
        assert_eq!(number(&anyhow::anyhow!("anything else")), FAILED);
    }
}
