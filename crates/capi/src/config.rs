//! Settings from files, texts, the environment and single assignments.

use std::ffi::c_char;
use std::path::PathBuf;

use anabranch::Environment;
use anabranch::config::{Config, LoadOptions, LoadedConfig, setting_named};

use crate::handle::{Handle, Out, destroy, get, put, put_text, slice, text};
use crate::status::{Failure, Result, anabranch_status, guard};
use crate::versioned::{self, Versioned};

/// The settings of a world. Not changed after it was made: any thread may use it.
#[derive(Debug)]
pub struct anabranch_config {
    pub(crate) loaded: LoadedConfig,
}

impl Handle for anabranch_config {
    const NAME: &'static str = "config";
}

/// Where settings come from, each on top of the ones before: `file`, `text`, the variables `ANABRANCH__SECTION__KEY` of the process, `set`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct anabranch_config_options {
    /// `sizeof(anabranch_config_options)`.
    pub size: usize,
    /// The path of a TOML file, or NULL.
    pub file: *const c_char,
    /// The text of such a file, or NULL.
    pub text: *const c_char,
    /// Assignments `"section.key=value"`.
    pub set: *const *const c_char,
    /// How many.
    pub set_count: usize,
    /// 1: without the variables of the process.
    pub ignore_environment: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: pointers and numbers, the size first.
unsafe impl Versioned for anabranch_config_options {
    const NAME: &'static str = "anabranch_config_options";
    const LEAST: usize = size_of::<usize>();

    fn reserved(&self) -> u32 {
        self.reserved
    }
}

fn load(options: &anabranch_config_options) -> Result<LoadedConfig> {
    let environment = match options.ignore_environment {
        0 => Environment::of_process().to_vec(),
        _ => Vec::new(),
    };
    let set = slice(options.set, options.set_count, "set")?.iter().map(|one| {
        let one = text(*one, "an assignment in set")?;
        one.map(str::to_owned).ok_or_else(|| Failure::usage("an assignment in set is NULL"))
    });
    let options = LoadOptions {
        file: text(options.file, "file")?.map(PathBuf::from),
        text: text(options.text, "text")?.map(str::to_owned),
        environment,
        set: set.collect::<Result<_>>()?,
    };
    Ok(Config::load_with(&options)?)
}

/// The settings of a call: NULL is the process's variables on top of the defaults.
pub(crate) fn settings(config: *const anabranch_config) -> Result<Config> {
    if config.is_null() {
        return Ok(Config::from_environment()?);
    }
    Ok(get(config)?.loaded.config.clone())
}

/// Loads settings. With NULL for `options`: the process's variables on top of the defaults. An error names the line, the variable or the
/// assignment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_config_load(
    options: *const anabranch_config_options,
    config: *mut *mut anabranch_config,
) -> anabranch_status {
    guard(|| {
        let out = Out::new(config)?;
        let loaded = load(&versioned::read_or_zero(options)?)?;
        out.give(anabranch_config { loaded });
        Ok(())
    })
}

/// The value of a setting (`"heap.bytes"`) as text, cut to `capacity` bytes with the 0 at its end. `length` (may be NULL) gets the length of
/// the whole text. An unset setting has the text `""`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_config_get(
    config: *const anabranch_config,
    key: *const c_char,
    value: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> anabranch_status {
    guard(|| {
        let config = get(config)?;
        let key = text(key, "key")?.ok_or_else(|| Failure::usage("key is NULL"))?;
        let setting =
            setting_named(key).ok_or_else(|| Failure::config(format!("there is no setting {key:?}")))?;
        let found = setting.value(&config.loaded.config).map(|found| {
            // Texts without their quotes.
            found.as_str().map_or_else(|| found.to_string(), str::to_owned)
        });
        let found = found.unwrap_or_default();
        put_text(&found, value, capacity);
        if length.is_null() { Ok(()) } else { put(length, found.len(), "length") }
    })
}

/// Frees it. Worlds that were joined with it keep their settings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_config_destroy(config: *mut anabranch_config) {
    destroy(config);
}
