//! Standard output: text or JSON, and what happens when nobody reads it any more.

use serde::Serialize;
use std::io::{self, Write};

/// Whoever read our output has closed it. Not a failure.
#[derive(Debug, thiserror::Error)]
#[error("the output was closed")]
pub struct OutputClosed;

/// Where results go.
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

    /// Prints a result: as one line of JSON, or as the text that `text` writes. It is out when
    /// the call returns.
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
    // Rust's start-up code ignores SIGPIPE, so the end of a reader comes as this error.
    match error.kind() {
        io::ErrorKind::BrokenPipe => OutputClosed.into(),
        _ => anyhow::Error::new(error).context("standard output cannot be written"),
    }
}

/// Columns of text, as wide as their widest entry; the last is not padded.
pub fn table(to: &mut dyn Write, heads: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
    let mut widths: Vec<usize> = heads.iter().map(|head| head.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let heads: Vec<String> = heads.iter().map(|head| (*head).to_owned()).collect();
    for row in std::iter::once(&heads).chain(rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        writeln!(to, "{}", line.trim_end())?;
    }
    Ok(())
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
}
