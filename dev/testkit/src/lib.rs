//! Rank runners and checks for tests.
//!
//! [`Ranks`] runs a test's ranks as processes: the test binary starts itself once for each rank, with a variable that says
//! which part to play. A test that uses it begins with
//!
//! ```no_run
//! # fn rank_main(role: &anabranch_testkit::Role) {}
//! # fn the_test() {
//! if let Some(role) = anabranch_testkit::role() {
//!     return rank_main(&role);
//! }
//! # }
//! ```
//!
//! [`FaultyRendezvous`] makes the link of a rank slow, or cuts it at a chosen call. [`lint`] and [`isa`] check kernels without a GPU.
//!
//! Every wait has a deadline, and a rank that fails is shown with its output. Ranks that are left over are killed.

mod alone;
mod end;
mod error;
mod faulty;
pub mod isa;
pub mod lint;
mod meeting;
mod mutant;
mod ranks;
mod resources;

pub use alone::{is_alone, within_crate};
pub use end::{end, end_behind, said, say};
pub use error::Error;
pub use faulty::{FaultyRendezvous, RendezvousFaults};
pub use meeting::meet;
pub use mutant::{Mutant, mutant, mutants_of};
pub use ranks::{Outcome, RankProcess, Ranks, Role, role};
pub use resources::Resources;
