//! Output: one JSON object a line, or a table for people.

use std::io::{self, Write};

use serde::Serialize;

/// Writes a line to standard output.
///
/// # Errors
/// Standard output is gone (`| head`), which ends a command quietly.
pub fn line(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(crate::reported::Reported(0).into()),
        other => Ok(other?),
    }
}

/// Writes one JSON object as a line.
///
/// # Errors
/// As [`line()`].
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(&serde_json::to_string(value)?)
}

/// Columns with a heading, aligned; numbers to the right.
#[derive(Clone, Debug)]
pub struct Table {
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Without rows.
    pub fn new(heading: &[&str]) -> Self {
        Self { heading: heading.iter().map(|text| (*text).to_owned()).collect(), rows: Vec::new() }
    }

    /// Appends a row: one cell a column, missing ones empty.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The lines, heading first.
    pub fn lines(&self) -> Vec<String> {
        let cell = |row: &[String], column: usize| row.get(column).cloned().unwrap_or_default();
        let widths: Vec<usize> = (0..self.heading.len())
            .map(|column| {
                let cells = std::iter::once(&self.heading).chain(&self.rows);
                cells.map(|row| cell(row, column).chars().count()).max().unwrap_or_default()
            })
            .collect();
        let numeric: Vec<bool> = (0..widths.len())
            .map(|column| {
                self.rows
                    .iter()
                    .all(|row| cell(row, column).starts_with(|c: char| c.is_ascii_digit() || c == '-'))
            })
            .collect();
        let render = |row: &Vec<String>| {
            let cells: Vec<String> = widths
                .iter()
                .enumerate()
                .map(|(column, width)| {
                    let text = cell(row, column);
                    if numeric[column] { format!("{text:>width$}") } else { format!("{text:<width$}") }
                })
                .collect();
            cells.join("  ").trim_end().to_owned()
        };
        std::iter::once(&self.heading).chain(&self.rows).map(render).collect()
    }

    /// Writes all lines to standard output, each with `indent` before it.
    ///
    /// # Errors
    /// As [`line()`].
    pub fn print(&self, indent: &str) -> anyhow::Result<()> {
        self.lines().iter().try_for_each(|text| line(&format!("{indent}{text}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["op", "us", "note"]);
        table.row(vec!["dispatch".into(), "9.1".into(), "ok".into()]);
        table.row(vec!["combine".into(), "120.5".into(), String::new()]);
        assert_eq!(table.lines(), ["op           us  note", "dispatch    9.1  ok", "combine   120.5"]);
    }
}
