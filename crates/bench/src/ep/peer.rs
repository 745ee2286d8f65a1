//! NCCL's all_to_all of as many bytes over the links, for comparison with dispatch and combine.

use anabranch::{Environment, Error, RuntimeKind, World};
use anabranch_ccl::{DataType, ReduceOp};
use anabranch_hip::{DeviceBuffer, Stream};
use anabranch_shmem::Team;
use anyhow::bail;

use super::EpArgs;
use crate::ccl::arguments::Peer;
use crate::ccl::collective::Collective;
use crate::ccl::contender::{Area, Case, Contender};
use crate::ccl::nccl::{Nccl, NcclLibrary};
use crate::ccl::timing::{self, Timing};
use crate::statistics::{Samples, slowest_of_ranks};
use crate::{device, link};

/// The checks of the starting process, before it starts ranks.
///
/// # Errors
/// Another runtime than NVIDIA's; no library.
pub(super) fn check(arguments: &EpArgs, runtime: RuntimeKind) -> anyhow::Result<()> {
    if arguments.compare.is_empty() {
        return Ok(());
    }
    if runtime != RuntimeKind::Nvidia {
        bail!(
            "--compare: NCCL runs on NVIDIA GPUs, and device.runtime is {runtime}; take --runtime nvidia, or omit --compare"
        );
    }
    open(arguments).map(|_| ())
}

fn open(arguments: &EpArgs) -> anyhow::Result<NcclLibrary> {
    Ok(NcclLibrary::open(arguments.nccl_library.as_deref(), &Environment::of_process())?)
}

/// The peers' all_to_all between all ranks of a world, on one rank.
pub(super) struct AllToAll<'a> {
    world: &'a World,
    team: Team,
    stream: &'a Stream,
    contenders: Vec<Box<dyn Contender + 'a>>,
    /// Memory for NCCL on plain memory.
    #[expect(dead_code, reason = "dropped after the contenders that use it")]
    buffer: DeviceBuffer,
}

impl<'a> AllToAll<'a> {
    /// For up to `most` bytes between each pair of ranks; `None` without `--compare`. Collective over the world.
    ///
    /// # Errors
    /// Errors of NCCL's calls; a fault of the world.
    pub(super) fn new(
        world: &'a World,
        stream: &'a Stream,
        arguments: &EpArgs,
        most: u64,
    ) -> anyhow::Result<Option<Self>> {
        if arguments.compare.is_empty() {
            return Ok(None);
        }
        let library = open(arguments)?;
        let bytes = 2 * u64::from(world.size()) * most.next_multiple_of(4096) + 8192;
        let buffer = device::upload(world, &vec![0; bytes as usize])?;
        let area = Area { start: buffer.address(), bytes };
        let (group, team) = (world.group(), world.team(world.group()).map_err(Error::from)?);
        let me = team.rank();
        let mut contenders: Vec<Box<dyn Contender>> = Vec::new();
        for peer in &arguments.compare {
            let library = library.clone();
            contenders.push(Box::new(match peer {
                Peer::Nccl => Nccl::on(world, group, me, library, area)?,
                Peer::NcclSymmetric => Nccl::symmetric(world, group, me, library, bytes)?,
            }));
        }
        Ok(Some(Self { world, team, stream, contenders, buffer }))
    }

    /// The median time with this many bytes between each pair, of each peer by its name, microseconds; timed one call at a time
    /// after a barrier, like dispatch and combine. Collective over the world.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(super) fn time(
        &mut self,
        bytes: u64,
        samples: u32,
        graph: bool,
    ) -> anyhow::Result<Vec<(&'static str, f64)>> {
        let ranks = self.world.size();
        let data_type = DataType::Bf16;
        let case = Case {
            collective: Collective::AllToAll,
            data_type,
            reduce: ReduceOp::Sum,
            elements: Collective::AllToAll.elements(
                bytes.max(16) * u64::from(ranks),
                u64::from(data_type.bytes()),
                ranks,
            )?,
            in_place: false,
            root: self.team.rank(),
            group: self.world.group().clone(),
            me: self.team.rank(),
        };
        for contender in &mut self.contenders {
            contender.prepare(&case)?;
        }
        let timing = Timing { graph, operations: 1, per_round: samples.div_ceil(timing::ROUNDS).max(1) };
        let mine = timing::time(self.world, &self.team, self.stream, &mut self.contenders, timing)?;
        let mut medians = Vec::new();
        for (contender, samples) in self.contenders.iter().zip(&mine) {
            let of_ranks = link::gather(self.world, self.world.group(), "ep peer times", samples)?;
            medians.push((contender.name(), Samples::new(slowest_of_ranks(&of_ranks)).median()));
        }
        Ok(medians)
    }

    /// Ends NCCL's communicators. Collective over the world.
    ///
    /// # Errors
    /// Errors of NCCL's calls.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        self.contenders.into_iter().try_for_each(Contender::finish)
    }
}
