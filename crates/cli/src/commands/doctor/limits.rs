//! What the system allows this process.

use std::num::NonZeroUsize;

use rustix::process::{Resource, getrlimit};

use super::finding::{Finding, size};

/// Sockets, shared memory and libraries of a rank; 16 ranks as threads of one process stay below it.
const FILES_NEEDED: u64 = 1024;
/// The kernel's own default.
const MAPPINGS_NEEDED: u64 = 65_530;

pub(super) fn limits() -> Vec<Finding> {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let files = getrlimit(Resource::Nofile).current;
    let locked = getrlimit(Resource::Memlock).current;
    let number = |value: Option<u64>| value.map_or_else(|| "unlimited".to_owned(), |value| value.to_string());
    let enough = files.is_none_or(|files| files >= FILES_NEEDED);
    let mut findings = vec![
        Finding::ok("limits", "cores", cores.to_string()).with("value", cores),
        at_least("open files", enough, &number(files), "raise it: ulimit -n 4096").with("value", files),
        // Only RDMA registers memory that has to stay; it will say so itself.
        Finding::ok("limits", "locked memory", locked.map_or_else(|| "unlimited".to_owned(), size))
            .with("value", locked),
    ];
    let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    findings.push(match mappings.ok().and_then(|text| text.trim().parse::<u64>().ok()) {
        Some(count) => {
            let hint = format!("raise it: sysctl vm.max_map_count={MAPPINGS_NEEDED}");
            at_least("memory mappings", count >= MAPPINGS_NEEDED, &count.to_string(), &hint)
                .with("value", count)
        }
        None => {
            Finding::missing("limits", "memory mappings", false, "/proc/sys/vm/max_map_count cannot be read")
        }
    });
    findings
}

fn at_least(name: &str, enough: bool, value: &str, hint: &str) -> Finding {
    if enough {
        Finding::ok("limits", name, value)
    } else {
        Finding::missing("limits", name, true, format!("{value}, which is too few")).hint(hint)
    }
}
