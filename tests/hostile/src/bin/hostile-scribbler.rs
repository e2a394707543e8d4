//! Joins a topic and scribbles over it, as a process of its own, until it is killed.

use rgaps_hostile::scribble::{Scribbler, Target};
use rgaps_testkit::Random;
use std::path::PathBuf;
use std::time::Duration;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, topic, target, seed] = &arguments[..] else {
        panic!("hostile-scribbler SOCKET TOPIC TARGET SEED");
    };
    let target = match target.as_str() {
        "topic" => Target::Topic,
        "rings" => Target::Rings,
        "blocks" => Target::Blocks,
        "deferred_releases" => Target::DeferredRelease,
        "doorbells" => Target::Doorbells,
        "timelines" => Target::Timelines,
        "all" => Target::All,
        other => panic!("no target is called {other}"),
    };
    let mut random = Random::new(seed.parse().expect("a number"));
    let scribbler = Scribbler::join(&PathBuf::from(socket), topic);
    println!("scribbling");
    loop {
        let count = 1 + random.below(40);
        scribbler.scribble(target, count, &mut random);
        std::thread::sleep(Duration::from_micros(random.below(2_000)));
    }
}
