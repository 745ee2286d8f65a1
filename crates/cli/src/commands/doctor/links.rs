//! The peer matrix, probed by real copies.

use anabranch_hip::with_distinct_causes;
use anabranch_hip::{Device, Result};

use super::finding::Finding;

/// Bytes of a probe; more than one page, so that a mapping of the first page only is noticed.
const BYTES: usize = 1 << 16;

/// Copies from every device to every other and checks the bytes: one finding per device.
pub(super) fn probe(devices: &[Device], wanted: bool) -> Vec<Finding> {
    if devices.len() < 2 {
        return Vec::new();
    }
    devices.iter().map(|device| row(device, devices, wanted)).collect()
}

fn row(device: &Device, devices: &[Device], wanted: bool) -> Finding {
    let kind = device.runtime().kind();
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for peer in devices.iter().filter(|peer| peer.ordinal() != device.ordinal()) {
        match pair(device, peer) {
            Ok(Seen::Same) => good.push(peer.ordinal().0),
            Ok(Seen::NoAccess) => bad.push(format!("{}: no peer access", peer.ordinal())),
            Ok(Seen::Differs { byte }) => bad.push(format!("{}: byte {byte} arrived wrong", peer.ordinal())),
            Err(error) => bad.push(format!("{}: {}", peer.ordinal(), with_distinct_causes(&error))),
        }
    }
    let list = good.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let name = format!("{kind} {}", device.ordinal());
    let finding = if bad.is_empty() {
        Finding::ok("links", name, format!("reaches {list}"))
    } else {
        let hint = "ranks on these devices cannot use p2p: look at the IOMMU and ACS settings, the container's devices, and `topo`";
        Finding::missing("links", name, wanted, format!("reaches {list}; not {}", bad.join(", "))).hint(hint)
    };
    finding.with("runtime", kind.to_string()).with("device", device.ordinal().0).with("reaches", good)
}

enum Seen {
    Same,
    NoAccess,
    Differs { byte: usize },
}

/// Copies a pattern from one device to another, as the first one's stream does it.
#[expect(unsafe_code, reason = "asynchronous copies take addresses")]
fn pair(device: &Device, peer: &Device) -> Result<Seen> {
    if !device.can_access_peer(peer)? {
        return Ok(Seen::NoAccess);
    }
    device.enable_peer_access(peer)?;
    let salt = device.ordinal().0 * 31 + peer.ordinal().0;
    let pattern: Vec<u8> =
        (0..BYTES as u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8 ^ salt as u8).collect();
    let mut source = device.allocate(BYTES)?;
    let mut target = peer.allocate(BYTES)?;
    source.copy_from_host(0, &pattern)?;
    // Over when it returns: nothing else orders the other device's fill and this one's stream.
    target.fill(!pattern[0])?;
    let stream = device.create_stream()?;
    // SAFETY: both buffers have BYTES bytes and are dropped after the stream was waited for.
    unsafe { stream.copy_async(target.address(), source.address(), BYTES) }?;
    stream.synchronize()?;
    let mut arrived = vec![0; BYTES];
    target.copy_to_host(0, &mut arrived)?;
    let wrong = arrived.iter().zip(&pattern).position(|(got, sent)| got != sent);
    Ok(wrong.map_or(Seen::Same, |byte| Seen::Differs { byte }))
}
