//! One mixture-of-experts layer: dispatch sends tokens to the ranks of their experts, the experts run, combine sums their outputs. Four
//! ranks, which are threads on the `host` runtime. The experts run on the host here, which shows the layout of the received rows.
//!
//! Who multiplies by the gate weights? The experts: combine sums rows as they are. Weights travel with the rows for that.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a program that checks what it shows")]

use anabranch::ep::{DataType, DeviceSlice, ExpertOutput, ReceivedRows, Tokens};
use anabranch::hip::DeviceBuffer;
use anabranch::{Config, EpConfig, EpShape, Error, World};

const RANKS: u32 = 4;
const EXPERTS: u32 = 8; // two on each rank: expert e is on rank e / 2
const TOP_K: usize = 2;
const HIDDEN: usize = 64;
const TOKENS: usize = 16;

fn main() -> anabranch::Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "config/host-4.toml".to_owned());
    for rank in anabranch::spawn_threads(&Config::load(path)?, RANKS, work)? {
        rank.expect("every rank succeeds");
    }
    Ok(())
}

/// The result of expert `e` for a value.
fn expert(e: i32, value: f32) -> f32 {
    value * (e + 1) as f32
}

fn work(world: &World) -> Result<(), Error> {
    let plan = EpConfig::new(EpShape {
        hidden: HIDDEN as u32,
        experts: EXPERTS,
        top_k: TOP_K as u32,
        max_tokens: TOKENS as u32,
    })
    .dispatch_type(DataType::F32)
    .combine_type(DataType::F32);
    let ep = world.expert_parallel(world.group(), plan)?; // collective
    let rank = world.rank().get() as usize;
    let value = |token: usize, column: usize| (rank * 1000 + token * 10 + column % 10) as f32;
    let choice = |token: usize| [token as i32 % 8, (token as i32 + 3) % 8];
    let weight = [0.75, 0.25];

    let rows = bytes((0..TOKENS * HIDDEN).map(|at| value(at / HIDDEN, at % HIDDEN)));
    let ids: Vec<u8> = (0..TOKENS).flat_map(choice).flat_map(i32::to_le_bytes).collect();
    let weights = bytes((0..TOKENS).flat_map(|_| weight));
    let (rows, ids, weights) = (upload(world, &rows)?, upload(world, &ids)?, upload(world, &weights)?);
    let output = upload(world, &[0; TOKENS * HIDDEN * 4])?;
    let tokens = Tokens {
        count: TOKENS,
        data_type: DataType::F32,
        rows: slice(&rows),
        ids: slice(&ids),
        weights: Some(slice(&weights)),
        scales: None,
        device_count: None,
    };
    let stream = world.device().create_stream()?;
    let sent = ep.dispatch(&stream, &tokens)?;
    world.synchronize(&stream)?;

    // Each received row has the ids and weights of all experts that its token chose; this rank runs its own.
    let received = ReceivedRows::read(world.device(), ep.plan(), &sent)?;
    for index in 0..ep.plan().rows() as usize {
        let Some(row) = received.row(index) else { continue }; // the slotted layout has gaps
        let own = |id: i32| id as usize / 2 == rank;
        let outputs = row.values::<f32>()?.into_iter().map(|value| {
            let chosen = row.ids.iter().zip(row.weights).filter(|(id, _)| own(**id));
            chosen.map(|(id, weight)| weight * expert(*id, value)).sum::<f32>()
        });
        ep.write_combine_row(&sent, index, &outputs.collect::<Vec<f32>>())?;
    }

    ep.combine(&stream, ExpertOutput::InWindow, sent, slice(&output))?;
    world.synchronize(&stream)?;
    let mut sums = vec![0; TOKENS * HIDDEN * 4];
    output.copy_to_host(0, &mut sums)?;
    for (at, sum) in sums.chunks_exact(4).enumerate() {
        let (token, value) = (at / HIDDEN, value(at / HIDDEN, at % HIDDEN));
        let [one, two] = choice(token);
        let expected = weight[0] * expert(one, value) + weight[1] * expert(two, value);
        let sum = f32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]);
        assert!((sum - expected).abs() <= 1e-6 * expected, "token {token}: {sum}, not {expected}");
    }
    println!("{}: {TOKENS} tokens came back as the weighted sums of {TOP_K} experts each", world.rank());
    Ok(())
}

fn bytes(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(f32::to_le_bytes).collect()
}

fn upload(world: &World, bytes: &[u8]) -> Result<DeviceBuffer, Error> {
    let mut buffer = world.device().allocate(bytes.len())?;
    buffer.copy_from_host(0, bytes)?;
    Ok(buffer)
}

fn slice(buffer: &DeviceBuffer) -> DeviceSlice {
    // SAFETY: every buffer outlives the stream's work, and nothing else uses it during that time.
    unsafe { DeviceSlice::of(buffer) }
}
