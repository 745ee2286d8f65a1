//! The output of the model: rows, as JSON or in a table.

use anabranch_ep::{Moved, TimeParts};
use serde::Serialize;

use super::links::Links;
use super::scale::Scale;
use crate::print::{self, Table};

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
    /// Kernels, one after the other.
    launches: u32,
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
        (us, parts, links): (f64, TimeParts, &Links),
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
            // Counted: whole numbers, far below 2^53.
            inside_bytes: moved.inside_bytes as u64,
            between_bytes: moved.between_bytes as u64,
            messages: moved.messages as u64,
            inside_hops: moved.inside_hops,
            between_hops: moved.between_hops,
            launches: moved.launches,
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
    fn bytes_are_megabytes_of_a_million() {
        assert_eq!(
            (megabytes(0), megabytes(1_600), megabytes(268_435_456)),
            ("0.000".into(), "0.002".into(), "268.435".into())
        );
    }
}
