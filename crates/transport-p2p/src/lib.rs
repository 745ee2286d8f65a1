//! Reaches peers by mapping their memory.
