//! Reads from a pipe or a terminal until a signal asks to stop. A plain read would continue after the signal (SA_RESTART).

use crate::stop::Stop;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::Duration;

/// Time between two looks for a signal.
const SLICE: Duration = Duration::from_millis(50);

pub struct Interruptible<T> {
    pub input: T,
    pub stop: Stop,
}

impl<T: AsFd> Read for Interruptible<T> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let timeout = Timespec::try_from(SLICE).expect("a short time");
        while !self.stop.is_set() {
            let mut ready = [PollFd::new(&self.input, PollFlags::IN)];
            match poll(&mut ready, Some(&timeout)) {
                Ok(0) | Err(Errno::INTR) => {}
                // Reads the descriptor itself: `poll` does not see bytes that a buffer of Rust holds.
                Ok(_) => return Ok(rustix::io::read(&self.input, into)?),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(0)
    }
}
