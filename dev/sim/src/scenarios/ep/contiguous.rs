//! Rows of all experts one after the other, judged beside the layout with places for each expert.

use anabranch_ep::expert_major::SLOT_DROPPED;
use anabranch_ep::simulation::ExpertExpandArgs;
use anabranch_ep::{ExpertMajorPlan, ExpertMajorRows};

use super::experts::{ALIGNMENT, Memory};
use super::{DevicePointer, Ep, TOP_K, at};

/// Offsets in their memory: as many places as the other layout has, from 0 on, then what comes with them.
#[derive(Debug)]
pub(super) struct Contiguous {
    places: u32,
    slot_map: u64,
    counts: u64,
    starts: u64,
    weights: u64,
}

impl Contiguous {
    pub(super) fn of(plan: &ExpertMajorPlan) -> Self {
        let (local, dispatch) = (u64::from(plan.local_experts()), plan.dispatch_plan());
        let places = plan.local_experts() * plan.capacity();
        let slot_map = u64::from(places) * u64::from(dispatch.row_bytes());
        let counts = slot_map + dispatch.rows() * u64::from(TOP_K) * 4;
        let starts = counts + local * 4;
        Self { places, slot_map, counts, starts, weights: starts + (local + 1) * 4 }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.weights + u64::from(self.places) * 4
    }
}

impl Memory {
    /// The expand of the same rows.
    pub(super) fn contiguous_args(&self, other: &ExpertExpandArgs) -> ExpertExpandArgs {
        let (memory, places) = (self.contiguous, Contiguous::of(&self.plan));
        ExpertExpandArgs {
            rows: at(memory, 0),
            counts: at(memory, places.counts),
            pairs: DevicePointer::NULL,
            source_offsets: DevicePointer::NULL,
            sources: DevicePointer::NULL,
            starts: at(memory, places.starts),
            weights: at(memory, places.weights),
            slot_map: at(memory, places.slot_map),
            capacity: places.places,
            scale_column: places.places,
            ..*other
        }
    }
}

impl Ep {
    /// The rows, maps and weights, beside those of the other layout, which drops other pairs.
    pub(super) fn judge_contiguous(&self, memory: &Memory, other: &ExpertMajorRows) -> Result<(), String> {
        let (plan, places) = (&memory.plan, Contiguous::of(&memory.plan));
        let local = plan.local_experts() as usize;
        let words = |place, count| {
            self.bench.get::<u32>(memory.contiguous, place, count).map_err(|error| error.to_string())
        };
        let mut starts = vec![0];
        for pairs in &other.pairs {
            starts.push(starts[starts.len() - 1] + pairs.next_multiple_of(ALIGNMENT));
        }
        let room = |expert: usize| places.places.saturating_sub(starts[expert]);
        let counts: Vec<u32> = (0..local).map(|expert| other.pairs[expert].min(room(expert))).collect();
        if words(places.starts, local + 1)? != starts || words(places.counts, local)? != counts {
            return Err("the contiguous rows have wrong starts or counts".to_owned());
        }
        let (row, slots) = (self.plan.row_bytes() as usize, words(places.slot_map, other.slot_map.len())?);
        for (expert, table) in other.experts.iter().enumerate() {
            for n in 0..other.counts[expert] {
                let (place, source) = (starts[expert] + n, &table.sources[n as usize]);
                let is_kept = n < counts[expert];
                let slot = slots[(source.row * TOP_K + source.k) as usize];
                let mut is_right = slot == if is_kept { place } else { SLOT_DROPPED };
                if is_kept {
                    let from = u64::from(place) * row as u64;
                    let seen = self.bench.get::<u8>(memory.contiguous, from, row);
                    is_right &=
                        seen.map_err(|error| error.to_string())? == table.rows[n as usize * row..][..row];
                    is_right &=
                        words(places.weights + u64::from(place) * 4, 1)?[0] == source.weight.to_bits();
                }
                if !is_right {
                    return Err(format!(
                        "the contiguous row {n} of expert {expert}, or its place {slot}, is wrong"
                    ));
                }
            }
        }
        Ok(())
    }
}
