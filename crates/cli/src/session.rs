//! The configuration and the connection that a command works with.

use crate::args::Common;
use rgaps::{Config, Node};
use rgaps_session::{split_warning, Argument, ConfigError, Environment};

/// What listings call this process.
const CLIENT_NAME: &str = "rgaps-cli";

/// The configuration, with the command line over it.
pub fn config(common: &Common) -> anyhow::Result<Config> {
    let config = Config::load_from(common.config.as_deref(), &environment(common))?;
    for warning in config.warnings() {
        rgaps_session::tell_user(format_args!("rgaps: {warning}"));
    }
    Ok(config)
}

/// What the configuration depends on besides its file: variables, and the command line over them.
fn environment(common: &Common) -> Environment {
    let mut environment = Environment::current();
    let realm = common.realm.as_deref().map(|realm| ("realm", realm));
    // One that is not UTF-8 cannot be a key's value.
    let socket = common.socket.as_ref().and_then(|socket| socket.to_str());
    let socket = socket.map(|socket| ("socket", socket));
    for (key, value) in realm.into_iter().chain(socket) {
        let argument = Argument::text(&format!("--{key}"), key, value);
        environment.arguments.push(argument);
    }
    environment
}

/// The configuration for a command that must work under an invalid one, too: then only its realm and socket, with the
/// error.
pub fn config_or_address(common: &Common) -> Result<(Config, Option<ConfigError>), ConfigError> {
    let environment = environment(common);
    let file = common.config.as_deref();
    match Config::load_from(file, &environment) {
        Ok(config) => Ok((config, None)),
        Err(error) => Config::load_address(file, &environment).map(|config| (config, Some(error))),
    }
}

/// A connection to the daemon that runs; a command that only looks starts none.
pub fn look(common: &Common) -> anyhow::Result<Node> {
    look_by(config(common)?)
}

/// The same with a configuration.
pub fn look_by(mut config: Config) -> anyhow::Result<Node> {
    config.autostart = false;
    let node = Node::builder(CLIENT_NAME).config(config.clone()).build();
    if node.is_err() {
        // Perhaps there is one that this user or process does not reach.
        if let Some(warning) = split_warning(&config) {
            rgaps_session::tell_user(format_args!("rgaps: {warning}"));
        }
    }
    Ok(node?)
}

/// A connection to the daemon, which is started if there is none.
pub fn join(common: &Common) -> anyhow::Result<Node> {
    Ok(Node::builder(CLIENT_NAME).config(config(common)?).build()?)
}
