//! Which port of which NIC serves a rank.

use std::path::{Component, Path, PathBuf};

use super::gid::{Gid, choose_gid};

/// Which NIC, port and address a rank uses, where the choice is not left to the driver; and how its packets are marked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicChoice {
    /// The name of the NIC as `ibv_devices` prints it.
    pub nic: Option<String>,
    /// The port, from 1.
    pub port: Option<u8>,
    /// The index of the port's address (GID).
    pub gid: Option<u32>,
    /// The traffic class of packets (RoCE: the DSCP, times 4), as the network's lossless class wants it.
    pub traffic_class: u8,
    /// The service level (RoCE: the priority), 0 to 15.
    pub service_level: u8,
}

/// A port as it was found.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    /// The NIC.
    pub(crate) nic: String,
    /// The port, from 1.
    pub(crate) port: u8,
    /// Why it cannot be used now, if so.
    pub(crate) unusable: Option<String>,
    /// Whether its link is Ethernet.
    pub(crate) ethernet: bool,
    /// Its addresses.
    pub(crate) gids: Vec<Gid>,
    /// Gigabits a second as the system says; 0 where it does not.
    pub(crate) rate: u64,
    /// Where the NIC is in the system's tree of devices.
    pub(crate) place: Option<PathBuf>,
}

impl Candidate {
    /// The port in words, with why it cannot be used if so.
    pub(crate) fn describe(&self) -> String {
        let link = if self.ethernet { "Ethernet" } else { "InfiniBand" };
        let gids: Vec<_> = self.gids.iter().map(Gid::describe).collect();
        let rate = self.rate;
        let usable = self
            .unusable
            .as_ref()
            .map_or_else(|| gids.join(", "), |reason| format!("cannot be used: {reason}"));
        format!("{} port {}: {link}, {rate} Gb/s, {usable}", self.nic, self.port)
    }
}

/// What was chosen.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    /// Its index among the candidates.
    pub(crate) index: usize,
    /// Its address.
    pub(crate) gid: Gid,
    /// Why this port and this address.
    pub(crate) why: String,
}

/// Chooses the port that is nearest to the device in the PCI tree, of those the fastest, and of equal ones, one by the device's ordinal, so that
/// the devices of a machine spread over them.
///
/// # Errors
/// Each candidate and why it was not taken.
pub(crate) fn choose(
    candidates: &[Candidate],
    choice: &NicChoice,
    device: Option<&Path>,
    ordinal: u32,
) -> Result<Chosen, String> {
    let mut reasons = Vec::new();
    let mut usable = Vec::new();
    for (index, candidate) in candidates.iter().enumerate() {
        match usable_gid(candidate, choice) {
            Ok((gid, why)) => usable.push((index, gid, why, nearness(candidate.place.as_deref(), device))),
            Err(reason) => reasons.push(format!("{} port {}: {reason}", candidate.nic, candidate.port)),
        }
    }
    let Some(best) = usable.iter().map(|(index, .., near)| (*near, candidates[*index].rate)).max() else {
        if reasons.is_empty() {
            reasons.push("there is none".to_owned());
        }
        return Err(reasons.join("; "));
    };
    usable.retain(|(index, .., near)| (*near, candidates[*index].rate) == best);
    let (index, gid, gid_why, near) = &usable[ordinal as usize % usable.len()];
    let named = choice.nic.is_some();
    let port_why = match (named, candidates.len() - reasons.len(), near) {
        (true, ..) => "named by the configuration".to_owned(),
        (false, 1, _) => "the only port that can be used".to_owned(),
        (false, _, 0) => format!("of {} with equal rates, by the device's number", usable.len()),
        (false, _, steps) => format!("nearest to the device, with {steps} bridges in common"),
    };
    Ok(Chosen { index: *index, gid: *gid, why: format!("{port_why}; {}: {gid_why}", gid.describe()) })
}

fn usable_gid(candidate: &Candidate, choice: &NicChoice) -> Result<(Gid, &'static str), String> {
    if let Some(nic) = choice.nic.as_ref().filter(|nic| **nic != candidate.nic) {
        return Err(format!("{nic} is asked for"));
    }
    if let Some(port) = choice.port.filter(|port| *port != candidate.port) {
        return Err(format!("port {port} is asked for"));
    }
    if let Some(reason) = &candidate.unusable {
        return Err(reason.clone());
    }
    choose_gid(&candidate.gids, candidate.ethernet, choice.gid)
}

/// How many steps of the way from the root of the tree two devices share; 0 where one is in no tree.
fn nearness(nic: Option<&Path>, device: Option<&Path>) -> usize {
    let (Some(nic), Some(device)) = (nic, device) else { return 0 };
    let steps = |path: &Path| -> Vec<String> {
        let names = path.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            _ => None,
        });
        // "sys", "devices" and the like are no bridges.
        names.filter(|name| name.starts_with("pci") || name.contains(':')).collect()
    };
    steps(nic).iter().zip(&steps(device)).take_while(|(nic, device)| nic == device).count()
}

#[cfg(test)]
mod tests {
    use super::super::bindings::IBV_GID_TYPE_ROCE_V2;
    use super::*;

    fn candidate(nic: &str, place: Option<&str>, rate: u64) -> Candidate {
        let raw = std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets();
        Candidate {
            nic: nic.to_owned(),
            port: 1,
            unusable: None,
            ethernet: true,
            gids: vec![Gid { index: 1, kind: IBV_GID_TYPE_ROCE_V2, raw }],
            rate,
            place: place.map(PathBuf::from),
        }
    }

    fn name(candidates: &[Candidate], choice: &NicChoice, device: Option<&str>, ordinal: u32) -> String {
        let chosen = choose(candidates, choice, device.map(Path::new), ordinal).unwrap();
        candidates[chosen.index].nic.clone()
    }

    #[test]
    fn nearness_comes_before_rate_and_rate_before_number() {
        let near = "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0/0000:42:00.0/0000:43:00.0";
        let far = "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0";
        let gpu = "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0/0000:42:08.0/0000:44:00.0";
        let all = [candidate("far", Some(far), 400), candidate("near", Some(near), 200)];
        let any = NicChoice::default();
        assert_eq!(name(&all, &any, Some(gpu), 0), "near");
        assert_eq!(name(&all, &any, None, 0), "far", "without a place the faster one");
        let equal = [candidate("a", None, 100), candidate("b", None, 100), candidate("slow", None, 25)];
        let chosen: Vec<_> = (0..3).map(|ordinal| name(&equal, &any, Some(gpu), ordinal)).collect();
        assert_eq!(chosen, ["a", "b", "a"]);
    }

    #[test]
    fn what_cannot_be_used_is_named_with_the_reason() {
        let mut down = candidate("rxe0", None, 10);
        down.unusable = Some("its link is down".to_owned());
        let named = NicChoice { nic: Some("mlx5_7".to_owned()), ..NicChoice::default() };
        let other = candidate("rxe1", None, 10);
        let reasons = choose(&[down.clone(), other], &named, None, 0).unwrap_err();
        assert_eq!(reasons, "rxe0 port 1: mlx5_7 is asked for; rxe1 port 1: mlx5_7 is asked for");
        assert_eq!(
            choose(&[down], &NicChoice::default(), None, 0).unwrap_err(),
            "rxe0 port 1: its link is down"
        );
        assert_eq!(choose(&[], &NicChoice::default(), None, 0).unwrap_err(), "there is none");
    }
}
