//! Ports for tests that listen at an address which others must know before.

use rustix::fs::{flock, FlockOperation};
use std::fs::File;
use std::net::TcpListener;
use std::sync::Mutex;

/// Ports that no other test has, of this process or another, and that the kernel gives to nobody by itself.
pub fn ports(count: usize) -> Vec<u16> {
    static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let dir = std::env::temp_dir().join("rgaps-test-ports");
    std::fs::create_dir_all(&dir).expect("a folder");
    let mut held = HELD.lock().expect("no test panics here");
    let mut free = (20_000..30_000).filter(|port| {
        let file = File::create(dir.join(port.to_string())).expect("a file");
        let is_ours = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        let is_free = is_ours && TcpListener::bind(("127.0.0.1", *port)).is_ok();
        if is_free {
            held.push(file);
        }
        is_free
    });
    let found: Vec<u16> = free.by_ref().take(count).collect();
    assert_eq!(found.len(), count, "too few ports are free");
    found
}
