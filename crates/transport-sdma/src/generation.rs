//! How copy engines differ, as data.

use core::fmt;

/// What engines of one generation take. Sources: the packet headers of the Linux driver for the widths of fields; ROCr's default
/// of 4 MiB less 32 bytes a copy, and its experience that single copies far above 128 MiB stall engines (rocm-systems #9927).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// The engine's version, as the driver names it.
    pub name: &'static str,
    /// GPUs that have it.
    pub targets: &'static [&'static str],
    /// Bits of the count of a copy.
    pub copy_count_bits: u32,
    /// The most bytes that a copy is given, a multiple of 32.
    pub most_copy_bytes: u32,
    /// The memory type of a fence: 3 (uncached) where caches stand between.
    pub fence_memory_type: u32,
}

/// 4 MiB less a unit: what ROCr gives a copy of an engine whose count has 22 bits.
const NARROW: u32 = (1 << 22) - 32;
/// 64 MiB: far below where single copies were seen to stall.
const WIDE: u32 = 1 << 26;

const SDMA_4: Generation = Generation {
    name: "sdma 4.0",
    targets: &["gfx906", "gfx908"],
    copy_count_bits: 22,
    most_copy_bytes: NARROW,
    fence_memory_type: 0,
};

/// All generations that are known. gfx12.5 has other packets and is not.
pub const GENERATIONS: &[Generation] = &[
    SDMA_4,
    // The count has 30 bits from here on by ROCr's tables; on gfx942 its own packets keep to 22.
    Generation {
        name: "sdma 4.2",
        targets: &["gfx90a"],
        copy_count_bits: 30,
        most_copy_bytes: WIDE,
        ..SDMA_4
    },
    Generation { name: "sdma 4.4.2", targets: &["gfx942"], ..SDMA_4 },
    Generation {
        name: "sdma 4.4.5",
        targets: &["gfx950"],
        copy_count_bits: 30,
        most_copy_bytes: WIDE,
        ..SDMA_4
    },
    Generation {
        name: "sdma 6.0",
        targets: &["gfx1100", "gfx1101", "gfx1102"],
        copy_count_bits: 30,
        most_copy_bytes: WIDE,
        fence_memory_type: 3,
    },
];

impl Generation {
    /// The generation of a target's engines, by the target's name without its features; none where it is not known.
    pub fn of_target(target: &str) -> Option<&'static Self> {
        GENERATIONS.iter().find(|generation| generation.targets.contains(&target))
    }

    /// The most bytes that the count of a copy can say, which is what a count of zero bytes would say.
    pub(crate) const fn sayable_copy_bytes(&self) -> u64 {
        1 << self.copy_count_bits
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_fit_their_fields_and_targets_have_one_generation() {
        for generation in GENERATIONS {
            assert!(u64::from(generation.most_copy_bytes) <= generation.sayable_copy_bytes());
            assert!(generation.most_copy_bytes.is_multiple_of(32));
            for target in generation.targets {
                assert_eq!(Generation::of_target(target), Some(generation));
            }
        }
        assert_eq!(Generation::of_target("gfx1250"), None);
        let mut targets: Vec<_> = GENERATIONS.iter().flat_map(|generation| generation.targets).collect();
        let all = targets.len();
        targets.sort_unstable();
        targets.dedup();
        assert_eq!(targets.len(), all);
    }
}
