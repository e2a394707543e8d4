//! Checks what links to other hosts need, and whether they run.

use super::Check;
use crate::links::{describe, failure};
use rgaps::{Config, Status};
use std::fs::File;
use std::path::PathBuf;

const NAME: &str = "links";

/// `status`: the state of the running daemon. None: no daemon runs.
pub fn check(config: &Config, status: Option<&Status>) -> Check {
    if let Some(failure) = status.and_then(|status| failure(config, &status.links)) {
        return Check::lack(NAME, failure.reason, failure.advice);
    }
    if !config.links.enabled && !config.links.connect.is_empty() {
        return Check::lack(
            NAME,
            "off, though links.connect names other hosts",
            "set links.enabled = true in rgaps.toml, then run 'rgaps down' and 'rgaps up'",
        );
    }
    if !config.links.enabled {
        return Check::ok(NAME, "off (links.enabled in rgaps.toml)");
    }
    let program = match rgaps_session::find_links() {
        Ok(program) => program,
        Err(failure) => return Check::lack(NAME, failure.reason, failure.advice),
    };
    let tls = &config.links.tls;
    let files: [(&str, &Option<PathBuf>); 3] = [
        ("ca", &tls.ca),
        ("certificate", &tls.certificate),
        ("key", &tls.key),
    ];
    for (key, file) in files {
        let Some(file) = file else { continue };
        if let Err(error) = File::open(file) {
            return Check::lack(
                NAME,
                format!("'{}' cannot be read: {error}", file.display()),
                format!("set links.tls.{key} in rgaps.toml to a file that this user can read"),
            );
        }
    }
    let state = status.map_or("no daemon is running", |status| describe(&status.links));
    Check::ok(NAME, format!("{state}; '{}'", program.display()))
}
