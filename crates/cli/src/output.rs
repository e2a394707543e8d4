//! Standard output: prints results as text or JSON, and handles a reader that closes it.

use serde::Serialize;
use std::io::{self, Write};

/// The widest line of a table, if its last column can be wrapped.
const LINE_MAX: usize = 120;
/// A last column narrower than this is not wrapped.
const PROSE_MIN: usize = 24;
/// Spaces between two columns.
const GAP: usize = 2;

/// The reader closed standard output, as `head` does. The command ends without failing.
#[derive(Debug, thiserror::Error)]
#[error("the output was closed")]
pub struct OutputClosed;

/// Prints results to standard output.
pub struct Output {
    json: bool,
    to: io::BufWriter<io::Stdout>,
}

impl Output {
    pub fn new(json: bool) -> Output {
        Output {
            json,
            to: io::BufWriter::new(io::stdout()),
        }
    }

    /// Prints a result: `value` as one line of JSON, or the text that `text` writes. Flushes before it returns.
    pub fn put(
        &mut self,
        value: &impl Serialize,
        text: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        let written = if self.json {
            serde_json::to_writer(&mut self.to, value)
                .map_err(io::Error::from)
                .and_then(|()| writeln!(self.to))
        } else {
            text(&mut self.to)
        };
        written.and_then(|()| self.to.flush()).map_err(closed)
    }

    /// Writes bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let written = self.to.write_all(bytes).and_then(|()| self.to.flush());
        written.map_err(closed)
    }
}

fn closed(error: io::Error) -> anyhow::Error {
    // Rust's start-up code ignores SIGPIPE, so writing to a closed pipe returns this error.
    match error.kind() {
        io::ErrorKind::BrokenPipe => OutputClosed.into(),
        _ => anyhow::Error::new(error).context("standard output cannot be written"),
    }
}

/// Writes a table whose columns are as wide as their widest entries. A text in the last column that does not fit in a line
/// continues in the next line, at the same column.
pub fn table(to: &mut dyn Write, heads: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
    let mut widths: Vec<usize> = heads.iter().map(|head| head.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let heads: Vec<String> = heads.iter().map(|head| (*head).to_owned()).collect();
    let last = widths.len().saturating_sub(1);
    let begin: usize = widths[..last].iter().map(|width| width + GAP).sum();
    for row in std::iter::once(&heads).chain(rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths[..last]) {
            line.push_str(&format!("{cell:<width$}{:GAP$}", ""));
        }
        let text = row.get(last).map_or("", String::as_str);
        for (at, part) in wrap(text, LINE_MAX.saturating_sub(begin))
            .iter()
            .enumerate()
        {
            if at > 0 {
                line = " ".repeat(begin);
            }
            writeln!(to, "{}", format!("{line}{part}").trim_end())?;
        }
    }
    Ok(())
}

/// Breaks a text between words into lines of at most `width` characters, except for longer words. Returns at least one line; a
/// width below [`PROSE_MIN`] breaks nothing.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is one");
        let is_full = line.chars().count() + 1 + word.chars().count() > width;
        match (line.is_empty(), is_full && width >= PROSE_MIN) {
            (true, _) => line.push_str(word),
            (false, true) => lines.push(word.to_owned()),
            (false, false) => {
                line.push(' ');
                line.push_str(word);
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut out = Vec::new();
        let rows = [
            vec!["a".to_owned(), "1".to_owned()],
            vec!["längst".to_owned(), "2".to_owned()],
        ];
        table(&mut out, &["NAME", "N"], &rows).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "NAME    N\na       1\nlängst  2\n"
        );
    }

    #[test]
    fn a_long_reason_goes_on_below_where_it_began() {
        let row = |why: String| vec!["robot".to_owned(), why];
        let text = |rows: &[Vec<String>]| {
            let mut out = Vec::new();
            table(&mut out, &["HOST", "WHY"], rows).unwrap();
            String::from_utf8(out).unwrap()
        };
        let long = text(&[row("links.rdma is off ".repeat(10).trim().to_owned())]);
        assert!(long.lines().all(|line| line.len() <= LINE_MAX), "{long}");
        assert_eq!(long.lines().count(), 3, "{long}");
        assert!(
            long.lines().nth(2).unwrap().starts_with("       links"),
            "{long}"
        );
        let path = text(&[row("/x".repeat(80))]);
        assert_eq!(path.lines().count(), 2, "a word is not cut: {path}");
    }
}
