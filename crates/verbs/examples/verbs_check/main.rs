//! `verbs-check ROLE ADDRESS TEST...`: tests channels on real devices, between two machines. Role `b` listens on its ADDRESS,
//! `a` connects to it; both name the same tests. Prints a line of JSON for each figure, and fails if a check
//! fails. `verbs-check zeroing` and `copying` need no device.

mod end;
mod faults;
mod figures;
mod legacy;
mod liars;
mod stream;

use anyhow::{bail, Context, Result};
use end::{End, Role};

fn run(end: &mut End, test: &str) -> Result<()> {
    match test {
        "conformance" => stream::conformance(end),
        "latency" => figures::latency(end),
        "rate" => figures::rate(end),
        "credits" => figures::credits(end),
        "switches" => figures::switches(end),
        "posts" => figures::posts(end),
        "registration" => figures::registration(end),
        "legacy" => legacy::against_notices(end),
        "faults" => faults::all(end),
        "liars" => liars::all(end),
        "killed" => faults::killed(end),
        "event" => faults::event(end),
        "link" => faults::link(end),
        "victim" => faults::victim(end),
        other => bail!("there is no test {other}"),
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["zeroing"] => figures::zeroing(),
        ["copying"] => figures::copying(),
        [role, address, ref tests @ ..] if !tests.is_empty() => {
            let role = match role {
                "a" => Role::A,
                "b" => Role::B,
                other => bail!("a role is a or b, not {other}"),
            };
            let mut end = End::meet(role, address)?;
            for test in tests {
                run(&mut end, test).with_context(|| format!("{test}, role {role:?}"))?;
                end.barrier()?;
            }
            Ok(())
        }
        _ => bail!("verbs-check a|b ADDRESS TEST..."),
    }
}
