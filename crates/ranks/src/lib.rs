//! What a rank, a group and a mesh are: pure arithmetic, without I/O and without `unsafe`.
//!
//! * [`GlobalRank`] numbers the ranks of a world, [`GroupRank`] the members of one [`Group`]. They are
//!   different types, and none becomes the other without naming the group.
//! * [`Group`] is an ordered list of distinct global ranks together with its inverse. [`Layout`] is a hint
//!   derived from the list, never the definition.
//! * [`Mesh`] lays a group out along named axes, and gives the groups along them.
//! * [`Nodes`] divides a group by the machines of its members: the groups inside, the rails across, and who hands on what comes to a node
//!   once. [`Across`] says by which way it comes.
//! * [`LinkSpeeds`] are the speeds of links inside nodes and between them, by which routes are chosen: what [`LinkSettings`] set, and else
//!   those of the device ([`DeviceLinks`]).
//! * Every constructor takes a parent group and is checked against that parent, not against the world.
//!
//! A global rank is not accepted where a rank in a group is meant:
//!
//! ```compile_fail,E0308
//! use anabranch_ranks::{GlobalRank, Group};
//! let world = Group::world(4)?;
//! world.global(GlobalRank::new(1));
//! # Ok::<(), anabranch_ranks::Error>(())
//! ```
//!
//! and there is no conversion that would do it in passing:
//!
//! ```compile_fail,E0277
//! use anabranch_ranks::{GlobalRank, GroupRank};
//! let rank: GroupRank = GlobalRank::new(1).into();
//! ```
//!
//! nor does a bare number pass for a rank:
//!
//! ```compile_fail,E0277
//! use anabranch_ranks::GlobalRank;
//! let rank = GlobalRank::from(1_u32);
//! ```
//!
//! What does work says which group is meant:
//!
//! ```
//! use anabranch_ranks::{GlobalRank, Group, GroupRank};
//! let world = Group::world(8)?;
//! let odd = world.split_strided(GroupRank::new(1), 2, 4)?;
//! assert_eq!(odd.global(GroupRank::new(2)), Some(GlobalRank::new(5)));
//! assert_eq!(odd.rank_of(GlobalRank::new(5)), Some(GroupRank::new(2)));
//! assert_eq!(odd.translate(GroupRank::new(2), &world), Some(GroupRank::new(5)));
//! # Ok::<(), anabranch_ranks::Error>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod across;
mod digest;
mod error;
mod group;
mod kind;
mod layout;
mod links;
mod mesh;
mod nodes;
mod rank;
mod split;
mod words;

pub use across::Across;
pub use digest::digest;
pub use error::Error;
pub use group::Group;
pub use kind::ErrorKind;
pub use layout::Layout;
pub use links::{DeviceLinks, LinkSettings, LinkSpeeds, Moved, Source, TimeParts, UnknownSpeed};
pub use mesh::{Axis, Mesh};
pub use nodes::Nodes;
pub use rank::{GlobalRank, GroupRank};
pub use split::SplitChoice;
pub use words::UnknownWord;
