//! Benchmarks of links, of the symmetric heap, of collectives and of expert-parallel exchanges; tuners, which write the tables that the
//! library chooses from; and a model of costs. The command `anabranch` starts the ranks and calls this.
#![deny(unsafe_code)]

mod ccl;
mod command;
mod device;
mod ep;
mod fit;
mod link;
mod model;
mod p2p;
pub mod print;
pub mod progress;
pub mod ranks;
pub mod reported;
mod row;
pub mod settings;
mod shmem;
mod statistics;
mod tune;
mod types;
mod workload;

pub use ccl::arguments::CclArgs;
pub use ccl::overlap::OverlapArgs;
pub use command::{BenchCommand, kernels, nic_kernels};
pub use ep::arguments::{EpArgs, Layout, SyntheticArgs};
pub use model::{ModelCclArgs, ModelCommand, ModelEpArgs};
pub use p2p::P2pArgs;
pub use shmem::ShmemArgs;
pub use tune::TuneCommand;

/// The kind of an error of NCCL; `None` for every other error.
pub fn nccl_error_kind(cause: &(dyn std::error::Error + 'static)) -> Option<anabranch::ErrorKind> {
    cause.downcast_ref::<ccl::NcclError>().map(ccl::NcclError::kind)
}
