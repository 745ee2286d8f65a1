//! Received rows in buffers of the caller, beside those that the host reads from the windows.

use crate::common::{Case, Uploaded, all_well, upload, world_config};
use anabranch_ep::{DeviceSlice, Error, ExpertParallel, Mode, ReceivedRows, RowUnpacker, Unpacked};
use anabranch_hip::{Device, DeviceBuffer};

/// What no kernel may write.
const CANARY: u8 = 0xc5;

fn painted(device: &Device, bytes: usize) -> DeviceBuffer {
    upload(device, &vec![CANARY; bytes])
}

fn read(buffer: &DeviceBuffer, bytes: usize) -> Vec<u8> {
    let mut all = vec![0; bytes];
    buffer.copy_to_host(0, &mut all).unwrap();
    all
}

fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.chunks_exact(N).map(|word| word.try_into().unwrap())
}

fn unpacked_rows(plans: &[(u32, Mode)]) {
    for &(wave, mode) in plans {
        let mut case = Case::new(3, wave);
        case.config = case.config.mode(mode).scale_bytes(20);
        all_well(case.on_ranks(&world_config(), |world| {
            let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
            let (device, me) = (world.device(), ep.rank());
            let (stream, unpacker) = (device.create_stream()?, RowUnpacker::new(&ep)?);
            let experts = ep.plan().experts_on(me);
            let (top_k, row) = (case.config.top_k as usize, ep.plan().row_bytes() as usize);
            for number in 0..3 {
                let uploaded = Uploaded::new(device, &case.config, &case.input(me.get(), number));
                let dispatched = ep.dispatch(&stream, &uploaded.tokens(&case.config))?;
                world.synchronize(&stream)?;
                let seen = ReceivedRows::read(device, ep.plan(), &dispatched).unwrap();
                let stride = ep.plan().row_stride() as usize;
                let first = |s: usize| if stride == 0 { seen.offsets()[s] as usize } else { s * stride };
                let places: Vec<usize> = (0..case.ranks as usize)
                    .flat_map(|s| (first(s)..first(s) + seen.counts()[s] as usize).collect::<Vec<_>>())
                    .collect();
                // More than came, as many, and fewer.
                let came = places.len();
                for count in [came + 5, came, came / 2] {
                    let sizes = [count * row, count * 20, count * top_k * 8, count * top_k * 4];
                    let buffers = sizes.map(|bytes| painted(device, bytes + 16));
                    // SAFETY: the buffers outlive the stream's work, and are as long as the outputs say.
                    let [rows, scales, ids, weights] = [0, 1, 2, 3]
                        .map(|at| Some(unsafe { DeviceSlice::from_raw(buffers[at].address(), sizes[at]) }));
                    let output = Unpacked { count: count as u32, rows, scales, ids, weights };
                    unpacker.unpack(&stream, &dispatched, &output)?;
                    world.synchronize(&stream)?;
                    let [rows, scales, ids, weights] =
                        [0, 1, 2, 3].map(|at| read(&buffers[at], sizes[at] + 16));
                    for (bytes, size) in [&rows, &scales, &ids, &weights].iter().zip(sizes) {
                        assert!(bytes[size..].iter().all(|byte| *byte == CANARY), "written after an output");
                    }
                    for n in 0..count {
                        let Some(of) = places.get(n).and_then(|at| seen.row(*at)) else {
                            assert!(rows[n * row..count * row].iter().all(|byte| *byte == CANARY));
                            assert!(scales[n * 20..count * 20].iter().all(|byte| *byte == CANARY));
                            let after = n * top_k..count * top_k;
                            assert!(ids[after.start * 8..after.end * 8].iter().all(|byte| *byte == 0xff));
                            assert!(weights[after.start * 4..after.end * 4].iter().all(|byte| *byte == 0));
                            break;
                        };
                        assert_eq!(rows[n * row..][..row], of.payload[..], "{me}, row {n}");
                        assert_eq!(scales[n * 20..][..20], of.scales[..], "{me}, scales of row {n}");
                        let ids = words(&ids[n * top_k * 8..][..top_k * 8]).map(i64::from_ne_bytes);
                        let weights = words(&weights[n * top_k * 4..][..top_k * 4]).map(u32::from_ne_bytes);
                        for (k, (id, weight)) in ids.zip(weights).enumerate() {
                            let local =
                                experts.iter().position(|expert| i64::from(*expert) == i64::from(of.ids[k]));
                            assert_eq!(id, local.map_or(-1, |local| local as i64), "{me}, row {n}, k {k}");
                            let expected = local.map_or(0, |_| of.weights[k].to_bits());
                            assert_eq!(weight, expected, "{me}, weight of row {n}, k {k}");
                        }
                    }
                }
                // SAFETY: refused before anything is launched.
                let short = unsafe { DeviceSlice::from_raw(uploaded.weights.address(), 4) };
                let wrong = Unpacked { count: 2, weights: Some(short), ..Unpacked::default() };
                let text = unpacker.unpack(&stream, &dispatched, &wrong).unwrap_err().to_string();
                assert!(text.contains("the weights has 4 bytes"), "{text}");
                ep.release(&stream, dispatched)?;
            }
            Ok::<_, Error>(world.synchronize(&stream)?)
        }));
    }
}

#[test]
fn unpacked_rows_are_those_of_the_windows() {
    unpacked_rows(&[(4, Mode::Slotted), (4, Mode::Compact)]);
}

#[test]
#[ignore = "extended"]
fn unpacked_rows_are_those_of_the_windows_at_every_wave_width() {
    unpacked_rows(&[(1, Mode::Slotted), (32, Mode::Slotted), (64, Mode::Compact)]);
}
