//! RMSNorm after a sum: by one kernel and by two, beside a reference on the host, bit by bit.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{all_well, failure, jit, on_ranks, world_config};
use anabranch_ccl::{
    Across, Algorithm, Call, CclConfig, Check, Choice, Communicator, DataType, Error, LocationKind,
    Quantised, RmsNorm, Tensor,
};
use anabranch_conformance::ccl::norm::{Norm, Normed, Scale, elements, values};
use anabranch_conformance::ccl::oracle;
use anabranch_hip::{DeviceBuffer, Stream};
use anabranch_shmem::World;

/// A call and its reference.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "what cases differ in")]
struct Case {
    rows: usize,
    norm: Norm,
    has_residual: bool,
    /// Where the kept rows go: nowhere, to memory of their own, into the residual, into the input.
    kept: Kept,
    /// Whether the output is the input.
    in_place: bool,
    /// Whether an element of the weight is a NaN.
    has_nan: bool,
    /// Whether the scales of a row are apart, and those of a group beside each other.
    by_column: bool,
    location: LocationKind,
    algorithm: Option<Algorithm>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kept {
    Nowhere,
    Own,
    Residual,
    Input,
}

fn case(rows: usize, row: usize, data_type: DataType) -> Case {
    let norm = Norm { data_type, row, epsilon: 1e-5, format: None, scale: Scale::By(0.125) };
    Case {
        rows,
        norm,
        has_residual: true,
        kept: Kept::Residual,
        in_place: false,
        has_nan: false,
        by_column: false,
        location: LocationKind::Local,
        algorithm: Some(Algorithm::Packets),
    }
}

/// Values between -2 and 2, with a fraction of 12 bits; a row of zeros now and then.
fn drawn(seed: u64, count: usize, row: usize, data_type: DataType) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let all: Vec<f32> = (0..count)
        .map(|number| {
            let value = (next() % 16384) as f32 / 4096.0 - 2.0;
            if number / row % 5 == 4 { 0.0 } else { value }
        })
        .collect();
    elements(data_type, &all)
}

fn weight(case: &Case) -> Vec<u8> {
    let Norm { row, data_type, .. } = case.norm;
    let mut weight = drawn(99, row, row, data_type);
    if case.has_nan {
        let size = data_type.bytes() as usize;
        weight[3 * size..4 * size].copy_from_slice(&elements(data_type, &[f32::NAN]));
    }
    weight
}

fn expected(case: &Case, members: u32, rank: u32) -> Normed {
    let (count, data_type) = (case.rows * case.norm.row, case.norm.data_type);
    let inputs: Vec<_> =
        (0..members).map(|rank| drawn(u64::from(rank) + 1, count, case.norm.row, data_type)).collect();
    let sum = oracle::all_reduce(data_type, anabranch_ccl::ReduceOp::Sum, &inputs).unwrap();
    let sum = sum.output(anabranch_ranks::GroupRank::new(rank)).unwrap();
    let residual = case.has_residual.then(|| drawn(77, count, case.norm.row, data_type));
    case.norm.of(sum, residual.as_deref(), &weight(case))
}

/// Memory of this rank with these bytes.
fn filled(world: &World, bytes: &[u8]) -> Result<DeviceBuffer, Error> {
    let mut buffer = world.device().allocate(bytes.len().max(16))?;
    buffer.copy_from_host(0, bytes)?;
    Ok(buffer)
}

fn read(buffer: &DeviceBuffer, length: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; length];
    buffer.copy_to_host(0, &mut bytes)?;
    Ok(bytes)
}

/// Runs a case and compares everything that it writes.
fn run(world: &World, communicator: &mut Communicator, case: &Case, stream: &Stream) -> Result<(), Error> {
    let (data_type, row, rows) = (case.norm.data_type, case.norm.row, case.rows);
    let (count, rank) = (rows * row, world.rank().get());
    let bytes = count * data_type.bytes() as usize;
    let local = |buffer: &DeviceBuffer, data_type, count: usize| {
        // SAFETY: the buffers outlive the call, which ends before they are read.
        unsafe { Tensor::local(buffer.address(), data_type, count as u64) }
    };
    let given = drawn(u64::from(rank) + 1, count, row, data_type);
    let mut symmetric = world.allocate(world.group(), bytes.max(16) as u64, 256, "input")?;
    symmetric.write(0, &given)?;
    let buffer = filled(world, &given)?;
    let input = match case.location {
        LocationKind::Local => local(&buffer, data_type, count),
        _ => Tensor::symmetric(&symmetric, 0, data_type, count as u64)?,
    };
    let residual = filled(world, &drawn(77, count, row, data_type))?;
    let weight = filled(world, &weight(case))?;
    let (kept, output) = (filled(world, &vec![0xa5; bytes])?, filled(world, &vec![0xa5; bytes])?);
    let groups = match case.norm.scale {
        Scale::Groups(group) => row / group,
        Scale::By(_) => 1,
    };
    let scale = match case.norm.scale {
        Scale::By(scale) => scale.to_le_bytes().to_vec(),
        // A row or column has a place that no scale takes.
        Scale::Groups(_) => vec![0xa5; 4 * (rows + 1) * (groups + 1)],
    };
    let scales = filled(world, &scale)?;
    let quantised = case.norm.format.map(|_| match case.norm.scale {
        Scale::By(_) => Quantised::By(local(&scales, DataType::F32, 1)),
        Scale::Groups(group) => {
            let (row_stride, group_stride) =
                if case.by_column { (1, rows as u64 + 1) } else { (groups as u64 + 1, 1) };
            let scales = local(&scales, DataType::F32, scale.len() / 4);
            Quantised::Groups { group: group as u32, scales, row_stride, group_stride }
        }
    });
    let norm = RmsNorm {
        residual: case.has_residual.then(|| local(&residual, data_type, count)),
        kept: match case.kept {
            Kept::Nowhere => None,
            Kept::Own => Some(local(&kept, data_type, count)),
            Kept::Residual => Some(local(&residual, data_type, count)),
            Kept::Input => Some(input),
        },
        weight: local(&weight, data_type, row),
        epsilon: case.norm.epsilon,
        output: if case.in_place {
            input
        } else {
            local(&output, case.norm.format.unwrap_or(data_type), count)
        },
        quantised,
    };
    let choice = Choice { algorithm: case.algorithm, ..Choice::default() };
    let prepared = communicator.prepare_as(&Call::AllReduceRmsNorm { input, norm }, choice)?;
    drop(communicator.launch(&prepared, stream)?);
    world.synchronize(stream)?;
    let from_input = || {
        if case.location == LocationKind::Local {
            return read(&buffer, bytes);
        }
        let mut all = vec![0; bytes];
        symmetric.read(0, &mut all)?;
        Ok(all)
    };
    let expected = expected(case, communicator.size(), rank);
    let what = || format!("rank {rank}: {case:?}: {}", prepared.describe());
    let kept = match case.kept {
        Kept::Nowhere => expected.kept.clone(),
        Kept::Own => read(&kept, bytes)?,
        Kept::Residual => read(&residual, bytes)?,
        Kept::Input => from_input()?,
    };
    assert!(kept == expected.kept, "{}: the kept rows", what());
    let seen = if case.in_place { from_input()? } else { read(&output, expected.output.len())? };
    assert!(seen == expected.output, "{}: the output", what());
    if let Scale::Groups(_) = case.norm.scale {
        let all = values(DataType::F32, &read(&scales, scale.len())?);
        for (number, expected) in expected.scales.iter().enumerate() {
            let (row, group) = (number / groups, number % groups);
            let place = if case.by_column { row + group * (rows + 1) } else { row * (groups + 1) + group };
            assert!(all[place].to_bits() == expected.to_bits(), "{}: scale {number}", what());
        }
    }
    Ok(())
}

/// Cases with a sum and norm in one kernel and in two.
fn cases(data_type: DataType) -> Vec<Case> {
    let row = if data_type == DataType::F32 { 96 } else { 160 };
    let plain = case(7, row, data_type);
    let fp8 = |format, scale, by_column| {
        let norm = Norm { format: Some(format), scale, ..plain.norm.clone() };
        Case { norm, by_column, kept: Kept::Own, ..plain.clone() }
    };
    let mut all = Vec::new();
    for algorithm in [Algorithm::Packets, Algorithm::TwoShotPackets, Algorithm::Push, Algorithm::Pull] {
        let location =
            if algorithm == Algorithm::Pull { LocationKind::Symmetric } else { LocationKind::Local };
        let forms = [
            plain.clone(),
            Case { has_residual: false, kept: Kept::Own, ..plain.clone() },
            Case { has_residual: false, kept: Kept::Nowhere, in_place: true, ..plain.clone() },
            Case { kept: Kept::Input, ..plain.clone() },
            Case { kept: Kept::Own, in_place: true, rows: 1, ..plain.clone() },
            // Longer than the packets of a channel, and of another length than them.
            Case { rows: 2, norm: Norm { row: 8 * 290, ..plain.norm.clone() }, ..plain.clone() },
            Case { rows: 0, ..plain.clone() },
            fp8(DataType::F8E4m3, Scale::By(1.0 / 128.0), false),
            fp8(DataType::F8E4m3Fnuz, Scale::Groups(32), false),
            fp8(DataType::F8E4m3, Scale::Groups(row), true),
            fp8(DataType::F8E4m3, Scale::Groups(8), true),
            Case { has_nan: true, ..fp8(DataType::F8E4m3, Scale::Groups(16), false) },
        ];
        all.extend(forms.map(|form| Case { algorithm: Some(algorithm), location, ..form }));
    }
    all.push(Case { algorithm: None, ..plain.clone() });
    all.push(Case { algorithm: None, rows: 900, ..plain });
    all
}

fn bits(ranks: u32, wave_width: u32, types: &[DataType]) {
    // Few blocks, so that each has several rows.
    let config = CclConfig { max_blocks: 2, staging_bytes: 16 << 10, ..CclConfig::default() };
    all_well(on_ranks(ranks, wave_width, &world_config(), &jit(), |world| {
        let stream = world.device().create_stream()?;
        let mut communicator = Communicator::new(world, world.group(), config.clone())?;
        for data_type in types {
            for case in cases(*data_type) {
                run(world, &mut communicator, &case, &stream)?;
            }
        }
        Ok(())
    }));
}

#[test]
fn norm_after_a_sum_has_the_bits_of_the_reference() {
    bits(3, 4, &[DataType::Bf16]);
}

#[test]
fn norm_after_a_sum_between_nodes_has_the_bits_of_the_reference() {
    for across in [Across::Direct, Across::Node] {
        let nodes = Some(Arc::from([0, 0, 1, 1]));
        let config =
            CclConfig { max_blocks: 2, staging_bytes: 64 << 10, across, nodes, ..CclConfig::default() };
        all_well(on_ranks(4, 4, &world_config(), &jit(), |world| {
            let stream = world.device().create_stream()?;
            let mut communicator = Communicator::new(world, world.group(), config.clone())?;
            let algorithm = None;
            let plain = Case { algorithm, ..case(9, 160, DataType::Bf16) };
            let alone = Case { has_residual: false, ..plain.clone() };
            for case in [
                plain,
                Case { kept: Kept::Input, ..alone.clone() },
                Case { kept: Kept::Nowhere, in_place: true, ..alone },
            ] {
                run(world, &mut communicator, &case, &stream)?;
            }
            Ok(())
        }));
    }
}

#[test]
#[ignore = "extended"]
fn norm_has_the_same_bits_for_all_types_groups_and_wave_widths() {
    for (ranks, wave_width) in [(1, 4), (2, 1), (2, 32), (4, 64), (9, 32)] {
        bits(ranks, wave_width, &[DataType::Bf16, DataType::F16, DataType::F32]);
    }
}

#[test]
fn short_messages_take_one_kernel_and_long_ones_two() {
    all_well(on_ranks(2, 32, &world_config(), &jit(), |world| {
        let communicator = Communicator::new(world, world.group(), CclConfig::default())?;
        let describe = |rows: u64| {
            let shape = anabranch_ccl::Shape {
                data_type: DataType::Bf16,
                op: Some(anabranch_ccl::ReduceOp::Sum),
                norm_row: Some(7168),
                ..anabranch_ccl::Shape::of_bytes(anabranch_ccl::Collective::AllReduce, 2, rows * 7168)
            };
            communicator.explain(&shape)
        };
        let (short, long) = (describe(8)?, describe(256)?);
        assert!(
            short.norms
                && short.algorithm == Algorithm::Packets
                && short.blocks == communicator.channels().min(8),
            "{short:?}"
        );
        assert!(!long.norms, "{long:?}");
        Ok(())
    }));
}

#[test]
fn wrong_arguments_of_a_norm_are_refused_with_words() {
    let config = CclConfig { check: Check::Fingerprint, ..CclConfig::default() };
    let results = on_ranks(2, 4, &world_config(), &jit(), |world| {
        let stream = world.device().create_stream()?;
        let mut communicator = Communicator::new(world, world.group(), config.clone())?;
        let memory = Arc::new(filled(world, &[0; 4096])?);
        // SAFETY: the memory outlives the calls.
        let at = |byte: u64, data_type, count| unsafe {
            Tensor::local(memory.address().offset(byte), data_type, count)
        };
        let bf16 = |byte, count| at(byte, DataType::Bf16, count);
        let good = RmsNorm {
            residual: Some(bf16(512, 64)),
            kept: Some(bf16(512, 64)),
            weight: bf16(1024, 16),
            epsilon: 1e-6,
            output: bf16(1536, 64),
            quantised: None,
        };
        let groups = |group, row_stride, group_stride, count| Quantised::Groups {
            group,
            scales: at(2048, DataType::F32, count),
            row_stride,
            group_stride,
        };
        let fp8 = RmsNorm { output: at(1536, DataType::F8E4m3, 64), ..good };
        let input = bf16(0, 64);
        for (norm, words) in [
            (
                RmsNorm { weight: bf16(1024, 12), ..good },
                "12 elements of bf16; allowed is a multiple of 16 bytes",
            ),
            (RmsNorm { weight: bf16(1024, 0), ..good }, "0 elements of bf16"),
            (RmsNorm { weight: bf16(1024, 24), ..good }, "a multiple of 24, the length of the weight"),
            (RmsNorm { weight: at(1024, DataType::F32, 16), ..good }, "the weight is f32; allowed is bf16"),
            (RmsNorm { epsilon: -1.0, ..good }, "epsilon is -1; allowed is a finite number"),
            (RmsNorm { epsilon: f32::NAN, ..good }, "epsilon is NaN"),
            (
                RmsNorm { residual: Some(bf16(512, 63)), ..good },
                "the residual has 63 elements; it must have 64",
            ),
            (RmsNorm { output: bf16(1536, 63), ..good }, "the output has 63 elements"),
            (RmsNorm { output: at(1536, DataType::F16, 64), ..good }, "the output is f16; allowed is bf16"),
            (RmsNorm { output: bf16(1544, 64), ..good }, "allowed is a multiple of 16 bytes"),
            (RmsNorm { output: bf16(16, 64), ..good }, "overlap"),
            (RmsNorm { output: bf16(512, 64), ..good }, "overlap"),
            (RmsNorm { kept: Some(input), output: input, ..good }, "overlap"),
            (RmsNorm { kept: Some(input), residual: Some(input), ..good }, "overlap"),
            (
                RmsNorm { quantised: Some(groups(16, 1, 1, 4)), ..good },
                "allowed is float8_e4m3fn, float8_e4m3fnuz",
            ),
            (fp8, "the output is float8_e4m3fn; allowed is bf16"),
            (RmsNorm { quantised: Some(groups(12, 1, 1, 4)), ..fp8 }, "a group is 12 elements"),
            (RmsNorm { quantised: Some(groups(8, 1, 1, 8)), ..fp8 }, "the strides of the scales"),
            (
                RmsNorm { quantised: Some(groups(8, 2, 1, 7)), ..fp8 },
                "more than 7, the place of the last scale",
            ),
            (
                RmsNorm { quantised: Some(Quantised::By(at(2048, DataType::F32, 2))), ..fp8 },
                "the scale has 2",
            ),
        ] {
            let error =
                communicator.prepare(&Call::AllReduceRmsNorm { input, norm }).unwrap_err().to_string();
            assert!(error.contains(words), "{words}: {error}");
        }
        let error = communicator
            .prepare(&Call::AllReduceRmsNorm { input: at(0, DataType::F64, 64), norm: good })
            .unwrap_err();
        assert!(error.to_string().contains("the input is f64; allowed is bf16"), "{error}");
        // The communicator stays usable, and the comparison of calls names the row.
        drop(communicator.run(&Call::AllReduceRmsNorm { input, norm: good }, &stream)?);
        world.synchronize(&stream)?;
        let mine = if world.rank().get() == 0 { 16 } else { 32 };
        let norm = RmsNorm { weight: bf16(1024, mine), ..good };
        let work = communicator.run(&Call::AllReduceRmsNorm { input, norm }, &stream)?;
        work.join(Duration::from_secs(20))
    });
    for error in results.iter().map(|result| failure(result.as_ref().unwrap_err())) {
        assert!(error.contains("the row of rms_norm (32 and 16)"), "{error}");
    }
}
