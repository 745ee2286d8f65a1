//! Everything that a plan may be, drawn at random: both layouts, both modes, whole and in halves, pulled and pushed through codecs,
//! judged bit by bit, with canaries around every buffer of the caller.

use crate::expert_major_common;

use std::collections::BTreeSet;

use crate::common::{
    Case, Input, Routing, all_well, bytes_of, judge_dropped, judge_output, judge_rows, oracle, world_config,
};
use crate::expert_major_common::{Bench, Guarded, write};
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::plan::MAX_TOP_K;
use anabranch_ep::{
    COMBINED_TYPES, CombineCodec, CombineSource, DataType, EpConfig, EpShape, Error, ExpertMajorConfig,
    ExpertOutput, ExpertParallel, Mode, Plan, ROW_TYPES, Tokens,
};
use anabranch_hip::{Device, Stream};
use anabranch_shmem::World;
use proptest::prelude::*;

/// A world, its plan, and how its operations go.
#[derive(Clone, Debug)]
struct Drawn {
    case: Case,
    halves: bool,
    /// Expert-major.
    layout: Option<ExpertMajorConfig>,
}

/// Wave width, types and codec.
type Kinds = (u32, DataType, DataType, CombineCodec);

/// Those of the default test, for which few kernels are compiled.
fn few_kinds() -> impl Strategy<Value = Kinds> {
    let all = [(DataType::Bf16, DataType::Bf16, "none"), (DataType::F8E4m3, DataType::F32, "fp8_block")];
    prop::sample::select(all.to_vec())
        .prop_map(|(dispatch, combine, codec)| (4, dispatch, combine, codec.parse().unwrap()))
}

/// All. Widths other than 4 have few types and codecs.
fn kinds() -> impl Strategy<Value = Kinds> {
    let all = (
        prop::sample::select(ROW_TYPES.to_vec()),
        prop::sample::select(COMBINED_TYPES.to_vec()),
        prop::sample::select(CombineCodec::ALL.to_vec()),
    );
    let few = (
        prop::sample::select(vec![1u32, 32, 64]),
        prop::sample::select(vec![DataType::Bf16, DataType::F8E4m3]),
        prop::sample::select(vec!["none", "fp8_block", "fp4_block"]),
    );
    prop_oneof![
        all.prop_map(|(dispatch, combine, codec)| (4, dispatch, combine, codec)),
        few.prop_map(|(wave, dispatch, codec)| (wave, dispatch, DataType::Bf16, codec.parse().unwrap())),
    ]
}

prop_compose! {
    fn drawn(kinds: BoxedStrategy<Kinds>)(
        (wave, dispatch, combine, codec) in kinds,
        ranks in 1u32..=9,
        top_k in prop_oneof![1u32..=8, 9u32..=MAX_TOP_K],
        experts in prop_oneof![1u32..40, 40u32..400],
        (max_tokens, tokens) in (1u32..=24).prop_flat_map(|most| {
            (Just(most), prop::collection::vec(0..=most, 1..=9))
        }),
        units in 1u32..=9,
        source in prop::sample::select(vec![CombineSource::Window, CombineSource::Buffer, CombineSource::Any]),
        (staged, halves, compact, major) in any::<(bool, bool, bool, bool)>(),
        routing in prop::sample::select(vec![Routing::Random, Routing::Hot, Routing::Nowhere, Routing::Invalid]),
        cap in prop_oneof![Just(None), (0.0f64..=1.0).prop_map(Some), Just(Some(0.0))],
        (scale_words, slots, blocks, waves) in (0u32..4, 1u32..3, 0u32..9, 0u32..4),
        (capacity, power) in (prop_oneof![Just(0.0), 0.0f64..=1.0], 0u32..=5),
    ) -> Drawn {
        // A codec is for rows that are pushed from a buffer, and for whole blocks.
        let codec = if source == CombineSource::Buffer { codec } else { CombineCodec::None };
        // Whole rows of both types: often an odd number of 16 bytes.
        let unit = dispatch.per_unit().max(combine.per_unit()).max(codec.block_elements());
        let hidden = if unit > 32 { unit * (1 + units % 3) } else { unit * units };
        let worst = ranks * max_tokens;
        let max_recv = cap.map_or(0, |share| ranks + (f64::from(worst - ranks) * share) as u32);
        let mut case = Case::new(ranks, wave);
        case.config = EpConfig::new(EpShape { hidden, experts, top_k, max_tokens })
            .dispatch_type(dispatch)
            .combine_type(combine)
            .combine_source(source)
            .combine_codec(codec)
            .mode(if compact { Mode::Compact } else { Mode::Slotted })
            .max_recv(max_recv)
            .scale_bytes(scale_words * 4)
            .slots(slots)
            .launch(blocks, waves);
        (case.routing, case.tokens) = (routing, tokens);
        case.staged = source.pushes() && (staged || !source.pulls());
        let alignment = 1 << power;
        let pairs = Plan::new(case.config.clone(), ranks).unwrap().rows() as u32 * top_k;
        let tiles = (f64::from(pairs.div_ceil(alignment)) * capacity) as u32;
        let layout = ExpertMajorConfig::new().capacity(tiles * alignment).alignment(alignment);
        Drawn { case, halves, layout: major.then_some(layout) }
    }
}

/// No row could stand for another: whose it is shows in its data.
fn assert_all_rows_differ(case: &Case, inputs: &[Input]) {
    let row = case.config.dispatch_type.bytes_of(case.config.hidden.into()) as usize;
    let rows: Vec<&[u8]> = inputs.iter().flat_map(|input| input.tokens.chunks_exact(row)).collect();
    assert_eq!(rows.iter().collect::<BTreeSet<_>>().len(), rows.len());
}

/// One rank's tensors between canaries.
struct Tensors {
    rows: Guarded,
    ids: Guarded,
    weights: Guarded,
    scales: Guarded,
    output: Guarded,
    /// The experts' output, where it is pushed.
    staging: Guarded,
}

impl Tensors {
    fn new(device: &Device, ep: &ExpertParallel, input: &Input) -> Self {
        let given = |bytes: &[u8]| {
            let guarded = Guarded::new(device, bytes.len());
            write(device, guarded.slice().address(), bytes);
            guarded
        };
        let plan = ep.plan();
        let count = input.ids.len() / plan.config().top_k as usize;
        Self {
            rows: given(&input.tokens),
            ids: given(bytes_of(&input.ids)),
            weights: given(bytes_of(&input.weights)),
            scales: given(&input.scales),
            output: Guarded::new(device, count * plan.combine_row_bytes() as usize),
            staging: Guarded::new(device, plan.rows() as usize * plan.combine_row_bytes() as usize),
        }
    }

    fn tokens(&self, config: &EpConfig, count: usize) -> Tokens {
        Tokens {
            count,
            data_type: config.dispatch_type,
            rows: self.rows.slice(),
            ids: self.ids.slice(),
            weights: Some(self.weights.slice()),
            scales: (config.scale_bytes > 0).then(|| self.scales.slice()),
            device_count: None,
        }
    }

    /// What was given is as it was, and nothing was written around it or the rest.
    fn judge(&self, input: &Input) {
        assert_eq!(self.rows.read(), input.tokens);
        assert_eq!(self.ids.read(), bytes_of(&input.ids));
        assert_eq!(self.weights.read(), bytes_of(&input.weights));
        assert_eq!(self.scales.read(), input.scales);
        self.staging.read();
    }
}

/// Dispatch, experts and combine of token-major rows on one rank.
fn token_major(
    world: &World,
    (ep, expert): (&ExpertParallel, &ReferenceExpert),
    stream: &Stream,
    drawn: &Drawn,
    number: u64,
) -> Result<(), Error> {
    let Drawn { case, halves, .. } = drawn;
    let (me, device) = (ep.rank(), world.device());
    let inputs = case.inputs(number);
    assert_all_rows_differ(case, &inputs);
    let (oracle, input) = (oracle(case, &inputs), &inputs[me.index()]);
    let tensors = Tensors::new(device, ep, input);
    let tokens = tensors.tokens(&case.config, case.tokens_of(me.get()) as usize);
    let dispatched = if *halves {
        let sent = ep.dispatch_send(stream, &tokens)?;
        ep.dispatch_recv(stream, sent)?
    } else {
        ep.dispatch(stream, &tokens)?
    };
    world.synchronize(stream)?;
    judge_rows(&oracle, me, device, ep, &dispatched);
    judge_dropped(&oracle, device, ep, stream, &dispatched)?;
    let (experts, target) = if case.staged {
        (ExpertOutput::Staged(tensors.staging.slice()), tensors.staging.slice().address())
    } else {
        (ExpertOutput::InWindow, dispatched.combine_rows())
    };
    // SAFETY: both have the window's shape, and live until the stream was waited for.
    unsafe { expert.run(stream, &dispatched, target)? };
    if *halves {
        let sent = ep.combine_send(stream, experts, dispatched)?;
        ep.combine_recv(stream, sent, tensors.output.slice())?;
    } else {
        ep.combine(stream, experts, dispatched, tensors.output.slice())?;
    }
    world.synchronize(stream)?;
    judge_output(&oracle, me, &tensors.output.read());
    tensors.judge(input);
    Ok(())
}

fn run(drawn: &Drawn) {
    let case = &drawn.case;
    all_well(case.on_ranks(&world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let stream = world.device().create_stream()?;
        if let Some(layout) = drawn.layout {
            let bench = Bench::new(world, &ep, layout)?;
            let mut bench = if case.staged { bench.pushing(world.device()) } else { bench };
            return (0..2).try_for_each(|number| {
                expert_major_common::round(&ep, &mut bench, &stream, world, case, number).map(drop)
            });
        }
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
        (0..2).try_for_each(|number| token_major(world, (&ep, &expert), &stream, drawn, number))
    }));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plans_of_few_types_match_the_oracle(drawn in drawn(few_kinds().boxed())) {
        run(&drawn);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "extended"]
    fn every_plan_matches_the_oracle(drawn in drawn(kinds().boxed())) {
        run(&drawn);
    }
}

proptest! {
    /// A cap leaves each rank a row at least, and no more than all rows together.
    #[test]
    fn every_cap_is_a_plan_or_an_error(
        ranks in 1u32..=9, max_tokens in 1u32..100, max_recv in 1u32..1200, compact in any::<bool>(),
    ) {
        let mode = if compact { Mode::Compact } else { Mode::Slotted };
        let plan = Plan::new(EpConfig::new(EpShape { hidden: 64, experts: 8, top_k: 2, max_tokens }).max_recv(max_recv).mode(mode), ranks);
        let worst = ranks * max_tokens;
        match plan {
            Err(error) => {
                prop_assert!(max_recv < ranks, "{error}");
                let refused = matches!(&error, Error::Config { field: "max_recv", given, .. } if *given == max_recv.to_string());
                prop_assert!(refused, "{error}");
            }
            Ok(plan) => {
                prop_assert!(max_recv >= ranks);
                prop_assert_eq!(plan.is_max_recv_clamped(), max_recv > worst);
                let most = worst.min(max_recv);
                let rows = if compact { most } else { most.div_ceil(ranks) * ranks };
                prop_assert_eq!(plan.rows(), u64::from(rows));
            }
        }
    }
}
