//! The configuration and the connection that a command works with.

use crate::args::Common;
use crate::exit::Usage;
use anyhow::Context;
use rgaps::{Config, Node};

/// What listings call this process.
const CLIENT_NAME: &str = "rgaps-cli";

/// The configuration, with the command line over it.
pub fn config(common: &Common) -> anyhow::Result<Config> {
    let mut config = Config::load(common.config.as_deref())?;
    if let Some(realm) = &common.realm {
        config.realm.clone_from(realm);
    }
    if let Some(socket) = &common.socket {
        config.socket = Some(std::path::absolute(socket).context("--socket")?);
    }
    config.check().map_err(Usage)?;
    for variable in &config.ignored_variables {
        eprintln!("rgaps: the environment variable {variable} names no key of the configuration");
    }
    Ok(config)
}

/// A connection to the daemon that runs; a command that only looks starts none.
pub fn look(common: &Common) -> anyhow::Result<Node> {
    let mut config = config(common)?;
    config.autostart = false;
    Ok(Node::builder(CLIENT_NAME).config(config).build()?)
}

/// A connection to the daemon, which is started if there is none.
pub fn join(common: &Common) -> anyhow::Result<Node> {
    Ok(Node::builder(CLIENT_NAME).config(config(common)?).build()?)
}
