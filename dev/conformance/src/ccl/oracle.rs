//! What collectives must give, computed on the host from all ranks' inputs, in plain loops; and the data to test them with.
//!
//! Everything is in group order, and in bytes as the elements lie in memory (little endian). Nothing here talks to a device or
//! to other ranks: each rank may ask for all ranks' inputs and outputs.
//!
//! ```
//! use anabranch_conformance::ccl::oracle::{self, Data};
//! use anabranch_ccl::{DataType, ReduceOp};
//! use anabranch_ranks::Group;
//!
//! let group = Group::world(4)?;
//! let data = Data::Exact.of(DataType::Bf16, ReduceOp::Sum, group.size(), 17);
//! let inputs: Vec<Vec<u8>> = group.ranks().map(|rank| data.bytes(rank, 0..1000)).collect();
//! let expected = oracle::all_reduce(DataType::Bf16, ReduceOp::Sum, &inputs)?;
//! for rank in group.ranks() {
//!     # let received = expected.output(rank).unwrap().to_vec();
//!     expected.check(rank, &received)?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arithmetic;
mod bits;
mod collectives;
mod error;
pub(crate) mod inputs;

#[cfg(test)]
mod tests;

pub use arithmetic::{equal, reduce};
pub use collectives::{
    Expected, all_gather, all_gather_uneven, all_reduce, all_to_all, all_to_all_splits, broadcast, gather,
    reduce_scatter, reduce_scatter_uneven, reduce_to_root, scatter,
};
pub use error::{Difference, Mismatch, OracleError};
pub use inputs::{Data, Inputs};
