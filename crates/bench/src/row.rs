//! What a measurement reports: one row, as JSON or in a table.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::print::{self, Table};

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    /// What was measured: `dispatch`, `combine`, `copy`.
    pub(crate) op: String,
    /// The runtime.
    pub(crate) runtime: String,
    /// Ranks.
    pub(crate) ranks: u32,
    /// Element type.
    pub(crate) dtype: String,
    /// Tokens a rank, for operations on tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tokens: Option<u64>,
    /// Bytes a peer, for the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<u64>,
    /// Median time, microseconds.
    pub(crate) us_median: f64,
    /// 99th percentile, microseconds.
    pub(crate) us_p99: f64,
    /// Bytes that crossed links per rank and direction, by the median; 10^9 bytes a second. Of expand and contract, bytes of rows
    /// that a rank read and wrote in its own memory.
    pub(crate) gb_per_s: f64,
    /// Share of the link speed measured in the same run: for dispatch and combine, of stores between all ranks; for
    /// copies, of the fastest mechanism at the same pattern and size. `None` where there is no such speed.
    pub(crate) link_fraction: Option<f64>,
    /// Whether all results of this run equal the reference, bit by bit.
    pub(crate) verified: bool,
    /// Kernels compiled in this run.
    pub(crate) compiled: u64,
    /// Whatever else a benchmark has to say.
    #[serde(flatten)]
    pub(crate) extras: Map<String, Value>,
}

impl Row {
    /// Adds a field of the benchmark's own.
    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.extras.insert(name.to_owned(), value.into());
        self
    }
}

/// Writes all rows: one JSON object a line, or one table.
///
/// # Errors
/// Standard output is gone.
pub(crate) fn print_rows(rows: &[Row], json: bool) -> anyhow::Result<()> {
    if json {
        return rows.iter().try_for_each(print::json);
    }
    table(rows).print("")
}

fn table(rows: &[Row]) -> Table {
    let mut extras: Vec<&String> = Vec::new();
    for name in rows.iter().flat_map(|row| row.extras.keys()) {
        if !extras.contains(&name) {
            extras.push(name);
        }
    }
    let tokens = rows.iter().any(|row| row.tokens.is_some());
    let bytes = rows.iter().any(|row| row.bytes.is_some());
    let mut heading = vec!["op", "runtime", "ranks", "dtype"];
    heading.extend(tokens.then_some("tokens"));
    heading.extend(bytes.then_some("bytes"));
    heading.extend(["us median", "us p99", "GB/s", "link", "verified", "compiled"]);
    heading.extend(extras.iter().map(|name| name.as_str()));
    let mut table = Table::new(&heading);
    let number = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
    for row in rows {
        let mut cells = vec![row.op.clone(), row.runtime.clone(), row.ranks.to_string(), row.dtype.clone()];
        cells.extend(tokens.then(|| number(row.tokens)));
        cells.extend(bytes.then(|| number(row.bytes)));
        cells.extend([
            format!("{:.2}", row.us_median),
            format!("{:.2}", row.us_p99),
            format!("{:.2}", row.gb_per_s),
            row.link_fraction.map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", share * 100.0)),
            if row.verified { "yes" } else { "NO" }.to_owned(),
            row.compiled.to_string(),
        ]);
        cells.extend(extras.iter().map(|name| row.extras.get(*name).map(text_of).unwrap_or_default()));
        table.row(cells);
    }
    table
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row {
            op: "dispatch".into(),
            runtime: "host".into(),
            ranks: 4,
            dtype: "bf16".into(),
            tokens: Some(512),
            bytes: None,
            us_median: 61.96,
            us_p99: 70.0,
            gb_per_s: 330.129,
            link_fraction: Some(0.9),
            verified: true,
            compiled: 0,
            extras: Map::new(),
        }
    }

    #[test]
    fn a_row_is_one_flat_object() {
        let value = serde_json::to_value(row().with("blocks", 32)).unwrap();
        assert_eq!(
            (&value["tokens"], &value["blocks"], &value["verified"]),
            (&512.into(), &32.into(), &true.into())
        );
        assert!(value.get("bytes").is_none() && value.get("extras").is_none());
    }

    #[test]
    fn the_table_shows_what_the_rows_have() {
        let mut wrong = row().with("note", "first");
        wrong.verified = false;
        wrong.link_fraction = None;
        let lines = table(&[row(), wrong]).lines();
        assert!(lines[0].contains("tokens") && !lines[0].contains("bytes") && lines[0].ends_with("note"));
        assert!(lines[1].contains("330.13") && lines[1].contains("90 %") && lines[1].contains("yes"));
        assert!(lines[2].contains("NO") && lines[2].ends_with("first"), "{}", lines[2]);
    }
}
