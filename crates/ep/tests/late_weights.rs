//! Weights that are sent after the dispatch.

use std::time::Duration;

use crate::common::{Case, Uploaded, all_well, judge_rows, oracle, world_config};
use anabranch_conformance::ep::oracle::FactorExperts;
use anabranch_conformance::ep::reference::ReferenceExpertMajor;
use anabranch_ep::{
    DeviceSlice, Error, ExpertMajor, ExpertMajorConfig, ExpertOutput, ExpertParallel, Mode, OnTimeout, Tokens,
};
use anabranch_hip::{DeviceBuffer, Stream};
use anabranch_hip_jit::ConstantsMode;
use anabranch_shmem::WorldConfig;

/// A dispatch without weights, and the weights after it.
struct Layer<'a> {
    ep: &'a ExpertParallel,
    layout: ExpertMajor,
    experts: ReferenceExpertMajor,
    made: DeviceBuffer,
}

impl Layer<'_> {
    fn run(
        &mut self,
        stream: &Stream,
        uploaded: &Uploaded,
        tokens: Tokens,
        is_late: bool,
    ) -> Result<(), Error> {
        let tokens = Tokens { weights: tokens.weights.filter(|_| !is_late), ..tokens };
        let mut dispatched = self.ep.dispatch(stream, &tokens)?;
        self.layout.expand(stream, &dispatched)?;
        // SAFETY: the buffers outlive the stream's work.
        let (weights, made) = unsafe { (DeviceSlice::of(&uploaded.weights), DeviceSlice::of(&self.made)) };
        // SAFETY: the experts were made for this layout.
        unsafe { self.experts.run(stream, &self.layout, made)? };
        assert!(dispatched.late_weights().is_null());
        if is_late {
            self.ep.send_weights(stream, &mut dispatched, weights)?;
            assert!(!dispatched.late_weights().is_null());
        }
        self.layout.contract(stream, &dispatched, made)?;
        self.ep.combine(stream, ExpertOutput::InWindow, dispatched, uploaded.output())
    }
}

#[test]
fn late_weights_give_the_bits_of_dispatched_weights() {
    let masks = OnTimeout::Mask { patience: Duration::from_secs(5) };
    for (wave, mode, on_timeout, is_counted) in [
        (1, Mode::Slotted, OnTimeout::Fault, false),
        (4, Mode::Compact, OnTimeout::Fault, true),
        (32, Mode::Slotted, masks, true),
    ] {
        let mut case = Case::new(3, wave);
        let config = case.config.mode(mode).late_weights(true).on_timeout(on_timeout);
        case.config = config.device_token_count(is_counted);
        if mode == Mode::Compact {
            // Some copies are dropped.
            case.config = case.config.max_recv(30);
            case.constants = ConstantsMode::Always;
        }
        all_well(case.on_ranks(&world_config(), |world| {
            let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
            let (device, me) = (world.device(), ep.rank());
            let stream = device.create_stream()?;
            let layout = ExpertMajor::new(&ep, ExpertMajorConfig::new())?;
            let experts = ReferenceExpertMajor::new(world, &layout)?;
            let made = device.allocate(layout.plan().output_bytes() as usize)?;
            let capacity = layout.plan().capacity() as usize;
            let mut layer = Layer { ep: &ep, layout, experts, made };
            let judge = |number: u64, uploaded: &Uploaded, case: &Case| {
                let inputs = case.inputs(number);
                let oracle = oracle(case, &inputs);
                let contracted = oracle.contracted(capacity, FactorExperts).unwrap();
                let output = uploaded.read_output(&case.config);
                let judged = oracle.combine(me).unwrap().compare_output(&output, &contracted);
                judged.unwrap_or_else(|mismatch| panic!("{me}, round {number}: {mismatch}"));
            };
            // Operations with and without late weights take turns.
            for number in 0..6 {
                let uploaded = Uploaded::new(device, &case.config, &case.input(me.get(), number));
                layer.run(&stream, &uploaded, uploaded.tokens(&case.config), number % 3 != 2)?;
                world.synchronize(&stream)?;
                judge(number, &uploaded, &case);
            }
            let mut uploaded = Uploaded::new(device, &case.config, &case.input(me.get(), 0));
            stream.begin_capture()?;
            layer.run(&stream, &uploaded, uploaded.tokens(&case.config), true)?;
            let graph = stream.end_capture()?.instantiate()?;
            for replay in 0..8 {
                let case = case.varied(replay);
                uploaded.refill(&case.input(me.get(), replay));
                // SAFETY: buffers, plan and world live until the stream was waited for.
                unsafe { graph.launch(&stream)? };
                world.synchronize(&stream)?;
                judge(replay, &uploaded, &case);
            }
            Ok::<_, Error>(())
        }));
    }
}

#[test]
fn late_weights_that_cannot_be_sent_are_refused() {
    let mut case = Case::new(2, 1);
    case.config = case.config.late_weights(true).slots(2);
    case.tokens = vec![40, 17];
    all_well(case.on_ranks(&world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let without = ExpertParallel::new(world, world.group(), case.config.clone().late_weights(false))?;
        let stream = world.device().create_stream()?;
        let input = case.input(ep.rank().get(), 0);
        let uploaded = Uploaded::new(world.device(), &case.config, &input);
        let tokens = uploaded.tokens(&case.config);
        let bytes = input.weights.len() * 4;
        // SAFETY: the buffer outlives the stream's work.
        let part = |skip: u64, less: usize| unsafe {
            DeviceSlice::from_raw(uploaded.weights.address().offset(skip), bytes - less)
        };
        let mut dispatched = ep.dispatch(&stream, &tokens)?;
        let mut other = without.dispatch(&stream, &tokens)?;
        let refused = |error: Result<(), Error>, words: &str| {
            let text = error.unwrap_err().to_string();
            assert!(text.contains(words), "{words:?} is not in: {text}");
        };
        refused(ep.send_weights(&stream, &mut other, part(0, 0)), "another plan");
        refused(without.send_weights(&stream, &mut other, part(0, 0)), "late_weights = false");
        refused(ep.send_weights(&stream, &mut dispatched, part(0, 4)), "tokens][3 top_k] f32 needs");
        refused(ep.send_weights(&stream, &mut dispatched, part(2, 0)), "multiple of 4");
        ep.send_weights(&stream, &mut dispatched, part(0, 0))?;
        refused(ep.send_weights(&stream, &mut dispatched, part(0, 0)), "sent already");
        world.synchronize(&stream)?;
        // The dispatched weights are still there.
        judge_rows(&oracle(&case, &case.inputs(0)), ep.rank(), world.device(), &ep, &dispatched);
        ep.release(&stream, dispatched)?;
        without.release(&stream, other)?;
        Ok::<_, Error>(world.synchronize(&stream)?)
    }));
}

#[test]
fn a_rank_that_sends_no_weights_is_named_by_the_others() {
    let mut case = Case::new(3, 4);
    case.config = case.config.late_weights(true);
    let config = WorldConfig { operation_deadline: Duration::from_secs(2), ..world_config() };
    let results = case.on_ranks(&config, |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let stream = world.device().create_stream()?;
        let me = ep.rank().get();
        let uploaded = Uploaded::new(world.device(), &case.config, &case.input(me, 0));
        let mut dispatched = ep.dispatch(&stream, &uploaded.tokens(&case.config))?;
        world.synchronize(&stream)?;
        if me == 1 {
            world.barrier(world.group(), "a rank that sends no weights")?;
            drop(dispatched);
            return Ok::<_, Error>(());
        }
        // SAFETY: the buffer outlives the stream's work.
        ep.send_weights(&stream, &mut dispatched, unsafe { DeviceSlice::of(&uploaded.weights) })?;
        Ok(world.synchronize(&stream)?)
    });
    for (rank, result) in results.into_iter().enumerate() {
        let text = result.unwrap_err().to_string();
        let words = ["rank 1", "late weights of a peer"];
        assert!(rank == 1 || words.iter().all(|word| text.contains(word)), "rank {rank}: {text}");
    }
}
