//! `top`: shows rates of topics and links, and use of pools, live.

mod draw;
mod view;

use crate::args::{Common, Top};
use crate::exit::Usage;
use crate::output::Output;
use crate::stop::Stop;
use crate::{session, units};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use rgaps::Node;
use rgaps_view::overview::{Look, RealmReport, Window};
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use view::{Step, View};

/// Time between two looks for signals and keys.
const LOOK: Duration = Duration::from_millis(50);

pub fn top(common: &Common, top: &Top, output: &mut Output) -> anyhow::Result<()> {
    let here = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if !common.json && !here {
        let text = "rgaps top needs a terminal; use --json to print documents instead";
        return Err(Usage(text.to_owned()).into());
    }
    let stop = Stop::install()?;
    let node = session::look(common)?;
    match common.json {
        true => print(&node, top, &stop, output),
        false => show(&node, top, &stop),
    }
}

/// Prints one report in JSON for each interval.
fn print(node: &Node, top: &Top, stop: &Stop, output: &mut Output) -> anyhow::Result<()> {
    let mut window = Window::default();
    let mut shown = 0;
    let mut due = Instant::now();
    while top.count != Some(shown) {
        while Instant::now() < due {
            if stop.is_set() {
                return Ok(());
            }
            std::thread::sleep(LOOK.min(due.saturating_duration_since(Instant::now())));
        }
        due += top.interval;
        if let Some(report) = window.add(Look::take(node)?) {
            output.put(&report, |to| {
                let topics = units::counted(report.topics.len() as u64, "topic");
                writeln!(to, "{topics}")
            })?;
            shown += 1;
        }
    }
    Ok(())
}

fn show(node: &Node, top: &Top, stop: &Stop) -> anyhow::Result<()> {
    // `try_init` also installs a panic hook that restores the terminal.
    let mut terminal = ratatui::try_init()?;
    let outcome = run(node, top, stop, &mut terminal);
    ratatui::restore();
    outcome
}

fn run(
    node: &Node,
    top: &Top,
    stop: &Stop,
    terminal: &mut ratatui::DefaultTerminal,
) -> anyhow::Result<()> {
    let mut window = Window::default();
    let mut view = View::default();
    let mut report = RealmReport::default();
    let mut shown = 0;
    let mut due = Instant::now();
    // The first look has nothing to compare with, so the second follows soon.
    let mut first = true;
    while top.count != Some(shown) && !stop.is_set() {
        let now = Instant::now();
        if now >= due {
            due = now
                + if first {
                    top.interval.min(Duration::from_millis(200))
                } else {
                    top.interval
                };
            first = false;
            if let (Some(new), false) = (window.add(Look::take(node)?), view.paused) {
                report = new;
                shown += 1;
            }
            view.first = view.first.min(report.topics.len().saturating_sub(1));
        }
        terminal.draw(|frame| draw::draw(frame, &view, &report))?;
        let wait = due.saturating_duration_since(Instant::now()).min(LOOK);
        if event::poll(wait)? {
            if let Event::Key(key) = event::read()? {
                let pressed = key.kind == KeyEventKind::Press;
                if pressed && view.key(key, report.topics.len()) == Step::Quit {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}
