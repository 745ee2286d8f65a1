//! Slots of plans for more ranks than a test has: one rank allocates what each of them would.

use anabranch_hip::DeviceOrdinal;
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_hip_jit::{Jit, JitConfig, ToolSearch};
use anabranch_shmem::{RankSetup, World, WorldConfig, spawn_threads};

use super::*;
use crate::plan::{EpConfig, EpShape, MemoryPlace};

/// What the host machine rounds allocations up to.
const PAGE: u64 = 4096;

/// Ranks, tokens a rank, elements of a row. Memory of the heap is zeroed, so that all of it is touched: rows of 7168 elements where a
/// slot has less than a gigabyte, and short ones where it has 7 or 28; these are in [`LARGE`].
const PLANS: [(u32, u32, u32); 8] = [
    (8, 128, 7168),
    (8, 4096, 7168),
    (64, 128, 7168),
    (256, 128, 7168),
    (8, 4096, 64),
    (64, 4096, 64),
    (256, 128, 64),
    (256, 4096, 64),
];

/// Plans whose windows are allocated as they are and touched at their ends only.
const LARGE: [(u32, u32, u32); 2] = [(64, 4096, 7168), (256, 4096, 7168)];

/// Heap and own memory that a slot took, by the heap's count and the runtime's.
fn measure(world: &World, plan: &Plan) -> (u64, u64) {
    let free = || world.device().memory_info().unwrap().0 as u64;
    let before = (world.heap_usage().free, free());
    let heap = world.allocate(world.group(), plan.layout().bytes, 256, "ep slot").unwrap();
    let after = world.heap_usage().free;
    let slot = Slot::new(world.device(), plan, 0, heap).unwrap();
    let measured = (before.0 - after, before.1 - free());
    drop(slot);
    measured
}

/// `cargo test -p anabranch-ep --lib slots_of -- --nocapture` prints what `docs/performance.md` shows.
#[test]
fn slots_of_many_ranks_have_the_planned_bytes() {
    let memory_bytes = 64 << 30;
    let machine = HostMachine::new(HostConfig { devices: 1, memory_bytes, ..HostConfig::default() }).unwrap();
    let runtime = machine.runtime();
    let cache = std::env::temp_dir().join(format!("anabranch-ep-slots-{}", std::process::id()));
    let jit = Jit::new(JitConfig::new(cache), ToolSearch::default());
    let setup = |_| {
        let config = WorldConfig { heap_bytes: 2 << 30, ..WorldConfig::default() };
        Ok(RankSetup { config, device: runtime.device(DeviceOrdinal(0))?, jit: jit.clone() })
    };
    let work = |world: &World| -> Result<()> {
        for (ranks, tokens, hidden) in PLANS {
            let plan = Plan::new(
                EpConfig::new(EpShape { hidden, experts: 256, top_k: 8, max_tokens: tokens }),
                ranks,
            )?;
            let memory = plan.memory();
            let of_slot = |place| {
                let items = memory.items().iter().filter(|item| item.place == place && item.is_of_slot());
                items.map(|item| item.bytes).sum::<u64>()
            };
            let (heap, own) = measure(world, &plan);
            println!("{ranks} ranks, {tokens} tokens, hidden {hidden}: heap {heap}, own {own}");
            assert_eq!(heap, of_slot(MemoryPlace::Heap), "{plan:?}");
            assert_eq!(own, of_slot(MemoryPlace::Own).next_multiple_of(PAGE), "{plan:?}");
        }
        for (ranks, tokens, hidden) in LARGE {
            let plan = Plan::new(
                EpConfig::new(EpShape { hidden, experts: 256, top_k: 8, max_tokens: tokens }),
                ranks,
            )?;
            let free = || world.device().memory_info().unwrap().0 as u64;
            let before = free();
            let windows = world.device().allocate_uncached(plan.layout().bytes as usize)?;
            let heap = before - free();
            println!("{ranks} ranks, {tokens} tokens, hidden {hidden}: windows {heap}");
            assert_eq!(heap, plan.layout().bytes.next_multiple_of(PAGE), "{plan:?}");
            let memory = plan.memory();
            let items =
                memory.items().iter().filter(|item| item.place == MemoryPlace::Heap && item.is_of_slot());
            assert_eq!(items.map(|item| item.bytes).sum::<u64>(), plan.layout().bytes);
            // The end of the last row of each window is in the allocation.
            let (layout, rows) = (plan.layout(), plan.rows());
            for end in [
                layout.rows + rows * u64::from(plan.row_bytes()),
                layout.meta + rows * u64::from(plan.meta_bytes()),
                layout.combine_rows + rows * u64::from(plan.combine_row_bytes()),
            ] {
                let last = windows.address().offset(end - 8);
                // SAFETY: the word is the allocation's, and no other code knows it.
                unsafe { world.device().write_memory(last, &end.to_ne_bytes())? };
                let mut read = [0; 8];
                // SAFETY: as above.
                unsafe { world.device().read_memory(last, &mut read)? };
                assert_eq!(u64::from_ne_bytes(read), end);
            }
        }
        Ok(())
    };
    for result in spawn_threads(1, setup, work) {
        result.unwrap();
    }
}
