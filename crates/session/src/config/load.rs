//! Reading the configuration from files, the environment and a program's own arguments.

use super::blame::{key_in, line_of_key, refused_in_file, rejected, rejected_in_file, wrong};
use super::{check_realm, uid, Config, ConfigError};
use crate::similar::similar_name;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The environment variable with the configuration, as TOML, that a client passes to the daemon that it starts.
pub(crate) const INLINE_VARIABLE: &str = "RGAPSD_CONFIG";
/// The environment variable with the path of the configuration file.
const FILE_VARIABLE: &str = "RGAPS_CONFIG";
/// The environment variable with the path of the program with the links to other hosts.
pub(crate) const LINKS_PROGRAM_VARIABLE: &str = "RGAPS_LINKS_PROGRAM";
/// Variables that start with `RGAPS_` and are not keys.
const NO_KEYS: [&str; 14] = [
    FILE_VARIABLE,
    "RGAPS_DAEMON",
    LINKS_PROGRAM_VARIABLE,
    "RGAPS_CUDA_LIBRARY",
    "RGAPS_VERBS_LIBRARY",
    "RGAPS_DOMAIN",
    "RGAPS_DEBUG",
    "RGAPS_GPU",
    "RGAPS_GPU_BLOCKING",
    "RGAPS_GPU_INLINE",
    "RGAPS_GPU_LIBRARIES",
    "RGAPS_VIEW_TOKEN",
    "RGAPS_GPU_STATISTICS",
    "RGAPS_GPU_STRIPES",
];
/// The prefix of variables that tests use.
const TEST_PREFIX: &str = "RGAPS_TEST_";
/// Top-level keys. A variable whose first part is not one of them is not a key (Kubernetes sets `RGAPS_SERVICE_HOST` if a service
/// is called rgaps).
const KEYS: [&str; 19] = [
    "realm",
    "socket",
    "socket_mode",
    "idle_exit_ms",
    "recovery_ms",
    "log",
    "log_format",
    "autostart",
    "namespace",
    "remap",
    "pool",
    "cuda",
    "limits",
    "links",
    "gpu",
    "bridge",
    "metrics",
    "traces",
    "access",
];

/// The sources of a configuration, besides a file that the caller names.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Environment variables.
    pub variables: BTreeMap<String, String>,
    /// Where to search for a file. The first that exists is used.
    pub files: Vec<PathBuf>,
    /// Keys that the program's caller sets. They override files and variables.
    pub arguments: Vec<Argument>,
}

/// A key that a program's caller sets, by an option or by a parameter of a function.
#[derive(Clone, Debug)]
pub struct Argument {
    /// The option or parameter, for errors: `--realm`, `realm=`.
    pub name: String,
    /// The key, with dots: `pool.host.cap`.
    pub key: String,
    /// Its value. A string is converted to the key's type, as in a variable.
    pub value: toml::Value,
}

impl Argument {
    /// A key that is set to a text.
    pub fn text(name: &str, key: &str, value: &str) -> Argument {
        Argument {
            name: name.to_owned(),
            key: key.to_owned(),
            value: toml::Value::String(value.to_owned()),
        }
    }
}

impl Environment {
    /// The environment of this process.
    pub fn current() -> Environment {
        // Ignores variables that are not UTF-8, which cannot be keys.
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
        Environment {
            variables,
            files,
            arguments: Vec::new(),
        }
    }
}

impl Config {
    /// The configuration of this process. `file` (from `--config`) replaces the search for a file.
    pub fn load(file: Option<&Path>) -> Result<Config, ConfigError> {
        Config::load_from(file, &Environment::current())
    }

    /// The configuration in a given environment.
    pub fn load_from(
        file: Option<&Path>,
        environment: &Environment,
    ) -> Result<Config, ConfigError> {
        let base = Base::load(file, environment)?;
        let mut config = base.with(&steps(&base, environment))?;
        // Resolves paths here, since a daemon with this configuration runs in another folder.
        make_absolute(&mut config.socket, "socket")?;
        let tls = &mut config.links.tls;
        for path in [&mut tls.ca, &mut tls.certificate, &mut tls.key] {
            make_absolute(path, "links.tls")?;
        }
        make_absolute(&mut config.gpu.images, "gpu.images")?;
        for (name, path) in &mut config.gpu.communicators {
            let mut plugin = Some(std::mem::take(path));
            make_absolute(&mut plugin, &format!("gpu.communicators.{name}"))?;
            *path = plugin.unwrap_or_default();
        }
        config.file = base.file.map(|path| absolute(&path));
        config.ignored_variables = match base.is_inline {
            true => Vec::new(),
            false => ignored(&environment.variables),
        };
        config.unreadable_files = base.unreadable;
        Ok(config)
    }

    /// A configuration with only the realm and the socket, from sources that [`load_from`](Self::load_from) refuses: enough to find
    /// a daemon and stop it. Fails only if an unreadable part could name another daemon.
    pub fn load_address(
        file: Option<&Path>,
        environment: &Environment,
    ) -> Result<Config, ConfigError> {
        let set = |key: &str| {
            let argument = environment
                .arguments
                .iter()
                .rev()
                .find(|set| set.key == key);
            let argument = argument.and_then(|set| set.value.as_str());
            let variable = || {
                environment
                    .variables
                    .get(&format!("RGAPS_{}", key.to_uppercase()))
            };
            argument
                .or_else(|| variable().map(String::as_str))
                .map(str::to_owned)
        };
        let (mut realm, mut socket) = (set("realm"), set("socket"));
        // A socket alone identifies the daemon. A realm alone does if the file names no socket.
        if socket.is_none() {
            let table = find(file, environment).and_then(|found| match found.file {
                Some((text, path)) => from_text(&text, &path.display().to_string()),
                None => Ok(toml::Table::new()),
            });
            match table {
                Ok(table) => {
                    let text = |key: &str| Some(table.get(key)?.as_str()?.to_owned());
                    socket = text("socket");
                    realm = realm.or_else(|| text("realm"));
                }
                Err(error) if realm.is_none() => return Err(error),
                Err(_) => {}
            }
        }
        let mut config = Config {
            socket: socket.map(PathBuf::from),
            ..Config::default()
        };
        if let Some(realm) = realm {
            check_realm(&realm).map_err(|reason| wrong("the realm", reason))?;
            config.realm = realm;
        }
        make_absolute(&mut config.socket, "socket")?;
        Ok(config)
    }

    /// Warnings for the user: variables without effect, and files that could not be read.
    pub fn warnings(&self) -> impl Iterator<Item = String> + '_ {
        let variables = self.ignored_variables.iter().map(|name| no_effect(name));
        variables.chain(self.unreadable_files.iter().map(|path| {
            format!(
                "the configuration '{}' is not used: user {} may not read it",
                path.display(),
                uid()
            )
        }))
    }

    /// The configuration as TOML, for a child process, without the client's namespace and remapping.
    pub(crate) fn to_inline(&self) -> Result<String, ConfigError> {
        let config = Config {
            namespace: String::new(),
            remap: Vec::new(),
            ..self.clone()
        };
        toml::to_string(&config).map_err(|error| wrong("the configuration", error))
    }
}

/// The configuration of a file, or the built-in values, which variables and arguments override.
#[derive(Default)]
struct Base {
    config: Config,
    /// The same configuration as a table.
    table: toml::Table,
    text: String,
    /// Its source, for errors.
    location: String,
    file: Option<PathBuf>,
    unreadable: Vec<PathBuf>,
    /// Whether it is the whole configuration of the client that started this daemon.
    is_inline: bool,
}

impl Base {
    fn load(file: Option<&Path>, environment: &Environment) -> Result<Base, ConfigError> {
        let inline = environment.variables.get(INLINE_VARIABLE);
        let mut unreadable = Vec::new();
        let (text, location, file, is_inline) = match (file, inline) {
            (None, Some(text)) => (text.clone(), INLINE_VARIABLE.to_owned(), None, true),
            _ => {
                let found = find(file, environment)?;
                unreadable = found.unreadable;
                match found.file {
                    Some((text, path)) => (text, path.display().to_string(), Some(path), false),
                    None => {
                        return Ok(Base {
                            unreadable,
                            ..Base::default()
                        })
                    }
                }
            }
        };
        Ok(Base {
            config: from_text(&text, &location)?,
            table: from_text(&text, &location)?,
            text,
            location,
            file,
            unreadable,
            is_inline,
        })
    }

    /// The configuration after all steps. Only the final one must be valid.
    fn with(&self, steps: &[Step]) -> Result<Config, ConfigError> {
        let (mut config, mut table) = (self.config.clone(), self.table.clone());
        let mut checks = vec![config.check()];
        for step in steps {
            let set = with(&table, &step.key, step.value.clone());
            (config, table) = set.map_err(|error| rejected(&step.location, &error))?;
            checks.push(config.check());
        }
        match checks.last() {
            Some(Err(reason)) => Err(self.blame(steps, &checks, reason)),
            _ => Ok(config),
        }
    }

    /// The error for a reason. It names the source that set the key with which the reason starts, else the first step after which
    /// the check failed.
    fn blame(&self, steps: &[Step], checks: &[Result<(), String>], reason: &str) -> ConfigError {
        let key = key_in(reason);
        if let Some(step) = steps.iter().rfind(|step| step.key.join(".") == key) {
            return wrong(&step.location, reason);
        }
        let is_this =
            |check: &Result<(), String>| check.as_ref().is_err_and(|other| other == reason);
        match checks.iter().position(is_this).unwrap_or(0) {
            0 => refused_in_file(&self.location, &self.text, reason),
            _ if line_of_key(&self.text, key).is_some() => {
                refused_in_file(&self.location, &self.text, reason)
            }
            number => wrong(&steps[number - 1].location, reason),
        }
    }
}

/// A key that a variable or an argument sets.
struct Step {
    /// The variable or argument that sets it, for errors.
    location: String,
    key: Vec<String>,
    value: toml::Value,
}

fn steps(base: &Base, environment: &Environment) -> Vec<Step> {
    let variables = environment.variables.iter().filter(|_| !base.is_inline);
    let variables = variables.filter_map(|(variable, text)| {
        let key = key_of(variable).filter(|key| KEYS.contains(&key[0].as_str()))?;
        Some(Step {
            location: format!("environment variable {variable}={text}"),
            key,
            value: toml::Value::String(text.clone()),
        })
    });
    let arguments = environment.arguments.iter().map(|argument| Step {
        location: argument.name.clone(),
        key: argument.key.split('.').map(str::to_owned).collect(),
        value: argument.value.clone(),
    });
    variables.chain(arguments).collect()
}

/// The key of a variable, if its name could be a key.
fn key_of(variable: &str) -> Option<Vec<String>> {
    let rest = variable.strip_prefix("RGAPS_")?;
    if NO_KEYS.contains(&variable) || variable.starts_with(TEST_PREFIX) {
        return None;
    }
    let key = rest.to_ascii_lowercase();
    Some(key.split("__").map(str::to_owned).collect())
}

/// The variables that look like keys and are not.
fn ignored(variables: &BTreeMap<String, String>) -> Vec<String> {
    let is_unknown =
        |variable: &&String| key_of(variable).is_some_and(|key| !KEYS.contains(&key[0].as_str()));
    variables.keys().filter(is_unknown).cloned().collect()
}

/// The warning that a variable of [`ignored`] has no effect, with the variable that the user probably meant.
fn no_effect(variable: &str) -> String {
    let text = format!(
        "the environment variable {variable} has no effect: it names no key of the configuration"
    );
    // The user wrote one underscore instead of two: RGAPS_POOL_HOST_CAP.
    let first = variable.trim_start_matches("RGAPS_").split('_').next();
    let first = first.unwrap_or_default().to_ascii_lowercase();
    if KEYS.contains(&first.as_str()) {
        return format!(
            "{text}; two underscores stand for the dot in a key, as in RGAPS_POOL__HOST__CAP for pool.host.cap"
        );
    }
    // Only the first part of the key is unknown here: other unknown parts are errors.
    let (name, rest) = match variable.split_once("__") {
        Some((name, rest)) => (name, format!("__{rest}")),
        None => (variable, String::new()),
    };
    let keys = KEYS.map(|key| format!("RGAPS_{}", key.to_uppercase()));
    let known = keys.iter().map(String::as_str).chain(NO_KEYS);
    match similar_name(name, known) {
        Some(meant) => format!("{text}; did you mean {meant}{rest}?"),
        None => text,
    }
}

/// What the search for a configuration file found.
#[derive(Default)]
struct Found {
    /// Its text and path.
    file: Option<(String, PathBuf)>,
    /// Files before it that this user may not read.
    unreadable: Vec<PathBuf>,
}

/// Reads the configuration file, if there is one.
fn find(file: Option<&Path>, environment: &Environment) -> Result<Found, ConfigError> {
    let named = file
        .map(Path::to_owned)
        .or_else(|| environment.variables.get(FILE_VARIABLE).map(PathBuf::from));
    match named {
        Some(path) => Ok(Found {
            file: Some((read(&path)?, path)),
            unreadable: Vec::new(),
        }),
        None => search(&environment.files),
    }
}

fn make_absolute(path: &mut Option<PathBuf>, key: &str) -> Result<(), ConfigError> {
    if let Some(named) = path.take() {
        *path = Some(std::path::absolute(&named).map_err(|error| wrong(key, error))?);
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: absolute(path),
        source,
    })
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Reads the first file that exists. Skips a file that this user may not read: nobody named it, and under sudo it often belongs to
/// another user.
fn search(files: &[PathBuf]) -> Result<Found, ConfigError> {
    let mut found = Found::default();
    for path in files {
        match read(path) {
            Ok(text) => {
                found.file = Some((text, path.clone()));
                break;
            }
            Err(ConfigError::Read { source, .. })
                if matches!(
                    source.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                ) => {}
            Err(ConfigError::Read { source, .. })
                if source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                // If it is the folder that this user may not enter, nobody can say whether there is a file.
                if path.exists() {
                    found.unreadable.push(absolute(path));
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn from_text<T: DeserializeOwned>(text: &str, location: &str) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| rejected_in_file(location, text, &error))
}

/// The table with `key` set to a value. A string is taken for the TOML value that it is the text of (`60000`, `true`,
/// `["a"]`) where that fits, else for itself (`2GiB`, or a realm called `123`).
fn with(
    table: &toml::Table,
    key: &[String],
    value: toml::Value,
) -> Result<(Config, toml::Table), toml::de::Error> {
    let attempt = |value: toml::Value| {
        let mut table = table.clone();
        set(&mut table, key, value);
        table
            .clone()
            .try_into::<Config>()
            .map(|config| (config, table))
    };
    let text_of = value
        .as_str()
        .and_then(|text| toml::from_str::<toml::Table>(&format!("v = {text}")).ok())
        .and_then(|mut table| table.remove("v"));
    match text_of {
        // A string in quotes: trying it again would only say the same less well.
        Some(inner @ toml::Value::String(_)) => attempt(inner),
        Some(inner) => attempt(inner).or_else(|error| attempt(value).map_err(|_| error)),
        None => attempt(value),
    }
}

fn set(table: &mut toml::Table, key: &[String], value: toml::Value) {
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
