//! What a model says: one row, as JSON or in a table.

use serde::Serialize;

use super::links::Links;
use super::scale::Scale;
use crate::print::{self, Table};

/// Hops of the longest chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hops {
    pub(super) between: u32,
    pub(super) inside: u32,
}

/// What a rank moves for an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) inside_bytes: u64,
    pub(super) between_bytes: u64,
    pub(super) messages: u64,
    pub(super) hops: Hops,
}

/// The parts of a time, microseconds; a NIC's bytes and messages go on at once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Parts {
    /// Hops, and what each waits for in the one before.
    pub(super) hops: f64,
    /// Bytes inside nodes.
    pub(super) inside: f64,
    /// Bytes between nodes.
    pub(super) between: f64,
    /// Messages between nodes.
    pub(super) messages: f64,
}

impl Parts {
    /// What moves goes on at once.
    pub(super) fn at_once(self) -> f64 {
        self.hops + self.inside.max(self.between).max(self.messages)
    }

    /// Inside and between go on one after the other.
    pub(super) fn in_turn(self) -> f64 {
        self.hops + self.inside + self.between.max(self.messages)
    }

    /// The largest.
    fn limit(self) -> &'static str {
        let all = [
            ("hops", self.hops),
            ("inside", self.inside),
            ("between", self.between),
            ("messages", self.messages),
        ];
        all.into_iter().max_by(|one, other| one.1.total_cmp(&other.1)).map_or("", |(name, _)| name)
    }
}

/// The cost of one operation for a rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct CostRow {
    /// `dispatch`, `combine`, `all_reduce`, ...
    pub(super) op: String,
    pub(super) ranks: u32,
    pub(super) nodes: u32,
    /// Tokens a rank, for operations on tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u32>,
    /// Bytes of the message, for the others; as `bench ccl` counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    dtype: String,
    /// `direct`, `node`, or `none` on one node.
    pub(super) across: String,
    /// Bytes inside the node.
    pub(super) inside_bytes: u64,
    /// Bytes through the NIC, without flags and counters.
    pub(super) between_bytes: u64,
    /// Requests for the NIC.
    pub(super) messages: u64,
    pub(super) inside_hops: u32,
    pub(super) between_hops: u32,
    /// The time, microseconds.
    pub(super) us: f64,
    /// The largest part of it.
    pub(super) limit: &'static str,
    links: Links,
}

/// What a row is about.
#[derive(Clone, Copy, Debug)]
pub(super) enum Size {
    Tokens(u32),
    Bytes(u64),
}

impl CostRow {
    pub(super) fn new(
        op: &str,
        scale: Scale,
        size: Size,
        dtype: &str,
        across: &str,
        moved: Moved,
        (us, parts, links): (f64, Parts, &Links),
    ) -> Self {
        let (tokens, bytes) = match size {
            Size::Tokens(tokens) => (Some(tokens), None),
            Size::Bytes(bytes) => (None, Some(bytes)),
        };
        Self {
            op: op.to_owned(),
            ranks: scale.ranks,
            nodes: scale.nodes(),
            tokens,
            bytes,
            dtype: dtype.to_owned(),
            across: if scale.nodes() > 1 { across } else { "none" }.to_owned(),
            inside_bytes: moved.inside_bytes,
            between_bytes: moved.between_bytes,
            messages: moved.messages,
            inside_hops: moved.hops.inside,
            between_hops: moved.hops.between,
            us,
            limit: parts.limit(),
            links: *links,
        }
    }
}

/// Writes all rows: one JSON object a line, or the links and one table.
///
/// # Errors
/// Standard output is gone.
pub(super) fn print_rows(rows: &[CostRow], links: &Links, json: bool) -> anyhow::Result<()> {
    if json {
        return rows.iter().try_for_each(print::json);
    }
    links.lines().iter().try_for_each(|text| print::line(text))?;
    print::line("")?;
    table(rows).print("")
}

/// Megabytes (10^6), as the speeds of links are counted.
fn megabytes(bytes: u64) -> String {
    format!("{:.3}", bytes as f64 / 1e6)
}

fn table(rows: &[CostRow]) -> Table {
    let size = if rows.iter().any(|row| row.tokens.is_some()) { "tokens" } else { "bytes" };
    let mut table = Table::new(&[
        "op",
        size,
        "ranks",
        "nodes",
        "across",
        "inside MB",
        "between MB",
        "messages",
        "hops inside",
        "hops between",
        "us",
        "limit",
    ]);
    for row in rows {
        let size = row.tokens.map(u64::from).or(row.bytes);
        table.row(vec![
            row.op.clone(),
            size.map_or_else(String::new, |size| size.to_string()),
            row.ranks.to_string(),
            row.nodes.to_string(),
            row.across.clone(),
            megabytes(row.inside_bytes),
            megabytes(row.between_bytes),
            row.messages.to_string(),
            row.inside_hops.to_string(),
            row.between_hops.to_string(),
            format!("{:.1}", row.us),
            row.limit.to_owned(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_largest_part() {
        let parts = Parts { hops: 1.0, inside: 2.0, between: 3.0, messages: 4.0 };
        assert_eq!(parts.limit(), "messages");
        assert_eq!(Parts { messages: 0.0, ..parts }.limit(), "between");
        assert!((parts.at_once() - 5.0).abs() < 1e-12 && (parts.in_turn() - 7.0).abs() < 1e-12);
    }

    #[test]
    fn bytes_are_megabytes_of_a_million() {
        assert_eq!(
            (megabytes(0), megabytes(1_600), megabytes(268_435_456)),
            ("0.000".into(), "0.002".into(), "268.435".into())
        );
    }
}
