//! What holds for every machine and every list of GPUs.

use std::net::Ipv6Addr;

use anabranch_transport_rdma::nics::{
    Assignment, Distance, Gid, GidKind, LinkLayer, Machine, Nic, NicFilter, PciLocation, PciPath, Port,
    PortState, assign,
};
use proptest::prelude::*;

/// A device somewhere in a tree of two sockets, two root ports each, two switches below each, two more below each of those.
fn place() -> impl Strategy<Value = PciLocation> {
    (0u32..2, 0u32..2, 0usize..4, 0u32..2, 0u32..2, 1u32..30).prop_map(
        |(socket, root, depth, one, two, slot)| {
            let bus = 0x80 * socket + 0x40 * root;
            let mut folders = vec![format!("pci0000:{bus:02x}"), format!("0000:{bus:02x}:01.0")];
            for (level, below) in [one, two].into_iter().take(depth.saturating_sub(1)).enumerate() {
                folders.push(format!("0000:{:02x}:00.0", bus + 1 + 2 * level as u32 + 8 * below));
                folders.push(format!("0000:{:02x}:{below:02x}.0", bus + 2 + 2 * level as u32 + 8 * below));
            }
            folders.push(format!("0000:{:02x}:{slot:02x}.0", bus + 0x20 + slot));
            // Depth 0: on the root bus itself.
            if depth == 0 {
                folders.remove(1);
            }
            PciLocation { path: PciPath::of_folders(folders.iter().map(String::as_str)), numa: Some(socket) }
        },
    )
}

fn machine() -> impl Strategy<Value = Machine> {
    prop::collection::vec((place(), 0u32..3, prop::bool::weighted(0.8)), 0..7).prop_map(|nics| {
        let nic = |(index, (place, rate, active)): (usize, (PciLocation, u32, bool))| Nic {
            name: format!("mlx5_{index}"),
            driver: Some("mlx5_core".to_owned()),
            place,
            node_type: "CA".to_owned(),
            firmware: String::new(),
            ports: vec![Port {
                number: 1,
                state: if active { PortState::Active } else { PortState::Down },
                physical_state: String::new(),
                link_layer: LinkLayer::Infiniband,
                rate_mbps: 100_000 << rate,
                lid: 1,
                interfaces: Vec::new(),
                gids: vec![Gid {
                    index: 0,
                    value: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, index as u16 + 1),
                    kind: GidKind::InfinibandOrRoceV1,
                    interface: None,
                }],
            }],
            problems: Vec::new(),
        };
        Machine::new(nics.into_iter().enumerate().map(nic).collect())
    })
}

/// How many GPUs use the most used port, with each using its `picks`.
fn most_used(picks: &[usize]) -> usize {
    picks.iter().map(|port| picks.iter().filter(|other| *other == port).count()).max().unwrap_or(0)
}

/// The least that any choice among the equals gives.
fn least_most_used(choices: &[Vec<usize>], picked: &mut Vec<usize>) -> usize {
    let Some(equals) = choices.get(picked.len()) else { return most_used(picked) };
    let mut least = usize::MAX;
    for port in equals {
        picked.push(*port);
        least = least.min(least_most_used(choices, picked));
        picked.pop();
    }
    least
}

fn nic_of(assignment: &Assignment) -> Option<usize> {
    assignment.chosen.as_ref().map(|port| port.nic)
}

proptest! {
    #[test]
    fn no_usable_port_is_nearer_or_as_near_and_faster(machine in machine(), gpus in prop::collection::vec(place(), 1..6)) {
        let all = assign(&gpus, &machine, &NicFilter::default());
        prop_assert_eq!(all.len(), gpus.len());
        for (gpu, one) in gpus.iter().zip(&all) {
            let usable: Vec<_> = one.considered.iter().filter(|considered| considered.usable).collect();
            prop_assert_eq!(one.considered.len(), machine.nics().len());
            prop_assert!(one.considered.iter().all(|considered| !considered.verdict.is_empty()));
            prop_assert_eq!(one.chosen.is_some(), !usable.is_empty());
            let Some(chosen) = &one.chosen else { continue };
            prop_assert!(one.equals.contains(chosen));
            let nic = &machine.nics()[chosen.nic];
            prop_assert_eq!(nic.ports[0].state, PortState::Active);
            let own = Distance::between(gpu, &nic.place);
            for considered in usable {
                prop_assert_eq!(considered.distance, Distance::between(gpu, &machine.nics()[considered.port.nic].place));
                prop_assert!(considered.distance >= own);
            }
            for equal in &one.equals {
                prop_assert_eq!(machine.nics()[equal.nic].ports[0].rate_mbps, nic.ports[0].rate_mbps);
            }
        }
    }

    #[test]
    fn distances_are_the_same_both_ways(one in place(), other in place()) {
        prop_assert_eq!(Distance::between(&one, &other), Distance::between(&other, &one));
        prop_assert_eq!(Distance::between(&one, &one), Distance::Switch);
    }

    #[test]
    fn no_other_choice_among_the_equals_spreads_better(machine in machine(), gpus in prop::collection::vec(place(), 1..6)) {
        let all = assign(&gpus, &machine, &NicFilter::default());
        let choices: Vec<Vec<usize>> = all.iter().map(|one| one.equals.iter().map(|port| port.nic).collect()).collect();
        prop_assume!(choices.iter().all(|equals| !equals.is_empty()));
        let picks: Vec<usize> = all.iter().filter_map(nic_of).collect();
        prop_assert_eq!(most_used(&picks), least_most_used(&choices, &mut Vec::new()));
    }

    #[test]
    fn the_order_in_which_gpus_at_different_places_are_named_does_not_matter(
        machine in machine(),
        gpus in prop::collection::vec(place(), 1..6),
    ) {
        let address = |gpu: &PciLocation| gpu.path.as_ref().map(PciPath::address);
        prop_assume!(gpus.iter().enumerate().all(|(index, gpu)| !gpus[..index].iter().any(|other| address(other) == address(gpu))));
        let forth = assign(&gpus, &machine, &NicFilter::default());
        let reversed: Vec<PciLocation> = gpus.iter().rev().cloned().collect();
        let mut back = assign(&reversed, &machine, &NicFilter::default());
        back.reverse();
        prop_assert_eq!(forth, back);
    }

    #[test]
    fn a_list_takes_exactly_what_it_names(machine in machine(), gpu in place(), named in 0usize..7) {
        let entry = format!("=mlx5_{named}");
        let taken = assign(std::slice::from_ref(&gpu), &machine, &NicFilter::parse(&[&entry]).unwrap()).remove(0);
        let left = assign(&[gpu], &machine, &NicFilter::parse(&[format!("^{entry}")]).unwrap()).remove(0);
        for (taken, left) in taken.considered.iter().zip(&left.considered) {
            prop_assert!(!(taken.usable && left.usable), "{taken:?} {left:?}");
            prop_assert!(!taken.usable || taken.port.nic == named);
            prop_assert!(!left.usable || left.port.nic != named);
        }
    }
}
