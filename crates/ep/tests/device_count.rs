//! The number of tokens as a device value: eager, in halves, and in graphs whose replays have another number each, judged bit by bit.

use crate::common;

use crate::common::{
    Case, Input, Numbers, Uploaded, all_well, bytes_of, judge_dropped, judge_output, judge_rows,
    judge_weights, oracle, run_expert, upload, window_bytes, world_config,
};
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{
    DataType, DeviceSlice, DispatchCast, Error, ExpertOutput, ExpertParallel, Fp8Format, Mode, Tokens,
};
use anabranch_hip::{DeviceBuffer, GraphExec, Stream};
use anabranch_shmem::World;

/// What the output holds before a combine.
const FILL: u8 = 0xee;

/// Every rank has buffers for 40 tokens.
fn case(ranks: u32, wave: u32, mode: Mode) -> Case {
    let mut case = Case::new(ranks, wave);
    case.config = case.config.mode(mode).device_token_count(true);
    case.tokens = vec![40];
    case
}

/// The number that a rank's word has in a round; now and then more than there are tokens.
fn number_of(rank: u32, round: u64) -> u32 {
    let mut numbers = Numbers(round * 131 + u64::from(rank) * 17 + 3);
    match numbers.below(8) {
        0 => 0,
        1 => 40,
        2 => 41 + numbers.below(1 << 30),
        _ => numbers.below(41),
    }
}

/// The first tokens of an input.
fn first(input: &Input, case: &Case, tokens: u32) -> Input {
    let (tokens, config) = (tokens.min(40) as usize, &case.config);
    let part = |bytes: &[u8], width: usize| bytes[..tokens * width].to_vec();
    let top_k = config.top_k as usize;
    Input {
        tokens: part(&input.tokens, config.token_type().bytes_of(config.hidden.into()) as usize),
        ids: input.ids[..tokens * top_k].to_vec(),
        weights: input.weights[..tokens * top_k].to_vec(),
        scales: part(&input.scales, config.scale_bytes as usize),
    }
}

/// What the ranks really dispatch in a round.
fn dispatched_inputs(case: &Case, round: u64) -> Vec<Input> {
    let inputs = case.inputs(round);
    let counted =
        inputs.iter().enumerate().map(|(rank, input)| first(input, case, number_of(rank as u32, round)));
    case.sent(&counted.collect::<Vec<_>>())
}

/// One rank's tensors, and the word.
struct Given {
    uploaded: Uploaded,
    word: DeviceBuffer,
}

impl Given {
    fn new(stream: &Stream, case: &Case, rank: u32, round: u64) -> Self {
        let device = stream.device();
        let uploaded = Uploaded::new(device, &case.config, &case.input(rank, round));
        Self { uploaded, word: upload(device, &number_of(rank, round).to_ne_bytes()) }
    }

    fn tokens(&self, case: &Case) -> Tokens {
        // SAFETY: the buffer outlives the stream's work.
        let word = unsafe { DeviceSlice::of(&self.word) };
        Tokens { device_count: Some(word), ..self.uploaded.tokens(&case.config) }
    }

    fn set(&mut self, number: u32) {
        self.word.copy_from_host(0, bytes_of(&[number])).unwrap();
    }

    /// The combined weights of the tokens that there were, and nothing after them. The stream was waited for.
    fn judge_weights(&self, ep: &ExpertParallel, case: &Case, round: u64) {
        let inputs = dispatched_inputs(case, round);
        let weights = self.uploaded.read_weights(&case.config);
        let there = number_of(ep.rank().get(), round).min(40) as usize * case.config.top_k as usize;
        judge_weights(&oracle(case, &inputs), ep.rank(), &weights[..there]);
        let fill = f32::from_ne_bytes([FILL; 4]).to_bits();
        assert!(weights[there..].iter().all(|weight| weight.to_bits() == fill), "{}", ep.rank());
    }

    /// The output of the tokens that there were, and nothing after them. The stream was waited for.
    fn judge(&self, ep: &ExpertParallel, case: &Case, round: u64) {
        let inputs = dispatched_inputs(case, round);
        let output = self.uploaded.read_output(&case.config);
        let row = case.config.combine_type.bytes_of(case.config.hidden.into()) as usize;
        let there = number_of(ep.rank().get(), round).min(40) as usize * row;
        judge_output(&oracle(case, &inputs), ep.rank(), &output[..there]);
        let after = output[there..].iter().position(|byte| *byte != FILL);
        assert_eq!(after, None, "{}: written after {there} bytes", ep.rank());
    }
}

/// What every test begins with.
fn on_plans(
    case: &Case,
    test: impl Fn(&World, &ExpertParallel, &ReferenceExpert, &Stream) -> Result<(), Error> + Sync,
) {
    all_well(case.on_ranks(&world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
        let stream = world.device().create_stream()?;
        test(world, &ep, &expert, &stream)?;
        world.synchronize(&stream).map_err(Error::from)
    }));
}

/// What `check_ids` must say of a round.
fn judge_excess(ep: &ExpertParallel, stream: &Stream, round: u64) {
    let number = number_of(ep.rank().get(), round);
    match ep.check_ids(stream) {
        Ok(()) => assert!(number <= 40, "{number} was not reported"),
        Err(Error::ExcessTokens { rank, count: 1, given, allowed: 40 }) => {
            assert_eq!((rank, given), (ep.rank(), number));
        }
        other => panic!("{other:?}"),
    }
    ep.check_ids(stream).unwrap();
}

fn number_in_the_word(plans: &[(u32, Mode, u32)]) {
    for &(wave, mode, cap) in plans {
        for staged in [false, true] {
            let mut case = case(3, wave, mode);
            case.config = case.config.max_recv(cap).scale_bytes(8).combine_weights(true);
            case.staged = staged;
            on_plans(&case, |world, ep, expert, stream| {
                let staging = world.device().allocate(window_bytes(ep))?;
                for round in 0..10 {
                    let mut given = Given::new(stream, &case, ep.rank().get(), round);
                    let dispatched = ep.dispatch(stream, &given.tokens(&case))?;
                    assert_eq!(dispatched.tokens(), 40);
                    world.synchronize(stream)?;
                    // What combine sums is what was dispatched.
                    given.set(7 + round as u32 * 3);
                    let inputs = dispatched_inputs(&case, round);
                    let oracle = oracle(&case, &inputs);
                    judge_rows(&oracle, ep.rank(), world.device(), ep, &dispatched);
                    judge_dropped(&oracle, world.device(), ep, stream, &dispatched)?;
                    let mut kept = [0; 4];
                    // SAFETY: the word belongs to the slot that the handle holds.
                    unsafe { world.device().read_memory(dispatched.token_count(), &mut kept)? };
                    assert_eq!(u32::from_ne_bytes(kept), number_of(ep.rank().get(), round).min(40));
                    let experts = run_expert(expert, stream, &dispatched, &case, &staging)?;
                    ep.combine(stream, experts, dispatched, given.uploaded.combine_output(&case.config))?;
                    world.synchronize(stream)?;
                    given.judge(ep, &case, round);
                    given.judge_weights(ep, &case, round);
                    judge_excess(ep, stream, round);
                }
                Ok(())
            });
        }
    }
}

#[test]
fn the_word_says_how_many_tokens_there_are() {
    number_in_the_word(&[(4, Mode::Compact, 30)]);
}

#[test]
#[ignore = "extended"]
fn the_word_says_how_many_tokens_there_are_at_every_wave_width() {
    number_in_the_word(&[(1, Mode::Slotted, 0), (32, Mode::Slotted, 30), (64, Mode::Compact, 0)]);
}

#[test]
fn in_halves_and_with_a_cast() {
    for mode in [Mode::Slotted, Mode::Compact] {
        for staged in [false, true] {
            let mut case = case(3, 4, mode);
            case.staged = staged;
            let config = case.config.dispatch_type(DataType::F8E4m3);
            case.config = config.dispatch_cast(DispatchCast::Fp8Block(Fp8Format::E4m3fn));
            on_plans(&case, |world, ep, expert, stream| {
                let staging = world.device().allocate(window_bytes(ep))?;
                for round in 0..8 {
                    let given = Given::new(stream, &case, ep.rank().get(), round);
                    let sent = ep.dispatch_send(stream, &given.tokens(&case))?;
                    let dispatched = ep.dispatch_recv(stream, sent)?;
                    let experts = run_expert(expert, stream, &dispatched, &case, &staging)?;
                    let combining = ep.combine_send(stream, experts, dispatched)?;
                    ep.combine_recv(stream, combining, given.uploaded.output())?;
                    world.synchronize(stream)?;
                    given.judge(ep, &case, round);
                    judge_excess(ep, stream, round);
                }
                Ok(())
            });
        }
    }
}

/// One operation and what it works on, captured.
struct Captured {
    given: Given,
    graph: GraphExec,
    #[expect(dead_code, reason = "held, for the graph's kernels")]
    staging: DeviceBuffer,
}

impl Captured {
    fn new(
        ep: &ExpertParallel,
        expert: &ReferenceExpert,
        stream: &Stream,
        case: &Case,
    ) -> Result<Self, Error> {
        let given = Given::new(stream, case, ep.rank().get(), 0);
        let staging = stream.device().allocate(window_bytes(ep))?;
        stream.begin_capture()?;
        let dispatched = ep.dispatch(stream, &given.tokens(case))?;
        let experts = run_expert(expert, stream, &dispatched, case, &staging)?;
        ep.combine(stream, experts, dispatched, given.uploaded.output())?;
        Ok(Self { given, graph: stream.end_capture()?.instantiate()?, staging })
    }
}

/// Every number from 0 to more than there are tokens comes up, on every rank another.
fn replay(mut case: Case, staged: bool, cap: u32, replays: u64) {
    case.config = case.config.max_recv(cap);
    case.staged = staged;
    on_plans(&case, |world, ep, expert, stream| {
        let me = ep.rank().get();
        let mut captured = Captured::new(ep, expert, stream, &case)?;
        for round in 0..replays {
            let varied = case.varied(round);
            captured.given.uploaded.refill(&varied.input(me, round));
            captured.given.uploaded.output.fill(FILL)?;
            captured.given.set(number_of(me, round));
            // SAFETY: buffers, plan and world live until the stream was waited for.
            unsafe { captured.graph.launch(stream)? };
            world.synchronize(stream)?;
            captured.given.judge(ep, &varied, round);
        }
        Ok(())
    });
}

#[test]
#[ignore = "extended"]
fn three_hundred_replays_slotted() {
    replay(case(4, 4, Mode::Slotted), false, 0, 300);
}

#[test]
#[ignore = "extended"]
fn three_hundred_replays_compact_with_little_room() {
    replay(case(4, 1, Mode::Compact), false, 30, 300);
}

#[test]
#[ignore = "extended"]
fn a_hundred_replays_pushed_with_little_room() {
    replay(case(3, 32, Mode::Slotted), true, 30, 100);
    replay(case(3, 4, Mode::Compact), true, 0, 100);
}

#[test]
fn a_plan_that_may_have_one_takes_the_hosts_number_too() {
    for mode in [Mode::Slotted, Mode::Compact] {
        let mut case = case(3, 4, mode);
        case.tokens = vec![40, 0, 13];
        case.config = case.config.slots(2);
        on_plans(&case, |world, ep, expert, stream| {
            for round in 0..3 {
                common::round(ep, expert, stream, world, &case, round)?;
                // A slot that is released without a sum is as good as new.
                let given = Uploaded::new(world.device(), &case.config, &case.input(ep.rank().get(), round));
                let dispatched = ep.dispatch(stream, &given.tokens(&case.config))?;
                ep.release(stream, dispatched)?;
                world.synchronize(stream)?;
            }
            ep.check_ids(stream)
        });
    }
}

#[test]
fn numbers_above_the_bound_are_counted_and_the_first_is_reported() {
    let mut case = case(2, 1, Mode::Slotted);
    case.config = case.config.slots(1);
    on_plans(&case, |world, ep, expert, stream| {
        let mut given = Given::new(stream, &case, ep.rank().get(), 0);
        let odd = ep.rank().get() == 1;
        for number in [3, 41, 40, u32::MAX] {
            given.set(if odd { number } else { 40 });
            let dispatched = ep.dispatch(stream, &given.tokens(&case))?;
            common::work(expert, stream, &dispatched)?;
            ep.combine(stream, ExpertOutput::InWindow, dispatched, given.uploaded.output())?;
            world.synchronize(stream)?;
        }
        let reported = ep.check_ids(stream);
        if odd {
            let text = reported.unwrap_err().to_string();
            for words in ["gave 2 dispatch(es)", "the first 41 with a bound of 40"] {
                assert!(text.contains(words), "{words:?} is not in: {text}");
            }
        } else {
            reported?;
        }
        ep.check_ids(stream)
    });
}

#[test]
fn wrong_words_are_refused_before_anything_moves() {
    let case = case(2, 1, Mode::Slotted);
    on_plans(&case, |world, ep, expert, stream| {
        let given = Given::new(stream, &case, ep.rank().get(), 0);
        // SAFETY: nothing is launched with these ranges: they are refused first.
        let word = |skip, bytes| unsafe { DeviceSlice::from_raw(given.word.address().offset(skip), bytes) };
        for (slice, words) in [
            (word(0, 3), "the device token count has 3 bytes, but one u32 needs 4"),
            (word(2, 4), "the device token count at 0x"),
        ] {
            let tokens = Tokens { device_count: Some(slice), ..given.tokens(&case) };
            let text = ep.dispatch(stream, &tokens).map(|_| ()).unwrap_err().to_string();
            assert!(text.contains(words), "{words:?} is not in: {text}");
        }
        common::round(ep, expert, stream, world, &case, 1)
    });
    let mut without = case.clone();
    without.config = without.config.device_token_count(false);
    on_plans(&without, |world, ep, expert, stream| {
        let given = Given::new(stream, &without, ep.rank().get(), 0);
        let text = ep.dispatch(stream, &given.tokens(&without)).map(|_| ()).unwrap_err().to_string();
        assert!(text.contains("set device_token_count"), "{text}");
        common::round(ep, expert, stream, world, &without, 1)
    });
}

#[test]
fn a_plan_with_counts_or_casts_keeps_no_routing() {
    let counted = case(2, 1, Mode::Slotted);
    let mut cast = Case::new(2, 1);
    cast.config =
        cast.config.dispatch_type(DataType::F8E4m3).dispatch_cast(DispatchCast::Fp8Block(Fp8Format::E4m3fn));
    for (case, word) in [(counted, "device memory"), (cast, "casts rows")] {
        on_plans(&case, |_, ep, _, _| {
            let refused = ep.allocate_routing().unwrap_err();
            assert!(matches!(&refused, Error::NotPlanned { why, .. } if why.contains(word)), "{refused}");
            Ok(())
        });
    }
}
