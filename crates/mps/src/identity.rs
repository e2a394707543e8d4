//! By what MPS knows a client: the pipe directory that it named, and the numbers of its process.

use crate::process::numbers;
use crate::DeadClient;
use std::path::PathBuf;

/// Longest pipe directory that a client can name.
const PIPE_PATH_MAX: usize = 107;

/// By what MPS knows a client's process. Noted while the process lives, since `/proc` forgets it afterwards.
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
    /// Notes the pipe directory of the MPS that a client names as its own. Looks at no file: the path may lead anywhere.
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

    /// The client of this identity, dead.
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
