//! `topic` and its commands.

mod content;
mod describe;
mod echo;
mod forget;
mod header;
mod interruptible;
mod listing;
mod message;
mod publish;
mod rates;
mod save;
mod thumbnail;
mod video;
mod window;

pub use describe::{meta, shape, Shape};

use crate::args::{Common, Topic};
use crate::output::Output;
use window::Rate;

pub fn topic(common: &Common, command: Topic, output: &mut Output) -> anyhow::Result<()> {
    match command {
        Topic::List { topics } => listing::list(common, &topics, output),
        Topic::Info { topic } => listing::info(common, &topic, output),
        // These commands count messages, so they read every message.
        Topic::Hz(watch) => rates::watch(common, &watch, Rate::Hz, None, output),
        Topic::Bw(watch) => rates::watch(common, &watch, Rate::Bandwidth, None, output),
        Topic::Delay(delay) => {
            let depth = delay.queue.depth(false);
            rates::watch(common, &delay.watch, Rate::Delay, depth, output)
        }
        Topic::Echo(echo) => echo::echo(common, &echo, output),
        Topic::Pub(publish) => publish::publish(common, &publish, output),
        Topic::Forget { topic } => forget::forget(common, &topic, output),
    }
}
