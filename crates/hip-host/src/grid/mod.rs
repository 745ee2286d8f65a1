//! How a kernel runs: its code, the lanes of a block and where they meet, their stacks and local memory.

pub(crate) mod abi;
pub(crate) mod block_state;
pub(crate) mod lane;
pub(crate) mod lanes;
mod local_memory;
pub(crate) mod module;
pub(crate) mod plan;
pub(crate) mod stack;
