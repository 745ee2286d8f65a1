//! The speed of a NIC: puts of many sizes and messages to and fro, between two ranks of different nodes.

use anabranch::{Group, RuntimeKind, World};
use anabranch_conformance::shmem::{
    COPY, CopyArgs, CopyCase, CopyKind, MESSAGE, MessageBuffers, MessageMode, MessageRun,
};
use anyhow::bail;

use crate::link;
use crate::shmem::region::{Grid, OPERATION, Region};
use crate::statistics::{Samples, gigabytes_per_second, slowest_of_ranks};

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NicSpeeds {
    /// `None` where more bytes took no longer than fewer.
    pub(crate) gb_per_s: Option<f64>,
    /// From a request to where its bytes are seen.
    pub(crate) hop_us: f64,
    /// Between two requests; `None` where more took no longer than fewer.
    pub(crate) message_us: Option<f64>,
}

/// Numbers of small puts in a launch: the time of the difference has no launch in it, and no last completion.
const SMALL_PUTS: [u32; 2] = [64, 320];
/// Numbers of large ones.
const LARGE_PUTS: [u32; 2] = [4, 20];
const SMALL_BYTES: u64 = 8;
/// Block scope, as the kernel numbers it.
const BLOCK: u32 = 2;

/// Measures from the first of two ranks to the second. Collective over the pair.
///
/// # Errors
/// What made the world fail; bytes that arrived wrong; operations that the route does not have.
pub(crate) fn measure(world: &World, pair: &Group, samples: u32) -> anyhow::Result<NicSpeeds> {
    let host = world.device().runtime().kind() == RuntimeKind::Host;
    let large_bytes: u64 = if host { 64 << 10 } else { 1 << 20 };
    let rounds = if host { 20 } else { 500 };
    let messages = MessageRun { ranks: 2, bytes: 8, rounds };
    let mut region = Region::new(world, pair, (2 * large_bytes).max(messages.region_bytes()))?;
    let mut one_more = |counts: [u32; 2], bytes: u64| -> anyhow::Result<Option<f64>> {
        let [few, many] = counts;
        let (fast, slow) =
            (puts(&mut region, bytes, few, samples)?, puts(&mut region, bytes, many, samples)?);
        let each = (slow - fast) / f64::from(many - few);
        Ok((each > 0.0).then_some(each))
    };
    let message_us = one_more(SMALL_PUTS, SMALL_BYTES)?;
    let large_us = one_more(LARGE_PUTS, large_bytes)?;
    let hop_us = round_trips(&mut region, &messages, samples)? / 2.0;
    region.free()?;
    Ok(NicSpeeds { gb_per_s: large_us.map(|us| gigabytes_per_second(large_bytes, us)), hop_us, message_us })
}

/// The bytes that a rank sends.
fn pattern(rank: u32, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| (at ^ (at >> 8)) as u8 ^ (rank as u8 + 1)).collect()
}

/// Microseconds of a launch of one block with so many puts, until all have arrived.
fn puts(region: &mut Region<'_>, bytes: u64, count: u32, samples: u32) -> anyhow::Result<f64> {
    let (me, base) = (region.rank(), region.offset());
    let mut first = pattern(me, bytes);
    first.resize(2 * bytes as usize, 0);
    region.fill(&first)?;
    let case =
        CopyCase { remote: base + bytes, local: base, bytes, signal: 0, value: 0, peer: 1, signal_op: 0 };
    let cases = region.buffer(bytemuck::cast_slice(&vec![case; count as usize]))?;
    // An operation that was not tried has no success to show.
    let unwritten = if me == 0 { 0xff } else { 0 };
    let statuses = region.buffer(&vec![unwritten; count as usize * 4])?;
    let arguments = CopyArgs {
        team: region.team(),
        cases: cases.pointer(),
        statuses: statuses.pointer(),
        case_count: count,
        kind: CopyKind::PutNbi as u32,
        scope: BLOCK,
        operation: OPERATION,
    };
    let device = region.world.device();
    let threads = if device.multiprocessors() >= 32 { 256 } else { (2 * device.wave_size()).max(8) };
    let mut times = Vec::new();
    // The first warms up and is not counted.
    for _ in 0..=samples {
        let arguments = (me == 0).then_some(&arguments);
        let grid = Grid { blocks: 1, threads };
        times.push(region.run(COPY, grid, 1, arguments)?);
    }
    let mut expected = first;
    if me == 1 {
        expected[bytes as usize..].copy_from_slice(&pattern(0, bytes));
    }
    let right = region.contents(expected.len())? == expected && statuses.is_zero()?;
    if !link::all_agree(region.world, region.group(), "tune links: puts", right)? {
        bail!("{count} puts of {bytes} bytes between nodes: bytes arrived wrong, or puts were refused");
    }
    Ok(Samples::new(times.split_off(1)).median())
}

/// Microseconds of a message and the answer to it.
fn round_trips(region: &mut Region<'_>, run: &MessageRun, samples: u32) -> anyhow::Result<f64> {
    let me = region.rank();
    let prepared = run.draw(&mut 1);
    let before = vec![0; run.region_bytes() as usize];
    let mut times = Vec::new();
    for _ in 0..=samples {
        region.fill(&before)?;
        let source = region.buffer(&prepared[me as usize])?;
        let staging = region.buffer(&vec![0; run.staging()])?;
        let log = region.buffer(&vec![0; run.length()])?;
        let statuses = region.buffer(&vec![0xff; (2 * run.ranks * 4) as usize])?;
        let buffers = MessageBuffers {
            prepared: source.pointer(),
            staging: staging.pointer(),
            log: log.pointer(),
            statuses: statuses.pointer(),
        };
        let how = (MessageMode::PutSignal, 0, 0);
        let arguments = run.arguments(how, region.team(), buffers, region.offset(), OPERATION);
        let grid = Grid { blocks: 2 * run.ranks, threads: region.world.device().wave_size() };
        let us = region.run(MESSAGE, grid, 1, Some(&arguments))?;
        times.push(us / f64::from(run.rounds));
        let right = run.wrong(me, &prepared, &log.contents()?).is_none() && statuses.is_zero()?;
        if !link::all_agree(region.world, region.group(), "tune links: messages", right)? {
            bail!("messages between nodes arrived wrong, or were refused");
        }
    }
    let slowest = link::gather(region.world, region.group(), "tune links: times", &times[1..])?;
    Ok(Samples::new(slowest_of_ranks(&slowest)).median())
}
