//! When compiling is forbidden: which entry comes nearest, and in what it differs.

use std::collections::BTreeMap;

use crate::error::Nearest;

use super::entry::{MANIFEST_FILE, Manifest};
use super::{Cache, entry_key, sub_folders};

/// Manifests that are looked at, at most, in one cache.
const LIMIT: usize = 1024;

impl Cache {
    /// The entry of `unit`, for any target, that differs in the fewest inputs. Inputs that `wanted` lacks because no
    /// compiler is known are not compared.
    pub(crate) fn nearest(&self, unit: &str, wanted: &BTreeMap<String, String>) -> Option<Nearest> {
        let entries = sub_folders(&self.disk, &self.base)
            .into_iter()
            .flat_map(|folder| sub_folders(&self.disk, &folder));
        entries
            .filter(|path| entry_key(path, unit).is_some())
            .take(LIMIT)
            .filter_map(|directory| {
                let text = self.disk.read(&directory.join(MANIFEST_FILE)).ok()?;
                let manifest: Manifest = serde_json::from_slice(&text).ok()?;
                Some(Nearest { differences: differences(&manifest.inputs, wanted), directory })
            })
            .min_by_key(|nearest| nearest.differences.len())
    }
}

fn differences(
    there: &BTreeMap<String, String>,
    wanted: &BTreeMap<String, String>,
) -> Vec<(String, String, String)> {
    let compiler_known = wanted.contains_key("compiler");
    let mut names: Vec<_> = there.keys().chain(wanted.keys()).collect();
    names.sort();
    names.dedup();
    names
        .into_iter()
        .filter(|name| compiler_known || !matches!(name.as_str(), "compiler" | "options"))
        .filter(|name| there.get(*name) != wanted.get(*name))
        .map(|name| {
            let value = |inputs: &BTreeMap<String, String>| inputs.get(name).cloned().unwrap_or_default();
            (name.clone(), value(there), value(wanted))
        })
        .collect()
}
