//! The path of the daemon's socket.
//!
//! Without a configured socket, it is `/tmp/rgaps-<uid>/<realm>.sock`: the same for every process of a user, however it
//! was started. It depends neither on environment variables nor on a login session, as
//! `/run/user/<uid>` does. See `docs/decisions/0027-one-socket-folder.md`.

use super::{Config, ConfigError};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Sockets of daemons that serve all users of a host.
pub(crate) const SYSTEM_FOLDER: &str = "/run/rgaps";
/// The folder that holds the users' own folders: `/tmp/rgaps-<uid>`.
const USERS_FOLDER: &str = "/tmp";
/// The name of a user's folder, before the user's number.
pub(crate) const USER_PREFIX: &str = "rgaps-";

impl Config {
    /// The socket that a daemon with this configuration listens at: the configured one, else
    /// `/tmp/rgaps-<uid>/<realm>.sock`.
    pub fn socket_path(&self) -> PathBuf {
        match &self.socket {
            Some(path) => path.clone(),
            None => self.default_sockets().0,
        }
    }

    /// Creates the folder of [`socket_path`](Self::socket_path) if it does not exist. If the path is not configured, checks that
    /// only this user can write to the folder.
    pub fn prepare_socket_folder(&self) -> Result<(), ConfigError> {
        prepare_folder(&self.socket_path(), self.socket.is_none(), true).map(|_| ())
    }

    /// Whether the socket is where clients look without a configured one. A daemon that a client starts has that path in
    /// its configuration.
    pub(crate) fn has_default_socket(&self) -> bool {
        let (own, system) = self.default_sockets();
        self.socket
            .as_ref()
            .is_none_or(|socket| *socket == own || *socket == system)
    }

    /// The sockets at which a client looks for a daemon, in order: the configured one, or else the user's own and then the system's.
    pub fn socket_candidates(&self) -> Vec<PathBuf> {
        match &self.socket {
            Some(path) => vec![path.clone()],
            None => {
                let (own, system) = self.default_sockets();
                vec![own, system]
            }
        }
    }

    /// The sockets of this realm where none is configured: the user's own, and the system's.
    pub(crate) fn default_sockets(&self) -> (PathBuf, PathBuf) {
        let name = format!("{}.sock", self.realm);
        let own = Path::new(USERS_FOLDER).join(format!("{USER_PREFIX}{}", uid()));
        (own.join(&name), Path::new(SYSTEM_FOLDER).join(name))
    }
}

pub(crate) fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Checks the folder of a socket, and creates it (0700) if `create`. Returns whether it exists.
///
/// A default folder (`chosen`) must belong to this user alone: in `/tmp`, anyone could have created one of that name and put a
/// socket into it.
pub(crate) fn prepare_folder(
    socket: &Path,
    chosen: bool,
    create: bool,
) -> Result<bool, ConfigError> {
    let folder = match socket.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("/"),
    };
    let refuse = |reason: String| ConfigError::Folder {
        path: folder.to_owned(),
        reason,
    };
    if create {
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder);
        made.map_err(|error| {
            refuse(format!(
                "{error}; set socket in rgaps.toml to a path in a folder that this user can write"
            ))
        })?;
    }
    // symlink_metadata: a symbolic link in place of the folder may be an attack.
    let there = match std::fs::symlink_metadata(folder) {
        Ok(there) => there,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(refuse(error.to_string())),
    };
    if chosen {
        if !there.is_dir() {
            return Err(refuse(
                "it is not a folder, or is a symbolic link; remove it".to_owned(),
            ));
        }
        if there.uid() != uid() || there.mode() & 0o077 != 0 {
            return Err(refuse(format!(
                "it must be yours alone, but belongs to user {} with mode {:04o}; remove it (or \
                 chmod 0700 if it is yours), or set RGAPS_SOCKET to a path elsewhere",
                there.uid(),
                there.mode() & 0o7777
            )));
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn chmod(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_folder_that_others_prepared_is_refused() {
        let temporary = tempfile::tempdir().unwrap();
        let socket = temporary.path().join("rgaps-0/default.sock");
        let folder = socket.parent().unwrap();
        assert!(!prepare_folder(&socket, true, false).unwrap());
        assert!(prepare_folder(&socket, true, true).unwrap());
        assert_eq!(std::fs::metadata(folder).unwrap().mode() & 0o777, 0o700);
        assert!(
            prepare_folder(&socket, true, true).unwrap(),
            "a second time"
        );
        chmod(folder, 0o755);
        assert!(prepare_folder(&socket, true, false).is_err());
        assert!(
            prepare_folder(&socket, false, false).unwrap(),
            "configured: the user's choice"
        );
        std::fs::rename(folder, temporary.path().join("elsewhere")).unwrap();
        chmod(&temporary.path().join("elsewhere"), 0o700);
        std::os::unix::fs::symlink(temporary.path().join("elsewhere"), folder).unwrap();
        assert!(prepare_folder(&socket, true, false).is_err());
    }

    #[test]
    fn a_configured_socket_is_the_only_one() {
        let config = Config {
            socket: Some("/x/y.sock".into()),
            ..Config::default()
        };
        assert_eq!(config.socket_candidates(), [PathBuf::from("/x/y.sock")]);
        let config = Config {
            realm: "lab".into(),
            ..Config::default()
        };
        let paths = config.socket_candidates();
        let own = PathBuf::from(format!("/tmp/rgaps-{}/lab.sock", uid()));
        assert_eq!(paths, [own, PathBuf::from("/run/rgaps/lab.sock")]);
    }
}
