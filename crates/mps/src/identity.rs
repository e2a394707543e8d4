//! How MPS identifies a client: by the pipe directory that the client named, and the numbers of its process.

use crate::process::numbers;
use crate::DeadClient;
use std::path::PathBuf;

/// Most bytes of a pipe directory that a client names.
const PIPE_PATH_MAX: usize = 107;

/// How MPS identifies a client's process. Collected while the process lives, since `/proc` has nothing of it afterwards.
#[derive(Clone, Debug, Default)]
pub struct MpsIdentity {
    pipe_directory: Option<PathBuf>,
    numbers: Vec<u32>,
}

/// A client named a pipe directory that cannot be one.
#[derive(Debug, thiserror::Error)]
#[error("the pipe directory of MPS must be an absolute path of at most {PIPE_PATH_MAX} bytes")]
pub struct BadPipeDirectory;

impl MpsIdentity {
    /// Notes the pipe directory that a client names. Opens no file, since the path may lead anywhere.
    pub fn set_pipe_directory(&mut self, named: String) -> Result<(), BadPipeDirectory> {
        let directory = PathBuf::from(named);
        if !directory.is_absolute() || directory.as_os_str().len() > PIPE_PATH_MAX {
            return Err(BadPipeDirectory);
        }
        self.pipe_directory = Some(directory);
        Ok(())
    }

    /// Notes the numbers of a process in all its PID namespaces, unless they are known.
    pub fn note_process(&mut self, pid: u32) {
        if self.numbers.is_empty() {
            self.numbers = numbers(pid);
        }
    }

    /// A dead client with this identity.
    pub fn dead_client(&self, name: &str, pid: u32, uid: u32) -> DeadClient {
        DeadClient {
            name: name.to_owned(),
            pid,
            uid,
            numbers: self.numbers.clone(),
            pipes: self.pipe_directory.iter().cloned().collect(),
            lives: false,
        }
    }
}
