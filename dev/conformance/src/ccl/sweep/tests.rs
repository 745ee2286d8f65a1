//! A sweep covers what it says.

use std::collections::{HashMap, HashSet};

use super::super::{ListCase, ListForm};
use super::*;

/// A point that is of one collective.
#[derive(Debug, PartialEq)]
struct OfCase {
    subset: Subset,
    case: Case,
    choice: Choice,
}

/// A point that is of a list.
struct OfList {
    subset: Subset,
    case: ListCase,
    algorithm: Option<Algorithm>,
}

fn all(ranks: u32, level: Level) -> Vec<Point> {
    sweep(&Sweep { ranks, channels: 2, staging_bytes: 16 << 10, most_bytes: 1 << 20, level })
}

fn points(ranks: u32, level: Level) -> Vec<OfCase> {
    of_cases(all(ranks, level))
}

fn of_cases(points: Vec<Point>) -> Vec<OfCase> {
    let of_case = |Point { subset, trial, choice }| match trial {
        Trial::Collective(case) => Some(OfCase { subset, case, choice }),
        Trial::List(_) => None,
    };
    points.into_iter().filter_map(of_case).collect()
}

fn lists(ranks: u32, level: Level) -> Vec<OfList> {
    let of_list = |Point { subset, trial, choice }| match trial {
        Trial::List(case) => Some(OfList { subset, case, algorithm: choice.algorithm }),
        Trial::Collective(_) => None,
    };
    all(ranks, level).into_iter().filter_map(of_list).collect()
}

fn form(point: &OfCase) -> Form {
    Form { collective: point.case.collective, uneven: point.case.uneven }
}

fn op(point: &OfCase) -> &'static str {
    if point.case.collective.reduces() { point.case.op.name() } else { "" }
}

#[test]
fn every_case_of_a_sweep_can_be_run() {
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
    assert_eq!(all(4, Level::Full), all(4, Level::Full));
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
            if form.collective == Collective::Barrier { &[DataType::U8] } else { &DATA_TYPES };
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
    // Packets of two channels; a channel's piece of the staging.
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
        for data_type in DATA_TYPES {
            for op in ReduceOp::all(0.5).into_iter().filter(|op| op.supports(data_type)) {
                assert!(ops.contains(&(data_type, op.name())), "{data_type} {}", op.name());
            }
        }
    }
}

#[test]
fn what_is_too_large_is_left_out_and_nothing_else() {
    let of = |most_bytes| {
        of_cases(sweep(&Sweep {
            ranks: 4,
            channels: 128,
            staging_bytes: 32 << 20,
            most_bytes,
            level: Level::Sample,
        }))
    };
    let bytes = |point: &OfCase| point.case.scratch_bytes(point.subset.len());
    let (few, all) = (of(1 << 20), of(1 << 30));
    // Two buffers, and what lies around them.
    assert!(few.iter().all(|point| bytes(point) < (2 << 20) + 4096));
    assert!(all.iter().any(|point| bytes(point) > 16 << 20) && few.len() < all.len());
}

#[test]
fn lists_exist_and_can_be_done_as_they_say() {
    for (ranks, level) in [(1, Level::Full), (2, Level::Sample), (4, Level::Full), (8, Level::Sample)] {
        for OfList { subset, case, algorithm } in lists(ranks, level) {
            let members = subset.len();
            let wanted = algorithm.is_none_or(|wanted| case.algorithms(members).contains(&wanted));
            assert!(wanted && !case.entries.is_empty(), "{subset} {algorithm:?} {case}");
            for entry in &case.entries {
                let (from, to) = entry.route;
                assert!(from < members && to < members, "{case}");
                assert!(case.form != ListForm::SendReceive || from != to, "{case}");
                assert!(!entry.in_place || entry.input == entry.output, "{case}");
            }
        }
    }
}

/// Every form in every group, and in many of them several types, odd counts, addresses that are aligned to the element alone, and
/// memory of all kinds at once.
#[test]
fn lists_of_every_form_in_every_group() {
    for (ranks, level) in [(2, Level::Sample), (4, Level::Sample), (4, Level::Full), (8, Level::Sample)] {
        let lists = lists(ranks, level);
        let of = |form: ListForm| lists.iter().filter(move |list| list.case.form == form);
        for form in ListForm::ALL {
            let groups: HashSet<_> = of(form).map(|list| &list.subset).collect();
            let subsets = ordered_subsets(ranks);
            let missing: Vec<_> = subsets.iter().filter(|subset| !groups.contains(subset)).collect();
            let alone = |subset: &&&Subset| subset.len() == 1 && form == ListForm::SendReceive;
            assert!(missing.iter().all(|subset| alone(&subset)), "{form:?}: {missing:?}");
            let many = |is: &dyn Fn(&ListCase) -> bool| of(form).filter(|list| is(&list.case)).count();
            let types = many(&|case| {
                case.entries.iter().map(|entry| entry.data_type).collect::<HashSet<_>>().len() > 2
            });
            let odd = many(&|case| case.entries.iter().any(|entry| entry.count % 2 == 1));
            let offset = many(&|case| case.entries.iter().any(|entry| entry.offset % 2 == 1));
            let kinds = many(&|case| {
                let kinds = case.entries.iter().flat_map(|entry| [entry.input, entry.output]);
                kinds.collect::<HashSet<_>>().len() == 3
            });
            assert!(
                [types, odd, offset, kinds].iter().all(|count| *count > 2),
                "{form:?}: {types} {odd} {offset} {kinds}"
            );
        }
        let in_place =
            of(ListForm::GatherMany).filter(|list| list.case.entries.iter().any(|entry| entry.in_place));
        assert!(in_place.count() > 2);
        // More than the arguments of a launch have room for.
        assert!(
            of(ListForm::GatherMany)
                .any(|list| list.case.entries.len() > anabranch_ccl::lowered::MOST_SEGMENTS)
        );
        let by: HashSet<_> = of(ListForm::GatherMany).map(|list| list.algorithm).collect();
        assert_eq!(by.len(), 5, "{by:?}");
    }
}

#[test]
fn lists_have_the_sizes_around_every_threshold() {
    let gathered: HashSet<_> = lists(4, Level::Sample)
        .into_iter()
        .filter(|list| list.subset.len() == 4)
        .map(|list| {
            let before = list.case.entries.iter().rev().skip(1);
            let last = list.case.entries.last().unwrap();
            let bytes = |entry: &super::super::Entry| entry.count * u64::from(entry.data_type.bytes());
            let total: u64 = before.map(|entry| bytes(entry).next_multiple_of(16)).sum();
            (list.case.form, list.algorithm, total + bytes(last))
        })
        .collect();
    // Packets of two channels; a channel's piece of the staging.
    for threshold in [2u64 * 512 * 8, 1024] {
        for bytes in [threshold - 1, threshold, threshold + 1] {
            for algorithm in [Algorithm::Packets, Algorithm::Staged, Algorithm::Direct, Algorithm::CopyEngine]
            {
                let wanted = (ListForm::GatherMany, Some(algorithm), bytes);
                assert!(gathered.contains(&wanted), "{wanted:?}");
            }
        }
    }
}
