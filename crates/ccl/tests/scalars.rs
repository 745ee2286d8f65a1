//! `premul_sum` with a scalar in device memory, beside the same value on the host.

use std::sync::Arc;

use crate::common::{all_well, jit, on_ranks, world_config};
use anabranch_ccl::float8::{F8E4m3, F8E4m3Fnuz, F8E5m2, F8E5m2Fnuz};
use anabranch_ccl::{
    Across, Algorithm, Call, CclConfig, Choice, Communicator, DataType, DeviceScalar, Error, ReduceOp, Tensor,
};
use anabranch_conformance::ccl::oracle::Data;
use anabranch_hip::Stream;
use anabranch_ranks::GroupRank;
use anabranch_shmem::SymmetricMemory;

const RANKS: u32 = 3;
const COUNT: u64 = 3 * 331;
/// Two scalars that every float has, and two that every signed integer has.
const VALUES: [f32; 2] = [0.75, -1.5];
const WHOLE: [f32; 2] = [3.0, -2.0];
const TYPES: [DataType; 12] = [
    DataType::F32,
    DataType::F64,
    DataType::F16,
    DataType::Bf16,
    DataType::F8E4m3,
    DataType::F8E5m2,
    DataType::F8E4m3Fnuz,
    DataType::F8E5m2Fnuz,
    DataType::I8,
    DataType::I16,
    DataType::I32,
    DataType::I64,
];

fn values(data_type: DataType) -> [f32; 2] {
    if data_type.is_float() { VALUES } else { WHOLE }
}

// Bytes of the memory of a test: the input, two outputs, the scalar that calls read, and the values that it takes.
const INPUT: u64 = 0;
const OUTPUTS: [u64; 2] = [8192, 16384];
const SCALAR: u64 = 24576;
const SOURCES: [u64; 2] = [24640, 24704];
const BYTES: u64 = 24832;

fn element(data_type: DataType, value: f32) -> Vec<u8> {
    match data_type {
        DataType::F32 => value.to_le_bytes().into(),
        DataType::F64 => f64::from(value).to_le_bytes().into(),
        DataType::F16 => half::f16::from_f32(value).to_le_bytes().into(),
        DataType::Bf16 => half::bf16::from_f32(value).to_le_bytes().into(),
        DataType::F8E4m3 => vec![F8E4m3::from_f32(value).to_bits()],
        DataType::F8E5m2 => vec![F8E5m2::from_f32(value).to_bits()],
        DataType::F8E4m3Fnuz => vec![F8E4m3Fnuz::from_f32(value).to_bits()],
        DataType::F8E5m2Fnuz => vec![F8E5m2Fnuz::from_f32(value).to_bits()],
        DataType::I8 => (value as i8).to_le_bytes().into(),
        DataType::I16 => (value as i16).to_le_bytes().into(),
        DataType::I32 => (value as i32).to_le_bytes().into(),
        DataType::I64 => (value as i64).to_le_bytes().into(),
        other => panic!("{other} is not among the types of these tests"),
    }
}

fn filled(memory: &mut SymmetricMemory, data_type: DataType, rank: u32) -> Result<(), Error> {
    let inputs = Data::Normal.of(data_type, ReduceOp::Sum, RANKS, 7);
    memory.write(INPUT, &inputs.bytes(GroupRank::new(rank), 0..COUNT))?;
    for (at, value) in SOURCES.into_iter().zip(values(data_type)) {
        memory.write(at, &element(data_type, value))?;
    }
    Ok(())
}

/// Enqueues two calls, each after a copy of one of the values to where both read their scalar.
fn enqueue(
    communicator: &mut Communicator,
    memory: &SymmetricMemory,
    data_type: DataType,
    algorithm: Option<Algorithm>,
    stream: &Stream,
) -> Result<(), Error> {
    let input = Tensor::symmetric(memory, INPUT, data_type, COUNT)?;
    // SAFETY: the memory outlives the calls, and only the copies below write the scalar, in the order of the stream.
    let op = ReduceOp::PreMulSumAt(unsafe { DeviceScalar::at(memory.address().offset(SCALAR), data_type) });
    for (source, output) in SOURCES.into_iter().zip(OUTPUTS) {
        let [to, from] = [SCALAR, source].map(|offset| memory.address().offset(offset));
        // SAFETY: both are in the memory, which outlives the copy.
        unsafe { stream.copy_async(to, from, data_type.bytes() as usize)? };
        let output = Tensor::symmetric(memory, output, data_type, COUNT)?;
        let choice = Choice { algorithm, ..Choice::default() };
        let prepared = communicator.prepare_as(&Call::AllReduce { output, input, op }, choice)?;
        drop(communicator.launch(&prepared, stream)?);
    }
    Ok(())
}

fn outputs(memory: &SymmetricMemory, data_type: DataType) -> Result<[Vec<u8>; 2], Error> {
    let mut all = OUTPUTS.map(|_| vec![0; COUNT as usize * data_type.bytes() as usize]);
    for (at, bytes) in OUTPUTS.into_iter().zip(&mut all) {
        memory.read(at, bytes)?;
    }
    Ok(all)
}

/// What the same values on the host give.
fn of_host(
    communicator: &mut Communicator,
    memory: &SymmetricMemory,
    data_type: DataType,
    stream: &Stream,
) -> Result<[Vec<u8>; 2], Error> {
    let input = Tensor::symmetric(memory, INPUT, data_type, COUNT)?;
    for (value, output) in values(data_type).into_iter().zip(OUTPUTS) {
        let output = Tensor::symmetric(memory, output, data_type, COUNT)?;
        let op = ReduceOp::PreMulSum(value.into());
        drop(communicator.run(&Call::AllReduce { output, input, op }, stream)?);
    }
    communicator.world().synchronize(stream)?;
    let all = outputs(memory, data_type)?;
    assert_ne!(all[0], all[1], "{data_type}");
    Ok(all)
}

fn same_bits(config: &CclConfig, algorithms: &[Option<Algorithm>], types: &[DataType]) {
    all_well(on_ranks(RANKS, 4, &world_config(), &jit(), |world| {
        let stream = world.device().create_stream()?;
        let mut communicator = Communicator::new(world, world.group(), config.clone())?;
        let mut memory = world.allocate(world.group(), BYTES, 256, "scalars")?;
        for data_type in types {
            filled(&mut memory, *data_type, world.rank().get())?;
            let expected = of_host(&mut communicator, &memory, *data_type, &stream)?;
            for algorithm in algorithms {
                enqueue(&mut communicator, &memory, *data_type, *algorithm, &stream)?;
                world.synchronize(&stream)?;
                assert!(outputs(&memory, *data_type)? == expected, "{data_type} by {algorithm:?}");
            }
        }
        Ok(())
    }));
}

fn every_algorithm(types: &[DataType]) {
    let config = CclConfig { max_blocks: 2, staging_bytes: 16 << 10, ..CclConfig::default() };
    let algorithms = [
        Algorithm::Packets,
        Algorithm::TwoShotPackets,
        Algorithm::Pull,
        Algorithm::Push,
        Algorithm::CopyEngine,
    ];
    same_bits(&config, &algorithms.map(Some), types);
}

#[test]
fn device_scalar_gives_the_bits_of_the_host_scalar() {
    every_algorithm(&[DataType::Bf16, DataType::I32]);
}

#[test]
#[ignore = "extended"]
fn device_scalar_of_every_type_gives_the_bits_of_the_host_scalar() {
    every_algorithm(&TYPES);
}

fn internode(types: &[DataType]) {
    for across in [Across::Direct, Across::Node] {
        let nodes = Some(Arc::from([0, 0, 1]));
        let config =
            CclConfig { max_blocks: 2, staging_bytes: 64 << 10, across, nodes, ..CclConfig::default() };
        same_bits(&config, &[None], types);
    }
}

#[test]
fn internode_device_scalar_gives_the_bits_of_the_host_scalar() {
    internode(&[DataType::F32, DataType::I64]);
}

#[test]
#[ignore = "extended"]
fn internode_device_scalar_of_more_types_gives_the_bits_of_the_host_scalar() {
    internode(&[DataType::F32, DataType::F64, DataType::F16, DataType::I8, DataType::I64]);
}

#[test]
fn scalars_of_another_type_or_alignment_are_refused() {
    all_well(on_ranks(1, 1, &world_config(), &jit(), |world| {
        let mut communicator = Communicator::new(world, world.group(), CclConfig::default())?;
        let memory = world.allocate(world.group(), BYTES, 256, "scalars")?;
        let input = Tensor::symmetric(&memory, INPUT, DataType::F32, 4)?;
        let mut refused = |at, data_type| {
            let at = memory.address().offset(at);
            // SAFETY: no call with it is launched.
            let op = ReduceOp::PreMulSumAt(unsafe { DeviceScalar::at(at, data_type) });
            (at, communicator.prepare(&Call::AllReduce { output: input, input, op }).unwrap_err().to_string())
        };
        let (_, text) = refused(SCALAR, DataType::F64);
        assert_eq!(text, "all_reduce: the scalar is f64; allowed is the tensors' f32");
        let (at, text) = refused(SCALAR + 2, DataType::F32);
        assert_eq!(
            text,
            format!("a tensor of f32 starts at {at}, which is no multiple of the element's size")
        );
        // Blocks read it at different times.
        let (at, text) = refused(INPUT + 8, DataType::F32);
        assert_eq!(
            text,
            format!(
                "all_reduce: output {} and input {at} overlap; the scalar in device memory must not be in the output",
                memory.address().offset(INPUT)
            )
        );
        Ok(())
    }));
}

#[test]
fn replay_reads_the_scalar_of_its_time() {
    all_well(on_ranks(RANKS, 4, &world_config(), &jit(), |world| {
        let stream = world.device().create_stream()?;
        let config = CclConfig { max_blocks: 2, staging_bytes: 16 << 10, ..CclConfig::default() };
        let mut communicator = Communicator::new(world, world.group(), config)?;
        let mut memory = world.allocate(world.group(), BYTES, 256, "scalars")?;
        filled(&mut memory, DataType::F32, world.rank().get())?;
        let expected = of_host(&mut communicator, &memory, DataType::F32, &stream)?;
        // Kernels are loaded before the capture.
        enqueue(&mut communicator, &memory, DataType::F32, Some(Algorithm::Push), &stream)?;
        world.synchronize(&stream)?;
        stream.begin_capture()?;
        enqueue(&mut communicator, &memory, DataType::F32, Some(Algorithm::Push), &stream)?;
        let graph = stream.end_capture()?.instantiate()?;
        let swapped = [SOURCES[1], SOURCES[0]];
        for (at, value) in swapped.into_iter().zip(VALUES) {
            memory.write(at, &element(DataType::F32, value))?;
        }
        // SAFETY: communicator and memory outlive the replay, which ends before they are used again.
        unsafe { graph.launch(&stream)? };
        world.synchronize(&stream)?;
        let [first, second] = outputs(&memory, DataType::F32)?;
        assert!(first == expected[1] && second == expected[0]);
        Ok(())
    }));
}
