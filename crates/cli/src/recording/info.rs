//! `rgaps info`.

use crate::args::Info;
use crate::output::{table, Output};
use crate::units;
use rgaps_recording::{files_of, Reason, RecordedTopic, Recording};
use std::io::{self, Write};

pub fn info(command: &Info, output: &mut Output) -> anyhow::Result<()> {
    for path in &command.files {
        for file in files_of(path)? {
            let info = Recording::open(file)?.info();
            output.put(&info, |to| print(&info, to))?;
        }
    }
    Ok(())
}

fn print(info: &rgaps_recording::Info, to: &mut dyn Write) -> io::Result<()> {
    writeln!(
        to,
        "file      {}, {}",
        info.file,
        units::bytes(info.file_bytes)
    )?;
    let (begun, seconds) = (units::utc(info.begun_ns), info.duration_s);
    writeln!(to, "time      {begun}, {seconds:.3} s")?;
    let (messages, chunks) = (info.messages, info.chunks);
    writeln!(
        to,
        "messages  {messages} in {}",
        units::counted(chunks, "chunk")
    )?;
    if let Some(missing) = &info.missing {
        let bytes = units::bytes(info.missing_bytes);
        writeln!(to, "missing   {bytes} at the end cannot be read: {missing}")?;
    }
    for (reason, count) in &info.dropped_by {
        let known = Reason::ALL.into_iter().find(|known| known.name() == reason);
        let reason = known.map_or(reason.as_str(), |known| known.explain());
        writeln!(to, "dropped   {count}: {reason}")?;
    }
    writeln!(to)?;
    let heads = [
        "TOPIC",
        "MESSAGES",
        "HZ",
        "PUBLISHERS",
        "SCHEMA",
        "TYPE",
        "CONTENT",
    ];
    let rows: Vec<_> = info
        .topics
        .iter()
        .map(|topic| row(topic, info.duration_s))
        .collect();
    table(to, &heads, &rows)
}

fn row(topic: &RecordedTopic, duration_s: f64) -> Vec<String> {
    let hz = match duration_s > 0.0 {
        true => format!("{:.2}", topic.messages as f64 / duration_s),
        false => "-".to_owned(),
    };
    let or_none = |text: &str| if text.is_empty() { "-" } else { text }.to_owned();
    let kept = if topic.transient_local {
        " transient-local"
    } else {
        ""
    };
    vec![
        topic.topic.clone(),
        topic.messages.to_string(),
        hz,
        format!("{}{kept}", topic.publishers),
        or_none(&topic.schema),
        or_none(&topic.type_name),
        or_none(&topic.content),
    ]
}
