//! Draws a report of `top` in the terminal.

use super::view::{Sort, View};
use crate::units;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Table};
use ratatui::Frame;
use rgaps::PeerState;
use rgaps_view::overview::{Link, RealmReport, Topic};

/// Most rows of each table of hosts, pools and clients.
const MOST: usize = 6;
/// Lines that the table of topics gets before the tables below it get any: a border, the heads, and four rows.
const TOPICS: u16 = 6;
/// Most lines of a warning.
const WARNING_LINES: usize = 3;
/// From this width on, columns have room for units and long names.
const WIDE: u16 = 112;
const HELP: &str =
    "q quit  s sort (n name m msg b bytes i missed u sub)  r reverse  p pause  arrows";

pub fn draw(frame: &mut Frame<'_>, view: &View, report: &RealmReport) {
    let head = heading(view, report, frame.area().width);
    let mut left = frame.area().height;
    left = left.saturating_sub(head.len() as u16 + TOPICS + 1);
    // A table has a border, its heads and its rows. It gets no lines if not even one row fits.
    let mut table = |rows: usize| {
        let lines = (2 + rows.min(MOST) as u16).min(left);
        let lines = if lines < 3 { 0 } else { lines };
        left -= lines;
        Constraint::Length(lines)
    };
    let areas = Layout::vertical([
        Constraint::Length(head.len() as u16),
        Constraint::Min(3),
        table(report.links.len()),
        table(report.pools.len()),
        table(report.clients.len()),
        Constraint::Length(1),
    ]);
    let [heading, topics, links, pools, clients, help] = areas.areas(frame.area());
    frame.render_widget(Paragraph::new(head), heading);
    draw_topics(frame, topics, view, report);
    draw_links(frame, links, report);
    draw_pools(frame, pools, report);
    draw_clients(frame, clients, report);
    frame.render_widget(Paragraph::new(HELP), help);
}

fn heading(view: &View, report: &RealmReport, width: u16) -> Vec<Line<'static>> {
    let daemon = &report.daemon;
    let host = match daemon.host.as_str() {
        "" => String::new(),
        host => format!(", host '{host}'"),
    };
    let paused = if view.paused { "  PAUSED" } else { "" };
    let (program, memory) = match width >= WIDE {
        true => (
            format!("rgapsd {}, ", daemon.version),
            format!(", {} of its own", units::bytes(daemon.rss_bytes)),
        ),
        false => Default::default(),
    };
    let first = format!(
        "{program}realm '{}'{host}, up {}{memory}; {}, {}, every {:.1} s{paused}",
        daemon.realm,
        units::span(daemon.uptime_ms),
        units::counted(daemon.clients.into(), "client"),
        units::counted(daemon.topics.into(), "topic"),
        report.interval_s,
    );
    let mut lines = wrapped(&first, width);
    if let Some(warning) = daemon.warnings.first() {
        let text = match daemon.warnings.len() - 1 {
            0 => format!("warning: {warning}"),
            more => format!("warning (and {more} more, see 'rgaps status'): {warning}"),
        };
        lines.extend(wrapped(&text, width).into_iter().take(WARNING_LINES));
    }
    let waiting = report.topics.iter().filter(|topic| topic.waiting > 0);
    let waiting: Vec<&str> = waiting.map(|topic| topic.topic.as_str()).collect();
    if !waiting.is_empty() {
        let text = format!(
            "publishers wait for slow subscribers, see 'rgaps topic info TOPIC': {}",
            waiting.join(", ")
        );
        lines.extend(wrapped(&text, width).into_iter().take(WARNING_LINES));
    }
    lines.into_iter().map(Line::from).collect()
}

/// Breaks a text between words into lines of at most `width` characters, except for longer words.
fn wrapped(text: &str, width: u16) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("it begins with one");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > usize::from(width)
        {
            lines.push(word.to_owned());
            continue;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines
}

/// At most `most` characters of a text. Keeps the end, where names with a common prefix differ.
fn end_of(text: &str, most: usize) -> String {
    let length = text.chars().count();
    if length <= most {
        return text.to_owned();
    }
    let end: String = text.chars().skip(length + 1 - most).collect();
    format!("\u{2026}{end}")
}

/// Bytes in few characters: `3.0M`.
fn size(bytes: u64, width: u16) -> String {
    if width >= WIDE {
        return units::bytes(bytes);
    }
    let text = units::bytes(bytes);
    let (number, unit) = text.split_once(' ').unwrap_or((&text, ""));
    format!("{number}{}", unit.trim_end_matches("iB"))
}

/// A count in at most five characters: `99999`, `100k`, `2.5M`.
fn count(count: u64) -> String {
    let scaled = |unit: f64, name: &str| match count as f64 / unit {
        few @ ..10.0 => format!("{few:.1}{name}"),
        many => format!("{many:.0}{name}"),
    };
    match count {
        0..=99_999 => count.to_string(),
        100_000..=999_999 => scaled(1e3, "k"),
        1_000_000..=999_999_999 => scaled(1e6, "M"),
        _ => scaled(1e9, "G"),
    }
}

fn table(
    frame: &mut Frame<'_>,
    area: Rect,
    heads: &[&str],
    widths: &[u16],
    rows: Vec<Row<'static>>,
) {
    // The first column takes the space that the others leave.
    let widths = widths.iter().enumerate().map(|(at, width)| match at {
        0 => Constraint::Min(*width),
        _ => Constraint::Length(*width),
    });
    let heads = Row::new(heads.iter().map(|head| (*head).to_owned()));
    let table = Table::new(rows, widths)
        .header(heads.style(Style::new().add_modifier(Modifier::BOLD)))
        .block(Block::new().borders(ratatui::widgets::Borders::TOP))
        .column_spacing(1);
    frame.render_widget(table, area);
}

fn draw_topics(frame: &mut Frame<'_>, area: Rect, view: &View, report: &RealmReport) {
    let topics = view.sorted(report);
    let fits = area.height.saturating_sub(2) as usize;
    let is_wide = area.width >= WIDE;
    // The widths of all columns but the name, each with a space before it.
    let widths: &[u16] = match is_wide {
        true => &[16, 14, 4, 7, 9, 12, 9, 7, 6],
        false => &[12, 9, 4, 5, 7, 8, 7, 5, 5],
    };
    let others: u16 = widths[1..].iter().map(|width| width + 1).sum();
    let name = usize::from(area.width.saturating_sub(others));
    let shown = topics.iter().skip(view.first).take(fits);
    let rows = shown
        .map(|topic| topic_row(topic, name, area.width))
        .collect();
    let mark = |sort: Sort, head: &str| match view.sort == sort {
        true => format!("{head}{}", if view.reverse { "^" } else { "v" }),
        false => head.to_owned(),
    };
    let heads = [
        mark(Sort::Name, "TOPIC"),
        "DOMAIN".to_owned(),
        "PUB".to_owned(),
        mark(Sort::Subscribers, "SUB"),
        mark(Sort::Messages, "MSG/S"),
        mark(Sort::Bytes, if is_wide { "BYTES/S" } else { "B/S" }),
        mark(Sort::Missed, "MISSED"),
        "KEPT".to_owned(),
        "HELD".to_owned(),
    ];
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    table(frame, area, &heads, widths, rows);
}

fn topic_row(topic: &Topic, name: usize, width: u16) -> Row<'static> {
    let subscribers = match topic.remote_subscribers {
        0 => topic.subscribers.to_string(),
        remote => format!("{}+{remote}", topic.subscribers),
    };
    Row::new([
        end_of(&topic.topic, name),
        domain(topic.domain.as_deref().unwrap_or("-"), width),
        topic.publishers.to_string(),
        subscribers,
        number(topic.messages_per_s),
        size(topic.bytes_per_s as u64, width),
        count(topic.missed),
        count(topic.kept),
        count(topic.held),
    ])
}

/// The name of a domain, with only the first characters of a GPU's UUID.
fn domain(domain: &str, width: u16) -> String {
    let most = if width >= WIDE { 14 } else { 9 };
    domain
        .replace("cuda:GPU-", "cuda:")
        .chars()
        .take(most)
        .collect()
}

fn number(value: f64) -> String {
    match value {
        ..10.0 => format!("{value:.2}"),
        ..1000.0 => format!("{value:.1}"),
        ..100_000.0 => format!("{value:.0}"),
        _ => count(value as u64),
    }
}

fn draw_links(frame: &mut Frame<'_>, area: Rect, report: &RealmReport) {
    let is_wide = area.width >= WIDE;
    let (heads, widths): ([&str; 10], &[u16]) = match is_wide {
        true => (
            [
                "HOST",
                "STATE",
                "LANES",
                "OUT MSG/S",
                "BYTES/S",
                "IN MSG/S",
                "BYTES/S",
                "WIRE p50/p99",
                "TOTAL p50/p99",
                "MISSED",
            ],
            &[12, 8, 5, 9, 11, 9, 11, 15, 15, 6],
        ),
        false => (
            [
                "HOST",
                "STATE",
                "LN",
                "OUT/S",
                "B/S",
                "IN/S",
                "B/S",
                "WIRE50/99",
                "ALL 50/99",
                "MISSED",
            ],
            &[8, 7, 2, 6, 7, 6, 7, 11, 11, 6],
        ),
    };
    let others: u16 = widths[1..].iter().map(|width| width + 1).sum();
    let host = usize::from(area.width.saturating_sub(others));
    let links = report.links.iter().take(MOST);
    let rows = links.map(|link| link_row(link, host, area.width)).collect();
    table(frame, area, &heads, widths, rows);
}

fn link_row(link: &Link, host: usize, width: u16) -> Row<'static> {
    let state = match link.state {
        PeerState::Joining => "joining",
        PeerState::Linked => "linked",
        PeerState::Lost => "lost",
        PeerState::Refused => "refused",
        PeerState::Through => "through",
    };
    let stage = |name: &str| units::times(link.stages.get(name).copied().flatten());
    let missed = link
        .missed
        .saturating_add(link.skipped)
        .saturating_add(link.given_up);
    Row::new([
        end_of(&link.host, host),
        state.to_owned(),
        link.lanes.to_string(),
        number(link.messages_out_per_s),
        size(link.bytes_out_per_s as u64, width),
        number(link.messages_in_per_s),
        size(link.bytes_in_per_s as u64, width),
        stage("wire"),
        stage("total"),
        count(missed),
    ])
}

fn draw_pools(frame: &mut Frame<'_>, area: Rect, report: &RealmReport) {
    let rows = report.pools.iter().take(MOST).map(|pool| {
        Row::new([
            domain(&pool.domain, WIDE),
            pool.access.clone(),
            units::bytes(pool.leased_bytes),
            units::bytes(pool.allocated_bytes),
            units::bytes(pool.cap_bytes),
        ])
    });
    let heads = ["POOL", "ACCESS", "LEASED", "ALLOCATED", "CAP"];
    table(frame, area, &heads, &[16, 16, 12, 12, 12], rows.collect());
}

fn draw_clients(frame: &mut Frame<'_>, area: Rect, report: &RealmReport) {
    let rows = report.clients.iter().take(MOST).map(|client| {
        Row::new([
            client.name.clone(),
            client.pid.to_string(),
            client.publishers.to_string(),
            client.subscribers.to_string(),
        ])
    });
    let heads = ["CLIENT", "PID", "PUBLISHERS", "SUBSCRIBERS"];
    table(frame, area, &heads, &[16, 10, 10, 11], rows.collect());
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::backend::TestBackend;
    use ratatui::Terminal;
    use rgaps_view::overview::{Client, Daemon, Pool, Times};

    fn screen(width: u16, height: u16, view: &View, report: &RealmReport) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view, report)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| {
            (0..width)
                .map(|x| buffer[(x, y)].symbol())
                .collect::<String>()
        };
        (0..height).map(line).collect()
    }

    fn link() -> Link {
        let wire = Times {
            count: 9,
            p50_us: 80.0,
            p99_us: 1500.0,
        };
        Link {
            host: "robot-2".to_owned(),
            state: PeerState::Linked,
            lanes: 2,
            topics_out: 1,
            topics_in: 0,
            messages_out: 900,
            messages_in: 0,
            messages_out_per_s: 30.0,
            messages_in_per_s: 0.0,
            bytes_out_per_s: 1048576.0,
            bytes_in_per_s: 0.0,
            wire_bytes_out: 0,
            wire_bytes_in: 0,
            retained_bytes: 0,
            missed: 1,
            skipped: 2,
            given_up: 4,
            resent: 0,
            duplicates: 0,
            connects: 1,
            violations: 0,
            stages: [("wire", Some(wire)), ("total", None)].into(),
        }
    }

    fn report() -> RealmReport {
        let topic = |at: usize| Topic {
            topic: format!("camera/{at}"),
            domain: Some("host".to_owned()),
            publishers: 1,
            subscribers: 2,
            remote_subscribers: 3,
            messages_per_s: 100.0 - at as f64,
            bytes_per_s: 3_145_728.0,
            missed: 17,
            ..Topic::default()
        };
        RealmReport {
            interval_s: 1.0,
            daemon: Daemon {
                version: "0.1.0".to_owned(),
                realm: "default".to_owned(),
                host: "robot-1".to_owned(),
                clients: 2,
                topics: 40,
                warnings: vec!["something".to_owned(), "more".to_owned()],
                ..Daemon::default()
            },
            topics: (0..40).map(topic).collect(),
            links: vec![link()],
            pools: vec![Pool {
                domain: "host".to_owned(),
                access: "default".to_owned(),
                cap_bytes: 1 << 30,
                allocated_bytes: 64 << 20,
                leased_bytes: 4 << 20,
            }],
            clients: vec![Client {
                name: "camera".to_owned(),
                pid: 4711,
                publishers: 40,
                subscribers: 0,
            }],
        }
    }

    fn line<'a>(screen: &'a [String], with: &str) -> &'a str {
        let found = screen.iter().find(|line| line.contains(with));
        found.unwrap_or_else(|| panic!("no line with {with}:\n{}", screen.join("\n")))
    }

    #[test]
    fn all_of_it_is_on_the_screen() {
        let screen = screen(120, 30, &View::default(), &report());
        assert!(line(&screen, "realm 'default'").contains("host 'robot-1'"));
        assert!(line(&screen, "warning (and 1 more").contains("something"));
        assert!(line(&screen, "TOPIC").contains("MSG/Sv"));
        let topic = line(&screen, "camera/0");
        for part in ["host", "2+3", "100.0", "3.0 MiB", "17"] {
            assert!(topic.contains(part), "{part}: {topic}");
        }
        let link = line(&screen, "robot-2");
        for part in ["linked", "30.0", "1.0 MiB", "80us/1.5ms", " - ", "7"] {
            assert!(link.contains(part), "{part}: {link}");
        }
        assert!(line(&screen, "1.0 GiB").contains("64.0 MiB"));
        assert!(line(&screen, "4711").contains("camera"));
        assert!(line(&screen, "q quit").contains("reverse"));
        assert!(!screen.iter().any(|line| line.contains("publishers wait")));
    }

    #[track_caller]
    fn assert_has(line: &str, parts: &[&str]) {
        for part in parts {
            assert!(line.contains(part), "{part}: {line}");
        }
    }

    /// A terminal of 80 columns must show all columns of topics and links, and the advice at the end of warnings.
    #[test]
    fn eighty_columns_lose_nothing() {
        let mut report = report();
        let topic = &mut report.topics[0];
        topic.topic = "a-very-long-prefix-of-a-robot/camera/left/image".to_owned();
        topic.domain = Some("cuda:GPU-12345678-9abc-def0-1234-56789abcdef0".to_owned());
        (topic.messages_per_s, topic.bytes_per_s) = (123_456.0, 9.9e9);
        (topic.publishers, topic.remote_subscribers) = (16, 40);
        (topic.missed, topic.kept, topic.held) = (2_500_000_000, 16, 8);
        report.links[0].host = "warehouse-robot-2".to_owned();
        (
            report.links[0].missed,
            report.links[0].skipped,
            report.links[0].given_up,
        ) = (99_999, 0, 0);
        let warning = "install rgaps-links beside rgapsd, or set RGAPS_LINKS_PROGRAM to its path, then 'rgaps down' \
                       and 'rgaps up': the program was not found";
        report.daemon.warnings = vec![warning.to_owned()];
        let screen = screen(80, 24, &View::default(), &report);
        assert_has(
            line(&screen, "TOPIC"),
            &[
                "TOPIC", "DOMAIN", "PUB", "SUB", "MSG/S", "B/S", "MISSED", "KEPT", "HELD",
            ],
        );
        let topic = line(&screen, "left/image");
        assert_has(topic, &["\u{2026}", "cuda:1234", "16", "2+40", "123k"]);
        assert_has(topic, &["9.2G", "2.5G", " 16", " 8"]);
        let heads = line(&screen, "HOST");
        assert_has(heads, &["STATE", "LN", "OUT/S", "IN/S"]);
        assert_has(heads, &["WIRE50/99", "ALL 50/99", "MISSED"]);
        let link = line(&screen, "linked");
        assert_has(link, &["robot-2", "30.0", "1.0M", "80us/1.5ms", "99999"]);
        assert!(line(&screen, "1.0 GiB").contains("64.0 MiB"));
        let all = screen
            .iter()
            .map(|line| line.trim_end())
            .collect::<Vec<_>>()
            .join(" ");
        assert!(all.contains("then 'rgaps down' and 'rgaps up'"), "{all}");
        assert!(all.contains("40 topics, every 1.0 s"), "{all}");
        assert!(line(&screen, "q quit").contains("arrows"));
    }

    /// In a low window the lowest tables lose their rows first, and topics keep a few.
    #[test]
    fn a_low_window_has_fewer_tables() {
        let mut report = report();
        report.topics[3].waiting = 1;
        report.daemon.warnings.clear();
        let shown = screen(80, 14, &View::default(), &report);
        assert!(line(&shown, "realm 'default'").contains("every 1.0 s"));
        line(
            &shown,
            "publishers wait for slow subscribers, see 'rgaps topic info TOPIC': camera/3",
        );
        line(&shown, "camera/4");
        line(&shown, "linked");
        assert!(!shown.iter().any(|line| line.contains("CLIENT ")));
        line(&shown, "q quit");
    }

    #[test]
    fn topics_scroll_and_say_their_order() {
        let mut view = View {
            first: 38,
            sort: Sort::Name,
            reverse: true,
            ..View::default()
        };
        let shown = screen(120, 30, &view, &report());
        assert!(line(&shown, "TOPIC^").contains("DOMAIN"));
        let topics = |screen: &[String]| {
            screen
                .iter()
                .filter(|line| line.contains("camera/"))
                .count()
        };
        assert_eq!(topics(&shown), 2);
        view.first = 0;
        view.paused = true;
        let shown = screen(120, 30, &view, &report());
        assert!(topics(&shown) > 10);
        line(&shown, "PAUSED");
    }

    #[test]
    fn no_size_is_too_small_and_no_report_too_empty() {
        for (width, height) in [(1, 1), (20, 5), (80, 24), (300, 100)] {
            screen(width, height, &View::default(), &report());
            screen(width, height, &View::default(), &RealmReport::default());
        }
        let bare = screen(100, 20, &View::default(), &RealmReport::default());
        assert!(!bare.iter().any(|line| line.contains("LANES")));
    }
}
