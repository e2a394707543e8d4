//! Puts the stand-in for NVIDIA's MPS programs on a `PATH` of a test's own, and tells it what to do.
//! Included by the tests of several crates.
#![allow(dead_code)] // each test file uses a part of it

use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = include_str!("fake.py");

/// The programs, and the folder through which they are told what to do.
pub struct FakeMps {
    folder: tempfile::TempDir,
}

impl FakeMps {
    pub fn new() -> FakeMps {
        let asked = Command::new("python3")
            .args(["-c", "import sys; print(sys.executable)"])
            .output()
            .expect("python3 can be started");
        // The interpreter itself: what stands on the PATH may be a script that takes its time.
        let python = String::from_utf8(asked.stdout).unwrap();
        let folder = tempfile::tempdir().unwrap();
        for folder in [folder.path().join("bin"), folder.path().join("state")] {
            std::fs::create_dir(folder).unwrap();
        }
        for name in ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"] {
            use std::os::unix::fs::OpenOptionsExt;
            let mut options = std::fs::OpenOptions::new();
            let file = options.create(true).write(true).mode(0o755);
            let mut file = file.open(folder.path().join("bin").join(name)).unwrap();
            let text = format!("#!{}\n{PROGRAM}", python.trim());
            std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        }
        FakeMps { folder }
    }

    fn state(&self, name: &str) -> PathBuf {
        self.folder.path().join("state").join(name)
    }

    /// What a process needs in its environment to find the programs.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let path = std::env::var("PATH").unwrap_or_default();
        let folder = self.folder.path();
        vec![
            ("PATH", format!("{}:{path}", folder.join("bin").display())),
            ("RGAPS_TEST_MPS", folder.join("state").display().to_string()),
        ]
    }

    /// The control program, as a command that finds its state.
    pub fn control(&self, pipes: &Path) -> Command {
        let program = self.folder.path().join("bin/nvidia-cuda-mps-control");
        let mut command = Command::new(program);
        command
            .envs(self.environment())
            .env("CUDA_MPS_PIPE_DIRECTORY", pipes);
        command
    }

    /// From now on these processes are clients.
    pub fn clients(&self, pids: &[u32]) {
        let text: Vec<String> = pids.iter().map(u32::to_string).collect();
        std::fs::write(self.state("clients.test"), text.join("\n")).unwrap();
        std::fs::rename(self.state("clients.test"), self.state("clients")).unwrap();
    }

    /// From now on it behaves so.
    pub fn behave(&self, words: &str) {
        std::fs::write(self.state("behave"), words).unwrap();
    }

    /// Servers end.
    pub fn stop_servers(&self) {
        std::fs::write(self.state("stop-server"), "").unwrap();
    }

    /// What was started and asked.
    pub fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.state("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// How often a control daemon was started.
    pub fn starts(&self) -> usize {
        let log = self.log();
        log.iter().filter(|line| line.starts_with("start ")).count()
    }

    /// Whether this was asked.
    pub fn was_asked(&self, command: &str) -> bool {
        self.log().iter().any(|line| line == command)
    }
}
