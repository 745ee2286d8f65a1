//! A build without the compilers of GPUs: their settings and paths are errors that name the cargo features.

use std::path::Path;
use std::sync::Arc;

use super::search::Family;
use super::{CompilerSetting, Looked, ToolSearch, Toolchain};
use crate::target::{Target, TargetKind};

fn not_built(target: &Target) -> String {
    let feature = if target.kind() == TargetKind::Amd { "amd" } else { "nvidia" };
    format!("this build has no compilers of GPUs: enable the cargo feature `{feature}` of anabranch")
}

/// Finds none.
pub(super) fn find(
    family: &CompilerSetting,
    _: &ToolSearch,
    target: &Target,
    looked: &mut Vec<Looked>,
) -> Option<Arc<dyn Toolchain>> {
    looked.push(Looked::new(family.to_string(), not_built(target)));
    None
}

/// Opens none.
pub(super) fn open(
    _: &Path,
    _: Family,
    _: &ToolSearch,
    target: &Target,
) -> Result<Arc<dyn Toolchain>, String> {
    Err(not_built(target))
}
