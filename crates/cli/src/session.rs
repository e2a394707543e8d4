//! Loads the configuration of a command and connects to the daemon.

use crate::args::Common;
use crate::exit::NoDaemon;
use rgaps::{ClientError, Config, Node, OpenError};
use rgaps_session::{list_paths, split_warning, Argument, ConfigError, Environment, LaunchError};

/// The name of this process in listings.
const CLIENT_NAME: &str = "rgaps-cli";

/// Loads the configuration, whose values the command line overrides, and prints its warnings.
pub fn config(common: &Common) -> anyhow::Result<Config> {
    let config = config_without_warnings(common)?;
    for warning in config.warnings() {
        rgaps_session::print_error(format_args!("rgaps: {warning}"));
    }
    Ok(config)
}

/// Like [`config`] without warnings, for a process whose parent has printed them.
pub fn config_without_warnings(common: &Common) -> Result<Config, ConfigError> {
    Config::load_from(common.config.as_deref(), &environment(common))
}

/// The environment variables that the configuration depends on, overridden by the command line.
fn environment(common: &Common) -> Environment {
    let mut environment = Environment::current();
    let realm = common.realm.as_deref().map(|realm| ("realm", realm));
    // A socket that is not UTF-8 cannot be the value of a key.
    let socket = common.socket.as_ref().and_then(|socket| socket.to_str());
    let socket = socket.map(|socket| ("socket", socket));
    let namespace = common.namespace.as_deref().map(|name| ("namespace", name));
    for (key, value) in realm.into_iter().chain(socket).chain(namespace) {
        let argument = Argument::text(&format!("--{key}"), key, value);
        environment.arguments.push(argument);
    }
    if !common.remap.is_empty() {
        environment.arguments.push(Argument {
            name: "--remap".to_owned(),
            key: "remap".to_owned(),
            value: common.remap.clone().into(),
        });
    }
    environment
}

/// The configuration for a command that must work with an invalid one too. If it is invalid, returns a configuration with only its
/// realm and socket, and the error.
pub fn config_or_address(common: &Common) -> Result<(Config, Option<ConfigError>), ConfigError> {
    let environment = environment(common);
    let file = common.config.as_deref();
    match Config::load_from(file, &environment) {
        Ok(config) => Ok((config, None)),
        Err(error) => Config::load_address(file, &environment).map(|config| (config, Some(error))),
    }
}

/// Connects to the running daemon. Starts none, for commands that only look.
pub fn look(common: &Common) -> anyhow::Result<Node> {
    look_by(config(common)?)
}

/// Like [`look`] with a configuration.
pub fn look_by(config: Config) -> anyhow::Result<Node> {
    let advice = match config.autostart {
        true => {
            "; 'rgaps up' starts one, and so does the first program that publishes or subscribes"
        }
        false => "; start one with 'rgaps up'",
    };
    find(config, advice, Some("start one here ('rgaps up')"))
}

/// Connects to the daemon that the caller will stop.
pub fn look_to_stop(config: Config) -> anyhow::Result<Node> {
    find(config, ", so there is none to stop", None)
}

/// Connects to the running daemon. `advice`: the end of the error that no daemon answers. `cure`: one more remedy for the error
/// that daemons run which this process does not reach.
fn find(mut config: Config, advice: &str, cure: Option<&str>) -> anyhow::Result<Node> {
    config.autostart = false;
    let error = match Node::builder(CLIENT_NAME).config(config.clone()).build() {
        Ok(node) => return Ok(node),
        Err(error) => error,
    };
    // A daemon may run that this user or process does not reach.
    let unreached = split_warning(&config);
    match (&error, unreached) {
        (OpenError::Client(ClientError::Launch(LaunchError::NoDaemon { .. })), unreached) => {
            let text = match unreached {
                Some(mut split) => {
                    split.cures.extend(cure.map(str::to_owned));
                    split.to_string()
                }
                None => {
                    let tried = config.socket_candidates();
                    format!("no daemon answers at {}{advice}", list_paths(&tried))
                }
            };
            Err(NoDaemon(text).into())
        }
        (_, unreached) => {
            if let Some(warning) = unreached {
                rgaps_session::print_error(format_args!("rgaps: {warning}"));
            }
            Err(error.into())
        }
    }
}

/// Connects to the daemon. Starts one if none runs.
pub fn join(common: &Common) -> anyhow::Result<Node> {
    Ok(Node::builder(CLIENT_NAME).config(config(common)?).build()?)
}
