//! Steps in which all members of a group succeed or all fail, with the same first cause.

use anabranch_ranks::Group;
use anabranch_shmem::World;

use crate::error::{Error, Result};
use crate::plan::EpConfig;

/// Compares the configurations of all members, and tells all of them when one could not make its plan.
pub(crate) fn configuration(
    world: &World,
    group: &Group,
    config: &EpConfig,
    failure: Option<&Error>,
) -> Result<()> {
    let failure = failure.map_or(String::new(), |error| error.to_string().replace('\n', " "));
    let fields = config.fields();
    let values = fields.iter().map(|(_, value)| value.as_str());
    let mine: Vec<u8> = std::iter::once(failure.as_str()).chain(values).collect::<Vec<_>>().join("\n").into_bytes();
    let all = world.exchange(group, "ep configuration", &mine)?;
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|bytes| String::from_utf8_lossy(bytes).split('\n').map(str::to_owned).collect())
        .collect();
    let members = group.members();
    // A difference comes before a failure: it is the likelier cause of one.
    for (place, (field, _)) in fields.iter().enumerate() {
        let value = |row: &[String]| row.get(place + 1).cloned().unwrap_or_default();
        let ours = rows.first().map(|row| value(row)).unwrap_or_default();
        for (row, rank) in rows.iter().zip(members) {
            if value(row) != ours {
                let (reference, rank, theirs) = (members[0], *rank, value(row));
                return Err(Error::Divergence { field, reference, ours, rank, theirs });
            }
        }
    }
    first_failure(&rows.iter().map(|row| row.first().cloned().unwrap_or_default()).collect::<Vec<_>>(), group)
}

/// Gives back what this rank made, unless any member failed to make its own: then an error on all.
pub(crate) fn outcome<T>(world: &World, group: &Group, step: &str, made: Result<T>) -> Result<T> {
    let mine = made.as_ref().err().map_or(String::new(), |error| error.to_string().replace('\n', " "));
    let all = world.exchange(group, step, mine.as_bytes())?;
    let made = made?;
    let words: Vec<_> = all.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect();
    first_failure(&words, group)?;
    Ok(made)
}

fn first_failure(reasons: &[String], group: &Group) -> Result<()> {
    for (reason, rank) in reasons.iter().zip(group.members()) {
        if !reason.is_empty() {
            return Err(Error::PeerFailed { rank: *rank, reason: reason.clone() });
        }
    }
    Ok(())
}
