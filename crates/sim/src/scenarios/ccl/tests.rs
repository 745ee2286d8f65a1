//! Faults: a rank that never comes.

use super::*;
use crate::scratch;
