//! Entries of mlx5 send queues, written field by field: (word, high bit, low bit, value), after the programmer's reference.

/// One field.
pub type Field = (usize, u32, u32, u32);

/// Bytes of an entry that has these fields; whole blocks, the rest zero.
pub fn fields(units: u32, fields: &[Field]) -> Vec<u8> {
    let mut words = vec![0u32; units.div_ceil(4) as usize * 16];
    for (word, high, low, value) in fields {
        let width = high - low + 1;
        let mask = if width == 32 { u32::MAX } else { (1 << width) - 1 };
        assert!(value & !mask == 0, "{value:#x} has more than {width} bits");
        words[*word] = words[*word] & !(mask << low) | value << low;
    }
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// What every entry begins with.
pub struct Control {
    pub index: u64,
    pub number: u32,
    pub completes: bool,
    pub fence: u32,
}

impl Control {
    pub fn new(index: u64, number: u32) -> Self {
        Self { index, number, completes: true, fence: 0 }
    }

    pub fn fields(&self, modifier: u32, opcode: u32, units: u32) -> Vec<Field> {
        vec![
            (0, 31, 24, modifier),
            (0, 23, 8, (self.index & 0xffff) as u32),
            (0, 7, 0, opcode),
            (1, 31, 8, self.number),
            (1, 5, 0, units),
            (2, 7, 5, self.fence),
            (2, 3, 2, if self.completes { 2 } else { 0 }),
        ]
    }
}

/// A range: address, bytes, key.
pub type Range = (u64, u32, u32);

fn remote((address, key): (u64, u32)) -> Vec<Field> {
    vec![(4, 31, 0, (address >> 32) as u32), (5, 31, 0, address as u32), (6, 31, 0, key)]
}

fn data(unit: u32, (address, bytes, key): Range) -> Vec<Field> {
    let word = unit as usize * 4;
    vec![
        (word, 30, 0, bytes),
        (word + 1, 31, 0, key),
        (word + 2, 31, 0, (address >> 32) as u32),
        (word + 3, 31, 0, address as u32),
    ]
}

fn moves(control: &Control, opcode: u32, to: (u64, u32), local: &[Range]) -> Vec<Field> {
    let mut all = control.fields(0, opcode, 2 + local.len() as u32);
    all.extend(remote(to));
    for (range, unit) in local.iter().zip(2..) {
        all.extend(data(unit, *range));
    }
    all
}

pub fn nop(control: &Control) -> Vec<u8> {
    fields(1, &control.fields(0, 0x00, 1))
}

pub fn write(control: &Control, to: (u64, u32), from: &[Range]) -> Vec<u8> {
    fields(2 + from.len() as u32, &moves(control, 0x08, to, from))
}

pub fn write_immediate(control: &Control, to: (u64, u32), from: &[Range], value: u32) -> Vec<u8> {
    let mut all = moves(control, 0x09, to, from);
    all.push((3, 31, 0, value));
    fields(2 + from.len() as u32, &all)
}

pub fn read(control: &Control, from: (u64, u32), to: &[Range]) -> Vec<u8> {
    fields(2 + to.len() as u32, &moves(control, 0x10, from, to))
}

pub fn write_inline(control: &Control, to: (u64, u32), bytes: &[u8]) -> Vec<u8> {
    let units = 2 + (4 + bytes.len() as u32).div_ceil(16);
    let mut all = control.fields(0, 0x08, units);
    all.extend(remote(to));
    all.push((8, 31, 31, 1));
    all.push((8, 30, 0, bytes.len() as u32));
    let mut entry = fields(units, &all);
    entry[36..36 + bytes.len()].copy_from_slice(bytes);
    entry
}

/// An atomic operation: its operands are 64-bit words, or pairs of 32-bit ones.
pub fn atomic(
    control: &Control,
    (modifier, opcode): (u32, u32),
    to: (u64, u32),
    operands: &[u64],
    old: Range,
) -> Vec<u8> {
    let unit = 2 + operands.len().div_ceil(2) as u32;
    let mut all = control.fields(modifier, opcode, unit + 1);
    all.extend(remote(to));
    for (operand, place) in operands.iter().zip(0..) {
        all.push((8 + place * 2, 31, 0, (operand >> 32) as u32));
        all.push((9 + place * 2, 31, 0, *operand as u32));
    }
    all.extend(data(unit, old));
    fields(unit + 1, &all)
}

pub const COMPARE_SWAP: (u32, u32) = (0, 0x11);
pub const FETCH_ADD: (u32, u32) = (0, 0x12);
pub const MASKED_COMPARE_SWAP_4: (u32, u32) = (8, 0x14);
pub const MASKED_COMPARE_SWAP_8: (u32, u32) = (9, 0x14);
pub const MASKED_FETCH_ADD_4: (u32, u32) = (8, 0x15);
pub const MASKED_FETCH_ADD_8: (u32, u32) = (9, 0x15);

/// Two words of 32 bits side by side.
pub fn halves(first: u32, second: u32) -> u64 {
    u64::from(first) << 32 | u64::from(second)
}
