//! Traffic of internode calls on the links of every member, counted over its steps, for any number of nodes. Pure arithmetic.

use anabranch_ranks::{Across, LinkSpeeds, Moved, Nodes, TimeParts};

use super::chains::Chains;
pub use super::chains::Hops;
use super::cost_model::parts_of;
use super::form::{piece_bytes_of, plan_of, steps_of};
use super::layout::channels_for;
use super::lower::unrounded_bytes;
use super::schedule::{Port, Step, Work, packed_stride};
use super::{LinkLayout, is_internode};
use crate::device::channel::{LEAST_STAGING, MOST_BLOCKS, MOST_STAGING};
use crate::lower::Counts;
use crate::network::layout::INTERNODE_CHANNELS;
use crate::plan::{Choice, Limits, Plan};
use crate::types::{Algorithm, Error, Result, Shape};

/// Bytes of a counter update, for an arrived chunk or a free slot.
const COUNTER_BYTES: u64 = 8;

/// Capacity of the links of a communicator, which decides the number of chunks of a message. The default is that of a large GPU with a heap
/// of at least 4 GiB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkCapacity {
    /// The most blocks of a launch (`ccl.max_blocks`): 1 to 1024. `None`: the default of a communicator on a large GPU.
    pub channels: Option<u32>,
    /// Bytes of the heap for the slots of all links (`ccl.staging_bytes`): at least 4096.
    pub staging_bytes: u64,
    /// Link speeds (`[links]`), which select the form and the size of chunks.
    pub speeds: LinkSpeeds,
}

impl Default for LinkCapacity {
    fn default() -> Self {
        Self { channels: None, staging_bytes: MOST_STAGING, speeds: LinkSpeeds::default() }
    }
}

/// Traffic of some links of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTraffic {
    /// Bytes of chunks on the link: unrounded sums have the length of the accumulation type.
    pub bytes: u64,
    /// Chunks, including the empty ones of a barrier.
    pub chunks: u64,
}

impl LinkTraffic {
    fn add(&mut self, bytes: u64, chunks: u64) {
        self.bytes += bytes;
        self.chunks += chunks;
    }
}

/// Traffic of the links of one member in one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberTraffic {
    /// Sent to members of its node.
    pub given_inside: LinkTraffic,
    /// Sent to members of other nodes.
    pub given_between: LinkTraffic,
    /// Received from members of its node.
    pub taken_inside: LinkTraffic,
    /// Received from members of other nodes.
    pub taken_between: LinkTraffic,
    /// Requests to its NIC: for each chunk sent the data, if any, and the counter after it; for each chunk received the counter that frees
    /// the slot. Assumes that the NIC takes chunks unsplit.
    pub requests: u64,
}

impl MemberTraffic {
    /// Bytes on links within its node, in the direction with more.
    pub fn inside_bytes(&self) -> u64 {
        self.given_inside.bytes.max(self.taken_inside.bytes)
    }

    /// Bytes on its NIC, in the direction with more, without counters.
    pub fn between_bytes(&self) -> u64 {
        self.given_between.bytes.max(self.taken_between.bytes)
    }

    /// Bytes that its NIC writes at peers: chunks and counters.
    pub fn nic_bytes(&self) -> u64 {
        let counters = self.given_between.chunks + self.taken_between.chunks;
        self.given_between.bytes + counters * COUNTER_BYTES
    }
}

/// Traffic of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallTraffic {
    /// The form: [`Algorithm::NetworkDirect`] or [`Algorithm::NetworkByNode`].
    pub algorithm: Algorithm,
    /// Traffic of each member, in group order.
    pub members: Vec<MemberTraffic>,
    /// Hops of the longest chain from an input to an output.
    pub hops: Hops,
    /// Bytes on a link of the longest step in one time: what a hop has to send before the next hop can start.
    pub time_bytes: u64,
}

impl CallTraffic {
    /// The maximum over members of each quantity.
    #[must_use]
    pub fn moved(&self) -> Moved {
        let most =
            |of: fn(&MemberTraffic) -> u64| self.members.iter().map(of).max().unwrap_or_default() as f64;
        Moved {
            inside_bytes: most(MemberTraffic::inside_bytes),
            between_bytes: most(MemberTraffic::between_bytes),
            messages: most(|member| member.requests),
            inside_hops: self.hops.inside,
            between_hops: self.hops.between,
            launches: 1,
        }
    }

    /// The parts of its time at these speeds. Links within nodes, NICs and their queues work concurrently, chunk by chunk, after the first
    /// chunks of all hops but the last.
    #[must_use]
    pub fn parts(&self, speeds: &LinkSpeeds) -> TimeParts {
        parts_of(&self.moved(), self.time_bytes as f64, speeds)
    }
}

/// Traffic of a call of this shape with equal counts. `node_of[m]` is the node of member m, as an arbitrary number. Members on one node
/// are counted in the direct form, though a communicator uses other kernels there. Not collective; needs no device.
///
/// Counted over the steps that the kernels run. Time and memory grow with the square of the number of members.
///
/// # Errors
/// [`Error::Config`] for nodes that are not one per member, and for a capacity out of range; [`Error::Algorithm`] for [`Across::Node`] if
/// the nodes or the collective do not allow it; [`Error::Unmapped`] for sends and receives.
pub fn call_traffic(
    shape: &Shape,
    node_of: &[u32],
    across: Across,
    room: LinkCapacity,
) -> Result<CallTraffic> {
    let refused = |field, given, allowed| Err(Error::Config { field, given, allowed });
    if node_of.is_empty() || node_of.len() as u64 != u64::from(shape.members) {
        return refused("nodes", node_of.len() as u64, "one for each member, and at least one member");
    }
    if let Some(channels) = room.channels.filter(|channels| !(1..=MOST_BLOCKS).contains(channels)) {
        return refused("channels", channels.into(), "1 to 1024");
    }
    if room.staging_bytes < LEAST_STAGING {
        return refused("staging_bytes", room.staging_bytes, "4096 at least");
    }
    let nodes = Nodes::new(node_of);
    let channels = room
        .channels
        .unwrap_or_else(|| channels_for(shape.members, room.staging_bytes, INTERNODE_CHANNELS, &room.speeds));
    // The number of bulk blocks does not depend on threads.
    let limits = Limits {
        channels,
        block_threads: 1,
        barrier_threads: 1,
        row_channels: 0,
        row_threads: 256,
        row_bytes: 0,
    };
    let slot_bytes = LinkLayout::new(0, shape.members, channels, room.staging_bytes).slot_bytes;
    let plan = plan_of(&nodes, across, (shape, &limits, Choice::default()), (slot_bytes, room.speeds))?;
    let Plan { algorithm, blocks, .. } = plan;

    let mut members = Vec::with_capacity(node_of.len());
    let mut chains = Chains::default();
    let mut time_bytes = 0;
    for me in 0..shape.members {
        let steps = steps_of(&nodes, me, algorithm, shape, Counts::Even)?;
        let piece_bytes = piece_bytes_of(&nodes, &plan, shape, &steps, slot_bytes);
        let mut member = MemberTraffic::default();
        for step in &steps {
            let of_one_time = Step { bytes: step.bytes.min(piece_bytes * u64::from(blocks)), ..step.clone() };
            time_bytes = time_bytes.max(given(&of_one_time, shape));
            member.count(step, me, &nodes, shape, piece_bytes);
            if chunks_of(step, piece_bytes) > 0 {
                chains.push(me, step, |peer| is_internode(&nodes, me, peer));
            }
        }
        members.push(member);
    }
    Ok(CallTraffic { algorithm, members, hops: chains.longest(), time_bytes })
}

/// Chunks of all channels.
fn chunks_of(step: &Step, piece_bytes: u64) -> u64 {
    step.chunks(piece_bytes, 0, 1)
}

/// Bytes of a step on a link of its sources; `is_first` for the first source.
fn taken(step: &Step, shape: &Shape, is_first: bool) -> u64 {
    link_bytes(step.bytes, shape, is_first && step.takes_unrounded(), step.pieces_taken())
}

/// Bytes of a step on each link of its targets.
fn given(step: &Step, shape: &Shape) -> u64 {
    link_bytes(step.bytes, shape, step.gives_unrounded(), step.pieces_given())
}

/// Chunks of one piece have the length of the data. In chunks of several pieces each piece has a full stride.
fn link_bytes(bytes: u64, shape: &Shape, unrounded: bool, pieces: u64) -> u64 {
    let bytes = if unrounded { unrounded_bytes(bytes, shape.data_type) } else { bytes };
    if pieces == 1 { bytes } else { pieces * packed_stride(bytes) }
}

impl MemberTraffic {
    fn count(&mut self, step: &Step, me: u32, nodes: &Nodes, shape: &Shape, piece_bytes: u64) {
        let chunks = chunks_of(step, piece_bytes);
        for (index, port) in step.sources.iter().enumerate() {
            let Port::Link { peer, .. } = *port else { continue };
            let bytes = taken(step, shape, index == 0);
            if is_internode(nodes, me, peer) {
                self.taken_between.add(bytes, chunks);
                self.requests += chunks;
            } else {
                self.taken_inside.add(bytes, chunks);
            }
        }
        for port in &step.targets {
            let Port::Link { peer, .. } = *port else { continue };
            let bytes = given(step, shape);
            if is_internode(nodes, me, peer) {
                self.given_between.add(bytes, chunks);
                self.requests += if step.work == Work::Barrier { chunks } else { 2 * chunks };
            } else {
                self.given_inside.add(bytes, chunks);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::types::{Collective, DataType, ReduceOp};

    fn machines(count: u32, size: u32) -> Vec<u32> {
        (0..count * size).map(|member| member / size).collect()
    }

    fn shape(collective: Collective, members: u32, count: u64) -> Shape {
        let op = collective.reduces().then_some(ReduceOp::Sum);
        Shape { data_type: DataType::Bf16, op, ..Shape::of_bytes(collective, members, count) }
    }

    fn traffic(collective: Collective, (nodes, size): (u32, u32), count: u64, across: Across) -> CallTraffic {
        let shape = shape(collective, nodes * size, count);
        call_traffic(&shape, &machines(nodes, size), across, LinkCapacity::default()).unwrap()
    }

    fn most(of: &CallTraffic, bytes: impl Fn(&MemberTraffic) -> u64) -> u64 {
        of.members.iter().map(bytes).max().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// The formulas in `hierarchical.rs` and `direct.rs`, for a count that all parts divide.
        #[test]
        fn bytes_match_the_formulas_of_the_forms(nodes in 2u32..6, size in 2u32..5, units in 1u64..40) {
            let (wide, n, l) = (u64::from(nodes * size), u64::from(nodes), u64::from(size));
            let count = units * 8 * wide * l;
            let of = |collective, across| {
                most(&traffic(collective, (nodes, size), count, across), MemberTraffic::between_bytes)
            };
            let bytes = 2 * count;
            let far = wide - l;
            prop_assert_eq!(of(Collective::AllGather, Across::Direct), far * bytes);
            prop_assert_eq!(of(Collective::AllGather, Across::Node), far * bytes / l);
            prop_assert_eq!(of(Collective::AllToAll, Across::Direct), far * bytes);
            prop_assert_eq!(of(Collective::Broadcast, Across::Direct), far * bytes);
            prop_assert_eq!(of(Collective::Broadcast, Across::Node), (n - 1) * bytes / l);
            prop_assert_eq!(of(Collective::ReduceScatter, Across::Direct), far * bytes);
            let sums = if (wide - 1) * bytes <= 128 << 10 { far * bytes } else { 2 * far * bytes / wide };
            prop_assert_eq!(of(Collective::AllReduce, Across::Direct), sums);
            // With two nodes the first sends only unrounded sums and the last only rounded ones. Nodes in between send both.
            let per_link = if nodes == 2 { 2 } else { 3 };
            prop_assert_eq!(of(Collective::AllReduce, Across::Node), per_link * bytes / l);
        }

        /// The totals sent and received agree. More nodes never have fewer internode bytes.
        #[test]
        fn sent_traffic_equals_received_traffic(nodes in 1u32..5, size in 1u32..5, count in 1u64..20_000, node in any::<bool>()) {
            for collective in Collective::ALL {
                if collective == Collective::SendReceive {
                    continue;
                }
                let shape = shape(collective, nodes * size, count);
                let across = if node { Across::Node } else { Across::Direct };
                let Ok(traffic) = call_traffic(&shape, &machines(nodes, size), across, LinkCapacity::default()) else {
                    prop_assert!(node);
                    continue;
                };
                let sum = |of: fn(&MemberTraffic) -> LinkTraffic| {
                    traffic.members.iter().map(of).fold((0, 0), |sum, one| (sum.0 + one.bytes, sum.1 + one.chunks))
                };
                prop_assert_eq!(sum(|one| one.given_inside), sum(|one| one.taken_inside));
                prop_assert_eq!(sum(|one| one.given_between), sum(|one| one.taken_between));
                prop_assert_eq!(traffic.hops.between == 0, nodes == 1, "{:?}", traffic.hops);
                let requests: u64 = traffic.members.iter().map(|one| one.requests).sum();
                let chunks = sum(|one| one.given_between).1;
                prop_assert_eq!(requests, if collective == Collective::Barrier { 2 * chunks } else { 3 * chunks });
            }
        }
    }

    #[test]
    fn hops_match_the_forms() {
        let hops = |collective, across| {
            let Hops { between, inside } = traffic(collective, (4, 2), 1 << 20, across).hops;
            (between, inside)
        };
        assert_eq!(hops(Collective::AllGather, Across::Direct), (1, 0));
        assert_eq!(hops(Collective::AllReduce, Across::Direct), (2, 0));
        assert_eq!(hops(Collective::AllGather, Across::Node), (1, 1));
        // Within the node, to the last node, from it to the node before it, within the node.
        assert_eq!(hops(Collective::AllReduce, Across::Node), (3 + 3, 2));
        assert_eq!(hops(Collective::ReduceScatter, Across::Node), (3 + 1, 1));
        assert_eq!(hops(Collective::Broadcast, Across::Node), (1, 2));
        assert_eq!(hops(Collective::AllToAll, Across::Node), (1, 1));
        assert_eq!(hops(Collective::Barrier, Across::Auto), (1, 0));
    }

    #[test]
    fn unrounded_sums_are_twice_as_long_in_bf16_only() {
        let of = |data_type| {
            let shape = Shape { data_type, ..shape(Collective::ReduceScatter, 4, 1 << 16) };
            let traffic =
                call_traffic(&shape, &machines(2, 2), Across::Node, LinkCapacity::default()).unwrap();
            let between = traffic.members.iter().map(|one| one.given_between.bytes);
            (between.collect::<Vec<_>>(), shape.bytes())
        };
        // The first node sends two unrounded sums, the last node one rounded result.
        let (between, part) = of(DataType::Bf16);
        assert_eq!(between, [4 * part, 4 * part, part, part]);
        let (between, part) = of(DataType::F32);
        assert_eq!(between, [2 * part, 2 * part, part, part]);
    }

    #[test]
    fn less_capacity_means_more_chunks_of_the_same_bytes() {
        let of = |staging_bytes| {
            let room = LinkCapacity { staging_bytes, channels: Some(4), ..LinkCapacity::default() };
            let shape = shape(Collective::AllGather, 4, 1 << 20);
            call_traffic(&shape, &machines(2, 2), Across::Node, room).unwrap()
        };
        let (large, small) = (of(64 << 20), of(64 << 10));
        assert!(most(&small, |one| one.requests) > 8 * most(&large, |one| one.requests));
        assert_eq!(most(&small, MemberTraffic::between_bytes), most(&large, MemberTraffic::between_bytes));
        assert!(small.time_bytes < large.time_bytes);
    }

    #[test]
    fn requests_do_not_take_longer_than_bytes() {
        let speeds = LinkSpeeds::default();
        for (nodes, across) in
            [(2, Across::Direct), (8, Across::Direct), (32, Across::Direct), (32, Across::Node)]
        {
            for collective in [Collective::AllGather, Collective::AllToAll, Collective::Broadcast] {
                for bytes in [1 << 20, 256 << 20] {
                    let traffic = traffic(collective, (nodes, 8), bytes / 2 / u64::from(nodes * 8), across);
                    let requests = most(&traffic, |member| member.requests) as f64 * speeds.nic_message_us;
                    let between = speeds.between_us(most(&traffic, MemberTraffic::between_bytes) as f64);
                    // Data shorter than a chunk takes one chunk, with its requests.
                    let links = f64::from(3 * nodes * 8) * speeds.nic_message_us;
                    let given = format!("{collective} {across} {nodes} {bytes}: {requests} {between}");
                    assert!(requests <= (1.02 * between).max(links), "{given}");
                }
            }
        }
    }

    #[test]
    fn invalid_arguments_are_refused() {
        let all_gather = shape(Collective::AllGather, 4, 16);
        let refused = |shape: &Shape, machines: &[u32], across, room| {
            call_traffic(shape, machines, across, room).unwrap_err().to_string()
        };
        let room = LinkCapacity::default();
        let text = refused(&all_gather, &[0, 1, 1], Across::Auto, room);
        assert!(text.contains("nodes") && text.contains("one for each member"), "{text}");
        let text = refused(&all_gather, &[0, 1, 2, 3], Across::Node, room);
        assert!(text.contains("one member each"), "{text}");
        let text = refused(&shape(Collective::Gather, 4, 16), &[0, 0, 1, 1], Across::Node, room);
        assert!(text.contains("none of its data is for several members"), "{text}");
        let text =
            refused(&all_gather, &[0, 0, 1, 1], Across::Auto, LinkCapacity { channels: Some(0), ..room });
        assert!(text.contains("channels") && text.contains("1 to 1024"), "{text}");
        let text =
            refused(&all_gather, &[0, 0, 1, 1], Across::Auto, LinkCapacity { staging_bytes: 9, ..room });
        assert!(text.contains("staging_bytes") && text.contains("4096"), "{text}");
        let message = shape(Collective::SendReceive, 4, 16);
        assert!(
            refused(&message, &[0, 0, 1, 1], Across::Auto, room).contains("a message between two members")
        );
    }
}
