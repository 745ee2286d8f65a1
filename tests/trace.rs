//! Pictures of runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anabranch::ccl::{Options, Sum, TypedTensor};
use anabranch::config::LoadOptions;
use anabranch::{Config, Environment, Error, Platform, ProcessLayout, World};
use anabranch_hip::TraceRecord;
use serde_json::Value;

const RANKS: u32 = 4;
/// Elements of the sums: u32.
const COUNT: u64 = 3000;
const CALLS: usize = 3;

fn config() -> Config {
    let set = ["heap.bytes=8 MiB", "device.host.wave=4"].map(str::to_owned).to_vec();
    Config::load_with(&LoadOptions { set, ..LoadOptions::default() }).unwrap().config
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).unwrap();
    folder
}

fn sums(world: &World) -> Result<(), Error> {
    let mut communicator = world.communicator(world.group())?;
    let memory = world.allocate(world.group(), COUNT * 4, 4, "sum")?;
    let stream = world.device().create_stream()?;
    let tensor = TypedTensor::<u32>::symmetric(&memory, 0, COUNT)?;
    for _ in 0..CALLS {
        communicator.all_reduce(tensor, Sum, Options::on(&stream))?.wait_on(&stream)?;
    }
    world.synchronize(&stream)?;
    Ok(())
}

/// The spans of a picture: each an event with begin and end, in µs.
fn spans(picture: &str) -> Vec<(Value, f64, f64)> {
    let picture: Value = serde_json::from_str(picture).unwrap();
    let events = picture["traceEvents"].as_array().unwrap();
    let spans = events.iter().filter(|event| event["ph"] == "X").map(|event| {
        let begin = event["ts"].as_f64().unwrap();
        (event.clone(), begin, begin + event["dur"].as_f64().unwrap())
    });
    spans.collect()
}

/// The most by which the clock of a rank's device may be off, in µs.
fn clock_error(picture: &str) -> f64 {
    let picture: Value = serde_json::from_str(picture).unwrap();
    let errors = picture["otherData"].as_object().unwrap().values().map(|about| {
        let (_, rest) = about.as_str().unwrap().split_once("device clock within ").unwrap();
        rest.split_once(" ns").unwrap().0.parse::<f64>().unwrap() / 1000.0
    });
    errors.fold(0.0, f64::max)
}

/// Holds a picture of [`sums`] on all ranks.
fn check(picture: &str) {
    let error = clock_error(picture);
    let spans = spans(picture);
    let ranks: BTreeSet<u64> = spans.iter().filter_map(|(event, ..)| event["pid"].as_u64()).collect();
    assert_eq!(ranks, (0..u64::from(RANKS)).collect());
    // Spans of one track follow each other, or lie within each other.
    let mut tracks: BTreeMap<(u64, u64), Vec<(f64, f64)>> = BTreeMap::new();
    for (event, begin, end) in &spans {
        let track = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        tracks.entry(track).or_default().push((*begin, *end));
    }
    for (track, spans) in &tracks {
        for (index, one) in spans.iter().enumerate() {
            for other in &spans[index + 1..] {
                let (first, second) = if one.0 <= other.0 { (one, other) } else { (other, one) };
                // The last digits of an f64 of µs.
                let apart = second.0 >= first.1 - 0.01
                    || second.1 <= first.1 + 0.01
                    || (first.0 - second.0).abs() < 0.01;
                assert!(apart, "{track:?}: {one:?} and {other:?} cross");
            }
        }
    }
    for sequence in 1..=CALLS {
        let of_call = |kind: &str| -> Vec<(f64, f64)> {
            let all = spans.iter().filter(|(event, ..)| {
                let called = if kind == "call" { &event["name"] } else { &event["args"]["call"] };
                event["cat"] == kind && event["args"]["sequence"] == sequence && called == "all_reduce"
            });
            all.map(|(event, begin, end)| {
                assert_eq!(event["args"]["bytes"], COUNT * 4, "{event}");
                (*begin, *end)
            })
            .collect()
        };
        let (calls, kernels) = (of_call("call"), of_call("device"));
        assert_eq!((calls.len(), kernels.len()), (RANKS as usize, RANKS as usize));
        // No kernel ends before the last one has begun: each sum needs the data of all ranks.
        let last_begin = kernels.iter().map(|(begin, _)| *begin).fold(f64::MIN, f64::max);
        let first_end = kernels.iter().map(|(_, end)| *end).fold(f64::MAX, f64::min);
        assert!(
            last_begin < first_end + 2.0 * error,
            "call {sequence}: {kernels:?}, clocks within {error} us"
        );
    }
    let waits =
        spans.iter().filter(|(event, ..)| event["cat"] == "late" && event["args"]["call"] == "all_reduce");
    assert_eq!(waits.count(), CALLS * (RANKS as usize - 1));
}

#[test]
fn traced_program_gives_one_picture_of_all_ranks() {
    let folder = folder("parts");
    let variables: BTreeMap<String, String> = Environment::of_process().to_vec().into_iter().collect();
    let traced = ("ANABRANCH_TRACE".to_owned(), folder.to_string_lossy().into_owned());
    let environment: Environment = variables.into_iter().chain([traced]).collect();
    let platform =
        Platform::open_with(&config(), ProcessLayout::Threads { ranks: RANKS }, &environment, None).unwrap();
    for result in platform.spawn_threads(sums).unwrap() {
        result.unwrap();
    }
    let picture = anabranch::trace::merge(&folder).unwrap().unwrap();
    check(&picture);
    // A part that was cut off is good up to there.
    let part = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(&part).unwrap();
    std::fs::write(&part, &text[..text.len() - 10]).unwrap();
    let cut = anabranch::trace::merge(&folder).unwrap().unwrap();
    assert_eq!(spans(&cut).len(), spans(&picture).len(), "its last line was no span");
    assert!(cut.contains("without an end of its trace") && !picture.contains("without an end of its trace"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn profile_writes_a_picture_of_all_ranks_on_rank_0() {
    let folder = folder("profile");
    let results = anabranch::spawn_threads(&config(), RANKS, |world| {
        let path = folder.join(format!("{}.json", world.rank().get()));
        world.profile()?.finish(&path)?;
        let profile = world.profile()?;
        let refused = world.profile().unwrap_err();
        assert!(refused.to_string().contains("already traced"), "{refused}");
        sums(world)?;
        profile.finish(&path)
    });
    for result in results.unwrap() {
        result.unwrap();
    }
    check(&std::fs::read_to_string(folder.join("0.json")).unwrap());
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "rank 0 alone writes");
    std::fs::remove_dir_all(&folder).unwrap();
}

fn number(event: &Value, key: &str) -> u64 {
    event[key].as_u64().unwrap()
}

/// Rank 2 comes late: kernels of the others wait for it.
#[test]
#[expect(clippy::disallowed_methods, reason = "no simulation runs this test")]
fn waits_inside_kernels_name_the_rank_that_is_late() {
    const LATE: u32 = 2;
    const DELAY: Duration = Duration::from_millis(200);
    let folder = folder("waits");
    let path = folder.join("run.json");
    let mut config = config();
    config.kernels.note_waits = true;
    let results = anabranch::spawn_threads(&config, RANKS, |world| {
        let mut communicator = world.communicator(world.group())?;
        let memory = world.allocate(world.group(), COUNT * 4, 4, "sum")?;
        let stream = world.device().create_stream()?;
        let tensor = TypedTensor::<u32>::symmetric(&memory, 0, COUNT)?;
        communicator.all_reduce(tensor, Sum, Options::on(&stream))?.wait_on(&stream)?;
        world.synchronize(&stream)?;
        let profile = world.profile()?;
        world.barrier(world.group(), "before the late call")?;
        if world.rank().get() == LATE {
            std::thread::sleep(DELAY);
        }
        communicator.all_reduce(tensor, Sum, Options::on(&stream))?.wait_on(&stream)?;
        world.synchronize(&stream)?;
        profile.finish(&path)
    });
    for result in results.unwrap() {
        result.unwrap();
    }
    let picture = std::fs::read_to_string(&path).unwrap();
    let quarter = DELAY.as_micros() as f64 / 4.0;
    let parsed: Value = serde_json::from_str(&picture).unwrap();
    let events = parsed["traceEvents"].as_array().unwrap();
    let names: BTreeMap<(u64, u64), &str> = events
        .iter()
        .filter(|event| event["name"] == "thread_name")
        .map(|event| ((number(event, "pid"), number(event, "tid")), event["args"]["name"].as_str().unwrap()))
        .collect();
    let calls: Vec<_> = spans(&picture).into_iter().filter(|(event, ..)| event["cat"] == "device").collect();
    let mut found = BTreeSet::new();
    for (event, begin, end) in spans(&picture) {
        if event["cat"] != "wait" || end - begin < quarter {
            continue;
        }
        let name = event["name"].as_str().unwrap();
        assert!(name.starts_with("ccl: "), "{name}");
        let rank = number(&event, "pid");
        let within = calls
            .iter()
            .any(|(call, from, to)| number(call, "pid") == rank && *from - 1e4 < begin && end < *to + 1e4);
        assert!(within, "{event} lies in a kernel of its rank, within 10 ms: {calls:?}");
        found.insert((rank, names[&(rank, number(&event, "tid"))]));
    }
    // A rank may also wait for one that waits for the late one.
    let late = BTreeSet::from([(0, "waits for rank 2"), (1, "waits for rank 2"), (3, "waits for rank 2")]);
    assert!(found.is_superset(&late), "the rank, and for whom it waited: {found:?}");
    assert!(picture.contains("clock of waits within"));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// What a kernel notes after the end of a profile goes into memory that stays.
#[test]
#[expect(clippy::disallowed_methods, reason = "no simulation runs this test")]
fn profile_may_end_while_a_kernel_waits() {
    let mut config = config();
    config.kernels.note_waits = true;
    let results = anabranch::spawn_threads(&config, 2, |world| -> Result<(), Error> {
        let mut communicator = world.communicator(world.group())?;
        let memory = world.allocate(world.group(), COUNT * 4, 4, "sum")?;
        let stream = world.device().create_stream()?;
        let tensor = TypedTensor::<u32>::symmetric(&memory, 0, COUNT)?;
        let profile = world.profile()?;
        world.barrier(world.group(), "before the late call")?;
        if world.rank().get() == 1 {
            std::thread::sleep(Duration::from_millis(100));
        }
        communicator.all_reduce(tensor, Sum, Options::on(&stream))?.wait_on(&stream)?;
        if world.rank().get() == 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(profile);
        world.synchronize(&stream)?;
        // Another one begins after it.
        drop(world.profile()?);
        Ok(())
    });
    for result in results.unwrap() {
        result.unwrap();
    }
}

#[test]
fn folder_without_parts_has_no_picture() {
    let folder = folder("empty");
    assert_eq!(anabranch::trace::merge(&folder).unwrap(), None);
    std::fs::remove_dir_all(&folder).unwrap();
    let error = anabranch::trace::merge(&folder).unwrap_err().to_string();
    assert!(error.contains(&*folder.to_string_lossy()), "{error}");
}

#[test]
fn trace_keeps_its_bound_and_counts_what_it_lacks() {
    let platform = Platform::open(&config(), ProcessLayout::Threads { ranks: 1 }).unwrap();
    let device = platform.device(0).unwrap();
    let stream = device.create_stream().unwrap();
    let (from, to) = (device.allocate(64).unwrap(), device.allocate(64).unwrap());
    // SAFETY: the buffers live until the stream is done.
    let copy = || unsafe { stream.copy_async(to.address(), from.address(), 64) }.unwrap();
    let trace = device.start_trace(3).unwrap();
    stream.begin_capture().unwrap();
    copy();
    let graph = stream.end_capture().unwrap().instantiate().unwrap();
    // SAFETY: as above.
    unsafe { graph.launch(&stream) }.unwrap();
    for _ in 0..4 {
        copy();
    }
    trace.drain(Duration::from_secs(20));
    let records = trace.take();
    assert_eq!(records.len(), 3, "{records:?}");
    let first = records.iter().find_map(|record| match record {
        TraceRecord::Work { work, .. } => Some(&*work.name),
        _ => None,
    });
    assert_eq!(first, Some("graph"));
    let untraced = trace.untraced();
    assert!(untraced.lost >= 3 && untraced.captured == 1, "{untraced:?}");
    trace.stop();
    trace.take();
    copy();
    drop(device.record_call(|| unreachable!("no trace runs")));
    assert_eq!(trace.take(), []);
    // A stopped trace makes place for another.
    device.start_trace(3).unwrap().stop();
    stream.synchronize().unwrap();
}
