//! Addresses of this machine's network interfaces.

use crate::Error;
use std::net::IpAddr;

/// Addresses that other machines may know, of all interfaces or of one: no loopback address unless the interface is asked for by
/// name, and no link-local one, which means nothing without the interface that it came through.
///
/// # Errors
/// [`Error::Interface`]: no interface of that name has an address. [`Error::System`].
pub(super) fn addresses(name: Option<&str>) -> Result<Vec<IpAddr>, Error> {
    let all = if_addrs::get_if_addrs().map_err(Error::system("listing network interfaces"))?;
    let link_local = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let wanted = |interface: &&if_addrs::Interface| {
        !link_local(&interface.ip()) && name.map_or(!interface.is_loopback(), |name| interface.name == name)
    };
    let mut found: Vec<IpAddr> = all.iter().filter(wanted).map(if_addrs::Interface::ip).collect();
    // IPv4 first: of many addresses, those are the ones that are sure to be routed.
    found.sort_by_key(IpAddr::is_ipv6);
    match name {
        Some(name) if found.is_empty() => {
            let mut known: Vec<String> = all.into_iter().map(|interface| interface.name).collect();
            known.sort_unstable();
            known.dedup();
            Err(Error::Interface { name: name.to_owned(), known })
        }
        _ => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_found_by_name_and_unknown_ones_refused() {
        let loopback = addresses(Some("lo")).unwrap();
        assert!(loopback.iter().all(IpAddr::is_loopback) && !loopback.is_empty(), "{loopback:?}");
        assert!(addresses(None).unwrap().iter().all(|ip| !ip.is_loopback()));
        let error = addresses(Some("no-such0")).unwrap_err();
        assert!(
            matches!(&error, Error::Interface { known, .. } if known.contains(&"lo".to_owned())),
            "{error}"
        );
    }
}
