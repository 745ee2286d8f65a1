//! Finds the sites in a device source. Text in, data out: it knows the shape of this workspace's sources and no more of C++.

/// A site in a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The function, with its struct: `Wave::release_for_all`.
    pub function: String,
    /// What is called.
    pub call: String,
    /// The line, from 1.
    pub line: usize,
}

const FENCES: &[&str] = &[
    "fence_release_system",
    "fence_acquire_system",
    "fence_release_device",
    "fence_acquire_device",
    "block_release_system",
    "last_release_system",
    "offer_earlier_work",
    "arrive_is_last",
    "acquire_after_wait",
    "release_for_leader",
    "release_for_all",
    "release_for_first",
    "fence_for_all",
    "fence_for_first",
    "meet",
    "meet_first",
    "meet_with_values",
    "by_queue",
    "by_nic",
    "drain",
    "post",
    "wait_done",
];
const FLAGS: &[&str] = &[
    "flag_store",
    "flag_load",
    "flag_load_for_wait",
    "wait_until",
    "wait_for",
    "packet_store",
    "packet_load",
    "channel_look",
];
const ATOMICS: &[&str] = &[
    "fetch_add_system",
    "fetch_and_system",
    "fetch_or_system",
    "fetch_xor_system",
    "swap_system",
    "compare_swap_system",
    "fetch_add_device",
    "fetch_min_device",
];
const BARRIERS: &[&str] = &["barrier", "block_barrier", "wave_barrier", "end_epoch"];
/// Functions whose barriers count although nothing else in them is a site: what they hand over lies in local memory.
const HAND_OVER: &[&str] = &[
    "channel_open",
    "move_packets",
    "gather_packets",
    "one_shot",
    "one_shot_row",
    "two_shot",
    "two_shot_row",
    "norm_rows",
    "sum_of_squares",
    "finish_row",
    "anabranch_ccl_rms_norm",
    "scatter_packets",
    "anabranch_ep_expert_count",
    "place_pairs",
    "expand_received",
    "number_pairs",
    "copy_share",
    "expand_numbered",
    "anabranch_ep_expert_expand",
    "write_share",
];
/// Functions of the device API by which kernels tell each other something.
const API: &[&str] = &[
    "put_signal",
    "put_signal_nbi",
    "signal",
    "signal_wait",
    "signal_test",
    "wait_all",
    "wait_any",
    "quiet",
    "fence",
    "team_sync",
    "team_barrier",
];

/// A line of code with the function that it is in.
struct Line<'a> {
    function: String,
    number: usize,
    words: Vec<&'a str>,
}

fn words(text: &str) -> Vec<&str> {
    let split = text.split(|character: char| !(character.is_ascii_alphanumeric() || character == '_'));
    split.filter(|word| !word.is_empty()).collect()
}

/// The name that a definition gives: the word before the first parenthesis behind `marker`.
fn defined<'a>(line: &'a str, marker: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(marker)?;
    let (head, _) = rest.split_once('(')?;
    words(head).last().copied()
}

/// The lines that are code of a function: no comments, no macros' definitions.
fn lines(text: &str) -> Vec<Line<'_>> {
    let mut found = Vec::new();
    let (mut owner, mut function) = (String::new(), String::new());
    let mut in_macro = false;
    for (index, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let skipped = in_macro || code.trim_start().starts_with('#');
        in_macro = (in_macro || code.trim_start().starts_with("#define")) && code.trim_end().ends_with('\\');
        if skipped {
            continue;
        }
        if let Some(name) = code.strip_prefix("struct ").and_then(|rest| rest.strip_suffix(" {")) {
            owner = format!("{name}::");
        } else if code.starts_with("};") {
            owner.clear();
        }
        let mut words = words(code);
        let invoked =
            |marker| code.split_once(marker).and_then(|(_, rest)| self::words(rest).first().copied());
        if let Some(name) = invoked("ANABRANCH_KERNEL(").or_else(|| invoked("SHMEM_ATOMIC(")) {
            name.clone_into(&mut function);
        } else if let Some(name) = defined(code, "ANABRANCH_DEVICE ") {
            function = format!("{owner}{name}");
            if let Some(place) = words.iter().position(|word| *word == name) {
                words.remove(place);
            }
        }
        found.push(Line { function: function.clone(), number: index + 1, words });
    }
    found
}

fn is_site(word: &str) -> bool {
    FENCES.contains(&word) || FLAGS.contains(&word) || ATOMICS.contains(&word)
}

/// The sites of a source, in its order. Barriers count in functions that have another site, or are named for theirs.
pub fn scan(text: &str) -> Vec<Found> {
    let lines = lines(text);
    let ordered = |function: &str| {
        HAND_OVER.contains(&function)
            || lines
                .iter()
                .any(|line| line.function == function && line.words.iter().any(|word| is_site(word)))
    };
    let mut found = Vec::new();
    for line in &lines {
        for word in &line.words {
            if is_site(word) || (BARRIERS.contains(word) && ordered(&line.function)) {
                let (function, call) = (line.function.clone(), (*word).to_owned());
                found.push(Found { function, call, line: line.number });
            }
        }
    }
    found
}

/// The kernels that a source defines.
pub fn kernels(text: &str) -> Vec<String> {
    let code = text.lines().map(str::trim_start).filter(|line| line.starts_with("ANABRANCH_KERNEL("));
    code.filter_map(|line| words(line).get(1).map(|name| (*name).to_owned())).collect()
}

/// Whether a kernel of `text`, or a function of it or of `headers` that it reaches by name, has a site or calls the device API's
/// means of telling others.
pub fn communicates(kernel: &str, text: &str, headers: &[&str]) -> bool {
    let all: Vec<Line<'_>> = [text].iter().chain(headers).flat_map(|text| lines(text)).collect();
    let mut reached = vec![kernel.to_owned()];
    let mut next = 0;
    while let Some(function) = reached.get(next).cloned() {
        for line in all.iter().filter(|line| line.function == function) {
            if line
                .words
                .iter()
                .any(|word| is_site(word) || API.contains(word) || word.starts_with("atomic_"))
            {
                return true;
            }
            for word in &line.words {
                let known = all.iter().any(|other| other.function.rsplit("::").next() == Some(*word));
                let names = all.iter().map(|other| &other.function);
                if known {
                    let more: Vec<String> = names
                        .filter(|name| name.rsplit("::").next() == Some(*word) && !reached.contains(name))
                        .cloned()
                        .collect();
                    for name in more {
                        if !reached.contains(&name) {
                            reached.push(name);
                        }
                    }
                }
            }
        }
        next += 1;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
// fence_release_system(grid) in a comment
#define TWICE(X) flag_store(X); \\
    flag_store(X)
struct Wave {
    static ANABRANCH_DEVICE void barrier(const Grid& grid) { grid.wave_barrier(); }
    static ANABRANCH_DEVICE void publish(const Grid& grid) {
        fence_release_system(grid);  // flag_load
        grid.wave_barrier();
    }
};
ANABRANCH_DEVICE bool arrive_is_last(const Grid& grid) {
    return fetch_add_device(grid, p, 1u) == 1;
}
static ANABRANCH_DEVICE void helper(const Grid& grid) { shmem::quiet<Wave>(grid); }
ANABRANCH_KERNEL(tells, Args, 64) { helper(grid); }
ANABRANCH_KERNEL(computes, Args, 64) { grid.block_barrier(); }
";

    #[test]
    fn sites_are_found_with_their_functions() {
        let found = scan(SOURCE);
        let found: Vec<_> =
            found.iter().map(|site| (site.function.as_str(), site.call.as_str(), site.line)).collect();
        let expected = [
            ("Wave::publish", "fence_release_system", 7),
            ("Wave::publish", "wave_barrier", 8),
            ("arrive_is_last", "fetch_add_device", 12),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn communicating_kernels_are_distinguished() {
        assert_eq!(kernels(SOURCE), ["tells", "computes"]);
        assert!(communicates("tells", SOURCE, &[]));
        assert!(!communicates("computes", SOURCE, &[]));
        let through_a_header =
            "ANABRANCH_KERNEL(far, Args, 64) { if (arrive_is_last(grid)) return; other(grid); }";
        assert!(communicates("far", through_a_header, &[]));
        assert!(communicates("x", "ANABRANCH_KERNEL(x, Args, 64) { helper(grid); }", &[SOURCE]));
    }
}
