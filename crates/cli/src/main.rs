//! The program `rgaps`. Every command is a thin layer over the public API: it makes the calls and prints the answer as
//! text for people or as JSON for programs (`--json`).
#![warn(clippy::too_many_lines)]
#![forbid(unsafe_code)]

mod absent;
mod args;
mod array;
mod bench;
mod bridge;
mod completion;
mod daemon;
mod dmaplane;
mod doctor;
mod domain;
mod exit;
mod files;
mod gpu;
mod links;
mod mps;
mod output;
mod peers;
mod pool;
mod providers;
mod recording;
mod reference;
mod session;
mod status;
mod stop;
mod top;
mod topic;
mod units;
mod view;

use args::{Cli, Command};
use clap::CommandFactory;
use output::Output;
use rgaps_session::{on_own_stack, start_log, LogFormat};
use std::process::ExitCode;

fn main() -> ExitCode {
    on_own_stack(|| {
        completion::answer();
        let cli = args::parse();
        // `RUST_LOG` sets another level. The log goes to standard error; standard output is for results.
        start_log("error", LogFormat::Text).expect("a filter");
        exit::code(run(cli))
    })
}

fn run(cli: Cli) -> anyhow::Result<()> {
    let mut output = Output::new(cli.common.json);
    let common = &cli.common;
    match cli.command {
        Command::Up(up) => daemon::up(common, &up, &mut output),
        Command::Down => daemon::down(common, &mut output),
        Command::Status => status::status(common, &mut output),
        Command::Env => mps::env(common, &mut output),
        Command::Run(command) => mps::run(common, &command),
        Command::Doctor(doctor) => doctor::doctor(common, &doctor, &mut output),
        Command::Topic(command) => topic::topic(common, command, &mut output),
        Command::Record(command) => recording::record(common, &command, &mut output),
        Command::Replay(command) => recording::replay(common, &command, &mut output),
        Command::Info(command) => recording::info(&command, &mut output),
        Command::View(command) => view::view(common, &command, &mut output),
        Command::Bridge(command) => bridge::bridge(common, &command),
        Command::Top(command) => top::top(common, &command, &mut output),
        Command::Peers => peers::peers(common, &mut output),
        Command::Dmaplane(command) => dmaplane::dmaplane(&command, &mut output),
        Command::Gpu(command) => gpu::gpu(common, command, &mut output),
        Command::Pool => pool::pool(common, &mut output),
        Command::Bench(command) => bench::bench(common, command, &mut output),
        Command::BenchMember { orders } => rgaps_bench::member(&orders),
        Command::Completion { shell } => completion::script(shell, &mut output),
        Command::Reference => {
            let page = reference::page(Cli::command());
            output.put(&page, |to| to.write_all(page.as_bytes()))
        }
    }
}
