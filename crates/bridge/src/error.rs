//! Errors of starting a bridge.

/// Why a bridge cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BridgeError {
    /// No rule names a topic.
    #[error(
        "no topic is to be carried; name one with --to, --from or --both of 'rgaps bridge zenoh', or in rgaps.toml with \
         [[bridge.zenoh]] or [[bridge.ros2]]"
    )]
    NoRule,
    /// An outgoing rule has a type that rgaps does not know, and no hash.
    #[error(
        "the type '{0}' is not known, so its hash must be given to send messages of it: set hash in its rule of \
         [[bridge.ros2]]; 'ros2 topic info --verbose' shows it"
    )]
    NoHash(String),
    /// The configuration has no endpoint and no scouting, so Zenoh cannot reach another node.
    #[error(
        "no Zenoh node can be reached; name an endpoint with --connect or --listen (such as tcp/10.0.0.2:7447), or \
         look for nodes by multicast with --scouting"
    )]
    NoEndpoint,
    /// No other Zenoh node answers at these endpoints.
    #[error("no Zenoh node is reached at {0}; start the router (ros2 run rmw_zenoh_cpp rmw_zenohd), or name another with --connect")]
    Alone(String),
    /// The key of a rule is invalid.
    #[error("the key '{key}' is not a Zenoh key expression: {reason}")]
    Key {
        /// The key.
        key: String,
        /// Zenoh's explanation.
        reason: String,
    },
    /// Zenoh refuses its configuration, or cannot listen.
    #[error("Zenoh cannot be started: {0}; check the endpoints")]
    Zenoh(String),
    /// A thread cannot be started.
    #[error("starting a thread failed: {0}; raise ulimit -u")]
    Thread(#[source] std::io::Error),
}
