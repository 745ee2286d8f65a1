//! SLURM's compressed lists.

use super::{Variables, malformed};
use crate::Error;

/// Where the root's port lies: this, and this many from it.
const PORTS: (u64, u64) = (20_000, 12_000);

/// The root's host and port.
pub(super) fn root(variables: &Variables<'_>) -> Result<(String, u16), Error> {
    let (name, list) = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"]
        .into_iter()
        .find_map(|name| variables.get(name).map(|list| (name, list)))
        .ok_or_else(|| variables.missing("SLURM_STEP_NODELIST", "the host of the root"))?;
    let host = first_host(&list)
        .ok_or_else(|| malformed(name, &list, "a list of hosts, such as node[03-07,9],other"))?;
    let job: u64 = variables.number("SLURM_JOB_ID", "the port of the root")?;
    let step: u64 = variables.number("SLURM_STEP_ID", "the port of the root")?;
    let offset = job.wrapping_mul(31).wrapping_add(step) % PORTS.1;
    Ok((host, (PORTS.0 + offset) as u16))
}

/// The first host of a list: `node[003-005,9]-ib,other` gives `node003-ib`. `None` when it is no list.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    loop {
        let stop = rest.find(['[', ']', ',']);
        let (plain, tail) = stop.map_or((rest, ""), |at| rest.split_at(at));
        host.push_str(plain);
        let Some(inside) = tail.strip_prefix('[') else {
            // A closing bracket without an opening one is no list.
            return (!host.is_empty() && !tail.starts_with(']')).then_some(host);
        };
        let (inside, after) = inside.split_once(']')?;
        let first = inside.split([',', '-']).next().filter(|first| !first.is_empty())?;
        if inside.contains('[') || !first.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        host.push_str(first);
        rest = after;
    }
}

/// The ranks on this node: its entry in `SLURM_STEP_TASKS_PER_NODE`, such as `4(x2),3`.
pub(super) fn local_size(variables: &Variables<'_>) -> Result<u32, Error> {
    let (name, list) = ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"]
        .into_iter()
        .find_map(|name| variables.get(name).map(|list| (name, list)))
        .ok_or_else(|| {
            variables.missing("SLURM_STEP_TASKS_PER_NODE", "the number of ranks on this machine")
        })?;
    let node: u32 = variables.number("SLURM_NODEID", "which node this is")?;
    tasks_on(&list, node).ok_or_else(|| {
        malformed(name, &list, &format!("a list such as 4(x2),3 with an entry for node {node}"))
    })
}

fn tasks_on(list: &str, node: u32) -> Option<u32> {
    let mut before = 0_u32;
    for entry in list.split(',') {
        let (tasks, times) = match entry.trim().split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (entry.trim(), 1_u32),
        };
        let tasks = tasks.parse().ok()?;
        before = before.checked_add(times)?;
        if node < before {
            return Some(tasks);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_a_list() {
        for (list, host) in [
            ("alpha", Some("alpha")),
            ("alpha,beta", Some("alpha")),
            ("node[003-005,9]", Some("node003")),
            ("node[7,9],other", Some("node7")),
            ("rack[1-2]node[08-09]", Some("rack1node08")),
            ("gpu[12]-ib,x", Some("gpu12-ib")),
            ("fe80::1", Some("fe80::1")),
            ("", None),
            (",a", None),
            ("node[", None),
            ("node[]", None),
            ("node]3", None),
            ("node[[1]]", None),
            ("node[a-b]", None),
        ] {
            assert_eq!(first_host(list).as_deref(), host, "{list}");
        }
    }

    #[test]
    fn tasks_by_node() {
        for (list, node, tasks) in [
            ("4", 0, Some(4)),
            ("4", 1, None),
            ("4(x2),3", 1, Some(4)),
            ("4(x2),3", 2, Some(3)),
            ("4(x2),3", 3, None),
            ("4(x", 0, None),
            ("four", 0, None),
        ] {
            assert_eq!(tasks_on(list, node), tasks, "{list} {node}");
        }
    }
}
