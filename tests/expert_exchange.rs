//! Dispatch and combine against what they replace: tokens sorted by rank, an all_to_all of parts that differ, experts, another
//! all_to_all back, and a sum over the ranks. The same rows and the same bits.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use anabranch::ccl::{Options, TypedTensor};
use anabranch::config::LoadOptions;
use anabranch::ep::{DataType, DeviceSlice, ExpertOutput, Mode, ReceivedRows, Tokens};
use anabranch::hip::{Device, DeviceBuffer};
use anabranch::shmem::SymmetricMemory;
use anabranch::{
    CclConfig, Communicator, Config, EpConfig, EpShape, Error, ExpertParallel, Platform, ProcessLayout, World,
};

const RANKS: u32 = 4;
const EXPERTS: u32 = 13;
const TOP_K: usize = 3;
const HIDDEN: usize = 20;
const MOST: usize = 50;

/// A number of 24 bits that encodes its position.
fn mixed(rank: u32, index: usize) -> u32 {
    let word = (u64::from(rank) << 32 | index as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((word ^ word >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as u32
}

/// The input of one rank, known on every rank.
struct Given {
    rows: Vec<f32>,
    ids: Vec<i32>,
}

impl Given {
    fn of(rank: u32) -> Self {
        let count = [MOST, 0, 1, 31][rank as usize];
        // Magnitudes far apart, so that the order of a sum shows.
        let rows =
            (0..count * HIDDEN).map(|at| mixed(rank, at) as f32 * 2f32.powi(at as i32 % 19 - 30)).collect();
        // One id in fourteen is masked.
        let ids = (0..count * TOP_K).map(|at| (mixed(rank + 9, at) % (EXPERTS + 1)) as i32 - 1).collect();
        Self { rows, ids }
    }

    fn tokens(&self) -> usize {
        self.ids.len() / TOP_K
    }

    fn row(&self, token: usize) -> &[f32] {
        &self.rows[token * HIDDEN..][..HIDDEN]
    }

    /// The tokens with an expert on `rank`, ascending: rank r works on floor(r E / R) up to floor((r + 1) E / R).
    fn tokens_for(&self, rank: u32) -> Vec<usize> {
        let owned = (rank * EXPERTS / RANKS) as i32..((rank + 1) * EXPERTS / RANKS) as i32;
        let goes = |token: &usize| self.ids[token * TOP_K..][..TOP_K].iter().any(|id| owned.contains(id));
        (0..self.tokens()).filter(goes).collect()
    }
}

/// The result of a rank's experts for a row; differs by rank.
fn experts(rank: u32, row: &[f32]) -> impl Iterator<Item = f32> {
    let factor = [1.25, -3.0, 0.7, 1.0e-3][rank as usize];
    row.iter().map(move |value| value * factor)
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|word| f32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect()
}

/// One all_to_all of whole rows: `parts[r]` goes to rank r, and `expected[r]` rows come from it.
fn exchange(world: &World, parts: &[Vec<f32>], expected: &[usize]) -> Result<Vec<f32>, Error> {
    let most = (RANKS as usize * MOST * HIDDEN * 4) as u64;
    let mut communicator = Communicator::new(world, world.group(), CclConfig::default())?;
    let mut input: SymmetricMemory = world.allocate(world.group(), most, 256, "rows to exchange")?;
    let output = world.allocate(world.group(), most, 256, "rows exchanged")?;
    input.write(0, &bytes(&parts.concat()))?;
    let sent: Vec<u64> = parts.iter().map(|part| part.len() as u64).collect();
    let received: Vec<u64> = expected.iter().map(|rows| (rows * HIDDEN) as u64).collect();
    let stream = world.device().create_stream()?;
    communicator
        .all_to_all_single(
            TypedTensor::<f32>::symmetric(&output, 0, received.iter().sum())?,
            TypedTensor::<f32>::symmetric(&input, 0, sent.iter().sum())?,
            &received,
            &sent,
            Options::on(&stream),
        )?
        .wait_on(&stream)?;
    world.synchronize(&stream)?;
    let mut seen = vec![0; received.iter().sum::<u64>() as usize * 4];
    output.read(0, &mut seen)?;
    Ok(floats(&seen))
}

/// The rows that this rank gets, in the order of their sources, and the sums that it gets back, by permutation and all_to_all.
fn by_all_to_all(world: &World, given: &[Given]) -> Result<(Vec<f32>, Vec<f32>), Error> {
    let me = world.rank().get();
    let mine = &given[me as usize];
    let sorted: Vec<Vec<usize>> = (0..RANKS).map(|rank| mine.tokens_for(rank)).collect();
    let parts: Vec<Vec<f32>> = sorted
        .iter()
        .map(|tokens| tokens.iter().flat_map(|token| mine.row(*token)).copied().collect())
        .collect();
    let from: Vec<usize> = given.iter().map(|given| given.tokens_for(me).len()).collect();
    let rows = exchange(world, &parts, &from)?;

    let made: Vec<f32> = rows.chunks_exact(HIDDEN).flat_map(|row| experts(me, row)).collect();
    let mut rest = made.as_slice();
    let parts: Vec<Vec<f32>> = from
        .iter()
        .map(|rows| {
            let (part, behind) = rest.split_at(rows * HIDDEN);
            rest = behind;
            part.to_vec()
        })
        .collect();
    let back: Vec<usize> = sorted.iter().map(Vec::len).collect();
    let returned = exchange(world, &parts, &back)?;
    let mut sums = vec![0.0f32; mine.rows.len()];
    // By rank, ascending: what comes first is summed first.
    for (row, token) in returned.chunks_exact(HIDDEN).zip(sorted.iter().flatten()) {
        for (sum, value) in sums[token * HIDDEN..][..HIDDEN].iter_mut().zip(row) {
            *sum += value;
        }
    }
    Ok((rows, sums))
}

fn upload(world: &World, bytes: &[u8]) -> Result<DeviceBuffer, Error> {
    let mut buffer = world.device().allocate(bytes.len().max(16))?;
    buffer.copy_from_host(0, bytes)?;
    Ok(buffer)
}

fn slice(buffer: &DeviceBuffer) -> DeviceSlice {
    // SAFETY: every buffer outlives the stream's work, and nothing else touches it.
    unsafe { DeviceSlice::of(buffer) }
}

/// The same by dispatch and combine.
fn by_dispatch(world: &World, given: &[Given], mode: Mode) -> Result<(Vec<f32>, Vec<f32>), Error> {
    let me = world.rank().get();
    let mine = &given[me as usize];
    let config = EpConfig::new(EpShape {
        hidden: HIDDEN as u32,
        experts: EXPERTS,
        top_k: TOP_K as u32,
        max_tokens: MOST as u32,
    })
    .dispatch_type(DataType::F32)
    .combine_type(DataType::F32)
    .mode(mode);
    let ep = ExpertParallel::new(world, world.group(), config)?;
    let ids: Vec<u8> = mine.ids.iter().flat_map(|id| id.to_ne_bytes()).collect();
    let (rows, ids) = (upload(world, &bytes(&mine.rows))?, upload(world, &ids)?);
    let output = upload(world, &vec![0xee; mine.rows.len() * 4])?;
    let tokens = Tokens {
        count: mine.tokens(),
        data_type: DataType::F32,
        rows: slice(&rows),
        ids: slice(&ids),
        weights: None,
        scales: None,
        device_count: None,
    };
    let stream = world.device().create_stream()?;
    let dispatched = ep.dispatch(&stream, &tokens)?;
    world.synchronize(&stream)?;
    let received = ReceivedRows::read(world.device(), ep.plan(), &dispatched)?;
    let mut rows = Vec::new();
    for index in 0..ep.plan().rows() as usize {
        let Some(row) = received.row(index) else { continue };
        let row = row.values::<f32>()?;
        ep.write_combine_row(&dispatched, index, &experts(me, &row).collect::<Vec<_>>())?;
        rows.extend(row);
    }
    ep.combine(&stream, ExpertOutput::InWindow, dispatched, slice(&output))?;
    world.synchronize(&stream)?;
    let mut sums = vec![0; mine.rows.len() * 4];
    output.copy_to_host(0, &mut sums)?;
    Ok((rows, floats(&sums)))
}

#[test]
fn dispatch_and_combine_are_a_permutation_with_two_all_to_alls() {
    for wave in [1, 32] {
        let set = vec!["heap.bytes=8 MiB".to_owned(), format!("device.host.wave={wave}")];
        let config = Config::load_with(&LoadOptions { set, ..LoadOptions::default() }).unwrap().config;
        let given: Vec<Given> = (0..RANKS).map(Given::of).collect();
        let results = anabranch::spawn_threads(&config, RANKS, |world| {
            let (rows, sums) = by_all_to_all(world, &given)?;
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            for mode in [Mode::Slotted, Mode::Compact] {
                let (received, combined) = by_dispatch(world, &given, mode)?;
                assert_eq!(bits(&received), bits(&rows), "{mode}: rows of {}", world.rank());
                assert_eq!(bits(&combined), bits(&sums), "{mode}: sums of {}", world.rank());
            }
            Ok::<_, Error>((rows.len(), sums.iter().filter(|sum| **sum != 0.0).count()))
        });
        let seen: Vec<_> = results.unwrap().into_iter().map(Result::unwrap).collect();
        assert!(seen.iter().all(|(rows, _)| *rows > HIDDEN), "every rank gets rows: {seen:?}");
        assert!(seen[0].1 > MOST * HIDDEN / 2, "most tokens have experts: {seen:?}");
    }
}

/// Captures and replays graphs until `stopped` reports, with a capture under way most of the time; returns how many there were.
fn capture(device: &Device, stopped: &Receiver<()>) -> Result<u32, anabranch::hip::Error> {
    let (stream, memory) = (device.create_stream()?, device.allocate(16)?);
    for graphs in 1.. {
        stream.begin_capture()?;
        // SAFETY: nothing else uses the memory, which outlives the wait below.
        unsafe { stream.fill_async(memory.address(), graphs as u8, 8) }?;
        let goes_on = stopped.recv_timeout(Duration::from_millis(1)) == Err(RecvTimeoutError::Timeout);
        // SAFETY: as above.
        unsafe { stream.copy_async(memory.address().offset(8), memory.address(), 8) }?;
        let graph = stream.end_capture()?.instantiate()?;
        // SAFETY: as above.
        unsafe { graph.launch(&stream) }?;
        stream.synchronize()?;
        let mut seen = [0; 16];
        memory.copy_to_host(0, &mut seen)?;
        assert_eq!(seen, [graphs as u8; 16], "replay {graphs}");
        if !goes_on {
            return Ok(graphs);
        }
    }
    Ok(0)
}

/// HIP refuses `hipMemcpy`, `hipMemset` and `hipDeviceSynchronize` on every thread while one captures, and spoils that capture. None of
/// what ranks do needs them: opening devices, joining, allocating, plans and communicators, loading kernels, copies, reads, leaving.
#[test]
fn another_thread_captures_while_worlds_come_exchange_and_go() {
    let set = vec!["heap.bytes=8 MiB".to_owned(), "device.host.wave=4".to_owned()];
    let config = Config::load_with(&LoadOptions { set, ..LoadOptions::default() }).unwrap().config;
    let platform = Platform::open(&config, ProcessLayout::Threads { ranks: RANKS }).unwrap();
    let given: Vec<Given> = (0..RANKS).map(Given::of).collect();
    let device = platform.device(0).unwrap();
    let (stop, stopped) = mpsc::channel();
    let graphs = std::thread::scope(|scope| {
        // Dropped when a rank's failure ends this closure: then the other thread ends too.
        let stop = stop;
        let (device, stopped) = (&device, stopped);
        let beside = scope.spawn(move || capture(device, &stopped));
        for round in 0..3 {
            let results = platform.spawn_threads(|world| {
                let by_rank = by_all_to_all(world, &given)?;
                assert!(by_dispatch(world, &given, Mode::Slotted)? == by_rank, "round {round}");
                world.barrier(world.group(), "all are done")?;
                Ok::<_, Error>(())
            });
            results.unwrap().into_iter().for_each(|rank| rank.unwrap());
        }
        stop.send(()).unwrap_or_default();
        beside.join().unwrap()
    });
    let graphs = graphs.unwrap();
    assert!(graphs > 10, "{graphs} graphs were captured beside three worlds");
}
