//! What a plan says that it allocates, against what the heap and the runtime count.

use crate::common::{all_well, on_ranks, world_config};
use anabranch_ep::plan::{MemoryItem, MemoryPlace};
use anabranch_ep::{CombineSource, EpConfig, EpShape, ExpertParallel, Mode, PlacementTable};
use anabranch_ranks::GroupRank;

/// What the host machine rounds allocations up to.
const PAGE: u64 = 4096;

#[test]
fn plan_allocates_what_it_reports() {
    for ranks in 2..=8 {
        let replicated = PlacementTable::new((0..8).map(|expert| {
            let first = GroupRank::new(expert % ranks);
            if expert == 3 { vec![first, GroupRank::new((expert + 1) % ranks)] } else { vec![first] }
        }));
        let base = || EpConfig::new(EpShape { hidden: 192, experts: 8, top_k: 3, max_tokens: 40 });
        let configs = [
            base(),
            base().slots(3).mode(Mode::Compact).scale_bytes(12),
            base().combine_source(CombineSource::Buffer).max_recv(ranks * 7),
            base().combine_source(CombineSource::Window).placement(replicated),
        ];
        all_well(on_ranks(ranks, 4, &world_config(), |world| {
            let free = || world.device().memory_info().unwrap().0 as u64;
            // Kernels are loaded by the first. All are kept: the heap takes dropped memory back at the next collective call only.
            let mut kept = vec![ExpertParallel::new(world, world.group(), base())?];
            for config in &configs {
                let before = (world.heap_usage().free, free());
                let ep = ExpertParallel::new(world, world.group(), config.clone())?;
                let (heap, own) = (before.0 - world.heap_usage().free, before.1 - free());
                let memory = ep.plan().memory();
                assert_eq!(heap, memory.bytes_in(MemoryPlace::Heap), "{ranks} ranks, {config:?}\n{memory}");
                // A slot's own memory is one allocation, the placement another.
                let parts = memory.items().iter().filter(|item| item.place == MemoryPlace::Own);
                let (placed, slots): (Vec<&MemoryItem>, Vec<&MemoryItem>) =
                    parts.partition(|item| item.name == "placement table");
                let slot = slots.iter().map(|item| item.bytes).sum::<u64>().next_multiple_of(PAGE);
                let placed: u64 = placed.iter().map(|item| item.bytes.next_multiple_of(PAGE)).sum();
                assert_eq!(
                    own,
                    slot * u64::from(config.slots) + placed,
                    "{ranks} ranks, {config:?}\n{memory}"
                );
                assert_eq!(memory.bytes(), heap + memory.bytes_in(MemoryPlace::Own));
                assert_eq!(placed > 0, config.placement.is_some());
                kept.push(ep);
            }
            Ok(())
        }));
    }
}
