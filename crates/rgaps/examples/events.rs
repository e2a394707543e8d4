//! Three ways to receive without a thread that waits in `recv`: a callback, a set of several subscribers, and a
//! descriptor for an event loop. It publishes to itself:
//!
//!     cargo run --example events

use rgaps::Node;
use rustix::event::{poll, PollFd, PollFlags};
use std::sync::mpsc::channel;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let node = Node::new("events")?;
    let subscriber = |topic| node.subscriber(topic).create();
    let (alarms, left, right, commands) = (
        subscriber("alarms")?,
        subscriber("left")?,
        subscriber("right")?,
        subscriber("commands")?,
    );
    let publish = |topic, bytes| -> Result<_, Box<dyn std::error::Error>> {
        let publisher = node.publisher(topic).create()?;
        publisher.put(bytes)?;
        Ok(publisher) // the caller keeps it until its message was read
    };

    // 1. A callback, in a thread of rgaps, until the listener is dropped.
    let (to, heard) = channel();
    let listener = alarms.listen(move |outcome| {
        if let Ok(sample) = outcome {
            let text = sample
                .as_slice()
                .map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            let _ = to.send(text);
        }
    })?;
    let _alarms = publish("alarms", b"too hot")?;
    println!("callback: {}", heard.recv_timeout(SOON)??);
    drop(listener);

    // 2. One thread that sleeps until any of several topics has a message.
    let mut set = node.wait_set();
    let names = [
        (set.attach(&left)?, "left", &left),
        (set.attach(&right)?, "right", &right),
    ];
    let _right = publish("right", b"image")?;
    let ready = set.wait(SOON)?;
    for (_, name, subscriber) in names.iter().filter(|(token, ..)| ready.contains(token)) {
        while let Some(sample) = subscriber.try_recv()? {
            println!("wait set: {} bytes on {name}", sample.len());
        }
    }

    // 3. A descriptor that is readable while there are messages, for poll, epoll or an async runtime.
    let _commands = publish("commands", b"stop")?;
    let readable = commands.readiness()?;
    poll(&mut [PollFd::new(&readable, PollFlags::IN)], None)?;
    while let Some(sample) = commands.try_recv()? {
        println!(
            "event loop: {}",
            String::from_utf8_lossy(sample.as_slice()?)
        );
    }
    Ok(())
}
