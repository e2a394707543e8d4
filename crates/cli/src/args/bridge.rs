//! `rgaps bridge`.

use super::examples;
use crate::completion;
use crate::units::seconds;
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use std::time::Duration;

#[derive(Subcommand)]
pub enum Bridge {
    /// Carry topics to and from Zenoh, until Ctrl-C.
    ///
    /// TOPIC is a topic, or a pattern in which * matches any characters of one part of a name, ** any number of parts. Its key
    /// in Zenoh is KEY, or else the name of the topic behind --prefix. A topic is read only while somebody in Zenoh subscribes
    /// to its key. A message that came from Zenoh is not sent back. The options are added to the section [bridge] of the
    /// configuration, which has the same ones.
    #[command(after_help = examples::BRIDGE_ZENOH)]
    Zenoh(BridgeZenoh),
    /// Carry topics to and from nodes of ROS 2 that use rmw_zenoh, until Ctrl-C.
    ///
    /// Which topics, and their types, is in the configuration: [[bridge.ros2]]. Images, point clouds and others become arrays; messages
    /// of all other types cross as their CDR bytes. Without an endpoint the bridge connects to the router of this host, as nodes do.
    #[command(after_help = examples::BRIDGE_ROS2)]
    Ros2(BridgeRos2),
}

#[derive(Args)]
pub struct BridgeRos2 {
    /// List the topics that nodes use, with types and hashes as rules need them, and end.
    #[arg(long)]
    pub list: bool,
    #[command(flatten)]
    pub network: BridgeNetwork,
}

#[derive(Args)]
pub struct BridgeZenoh {
    /// Carry the messages of this topic to Zenoh. May be given several times, as the next two.
    #[arg(long, value_name = "TOPIC[=KEY]", add = ArgValueCompleter::new(completion::topics))]
    pub to: Vec<String>,
    /// Carry messages from Zenoh to this topic.
    #[arg(long, value_name = "TOPIC[=KEY]")]
    pub from: Vec<String>,
    /// Carry messages both ways.
    #[arg(long, value_name = "TOPIC[=KEY]", add = ArgValueCompleter::new(completion::topics))]
    pub both: Vec<String>,
    /// Put this before the names of topics without a KEY.
    #[arg(long, value_name = "KEY")]
    pub prefix: Option<String>,
    /// Miss no message of the topics of --to and --both: their publishers wait for the bridge.
    #[arg(long)]
    pub reliable: bool,
    #[command(flatten)]
    pub network: BridgeNetwork,
}

/// How a bridge reaches Zenoh.
#[derive(Args)]
pub struct BridgeNetwork {
    /// Connect to this Zenoh router or peer: tcp/HOST:PORT or tls/HOST:PORT. It may come later. May be given several times.
    #[arg(long, value_name = "ENDPOINT")]
    pub connect: Vec<String>,
    /// Let routers and peers connect here. May be given several times.
    #[arg(long, value_name = "ENDPOINT")]
    pub listen: Vec<String>,
    /// Look for routers and peers by multicast.
    #[arg(long)]
    pub scouting: bool,
    /// Seconds between two lines of progress. 0: none.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "10")]
    pub every: Duration,
}
