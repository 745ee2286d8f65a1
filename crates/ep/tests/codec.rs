//! The device's encoders against the types' definitions, code by code: every bf16 and f16 value, and f32 values about every
//! place where rounding decides.

use crate::common::{jit, machine, upload};
use anabranch_conformance::ep::{CODEC, ConformanceCodecArgs, ElementValues as _, codec as codec_kernel};
use anabranch_elements::float4::F4E2m1;
use anabranch_elements::float8::{F8E4m3, F8E4m3Fnuz};
use anabranch_elements::scale::E8m0;
use anabranch_ep::{CombineCodec, DataType, Fp8Format};
use anabranch_hip::{DeviceOrdinal, LaunchShape};
use anabranch_hip_jit::DevicePointer;

/// Byte of the wire that no code was written to.
const FILL: u8 = 0x5a;

/// Encodes rows on the device; the wire rows.
fn encode(codec: CombineCodec, element: DataType, wave: u32, rows: &[u8], hidden: u32) -> Vec<Vec<u8>> {
    let machine = machine(1, wave);
    let device = machine.runtime().device(DeviceOrdinal(0)).unwrap();
    let stream = device.create_stream().unwrap();
    let unit = jit().load(&device, &codec_kernel(element, codec)).unwrap();
    let row_count = rows.len() / element.bytes_of(hidden.into()) as usize;
    let wire_bytes = codec.wire_bytes(element, hidden) as usize;
    let from = upload(&device, rows);
    let wire = upload(&device, &vec![FILL; row_count * wire_bytes]);
    let args = ConformanceCodecArgs {
        rows: DevicePointer::new(from.address()),
        wire: DevicePointer::new(wire.address()),
        row_count: row_count as u32,
        hidden,
        wire_bytes: wire_bytes as u32,
        reserved: 0,
    };
    // SAFETY: both buffers have the rows and outlive the launch.
    unsafe {
        let shape = LaunchShape { grid_blocks: 4, block_threads: wave * 2, local_bytes: 0 };
        unit.get(CODEC).unwrap().launch(shape, &stream, &args).unwrap();
    }
    stream.synchronize().unwrap();
    let mut bytes = vec![0; row_count * wire_bytes];
    wire.copy_to_host(0, &mut bytes).unwrap();
    bytes.chunks_exact(wire_bytes).map(<[u8]>::to_vec).collect()
}

/// What a row must become, by the documentation of [`CombineCodec`].
fn expected(codec: CombineCodec, values: &[f32], bytes: usize) -> Vec<u8> {
    let eight = |format, value: f32| match format {
        Fp8Format::E4m3fn => F8E4m3::from_f32_saturating(value).to_bits(),
        Fp8Format::E4m3fnuz => F8E4m3Fnuz::from_f32_saturating(value).to_bits(),
    };
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for block in values.chunks(codec.block_elements() as usize) {
        let largest = block.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        match codec {
            CombineCodec::Fp8Direct(format) => codes.extend(block.iter().map(|value| eight(format, *value))),
            CombineCodec::Fp8Block(format) => {
                let largest = largest.max(2f32.powi(-100));
                let (scale, factor) = (largest / format.largest(), format.largest() / largest);
                codes.extend(block.iter().map(|value| eight(format, value * factor)));
                scales.extend(scale.to_le_bytes());
            }
            CombineCodec::Fp4Block => {
                let scale = E8m0::of_largest(largest, 2);
                let code = |value: &f32| F4E2m1::from_f32(value / scale.to_f32()).to_bits();
                codes.extend(block.chunks(2).map(|pair| code(&pair[0]) | code(&pair[1]) << 4));
                scales.push(scale.to_bits());
            }
            _ => panic!("{codec} has no codes"),
        }
    }
    codes.extend(scales);
    codes.resize(bytes, FILL);
    codes
}

fn coded() -> impl Iterator<Item = CombineCodec> {
    CombineCodec::ALL.into_iter().filter(|codec| *codec != CombineCodec::None)
}

fn compare(codec: CombineCodec, element: DataType, wave: u32, rows: &[u8], hidden: u32) {
    let row_bytes = element.bytes_of(hidden.into()) as usize;
    let wire = encode(codec, element, wave, rows, hidden);
    assert_eq!(wire.len(), rows.len() / row_bytes);
    for (row, (bytes, seen)) in rows.chunks_exact(row_bytes).zip(wire).enumerate() {
        let mut values = vec![0.0; hidden as usize];
        element.decode(bytes, &mut values);
        let right = expected(codec, &values, seen.len());
        let place = right.iter().zip(&seen).position(|(right, seen)| right != seen);
        if let Some(place) = place {
            let (right, seen) = (right[place], seen[place]);
            panic!(
                "{codec} of {element}, wave {wave}, row {row}, byte {place}: {seen:#x}, expected {right:#x}"
            );
        }
    }
}

/// All values of a type of 16 bits but those that are no finite numbers, in the order of their bits, so that a block's values are
/// of one magnitude; then far apart.
fn all_16_bits(element: DataType) -> Vec<u8> {
    let exponents = if element == DataType::F16 { 0x7c00 } else { 0x7f80 };
    let finite = |bits: u16| if bits & exponents == exponents { bits & 0x80ff } else { bits };
    let near = 0..=u16::MAX;
    let far = (0..=u16::MAX).map(|number| number.wrapping_mul(40_503));
    near.chain(far).flat_map(|bits| finite(bits).to_le_bytes()).collect()
}

#[test]
#[ignore = "extended"]
fn every_value_of_16_bits_has_its_code() {
    for codec in coded() {
        for (element, wave) in
            [(DataType::Bf16, 32), (DataType::F16, 64), (DataType::Bf16, 1), (DataType::F16, 4)]
        {
            compare(codec, element, wave, &all_16_bits(element), 512);
        }
    }
}

#[test]
fn single_precision_is_rounded_once() {
    // All upper halves, each with lower halves that decide between neighbours; in blocks that have one magnitude, and with a
    // first element that fixes the scale.
    let lower = [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff];
    let sweep = (0..=u32::from(u16::MAX)).flat_map(|upper| lower.map(|lower| upper << 16 | lower));
    let finite: Vec<u32> = sweep.filter(|bits| f32::from_bits(*bits).is_finite()).collect();
    let pinned = finite.chunks(31).flat_map(|part| {
        let mut block = vec![4f32.to_bits(); 32 - part.len()];
        block.extend(part.iter().map(|bits| if f32::from_bits(*bits).abs() < 8.0 { *bits } else { 0 }));
        block
    });
    let mut all: Vec<u32> = finite.iter().copied().chain(pinned).collect();
    all.resize(all.len().next_multiple_of(1024), 0);
    let bytes: Vec<u8> = all.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    for codec in coded() {
        compare(codec, DataType::F32, 32, &bytes, 1024);
    }
}

#[test]
fn direct_codes_saturate_and_keep_nans() {
    for codec in coded().filter(|codec| matches!(codec, CombineCodec::Fp8Direct(_))) {
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        compare(codec, DataType::Bf16, 32, &bytes, 1024);
    }
}

/// A NaN or an infinity anywhere makes its block NaNs and leaves the next alone.
#[test]
fn non_finite_element_makes_its_block_nan() {
    for codec in coded().filter(|codec| !matches!(codec, CombineCodec::Fp8Direct(_))) {
        let block = codec.block_elements() as usize;
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 17, block - 1] {
                let mut values = vec![1.0f32; 4 * block];
                values[block + place] = odd;
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                let wire = encode(codec, DataType::F32, 4, &bytes, 4 * block as u32);
                let codes = 4 * block * if codec == CombineCodec::Fp4Block { 4 } else { 8 } / 8;
                let nan = |number: usize| {
                    if codec == CombineCodec::Fp4Block {
                        return E8m0::from_bits(wire[0][codes + number]) == E8m0::NAN;
                    }
                    let scale: [u8; 4] = wire[0][codes + number * 4..][..4].try_into().unwrap();
                    f32::from_le_bytes(scale).is_nan()
                };
                assert_eq!([0, 1, 2, 3].map(nan), [false, true, false, false], "{codec} {odd} {place}");
            }
        }
    }
}
