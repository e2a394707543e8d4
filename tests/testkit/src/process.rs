//! Processes that end with the test.

use std::process::{Child, Command, ExitStatus};

/// A process that is killed when this is dropped.
pub struct Process(Child);

impl Process {
    /// Starts a command.
    pub fn start(command: &mut Command) -> Process {
        let started = command.spawn();
        Process(started.unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Whether it has not ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    /// Waits until it ends by itself, for [`crate::LIMIT`] at most.
    pub fn wait(&mut self) -> ExitStatus {
        crate::until("a process to end", || !self.is_running());
        self.0.wait().expect("a child that has ended")
    }

    /// SIGKILL; returns when it has ended.
    pub fn kill(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A command that becomes `program` within another one, such as `ip netns exec NAME`; so to kill the one is to kill the
/// other. Nothing before it: the program itself.
pub fn command_within(within: &[String], program: &std::path::Path) -> Command {
    match within {
        [] => Command::new(program),
        [first, others @ ..] => {
            let mut command = Command::new(first);
            command.args(others).arg(program);
            command
        }
    }
}
