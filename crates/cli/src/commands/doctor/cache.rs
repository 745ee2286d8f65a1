//! The cache of compiled kernels.

use anabranch_hip::with_distinct_causes;
use std::path::Path;

use anabranch::{Config, Environment, kernel_pipeline};

use super::finding::{Finding, size};

pub(super) fn cache(config: &Config, environment: &Environment) -> Vec<Finding> {
    let path = match environment.cache_root(&config.kernels) {
        Ok(path) => path,
        Err(error) => {
            let hint = "set kernels.cache to a local directory";
            return vec![
                Finding::missing("cache", "directory", true, with_distinct_causes(&error)).hint(hint),
            ];
        }
    };
    let mut findings = vec![directory(&path)];
    // Settings that make no pipeline are complained about where compilers are looked for.
    let Ok(jit) = kernel_pipeline(&config.kernels, environment, None) else { return findings };
    findings.push(match jit.cache().list() {
        Err(error) => Finding::missing("cache", "entries", true, with_distinct_causes(&error))
            .hint("check the directory's permissions"),
        Ok(entries) => {
            let whole = entries.iter().filter_map(|entry| entry.manifest.as_ref().ok());
            let bytes: u64 = whole.map(|manifest| manifest.object_bytes).sum();
            let broken = entries.iter().filter(|entry| entry.manifest.is_err()).count();
            let detail = format!("{} kernels, {}, {broken} broken", entries.len() - broken, size(bytes));
            let finding = if broken == 0 {
                Finding::ok("cache", "entries", detail)
            } else {
                // They are built again when they are needed; that they are broken is worth knowing all the same.
                let hint =
                    "see which with `anabranch jit verify`, remove them with `anabranch jit clean --broken`";
                Finding::missing("cache", "entries", true, detail).hint(hint)
            };
            finding.with("entries", entries.len()).with("broken", broken).with("bytes", bytes)
        }
    });
    findings
}

/// Whether the directory, or the one that it would be made in, can be written.
fn directory(path: &Path) -> Finding {
    let text = path.display().to_string();
    let existing = path.ancestors().find(|folder| folder.exists()).unwrap_or(path);
    let state = if existing == path { "" } else { ", not made yet" };
    let writable = rustix::fs::access(existing, rustix::fs::Access::WRITE_OK).is_ok();
    let finding = if writable {
        Finding::ok("cache", "directory", format!("{text}{state}"))
    } else {
        let hint = "set kernels.cache to a local directory that can be written";
        Finding::missing(
            "cache",
            "directory",
            true,
            format!("{text}: {} cannot be written", existing.display()),
        )
        .hint(hint)
    };
    finding.with("path", text)
}
