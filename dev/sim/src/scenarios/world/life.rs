//! What one rank does with its world.

use std::sync::{Mutex, PoisonError};

use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{DataType, DeviceSlice, ExpertOutput, ExpertParallel, ReceivedRows, Result, Tokens};
use anabranch_hip::{Device, DeviceBuffer};
use anabranch_ranks::GroupRank;

use super::World;
use crate::scenarios::ep::given::{Given, oracle};

/// What a rank got without an error, and compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) rank: u32,
    pub(crate) round: usize,
    /// What the oracle says against it.
    pub(crate) wrong: Option<String>,
}

/// How often a rank compares in a round: its rows, and its output.
pub(crate) const SIGHTS: usize = 2;

/// One rank's tensors. They outlive the work that uses them: freeing waits for work that is queued.
struct Tensors {
    rows: DeviceBuffer,
    ids: DeviceBuffer,
    weights: DeviceBuffer,
    output: DeviceBuffer,
}

impl Tensors {
    fn new(device: &Device, given: &Given) -> Result<Self> {
        let upload = |bytes: &[u8]| -> Result<DeviceBuffer> {
            let mut buffer = device.allocate(bytes.len())?;
            buffer.copy_from_host(0, bytes)?;
            Ok(buffer)
        };
        Ok(Self {
            rows: upload(&given.tokens)?,
            ids: upload(bytemuck::cast_slice(&given.ids))?,
            weights: upload(bytemuck::cast_slice(&given.weights))?,
            // Missing writes are noticed; rows of the output are as long as rows of tokens.
            output: upload(&vec![0xcb; given.tokens.len()])?,
        })
    }

    fn tokens(&self, count: u32) -> Tokens {
        // SAFETY: the buffers are freed behind the work on the stream.
        unsafe {
            Tokens {
                count: count as usize,
                data_type: DataType::F32,
                rows: DeviceSlice::of(&self.rows),
                ids: DeviceSlice::of(&self.ids),
                weights: Some(DeviceSlice::of(&self.weights)),
                scales: None,
                device_count: None,
            }
        }
    }
}

impl World {
    /// Plans, then rounds of dispatch, experts and combine. What came without an error is compared at once.
    pub(super) fn life(&self, world: &anabranch_shmem::World, seen: &Mutex<Vec<Seen>>) -> Result<()> {
        let ep = ExpertParallel::new(world, world.group(), self.config.clone())?;
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
        let team = if self.case.rounds > 1 { Some(world.team(world.group())?) } else { None };
        let stream = world.device().create_stream()?;
        let (plan, me, device) = (ep.plan(), ep.rank(), world.device());
        let window = plan.rows() as usize * plan.combine_row_bytes() as usize;
        let staging = if self.case.staged { Some(device.allocate(window)?) } else { None };
        for (round, given) in self.given.iter().enumerate() {
            if let Some(team) = team.as_ref().filter(|_| round > 0) {
                team.barrier(&stream)?;
            }
            let Some(mine) = given.get(me.get() as usize) else { continue };
            let tensors = Tensors::new(device, mine)?;
            let dispatched = ep.dispatch(&stream, &tensors.tokens(self.case.tokens))?;
            world.synchronize(&stream)?;
            let rows = ReceivedRows::read(device, plan, &dispatched)?;
            self.see(seen, round, me, |given| self.rows_are_wrong(given, me, &rows));
            let target = staging.as_ref().map_or(dispatched.combine_rows(), DeviceBuffer::address);
            // SAFETY: both have the window's shape and outlive the work.
            unsafe { expert.run(&stream, &dispatched, target)? };
            let experts = match &staging {
                // SAFETY: as above.
                Some(staging) => ExpertOutput::Staged(unsafe { DeviceSlice::of(staging) }),
                None => ExpertOutput::InWindow,
            };
            // SAFETY: as above.
            ep.combine(&stream, experts, dispatched, unsafe { DeviceSlice::of(&tensors.output) })?;
            world.synchronize(&stream)?;
            let mut output = vec![0; mine.tokens.len()];
            tensors.output.copy_to_host(0, &mut output)?;
            self.see(seen, round, me, |given| self.output_is_wrong(given, me, &output));
        }
        Ok(())
    }

    fn see(
        &self,
        seen: &Mutex<Vec<Seen>>,
        round: usize,
        rank: GroupRank,
        wrong: impl FnOnce(&[Given]) -> Option<String>,
    ) {
        let wrong = self.given.get(round).and_then(|given| wrong(given));
        let saw = Seen { rank: rank.get(), round, wrong };
        seen.lock().unwrap_or_else(PoisonError::into_inner).push(saw);
    }

    /// What the oracle says against the rows of a dispatch.
    pub(super) fn rows_are_wrong(
        &self,
        given: &[Given],
        me: GroupRank,
        rows: &ReceivedRows,
    ) -> Option<String> {
        let oracle = oracle(&self.config, given).map_err(|error| error.to_string());
        let compared = oracle.and_then(|oracle| {
            let delivery = oracle.dispatch(me).map_err(|error| error.to_string())?;
            delivery.compare_rows(rows).map_err(|mismatch| mismatch.to_string())
        });
        compared.err()
    }

    /// What the oracle says against the output of a combine.
    pub(super) fn output_is_wrong(&self, given: &[Given], me: GroupRank, output: &[u8]) -> Option<String> {
        let oracle = oracle(&self.config, given).map_err(|error| error.to_string());
        let compared = oracle.and_then(|oracle| {
            let experts = oracle.reference_experts().map_err(|error| error.to_string())?;
            let combination = oracle.combine(me).map_err(|error| error.to_string())?;
            combination.compare_output(output, &experts).map_err(|mismatch| mismatch.to_string())
        });
        compared.err()
    }
}
