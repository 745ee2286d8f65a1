//! Provisional: pushes by copy engine between barriers.
use super::arguments::CclArgs;
use super::collective::Collective;
use super::contender::{Area, Case, Contender, Description};
use anabranch::ccl::DataType;
use anabranch::hip::Stream;
use anabranch::jit::KernelSpec;
use anabranch::shmem::{SymmetricMemory, Team};
use anabranch::{Error, Group, World};
pub(super) fn kernels(_: DataType) -> Vec<KernelSpec> {
    Vec::new()
}
pub(super) fn check_algorithm(_: Option<&str>) -> anyhow::Result<()> {
    Ok(())
}
pub(super) struct Ours {
    team: Team,
    memory: SymmetricMemory,
    case: Option<Case>,
}
impl Ours {
    pub(super) fn new(world: &World, group: &Group, _: &CclArgs, bytes: u64) -> anyhow::Result<Self> {
        Ok(Self {
            team: world.team(group).map_err(Error::from)?,
            memory: world.allocate(group, bytes, 4096, "bench ccl").map_err(Error::from)?,
            case: None,
        })
    }
}
impl Contender for Ours {
    fn name(&self) -> &'static str {
        "anabranch"
    }
    fn prepare(&mut self, case: &Case) -> anyhow::Result<()> {
        self.case = Some(case.clone());
        Ok(())
    }
    fn memory(&self) -> Area {
        Area { start: self.memory.address(), bytes: self.memory.bytes() }
    }
    #[expect(unsafe_code, reason = "provisional")]
    fn enqueue(&mut self, stream: &Stream) -> anyhow::Result<()> {
        let case = self.case.as_ref().unwrap();
        let part = case.size_of(case.elements.count);
        self.team.barrier(stream).map_err(Error::from)?;
        for peer in case.group.ranks() {
            let places = Case { me: peer, ..case.clone() }.places();
            let mine = case.places();
            let other = self.memory.peer_address(peer).unwrap();
            let (from, to) = match case.collective {
                Collective::AllGather => (mine.input, places.output + part * u64::from(case.me.get())),
                Collective::AllToAll => (
                    mine.input + part * u64::from(peer.get()),
                    places.output + part * u64::from(case.me.get()),
                ),
                Collective::Gather if peer == case.root => {
                    (mine.input, places.output + part * u64::from(case.me.get()))
                }
                Collective::Broadcast if case.me == case.root => (mine.input, places.output),
                Collective::Scatter if case.me == case.root => {
                    (mine.input + part * u64::from(peer.get()), places.output)
                }
                _ => continue,
            };
            unsafe { stream.copy_async(other.offset(to), self.memory.address().offset(from), part as usize) }
                .map_err(Error::from)?;
        }
        self.team.barrier(stream).map_err(Error::from)?;
        Ok(())
    }
    fn describe(&self) -> Description {
        Description { algorithm: Some("copy".into()), blocks: Some(1) }
    }
    fn finish(self: Box<Self>) -> anyhow::Result<()> {
        self.memory.free().map_err(Error::from)?;
        Ok(())
    }
}
