//! Reading the configuration from files and the environment.

use super::{Config, ConfigError};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Carries a client's configuration, as TOML, to the daemon that it starts.
pub(crate) const INLINE_VARIABLE: &str = "RGAPSD_CONFIG";
/// Names the file.
const FILE_VARIABLE: &str = "RGAPS_CONFIG";
/// Names the program with the links to other hosts.
pub(crate) const LINKS_PROGRAM_VARIABLE: &str = "RGAPS_LINKS_PROGRAM";
/// Variables that start like keys and are none.
const NO_KEYS: [&str; 5] = [
    FILE_VARIABLE,
    "RGAPS_DAEMON",
    LINKS_PROGRAM_VARIABLE,
    "RGAPS_CUDA_LIBRARY",
    "RGAPS_DOMAIN",
];
/// What tests set for themselves.
const TEST_PREFIX: &str = "RGAPS_TEST_";
/// Top-level keys; a variable whose first part is none of them is not ours (Kubernetes sets
/// `RGAPS_SERVICE_HOST` where a service is called rgaps).
const KEYS: [&str; 15] = [
    "realm",
    "socket",
    "socket_mode",
    "idle_exit_ms",
    "recovery_ms",
    "log",
    "log_format",
    "autostart",
    "pool",
    "cuda",
    "limits",
    "links",
    "metrics",
    "traces",
    "access",
];

/// What the configuration depends on besides files.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Environment variables.
    pub variables: BTreeMap<String, String>,
    /// Files to look for, the first that exists is taken.
    pub files: Vec<PathBuf>,
}

impl Environment {
    /// This process's.
    pub fn current() -> Environment {
        // Variables that are not UTF-8 are none of ours.
        let variables: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let absolute = |name: &str| {
            variables
                .get(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        let personal = absolute("XDG_CONFIG_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".config")));
        let mut files = vec![PathBuf::from("rgaps.toml")];
        files.extend(personal.map(|folder| folder.join("rgaps/rgaps.toml")));
        files.push(PathBuf::from("/etc/rgaps/rgaps.toml"));
        Environment { variables, files }
    }
}

impl Config {
    /// The configuration of this process. `file` (from `--config`) goes before all other files.
    pub fn load(file: Option<&Path>) -> Result<Config, ConfigError> {
        Config::load_from(file, &Environment::current())
    }

    /// The configuration in a given environment.
    pub fn load_from(
        file: Option<&Path>,
        environment: &Environment,
    ) -> Result<Config, ConfigError> {
        if let (None, Some(text)) = (file, environment.variables.get(INLINE_VARIABLE)) {
            return checked(parse(text, INLINE_VARIABLE)?, INLINE_VARIABLE);
        }
        let named = file
            .map(Path::to_owned)
            .or_else(|| environment.variables.get(FILE_VARIABLE).map(PathBuf::from));
        let found = match named {
            Some(path) => Some((read(&path)?, path)),
            None => first_there(&environment.files)?,
        };
        let (config, table, path) = match found {
            Some((text, path)) => {
                let place = path.display().to_string();
                let config = checked(parse(&text, &place)?, &place)?;
                let table = toml::from_str(&text).map_err(|error| wrong(&place, error))?;
                (config, table, Some(path))
            }
            None => (Config::default(), toml::Table::new(), None),
        };
        let mut config = overlay(config, table, &environment.variables)?;
        // Relative to where the configuration was read, also for a daemon that runs elsewhere.
        if let Some(socket) = config.socket.take() {
            config.socket =
                Some(std::path::absolute(&socket).map_err(|error| wrong("socket", error))?);
        }
        let tls = &mut config.links.tls;
        for path in [&mut tls.ca, &mut tls.certificate, &mut tls.key] {
            if let Some(named) = path.take() {
                let absolute = std::path::absolute(&named);
                *path = Some(absolute.map_err(|error| wrong("links.tls", error))?);
            }
        }
        config.file = path.map(|path| std::path::absolute(&path).unwrap_or(path));
        Ok(config)
    }

    /// As TOML, for a daemon to be started.
    pub(crate) fn to_inline(&self) -> Result<String, ConfigError> {
        toml::to_string(self).map_err(|error| wrong("the configuration", error))
    }
}

fn wrong(place: &str, reason: impl ToString) -> ConfigError {
    ConfigError::Wrong {
        place: place.to_owned(),
        reason: reason.to_string().trim_end().to_owned(),
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })
}

fn first_there(files: &[PathBuf]) -> Result<Option<(String, PathBuf)>, ConfigError> {
    for path in files {
        match read(path) {
            Ok(text) => return Ok(Some((text, path.clone()))),
            Err(ConfigError::Read { source, .. })
                if matches!(
                    source.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                ) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn parse(text: &str, place: &str) -> Result<Config, ConfigError> {
    toml::from_str(text).map_err(|error| wrong(place, error))
}

fn checked(config: Config, place: &str) -> Result<Config, ConfigError> {
    config.check().map_err(|reason| wrong(place, reason))?;
    Ok(config)
}

/// Puts the environment's variables over a file's table, one by one, so that each mistake is
/// reported with the variable that made it.
fn overlay(
    mut config: Config,
    mut table: toml::Table,
    variables: &BTreeMap<String, String>,
) -> Result<Config, ConfigError> {
    let mut ignored = Vec::new();
    for (variable, text) in variables {
        let Some(rest) = variable.strip_prefix("RGAPS_") else {
            continue;
        };
        if NO_KEYS.contains(&variable.as_str()) || variable.starts_with(TEST_PREFIX) {
            continue;
        }
        let key = rest.to_ascii_lowercase();
        let key: Vec<&str> = key.split("__").collect();
        if !KEYS.contains(&key[0]) {
            ignored.push(variable.clone());
            continue;
        }
        let place = format!("environment variable {variable}={text}");
        (config, table) = with(&table, &key, text).map_err(|error| wrong(&place, error))?;
        config = checked(config, &place)?;
    }
    config.ignored_variables = ignored;
    Ok(config)
}

/// The table with `key` set to what `text` says: as a TOML value (`60000`, `true`, `["a"]`) where
/// that fits, else as a string (`2GiB`, or a realm called `123`).
fn with(
    table: &toml::Table,
    key: &[&str],
    text: &str,
) -> Result<(Config, toml::Table), toml::de::Error> {
    let as_string = toml::Value::String(text.to_owned());
    let as_value = toml::from_str::<toml::Table>(&format!("v = {text}"))
        .ok()
        .and_then(|mut t| t.remove("v"));
    let attempt = |value: toml::Value| {
        let mut table = table.clone();
        set(&mut table, key, value);
        table
            .clone()
            .try_into::<Config>()
            .map(|config| (config, table))
    };
    match as_value {
        Some(value) => attempt(value.clone()).or_else(|error| match value {
            // A string already: trying it again would only say the same less well.
            toml::Value::String(_) => Err(error),
            _ => attempt(as_string).map_err(|_| error),
        }),
        None => attempt(as_string),
    }
}

fn set(table: &mut toml::Table, key: &[&str], value: toml::Value) {
    let (last, folders) = key.split_last().expect("a split gives at least one part");
    let mut here = table;
    for folder in folders {
        let entry = here
            .entry(folder.to_string())
            .or_insert_with(|| toml::Value::Table(Default::default()));
        if !entry.is_table() {
            // A key below something that has none: put there, for the check to name it.
            *entry = toml::Value::Table(Default::default());
        }
        here = entry.as_table_mut().expect("made one just now");
    }
    here.insert(last.to_string(), value);
}
