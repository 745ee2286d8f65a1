//! A look at a code object before a loader gets it: loaders trust headers, and a truncated object ends the process.

use crate::target::TargetKind;

/// Why bytes are no code object for a target.
pub(crate) type Problem = String;

/// The kernels that an object has, as far as its format lists them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kernels {
    /// All of them, sorted.
    Listed(Vec<String>),
    /// The container is not read further (an offload bundle).
    Unknown,
}

/// Checks that every part of the object lies within it, and lists its kernels.
pub(crate) fn inspect(bytes: &[u8], kind: TargetKind) -> Result<Kernels, Problem> {
    if kind == TargetKind::Amd
        && (bytes.starts_with(b"__CLANG_OFFLOAD_BUNDLE__") || bytes.starts_with(b"CCOB"))
    {
        return Ok(Kernels::Unknown);
    }
    let object = Elf::read(bytes)?;
    let machine = match kind {
        TargetKind::Amd => AMDGPU,
        TargetKind::Nvidia => CUDA,
        TargetKind::Host => HOST_MACHINE,
    };
    if object.machine != machine {
        return Err(format!("it is for machine {} and not {machine}", object.machine));
    }
    let mut kernels: Vec<String> = object
        .symbols()?
        .into_iter()
        .filter_map(|symbol| match kind {
            TargetKind::Amd => symbol.name.strip_suffix(".kd").map(str::to_owned),
            TargetKind::Host => symbol.name.strip_suffix("_host_kernel").map(str::to_owned),
            // The bit that marks a kernel's entry among functions.
            TargetKind::Nvidia => {
                (symbol.kind == FUNCTION && symbol.other & 0x10 != 0).then_some(symbol.name)
            }
        })
        .collect();
    kernels.sort();
    kernels.dedup();
    Ok(Kernels::Listed(kernels))
}

#[cfg(target_arch = "x86_64")]
const HOST_MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const HOST_MACHINE: u16 = 183;
#[cfg(target_arch = "riscv64")]
const HOST_MACHINE: u16 = 243;

const AMDGPU: u16 = 224;
const CUDA: u16 = 190;
const FUNCTION: u8 = 2;
const SYMBOL_TABLE: u32 = 2;
const DYNAMIC_SYMBOLS: u32 = 11;
const NO_BYTES: u32 = 8;

struct Elf<'a> {
    bytes: &'a [u8],
    machine: u16,
    sections: Vec<Section>,
}

struct Section {
    kind: u32,
    offset: u64,
    size: u64,
    link: u32,
}

struct Symbol {
    name: String,
    kind: u8,
    other: u8,
}

impl<'a> Elf<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, Problem> {
        if !bytes.starts_with(b"\x7fELF\x02\x01") {
            return Err("it is no 64-bit little-endian ELF file".to_owned());
        }
        let truncated = || "it is truncated".to_owned();
        let machine = u16_at(bytes, 18).ok_or_else(truncated)?;
        let section_table = u64_at(bytes, 40).ok_or_else(truncated)?;
        let segment_table = u64_at(bytes, 32).ok_or_else(truncated)?;
        let segment_count = u64::from(u16_at(bytes, 56).ok_or_else(truncated)?);
        let section_count = u64::from(u16_at(bytes, 60).ok_or_else(truncated)?);
        for index in 0..segment_count {
            let header = segment_table.checked_add(index * 56).ok_or_else(truncated)?;
            let offset = u64_at(bytes, header.saturating_add(8)).ok_or_else(truncated)?;
            let size = u64_at(bytes, header.saturating_add(32)).ok_or_else(truncated)?;
            slice(bytes, offset, size).ok_or_else(truncated)?;
        }
        let mut sections = Vec::new();
        for index in 0..section_count {
            let header = section_table.checked_add(index * 64).ok_or_else(truncated)?;
            let section = Section {
                kind: u32_at(bytes, header.saturating_add(4)).ok_or_else(truncated)?,
                offset: u64_at(bytes, header.saturating_add(24)).ok_or_else(truncated)?,
                size: u64_at(bytes, header.saturating_add(32)).ok_or_else(truncated)?,
                link: u32_at(bytes, header.saturating_add(40)).ok_or_else(truncated)?,
            };
            u64_at(bytes, header.saturating_add(56)).ok_or_else(truncated)?;
            if section.kind != NO_BYTES {
                slice(bytes, section.offset, section.size).ok_or_else(truncated)?;
            }
            sections.push(section);
        }
        if sections.is_empty() {
            return Err("it has no sections".to_owned());
        }
        Ok(Self { bytes, machine, sections })
    }

    /// The defined symbols of all symbol tables.
    fn symbols(&self) -> Result<Vec<Symbol>, Problem> {
        let broken = || "its symbol table is broken".to_owned();
        let mut found = Vec::new();
        for table in self.sections.iter().filter(|s| matches!(s.kind, SYMBOL_TABLE | DYNAMIC_SYMBOLS)) {
            let names = self.sections.get(table.link as usize).ok_or_else(broken)?;
            let names = slice(self.bytes, names.offset, names.size).ok_or_else(broken)?;
            let symbols = slice(self.bytes, table.offset, table.size).ok_or_else(broken)?;
            for symbol in symbols.chunks_exact(24) {
                let name = u32_at(symbol, 0).ok_or_else(broken)?;
                let section = u16_at(symbol, 6).ok_or_else(broken)?;
                if section == 0 {
                    continue;
                }
                let name = names.get(name as usize..).ok_or_else(broken)?;
                let end = name.iter().position(|byte| *byte == 0).ok_or_else(broken)?;
                let name = String::from_utf8_lossy(&name[..end]).into_owned();
                found.push(Symbol { name, kind: symbol[4] & 15, other: symbol[5] });
            }
        }
        Ok(found)
    }
}

fn slice(bytes: &[u8], offset: u64, size: u64) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    bytes.get(start..start.checked_add(usize::try_from(size).ok()?)?)
}

fn fixed<const N: usize>(bytes: &[u8], offset: u64) -> Option<[u8; N]> {
    slice(bytes, offset, N as u64)?.try_into().ok()
}

fn u16_at(bytes: &[u8], offset: u64) -> Option<u16> {
    fixed(bytes, offset).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], offset: u64) -> Option<u32> {
    fixed(bytes, offset).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], offset: u64) -> Option<u64> {
    fixed(bytes, offset).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest file with two host kernels: a header, names, symbols, three section headers.
    fn example() -> Vec<u8> {
        let names = b"\0one_host_kernel\0two_host_kernel\0helper\0absent_host_kernel\0";
        let place = |word: &str| names.windows(word.len()).position(|w| w == word.as_bytes()).unwrap() as u32;
        let mut symbols = vec![0u8; 24];
        for (name, section) in
            [("one_host_kernel", 1u16), ("two_host_kernel", 1), ("helper", 1), ("absent_host_kernel", 0)]
        {
            symbols.extend(place(name).to_le_bytes());
            symbols.extend([0x12, 0]);
            symbols.extend(section.to_le_bytes());
            symbols.extend([0; 16]);
        }
        let mut bytes = vec![0u8; 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18..20].copy_from_slice(&HOST_MACHINE.to_le_bytes());
        let names_at = bytes.len() as u64;
        bytes.extend(names);
        let symbols_at = bytes.len() as u64;
        bytes.extend(&symbols);
        let table_at = bytes.len() as u64;
        bytes[40..48].copy_from_slice(&table_at.to_le_bytes());
        bytes[60] = 3;
        for (kind, offset, size) in [
            (0u32, 0, 0),
            (3, names_at, names.len() as u64),
            (DYNAMIC_SYMBOLS, symbols_at, symbols.len() as u64),
        ] {
            let mut header = [0u8; 64];
            header[4..8].copy_from_slice(&kind.to_le_bytes());
            header[24..32].copy_from_slice(&offset.to_le_bytes());
            header[32..40].copy_from_slice(&size.to_le_bytes());
            header[40] = 1;
            bytes.extend(header);
        }
        bytes
    }

    #[test]
    fn kernels_are_listed() {
        let listed = inspect(&example(), TargetKind::Host).unwrap();
        assert_eq!(listed, Kernels::Listed(vec!["one".to_owned(), "two".to_owned()]));
        assert!(inspect(&example(), TargetKind::Amd).unwrap_err().contains("machine"));
    }

    #[test]
    fn no_truncation_passes_and_none_panics() {
        let bytes = example();
        for length in 0..bytes.len() {
            assert!(inspect(&bytes[..length], TargetKind::Host).is_err(), "{length}");
        }
    }

    #[test]
    fn no_damaged_byte_panics() {
        let bytes = example();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0xff;
            let _ = inspect(&damaged, TargetKind::Host);
        }
    }
}
