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
//! Every wait has a deadline, and a rank that fails is shown with its output. Ranks that are left over are killed.

mod alone;
mod end;
mod error;
mod meeting;
mod mutant;
mod ranks;
mod resources;

pub use alone::{is_alone, within_crate};
pub use end::{end, end_behind, said, say};
pub use error::Error;
pub use meeting::meet;
pub use mutant::mutant;
pub use ranks::{Outcome, RankProcess, Ranks, Role, role};
pub use resources::Resources;
