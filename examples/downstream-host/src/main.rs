//! Four ranks, which are threads: an all_reduce, then a dispatch to four experts and a combine, with every value checked.

use anabranch::ccl::{Options, Sum, TypedTensor};
use anabranch::ep::{DataType, DeviceSlice, ExpertOutput, Tokens};
use anabranch::hip::DeviceBuffer;
use anabranch::{Communicator, Config, EpConfig, EpShape, Error, ExpertParallel, World, ccl_config};

const RANKS: u32 = 4;
const TOKENS: usize = 8;
const HIDDEN: usize = 16;

fn main() -> Result<(), Error> {
    let mut config = Config::default();
    config.heap.bytes = Some(anabranch::config::ByteSize(8 << 20));
    for rank in anabranch::spawn_threads(&config, RANKS, |world| {
        all_reduce(&config, world)?;
        exchange(world)
    })? {
        rank.expect("every rank succeeds");
    }
    println!("{RANKS} ranks: all_reduce, dispatch and combine gave the expected values");
    refused();
    Ok(())
}

/// The sum of rank + 1 over all ranks.
fn all_reduce(config: &Config, world: &World) -> Result<(), Error> {
    let mut communicator = Communicator::new(world, world.group(), ccl_config(config)?)?;
    let mut memory = world.allocate(world.group(), 4, 4, "sum")?;
    memory.write(0, &(world.rank().get() + 1).to_le_bytes())?;
    let stream = world.device().create_stream()?;
    let tensor = TypedTensor::<u32>::symmetric(&memory, 0, 1)?;
    communicator.all_reduce(tensor, Sum, Options::on(&stream))?.wait_on(&stream)?;
    world.synchronize(&stream)?;
    let mut sum = [0; 4];
    memory.read(0, &mut sum)?;
    assert_eq!(u32::from_le_bytes(sum), (1..=RANKS).sum::<u32>());
    Ok(())
}

/// Token t of rank r goes to experts (r + t) % 4 and (r + t + 1) % 4, one of which each rank owns. They return rows as they are: combine
/// gives twice the row.
fn exchange(world: &World) -> Result<(), Error> {
    let rank = world.rank().get();
    let plan = EpConfig::new(EpShape { hidden: HIDDEN as u32, experts: RANKS, top_k: 2, max_tokens: TOKENS as u32 })
        .dispatch_type(DataType::F32)
        .combine_type(DataType::F32);
    let ep = ExpertParallel::new(world, world.group(), plan)?;
    let value = |token: usize, column: usize| (rank as usize * 100 + token * 10 + column) as f32;
    let rows: Vec<f32> = (0..TOKENS * HIDDEN).map(|at| value(at / HIDDEN, at % HIDDEN)).collect();
    let ids: Vec<i32> = (0..TOKENS as u32)
        .flat_map(|token| [rank + token, rank + token + 1].map(|expert| (expert % RANKS) as i32))
        .collect();
    let rows = upload(world, rows.iter().flat_map(|value| value.to_le_bytes()).collect())?;
    let ids = upload(world, ids.iter().flat_map(|id| id.to_le_bytes()).collect())?;
    let output = upload(world, vec![0; TOKENS * HIDDEN * 4])?;
    let tokens = Tokens {
        count: TOKENS,
        data_type: DataType::F32,
        rows: slice(&rows),
        ids: slice(&ids),
        weights: None,
        scales: None,
        device_count: None,
    };
    let stream = world.device().create_stream()?;
    let sent = ep.dispatch(&stream, &tokens)?;
    // The expert: input rows become output rows unchanged.
    let bytes = ep.plan().rows() as usize * HIDDEN * 4;
    // SAFETY: both windows have room for all rows of the plan and stay until the combine.
    unsafe { stream.copy_async(sent.combine_rows(), sent.rows(), bytes) }?;
    ep.combine(&stream, ExpertOutput::InWindow, sent, slice(&output))?;
    world.synchronize(&stream)?;
    let mut sums = vec![0; TOKENS * HIDDEN * 4];
    output.copy_to_host(0, &mut sums)?;
    for (at, sum) in sums.chunks_exact(4).enumerate() {
        let (token, column) = (at / HIDDEN, at % HIDDEN);
        let sum = f32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]);
        assert_eq!(sum, 2.0 * value(token, column), "token {token}, column {column}");
    }
    Ok(())
}

fn upload(world: &World, bytes: Vec<u8>) -> Result<DeviceBuffer, Error> {
    let mut buffer = world.device().allocate(bytes.len())?;
    buffer.copy_from_host(0, &bytes)?;
    Ok(buffer)
}

fn slice(buffer: &DeviceBuffer) -> DeviceSlice {
    // SAFETY: every buffer outlives the stream's work, and nothing else uses it.
    unsafe { DeviceSlice::of(buffer) }
}

/// A transport that this build lacks is an error that names the cargo feature.
fn refused() {
    let mut config = Config::default();
    config.transport.order = vec![anabranch::transport::TransportKind::Rdma];
    let error = anabranch::spawn_threads(&config, 2, |_| Ok::<_, Error>(())).expect_err("there is no rdma");
    assert!(error.to_string().contains("enable the cargo feature `rdma` of anabranch"), "{error}");
    println!("without the feature: {error}");
}
