//! The order and the rounding of combine's sums, with expert rows that cancel.

use crate::common::{Case, Routing, Uploaded, all_well, on_ranks, oracle, window_bytes, world_config};
use anabranch_conformance::ep::oracle::{GivenRows, Shape};
use anabranch_ep::{COMBINED_TYPES, DataType, Error, ExpertOutput, ExpertParallel};

/// What rank `destination` answers in this column of any row: sums that depend on their order or on roundings between.
fn answer(element: DataType, destination: u32, column: usize) -> f32 {
    // 256 + 1 is 257, which bf16 does not have; 2^25 + 1 is what f32 does not have.
    let large = match (element, column % 2) {
        (DataType::Bf16, 0) => 256.0,
        // Nor f16 2049, and no more than 65504.
        (DataType::F16, _) => 2048.0,
        _ => 33_554_432.0,
    };
    let patterns = [[large, 1.0, -large, 1.0], [1.0, large, 1.0, -large], [large, -large, 1.0, 1.0]];
    patterns[column / 2 % 3][destination as usize % 4]
}

fn table(case: &Case, destination: u32, bytes: usize) -> Vec<u8> {
    let element = case.config.combine_type;
    let hidden = case.config.hidden as usize;
    let columns = bytes / element.bytes_of(1) as usize;
    (0..columns)
        .flat_map(|index| {
            let value = answer(element, destination, index % hidden);
            match element {
                DataType::Bf16 => half::bf16::from_f32(value).to_bits().to_le_bytes().to_vec(),
                DataType::F16 => half::f16::from_f32(value).to_bits().to_le_bytes().to_vec(),
                _ => value.to_le_bytes().to_vec(),
            }
        })
        .collect()
}

/// Sums of four rows in another order, or rounded at every step, to check that the columns detect it.
fn wrong_sums(element: DataType, column: usize) -> [f32; 2] {
    let rounded = |value: f32| match element {
        DataType::Bf16 => half::bf16::from_f32(value).to_f32(),
        DataType::F16 => half::f16::from_f32(value).to_f32(),
        _ => value,
    };
    let downwards = (0..4).rev().fold(0.0, |sum, rank| sum + answer(element, rank, column));
    let stepwise = (0..4).fold(0.0, |sum, rank| rounded(sum + answer(element, rank, column)));
    [rounded(downwards), stepwise]
}

fn right_sum(element: DataType, column: usize) -> f32 {
    (0..4).fold(0.0, |sum, rank| sum + answer(element, rank, column))
}

#[test]
fn the_columns_detect_wrong_orders_and_roundings() {
    for (element, wrong) in [(DataType::Bf16, 0), (DataType::Bf16, 1), (DataType::F16, 1), (DataType::F32, 0)]
    {
        let detected = (0..12).any(|column| {
            wrong_sums(element, column)[wrong].to_bits() != right_sum(element, column).to_bits()
        });
        assert!(detected, "{element} {wrong}");
    }
}

fn rows_that_cancel(widths: &[(u32, bool)]) {
    for element in COMBINED_TYPES {
        for &(wave, staged) in widths {
            let mut case = Case::new(4, wave);
            case.config = case.config.combine_type(element);
            case.config.top_k = 8;
            case.routing = Routing::Random;
            case.staged = staged;
            all_well(on_ranks(case.ranks, wave, &world_config(), |world| cancel(world, &case)));
        }
    }
}

#[test]
fn rows_that_cancel_are_summed_in_rank_order_and_rounded_once() {
    rows_that_cancel(&[(4, true)]);
}

#[test]
#[ignore = "extended"]
fn rows_that_cancel_are_summed_in_rank_order_at_other_wave_widths() {
    rows_that_cancel(&[(1, false), (32, false)]);
}

fn cancel(world: &anabranch_shmem::World, case: &Case) -> Result<(), Error> {
    let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
    let stream = world.device().create_stream()?;
    let inputs = case.inputs(1);
    let me = ep.rank();
    let uploaded = Uploaded::new(world.device(), &case.config, &inputs[me.index()]);
    let dispatched = ep.dispatch(&stream, &uploaded.tokens(&case.config))?;
    world.synchronize(&stream)?;
    let tables: Vec<_> = (0..case.ranks).map(|rank| table(case, rank, window_bytes(&ep))).collect();
    let mut staging = world.device().allocate(window_bytes(&ep))?;
    let experts = if case.staged {
        staging.copy_from_host(0, &tables[me.index()])?;
        // SAFETY: the buffer lives until the stream was waited for.
        ExpertOutput::Staged(unsafe { anabranch_ep::DeviceSlice::of(&staging) })
    } else {
        // SAFETY: the window has these bytes, and no other work writes it before the combine.
        unsafe { world.device().write_memory(dispatched.combine_rows(), &tables[me.index()])? };
        ExpertOutput::InWindow
    };
    ep.combine(&stream, experts, dispatched, uploaded.output())?;
    world.synchronize(&stream)?;
    let rows: Vec<_> = tables.iter().map(Vec::as_slice).collect();
    let given = GivenRows::new(&Shape::new(&case.config, case.ranks), &rows).unwrap();
    let oracle = oracle(case, &inputs);
    let combination = oracle.combine(me).unwrap();
    if case.tokens_of(me.get()) > 8 {
        assert!(
            (0..uploaded.count).any(|token| combination.copies(token).count() == 4),
            "no token goes to all"
        );
    }
    combination.compare_output(&uploaded.read_output(&case.config), &given).unwrap();
    Ok(())
}
