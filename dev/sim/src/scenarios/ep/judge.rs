//! What dispatch and combine must have left after, by the oracle of the crate; and that nothing else was touched.

use std::collections::BTreeSet;

use anabranch_conformance::ep::oracle::{Oracle, SentCopy, SlottedRows};
use anabranch_ep::simulation::SlotState;
use anabranch_ranks::GroupRank;

use super::given::{HIDDEN, TOP_K};
use super::{Ep, Experts};
use crate::Failure;

/// What the operations of all epochs may have written at one rank.
#[derive(Clone, Debug)]
struct Touched {
    /// The most rows of each part of its windows: from a source, or, compact, from all.
    most: Vec<usize>,
    /// Place and token of the rows that were pushed back.
    pushed: BTreeSet<(usize, usize)>,
    /// The most rows of each of its experts, where they are expert-major.
    expert_rows: Vec<usize>,
}

impl Ep {
    pub(super) fn judge(&self) -> Result<(), Failure> {
        let ranks = self.case.ranks as usize;
        let parts = if self.plan.row_stride() == 0 { 1 } else { ranks };
        let nothing = Touched {
            most: vec![0; parts],
            pushed: BTreeSet::new(),
            expert_rows: vec![0; self.plan.config().experts as usize / ranks],
        };
        let mut touched = vec![nothing; ranks];
        for epoch in 0..self.case.rounds {
            self.judge_epoch(epoch, &mut touched)
                .map_err(|problem| Failure::new(format!("epoch {epoch}: {problem}")))?;
        }
        for (rank, touched) in touched.iter().enumerate() {
            self.judge_guards(rank, &touched.most)
                .and_then(|()| self.judge_push_window(rank, touched))
                .and_then(|()| match &self.experts {
                    Some(experts) => self.judge_past_experts(experts, rank, &touched.expert_rows),
                    None => Ok(()),
                })
                .map_err(|problem| Failure::new(format!("rank {rank}: {problem}")))?;
        }
        Ok(())
    }

    fn judge_epoch(&self, epoch: u32, touched: &mut [Touched]) -> Result<(), String> {
        let oracle = self.oracle(epoch, &[]).map_err(|error| error.to_string())?;
        let reference_experts = oracle.reference_experts().map_err(|error| error.to_string())?;
        let contracted = self.experts.as_ref().map(|experts| experts.contracted(&oracle)).transpose()?;
        for number in 0..self.case.ranks {
            let who = GroupRank::new(number);
            if epoch + 1 == self.case.rounds {
                self.judge_rows(epoch, &oracle, who)?;
            }
            let output = self.memory[number as usize].inputs[epoch as usize].output;
            let bytes = (self.case.tokens * self.plan.combine_row_bytes()) as usize;
            let output = self.bench.get::<u8>(output, 0, bytes).map_err(|error| error.to_string())?;
            let combined = oracle.combine(who).map_err(|error| error.to_string())?;
            let delivery = oracle.dispatch(who).map_err(|error| error.to_string())?;
            let compact = self.plan.row_stride() == 0;
            let counts = if compact { vec![delivery.total()] } else { delivery.counts().to_vec() };
            for (most, count) in touched[number as usize].most.iter_mut().zip(counts) {
                *most = (*most).max(count as usize);
            }
            if epoch + 1 == self.case.rounds {
                let dropped = oracle.dropped(who).map_err(|error| error.to_string())?.len();
                let state = self.slot_state(number as usize)?;
                if state.dropped_count as usize != dropped {
                    return Err(format!(
                        "rank {number} says that it dropped {} copies, not {dropped}",
                        state.dropped_count
                    ));
                }
            }
            for token in 0..self.case.tokens as usize {
                let places = combined.copies(token).enumerate();
                let place = |(place, copy): (usize, SentCopy<'_>)| {
                    if self.masks() { copy.destination.index() } else { place }
                };
                touched[number as usize].pushed.extend(places.map(place).map(|place| (place, token)));
            }
            if self.masks() {
                self.judge_masked_output(epoch, who, &output)?;
                continue;
            }
            if let Some(experts) = &self.experts {
                let rows = Experts::padded(&experts.delivery(&oracle, who)?);
                let most = &mut touched[number as usize].expert_rows;
                most.iter_mut().zip(rows).for_each(|(most, rows)| *most = (*most).max(rows));
                if epoch + 1 == self.case.rounds {
                    self.judge_layout(experts, &oracle, who)?;
                }
            }
            let judged = match &contracted {
                Some(contracted) => combined.compare_output(&output, contracted),
                None => combined.compare_output(&output, &reference_experts),
            };
            judged.map_err(|mismatch| mismatch.to_string())?;
            if self.plan.config().combine_weights {
                let summed = self.memory[number as usize].inputs[epoch as usize].summed;
                let weights = self.bench.get::<f32>(summed, 0, (self.case.tokens * TOP_K) as usize);
                let weights = weights.map_err(|error| error.to_string())?;
                let dispatched = |copy: &SentCopy<'_>, k: usize| copy.weights.map_or(f32::NAN, |all| all[k]);
                combined.compare_weights(&weights, dispatched).map_err(|mismatch| mismatch.to_string())?;
            }
        }
        Ok(())
    }

    fn judge_rows(&self, epoch: u32, oracle: &Oracle<'_>, who: GroupRank) -> Result<(), String> {
        let get = |error: anabranch_weakmem::SeededError| error.to_string();
        let (ranks, layout) = (self.case.ranks as usize, self.plan.layout());
        let memory = self.bench.ranks[who.get() as usize];
        let rows = self.plan.rows() as usize;
        let words = self.plan.meta_bytes() as usize / 4;
        let meta = self.bench.get::<u32>(memory.heap, layout.meta, rows * words).map_err(get)?;
        let field = |from: usize, count: usize| -> Vec<u32> {
            meta.chunks_exact(words).flat_map(|record| record[from..from + count].iter().copied()).collect()
        };
        let counts: Vec<u32> = self.bench.get(memory.own, self.own.counts, ranks).map_err(get)?;
        let (tokens, places) = (field(0, 1), field(1, 1));
        let offsets: Vec<u32> = self.bench.get(memory.own, self.own.offsets, ranks + 1).map_err(get)?;
        for (source, count) in counts.iter().enumerate() {
            let stride = self.plan.row_stride() as usize;
            let first = if stride == 0 { offsets[source] as usize } else { source * stride };
            // Counts and offsets beyond the window are reported below.
            let first = first.min(rows);
            let rows_seen = (*count as usize).min(rows - first);
            let combined =
                oracle.combine(GroupRank::new(source as u32)).map_err(|error| error.to_string())?;
            for (row, place) in places[first..first + rows_seen].iter().enumerate() {
                let token = tokens[first + row] as usize;
                let position = combined.copies(token).position(|copy| copy.destination == who);
                let right = position.map(|position| if self.masks() { who.index() } else { position });
                if right != Some(*place as usize) {
                    return Err(format!(
                        "a row of token {token} of source {source} says place {place}, not {right:?}"
                    ));
                }
            }
        }
        let top_k = TOP_K as usize;
        let weights = field(2 + top_k, top_k).into_iter().map(f32::from_bits).collect::<Vec<_>>();
        let row_bytes = self.plan.row_bytes() as usize;
        let seen = SlottedRows {
            counts: &counts,
            offsets: Some(&offsets),
            tokens: &tokens,
            payload: &self.bench.get::<u8>(memory.heap, layout.rows, rows * row_bytes).map_err(get)?,
            row_bytes,
            ids: &field(2, top_k).into_iter().map(|id| id as i32).collect::<Vec<_>>(),
            top_k,
            weights: &weights,
            scales: &[],
            scale_bytes: 0,
        };
        let masked = if self.masks() { self.unheard(epoch, who, &counts)? } else { Vec::new() };
        let heard = self.oracle(epoch, &masked).map_err(|error| error.to_string())?;
        let delivery = heard.dispatch(who).map_err(|error| error.to_string())?;
        delivery.compare_rows(&seen).map_err(|mismatch| mismatch.to_string())
    }

    fn slot_state(&self, rank: usize) -> Result<SlotState, String> {
        let own = self.bench.ranks[rank].own;
        let state = self.bench.get::<SlotState>(own, self.own.state, 1).map_err(|error| error.to_string())?;
        state.first().copied().ok_or_else(|| "no state".to_owned())
    }

    /// Rows after the last that any epoch had are as the heap was, and the epochs and counters as they must be.
    fn judge_guards(&self, rank: usize, most: &[usize]) -> Result<(), String> {
        let get = |error: anabranch_weakmem::SeededError| error.to_string();
        let (layout, memory) = (self.plan.layout(), self.bench.ranks[rank]);
        let part = self.plan.rows() as usize / most.len();
        let combined = (HIDDEN * 4) as usize;
        let windows = [
            ("rows", layout.rows, self.plan.row_bytes() as usize),
            ("meta", layout.meta, self.plan.meta_bytes() as usize),
            ("combine", layout.combine_rows, combined),
        ];
        // What is pushed lies elsewhere, below.
        for (what, window, row_bytes) in windows.into_iter().take(if self.pushes() { 2 } else { 3 }) {
            for (index, rows) in most.iter().enumerate() {
                let from = window + ((index * part + rows) * row_bytes) as u64;
                let rest = self.bench.get::<u8>(memory.heap, from, (part - rows) * row_bytes).map_err(get)?;
                if rest.iter().any(|byte| *byte != 0) {
                    return Err(format!("part {index} of the {what} window was written after row {rows}"));
                }
            }
        }
        let state = self.slot_state(rank)?;
        let epochs = u64::from(self.case.rounds);
        let ended = (state.dispatch_epoch, state.combine_epoch) == (epochs, epochs)
            && (state.count_arrived, state.dispatch_arrived, state.combine_arrived) == (0, 0, 0)
            // Masked ids are no mistakes, and there are no others.
            && (state.invalid_count, state.invalid_first) == (0, u64::MAX);
        if ended { Ok(()) } else { Err(format!("after {epochs} epochs the slot is {state:?}")) }
    }

    /// Rows of the push window that no epoch had are as the heap was.
    fn judge_push_window(&self, rank: usize, touched: &Touched) -> Result<(), String> {
        if !self.pushes() {
            return Ok(());
        }
        let tokens = self.case.tokens as usize;
        let places = if self.masks() { self.case.ranks } else { self.plan.fan_out() } as usize;
        let row_bytes = self.plan.combine_wire_bytes() as usize;
        let (heap, window) = (self.bench.ranks[rank].heap, self.plan.layout().push_rows);
        let bytes = self
            .bench
            .get::<u8>(heap, window, places * tokens * row_bytes)
            .map_err(|error| error.to_string())?;
        for (row, bytes) in bytes.chunks_exact(row_bytes).enumerate() {
            let (place, token) = (row / tokens, row % tokens);
            if !touched.pushed.contains(&(place, token)) && bytes.iter().any(|byte| *byte != 0) {
                return Err(format!("the push window was written at place {place} of token {token}"));
            }
        }
        Ok(())
    }
}
