//! Lowering of a list of steps to kernel arguments. Pure arithmetic.

use anabranch_hip_jit::DevicePointer;
use anabranch_hip_jit::bytemuck;
use anabranch_ranks::Nodes;

use super::is_internode;
use super::layout::most_ports;
use super::schedule::{self, Port, Step, Work};
use crate::device::args::{LinkPort, LinkStep, Links, MOST_STEP_WORDS, NetworkArgs, Reduction};
use crate::types::DataType;

/// Flag of a [`LinkPort`]: a link, not a buffer of this rank.
const PORT_LINK: u32 = 1;
/// Flag of a [`LinkPort`]: the link is to or from a member on another node.
const PORT_INTERNODE: u32 = 2;

/// Flag of a [`LinkStep`]: its sources are reduced. Otherwise the bytes of its one source move.
const STEP_REDUCES: u32 = 1;
/// Flag of a [`LinkStep`]: its first source is an unrounded sum.
const STEP_TAKES_UNROUNDED: u32 = 2;
/// Flag of a [`LinkStep`]: its targets get the unrounded sum.
const STEP_GIVES_UNROUNDED: u32 = 4;
/// Flag of a [`LinkStep`]: channel 0 runs it once, without bytes.
const STEP_IS_TOKEN: u32 = 8;
/// Flag of a [`LinkStep`]: its sources are packed into its one target.
const STEP_PACKS: u32 = 16;
/// Flag of a [`LinkStep`]: its one source is unpacked to its targets.
const STEP_UNPACKS: u32 = 32;

/// Addresses of the tensors of this rank; 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensors {
    /// The input.
    pub input: u64,
    /// The output.
    pub output: u64,
}

/// A list of steps as kernels read it: words of the steps, then words of their ports.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The words, for the arguments, or for [`anabranch_shmem::Team::table`] if they do not fit.
    pub words: Vec<u64>,
    steps: u32,
    times: u64,
}

/// The words of `steps` over tensors at these addresses, in pieces of `piece_bytes` bytes on `channels` channels.
pub fn list(
    nodes: &Nodes,
    me: u32,
    steps: &[Step],
    tensors: Tensors,
    piece_bytes: u64,
    channels: u32,
) -> Listed {
    let mut ports: Vec<LinkPort> = Vec::new();
    let mut listed: Vec<LinkStep> = Vec::new();
    for step in steps {
        debug_assert!((step.sources.len() + step.targets.len()) as u32 <= most_ports(nodes.size()));
        let flags = match step.work {
            Work::Moves => 0,
            Work::Sums { .. } => STEP_REDUCES,
            Work::Packs => STEP_PACKS,
            Work::Unpacks => STEP_UNPACKS,
            Work::Barrier => STEP_IS_TOKEN,
        };
        let unrounded =
            [(step.takes_unrounded(), STEP_TAKES_UNROUNDED), (step.gives_unrounded(), STEP_GIVES_UNROUNDED)];
        listed.push(LinkStep {
            bytes: step.bytes,
            first_port: ports.len() as u32,
            sources: step.sources.len() as u32,
            targets: step.targets.len() as u32,
            lag: step.lag,
            flags: unrounded
                .iter()
                .filter(|(is_set, _)| *is_set)
                .fold(flags, |flags, (_, flag)| flags | flag),
            reserved: 0,
        });
        ports.extend(step.sources.iter().chain(&step.targets).map(|port| match *port {
            Port::Input { offset } => LinkPort { address: tensors.input + offset, peer: 0, flags: 0 },
            Port::Output { offset } => LinkPort { address: tensors.output + offset, peer: 0, flags: 0 },
            Port::Link { peer, stream } => {
                let across = if is_internode(nodes, me, peer) { PORT_INTERNODE } else { 0 };
                LinkPort { address: stream.into(), peer, flags: PORT_LINK | across }
            }
        }));
    }
    let mut words: Vec<u64> = bytemuck::cast_slice(&listed).to_vec();
    words.extend_from_slice(bytemuck::cast_slice(&ports));
    Listed { words, steps: listed.len() as u32, times: schedule::times(steps, piece_bytes, channels) }
}

impl Listed {
    /// Whether the list does not fit into the arguments.
    pub(crate) fn is_long(&self) -> bool {
        self.words.len() > MOST_STEP_WORDS
    }

    /// The arguments of a launch. If the list does not fit, its words are at `table` in device memory.
    pub fn arguments(
        &self,
        links: &Links,
        table: DevicePointer<u64>,
        reduction: Reduction,
        piece_bytes: u64,
    ) -> Box<NetworkArgs> {
        let mut args = Box::new(NetworkArgs {
            links: *links,
            reduction,
            table: DevicePointer::NULL,
            piece_bytes,
            times: self.times,
            step_count: self.steps,
            reserved: 0,
            words: [0; MOST_STEP_WORDS],
        });
        match args.words.get_mut(..self.words.len()) {
            Some(words) => words.copy_from_slice(&self.words),
            None => args.table = table,
        }
        args
    }
}

/// Bytes of tensors in a slot; for reductions, those whose unrounded elements fill it. A multiple of 16.
pub(crate) fn slot_pieces(slot_bytes: u64, data_type: DataType, reduces: bool) -> u64 {
    let size = u64::from(data_type.bytes());
    let travelling = if reduces { unrounded_bytes(size, data_type) } else { size };
    slot_bytes / travelling * size
}

/// Bytes on a link of `bytes` bytes of unrounded sums: at least f32 for floating point.
pub(crate) fn unrounded_bytes(bytes: u64, data_type: DataType) -> u64 {
    let size = u64::from(data_type.bytes());
    if data_type.is_float() { bytes / size * size.max(4) } else { bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::schedule::Exchange;
    use crate::types::DATA_TYPES;

    #[test]
    fn arguments_hold_the_steps_of_twenty_members() {
        let machines: Vec<u32> = (0..20).map(|member| member / 5).collect();
        let (nodes, bytes) = (Nodes::new(&machines), 1 << 30);
        let tensors = Tensors { input: 4096, output: 8192 };
        for exchange in [
            Exchange::AllReduce { bytes },
            Exchange::ReduceScatter { bytes: vec![bytes; 20] },
            Exchange::AllGather { bytes: vec![bytes; 20] },
            Exchange::AllToAll { sent: vec![bytes; 20], received: vec![bytes; 20] },
        ] {
            for me in [0, 7, 19] {
                let direct = schedule::direct(20, me, &exchange);
                assert!(!list(&nodes, me, &direct, tensors, 4096, 4).is_long(), "{exchange:?}");
                let Ok(by_node) = schedule::by_node(&nodes, me, &exchange) else { continue };
                assert!(!list(&nodes, me, &by_node, tensors, 4096, 4).is_long(), "{exchange:?} by node");
            }
        }
        let direct = schedule::direct(64, 3, &Exchange::AllReduce { bytes });
        assert!(list(&Nodes::new(&[0; 64]), 3, &direct, tensors, 4096, 4).is_long());
    }

    #[test]
    fn pieces_are_whole_units_that_fit_into_slots() {
        for data_type in DATA_TYPES {
            for slot in [256, 512, 1280, 128 << 10] {
                let piece = slot_pieces(slot, data_type, true);
                assert!(
                    piece.is_multiple_of(16) && piece > 0 && piece <= slot,
                    "{data_type} {slot}: {piece}"
                );
                assert_eq!(slot_pieces(slot, data_type, false), slot);
            }
        }
        assert_eq!(slot_pieces(256, DataType::Bf16, true), 128);
        assert_eq!(slot_pieces(256, DataType::F64, true), 256);
    }
}
