//! Packets against golden words and against the decoder.

use anabranch_transport_sdma::decode::{self, Wrong};
use anabranch_transport_sdma::{Error, GENERATIONS, Generation, Packet, header};
use expect_test::expect_file;
use proptest::prelude::*;

fn words(packet: &Packet, generation: &Generation) -> Vec<u32> {
    let mut out = Vec::new();
    packet.encode(generation, &mut out).unwrap();
    assert_eq!(out.len(), packet.format().words);
    out
}

fn gfx942() -> &'static Generation {
    Generation::of_target("gfx942").unwrap()
}

/// Words that AMD's runtime (ROCr of ROCm 7.2.4) wrote into its own queue of a gfx942.
#[test]
fn words_of_a_real_runtime() {
    let (source, destination) = (0x1111_2222_3333_4444, 0x5555_6666_7777_8888);
    assert_eq!(
        words(&Packet::Copy { source, destination, bytes: 9600 }, gfx942()),
        [1, 0x257f, 0, 0x3333_4444, 0x1111_2222, 0x7777_8888, 0x5555_6666]
    );
    assert_eq!(
        words(&Packet::Add { address: 0x1_0000_0008, value: u64::MAX }, gfx942()),
        [0x5e00_000a, 8, 1, u32::MAX, u32::MAX, 0, 0, 0]
    );
}

/// Words worked out by hand from the driver's packet headers.
#[test]
fn words_by_hand() {
    let gfx1100 = Generation::of_target("gfx1100").unwrap();
    assert_eq!(words(&Packet::Fence { address: 0x20_0000_0004, value: 7 }, gfx942()), [5, 4, 0x20, 7]);
    assert_eq!(words(&Packet::Fence { address: 4, value: 7 }, gfx1100), [0x0003_0005, 4, 0, 7]);
    assert_eq!(words(&Packet::Nop { skip: 3 }, gfx942()), [0x0003_0000]);
}

#[test]
fn the_device_header_agrees_with_the_table() {
    expect_file!["../device/sdma/packets.h"].assert_eq(&header::render().unwrap());
}

fn generation() -> impl Strategy<Value = &'static Generation> {
    (0..GENERATIONS.len()).prop_map(|index| &GENERATIONS[index])
}

/// Packets that an engine of the generation takes, all kinds alike.
fn packet(generation: &'static Generation) -> impl Strategy<Value = Packet> {
    let aligned = |multiple: u64| any::<u64>().prop_map(move |address| address / multiple * multiple);
    let length = |most: u32| prop_oneof![Just(1), Just(most), 1..=most];
    let copy = generation.most_copy_bytes;
    prop_oneof![
        Just(Packet::Nop { skip: 0 }),
        (any::<u64>(), any::<u64>(), length(copy)).prop_map(|(source, destination, bytes)| Packet::Copy {
            source,
            destination,
            bytes
        }),
        (aligned(4), any::<u32>()).prop_map(|(address, value)| Packet::Fence { address, value }),
        (aligned(8), any::<u64>()).prop_map(|(address, value)| Packet::Add { address, value }),
    ]
}

fn sequence() -> impl Strategy<Value = (&'static Generation, Vec<Packet>)> {
    generation().prop_flat_map(|generation| {
        prop::collection::vec(packet(generation), 0..30).prop_map(move |packets| (generation, packets))
    })
}

proptest! {
    #[test]
    fn the_decoder_reads_what_the_encoder_writes((generation, packets) in sequence()) {
        let mut out = Vec::new();
        for packet in &packets {
            packet.encode(generation, &mut out).unwrap();
        }
        prop_assert_eq!(decode::packets(&out, generation), Ok(packets));
    }

    /// Whatever is read is what would be written: no bit of a word is passed over.
    #[test]
    fn no_bit_is_ignored((generation, packets) in sequence(), at in any::<prop::sample::Index>(), bit in 0..32u32) {
        let mut out = Vec::new();
        for packet in &packets {
            packet.encode(generation, &mut out).unwrap();
        }
        prop_assume!(!out.is_empty());
        let at = at.index(out.len());
        out[at] ^= 1 << bit;
        if let Ok(read) = decode::packets(&out, generation) {
            // What a nop passes over is the one thing that says nothing.
            prop_assume!(read.iter().all(|packet| !matches!(packet, Packet::Nop { skip } if *skip > 0)));
            let mut again = Vec::new();
            for packet in &read {
                packet.encode(generation, &mut again).unwrap();
            }
            prop_assert_eq!(again, out);
            prop_assert_ne!(read, packets);
        }
    }

    #[test]
    fn any_words_are_read_or_refused_where_they_are_wrong(
        generation in generation(),
        words in prop::collection::vec(prop_oneof![any::<u32>(), 0..16u32, Just(0x5e00_000a)], 0..60),
    ) {
        if let Err(refused) = decode::packets(&words, generation) {
            prop_assert!(refused.word < words.len());
            prop_assert!(decode::packets(&words[..refused.word], generation).is_ok());
        }
    }

    #[test]
    fn a_packet_past_the_end_is_refused((generation, packets) in sequence(), cut in 1..8usize) {
        let mut out = Vec::new();
        for packet in &packets {
            packet.encode(generation, &mut out).unwrap();
        }
        let last = packets.last().map_or(0, |packet| packet.format().words);
        prop_assume!(cut < last);
        let left = out.len() - cut;
        let refused = decode::packets(&out[..left], generation).unwrap_err();
        prop_assert_eq!(refused.word, out.len() - last);
        let is_short = matches!(refused.what, Wrong::Short { .. });
        prop_assert!(is_short, "{refused}");
    }
}

#[test]
fn a_nop_passes_over_words() {
    let mut out = words(&Packet::Nop { skip: 2 }, gfx942());
    out.extend([0xdead_beef, 0xffff_ffff]);
    let fence = Packet::Fence { address: 8, value: 1 };
    out.extend(words(&fence, gfx942()));
    let read = decode::packets(&out, gfx942()).unwrap();
    assert_eq!(read, [Packet::Nop { skip: 2 }, fence]);
    // A ring's end that was zeroed.
    assert_eq!(decode::packets(&[0; 5], gfx942()).unwrap(), vec![Packet::Nop { skip: 0 }; 5]);
}

/// Everything that must not be said, and what is answered.
#[test]
fn what_engines_would_take_for_something_else_is_refused() {
    let refused = |packet: Packet| {
        let mut out = vec![42];
        let error = packet.encode(gfx942(), &mut out).unwrap_err();
        assert_eq!(out, [42], "nothing is written");
        error
    };
    let copy = |bytes| Packet::Copy { source: 0, destination: 0, bytes };
    assert_eq!(refused(copy(0)).to_string(), "copy of 0 bytes: its count would read 4194304");
    let error = refused(copy((4 << 20) - 31)).to_string();
    assert_eq!(error, "copy of 4194273 bytes: sdma 4.4.2 takes at most 4194272");
    let misaligned = |packet| matches!(refused(packet), Error::Misaligned { .. });
    assert!(misaligned(Packet::Fence { address: 2, value: 0 }));
    assert!(misaligned(Packet::Add { address: 4, value: 0 }));
    assert!(matches!(refused(Packet::Nop { skip: 1 << 14 }), Error::Field { .. }));
}
