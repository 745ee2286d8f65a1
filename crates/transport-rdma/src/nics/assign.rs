//! Which port serves which GPU. Nothing here asks a machine: plain data goes in, ports and reasons come out.
//!
//! The nearest port wins ([`Distance`]), the fastest of the nearest, and where several are equal the GPUs that may use them are
//! spread over them: GPUs with the fewest choices first, each takes the port that the fewest took before it. Since the sets of nearest
//! ports of two GPUs are either apart or one within the other (they hang in one tree), no other choice among them gives the most
//! used port fewer GPUs.

use core::fmt;
use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::distance::{Distance, PciLocation, depth};
use super::filter::{Allowed, NicFilter};
use super::gid::choose_gid;
use super::machine::{Machine, Nic};
use super::pci::PciPath;
use super::port::{Port, PortState};

/// A port of a machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId {
    /// The NIC, as an index of [`Machine::nics`].
    pub nic: usize,
    /// The NIC's name.
    pub name: String,
    /// The port's number.
    pub port: u32,
}

impl fmt::Display for PortId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.name, self.port)
    }
}

/// A port that was looked at for a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Considered {
    /// The port.
    pub port: PortId,
    /// How far it is.
    pub distance: Distance,
    /// Whether it could serve.
    pub usable: bool,
    /// Why it serves or does not, in words.
    pub verdict: String,
}

/// What serves a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The port; `None` if none can be used.
    pub chosen: Option<PortId>,
    /// Ports that are as near and as fast as the chosen one, in the machine's order. The chosen one is among them.
    pub equals: Vec<PortId>,
    /// Why, in words.
    pub reason: String,
    /// Every port of the machine, in its order; for a NIC without ports its name and port 0.
    pub considered: Vec<Considered>,
}

/// Chooses a port for each GPU, in the order of `gpus`.
///
/// `gpus` are the GPUs of all ranks of the machine, one place for each rank: every rank that gives the same list in the same order
/// gets the same answer.
pub fn assign(gpus: &[PciLocation], machine: &Machine, filter: &NicFilter) -> Vec<Assignment> {
    let owned: Vec<(PciLocation, usize)> = gpus.iter().map(|gpu| (gpu.clone(), 0)).collect();
    assign_to_parts(&owned, machine, filter)
}

/// Chooses as [`assign`] does, where each GPU is of a part of the machine, given behind it by a number from 0 on. Parts have no port in
/// common among the ports that are equal for their GPUs, where these are at least as many as the parts.
pub(super) fn assign_to_parts(
    gpus: &[(PciLocation, usize)],
    machine: &Machine,
    filter: &NicFilter,
) -> Vec<Assignment> {
    let ports = judged(machine, filter);
    let nearest: Vec<Vec<usize>> = gpus.iter().map(|(gpu, _)| nearest(gpu, machine, &ports)).collect();
    let parts: BTreeSet<usize> = gpus.iter().map(|(_, part)| *part).collect();
    let owners = owners(&nearest, ports.len(), parts.len());
    // A part's own among the equal ports; all of them, where they are too few for it to have one.
    let choices = nearest.iter().zip(gpus).map(|(equal, (_, part))| {
        let rank = parts.range(..part).count();
        let own = |port: &usize| owners.get(*port) == Some(&rank);
        let own: Vec<usize> = equal.iter().copied().filter(own).collect();
        if own.is_empty() { equal.clone() } else { own }
    });
    let choices: Vec<Vec<usize>> = choices.collect();
    let mut order: Vec<usize> = (0..gpus.len()).collect();
    let address = |gpu: usize| gpus.get(gpu).and_then(|(place, _)| place.path.as_ref()).map(PciPath::address);
    order.sort_by_key(|gpu| (choices.get(*gpu).map_or(0, Vec::len), address(*gpu), *gpu));
    let mut users = vec![0usize; ports.len()];
    let mut taken = vec![None; gpus.len()];
    for gpu in order {
        let equal = choices.get(gpu).into_iter().flatten();
        let least = equal.min_by_key(|port| (users.get(**port).copied().unwrap_or(0), **port)).copied();
        if let (Some(port), Some(slot)) = (least, taken.get_mut(gpu)) {
            *slot = Some(port);
            if let Some(count) = users.get_mut(port) {
                *count += 1;
            }
        }
    }
    let shares = gpus.iter().zip(nearest).zip(taken);
    shares.map(|(((gpu, _), equal), port)| explain(gpu, machine, &ports, &equal, port, &users)).collect()
}

/// For every port the part that it belongs to, of `parts`, so that of any of the sets of equal ports each part has as many as every other,
/// or one more or less.
///
/// The sets are either apart or one within the other. So there is an order in which each of them is a run of ports without a gap: that of
/// the sets that a port is in, the largest set first. Dealt out in turn in this order, each run is.
fn owners(sets: &[Vec<usize>], ports: usize, parts: usize) -> Vec<usize> {
    let mut sets: Vec<&Vec<usize>> = sets.iter().collect();
    sets.sort_by_key(|set| Reverse(set.len()));
    let mut order: Vec<usize> = (0..ports).collect();
    order.sort_by_cached_key(|port| {
        let outside: Vec<bool> = sets.iter().map(|set| !set.contains(port)).collect();
        (outside, *port)
    });
    let mut owners = vec![0; ports];
    for (position, port) in order.into_iter().enumerate() {
        if let Some(owner) = owners.get_mut(port) {
            *owner = position % parts.max(1);
        }
    }
    owners
}

/// A port and whether it can serve at all.
struct Judged {
    id: PortId,
    rate: u32,
    /// Why not.
    refused: Option<String>,
    /// The entry that named it.
    named: Option<String>,
}

fn judged(machine: &Machine, filter: &NicFilter) -> Vec<Judged> {
    let mut found = Vec::new();
    for (index, nic) in machine.nics().iter().enumerate() {
        let id = |port| PortId { nic: index, name: nic.name.clone(), port };
        if nic.ports.is_empty() {
            let mut problems = vec!["no port can be read".to_owned()];
            problems.extend(nic.problems.iter().cloned());
            found.push(Judged { id: id(0), rate: 0, refused: Some(problems.join("; ")), named: None });
        }
        for port in &nic.ports {
            let allowed = filter.judge(&nic.name, port.number);
            let refused = refusal(nic, port, &allowed, filter.gid_index());
            let named = match allowed {
                Allowed::Named(entry) => Some(entry),
                _ => None,
            };
            found.push(Judged { id: id(port.number), rate: port.rate_mbps, refused, named });
        }
    }
    found
}

/// Why a port cannot serve.
fn refusal(nic: &Nic, port: &Port, allowed: &Allowed, gid_index: Option<u32>) -> Option<String> {
    if let Allowed::Refused(why) = allowed {
        return Some(why.clone());
    }
    if !nic.problems.is_empty() {
        return Some(nic.problems.join("; "));
    }
    if nic.node_type != "CA" {
        return Some(format!(
            "a NIC of kind {:?}: queue pairs connect without a connection manager only on those of kind \"CA\"",
            nic.node_type
        ));
    }
    if nic.is_software() && *allowed == Allowed::Unnamed {
        return Some("a NIC in software, used only when transport.rdma.nics names it".to_owned());
    }
    if port.state != PortState::Active {
        let physical = match port.physical_state.as_str() {
            "" => String::new(),
            text => format!(" (physical state {text})"),
        };
        return Some(format!("the port is {}{physical}", port.state));
    }
    // An InfiniBand port needs one too: drivers send their peers the GID with the LID.
    choose_gid(port.link_layer, &port.gids, gid_index).err().map(|error| error.to_string())
}

/// The usable ports that are nearest to a GPU, and the fastest of these.
fn nearest(gpu: &PciLocation, machine: &Machine, ports: &[Judged]) -> Vec<usize> {
    let key = |port: &Judged| {
        let place = machine.nics().get(port.id.nic).map(|nic| &nic.place)?;
        Some((Distance::between(gpu, place), Reverse(depth(gpu, place)), Reverse(port.rate)))
    };
    let usable = || ports.iter().enumerate().filter(|(_, port)| port.refused.is_none());
    let best = usable().filter_map(|(_, port)| key(port)).min();
    usable().filter(|(_, port)| best.is_some() && key(port) == best).map(|(index, _)| index).collect()
}

fn explain(
    gpu: &PciLocation,
    machine: &Machine,
    ports: &[Judged],
    equal: &[usize],
    taken: Option<usize>,
    users: &[usize],
) -> Assignment {
    let distance = |port: &Judged| {
        machine.nics().get(port.id.nic).map_or(Distance::Unknown, |nic| Distance::between(gpu, &nic.place))
    };
    let chosen = taken.and_then(|index| ports.get(index).map(|port| (index, port)));
    let considered = ports.iter().enumerate().map(|(index, port)| {
        let own = distance(port);
        let verdict = match (&port.refused, chosen) {
            (Some(why), _) => why.clone(),
            (None, Some((taken, _))) if taken == index => "chosen".to_owned(),
            (None, Some((_, best))) if equal.contains(&index) => {
                format!("as near and as fast as {}", best.id)
            }
            (None, Some((_, best))) if own == distance(best) && port.rate < best.rate => {
                format!("as near as {}, and slower", best.id)
            }
            (None, Some((_, best))) => format!("farther than {}", best.id),
            (None, None) => "not chosen".to_owned(),
        };
        Considered { port: port.id.clone(), distance: own, usable: port.refused.is_none(), verdict }
    });
    let considered = considered.collect();
    let reason = match chosen {
        None if ports.is_empty() => "this machine shows no NIC".to_owned(),
        None => "no port can be used".to_owned(),
        Some((index, port)) => {
            let mut reasons = vec![distance(port).to_string()];
            if equal.len() > 1 {
                reasons.push(format!("1 of {} equal ports", equal.len()));
            }
            match users.get(index).copied().unwrap_or(0) {
                0 | 1 => {}
                count => reasons.push(format!("shared by {count} ranks")),
            }
            reasons.extend(port.named.as_ref().map(|entry| format!("named by {entry:?}")));
            reasons.join(", ")
        }
    };
    let equals = equal.iter().filter_map(|index| ports.get(*index)).map(|port| port.id.clone()).collect();
    Assignment { chosen: chosen.map(|(_, port)| port.id.clone()), equals, reason, considered }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sets of ports that are either apart or one within the other: runs of `begin..begin + length`, without those that cut another.
    fn sets() -> impl Strategy<Value = (usize, Vec<Vec<usize>>)> {
        let names = Just((0..12usize).collect::<Vec<_>>()).prop_shuffle();
        let runs = prop::collection::vec((0..12usize, 1..12usize), 1..8);
        (names, runs).prop_map(|(names, runs)| {
            let mut kept: Vec<BTreeSet<usize>> = Vec::new();
            for (begin, length) in runs {
                let run: BTreeSet<usize> = names.iter().copied().skip(begin).take(length).collect();
                let fits = |other: &BTreeSet<usize>| {
                    other.is_disjoint(&run) || other.is_subset(&run) || run.is_subset(other)
                };
                if kept.iter().all(fits) {
                    kept.push(run);
                }
            }
            (names.len(), kept.into_iter().map(|set| set.into_iter().collect()).collect())
        })
    }

    proptest! {
        #[test]
        fn each_part_has_as_many_of_every_set((ports, sets) in sets(), parts in 1..5usize) {
            let owners = owners(&sets, ports, parts);
            prop_assert_eq!(owners.len(), ports);
            for set in &sets {
                let count = |part: usize| set.iter().filter(|port| owners[**port] == part).count();
                let counts: Vec<usize> = (0..parts).map(count).collect();
                prop_assert_eq!(counts.iter().sum::<usize>(), set.len());
                let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
                prop_assert!(most - least <= 1, "{:?}: {:?}", set, counts);
            }
        }
    }
}
