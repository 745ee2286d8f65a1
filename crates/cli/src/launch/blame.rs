//! Selects the root cause among failed ranks. A rank that loses another fails too, and often ends first: the rank that failed by itself
//! still closes files, and rank 0 answers the others for a while.

use anabranch::ErrorKind;

/// The exit and last output of a failed rank.
#[derive(Clone, Debug)]
pub(super) struct Witness {
    pub(super) rank: u32,
    /// Whether it ran this program.
    pub(super) is_ours: bool,
    /// Its exit code, or 128 and a signal's number.
    pub(super) code: i32,
    pub(super) was_killed: bool,
    /// Its last lines, where they are known.
    pub(super) lines: Vec<String>,
}

/// How our errors name the rank that a failure came from: `rank 3 died (...)`, `rank 0 waited 3s for rank 3 in ...`.
const NAMES_A_CAUSE: [&str; 4] = ["died (", "left (", "found in ", "gave the world up"];
const NAMES_A_LATE_RANK: (&str, &str) = ("waited ", " for rank ");

impl Witness {
    /// The other rank that its last lines name as the cause.
    pub(super) fn names(&self) -> Option<u32> {
        if self.was_killed {
            return None;
        }
        let of_line = |line: &String| {
            let mut rest = line.as_str();
            while let Some((_, after)) = rest.split_once("rank ") {
                rest = after;
                let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
                let (number, words) = after.split_at(digits);
                let (waited, awaited) = NAMES_A_LATE_RANK;
                if words.trim_start().starts_with(waited)
                    && let Some((_, late)) = words.split_once(awaited)
                {
                    let digits = late.find(|c: char| !c.is_ascii_digit()).unwrap_or(late.len());
                    return late.get(..digits)?.parse().ok();
                }
                if let (Ok(rank), Some(words)) = (number.parse(), words.strip_prefix(' '))
                    && NAMES_A_CAUSE.iter().any(|cause| words.starts_with(cause))
                {
                    return Some(rank);
                }
            }
            None
        };
        self.lines.iter().rev().find_map(of_line).filter(|named| *named != self.rank)
    }

    /// Whether one of its lines names another rank in any way.
    fn mentions_another(&self) -> bool {
        let number = |words: &str| {
            let digits = words.find(|c: char| !c.is_ascii_digit()).unwrap_or(words.len());
            words.get(..digits)?.parse::<u32>().ok()
        };
        let mut mentioned = self.lines.iter().flat_map(|line| line.split("rank ").skip(1)).filter_map(number);
        mentioned.any(|rank| rank != self.rank)
    }

    /// Whether it ended with the exit code for the failure of another rank. A user program's code may mean something else, so its last
    /// lines must also name a rank.
    fn ended_for_another(&self) -> bool {
        let peer = i32::from(ErrorKind::Peer.exit_code());
        !self.was_killed && self.code == peer && (self.is_ours || self.mentions_another())
    }

    /// Whether another rank may be the cause, so that the supervisor waits for it.
    pub(super) fn may_be_consequence(&self) -> bool {
        self.names().is_some() || self.ended_for_another()
    }

    /// Whether another rank is the cause. A rank may have reported the death of another and continued: its lines count only if its exit code
    /// agrees, or if the named rank has failed too.
    fn is_consequence(&self, failed: &[Self]) -> bool {
        let has_failed = |named| failed.iter().any(|witness| witness.rank == named);
        self.ended_for_another() || self.names().is_some_and(has_failed)
    }
}

/// The root cause among the failed ranks, which are in order of arrival. Follows the names from rank to rank; if the last is a consequence
/// too, takes the first rank that is not one; if all are consequences, the rank to which the names lead, or the first of a cycle.
pub(super) fn cause(failed: &[Witness]) -> Option<u32> {
    let of = |rank: u32| failed.iter().find(|witness| witness.rank == rank);
    let mut last = failed.first()?;
    let mut visited = vec![last.rank];
    while let Some(named) = last.names().and_then(of) {
        last = named;
        if visited.contains(&named.rank) {
            break;
        }
        visited.push(named.rank);
    }
    if last.is_consequence(failed)
        && let Some(other) = failed.iter().find(|witness| !witness.is_consequence(failed))
    {
        return Some(other.rank);
    }
    Some(last.rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn witness(rank: u32, code: i32, line: &str) -> Witness {
        Witness { rank, is_ours: true, code, was_killed: false, lines: vec![line.to_owned()] }
    }

    #[test]
    fn cause_is_the_rank_that_names_no_other() {
        let lost = "anabranch: rank 0 died (its connection closed); the world cannot be used any more";
        let full = witness(0, 1, "anabranch: No space left on device");
        assert_eq!(cause(&[witness(1, 5, lost), full.clone()]), Some(0));
        assert_eq!(cause(&[full.clone(), witness(1, 5, lost)]), Some(0));
        // Of rank 0, whose output is not seen, the code alone is known.
        let silent = Witness { lines: Vec::new(), ..full };
        assert_eq!(cause(&[witness(1, 5, "without words"), silent]), Some(0));
        // A program of the user has a code of its own, and its words are ours.
        assert_eq!(
            cause(&[witness(1, 1, lost), witness(2, 1, "mine"), witness(0, 101, "panicked")]),
            Some(0)
        );
        // Follows the names from rank to rank.
        let named = "Error: rank 2 found in ccl (start): syndrome 0x13; the world cannot be used any more";
        assert_eq!(cause(&[witness(1, 5, lost), witness(0, 5, named), witness(2, 5, named)]), Some(2));
        assert_eq!(cause(&[witness(1, 5, lost)]), Some(1), "who is named has not failed");
        let killed = Witness { was_killed: true, ..witness(0, 137, lost) };
        assert!(!killed.may_be_consequence());
    }

    #[test]
    fn expired_wait_names_the_rank_that_was_waited_for() {
        let line = "anabranch: rank 3 waited 3.002s for rank 12 in team barrier (arrival), epoch 124: expected 0x7c, saw 0x7b";
        assert_eq!(witness(3, 5, line).names(), Some(12));
        assert_eq!(witness(3, 5, "rank 3 waited for the others").names(), None);
    }

    #[test]
    fn named_rank_that_is_itself_a_consequence_is_not_blamed() {
        let names = |rank, code, other| witness(rank, code, &format!("rank {other} died (no goodbye)"));
        let own = witness(3, 1, "No space left on device");
        // Rank 1 ended for a rank that is not among the failed.
        let chain = [names(0, 5, 1), names(1, 5, 7), own.clone()];
        assert_eq!(cause(&chain), Some(3));
        assert_eq!(cause(&chain[..2]), Some(1), "all are consequences");
        let circle = [names(0, 5, 1), names(1, 5, 2), names(2, 5, 1)];
        assert_eq!(cause(&circle), Some(1), "the first of the circle");
        assert_eq!(cause(&[circle[1].clone(), circle[2].clone(), own]), Some(3));
    }

    #[test]
    fn user_program_is_blamed_by_matching_output_and_exit() {
        let users = |rank, code, line| Witness { is_ours: false, ..witness(rank, code, line) };
        let own = users(2, 9, "mine");
        assert_eq!(cause(&[users(1, 5, "five"), own.clone()]), Some(1), "the user's own code 5");
        assert_eq!(cause(&[users(1, 5, "rank 1 has five"), own.clone()]), Some(1));
        assert_eq!(cause(&[users(1, 5, "rank 3: no answer"), own.clone()]), Some(2));
        // It went on after rank 3 had died, and failed by itself.
        let went_on = users(1, 1, "rank 3 died (no goodbye)");
        assert_eq!(cause(&[went_on.clone(), own]), Some(1));
        assert!(went_on.may_be_consequence(), "rank 3 may be about to end");
    }
}
