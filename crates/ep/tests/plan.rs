//! Laws of the plan: parts of a slot never overlap, every byte of every row is copied once, grids stay resident.

use anabranch_ep::plan::{DeviceLimits, FLAG_STRIDE, Geometry, Plan};
use anabranch_ep::{DataType, EpConfig, EpShape, Error, Mode};
use proptest::prelude::*;

fn limits() -> impl Strategy<Value = DeviceLimits> {
    (prop_oneof![Just(1u32), Just(4), Just(32), Just(64)], 1u32..300, 1u32..=8, 1u32..=160).prop_map(
        |(wave_size, resident_blocks, preferred_waves, multiprocessors)| DeviceLimits {
            wave_size,
            resident_blocks,
            multiprocessors,
            preferred_waves,
            local_bytes: 65_536 - 64,
        },
    )
}

fn config() -> impl Strategy<Value = (EpConfig, u32)> {
    (1u32..1000, 1u32..400, 1u32..=32, 1u32..5000, 1u32..80, 0u32..64, prop::bool::ANY, prop::bool::ANY)
        .prop_map(|(units, experts, top_k, max_tokens, ranks, scale_words, wide, weights)| {
            let dispatch = if wide { DataType::F32 } else { DataType::Bf16 };
            let config = EpConfig::new(EpShape { hidden: units * 8, experts, top_k, max_tokens })
                .dispatch_type(dispatch)
                .scale_bytes(scale_words * 4)
                .combine_weights(weights)
                .late_weights(weights);
            (config, ranks)
        })
}

/// How often the blocks of a run copy each unit of a row, as the kernel cuts it.
fn covered(units: u32, geometry: &Geometry) -> Vec<u32> {
    let segments = geometry.parts * geometry.segments;
    let mut times = vec![0; units as usize];
    for segment in 0..segments {
        let from = (u64::from(units) * u64::from(segment) / u64::from(segments)) as usize;
        let to = (u64::from(units) * u64::from(segment + 1) / u64::from(segments)) as usize;
        times[from..to].iter_mut().for_each(|count| *count += 1);
    }
    times
}

proptest! {
    #[test]
    fn parts_of_a_slot_are_apart_and_aligned((config, ranks) in config()) {
        let plan = Plan::new(config, ranks).unwrap();
        let layout = plan.layout();
        let rows = plan.rows();
        let matrix = if plan.mode() == Mode::Compact { u64::from(ranks) * layout.count_stride } else { 0 };
        prop_assert!(layout.count_stride.is_multiple_of(128) && layout.count_stride >= u64::from(ranks) * 8);
        let flags = u64::from(ranks) * u64::from(FLAG_STRIDE);
        let weight_bytes = if plan.config().combine_weights { 4 * u64::from(plan.config().top_k) } else { 0 };
        let mut parts = [
            (layout.dispatch_flags, flags),
            (layout.combine_flags, flags),
            (layout.count_matrix, matrix),
            (layout.rows, rows * u64::from(plan.row_bytes())),
            (layout.meta, rows * u64::from(plan.meta_bytes())),
            (layout.combine_rows, rows * u64::from(plan.combine_row_bytes())),
            (layout.combine_weights, rows * weight_bytes),
            (layout.late_weights, rows * weight_bytes),
            (layout.late_flags, if weight_bytes > 0 { flags } else { 0 }),
            (layout.pushed_weights, u64::from(plan.fan_out()) * u64::from(plan.config().max_tokens) * weight_bytes),
        ];
        parts.sort_unstable();
        for pair in parts.windows(2) {
            prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
        }
        let (start, bytes) = parts[parts.len() - 1];
        prop_assert!(start + bytes <= layout.bytes);
        prop_assert!(parts.iter().all(|(start, _)| start.is_multiple_of(256)));
        prop_assert!(plan.meta_bytes() >= 8 + 8 * plan.config().top_k + plan.config().scale_bytes);
        prop_assert_eq!(plan.meta_bytes() % 16, 0);
    }

    #[test]
    fn a_dispatch_covers_every_token_and_unit_once(
        (config, ranks) in config(), limits in limits(), share in 0.0f64..=1.0,
    ) {
        let plan = Plan::new(config, ranks).unwrap();
        let tokens = (f64::from(plan.config().max_tokens) * share) as u32;
        let geometry = plan.dispatch_geometry(tokens, &limits).unwrap();
        prop_assert!(geometry.blocks >= 1 && geometry.blocks <= limits.resident_blocks);
        prop_assert_eq!(geometry.blocks % geometry.parts, 0, "runs are whole");
        prop_assert!(geometry.block_threads.is_multiple_of(limits.wave_size) && geometry.block_threads <= 1024);
        let runs = geometry.blocks / geometry.parts;
        let mut next = 0;
        for run in 0..runs {
            let first = (u64::from(tokens) * u64::from(run) / u64::from(runs)) as u32;
            let end = (u64::from(tokens) * u64::from(run + 1) / u64::from(runs)) as u32;
            prop_assert_eq!(first, next);
            next = end;
        }
        prop_assert_eq!(next, tokens);
        prop_assert!(covered(plan.row_bytes() / 16, &geometry).iter().all(|times| *times == 1));
    }

    #[test]
    fn a_combine_covers_every_unit_once(
        (config, ranks) in config(), limits in limits(), share in 0.0f64..=1.0,
    ) {
        let plan = Plan::new(config, ranks).unwrap();
        let tokens = (f64::from(plan.config().max_tokens) * share) as u32;
        let geometry = plan.combine_geometry(tokens, &limits);
        prop_assert!(geometry.blocks >= 1 && geometry.blocks <= limits.resident_blocks);
        prop_assert!(covered(plan.combine_row_bytes() / 16, &geometry).iter().all(|times| *times == 1));
    }
}

#[test]
fn wrong_configurations_name_the_field() {
    let base = || EpConfig::new(EpShape { hidden: 256, experts: 64, top_k: 8, max_tokens: 128 });
    let cases: Vec<(EpConfig, &str)> = vec![
        (EpConfig::new(EpShape { hidden: 0, experts: 64, top_k: 8, max_tokens: 128 }), "hidden"),
        (EpConfig::new(EpShape { hidden: 12, experts: 64, top_k: 8, max_tokens: 128 }), "hidden"),
        (EpConfig::new(EpShape { hidden: 256, experts: 0, top_k: 8, max_tokens: 128 }), "experts"),
        (EpConfig::new(EpShape { hidden: 256, experts: 64, top_k: 0, max_tokens: 128 }), "top_k"),
        (EpConfig::new(EpShape { hidden: 256, experts: 64, top_k: 33, max_tokens: 128 }), "top_k"),
        (EpConfig::new(EpShape { hidden: 256, experts: 64, top_k: 8, max_tokens: 0 }), "max_tokens"),
        (EpConfig::new(EpShape { hidden: 256, experts: 64, top_k: 8, max_tokens: 1 << 27 }), "max_tokens"),
        (base().scale_bytes(6), "scale_bytes"),
        (base().slots(0), "slots"),
        (base().launch(0, 17), "waves_per_block"),
    ];
    for (config, expected) in cases {
        match Plan::new(config, 4) {
            Err(Error::Config { field, .. }) => assert_eq!(field, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
    for (config, text) in [
        (
            base().dispatch_type(DataType::F64),
            "dispatch_type is f64; allowed are bf16, f16, f32, float8_e4m3fn, float8_e4m3fnuz, fp4",
        ),
        (base().combine_type(DataType::F8E4m3), "combine_type is float8_e4m3fn; allowed are bf16, f16, f32"),
    ] {
        assert_eq!(Plan::new(config, 4).map(drop).unwrap_err().to_string(), text);
    }
}

#[test]
fn a_group_too_large_for_local_memory_is_refused_with_the_numbers() {
    let plan = Plan::new(EpConfig::new(EpShape { hidden: 256, experts: 64, top_k: 8, max_tokens: 16 }), 6000)
        .unwrap();
    let limits = DeviceLimits {
        wave_size: 32,
        resident_blocks: 64,
        multiprocessors: 64,
        preferred_waves: 16,
        local_bytes: 48 * 1024,
    };
    let error = plan.dispatch_geometry(16, &limits).unwrap_err().to_string();
    assert!(error.contains("ranks is 6000") && error.contains("49152"), "{error}");
}
