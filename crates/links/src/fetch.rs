//! Memory that has to be had from the daemon before a message can land. A thread of its own asks for it: that takes as
//! long as the kernel needs to provide the pages, and lanes of the link go on meanwhile.

use crate::land::{Heard, Landing};
use std::sync::mpsc::{channel, Sender};
use std::sync::Arc;

/// A landing that lacks memory.
pub struct Wanted {
    /// Whose.
    pub landing: Arc<Landing>,
    /// For a message of so many bytes.
    pub bytes: u64,
    /// The host that it comes from, and who is told that there is room.
    pub host: String,
    /// See `host`.
    pub to: Sender<(String, Heard)>,
}

/// Starts the thread that asks. It ends when nobody can tell it any more what is wanted.
pub fn start() -> std::io::Result<Sender<Wanted>> {
    let (wanted, received) = channel::<Wanted>();
    std::thread::Builder::new()
        .name("rgaps-memory".to_owned())
        .spawn(move || received.into_iter().for_each(fetch))?;
    Ok(wanted)
}

fn fetch(wanted: Wanted) {
    let Wanted {
        landing,
        bytes,
        host,
        to,
    } = wanted;
    if landing.fetch(bytes) {
        let _ = to.send((host, Heard::Room));
    }
}
