//! Completion in shells (clap's dynamic completion). The script that a shell sources runs `rgaps` with a variable set and the
//! words so far as arguments; the program answers with candidates. So the candidates are always current.

use crate::args::Cli;
use crate::output::Output;
use clap::CommandFactory;
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, CompletionCandidate, Shell};
use rgaps::{Config, Node};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The variable that the script sets.
const VARIABLE: &str = "_RGAPS_COMPLETE";

/// Answers a shell that asks for candidates, and exits. Otherwise returns.
pub fn answer() {
    CompleteEnv::with_factory(Cli::command)
        .var(VARIABLE)
        .complete();
}

/// Prints the script.
pub fn script(shell: Shell, output: &mut Output) -> anyhow::Result<()> {
    let name = shell.to_string();
    let shells = Shells::builtins();
    let registered = shells.completer(&name).map(|shell| {
        let mut script = Vec::new();
        shell.write_registration(VARIABLE, "rgaps", "rgaps", &program(), &mut script)?;
        Ok::<_, std::io::Error>(script)
    });
    let Some(script) = registered.transpose()? else {
        anyhow::bail!("there is no completion for {name}");
    };
    let script = String::from_utf8(script)?;
    let document = serde_json::json!({ "shell": name, "script": script });
    output.put(&document, |to| to.write_all(script.as_bytes()))
}

/// How the script calls this program: by name, if the shell found it by name, otherwise by its path.
fn program() -> String {
    let called = PathBuf::from(std::env::args_os().next().unwrap_or_default());
    let is_name = called.components().count() == 1;
    let path = std::env::current_exe().ok().filter(|_| !is_name);
    path.unwrap_or(called).to_string_lossy().into_owned()
}

/// Names of topics that begin with the current word. Empty without a daemon: completion starts none and prints no error.
pub fn topics(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else {
        return Vec::new();
    };
    let (slash, begin) = match current.strip_prefix('/') {
        Some(begin) => ("/", begin),
        None => ("", current),
    };
    let names = known(slash.is_empty()).unwrap_or_default();
    let fitting = names.into_iter().filter(|name| name.starts_with(begin));
    fitting
        .map(|name| CompletionCandidate::new(format!("{slash}{name}")))
        .collect()
}

/// The daemon's topics; with `is_relative` only those in the namespace, by their names below it. None: no daemon answers.
fn known(is_relative: bool) -> Option<Vec<String>> {
    let words: Vec<String> = std::env::args().skip_while(|word| word != "--").collect();
    let option = |name: &str| {
        let joined = format!("{name}=");
        words
            .iter()
            .enumerate()
            .find_map(|(at, word)| match word.strip_prefix(&joined) {
                Some(value) => Some(value.to_owned()),
                None if word == name => words.get(at + 1).cloned(),
                None => None,
            })
    };
    let file = option("--config");
    let mut config = Config::load(file.as_deref().map(Path::new)).ok()?;
    if let Some(realm) = option("--realm") {
        config.realm = realm;
    }
    if let Some(socket) = option("--socket") {
        config.socket = Some(std::path::absolute(socket).ok()?);
    }
    if let Some(namespace) = option("--namespace") {
        config.namespace = namespace;
    }
    let above = match config.namespace.trim_matches('/') {
        name if is_relative && !name.is_empty() => format!("{name}/"),
        _ => String::new(),
    };
    config.autostart = false;
    let node = Node::builder("rgaps-completion")
        .config(config)
        .build()
        .ok()?;
    let names = node.topics().ok()?.into_iter();
    Some(
        names
            .filter_map(|row| Some(row.name.strip_prefix(&above)?.to_owned()))
            .collect(),
    )
}
