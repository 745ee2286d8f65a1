//! The rules against a carrier that does everything in any order.

use bytemuck::Zeroable as _;
use proptest::prelude::*;

use super::*;

/// Bytes of the memory of the peer.
const BYTES: u64 = 64;

/// Takes effect and ends when, and in the order that, numbers say.
#[derive(Debug, Default)]
struct Wild {
    memory: Vec<u8>,
    flying: Vec<Loose>,
    /// What to do next: drawn by the test.
    draws: VecDeque<u8>,
    /// What reads brought, by position.
    read: Vec<(u64, Vec<u8>)>,
    /// Positions in the order of their effects.
    effects: Vec<u64>,
    /// Positions that fail.
    fails: Vec<u64>,
    stopped: bool,
}

#[derive(Debug)]
struct Loose {
    slot: usize,
    request: PostedRequest,
    has_effect: bool,
}

impl Wild {
    fn draw(&mut self) -> usize {
        self.draws.pop_front().map_or(0, usize::from)
    }

    /// The position is carried as the value.
    fn take_effect(&mut self, index: usize) {
        let Loose { request, has_effect, .. } = &mut self.flying[index];
        if std::mem::replace(has_effect, true) {
            return;
        }
        let range = request.remote as usize..request.remote as usize + request.bytes as usize;
        self.effects.push(request.value);
        if opcode(request) == Some(PostedOpcode::Read) {
            self.read.push((request.value, self.memory[range].to_vec()));
        } else {
            self.memory[range].fill(request.value as u8);
        }
    }
}

impl Carrier for Wild {
    fn start(&mut self, slot: usize, request: &PostedRequest) -> Result<Started, Fault> {
        assert!(self.flying.iter().all(|loose| loose.slot != slot), "a slot that is free");
        if self.draw() % 4 == 1 {
            return Ok(Started::Later);
        }
        if request.bytes == 0 {
            return Ok(Started::Done);
        }
        self.flying.push(Loose { slot, request: *request, has_effect: false });
        Ok(Started::Flying)
    }

    fn poll(&mut self, ended: &mut Vec<(usize, Result<(), Fault>)>) -> Result<(), Fault> {
        for _ in 0..2 {
            let draw = self.draw();
            if self.flying.is_empty() {
                return Ok(());
            }
            let index = draw % self.flying.len();
            self.take_effect(index);
            if draw.is_multiple_of(3) {
                let Loose { slot, request, .. } = self.flying.remove(index);
                let fault = || Fault { status: status::GENERAL, words: "it failed".to_owned() };
                ended.push((slot, if self.fails.contains(&request.value) { Err(fault()) } else { Ok(()) }));
            }
        }
        Ok(())
    }

    fn stop(&mut self) {
        self.stopped = true;
    }
}

fn request(position: u64, opcode: PostedOpcode, remote: u64, bytes: u32) -> PostedRequest {
    let opcode = opcode as u32;
    PostedRequest { opcode, remote, bytes, value: position, ..PostedRequest::zeroed() }
}

/// Requests of all lengths: plain writes, short ones, values and reads.
fn requests() -> impl Strategy<Value = Vec<PostedRequest>> {
    let one = (0..4u8, 0..BYTES / 2, 0..=BYTES as u32 / 2);
    prop::collection::vec(one, 1..24).prop_map(|drawn| {
        let numbered = drawn.into_iter().enumerate();
        let made = numbered.map(|(index, (kind, remote, bytes))| match kind {
            0 | 1 => request(index as u64, PostedOpcode::Write, remote, bytes),
            2 => request(index as u64, PostedOpcode::WriteValue, remote / 8 * 8, 8),
            _ => request(index as u64, PostedOpcode::Read, remote, bytes),
        });
        made.collect()
    })
}

/// Posts all, and polls until all completions are told.
fn run(requests: &[PostedRequest], carrier: Wild) -> (Flights<Wild>, Vec<Completion>) {
    let mut flights = Flights::new(carrier, 8);
    let (mut told, mut posted) = (Vec::new(), 0);
    for _ in 0..10_000 {
        // The lane posts as many as the ring has entries.
        let until = requests.len().min(told.len() + 8);
        let batch: Vec<_> = (posted..until).map(|position| (position as u64, requests[position])).collect();
        flights.post(&batch).unwrap();
        posted = until;
        flights.poll(&mut told).unwrap();
        let has_failed = told.iter().any(|completion| completion.status != status::SUCCESS);
        if told.len() == requests.len() || has_failed {
            return (flights, told);
        }
    }
    panic!("{} of {} are told", told.len(), requests.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn overtaking_operations_are_not_observable(
        requests in requests(),
        draws in prop::collection::vec(any::<u8>(), 400),
    ) {
        let carrier = Wild { memory: vec![0xff; BYTES as usize], draws: draws.into(), ..Wild::default() };
        let (flights, told) = run(&requests, carrier);
        // Completions in order.
        prop_assert!(told.iter().map(|completion| completion.position).eq(0..requests.len() as u64));
        // The same memory, and the same bytes read, as in the order of positions.
        let mut memory = vec![0xff; BYTES as usize];
        for (position, request) in requests.iter().enumerate() {
            let range = request.remote as usize..request.remote as usize + request.bytes as usize;
            match opcode(request) {
                Some(PostedOpcode::Read) if request.bytes > 0 => {
                    let read = flights.carrier.read.iter().find(|(of, _)| *of == position as u64);
                    prop_assert_eq!(&read.unwrap().1, &memory[range]);
                }
                _ => memory[range].fill(position as u8),
            }
        }
        prop_assert_eq!(&flights.carrier.memory, &memory);
        // What may be a flag is behind all in front of it, and before all behind it.
        let effects = &flights.carrier.effects;
        for (at, position) in effects.iter().enumerate() {
            if plain(&requests[*position as usize]).is_none() {
                prop_assert!(effects[..at].iter().all(|other| other < position));
                prop_assert!(effects[at + 1..].iter().all(|other| other > position));
            }
        }
    }
}

#[test]
fn plain_writes_to_different_bytes_fly_together_and_others_do_not() {
    let mut flights = Flights::new(Wild { memory: vec![0; 64], ..Wild::default() }, 8);
    let write = |position, remote, bytes| (position, request(position, PostedOpcode::Write, remote, bytes));
    flights.post(&[write(0, 0, 16), write(1, 16, 16), write(2, 32, 16)]).unwrap();
    assert_eq!(flights.carrier.flying.len(), 3);
    flights.post(&[write(3, 40, 16), write(4, 56, 8)]).unwrap();
    assert_eq!(flights.carrier.flying.len(), 3, "the third and the fourth have bytes in common");
    let mut told = Vec::new();
    flights.poll(&mut told).unwrap();
    flights.poll(&mut told).unwrap();
    assert_eq!((told.len(), flights.carrier.flying.len()), (3, 1), "the last may be a flag");
}

#[test]
fn after_a_failure_nothing_starts_and_its_text_is_reported() {
    let mut carrier = Wild { memory: vec![0; 64], ..Wild::default() };
    carrier.fails.push(1);
    let write = |position, bytes| request(position, PostedOpcode::Write, 0, bytes);
    let (mut flights, told) = run(&[write(0, 16), write(1, 8), write(2, 16)], carrier);
    assert_eq!(told.len(), 2);
    assert_eq!((told[1].status, told[1].cause.as_str()), (status::GENERAL, "it failed"));
    flights.poll(&mut Vec::new()).unwrap();
    assert_eq!(flights.carrier.effects, [0, 1]);
    flights.stop();
    assert!(flights.carrier.stopped && flights.waiting.is_empty());
}
