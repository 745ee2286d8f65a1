//! What the environment has to say before a provider serves.
//!
//! A queue that has stopped uses this process's memory no more: that is what the world counts on when it gives memory back. Some providers
//! have peers use it by themselves, and closing an endpoint here does not keep them from it. With "cross memory attach" (CMA), `shm` of
//! libfabric 1.17 has the target of a long write fetch its bytes by `process_vm_readv`, whenever the target gets to it, and its sources have the
//! target of a read write the reader's memory by `process_vm_writev` (`smr_select_proto` of `prov/shm/src/smr_ep.c`: `smr_src_iov`; 1.17 itself
//! asks `cma_avail && FI_HMEM_SYSTEM`, which is 0, and so does not get there). Without, bytes go through buffers that both have mapped, and each
//! side copies from and to its own memory (`smr_src_sar`). The provider reads `FI_SHM_DISABLE_CMA` when the process first asks libfabric for
//! anything, and applies it to what its own endpoints ask for. Later versions have two more ways of the kind, which are off unless they are set.

use std::os::unix::ffi::OsStrExt as _;

use crate::info::layers;
use crate::library::Libfabric;

/// What a provider needs: of which layer of its name, the variables of which one has to be set so, and those that must not be set.
struct Needs {
    layer: &'static str,
    one_of: &'static [(&'static str, bool)],
    none_of: &'static [&'static str],
}

const NEEDS: [Needs; 2] = [
    Needs {
        layer: "shm",
        one_of: &[("FI_SHM_DISABLE_CMA", true)],
        none_of: &["FI_SHM_USE_XPMEM", "FI_SHM_USE_DSA_SAR"],
    },
    // It goes by `shm` to peers of the same machine.
    Needs {
        layer: "efa",
        one_of: &[("FI_SHM_DISABLE_CMA", true), ("FI_EFA_ENABLE_SHM_TRANSFER", false)],
        none_of: &["FI_SHM_USE_XPMEM", "FI_SHM_USE_DSA_SAR"],
    },
];

/// Layers that copy between the processes of a machine by other means, which are not known to end with an endpoint.
const NEVER: [&str; 3] = ["psm2", "psm3", "ucx"];

/// Whether this provider may serve under the environment of this process.
///
/// # Errors
/// Why not, and what to set.
pub(crate) fn check(library: &Libfabric, provider: &str) -> Result<(), String> {
    if let Some(layer) = layers(provider).find(|layer| NEVER.contains(layer)) {
        return Err(format!(
            "{layer} copies between the processes of a machine by ways of its own, which may use this process's memory when a queue has stopped"
        ));
    }
    if !NEEDS.iter().any(|needs| layers(provider).any(|layer| layer == needs.layer)) {
        return Ok(());
    }
    let known = library.parameters().map_err(|error| error.to_string())?;
    let begun = std::fs::read("/proc/self/environ").unwrap_or_default();
    judge(provider, &known, &begun)
}

/// As [`check`], of the variables that the library knows, with their values, and of what the process began with, as the system gives it.
fn judge(provider: &str, known: &[(String, Option<String>)], begun: &[u8]) -> Result<(), String> {
    // The library has read its variables, perhaps before this crate was asked for anything: a value counts if it has been there all the time.
    let always = |name: &str, value: bool| {
        let now = known.iter().find(|(known, _)| known == name).and_then(|(_, value)| value.as_deref());
        let first = begun
            .split(|byte| *byte == 0)
            .find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        let first = first.map(|bytes| std::ffi::OsStr::from_bytes(bytes).to_string_lossy());
        now.and_then(truth) == Some(value) && first.as_deref().and_then(truth) == Some(value)
    };
    for Needs { layer, one_of, none_of } in NEEDS {
        if !layers(provider).any(|found| found == layer) {
            continue;
        }
        if !one_of.iter().any(|(name, value)| always(name, *value)) {
            let ways: Vec<_> =
                one_of.iter().map(|(name, value)| format!("{name}={}", u8::from(*value))).collect();
            let unknown = one_of.iter().filter(|(name, _)| known.iter().all(|(known, _)| known != name));
            let unknown: Vec<_> = unknown.map(|(name, _)| *name).collect();
            let mut words = format!(
                "it has peers read and write this process's memory by themselves (CMA), also when a queue has stopped and the memory is used for something else: {} has to be in the environment before the process starts",
                ways.join(" or ")
            );
            if !unknown.is_empty() {
                words = format!("{words}, and this libfabric does not know {}", unknown.join(" and "));
            }
            return Err(words);
        }
        for name in none_of {
            let now = known.iter().find(|(known, _)| known == name).and_then(|(_, value)| value.as_deref());
            // What is not off for certain is on.
            if now.is_some_and(|value| truth(value) != Some(false)) {
                return Err(format!(
                    "{name} is set, with which libfabric uses memory of this process after a queue is closed: unset it before the process starts"
                ));
            }
        }
    }
    Ok(())
}

/// A value as libfabric reads it (`fi_param_get_bool`); it takes others for none.
fn truth(value: &str) -> Option<bool> {
    let is = |word: &&str| value.eq_ignore_ascii_case(word);
    if ["1", "true", "yes", "on"].iter().any(is) {
        Some(true)
    } else if ["0", "false", "no", "off"].iter().any(is) {
        Some(false)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CMA: &str = "FI_SHM_DISABLE_CMA";

    fn known(values: &[(&str, Option<&str>)]) -> Vec<(String, Option<String>)> {
        values.iter().map(|(name, value)| ((*name).to_owned(), value.map(ToOwned::to_owned))).collect()
    }

    #[test]
    fn providers_with_ways_of_their_own_do_not_serve() {
        let Ok(library) = Libfabric::open() else {
            println!("skipped: no libfabric (Debian: libfabric1)");
            return;
        };
        for provider in ["psm3", "psm2;ofi_rxd", "ucx"] {
            let refused = check(&library, provider).unwrap_err();
            assert!(refused.contains("by ways of its own"), "{refused}");
        }
        assert_eq!(check(&library, "tcp;ofi_rxm"), Ok(()));
    }

    #[test]
    fn shared_memory_serves_where_cma_was_off_from_the_beginning() {
        for (now, begun, is_well) in [
            (Some("1"), "A=2\0FI_SHM_DISABLE_CMA=1\0B=\0", true),
            (Some("Yes"), "FI_SHM_DISABLE_CMA=on\0", true),
            (None, "A=2\0", false),
            (Some("0"), "FI_SHM_DISABLE_CMA=0\0", false),
            (Some("perhaps"), "FI_SHM_DISABLE_CMA=perhaps\0", false),
            // Set by the process itself: whether the provider had been asked before is not known.
            (Some("1"), "A=2\0", false),
            (Some("1"), "XFI_SHM_DISABLE_CMA=1\0", false),
            (None, "FI_SHM_DISABLE_CMA=1\0", false),
        ] {
            let judged = judge("shm", &known(&[(CMA, now)]), begun.as_bytes());
            assert_eq!(judged.is_ok(), is_well, "{now:?} {begun:?}");
            let Err(words) = judged else { continue };
            assert!(words.contains("FI_SHM_DISABLE_CMA=1 has to be in the environment"), "{words}");
        }
        let unknown = judge("shm", &[], b"FI_SHM_DISABLE_CMA=1\0").unwrap_err();
        assert!(unknown.contains("this libfabric does not know FI_SHM_DISABLE_CMA"), "{unknown}");
        assert_eq!(judge("tcp;ofi_rxm", &known(&[(CMA, None)]), b""), Ok(()));
        assert!(judge("ofi_mrail;shm", &known(&[(CMA, None)]), b"").is_err());
    }

    #[test]
    fn other_ways_of_shared_memory_are_refused_where_they_are_on() {
        let begun = b"FI_SHM_DISABLE_CMA=1\0";
        for (value, is_well) in [(None, true), (Some("0"), true), (Some("1"), false), (Some("?"), false)] {
            let judged = judge("shm", &known(&[(CMA, Some("1")), ("FI_SHM_USE_XPMEM", value)]), begun);
            assert_eq!(judged.is_ok(), is_well, "{value:?}: {judged:?}");
        }
    }

    #[test]
    fn efa_serves_without_shared_memory_or_with_it_as_it_may_be() {
        let without = known(&[("FI_EFA_ENABLE_SHM_TRANSFER", Some("0"))]);
        assert_eq!(judge("efa", &without, b"FI_EFA_ENABLE_SHM_TRANSFER=0\0"), Ok(()));
        assert_eq!(judge("efa", &known(&[(CMA, Some("1"))]), b"FI_SHM_DISABLE_CMA=1\0"), Ok(()));
        let refused = judge("efa", &known(&[("FI_EFA_ENABLE_SHM_TRANSFER", None)]), b"").unwrap_err();
        assert!(refused.contains("FI_SHM_DISABLE_CMA=1 or FI_EFA_ENABLE_SHM_TRANSFER=0"), "{refused}");
    }
}
