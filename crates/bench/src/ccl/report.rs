//! Rows of a report: the time of the slowest rank, its bandwidth, and the times of peers.

use std::collections::BTreeMap;

use anabranch::{Error, Group, World};
use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::Map;

use super::super::row::Row;
use super::super::statistics::{Samples, gigabytes_per_second, slowest_of_ranks};
use super::contender::Description;
use super::member::Finding;

/// One contender in one case, as all members together have found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Result {
    pub(crate) name: String,
    /// The slowest member's times.
    pub(crate) samples: Samples,
    /// `None`: not comparable.
    pub(crate) right: Option<bool>,
    pub(crate) description: Description,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Said {
    name: String,
    times: Vec<f64>,
    right: Option<bool>,
    algorithm: Option<String>,
    blocks: Option<u32>,
}

/// Brings together what the members found; idle ranks give nothing. Collective over the world, so that the rank that prints
/// knows it, member or not.
///
/// # Errors
/// What made the world fail.
pub(crate) fn collect(world: &World, group: &Group, mine: &[Finding]) -> anyhow::Result<Vec<Result>> {
    let mine: Vec<Said> = mine
        .iter()
        .map(|finding| Said {
            name: finding.name.to_owned(),
            times: finding.times.clone(),
            right: finding.right,
            algorithm: finding.description.algorithm.clone(),
            blocks: finding.description.blocks,
        })
        .collect();
    let all =
        world.exchange(world.group(), "ccl findings", &serde_json::to_vec(&mine)?).map_err(Error::from)?;
    let said = group.members().iter().map(|member| {
        let bytes = all.get(member.index()).context("fewer findings than ranks")?;
        Ok(serde_json::from_slice::<Vec<Said>>(bytes)?)
    });
    Ok(together(&said.collect::<anyhow::Result<Vec<_>>>()?))
}

fn together(members: &[Vec<Said>]) -> Vec<Result> {
    let Some(first) = members.first() else { return Vec::new() };
    let contender = |index: usize| members.iter().filter_map(move |said| said.get(index));
    let one = |(index, said): (usize, &Said)| Result {
        name: said.name.clone(),
        samples: Samples::new(slowest_of_ranks(
            &contender(index).map(|said| said.times.clone()).collect::<Vec<_>>(),
        )),
        right: contender(index).map(|said| said.right).reduce(|all, one| Some(all? && one?)).flatten(),
        description: Description { algorithm: said.algorithm.clone(), blocks: said.blocks },
    };
    first.iter().enumerate().map(one).collect()
}

/// The fields of a row besides its times.
#[derive(Clone, Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) op: String,
    pub(crate) runtime: String,
    pub(crate) ranks: u32,
    pub(crate) dtype: String,
    pub(crate) bytes: u64,
    /// See [`super::collective::Collective::bus_factor`].
    pub(crate) bus_factor: f64,
    /// GB/s per rank and direction, measured in the same run.
    pub(crate) link: Option<f64>,
    pub(crate) compiled: u64,
    /// Settings that stand in every row.
    pub(crate) settings: &'a BTreeMap<&'static str, serde_json::Value>,
}

/// The row of one case: the first result is this library's.
///
/// # Errors
/// There is none.
pub(crate) fn row(facts: &Facts<'_>, results: &[Result]) -> anyhow::Result<Row> {
    let (ours, peers) = results.split_first().context("nothing was measured")?;
    let median = ours.samples.median();
    let algorithm_bandwidth = gigabytes_per_second(facts.bytes, median);
    let bus_bandwidth = algorithm_bandwidth * facts.bus_factor;
    let mut row = Row {
        op: facts.op.clone(),
        runtime: facts.runtime.clone(),
        ranks: facts.ranks,
        dtype: facts.dtype.clone(),
        tokens: None,
        bytes: Some(facts.bytes),
        us_median: median,
        us_p99: ours.samples.p99(),
        gb_per_s: bus_bandwidth,
        link_fraction: facts.link.filter(|link| *link > 0.0).map(|link| bus_bandwidth / link),
        verified: ours.right == Some(true),
        compiled: facts.compiled,
        extras: Map::new(),
    }
    .with("algbw", rounded(algorithm_bandwidth))
    .with("busbw", rounded(bus_bandwidth));
    if let Some(algorithm) = &ours.description.algorithm {
        row = row.with("algorithm", algorithm.as_str());
    }
    if let Some(blocks) = ours.description.blocks {
        row = row.with("blocks", blocks);
    }
    for peer in peers {
        row = row.with(&format!("{}_us", peer.name), rounded(peer.samples.median()));
        row = row.with(&format!("{}_us_p99", peer.name), rounded(peer.samples.p99()));
        if let Some(right) = peer.right {
            row = row.with(&format!("{}_verified", peer.name), right);
        }
    }
    // The fastest peer's time by ours: above 1 where this library is faster than all of them.
    let fastest = peers.iter().map(|peer| peer.samples.median()).min_by(f64::total_cmp);
    if let Some(fastest) = fastest.filter(|_| median > 0.0) {
        row = row.with("ratio", rounded(fastest / median));
    }
    Ok(facts.settings.iter().fold(row, |row, (name, value)| row.with(name, value.clone())))
}

/// Four digits that count.
pub(super) fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10f64.powi(3 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(name: &str, times: &[f64], right: Option<bool>) -> Said {
        Said {
            name: name.into(),
            times: times.into(),
            right,
            algorithm: Some("packets".into()),
            blocks: Some(4),
        }
    }

    #[test]
    fn the_slowest_member_counts_and_one_wrong_member_is_enough() {
        let members = [
            vec![said("anabranch", &[1.0, 5.0], Some(true)), said("nccl", &[9.0], None)],
            vec![said("anabranch", &[2.0, 4.0], Some(false)), said("nccl", &[8.0], None)],
        ];
        let results = together(&members);
        assert_eq!(results[0].samples, Samples::new(vec![2.0, 5.0]));
        assert_eq!((results[0].right, results[1].right), (Some(false), None));
        assert!((results[1].samples.median() - 9.0).abs() < 1e-12);
        assert!(together(&[]).is_empty());
    }

    #[test]
    fn four_digits_count() {
        let texts =
            [123.456, 0.001_234_56, 4519.6, 0.0, f64::INFINITY].map(|value| rounded(value).to_string());
        assert_eq!(texts, ["123.5", "0.001235", "4520", "0", "inf"]);
    }

    #[test]
    fn bandwidth_and_ratio_come_from_the_medians() {
        let result = |name: &str, median, right| Result {
            name: name.into(),
            samples: Samples::new(vec![median]),
            right,
            description: Description { algorithm: None, blocks: Some(16) },
        };
        let settings = BTreeMap::from([("mode", "graph".into())]);
        let facts = Facts {
            op: "all_reduce".into(),
            runtime: "nvidia".into(),
            ranks: 4,
            dtype: "bf16".into(),
            bytes: 1_000_000,
            bus_factor: 1.5,
            link: Some(300.0),
            compiled: 0,
            settings: &settings,
        };
        let results = [
            result("anabranch", 10.0, Some(true)),
            result("nccl", 20.0, Some(true)),
            result("nccl_sym", 15.0, None),
        ];
        let row = row(&facts, &results).unwrap();
        let value = serde_json::to_value(&row).unwrap();
        for (name, number) in
            [("algbw", 100.0), ("busbw", 150.0), ("gb_per_s", 150.0), ("link_fraction", 0.5), ("ratio", 1.5)]
        {
            assert_eq!(value[name], number, "{name}: {value}");
        }
        assert_eq!((&value["nccl_us"], &value["nccl_sym_us"]), (&20.0.into(), &15.0.into()));
        assert_eq!((&value["nccl_verified"], value.get("nccl_sym_verified")), (&true.into(), None));
        assert_eq!((&value["mode"], &value["blocks"], row.verified), (&"graph".into(), &16.into(), true));
        assert!(super::row(&facts, &[]).is_err());
    }
}
