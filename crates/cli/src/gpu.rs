//! `gpu`: serves this host's GPUs, and runs CUDA programs on GPUs of other hosts.

use crate::args::{Common, Gpu, GpuBackend, GpuRun, GpuServe, GpuServer, GpuTop};
use crate::exit::Usage;
use crate::output::{table, Output};
use crate::session::{config, config_without_warnings};
use crate::units;
use anyhow::Context;
use rgaps_remoting::{
    run_backend, status, BackendOptions, ClientInfo, Communication, Endpoint, Front, FrontOptions,
    GpuList, ServerStatus, Socket,
};
use rgaps_session::end_with_parent;
use serde::Serialize;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The folder of the libraries, relative to the folder of this program: where it is installed, and where it is built.
const LIBRARY_FOLDERS: [&str; 2] = ["../lib/rgaps/gpu", "gpu-libs"];

/// The variable that names the configuration file.
const CONFIG_VARIABLE: &str = "RGAPS_CONFIG";
/// The variable that limits which GPUs the driver shows.
const DEVICES_VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

pub fn gpu(common: &Common, command: Gpu, output: &mut Output) -> anyhow::Result<()> {
    match command {
        Gpu::Serve(serve) => self::serve(common, serve, output),
        Gpu::Run(run) => self::run(common, &run),
        Gpu::List(server) => list(common, &server, output),
        Gpu::Top(top) => self::top(common, &top, output),
        Gpu::Backend(backend) => self::backend(common, &backend),
    }
}

#[derive(Serialize)]
struct Serving<'a> {
    devices: &'a [String],
    listen: Vec<String>,
}

fn serve(common: &Common, serve: GpuServe, output: &mut Output) -> anyhow::Result<()> {
    if serve.with_parent && !end_with_parent().context("asking for the parent's end")? {
        return Ok(());
    }
    let program = std::env::current_exe().context("this program does not know where it is")?;
    let config = config(common)?;
    let gpu = &config.gpu;
    let listen = match serve.listen.is_empty() {
        false => serve.listen,
        true => endpoints(&gpu.listen)?,
    };
    let devices = match serve.devices.is_empty() {
        true => &gpu.devices,
        false => &serve.devices,
    };
    if !devices.is_empty() {
        // The driver is not loaded yet, so it reads this value; and no other thread runs that could read variables.
        std::env::set_var(DEVICES_VARIABLE, devices.join(","));
    }
    let front = Front::open(FrontOptions {
        listen,
        communication: Communication::of(&config),
        clients_max: serve.clients.unwrap_or(gpu.clients),
        memory_limit: serve.memory.or(gpu.memory_max).map(|size| size.0),
        is_pinning: gpu.pinning && !serve.no_pinning,
        images: images(gpu.images.clone()),
        backend: (program, backend_arguments(common)?),
    })?;
    let serving = Serving {
        devices: front.devices(),
        listen: front.endpoints(),
    };
    output.put(&serving, |to| {
        writeln!(
            to,
            "serving {} at {}",
            serving.devices.join(", "),
            serving.listen.join(", ")
        )
    })?;
    Ok(front.serve()?)
}

/// The arguments that give a backend the configuration of this server.
fn backend_arguments(common: &Common) -> io::Result<Vec<OsString>> {
    let mut arguments = Vec::new();
    let mut add = |name: &str, value: &OsStr| arguments.extend([name.into(), value.to_owned()]);
    if let Some(file) = &common.config {
        add("--config", std::path::absolute(file)?.as_os_str());
    }
    if let Some(socket) = &common.socket {
        add("--socket", socket.as_os_str());
    }
    if let Some(realm) = &common.realm {
        add("--realm", realm.as_ref());
    }
    arguments.extend(["gpu", "backend"].map(OsString::from));
    Ok(arguments)
}

fn endpoints(texts: &[String]) -> anyhow::Result<Vec<Endpoint>> {
    let endpoint = |text: &String| {
        let parsed = text.parse();
        parsed.map_err(|reason: String| Usage(format!("gpu.listen: {reason}")).into())
    };
    texts.iter().map(endpoint).collect()
}

/// The folder for images of libraries: the one that the configuration names, or one in this user's cache folder. None: the folder
/// cannot be created, or this user has no cache folder.
fn images(named: Option<PathBuf>) -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cache = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let folder = named.or_else(|| Some(cache()?.join("rgaps/gpu-images")))?;
    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder);
    match made {
        Ok(()) => Some(folder),
        Err(error) => {
            rgaps_session::print_error(format_args!(
                "rgaps: no images of libraries are kept: {}: {error}; set gpu.images",
                folder.display()
            ));
            None
        }
    }
}

fn backend(common: &Common, backend: &GpuBackend) -> anyhow::Result<()> {
    let descriptor = |of: &dyn AsFd| of.as_fd().try_clone_to_owned();
    let socket = Socket::of_descriptor(descriptor(&io::stdin())?, &backend.kind);
    let board = File::from(descriptor(&io::stdout())?);
    let options = BackendOptions {
        memory_limit: backend.memory_bytes,
        is_pinning: !backend.no_pinning,
        images: backend.images.clone(),
        config: config_without_warnings(common)?,
        program: backend.program.clone(),
        server: backend.server,
        parent: backend.parent,
    };
    Ok(run_backend(socket, board, &options)?)
}

fn libraries(run: &GpuRun) -> anyhow::Result<PathBuf> {
    if let Some(folder) = &run.libraries {
        return Ok(folder.clone());
    }
    let program = std::env::current_exe().context("this program does not know where it is")?;
    let near = program
        .parent()
        .into_iter()
        .flat_map(|folder| LIBRARY_FOLDERS.map(|name| folder.join(name)));
    let found = near
        .into_iter()
        .find(|folder| folder.join("librgaps_gpu.so").is_file());
    let found = found.ok_or_else(|| {
        Usage("the libraries that stand in for CUDA's are not installed beside this program; name their folder with --libraries".to_owned())
    })?;
    // The dynamic loader uses this path in the program, whose folder may change, so it has to be absolute.
    found
        .canonicalize()
        .with_context(|| format!("{} cannot be used", found.display()))
}

/// Checks the servers before the program starts, so that an error names the server and its reason.
fn check_servers(communication: &Communication, list: &GpuList) -> anyhow::Result<()> {
    let mut counts = Vec::new();
    for server in list.servers() {
        let found = status(communication, server)?;
        if found.clients.len() >= found.clients_max as usize {
            rgaps_session::print_error(format_args!(
                "rgaps: the GPU server at {server} is full ({} clients); the program may be refused",
                found.clients.len()
            ));
        }
        counts.push(found.devices.len());
    }
    list.gpus(&counts).map_err(Usage)?;
    Ok(())
}

fn run(common: &Common, run: &GpuRun) -> anyhow::Result<()> {
    let folder = libraries(run)?;
    let (communication, list) = wanted(common, &run.server)?;
    check_servers(&communication, &list)?;
    let Some((program, arguments)) = run.command.split_first() else {
        return Err(Usage("no command given; write rgaps gpu run -- COMMAND".to_owned()).into());
    };
    let preload = preload(&folder)?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LD_LIBRARY_PATH", before("LD_LIBRARY_PATH", folder.into()))
        .env("LD_PRELOAD", before("LD_PRELOAD", preload))
        .env("RGAPS_GPU", list.to_string());
    if let Some(file) = &common.config {
        // The program's libraries read the configuration too, and the program may change its folder first.
        command.env(CONFIG_VARIABLE, std::path::absolute(file)?);
    }
    // `exec` returns only if it fails. Otherwise the program decides the exit code.
    let error = command.exec();
    Err(error).with_context(|| format!("starting '{}' failed", program.to_string_lossy()))
}

/// The value of `LD_PRELOAD` with the libraries of a folder. Preloaded, they also replace libraries that a program loads by a path of
/// its own, as torch does.
fn preload(folder: &Path) -> anyhow::Result<OsString> {
    let unreadable = || format!("{} cannot be read", folder.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(unreadable)? {
        let path = entry.with_context(unreadable)?.path();
        if path.to_string_lossy().contains(".so.") {
            names.push(path.into_os_string());
        }
    }
    // In descending order of names: the newest version of each library comes first if all its versions have the same length.
    names.sort();
    names.reverse();
    Ok(names.join(OsStr::new(":")))
}

/// `paths`, followed by the current value of the variable.
fn before(variable: &str, mut paths: OsString) -> OsString {
    if let Some(more) = std::env::var_os(variable).filter(|more| !more.is_empty()) {
        paths.push(":");
        paths.push(more);
    }
    paths
}

fn row(client: &ClientInfo) -> Vec<String> {
    vec![
        client.program.clone(),
        client.pid.to_string(),
        client.from.clone(),
        client.backend.to_string(),
        client.calls.to_string(),
        units::bytes(client.bytes_in),
        units::bytes(client.bytes_out),
        units::bytes(client.memory_bytes),
        units::spaced_micros(client.waited_ns as f64 / 1e3),
    ]
}

const HEADS: [&str; 9] = [
    "PROGRAM",
    "PID",
    "FROM",
    "BACKEND",
    "CALLS",
    "BYTES IN",
    "BYTES OUT",
    "MEMORY",
    "WAITED",
];

/// The servers of the option, or else of the configuration, and how to reach them.
fn wanted(common: &Common, server: &GpuServer) -> anyhow::Result<(Communication, GpuList)> {
    let config = config(common)?;
    let communication = Communication::of(&config);
    if let Some(list) = &server.on {
        return Ok((communication, list.clone()));
    }
    let named = config.gpu.servers;
    if named.is_empty() {
        let text = "no GPU server is named: give --on HOST, or name servers in gpu.servers of the configuration";
        return Err(Usage(text.to_owned()).into());
    }
    let list = named.join(",").parse();
    let list = list.map_err(|reason| Usage(format!("gpu.servers: {reason}")))?;
    Ok((communication, list))
}

fn list(common: &Common, server: &GpuServer, output: &mut Output) -> anyhow::Result<()> {
    let (communication, list) = wanted(common, server)?;
    let servers = list.servers();
    let mut away = 0;
    for at in &servers {
        let name = (servers.len() > 1).then_some(*at);
        match status(&communication, at) {
            Ok(status) => list_one(&status, name, output)?,
            Err(error) if servers.len() == 1 => return Err(error.into()),
            Err(error) => {
                rgaps_session::print_error(format_args!("rgaps: {error}"));
                away += 1;
            }
        }
    }
    match away {
        0 => Ok(()),
        away => Err(anyhow::anyhow!(
            "{away} of {} servers cannot be listed",
            servers.len()
        )),
    }
}

/// Prints a server. `name`: printed above it, if there are several.
fn list_one(
    status: &ServerStatus,
    name: Option<&Endpoint>,
    output: &mut Output,
) -> anyhow::Result<()> {
    output.put(status, |to| {
        if let Some(name) = name {
            writeln!(to, "{name}")?;
        }
        for (ordinal, name) in status.devices.iter().enumerate() {
            writeln!(to, "GPU {ordinal}: {name}")?;
        }
        writeln!(
            to,
            "{} of at most {} clients",
            status.clients.len(),
            status.clients_max
        )?;
        if status.clients.is_empty() {
            return Ok(());
        }
        let rows: Vec<_> = status.clients.iter().map(row).collect();
        table(to, &HEADS, &rows)
    })
}

/// The clients of `now`, with their counters as rates per second since `before`.
fn rates(now: &ServerStatus, before: &ServerStatus, seconds: f64) -> Vec<ClientInfo> {
    let earlier: HashMap<u32, &ClientInfo> = before
        .clients
        .iter()
        .map(|client| (client.backend, client))
        .collect();
    let rate = |now: u64, before: u64| (now.saturating_sub(before) as f64 / seconds) as u64;
    let client = |client: &ClientInfo| {
        let none = ClientInfo::default();
        let then = earlier.get(&client.backend).copied().unwrap_or(&none);
        ClientInfo {
            calls: rate(client.calls, then.calls),
            bytes_in: rate(client.bytes_in, then.bytes_in),
            bytes_out: rate(client.bytes_out, then.bytes_out),
            waited_ns: rate(client.waited_ns, then.waited_ns),
            ..client.clone()
        }
    };
    now.clients.iter().map(client).collect()
}

fn top(common: &Common, top: &GpuTop, output: &mut Output) -> anyhow::Result<()> {
    const HEADS: [&str; 9] = [
        "PROGRAM", "PID", "FROM", "BACKEND", "CALLS/s", "IN/s", "OUT/s", "MEMORY", "WAITED/s",
    ];
    let (communication, list) = wanted(common, &top.server)?;
    let servers = list.servers();
    let look = || {
        let statuses = servers.iter().map(|at| status(&communication, at));
        statuses.collect::<Result<Vec<_>, _>>()
    };
    let (mut before, mut at) = (look()?, Instant::now());
    let mut updates = 0;
    while top.count.is_none_or(|count| updates < count) {
        std::thread::sleep(top.interval);
        let now = look()?;
        let seconds = at.elapsed().as_secs_f64();
        let both = now.iter().zip(&before);
        let rates: Vec<_> = both
            .flat_map(|(now, before)| rates(now, before, seconds))
            .collect();
        output.put(&rates, |to| {
            let rows: Vec<_> = rates.iter().map(row).collect();
            table(to, &HEADS, &rows)?;
            writeln!(to)
        })?;
        (before, at) = (now, Instant::now());
        updates += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_time_between() {
        let status = |calls, backend| ServerStatus {
            clients: vec![ClientInfo {
                backend,
                calls,
                ..ClientInfo::default()
            }],
            ..ServerStatus::default()
        };
        assert_eq!(rates(&status(30, 1), &status(10, 1), 2.0)[0].calls, 10);
        // Another backend process: the counters of the earlier one do not count.
        assert_eq!(rates(&status(30, 2), &status(10, 1), 2.0)[0].calls, 15);
    }
}
