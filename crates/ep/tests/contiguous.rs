//! Rows of all experts one after the other, beside the layout with a fixed number of places for each expert, which the oracle judges.

use crate::common::{Case, Routing, Uploaded, all_well, bytes_of, upload, world_config};
use crate::expert_major_common::{CANARY, Guarded, read};
use anabranch_ep::expert_major::{SLOT_DROPPED, SLOT_NONE};
use anabranch_ep::{
    ContiguousExperts, ContiguousLayout, ContiguousOutput, ContiguousRows, ContiguousWeights, DeviceSlice,
    Dispatched, Error, ExpertMajor, ExpertMajorConfig, ExpertMajorRows, ExpertParallel, LayoutOutput, Mode,
    PlacementTable, ReceivedRows, ScaleLayout, Tokens,
};
use anabranch_hip::{DeviceBuffer, Stream};
use anabranch_ranks::GroupRank;
use anabranch_shmem::World;

const SCALE_BYTES: usize = 20;

/// Where the rows of the reference layout are in the contiguous one.
struct Expected {
    seen: ExpertMajorRows,
    starts: Vec<u32>,
    counts: Vec<u32>,
    slot_map: Vec<u32>,
    capacity: u32,
}

impl Expected {
    fn new(seen: ExpertMajorRows, config: ContiguousLayout, capacity: u32, places: u32) -> Self {
        let mut starts = vec![0];
        for pairs in &seen.pairs {
            starts.push(starts[starts.len() - 1] + pairs.next_multiple_of(config.alignment));
        }
        let counts =
            seen.pairs.iter().zip(&starts).map(|(pairs, start)| places.saturating_sub(*start).min(*pairs));
        let counts: Vec<u32> = counts.collect();
        let place = |slot: &u32| match *slot {
            SLOT_NONE => SLOT_NONE,
            slot => {
                let place = starts[(slot / capacity) as usize] + slot % capacity;
                if place < places { place } else { SLOT_DROPPED }
            }
        };
        let slot_map = seen.slot_map.iter().map(place).collect();
        Self { seen, starts, counts, slot_map, capacity }
    }
}

/// The outputs of an expand, between canaries.
struct Outputs {
    places: u32,
    rows: Guarded,
    scales: Guarded,
    weights: Guarded,
    slot_map: Guarded,
    counts: Guarded,
    starts: Guarded,
}

impl Outputs {
    fn new(
        world: &World,
        ep: &ExpertParallel,
        experts: &ContiguousExperts,
        scales: ScaleLayout,
        places: u32,
    ) -> Self {
        let guarded = |bytes: u64| Guarded::new(world.device(), bytes as usize);
        let local = u64::from(experts.local_experts());
        Self {
            places,
            rows: guarded(u64::from(places) * u64::from(ep.plan().row_bytes())),
            scales: guarded(experts.scale_bytes(scales, places)),
            weights: guarded(u64::from(places) * 4),
            slot_map: guarded(experts.slot_map_bytes()),
            counts: guarded(local * 4),
            starts: guarded(local * 4 + 4),
        }
    }

    fn written(&self, layout: ContiguousLayout) -> ContiguousRows {
        ContiguousRows {
            layout,
            places: self.places,
            rows: self.rows.slice(),
            scales: Some(self.scales.slice()),
            weights: Some(self.weights.slice()),
            slot_map: self.slot_map.slice(),
            counts: self.counts.slice(),
            starts: self.starts.slice(),
        }
    }

    /// The scales at a place, as they were sent.
    fn scales_at(&self, all: &[u8], layout: ScaleLayout, place: usize) -> Vec<u8> {
        if layout == ScaleLayout::Rows {
            return all[place * SCALE_BYTES..][..SCALE_BYTES].to_vec();
        }
        let column = (self.places as usize).next_multiple_of(4);
        let words = layout.row_bytes(SCALE_BYTES as u32) as usize / 4;
        (0..words).flat_map(|word| all[(word * column + place) * 4..][..4].to_vec()).collect()
    }

    fn judge(&self, expected: &Expected, config: ContiguousLayout, row: usize) {
        let words = |bytes: &[u8]| -> Vec<u32> {
            bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
        };
        let (rows, scales, weights) = (self.rows.read(), self.scales.read(), words(&self.weights.read()));
        assert_eq!(words(&self.starts.read()), expected.starts);
        assert_eq!(words(&self.counts.read()), expected.counts);
        let of_scales = config.scale_layout.row_bytes(SCALE_BYTES as u32) as usize;
        let mut is_row = vec![false; self.places as usize];
        for (expert, count) in expected.counts.iter().enumerate() {
            let table = &expected.seen.experts[expert];
            for n in 0..*count as usize {
                let place = expected.starts[expert] as usize + n;
                is_row[place] = true;
                assert_eq!(
                    rows[place * row..][..row],
                    table.rows[n * row..][..row],
                    "row {n} of expert {expert}"
                );
                let of = self.scales_at(&scales, config.scale_layout, place);
                assert_eq!(of, table.scales[n * of_scales..][..of_scales], "scales of row {n} of {expert}");
                assert_eq!(
                    weights[place],
                    table.sources[n].weight.to_bits(),
                    "weight of row {n} of {expert}"
                );
            }
        }
        let end = expected.starts[expected.starts.len() - 1].min(self.places) as usize;
        for place in (0..self.places as usize).filter(|place| !is_row[*place]) {
            let left = if config.zero_padding && place < end { 0 } else { CANARY };
            assert!(rows[place * row..][..row].iter().all(|byte| *byte == left), "row of place {place}");
            let of = self.scales_at(&scales, config.scale_layout, place);
            assert!(of.iter().all(|byte| *byte == left), "scales of place {place}");
            assert_eq!(weights[place], 0, "weight of place {place}");
        }
    }
}

struct Bench<'a> {
    world: &'a World,
    ep: &'a ExpertParallel,
    stream: Stream,
    padded: ExpertMajor,
}

impl Bench<'_> {
    /// The combine window after `work` on a dispatch of these tokens, which the padded layout holds.
    fn window(
        &mut self,
        tokens: &Tokens,
        work: impl FnOnce(&ExpertMajor, &Stream, &Dispatched) -> Result<(), Error>,
    ) -> Result<Vec<u8>, Error> {
        let dispatched = self.ep.dispatch(&self.stream, tokens)?;
        self.padded.expand(&self.stream, &dispatched)?;
        let bytes = self.padded.plan().contracted_bytes() as usize;
        self.world.synchronize(&self.stream)?;
        crate::expert_major_common::write(
            self.world.device(),
            dispatched.combine_rows(),
            &vec![CANARY; bytes],
        );
        work(&self.padded, &self.stream, &dispatched)?;
        self.world.synchronize(&self.stream)?;
        let window = read(self.world.device(), dispatched.combine_rows(), bytes);
        self.ep.release(&self.stream, dispatched)?;
        Ok(window)
    }

    fn upload(&self, words: &[f32]) -> DeviceBuffer {
        upload(self.world.device(), bytes_of(words))
    }

    /// Sums of the rows themselves, with each kind of weights, are those of the padded layout with the same weights.
    fn judge_sums(
        &mut self,
        tokens: &Tokens,
        experts: &ContiguousExperts,
        outputs: &Outputs,
        expected: &Expected,
    ) -> Result<(), Error> {
        let (local, capacity) = (expected.counts.len(), expected.capacity as usize);
        let mut of_places = vec![0.0; (outputs.places as usize).max(1)];
        // Of the rows that have a place; the padded layout gives dropped rows the weight 0, and they add nothing.
        let mut of_pairs = |weight: fn(f32) -> f32| {
            let mut given = vec![0.0; local * capacity];
            for (expert, count) in expected.counts.iter().enumerate() {
                for n in 0..*count as usize {
                    let dispatched = expected.seen.experts[expert].sources[n].weight;
                    given[expert * capacity + n] = weight(dispatched);
                    of_places[expected.starts[expert] as usize + n] = weight(dispatched);
                }
            }
            self.upload(&given)
        };
        let (ones, dispatched, given) = (of_pairs(|_| 1.0), of_pairs(|own| own), of_pairs(|own| -2.0 * own));
        let of_places = self.upload(&of_places);
        // SAFETY: the buffers outlive the stream's work.
        let kind = unsafe { ContiguousWeights::Given(DeviceSlice::of(&of_places)) };
        for (kind, given) in
            [(ContiguousWeights::Ones, ones), (ContiguousWeights::Dispatched, dispatched), (kind, given)]
        {
            let wanted = self.window(tokens, |padded, stream, dispatched| {
                // SAFETY: the buffers outlive the stream's work.
                let (rows, weights) = unsafe {
                    let bytes = padded.plan().output_bytes() as usize;
                    (DeviceSlice::from_raw(padded.rows(), bytes), Some(DeviceSlice::of(&given)))
                };
                padded.contract(stream, dispatched, LayoutOutput { rows, weights }).map(drop)
            })?;
            let (rows, slot_map) = (outputs.rows.slice(), outputs.slot_map.slice());
            let output = ContiguousOutput { places: outputs.places, rows, weights: kind, slot_map };
            let summed = self.window(tokens, |_, stream, dispatched| {
                experts.contract(stream, dispatched, &output).map(drop)
            })?;
            assert!(summed == wanted, "sums with {kind:?} on {}", self.ep.rank());
        }
        // A map that no expand wrote has no places: all sums are of no rows.
        let nowhere = Guarded::new(self.world.device(), experts.slot_map_bytes() as usize);
        let (rows, slot_map) = (outputs.rows.slice(), nowhere.slice());
        let output =
            ContiguousOutput { places: outputs.places, rows, weights: ContiguousWeights::Ones, slot_map };
        let summed = self.window(tokens, |_, stream, dispatched| {
            experts.contract(stream, dispatched, &output).map(drop)
        })?;
        assert!(summed.iter().all(|byte| *byte == 0 || *byte == CANARY), "a place that is none was read");
        Ok(())
    }
}

fn run(case: &Case, config: ContiguousLayout) {
    all_well(case.on_ranks(&world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let (device, me) = (world.device(), ep.rank());
        let experts = ContiguousExperts::new(&ep)?;
        assert!(experts.is_one_kernel(), "half of the layouts come with the dispatch");
        let capacity = ep.plan().rows() as u32 * case.config.top_k;
        let padded = ExpertMajorConfig::new().capacity(capacity).scale_layout(config.scale_layout);
        let padded = ExpertMajor::new(&ep, padded)?;
        let mut bench = Bench { world, ep: &ep, stream: device.create_stream()?, padded };
        for number in 0..5 {
            let case = case.varied(number);
            let uploaded = Uploaded::new(device, &case.config, &case.input(me.get(), number));
            let tokens = uploaded.tokens(&case.config);
            let dispatched = ep.dispatch(&bench.stream, &tokens)?;
            bench.padded.expand(&bench.stream, &dispatched)?;
            world.synchronize(&bench.stream)?;
            let seen = ExpertMajorRows::read(device, &bench.padded)?;
            let came: u32 = ReceivedRows::read(device, ep.plan(), &dispatched)?.counts().iter().sum();
            let needed: u32 = seen.pairs.iter().map(|pairs| pairs.next_multiple_of(config.alignment)).sum();
            ep.release(&bench.stream, dispatched)?;
            // More places than all pairs need, as many, and too few.
            let mut all = Vec::new();
            let most = experts.most_places(config.alignment) as u32;
            for (places, in_one) in
                [most, needed, needed / 2 + 1, 0].map(|places| [(places, true), (places, false)]).concat()
            {
                let outputs = Outputs::new(world, &ep, &experts, config.scale_layout, places);
                let dispatched = if in_one {
                    experts.dispatch(&ep, &bench.stream, &tokens, &outputs.written(config))?
                } else {
                    let dispatched = ep.dispatch(&bench.stream, &tokens)?;
                    experts.expand(&bench.stream, &dispatched, &outputs.written(config))?;
                    dispatched
                };
                ep.release(&bench.stream, dispatched)?;
                world.synchronize(&bench.stream)?;
                let expected = Expected::new(seen.clone(), config, capacity, places);
                outputs.judge(&expected, config, ep.plan().row_bytes() as usize);
                // Entries of rows that did not come are not written by either.
                let mut written = 0;
                for (at, (word, wanted)) in
                    outputs.slot_map.read().chunks_exact(4).zip(&expected.slot_map).enumerate()
                {
                    if word != [CANARY; 4] {
                        written += 1;
                        assert_eq!(word, wanted.to_ne_bytes(), "{me}, round {number}, pair {at}");
                    }
                }
                assert_eq!(written, came * case.config.top_k, "{me}, round {number}");
                all.push((outputs, expected));
            }
            for (outputs, expected) in &all {
                bench.judge_sums(&tokens, &experts, outputs, expected)?;
            }
        }
        Ok::<_, Error>(world.synchronize(&bench.stream)?)
    }));
}

fn case(wave: u32, mode: Mode) -> Case {
    let mut case = Case::new(3, wave);
    case.config = case.config.mode(mode).scale_bytes(SCALE_BYTES as u32);
    case
}

#[test]
fn rows_and_sums_are_those_of_the_padded_layout() {
    let rows = ContiguousLayout { alignment: 8, zero_padding: true, ..ContiguousLayout::default() };
    run(&case(4, Mode::Compact), rows);
    let columns =
        ContiguousLayout { alignment: 3, scale_layout: ScaleLayout::Columns, ..ContiguousLayout::default() };
    run(&case(32, Mode::Slotted), columns);
}

#[test]
#[ignore = "extended"]
fn all_forms_give_the_rows_and_sums_of_the_padded_layout() {
    for wave in [1, 4, 32, 64] {
        for mode in [Mode::Slotted, Mode::Compact] {
            for (alignment, scale_layout, zero_padding) in [
                (1, ScaleLayout::Rows, false),
                (16, ScaleLayout::Columns, true),
                (5, ScaleLayout::PackedColumns, true),
            ] {
                run(&case(wave, mode), ContiguousLayout { alignment, scale_layout, zero_padding });
            }
        }
    }
    let layout = ContiguousLayout { alignment: 2, ..ContiguousLayout::default() };
    // More experts than a wave has lanes, and as many.
    for experts in [3 * 9, 3 * 4] {
        let mut case = case(4, Mode::Compact);
        case.config.experts = experts;
        run(&case, layout);
    }
    run(&Case { routing: Routing::SoftHot, ..case(4, Mode::Slotted) }, layout);
    // Experts of one rank, of two, and a rank without any.
    let mut case = case(4, Mode::Slotted);
    let ranks = (0..case.config.experts).map(|expert| if expert % 2 == 0 { vec![2] } else { vec![0, 2] });
    let table = PlacementTable::new(
        ranks.map(|ranks| ranks.into_iter().map(GroupRank::new).collect()).collect::<Vec<_>>(),
    );
    case.config = case.config.placement(table);
    run(&case, layout);
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    let case = case(4, Mode::Compact);
    all_well(case.on_ranks(&world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let experts = ContiguousExperts::new(&ep)?;
        let stream = world.device().create_stream()?;
        let uploaded = Uploaded::new(world.device(), &case.config, &case.input(ep.rank().get(), 0));
        let dispatched = ep.dispatch(&stream, &uploaded.tokens(&case.config))?;
        let outputs = Outputs::new(world, &ep, &experts, ScaleLayout::Rows, 16);
        let right = outputs.written(ContiguousLayout::default());
        let (counts, starts) = (outputs.counts.slice(), outputs.starts.slice());
        let layout = ContiguousLayout { alignment: 0, ..ContiguousLayout::default() };
        for (wrong, says) in [
            (ContiguousRows { layout, ..right }, "allowed are 1 to 65536"),
            (ContiguousRows { places: 17, ..right }, "the tensor of rows has"),
            (ContiguousRows { places: u32::MAX, ..right }, "at most 4294967291"),
            (ContiguousRows { scales: None, ..right }, "the tensor of scales is missing"),
            (ContiguousRows { weights: Some(counts), ..right }, "the tensor of weights has"),
            (ContiguousRows { slot_map: counts, ..right }, "the tensor of the slot map has"),
            (ContiguousRows { starts: counts, ..right }, "the tensor of starts has"),
        ] {
            let text = experts.expand(&stream, &dispatched, &wrong).unwrap_err().to_string();
            assert!(text.contains(says), "{text}");
        }
        let output = ContiguousOutput {
            places: 16,
            rows: outputs.rows.slice(),
            weights: ContiguousWeights::Given(starts),
            slot_map: outputs.slot_map.slice(),
        };
        let text = experts.contract(&stream, &dispatched, &output).unwrap_err().to_string();
        assert!(text.contains("the tensor of weights has"), "{text}");
        ep.release(&stream, dispatched)?;
        Ok::<_, Error>(world.synchronize(&stream)?)
    }));
}
