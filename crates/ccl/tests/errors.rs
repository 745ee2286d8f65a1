//! Every error of the checks of calls, with its text. Invalid calls are refused before launch.

use std::collections::BTreeSet;

use crate::common::{all_well, jit, on_ranks, world_config};
use anabranch_ccl::{
    Algorithm, Call, CclConfig, Choice, Collective, Communicator, DataType, Element as _, Error, ReduceOp,
    Tensor,
};
use anabranch_conformance::ccl::{self as conformance, Case, Scratch};
use anabranch_hip::DeviceAddress;
use anabranch_ranks::GroupRank;
use anabranch_shmem::{Registration, SymmetricMemory, World};

const RANKS: u32 = 3;
const F32: DataType = f32::DATA_TYPE;

/// Memory for calls: two of each kind, so that outputs and inputs need not overlap.
struct Memory {
    symmetric: SymmetricMemory,
    registered: Registration,
    /// Allocation of a group without rank 2.
    foreign: Option<(SymmetricMemory, Registration)>,
    local: DeviceAddress,
}

impl Memory {
    fn local(&self, byte: u64, data_type: DataType, count: u64) -> Tensor<'_> {
        // SAFETY: inside the buffer of the test, which waits for all launches.
        unsafe { Tensor::local(self.local.offset(byte), data_type, count) }
    }

    fn symmetric(&self, byte: u64, data_type: DataType, count: u64) -> Tensor<'_> {
        Tensor::symmetric(&self.symmetric, byte, data_type, count).unwrap()
    }
}

/// Name of the variant, from `Debug`.
fn variant(error: &Error) -> String {
    let text = format!("{error:?}");
    text.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
}

/// An invalid call: the requested algorithm, the call, and the error text.
type Row<'a> = (Option<Algorithm>, Call<'a>, &'static str);

#[expect(clippy::too_many_lines, reason = "a table")]
fn wrong_calls(memory: &Memory) -> Vec<Row<'_>> {
    let out = memory.symmetric(4096, F32, 12);
    let input = memory.symmetric(0, F32, 12);
    let (four, sum) = (memory.symmetric(0, F32, 4), ReduceOp::Sum);
    let halves = memory.symmetric(0, DataType::F16, 12);
    let (root, beyond) = (GroupRank::new(0), GroupRank::new(3));
    let at = |byte, count| memory.local(byte, F32, count);
    let fp4 = memory.symmetric(0, DataType::F4E2m1, 12);
    vec![
        (
            None,
            Call::Broadcast { tensor: fp4, root },
            "broadcast: a tensor is fp4; allowed is f32, f64, f16, bf16, float8_e4m3fn, float8_e5m2, float8_e4m3fnuz, \
             float8_e5m2fnuz, i8, u8, i16, u16, i32, u32, i64, u64, bool",
        ),
        (
            None,
            Call::AllReduce { output: out, input, op: ReduceOp::BitXor },
            "bxor is not defined for f32; allowed are sum, avg, product, min, max, premul_sum",
        ),
        (
            None,
            Call::Reduce {
                output: memory.symmetric(4096, DataType::I32, 4),
                input: memory.symmetric(0, DataType::I32, 4),
                op: ReduceOp::PreMulSum(0.5),
                root,
            },
            "premul_sum(0.5) is not defined for i32; allowed are sum, avg, product, min, max, band, bor, bxor, premul_sum of a \
             whole number of magnitude below 2^53",
        ),
        (
            None,
            Call::ReduceScatter {
                output: memory.symmetric(4096, DataType::Bool, 4),
                input: memory.symmetric(0, DataType::Bool, 12),
                op: ReduceOp::PreMulSum(2.0),
            },
            "premul_sum(2) is not defined for bool; allowed are sum, product, min, max, band, bor, bxor",
        ),
        (
            None,
            Call::AllReduce { output: out, input: four, op: sum },
            "all_reduce: output has 12 elements; it must have the input's 4",
        ),
        (
            None,
            Call::Reduce { output: out, input: four, op: sum, root },
            "reduce: output has 12 elements; it must have the input's 4",
        ),
        (
            None,
            Call::ReduceScatter { output: out, input, op: sum },
            "reduce_scatter: input has 12 elements; it must have 3 (the group's size) times the output's 12",
        ),
        (
            None,
            Call::ReduceScatterUneven { output: four, input, op: sum, counts: &[4, 4, 5] },
            "reduce_scatter: input has 12 elements; it must have the sum of the counts: 13",
        ),
        (
            None,
            Call::ReduceScatterUneven { output: four, input, op: sum, counts: &[1, 1, 10] },
            "reduce_scatter: output has 4 elements; it must have this rank's count: 1",
        ),
        (
            None,
            Call::AllGather { output: out, input },
            "all_gather: output has 12 elements; it must have 3 (the group's size) times the input's 12",
        ),
        (
            None,
            Call::AllGatherUneven { output: out, input: four, counts: &[4, 4, 5] },
            "all_gather: output has 12 elements; it must have the sum of the counts: 13",
        ),
        (
            None,
            Call::AllGatherUneven { output: out, input: four, counts: &[1, 1, 10] },
            "all_gather: input has 4 elements; it must have this rank's count: 1",
        ),
        (
            None,
            Call::AllGatherUneven { output: out, input: four, counts: &[4, 8] },
            "all_gather: counts has 2 elements; it must have one for each of the 3 members",
        ),
        (
            None,
            Call::AllGatherUneven { output: out, input: four, counts: &[4, 4, 1 << 48] },
            "all_gather: counts has 281474976710664 elements; it must have a sum below 2^48",
        ),
        (
            None,
            Call::AllGatherUneven { output: out, input: four, counts: &[4, u64::MAX, u64::MAX] },
            "all_gather: counts has 18446744073709551615 elements; it must have a sum below 2^48",
        ),
        (
            None,
            Call::AllToAll { output: out, input: four },
            "all_to_all: output has 12 elements; it must have the input's 4",
        ),
        (
            None,
            Call::AllToAll { output: memory.symmetric(4096, F32, 4), input: four },
            "all_to_all: input has 4 elements; it must have a multiple of 3 (the group's size); give splits instead",
        ),
        (
            None,
            Call::AllToAllUneven { output: out, input, output_splits: &[4, 4, 4], input_splits: &[4, 4, 3] },
            "all_to_all: input has 12 elements; it must have the sum of input_splits: 11",
        ),
        (
            None,
            Call::AllToAllUneven { output: out, input, output_splits: &[4, 4, 5], input_splits: &[4, 4, 4] },
            "all_to_all: output has 12 elements; it must have the sum of output_splits: 13",
        ),
        (
            None,
            Call::AllToAllUneven {
                output: out,
                input,
                output_splits: &[4, 4, 4, 0],
                input_splits: &[4, 4, 4],
            },
            "all_to_all: output_splits has 4 elements; it must have one for each of the 3 members",
        ),
        (
            None,
            Call::AllReduce { output: out, input: halves, op: sum },
            "all_reduce: the output is f32; allowed is the input's f16",
        ),
        (
            None,
            Call::AllToAll { output: out, input: halves },
            "all_to_all: the output is f32; allowed is the input's f16",
        ),
        (
            None,
            Call::Gather { output: Some(out), input: halves, root },
            "gather: the output is f32; allowed is the input's f16",
        ),
        (
            None,
            Call::Broadcast { tensor: out, root: beyond },
            "broadcast: the root is group rank 3, but the group has 3 members",
        ),
        (
            None,
            Call::Scatter { output: four, input: Some(out), root: beyond },
            "scatter: the root is group rank 3, but the group has 3 members",
        ),
        (
            None,
            Call::Gather { output: None, input: four, root },
            "gather: the root needs an output, and none was given",
        ),
        (
            None,
            Call::Scatter { output: four, input: None, root },
            "scatter: the root needs an input, and none was given",
        ),
        (
            None,
            Call::Gather { output: Some(out), input, root },
            "gather: output has 12 elements; it must have 3 (the group's size) times the input's 12",
        ),
        (
            None,
            Call::Scatter { output: out, input: Some(input), root },
            "scatter: input has 12 elements; it must have 3 (the group's size) times the output's 12",
        ),
        (
            None,
            Call::AllReduce { output: at(8, 12), input: at(0, 12), op: sum },
            "all_reduce: output {base+8} and input {base} overlap; in place they are the same",
        ),
        (
            None,
            Call::AllGather { output: at(0, 12), input: at(4, 4) },
            "all_gather: output {base} and input {base+4} overlap; in place the input is this rank's part of the output",
        ),
        (
            None,
            Call::ReduceScatter { output: at(4, 4), input: at(0, 12), op: sum },
            "reduce_scatter: output {base+4} and input {base} overlap; in place the output is this rank's part of the input",
        ),
        (
            None,
            Call::ReduceScatterUneven { output: at(0, 4), input: at(0, 12), op: sum, counts: &[4, 4, 4] },
            "reduce_scatter: output {base} and input {base} overlap; they must not",
        ),
        (
            None,
            Call::AllToAll { output: at(0, 12), input: at(0, 12) },
            "all_to_all: output {base} and input {base} overlap; they must not",
        ),
        (
            None,
            Call::AllReduce { output: at(2, 4), input: at(64, 4), op: sum },
            "a tensor of f32 starts at {base+2}, which is no multiple of the element's size",
        ),
        (
            Some(Algorithm::Direct),
            Call::AllGather { output: at(64, 12), input: at(0, 4) },
            "all_gather cannot be done by direct: peers have to reach the output: make it symmetric, or register it",
        ),
        (
            Some(Algorithm::Pull),
            Call::AllReduce { output: out, input: at(0, 12), op: sum },
            "all_reduce cannot be done by pull: peers have to reach the input: make it symmetric, or register it",
        ),
        (
            Some(Algorithm::Pull),
            Call::AllReduce { output: at(0, 12), input, op: sum },
            "all_reduce cannot be done by pull: peers have to reach the output: make it symmetric, or register it",
        ),
        (
            Some(Algorithm::Staged),
            Call::AllReduce { output: out, input, op: sum },
            "all_reduce cannot be done by staged: it moves bytes and reduces nothing",
        ),
        (
            Some(Algorithm::Push),
            Call::Broadcast { tensor: out, root },
            "broadcast cannot be done by push: it is for reductions",
        ),
        (
            Some(Algorithm::TwoShotPackets),
            Call::ReduceScatter { output: memory.symmetric(4096, F32, 4), input, op: sum },
            "reduce_scatter cannot be done by two-shot-packets: it is for all_reduce and reduce",
        ),
        (
            Some(Algorithm::Packets),
            Call::AllToAllUneven { output: out, input, output_splits: &[4, 4, 4], input_splits: &[4, 4, 4] },
            "all_to_all cannot be done by packets: members do not know how much others exchange",
        ),
        (
            Some(Algorithm::TwoHop),
            Call::AllGather { output: at(64, 12), input: at(0, 4) },
            "all_gather cannot be done by two-hop: it is for broadcast",
        ),
    ]
}

/// Tensors outside their memory, or misaligned.
fn wrong_tensors(memory: &Memory) -> Vec<(Error, &'static str)> {
    let symmetric = |byte, data_type, count| {
        Tensor::symmetric(&memory.symmetric, byte, data_type, count).map(drop).unwrap_err()
    };
    let registered = |byte, data_type, count| {
        Tensor::registered(&memory.registered, byte, data_type, count).map(drop).unwrap_err()
    };
    vec![
        (symmetric(8184, F32, 3), "3 f32 elements from byte 8184 on do not fit into 8192 bytes"),
        (symmetric(8192, F32, 1), "1 f32 elements from byte 8192 on do not fit into 8192 bytes"),
        (
            symmetric(0, DataType::I64, u64::MAX / 4),
            "4611686018427387903 i64 elements from byte 0 on do not fit into 8192 bytes",
        ),
        (registered(0, DataType::U8, 4097), "4097 u8 elements from byte 0 on do not fit into 4096 bytes"),
        (symmetric(2, F32, 3), "a tensor of f32 starts at 0x2, which is no multiple of the element's size"),
        (
            registered(9, DataType::F16, 3),
            "a tensor of f16 starts at 0x9, which is no multiple of the element's size",
        ),
    ]
}

fn configurations(world: &World, seen: &mut BTreeSet<String>) {
    let rows = [
        (
            CclConfig { max_blocks: 1025, ..CclConfig::default() },
            "ccl.max_blocks is 1025; allowed is 0 to 1024",
        ),
        (
            CclConfig { staging_bytes: 4095, ..CclConfig::default() },
            "ccl.staging_bytes is 4095; allowed is 0, or 4096 to 2^40",
        ),
        (
            CclConfig { staging_bytes: (1 << 40) + 1, ..CclConfig::default() },
            "ccl.staging_bytes is 1099511627777; allowed is 0, or 4096 to 2^40",
        ),
    ];
    for (config, text) in rows {
        let error = Communicator::new(world, world.group(), config).map(drop).unwrap_err();
        assert_eq!(error.to_string(), text);
        seen.insert(variant(&error));
    }
    // This rank is not a member.
    let others: Vec<_> = (0..RANKS).filter(|rank| *rank != world.rank().get()).map(GroupRank::new).collect();
    let strange = world.group().subset(&others).unwrap();
    let refused = Communicator::new(world, &strange, CclConfig::default()).map(drop).unwrap_err().to_string();
    assert!(refused.contains(&format!("{} is not a member of the group", world.rank())), "{refused}");
    // The configuration must be equal on all members; the error names one that differs.
    let blocks = 1 + world.rank().get() / 2;
    let error =
        Communicator::new(world, world.group(), CclConfig { max_blocks: blocks, ..CclConfig::default() });
    let text = error.map(drop).unwrap_err().to_string();
    assert!(text.starts_with("ccl configuration: ccl.max_blocks differs: rank 2 has 2, "), "{text}");
}

/// Tensors and prepared calls of other groups or communicators.
fn foreign(
    memory: &Memory,
    communicator: &mut Communicator,
    other: &mut Communicator,
    mut pair: Option<Communicator>,
    seen: &mut BTreeSet<String>,
    stream: &anabranch_hip::Stream,
) -> Result<(), Error> {
    let (output, input) = (memory.symmetric(4096, F32, 4), memory.symmetric(0, F32, 4));
    let prepared = other.prepare(&Call::AllReduce { output, input, op: ReduceOp::Sum })?;
    let error = communicator.launch(&prepared, stream).map(drop).unwrap_err();
    assert_eq!(error.to_string(), "a prepared call belongs to another group or communicator");
    seen.insert(variant(&error));
    // Prepared with memory that was dropped.
    let memory_of_all = communicator.world().allocate(communicator.group(), 4096, 256, "gone")?;
    let tensor = Tensor::symmetric(&memory_of_all, 0, F32, 4)?;
    let prepared = communicator.prepare(&Call::Broadcast { tensor, root: GroupRank::new(0) })?;
    drop(memory_of_all);
    let error = communicator.launch(&prepared, stream).map(drop).unwrap_err();
    assert!(error.to_string().contains("was dropped or freed before it"), "{error}");
    if let Some((symmetric, registered)) = &memory.foreign {
        let of_pair = [
            (Tensor::registered(registered, 0, F32, 4)?, "a registration"),
            (Tensor::symmetric(symmetric, 0, F32, 4)?, "symmetric memory"),
        ];
        for (input, what) in of_pair {
            let call = Call::AllReduce { output, input, op: ReduceOp::Sum };
            let error = communicator.prepare(&call).map(drop).unwrap_err();
            assert_eq!(error.to_string(), format!("{what} belongs to another group or communicator"));
        }
        // Both ranks have memory of the world.
        let call = Call::AllReduce { output, input, op: ReduceOp::Sum };
        pair.as_mut().unwrap().run(&call, stream)?.join(world_config().operation_deadline)?;
        let call =
            Call::AllReduce { output, input: Tensor::symmetric(symmetric, 0, F32, 4)?, op: ReduceOp::Sum };
        pair.as_mut().unwrap().run(&call, stream)?.join(world_config().operation_deadline)?;
    }
    Ok(())
}

#[test]
fn invalid_calls_are_refused_before_launch() {
    /// All variants but those of other crates, and `Unmapped`, which `tests/network.rs` covers.
    const CHECKED: [&str; 10] = [
        "Algorithm",
        "Alignment",
        "Bounds",
        "Config",
        "Count",
        "Foreign",
        "Member",
        "Missing",
        "Overlap",
        "Type",
    ];
    all_well(on_ranks(RANKS, 4, &world_config(), &jit(), |world| {
        let mut seen = BTreeSet::new();
        configurations(world, &mut seen);
        let stream = world.device().create_stream()?;
        let config = CclConfig { max_blocks: 2, staging_bytes: 1 << 20, ..CclConfig::default() };
        let mut communicator = Communicator::new(world, world.group(), config.clone())?;
        // It takes what the query returns if it gets the channels that it requests.
        assert_eq!(communicator.channels(), 2);
        assert_eq!(Communicator::most_heap_bytes(world, RANKS, &config)?, communicator.heap_bytes());
        assert!(communicator.heap_bytes() > config.staging_bytes);
        let mut other = Communicator::new(world, world.group(), config.clone())?;
        let buffer = world.device().allocate(4096)?;
        // SAFETY: released below, before the buffer goes.
        let registered = unsafe { world.register(world.group(), buffer.address(), 4096, "all") }?;
        let pair = conformance::Subset::new([0, 1]).group(world.group()).unwrap();
        let foreign_buffer = world.device().allocate(4096)?;
        let (foreign_here, of_pair) = if pair.contains(world.rank()) {
            // SAFETY: as above.
            let registered = unsafe { world.register(&pair, foreign_buffer.address(), 4096, "pair") }?;
            let symmetric = world.allocate(&pair, 4096, 256, "pair")?;
            (Some((symmetric, registered)), Some(Communicator::new(world, &pair, config.clone())?))
        } else {
            (None, None)
        };
        let symmetric = world.allocate(world.group(), 8192, 256, "calls")?;
        let memory = Memory { symmetric, registered, foreign: foreign_here, local: buffer.address() };

        // Rank 0 is the root of the calls that miss something there, and has the part that is not the one in place.
        if world.rank().get() == 0 {
            for (algorithm, call, text) in wrong_calls(&memory) {
                let error = communicator
                    .prepare_as(&call, Choice { algorithm, ..Choice::default() })
                    .map(drop)
                    .unwrap_err();
                let base = memory.local.0;
                let text = ["{base+2}", "{base+4}", "{base+8}", "{base}"]
                    .into_iter()
                    .zip([2, 4, 8, 0])
                    .fold(text.to_owned(), |text, (word, by)| {
                        text.replace(word, &format!("{:#x}", base + by))
                    });
                assert_eq!(error.to_string(), text);
                seen.insert(variant(&error));
            }
            for (error, text) in wrong_tensors(&memory) {
                assert_eq!(error.to_string(), text);
                seen.insert(variant(&error));
            }
            for blocks in [0, communicator.channels() + 1] {
                let error = communicator
                    .prepare_as(&Call::Barrier, Choice { blocks: Some(blocks), ..Choice::default() })
                    .map(drop)
                    .unwrap_err();
                assert_eq!(
                    error.to_string(),
                    format!("blocks is {blocks}; allowed is 1 to the communicator's channels")
                );
            }
        }
        foreign(&memory, &mut communicator, &mut other, of_pair, &mut seen, &stream)?;
        if world.rank().get() == 0 {
            let wanted: BTreeSet<_> = CHECKED.into_iter().chain(["Unsupported"]).map(str::to_owned).collect();
            assert_eq!(seen, wanted);
        }

        // None of the errors advanced the channels: the next calls of all members match.
        let mut scratch = Scratch::new(world, &communicator, 64 << 10)?;
        for collective in Collective::ALL {
            conformance::run(&mut communicator, &mut scratch, &Case::new(collective, F32, 33), &stream)?
                .unwrap();
            conformance::run(&mut other, &mut scratch, &Case::new(collective, F32, 33), &stream)?.unwrap();
        }
        scratch.release()?;
        memory.foreign.map_or(Ok(()), |(_, registered)| registered.release())?;
        memory.registered.release()?;
        Ok(())
    }));
}

#[test]
fn case_larger_than_its_scratch_is_refused() {
    all_well(on_ranks(1, 4, &world_config(), &jit(), |world| {
        let communicator = Communicator::new(world, world.group(), CclConfig::default())?;
        let mut scratch = Scratch::new(world, &communicator, 1000)?;
        let case = Case::new(Collective::AllReduce, F32, 500);
        let error = conformance::fill(&communicator, &mut scratch, &case).map(drop).unwrap_err();
        let text = error.to_string();
        let needed = case.scratch_bytes(1);
        assert_eq!(
            text,
            format!(
                "all_reduce: the case has 500 elements; it must have scratch memory of {needed} bytes, and there are 1000"
            )
        );
        scratch.release()
    }));
}
