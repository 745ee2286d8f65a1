//! User buffers that peers may reach.

use anabranch_hip::DeviceAddress;
use anabranch_hip_jit::DevicePointer;
use anabranch_ranks::{Group, GroupRank};
use anabranch_transport::{PeerMemory, Region};
use serde::{Deserialize, Serialize};

use crate::collective::compare_fields;
use crate::error::{Error, Result};
use crate::route::{Offers, Table, Transports, is_mapped};
use crate::world::World;

#[derive(Debug, Serialize, Deserialize)]
struct Registered {
    bytes: u64,
    tag: String,
    offers: Offers,
}

/// A buffer of every member of a group, mapped on all of them.
///
/// The same buffer may be registered several times; mappings are shared and closed with the last registration. The buffers
/// must outlive the registrations of *all* members: end it with [`Self::release`], which returns when all have, or
/// order the frees in another way.
#[derive(Debug)]
pub struct Registration {
    world: World,
    group: Group,
    bytes: u64,
    sequence: u64,
    table: Table,
    members: Vec<Box<dyn PeerMemory>>,
}

impl World {
    /// Makes `bytes` bytes at `address` of this rank's device memory reachable for the members of `group`, and theirs for
    /// this rank. Collective over the group, with equal `bytes` and `tag`; the addresses may differ. Never happens by
    /// itself inside an operation.
    ///
    /// # Errors
    /// On all members alike: [`Error::Differs`]; an address that is not this device's, or a range that leaves its
    /// allocation; memory that its runtime cannot share between processes (with the call and its code).
    ///
    /// # Safety
    /// The memory must stay allocated until every member's registration has ended, and no kernel may use the registration once
    /// it was dropped or released: launches of crates above with tensors in it keep the allocation of no registration.
    pub unsafe fn register(
        &self,
        group: &Group,
        address: DeviceAddress,
        bytes: u64,
        tag: &str,
    ) -> Result<Registration> {
        self.check()?;
        let step = format!("register ({tag})");
        let peers = || group.members().iter().filter_map(|member| self.peer(*member));
        let audience = Transports::audience(self.local(), peers());
        let region = Region { address: address.0, bytes };
        let offers =
            self.inner.with_connections(|connections| connections.transports.export(region, audience));
        let mine = offers.map(|offers| Registered { bytes, tag: tag.to_owned(), offers });
        let agreed = self.agree(group, &step, mine)?;
        let fields = agreed.parts.iter().map(|one| {
            vec![("bytes".to_owned(), one.bytes.to_string()), ("tag".to_owned(), format!("{:?}", one.tag))]
        });
        compare_fields(&step, group, &fields.collect::<Vec<_>>())?;
        let opened = self.open_all(group, &agreed.parts, bytes);
        let status = opened.as_ref().map(|_| ()).map_err(|error| anabranch_hip::with_causes(error));
        self.agree_status(group, &step, status)?;
        let (members, table) = opened?;
        let (world, group, sequence) = (self.clone(), group.clone(), agreed.sequence);
        Ok(Registration { world, group, bytes, sequence, table, members })
    }

    fn open_all(
        &self,
        group: &Group,
        parts: &[Registered],
        bytes: u64,
    ) -> Result<(Vec<Box<dyn PeerMemory>>, Table)> {
        let members = self.inner.with_connections(|connections| {
            let mut members = Vec::with_capacity(parts.len());
            for (one, member) in parts.iter().zip(group.members()) {
                let (Some(peer), Some(place)) = (self.peer(*member), connections.places.get(member.index()))
                else {
                    return Err(Error::Unreachable { peer: *member, considered: Vec::new() });
                };
                members.push(connections.transports.open(*place, peer, &one.offers, bytes)?);
            }
            Ok(members)
        })?;
        let words: Vec<u64> = members.iter().map(|member| mapped_address(member.as_ref())).collect();
        let table = self.inner.tables.write(&words)?;
        Ok((members, table))
    }
}

/// The address for kernels; null for memory that loads and stores do not reach, and it stays null.
fn mapped_address(memory: &dyn PeerMemory) -> u64 {
    if is_mapped(memory.origin()) { memory.address() } else { 0 }
}

impl Registration {
    /// Where each member's buffer starts as kernels of this rank see it: a table in device memory, in group order.
    pub fn table(&self) -> DevicePointer<u64> {
        DevicePointer::new(self.table.address())
    }

    /// Where a member's buffer starts as kernels of this rank see it.
    pub fn peer_address(&self, peer: GroupRank) -> Option<DeviceAddress> {
        let address = mapped_address(self.members.get(peer.index())?.as_ref());
        (address != 0).then_some(DeviceAddress(address))
    }

    /// Bytes of each member's buffer.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its number among the group's collective steps: equal on all members, and no other registration of the group has it.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Ends the registration on all members; afterwards the buffers may be freed. Collective over the group. No kernel may
    /// use it any more.
    ///
    /// # Errors
    /// Why the members did not come together; the mappings of this rank are closed in any case.
    pub fn release(self) -> Result<()> {
        let (world, group) = (self.world.clone(), self.group.clone());
        drop(self);
        world.check()?;
        world.agree_status(&group, "release registration", Ok(()))
    }
}
