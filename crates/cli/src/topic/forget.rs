//! `topic forget`.

use crate::args::Common;
use crate::output::Output;
use crate::session;
use crate::units::counted;

pub fn forget(common: &Common, topic: &str, output: &mut Output) -> anyhow::Result<()> {
    let forgotten = session::look(common)?.forget_topic(topic)?;
    output.put(&forgotten, |to| match forgotten.messages {
        0 => writeln!(
            to,
            "topic '{topic}' has no history of publishers that have closed or died"
        ),
        messages => {
            let messages = counted(messages, "message");
            writeln!(
                to,
                "topic '{topic}': dropped {messages} of publishers that have closed or died"
            )
        }
    })
}
