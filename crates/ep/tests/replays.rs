//! A graph of two plans that interleave, one expert-major, one in halves that push through a codec, with other work of the stream
//! between: replayed a thousand times with other inputs, judged bit by bit every time.

use crate::common::{
    Case, Uploaded, all_well, judge_output, on_ranks, oracle, run_expert, window_bytes, world_config,
};
use crate::expert_major_common::{Bench, Guarded};
use anabranch_conformance::ep::oracle::FactorExperts;
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{CombineSource, EpConfig, EpShape, Error, ExpertMajorConfig, ExpertParallel, Mode};
use anabranch_shmem::World;

/// Bytes that the other work carries round.
const CARRIED: usize = 4096;

fn cases(modes: [Mode; 2]) -> [Case; 2] {
    let mut cases = [Case::new(2, 4), Case::new(2, 4)];
    for ((case, mode), tokens) in cases.iter_mut().zip(modes).zip([vec![6, 3], vec![1, 5]]) {
        case.config = EpConfig::new(EpShape { hidden: 128, experts: 5, top_k: 2, max_tokens: 6 })
            .mode(mode)
            .max_recv(7);
        case.tokens = tokens;
    }
    let codec = "fp8_block".parse().unwrap();
    cases[1].config = cases[1].config.clone().combine_source(CombineSource::Buffer).combine_codec(codec);
    cases[1].staged = true;
    cases
}

fn replays(world: &World, cases: &[Case; 2], count: u64) -> Result<(), Error> {
    let device = world.device();
    let plan = |case: &Case| ExpertParallel::new(world, world.group(), case.config.clone());
    let [first, second] = [plan(&cases[0])?, plan(&cases[1])?];
    let me = first.rank();
    let upload = |case: &Case| Uploaded::new(device, &case.config, &case.input(me.get(), 0));
    let [mut one, mut two] = [upload(&cases[0]), upload(&cases[1])];
    let mut bench = Bench::new(world, &first, ExpertMajorConfig::new().capacity(4))?;
    let expert = ReferenceExpert::new(world, second.plan(), me)?;
    let staging = device.allocate(window_bytes(&second))?;
    let mut carried = device.allocate(CARRIED)?;
    let arrived = [Guarded::new(device, CARRIED), Guarded::new(device, CARRIED)];
    let stream = device.create_stream()?;

    stream.begin_capture()?;
    let flying = first.dispatch(&stream, &one.tokens(&cases[0].config))?;
    let sent = second.dispatch_send(&stream, &two.tokens(&cases[1].config))?;
    // SAFETY: the buffers have the bytes and live until the last replay was waited for.
    unsafe { stream.copy_async(arrived[0].slice().address(), carried.address(), CARRIED)? };
    let experts = bench.work(&stream, &flying)?;
    let dispatched = second.dispatch_recv(&stream, sent)?;
    let pushed = run_expert(&expert, &stream, &dispatched, &cases[1], &staging)?;
    let sent = second.combine_send(&stream, pushed, dispatched)?;
    // SAFETY: as above.
    unsafe { stream.copy_async(arrived[1].slice().address(), arrived[0].slice().address(), CARRIED)? };
    first.combine(&stream, experts, flying, one.output())?;
    second.combine_recv(&stream, sent, two.output())?;
    let graph = stream.end_capture()?.instantiate()?;

    for replay in 0..count {
        // Routings change as tokens do; -1, ids out of range and hot ranks among them.
        let now = [cases[0].varied(replay), cases[1].varied(replay / 5)];
        let inputs = [now[0].inputs(replay), now[1].inputs(replay + 5000)];
        for (uploaded, inputs) in [&mut one, &mut two].into_iter().zip(&inputs) {
            uploaded.refill(&inputs[me.index()]);
            uploaded.output.fill(0xee)?;
        }
        carried.fill(replay as u8)?;
        // SAFETY: buffers, plans and world live until the stream was waited for.
        unsafe { graph.launch(&stream)? };
        world.synchronize(&stream)?;
        let rows = oracle(&now[0], &inputs[0]);
        bench.judge(&rows, &first, device);
        let contracted = rows.contracted(4, FactorExperts).unwrap();
        let output = one.read_output(&cases[0].config);
        if let Err(mismatch) = rows.combine(me).unwrap().compare_output(&output, &contracted) {
            panic!("{me}, replay {replay}: {mismatch}");
        }
        judge_output(&oracle(&now[1], &inputs[1]), me, &two.read_output(&cases[1].config));
        for arrived in &arrived {
            assert!(arrived.read().iter().all(|byte| *byte == replay as u8), "replay {replay}");
        }
    }
    Ok(())
}

#[test]
#[ignore = "extended"]
fn a_thousand_replays_of_both_layouts_with_new_inputs() {
    for (modes, count) in [([Mode::Slotted, Mode::Compact], 1000), ([Mode::Compact, Mode::Slotted], 1000)] {
        let cases = cases(modes);
        all_well(on_ranks(2, 4, &world_config(), |world| replays(world, &cases, count)));
    }
}
