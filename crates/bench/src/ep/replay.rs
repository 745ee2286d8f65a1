//! Other tokens with a saved routing, as in a backward pass.

use anabranch::Error;
use anabranch_conformance::ep::oracle::{Oracle, RankInput, Shape};
use anabranch_ep::{Dispatched, Payload, ReceivedRows, ReplayedTokens, Routing};
use anabranch_hip::DeviceBuffer;
use anyhow::bail;

use super::EpBench;
use super::arguments::{EpArgs, Layout};
use crate::device;

/// One rank's saved routing, and the rows to send with it: the workload's rows in reverse order, so that a row which a replay does not
/// move differs from the oracle.
pub(super) struct ReplayBench {
    routing: Routing,
    rows: DeviceBuffer,
    /// The rows of all ranks, on the host.
    tokens: Vec<Vec<u8>>,
}

/// The checks of the starting process, before it starts ranks.
///
/// # Errors
/// Replays are timed with token-major rows, which kernels move.
pub(super) fn check(arguments: &EpArgs, ranks: u32) -> anyhow::Result<()> {
    if arguments.replay_routing
        && let Some(nodes) = arguments.bench.ranks.several_nodes(ranks)
    {
        bail!("--replay-routing: a routing is kept on one machine, and --nodes is {}", nodes.count());
    }
    if arguments.replay_routing && arguments.layout != Layout::TokenMajor {
        bail!("--replay-routing is for --layout token-major");
    }
    if arguments.replay_routing && arguments.payload == Payload::CopyEngine {
        bail!(
            "--replay-routing is for --payload kernels: dispatches with a saved routing move rows by kernels"
        );
    }
    Ok(())
}

impl ReplayBench {
    /// Dispatches once and keeps the routing, where replays were asked for. Collective.
    pub(super) fn new(bench: &EpBench<'_>, inputs: &[RankInput<'_>]) -> Result<Option<Self>, Error> {
        if !bench.arguments.replay_routing {
            return Ok(None);
        }
        let row = bench.ep.plan().row_bytes() as usize;
        let reversed = |tokens: &[u8]| tokens.chunks_exact(row).rev().flatten().copied().collect();
        let tokens: Vec<Vec<u8>> = inputs.iter().map(|input| reversed(input.tokens)).collect();
        let rows = device::upload(bench.world(), &tokens[bench.ep.rank().index()])?;
        let mut dispatched = bench.ep.dispatch(&bench.stream, &bench.tokens())?;
        let routing = bench.ep.routing(&bench.stream, &mut dispatched)?;
        bench.ep.release(&bench.stream, dispatched)?;
        bench.world().synchronize(&bench.stream)?;
        Ok(Some(Self { routing, rows, tokens }))
    }

    /// Sends the rows.
    pub(super) fn dispatch(&self, bench: &EpBench<'_>) -> Result<Dispatched, Error> {
        let tokens = ReplayedTokens {
            data_type: bench.ep.plan().config().dispatch_type,
            rows: device::slice(&self.rows),
            weights: None,
            scales: None,
        };
        Ok(bench.ep.dispatch_with(&bench.stream, &self.routing, &tokens)?)
    }

    /// One replay with its combine, compared with the oracle; logs differences and returns whether there were none.
    pub(super) fn judge(&self, bench: &mut EpBench<'_>, inputs: &[RankInput<'_>]) -> anyhow::Result<bool> {
        let (me, world) = (bench.ep.rank(), bench.world());
        let sent = inputs.iter().zip(&self.tokens);
        let sent = sent.map(|(input, tokens)| RankInput { tokens, ..*input }).collect();
        let oracle = Oracle::new(Shape::new(bench.ep.plan().config(), world.size()), sent)?;
        bench.tensors.output.fill(0xff).map_err(Error::from)?;
        let dispatched = self.dispatch(bench)?;
        world.synchronize(&bench.stream).map_err(Error::from)?;
        let received =
            ReceivedRows::read(world.device(), bench.ep.plan(), &dispatched).map_err(Error::from)?;
        let rows = oracle.dispatch(me)?.compare_rows(&received);
        if let Err(mismatch) = &rows {
            tracing::error!("dispatch with a saved routing: {mismatch}");
        }
        bench.run_experts(&dispatched)?;
        bench.combine(dispatched)?;
        world.synchronize(&bench.stream).map_err(Error::from)?;
        Ok(bench.compare_output(&oracle)? && rows.is_ok())
    }
}
