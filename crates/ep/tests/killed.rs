//! Ranks that are killed, stalled or fail: every survivor ends with an error that names the rank, in time.

use crate::common::{Case, depart};
use crate::killed_common::{End, RANKS, failing_thread, survive_all};
use anabranch_ep::{CombineSource, Error};
use anabranch_testkit::test_path;

fn killed(test: &str, scripts: &[(&str, u32, u64)]) {
    survive_all(test, CombineSource::Window, End::Killed, scripts);
}

fn stalled(test: &str, scripts: &[(&str, u32, u64)]) {
    survive_all(test, CombineSource::Window, End::Stalled, scripts);
}

#[test]
fn killed_in_dispatch() {
    let scripts = [("dispatch", 2, 0), ("dispatching", 1, 1), ("dispatching", 3, 2), ("dispatching", 0, 3)];
    killed(test_path!("killed_in_dispatch"), &scripts);
}

#[test]
fn killed_in_compact_dispatch() {
    let scripts = [
        ("compact-dispatch", 2, 0),
        ("compact-dispatching", 1, 1),
        ("compact-dispatching", 3, 2),
        ("compact-dispatching", 0, 3),
        ("compact-combine", 1, 0),
    ];
    killed(test_path!("killed_in_compact_dispatch"), &scripts);
}

#[test]
fn killed_in_combine() {
    let scripts = [("combine", 1, 0), ("combining", 2, 1), ("combining", 3, 2), ("combining", 0, 3)];
    killed(test_path!("killed_in_combine"), &scripts);
}

#[test]
#[ignore = "extended"]
fn killed_in_the_rendezvous() {
    let scripts = [
        ("absent", 2, 0),
        ("join", 3, 0),
        ("join", 0, 0),
        ("joining", 1, 1),
        ("joining", 2, 2),
        ("plan", 2, 0),
        ("planning", 1, 1),
        ("planning", 3, 2),
    ];
    killed(test_path!("killed_in_the_rendezvous"), &scripts);
}

#[test]
#[ignore = "extended"]
fn killed_at_any_moment() {
    let scripts: Vec<_> = (10..16).map(|seed| ("running", (seed % 4) as u32, seed)).collect();
    killed(test_path!("killed_at_any_moment"), &scripts);
}

#[test]
#[ignore = "extended"]
fn stalled_in_dispatch() {
    stalled(test_path!("stalled_in_dispatch"), &[("dispatch", 2, 0), ("dispatch", 0, 1)]);
}

#[test]
#[ignore = "extended"]
fn stalled_before_its_counts() {
    let scripts = [("compact-dispatch", 0, 0), ("compact-dispatch", 2, 1), ("compact-dispatch", 3, 2)];
    stalled(test_path!("stalled_before_its_counts"), &scripts);
}

#[test]
fn killed_between_the_halves() {
    killed(test_path!("killed_between_the_halves"), &[("half-dispatch", 2, 0), ("half-combine", 3, 2)]);
}

#[test]
#[ignore = "extended"]
fn stalled_between_the_halves() {
    stalled(test_path!("stalled_between_the_halves"), &[("half-dispatch", 1, 1), ("half-combine", 0, 0)]);
}

#[test]
fn stalled_in_combine() {
    stalled(test_path!("stalled_in_combine"), &[("combine", 1, 0)]);
}

#[test]
fn a_thread_that_returns_an_error_is_named_by_the_others() {
    let case = Case::new(RANKS, 1);
    let texts = failing_thread(&case, |_, _, _| Err(Error::ForeignHandle));
    assert!(texts[1].contains("belongs to another plan"), "{texts:?}");
    // With its dispatch launched and never combined.
    let texts = failing_thread(&case, |ep, _, stream| {
        let flight = depart(ep, stream, &case, 3)?;
        stream.synchronize()?;
        drop(flight.dispatched);
        Err(Error::ForeignHandle)
    });
    assert!(texts[1].contains("belongs to another plan"), "{texts:?}");
}

#[test]
fn a_thread_that_panics_is_named_by_the_others() {
    let case = Case::new(RANKS, 1);
    let texts = failing_thread(&case, |_, _, _| panic!("an experiment"));
    assert!(texts[1].contains("rank 1 panicked: an experiment"), "{texts:?}");
    let texts = failing_thread(&case, |ep, _, stream| {
        // In the middle of a dispatch that the others have not joined.
        let flight = depart(ep, stream, &case, 3)?;
        drop(flight);
        panic!("an experiment")
    });
    assert!(texts[1].contains("rank 1 panicked: an experiment"), "{texts:?}");
}
