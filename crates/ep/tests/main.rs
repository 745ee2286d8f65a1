//! The tests of this crate, as one binary: a crate is linked once, and its tests run side by side.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints why it skips"
)]

mod caps;
mod cast;
mod codec;
mod codec_error;
mod combine_weights;
mod common;
mod compact;
mod constants;
mod contiguous;
mod device_count;
mod engine;
mod epochs;
mod expert_major;
mod expert_major_common;
mod expert_major_order;
mod expert_major_plan;
mod expert_major_properties;
mod expert_major_push;
mod framework;
mod graph;
mod hot_spots;
mod ids;
mod input;
mod kernels;
mod killed;
mod killed_common;
mod killed_push;
mod late_weights;
mod launch_shapes;
mod launch_tables;
mod mask;
mod mask_common;
mod mask_kernels;
mod mask_killed;
mod memory;
mod nodes;
mod nodes_common;
mod nodes_killed;
mod nodes_nics;
mod nodes_plan;
mod nodes_traffic;
mod operation;
mod order;
mod placement;
mod plan;
mod properties;
mod push;
mod replays;
mod residency;
mod resources;
mod routing;
mod sizes;
mod slots;
mod split;
mod split_common;
mod streams;
mod sweep;
mod unpack;
mod workers;
mod worlds;
