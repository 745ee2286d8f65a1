//! The engine in software: what each packet does, and in which order.

use std::collections::BTreeMap;

use anabranch_transport_sdma::engine::{Did, Engine, Fault, Memory, Stopped};
use anabranch_transport_sdma::{Generation, Packet, Ring};

/// Bytes by address, from 0 to 4095.
#[derive(Debug, Default)]
struct Bytes(BTreeMap<u64, u8>);

impl Bytes {
    fn byte(&self, address: u64, bytes: u64) -> Result<u8, Fault> {
        let fault = Fault { address, bytes };
        if address < 4096 { Ok(*self.0.get(&address).unwrap_or(&0)) } else { Err(fault) }
    }

    fn load(&self, address: u64) -> Result<u32, Fault> {
        let mut word = [0; 4];
        for (byte, at) in word.iter_mut().zip(address..) {
            *byte = self.byte(at, 4)?;
        }
        Ok(u32::from_le_bytes(word))
    }
}

impl Memory for Bytes {
    fn copy(&mut self, source: u64, destination: u64, bytes: u64) -> Result<(), Fault> {
        for offset in 0..bytes {
            let byte = self.byte(source + offset, bytes)?;
            self.byte(destination + offset, bytes)?;
            self.0.insert(destination + offset, byte);
        }
        Ok(())
    }

    fn store(&mut self, address: u64, word: u32) -> Result<(), Fault> {
        self.byte(address, 4)?;
        self.0.extend((address..).zip(word.to_le_bytes()));
        Ok(())
    }

    fn add(&mut self, address: u64, value: u64) -> Result<(), Fault> {
        let old = u64::from(self.load(address)?) | u64::from(self.load(address + 4)?) << 32;
        let new = old.wrapping_add(value);
        self.store(address, new as u32)?;
        self.store(address + 4, (new >> 32) as u32)
    }
}

/// An engine with packets in its ring, and its memory.
struct Bench {
    engine: Engine,
    words: Vec<u32>,
    memory: Bytes,
}

impl Bench {
    fn new(stride: u64, packets: &[Packet]) -> Self {
        let generation = Generation::of_target("gfx942").unwrap();
        let mut words = Vec::new();
        for packet in packets {
            packet.encode(generation, &mut words).unwrap();
        }
        let engine = Engine::new(Ring::new(4096).unwrap(), generation, stride);
        Self { engine, words, memory: Bytes::default() }
    }

    fn step(&mut self, copy_first: bool) -> Result<Did, Stopped> {
        let words = &self.words;
        let word = |place: u64| words[place as usize / 4];
        self.engine.step(words.len() as u64 * 4, word, &mut self.memory, copy_first)
    }

    /// Steps until there is nothing to do.
    fn run(&mut self) {
        while self.step(true).unwrap() == Did::Worked {}
    }

    fn load(&self, address: u64) -> u32 {
        self.memory.load(address).unwrap()
    }
}

const COPY: Packet = Packet::Copy { source: 0, destination: 64, bytes: 16 };

fn fence(value: u32) -> Packet {
    Packet::Fence { address: 128, value }
}

#[test]
fn a_fence_waits_for_the_copy_before_it() {
    for copy_first in [true, false] {
        let mut bench = Bench::new(4, &[COPY, fence(9)]);
        (0..16).step_by(4).for_each(|at| bench.memory.store(at, at as u32 + 1).unwrap());
        while bench.step(copy_first).unwrap() == Did::Worked {
            let copied = bench.load(64 + 12) == 13;
            assert!(copied || bench.load(128) == 0, "the fence stands for the copy");
        }
        assert_eq!([64, 68, 72, 76, 128].map(|at| bench.load(at)), [1, 5, 9, 13, 9]);
        assert!(bench.engine.is_idle());
    }
}

#[test]
fn every_packet_has_its_effect() {
    let packets = [
        Packet::Nop { skip: 0 },
        // Off every boundary.
        Packet::Copy { source: 1, destination: 65, bytes: 3 },
        Packet::Add { address: 96, value: u64::MAX },
        Packet::Add { address: 96, value: 6 },
        fence(3),
    ];
    let mut bench = Bench::new(2, &packets);
    bench.memory.store(0, 0x0102_0304).unwrap();
    bench.run();
    let words = [64, 96, 100, 128].map(|at| bench.load(at));
    assert_eq!(words, [0x0102_0300, 5, 0, 3]);
    assert_eq!(bench.engine.read(), bench.words.len() as u64 * 4);
}

#[test]
fn what_cannot_be_stops_the_engine_for_good() {
    let mut bench = Bench::new(4, &[Packet::Copy { source: 0, destination: 4092, bytes: 8 }, fence(1)]);
    let stopped = (0..9).find_map(|_| bench.step(true).err()).unwrap();
    let fault = Fault { address: 4096, bytes: 4 };
    assert_eq!(stopped, Stopped::Memory { position: 0, fault });
    assert_eq!((bench.step(true), bench.engine.stopped()), (Err(stopped), Some(stopped)));
    assert_eq!(bench.load(128), 0);

    let mut bench = Bench::new(4, &[fence(1)]);
    bench.words[0] = 0x77;
    assert!(matches!(bench.step(true), Err(Stopped::Packet { position: 0, .. })));

    let mut bench = Bench::new(4, &[fence(1)]);
    let stopped = bench.engine.step(4096, |_| 0, &mut bench.memory, true);
    assert_eq!(stopped, Err(Stopped::Pointer { write: 4096, read: 0, bytes: 4096 }));
}

/// What no producer of this crate writes: packets that go past the ring's end or the write pointer, off their boundary, or too long.
#[test]
fn words_that_hardware_would_take_for_something_else_stop_the_engine() {
    let generation = Generation::of_target("gfx942").unwrap();
    let mut copy = Vec::new();
    Packet::Copy { source: 0, destination: 64, bytes: 8 }.encode(generation, &mut copy).unwrap();
    let mut pad = Vec::new();
    Packet::Nop { skip: 11 }.encode(generation, &mut pad).unwrap();
    pad.resize(12, 0);
    let stops = |words: &[u32], write: u64| {
        let mut ring = [0; 16];
        for (place, word) in words.iter().enumerate().take(16) {
            ring[place] = *word;
        }
        let mut engine = Engine::new(Ring::new(64).unwrap(), generation, 8);
        let mut memory = Bench::new(8, &[]).memory;
        let step = |_| engine.step(write, |place| ring[place as usize / 4], &mut memory, true).err();
        (0..20).find_map(step)
    };
    // A copy of seven words of which four lie before the ring's end.
    let wraps = [&pad[..], &copy].concat();
    assert!(
        matches!(stops(&wraps, 60), Some(Stopped::Packet { position: 48, .. })),
        "{:?}",
        stops(&wraps, 60)
    );
    // One of which the write pointer has less than all.
    assert!(matches!(stops(&copy, 24), Some(Stopped::Packet { position: 0, .. })));
    assert_eq!(stops(&copy, 28), None);
    let with = |place: usize, word: u32| {
        let mut words = copy.clone();
        words[place] = word;
        stops(&words, 28)
    };
    assert!(matches!(with(1, generation.most_copy_bytes), Some(Stopped::Packet { .. })), "too long");
    assert!(matches!(with(0, 0x77), Some(Stopped::Packet { .. })), "no operation");
    // A fence off its word, and a write pointer off a word.
    let mut fence = Vec::new();
    Packet::Fence { address: 64, value: 1 }.encode(generation, &mut fence).unwrap();
    fence[1] |= 2;
    assert!(matches!(stops(&fence, 16), Some(Stopped::Packet { .. })));
    assert!(matches!(stops(&copy, 30), Some(Stopped::Pointer { .. })));
    assert!(matches!(stops(&copy, 64), Some(Stopped::Pointer { .. })));
}
