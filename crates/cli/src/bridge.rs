//! `rgaps bridge`: replaces itself by the program `rgaps-links`, which contains Zenoh and its runtime.

use crate::args::{Bridge, BridgeNetwork, BridgeZenoh, Common};
use crate::exit::Usage;
use crate::session;
use anyhow::Context as _;
use rgaps_session::{bridge_command, BridgeDirection, Config, ZenohRule};
use std::os::unix::process::CommandExt as _;

pub fn bridge(common: &Common, command: &Bridge) -> anyhow::Result<()> {
    let mut config = session::config(common)?;
    let (system, network) = match command {
        Bridge::Zenoh(command) => {
            add_rules(&mut config, command);
            ("zenoh", &command.network)
        }
        Bridge::Ros2(command) => ("ros2", &command.network),
    };
    add_network(&mut config, network);
    config.check().map_err(Usage)?;
    let mut program = bridge_command(&config)?;
    program.arg(system);
    program.arg(format!("--every-ms={}", network.every.as_millis()));
    if matches!(command, Bridge::Ros2(command) if command.list) {
        program.arg("--list");
    }
    if common.json {
        program.arg("--json");
    }
    // `exec` returns only if it fails. Otherwise the program decides the exit code.
    let error = program.exec();
    let name = program.get_program().to_string_lossy();
    Err(error).with_context(|| format!("starting '{name}' failed"))
}

fn add_rules(config: &mut Config, command: &BridgeZenoh) {
    for (direction, rules) in [
        (BridgeDirection::To, &command.to),
        (BridgeDirection::From, &command.from),
        (BridgeDirection::Both, &command.both),
    ] {
        let rules = rules.iter().map(|rule| {
            let (topic, key) = match rule.split_once('=') {
                Some((topic, key)) => (topic, Some(key.to_owned())),
                None => (rule.as_str(), None),
            };
            ZenohRule {
                topic: topic.to_owned(),
                key,
                direction,
                reliable: command.reliable,
            }
        });
        config.bridge.zenoh.extend(rules);
    }
    if let Some(prefix) = &command.prefix {
        config.bridge.prefix.clone_from(prefix);
    }
}

fn add_network(config: &mut Config, network: &BridgeNetwork) {
    let bridge = &mut config.bridge;
    bridge.connect.extend(network.connect.iter().cloned());
    bridge.listen.extend(network.listen.iter().cloned());
    bridge.scouting |= network.scouting;
}
