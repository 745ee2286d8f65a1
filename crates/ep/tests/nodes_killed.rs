//! Ranks on several nodes that are killed or stalled: every survivor ends with an error that names the rank, in time.

use crate::killed_common::{End, survive_all};
use anabranch_ep::CombineSource;
use anabranch_testkit::test_path;

#[test]
fn killed_direct() {
    let scripts = [
        ("direct-dispatch", 2, 0),
        ("direct-dispatching", 1, 1),
        ("direct-half-dispatch", 3, 2),
        ("direct-combine", 0, 3),
        ("direct-combining", 2, 4),
    ];
    survive_all(test_path!("killed_direct"), CombineSource::Window, End::Killed, &scripts);
}

#[test]
#[ignore = "extended"]
fn killed_by_node() {
    let scripts = [
        ("node-dispatch", 2, 0),
        ("node-dispatching", 1, 1),
        ("node-half-dispatch", 3, 2),
        ("node-combine", 0, 3),
        ("node-combining", 2, 4),
    ];
    survive_all(test_path!("killed_by_node"), CombineSource::Window, End::Killed, &scripts);
}

#[test]
#[ignore = "extended"]
fn stalled_direct() {
    let scripts = [("direct-dispatch", 2, 0), ("direct-dispatch", 0, 1), ("direct-combine", 1, 0)];
    survive_all(test_path!("stalled_direct"), CombineSource::Window, End::Stalled, &scripts);
}

/// Who waits for rows that another rank of its node forwards waits for that rank first.
#[test]
#[ignore = "extended"]
fn stalled_by_node() {
    let scripts = [("node-dispatch", 2, 0), ("node-dispatch", 0, 1), ("node-combine", 1, 0)];
    survive_all(test_path!("stalled_by_node"), CombineSource::Window, End::Stalled, &scripts);
}
