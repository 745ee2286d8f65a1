//! Every form, run by simulated members that wait for each other, with symbolic bytes.

use std::collections::{HashMap, VecDeque};

use anabranch_ranks::Nodes;
use proptest::prelude::*;

use super::is_internode;
use super::layout::DEPTH;
use super::schedule::{self, Exchange, Port, Step, Work, starts};

/// A byte: the contributions in order, each as (member, offset in its input).
type Byte = Vec<(u32, u64)>;
type Queue = VecDeque<(Vec<Byte>, bool)>;

const PIECE: u64 = 16;

/// One channel of one member, and its progress.
struct Channel {
    me: u32,
    number: u32,
    steps: Vec<Step>,
    time: u64,
    next: usize,
}

struct Machine {
    channels: u32,
    input: Vec<u64>,
    outputs: Vec<Vec<Option<Byte>>>,
    /// By (channel, from, to, stream).
    links: HashMap<(u32, u32, u32, u32), Queue>,
    /// Internode bytes and chunks.
    crossed: u64,
    chunks_crossed: u64,
    nodes: Nodes,
}

impl Machine {
    /// Whether every source has a chunk and every target a free slot.
    fn can(&self, channel: &Channel, step: &Step) -> bool {
        let length =
            |from, to, stream| self.links.get(&(channel.number, from, to, stream)).map_or(0, VecDeque::len);
        let source = |port: &Port| match port {
            Port::Link { peer, stream } => length(*peer, channel.me, *stream) > 0,
            _ => true,
        };
        let target = |port: &Port| match port {
            Port::Link { peer, stream } => length(channel.me, *peer, *stream) < DEPTH as usize,
            _ => true,
        };
        step.sources.iter().all(source) && step.targets.iter().all(target)
    }

    fn does(&mut self, channel: &Channel, step: &Step, chunk: u64) {
        let first = (chunk * u64::from(self.channels) + u64::from(channel.number)) * PIECE;
        let bytes = step.bytes.saturating_sub(first).min(PIECE);
        let mut sum: Vec<Byte> = vec![Vec::new(); bytes as usize];
        let mut packed: Vec<Byte> = Vec::new();
        let one_source = matches!(step.work, Work::Moves | Work::Unpacks);
        assert!(!one_source || step.sources.len() == 1, "{step:?}");
        assert!(step.work != Work::Packs || step.targets.len() == 1, "{step:?}");
        for (index, source) in step.sources.iter().enumerate() {
            let taken = match *source {
                Port::Input { offset } => {
                    assert!(offset + first + bytes <= self.input[channel.me as usize], "{step:?}");
                    (0..bytes).map(|at| vec![(channel.me, offset + first + at)]).collect()
                }
                Port::Output { .. } => panic!("an output is no source: {step:?}"),
                Port::Link { peer, stream } => {
                    let queue = self.links.get_mut(&(channel.number, peer, channel.me, stream)).unwrap();
                    let (taken, unrounded) = queue.pop_front().unwrap();
                    assert_eq!(unrounded, step.takes_unrounded() && index == 0, "{step:?}");
                    taken
                }
            };
            assert_eq!(taken.len() as u64, bytes * step.pieces_taken(), "chunk {chunk} of {step:?}");
            match step.work {
                Work::Packs | Work::Unpacks => packed.extend(taken),
                _ => sum.iter_mut().zip(taken).for_each(|(sum, byte)| sum.extend(byte)),
            }
        }
        if step.work == Work::Packs {
            sum = packed.clone();
        }
        for (index, target) in step.targets.iter().enumerate() {
            if step.work == Work::Unpacks {
                sum = packed[index * bytes as usize..][..bytes as usize].to_vec();
            }
            match *target {
                Port::Input { .. } => panic!("an input is no target: {step:?}"),
                Port::Output { offset } => {
                    assert!(!step.gives_unrounded());
                    for (at, byte) in (offset + first..).zip(&sum) {
                        let place = &mut self.outputs[channel.me as usize][at as usize];
                        assert!(place.replace(byte.clone()).is_none(), "written twice: {step:?}");
                    }
                }
                Port::Link { peer, stream } => {
                    if is_internode(&self.nodes, channel.me, peer) {
                        self.crossed += sum.len() as u64;
                        self.chunks_crossed += 1;
                    }
                    let queue = self.links.entry((channel.number, channel.me, peer, stream)).or_default();
                    queue.push_back((sum.clone(), step.gives_unrounded()));
                }
            }
        }
    }
}

/// Runs the steps of all channels of all members until none can proceed. Returns the outputs, and the internode bytes and chunks.
fn run(
    nodes: &Nodes,
    channels: u32,
    all: &[Vec<Step>],
    input: &[u64],
    output: &[u64],
) -> (Vec<Vec<Option<Byte>>>, (u64, u64)) {
    let outputs = output.iter().map(|bytes| vec![None; *bytes as usize]).collect();
    let mut machine = Machine {
        channels,
        input: input.to_vec(),
        outputs,
        links: HashMap::new(),
        crossed: 0,
        chunks_crossed: 0,
        nodes: nodes.clone(),
    };
    let of_member = |(me, steps): (u32, &Vec<Step>)| {
        (0..channels)
            .map(move |number| Channel { me, number, steps: steps.clone(), time: 0, next: 0 })
            .collect::<Vec<_>>()
    };
    let mut waiting: Vec<Channel> = (0..).zip(all).flat_map(of_member).collect();
    for steps in all {
        distinct(steps);
    }
    loop {
        let mut moved = false;
        for channel in &mut waiting {
            let times = schedule::times(&channel.steps, PIECE, channels);
            while channel.time < times {
                let Some(step) = channel.steps.get(channel.next) else {
                    (channel.time, channel.next) = (channel.time + 1, 0);
                    continue;
                };
                let chunk = channel.time.checked_sub(step.lag.into());
                let chunk = chunk.filter(|chunk| *chunk < step.chunks(PIECE, channel.number, channels));
                if let Some(chunk) = chunk {
                    if !machine.can(channel, step) {
                        break;
                    }
                    machine.does(channel, step, chunk);
                }
                channel.next += 1;
                moved = true;
            }
        }
        waiting.retain(|channel| channel.time < schedule::times(&channel.steps, PIECE, channels));
        if waiting.is_empty() || !moved {
            break;
        }
    }
    let stuck: Vec<_> =
        waiting.iter().map(|channel| (channel.me, channel.number, channel.time, channel.next)).collect();
    assert!(stuck.is_empty(), "circular wait: {stuck:?}");
    assert!(machine.links.values().all(VecDeque::is_empty), "unreceived chunks");
    (machine.outputs, (machine.crossed, machine.chunks_crossed))
}

/// A step waits for all its ports together: no link occurs twice in its sources, or twice in its targets.
fn distinct(steps: &[Step]) {
    for step in steps {
        for ports in [&step.sources, &step.targets] {
            let twice = ports
                .iter()
                .enumerate()
                .any(|(index, port)| matches!(port, Port::Link { .. }) && ports[..index].contains(port));
            assert!(!twice, "{step:?}");
        }
    }
}

/// The expected outputs.
fn expected(members: u32, me: u32, exchange: &Exchange) -> Vec<Option<Byte>> {
    let from = |member: u32, first: u64, bytes: u64| {
        (first..first + bytes).map(move |at| Some(vec![(member, at)])).collect::<Vec<_>>()
    };
    let sum = |first: u64, bytes: u64| {
        let byte = move |at| Some((0..members).map(|member| (member, at)).collect());
        (first..first + bytes).map(byte).collect::<Vec<_>>()
    };
    match exchange {
        Exchange::AllGather { bytes } => {
            (0..members).flat_map(|member| from(member, 0, bytes[member as usize])).collect()
        }
        Exchange::AllToAll { received, .. } => {
            // `exchanges` uses `split` for uneven splits.
            let is_even = received.iter().all(|bytes| *bytes == received[0]);
            let all = (0..members).flat_map(|member| {
                let sent: Vec<_> =
                    (0..members).map(|to| if is_even { received[0] } else { split(member, to) }).collect();
                from(member, starts(&sent)[me as usize], received[member as usize])
            });
            all.collect()
        }
        Exchange::Broadcast { bytes, root } if me == *root => vec![None; *bytes as usize],
        Exchange::Broadcast { bytes, root } => from(*root, 0, *bytes),
        Exchange::Gather { bytes, root } if me == *root => {
            (0..members).flat_map(|member| from(member, 0, *bytes)).collect()
        }
        Exchange::Scatter { bytes, root } => from(*root, u64::from(me) * bytes, *bytes),
        Exchange::AllReduce { bytes } => sum(0, *bytes),
        Exchange::ReduceScatter { bytes } => sum(starts(bytes)[me as usize], bytes[me as usize]),
        Exchange::Reduce { bytes, root } if me == *root => sum(0, *bytes),
        Exchange::Gather { .. } | Exchange::Reduce { .. } | Exchange::Barrier => Vec::new(),
    }
}

/// Bytes from one member to another of an uneven all_to_all.
fn split(from: u32, to: u32) -> u64 {
    u64::from((from * 7 + to * 5) % 4 * 13)
}

/// Every call, as seen by each member.
fn exchanges(members: u32, bytes: u64) -> Vec<Vec<Exchange>> {
    let root = (bytes as u32) % members;
    let uneven: Vec<_> = (0..members).map(|member| bytes * u64::from(member % 3)).collect();
    let same = [
        Exchange::AllGather { bytes: vec![bytes; members as usize] },
        Exchange::AllGather { bytes: uneven.clone() },
        Exchange::AllToAll { sent: vec![bytes; members as usize], received: vec![bytes; members as usize] },
        Exchange::Broadcast { bytes, root },
        Exchange::Gather { bytes, root },
        Exchange::Scatter { bytes, root },
        Exchange::AllReduce { bytes },
        Exchange::ReduceScatter { bytes: vec![bytes; members as usize] },
        Exchange::ReduceScatter { bytes: uneven },
        Exchange::Reduce { bytes, root },
        Exchange::Barrier,
    ];
    let splits = (0..members).map(|me| Exchange::AllToAll {
        sent: (0..members).map(|to| split(me, to)).collect(),
        received: (0..members).map(|from| split(from, me)).collect(),
    });
    let same = same.into_iter().map(|exchange| vec![exchange; members as usize]);
    same.chain([splits.collect()]).collect()
}

/// Bytes of the input of a member.
fn input_bytes(members: u32, me: u32, exchange: &Exchange) -> u64 {
    match exchange {
        Exchange::AllGather { bytes } => bytes[me as usize],
        Exchange::AllToAll { sent, .. } => sent.iter().sum(),
        Exchange::Scatter { bytes, .. } => bytes * u64::from(members),
        Exchange::ReduceScatter { bytes } => bytes.iter().sum(),
        Exchange::Broadcast { bytes, .. }
        | Exchange::Gather { bytes, .. }
        | Exchange::AllReduce { bytes }
        | Exchange::Reduce { bytes, .. } => *bytes,
        Exchange::Barrier => 0,
    }
}

/// Runs a form of a call, if it exists, and compares. Returns the internode bytes and chunks.
fn check(
    nodes: &Nodes,
    channels: u32,
    of_members: &[Exchange],
    form: impl Fn(u32, &Exchange) -> Result<Vec<Step>, &'static str>,
) -> Option<(u64, u64)> {
    let members = nodes.size();
    let all =
        (0..).zip(of_members).map(|(me, exchange)| form(me, exchange)).collect::<Result<Vec<_>, _>>().ok()?;
    let wanted: Vec<_> = (0..).zip(of_members).map(|(me, of)| expected(members, me, of)).collect();
    let input: Vec<_> = (0..).zip(of_members).map(|(me, of)| input_bytes(members, me, of)).collect();
    let output: Vec<_> = wanted.iter().map(|bytes| bytes.len() as u64).collect();
    let (found, crossed) = run(nodes, channels, &all, &input, &output);
    assert_eq!(found, wanted, "{:?}", of_members[0]);
    Some(crossed)
}

fn check_all(machines: &[u32], channels: u32, bytes: u64) -> (usize, usize) {
    let nodes = Nodes::new(machines);
    let mut done = (0, 0);
    for exchange in exchanges(nodes.size(), bytes) {
        let direct = check(&nodes, channels, &exchange, |me, of| Ok(schedule::direct(nodes.size(), me, of)));
        let by_node = check(&nodes, channels, &exchange, |me, of| schedule::by_node(&nodes, me, of));
        done = (done.0 + 1, done.1 + usize::from(by_node.is_some()));
        // The smallest node limits the number of rails, which can cost more bytes in total than it saves.
        let uneven_sums = exchange[0].collective().reduces() && nodes.even_size().is_none();
        if let (Some(direct), Some(by_node)) = (direct, by_node)
            && !uneven_sums
        {
            assert!(
                by_node.0 <= direct.0 && by_node.1 <= direct.1,
                "{exchange:?} on {machines:?}: {by_node:?} bytes and chunks between machines, {direct:?} directly"
            );
        }
    }
    done
}

/// `count` nodes of `size` members each, contiguous.
fn even(count: u32, size: u32) -> Vec<u32> {
    (0..count * size).map(|member| member / size).collect()
}

#[test]
#[ignore = "extended"]
fn every_form_terminates_with_correct_outputs() {
    for (count, size) in [(2, 2), (2, 4), (3, 2), (5, 2), (6, 3), (2, 3), (9, 2)] {
        for (channels, bytes) in [(1, 0), (1, 1), (2, 17), (1, 16 * 20), (3, 400)] {
            assert_eq!(check_all(&even(count, size), channels, bytes), (12, 8), "{count} of {size}");
        }
    }
    assert_eq!(check_all(&[0, 1, 0, 1], 2, 500), (12, 4), "sums do not go by node in this order");
    assert_eq!(check_all(&[0, 0, 0], 2, 500), (12, 0));
    assert_eq!(check_all(&[0, 1, 2], 2, 500), (12, 0));
    assert_eq!(check_all(&[4], 2, 500), (12, 0));
}

/// Links within nodes have more chunks per time than slots, on nodes with many members for few of others.
#[test]
#[ignore = "extended"]
fn uneven_nodes_terminate_with_correct_outputs() {
    for sizes in [&[1, 3][..], &[3, 1], &[2, 11], &[11, 2], &[5, 1, 4], &[1, 1, 7], &[3, 4, 2, 6], &[1, 12]] {
        let machines: Vec<u32> =
            (0..).zip(sizes).flat_map(|(machine, size)| std::iter::repeat_n(machine, *size)).collect();
        for (channels, bytes) in [(1, 0), (1, 1), (2, 17), (1, 16 * 20), (3, 400)] {
            assert_eq!(check_all(&machines, channels, bytes), (12, 8), "{sizes:?}");
        }
    }
    assert_eq!(check_all(&[0, 1, 1, 0, 1], 2, 500), (12, 4), "sums do not go by node in this order");
}

#[test]
fn data_for_a_node_is_sent_once() {
    let nodes = Nodes::new(&even(3, 4));
    let bytes = 16 * 48;
    let of = |exchange: Exchange, form: fn(&Nodes, u32, &Exchange) -> Result<Vec<Step>, &'static str>| {
        check(&nodes, 1, &vec![exchange; 12], |me, of| form(&nodes, me, of)).unwrap().0
    };
    let direct = |nodes: &Nodes, me: u32, of: &Exchange| Ok(schedule::direct(nodes.size(), me, of));
    let gather = Exchange::AllGather { bytes: vec![bytes; 12] };
    assert_eq!(of(gather.clone(), schedule::by_node), 12 * 2 * bytes);
    assert_eq!(of(gather, direct), 12 * 8 * bytes);
    let broadcast = Exchange::Broadcast { bytes, root: 5 };
    assert_eq!(of(broadcast.clone(), schedule::by_node), 2 * bytes);
    assert_eq!(of(broadcast, direct), 8 * bytes);
    // In elements; unrounded sums are longer.
    let sum = Exchange::AllReduce { bytes };
    assert_eq!(of(sum, schedule::by_node), 2 * bytes + 2 * bytes);
}

#[test]
fn pieces_for_one_member_share_a_chunk() {
    let nodes = Nodes::new(&even(3, 4));
    let exchange = vec![Exchange::AllToAll { sent: vec![PIECE; 12], received: vec![PIECE; 12] }; 12];
    let direct = check(&nodes, 1, &exchange, |me, of| Ok(schedule::direct(12, me, of))).unwrap();
    let packed = check(&nodes, 1, &exchange, |me, of| schedule::by_node(&nodes, me, of)).unwrap();
    assert_eq!((direct, packed), ((12 * 8 * PIECE, 12 * 8), (12 * 8 * PIECE, 12 * 2)));
}

#[test]
#[should_panic(expected = "assertion")]
fn reordered_pieces_are_detected() {
    let nodes = Nodes::new(&even(2, 2));
    let exchange = vec![Exchange::AllToAll { sent: vec![100; 4], received: vec![100; 4] }; 4];
    check(&nodes, 1, &exchange, |me, of| {
        let mut steps = schedule::by_node(&nodes, me, of)?;
        steps.iter_mut().filter(|step| step.work == Work::Packs).for_each(|step| step.sources.reverse());
        Ok(steps)
    });
}

#[test]
#[should_panic(expected = "circular wait")]
fn too_short_queues_are_detected() {
    let nodes = Nodes::new(&even(2, 2));
    let exchange = vec![Exchange::AllReduce { bytes: 1000 }; 4];
    check(&nodes, 1, &exchange, |me, of| {
        let mut steps = schedule::by_node(&nodes, me, of)?;
        for step in &mut steps {
            step.lag *= 2;
        }
        Ok(steps)
    });
}

#[test]
#[should_panic(expected = "assertion")]
fn reordered_sum_is_detected() {
    let nodes = Nodes::new(&even(2, 2));
    let exchange = vec![Exchange::AllReduce { bytes: 1000 }; 4];
    check(&nodes, 1, &exchange, |me, of| {
        let mut steps = schedule::by_node(&nodes, me, of)?;
        let sum = steps.iter_mut().find(|step| step.work != Work::Moves).unwrap();
        let last = sum.sources.len() - 1;
        sum.sources.swap(last, last - 1);
        Ok(steps)
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_nodes_terminate_with_correct_outputs(
        machines in proptest::collection::vec(0u32..4, 1..9), channels in 1u32..4, bytes in 0u64..400,
    ) {
        check_all(&machines, channels, bytes);
    }

    #[test]
    #[ignore = "extended"]
    fn even_nodes_terminate_with_correct_outputs(count in 2u32..7, size in 2u32..4, channels in 1u32..3, bytes in 0u64..400) {
        check_all(&even(count, size), channels, bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]
    #[test]
    fn few_even_nodes_terminate_with_correct_outputs(count in 2u32..5, size in 2u32..4, channels in 1u32..3, bytes in 0u64..400) {
        check_all(&even(count, size), channels, bytes);
    }
}
