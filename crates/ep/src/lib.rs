//! Expert-parallel dispatch and combine over a group.
