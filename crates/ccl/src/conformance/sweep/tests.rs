//! A sweep covers what it says.

use std::collections::{HashMap, HashSet};

use super::*;

fn points(ranks: u32, level: Level) -> Vec<Point> {
    sweep(&Sweep { ranks, lanes: 2, staging_bytes: 16 << 10, most_bytes: 1 << 20, level })
}

fn form(point: &Point) -> Form {
    Form { collective: point.case.collective, uneven: point.case.uneven }
}

fn op(point: &Point) -> &'static str {
    if point.case.collective.reduces() { point.case.op.name() } else { "" }
}

#[test]
fn every_case_of_a_sweep_exists_and_can_be_done_as_it_says() {
    for (ranks, level) in [(1, Level::Full), (4, Level::Full), (4, Level::Sample), (8, Level::Sample)] {
        let world = anabranch_ranks::Group::world(ranks).unwrap();
        for point in points(ranks, level) {
            let members = point.subset.group(&world).unwrap().size();
            assert!(point.case.is_defined(), "{}", point.case);
            assert!(point.case.root.get() < members, "{}", point.case);
            if let Some(algorithm) = point.choice.algorithm {
                algorithm.allows(&point.case.shape(members)).unwrap();
            }
        }
    }
}

#[test]
fn a_sweep_is_the_same_on_every_rank() {
    assert_eq!(points(4, Level::Full), points(4, Level::Full));
}

#[test]
fn a_full_sweep_has_every_combination_in_groups_of_every_size() {
    let seen: HashSet<_> = points(4, Level::Full)
        .iter()
        .map(|point| {
            (form(point), point.case.data_type, op(point), point.choice.algorithm, point.subset.len())
        })
        .collect();
    for form in Form::all() {
        let types: &[DataType] =
            if form.collective == Collective::Barrier { &[DataType::U8] } else { &DataType::ALL };
        for data_type in types {
            let ops = if form.collective.reduces() {
                ReduceOp::all(0.5)
                    .into_iter()
                    .filter(|op| op.supports(*data_type))
                    .map(ReduceOp::name)
                    .collect()
            } else {
                vec![""]
            };
            for op in ops {
                for algorithm in form.algorithms() {
                    for members in 1..=4 {
                        let wanted = (form, *data_type, op, Some(algorithm), members);
                        assert!(seen.contains(&wanted), "{wanted:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_full_sweep_has_every_form_and_algorithm_in_every_group_with_several_types() {
    let mut types: HashMap<_, HashSet<DataType>> = HashMap::new();
    let mut done = HashSet::new();
    for point in points(4, Level::Full) {
        types.entry((form(&point), point.subset.clone())).or_default().insert(point.case.data_type);
        done.insert((form(&point), point.subset.clone(), point.choice.algorithm));
    }
    for form in Form::all() {
        for subset in ordered_subsets(4) {
            for algorithm in [None].into_iter().chain(form.algorithms().into_iter().map(Some)) {
                assert!(done.contains(&(form, subset.clone(), algorithm)), "{form:?} {subset} {algorithm:?}");
            }
            let types = types[&(form, subset.clone())].len();
            assert!(types >= 3 || form.collective == Collective::Barrier, "{form:?} {subset}: {types}");
        }
    }
}

#[test]
fn a_full_sweep_has_the_counts_around_every_threshold() {
    let seen: HashSet<_> = points(4, Level::Full)
        .into_iter()
        .map(|point| {
            let bytes = point.case.count * u64::from(point.case.data_type.bytes());
            (form(&point), point.choice.algorithm, point.case.in_place, bytes, point.case.count)
        })
        .collect();
    // Packets of two lanes; a lane's piece of the staging.
    for form in Form::all().into_iter().filter(|form| form.collective != Collective::Barrier) {
        let parts = if form.collective.reduces() { 4 } else { 1 };
        for algorithm in form.algorithms() {
            for threshold in [2 * 512 * 8, 1024 * parts] {
                let at = seen.iter().filter(|(seen_form, seen_algorithm, ..)| {
                    *seen_form == form && *seen_algorithm == Some(algorithm)
                });
                let near: HashSet<_> = at
                    .filter(|(.., bytes, _)| bytes.abs_diff(threshold) <= 8)
                    .map(|(.., bytes, _)| bytes.cmp(&threshold))
                    .collect();
                assert_eq!(near.len(), 3, "{form:?} {algorithm} around {threshold} bytes");
            }
            for count in COUNTS {
                let has = seen.iter().any(|(seen_form, seen_algorithm, .., seen_count)| {
                    *seen_form == form && *seen_algorithm == Some(algorithm) && *seen_count == count
                });
                assert!(has, "{form:?} {algorithm} of {count}");
            }
        }
    }
}

#[test]
fn a_sample_has_every_group_type_algorithm_and_operator() {
    for ranks in [1, 2, 4, 8] {
        let points = points(ranks, Level::Sample);
        let groups: HashSet<_> = points.iter().map(|point| (form(point), point.subset.clone())).collect();
        let types: HashSet<_> = points.iter().map(|point| (form(point), point.case.data_type)).collect();
        let algorithms: HashSet<_> =
            points.iter().map(|point| (form(point), point.choice.algorithm)).collect();
        let ops: HashSet<_> = points.iter().map(|point| (point.case.data_type, op(point))).collect();
        for form in Form::all() {
            for subset in ordered_subsets(ranks) {
                assert!(groups.contains(&(form, subset.clone())), "{form:?} {subset}");
            }
            for data_type in form.types() {
                assert!(types.contains(&(form, *data_type)), "{form:?} {data_type}");
            }
            for algorithm in form.algorithms() {
                assert!(algorithms.contains(&(form, Some(algorithm))), "{form:?} {algorithm}");
            }
        }
        for data_type in DataType::ALL {
            for op in ReduceOp::all(0.5).into_iter().filter(|op| op.supports(data_type)) {
                assert!(ops.contains(&(data_type, op.name())), "{data_type} {}", op.name());
            }
        }
    }
}

#[test]
fn what_is_too_large_is_left_out_and_nothing_else() {
    let of = |most_bytes| {
        sweep(&Sweep { ranks: 4, lanes: 128, staging_bytes: 32 << 20, most_bytes, level: Level::Sample })
    };
    let bytes = |point: &Point| point.case.scratch_bytes(point.subset.len());
    let (few, all) = (of(1 << 20), of(1 << 30));
    // Two buffers, and what lies around them.
    assert!(few.iter().all(|point| bytes(point) < (2 << 20) + 4096));
    assert!(all.iter().any(|point| bytes(point) > 16 << 20) && few.len() < all.len());
}
