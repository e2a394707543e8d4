//! `topic forget`.

use crate::absent;
use crate::args::Common;
use crate::output::Output;
use crate::session;
use crate::units::counted;

pub fn forget(common: &Common, topic: &str, output: &mut Output) -> anyhow::Result<()> {
    let node = session::look(common)?;
    let topic = &node.resolve_topic(topic);
    let node = node.with_full_names();
    let forgotten = node
        .forget_topic(topic)
        .map_err(|error| absent::explain(&node, topic, error))?;
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
