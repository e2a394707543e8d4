//! Where the daemon's socket is.

use super::{Config, ConfigError};
use rustix::fs::Access;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Sockets of daemons that serve all users of a host.
const SYSTEM_FOLDER: &str = "/run/rgaps";

impl Config {
    /// The socket that a daemon with this configuration listens at: the configured one, else
    /// `$XDG_RUNTIME_DIR/rgaps/<realm>.sock` if that folder is ours, else
    /// `/tmp/rgaps-<uid>/<realm>.sock`.
    pub fn socket_path(&self) -> PathBuf {
        match &self.socket {
            Some(path) => path.clone(),
            None => {
                let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
                own_folder(runtime.as_deref(), Path::new("/tmp"))
                    .join(format!("{}.sock", self.realm))
            }
        }
    }

    /// Makes the folder of [`socket_path`](Self::socket_path) if it is not there, and checks that
    /// it is ours alone where it was not configured.
    pub fn prepare_socket_folder(&self) -> Result<(), ConfigError> {
        prepare_folder(&self.socket_path(), self.socket.is_none(), true).map(|_| ())
    }

    /// Where a client looks for a daemon, in this order: unless a socket is configured, the
    /// system's daemon comes after the user's own.
    pub fn socket_candidates(&self) -> Vec<PathBuf> {
        let mut paths = vec![self.socket_path()];
        if self.socket.is_none() {
            paths.push(Path::new(SYSTEM_FOLDER).join(format!("{}.sock", self.realm)));
        }
        paths
    }
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn own_folder(runtime: Option<&Path>, temporary: &Path) -> PathBuf {
    match runtime {
        Some(folder) if usable(folder) => folder.join("rgaps"),
        _ => temporary.join(format!("rgaps-{}", uid())),
    }
}

/// Whether a runtime folder is what its name promises: ours, writable, and no one else's to
/// write in. (`su` and `sudo` keep the variable of another user.)
fn usable(folder: &Path) -> bool {
    folder.is_absolute()
        && std::fs::metadata(folder)
            .is_ok_and(|there| there.is_dir() && there.uid() == uid() && there.mode() & 0o022 == 0)
        && rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

/// Checks the folder of a socket, creating it (0700) if `create`. Gives whether it is there.
///
/// A folder that we chose ourselves (`chosen`) has to be ours alone: in `/tmp` anyone could have
/// made one of that name and put a socket of their own into it.
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
                "{error}; set 'socket' in rgaps.toml to a path that can be written"
            ))
        })?;
    }
    // Of the name itself: a link in place of the folder is somebody's trick.
    let there = match std::fs::symlink_metadata(folder) {
        Ok(there) => there,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(refuse(error.to_string())),
    };
    if chosen {
        if !there.is_dir() {
            return Err(refuse(
                "it is not a folder, or a link; remove it".to_owned(),
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
    fn the_runtime_folder_if_it_is_ours() {
        let runtime = tempfile::tempdir().unwrap();
        let temporary = Path::new("/somewhere");
        let fallback = temporary.join(format!("rgaps-{}", uid()));
        chmod(runtime.path(), 0o700);
        assert_eq!(
            own_folder(Some(runtime.path()), temporary),
            runtime.path().join("rgaps")
        );
        chmod(runtime.path(), 0o777);
        assert_eq!(own_folder(Some(runtime.path()), temporary), fallback);
        assert_eq!(
            own_folder(Some(Path::new("/not/there")), temporary),
            fallback
        );
        assert_eq!(own_folder(None, temporary), fallback);
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
        assert!(paths[0].ends_with("lab.sock") && paths.len() == 2);
        assert_eq!(paths[1], Path::new("/run/rgaps/lab.sock"));
    }
}
