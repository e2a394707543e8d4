//! `rgaps replay`.

use crate::args::{Common, Replay};
use crate::output::Output;
use crate::stop::Stop;
use crate::{domain, session, units};
use rgaps_recording::{files_of, Recording, ReplayOptions};
use std::sync::Arc;

pub fn replay(common: &Common, command: &Replay, output: &mut Output) -> anyhow::Result<()> {
    let stop = Stop::install()?;
    let mut files = Vec::new();
    for path in &command.files {
        files.extend(files_of(path)?);
    }
    let mut recordings = Vec::new();
    for file in &files {
        let recording = Recording::open(file)?;
        if let Some(missing) = recording.missing() {
            rgaps_session::print_error(format_args!(
                "rgaps: {}: {}; replaying what can be read",
                file.display(),
                missing.reason
            ));
        }
        recordings.push(Arc::new(recording));
    }
    let options = ReplayOptions {
        rate: command.rate,
        repeat: command.repeat,
        start: command.start,
        topics: command.topics.clone(),
        domain: command.domain.as_deref().map(domain::parse).transpose()?,
        wait_subscribers: command.wait_subscribers,
        report: |text| rgaps_session::print_error(format_args!("rgaps: {text}")),
    };
    let node = session::join(common)?;
    let replay = rgaps_recording::Replay::new(&node, recordings, options)?;
    let replayed = replay.run(stop.flag())?;
    output.put(&replayed, |to| {
        writeln!(
            to,
            "replayed {}, {}; at most {} after their time",
            units::counted(replayed.replayed, "message"),
            units::bytes(replayed.bytes),
            units::micros(replayed.late_max_us as f64)
        )?;
        match replayed.corrupt {
            0 => Ok(()),
            count => writeln!(to, "left out: {count} damaged chunks or messages"),
        }
    })
}
