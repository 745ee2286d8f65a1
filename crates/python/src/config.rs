//! Settings from Python: a file, a mapping, single settings.

use std::path::PathBuf;

use anabranch::Environment;
use anabranch::config::{self, LoadOptions, LoadedConfig};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyMapping};

use crate::errors::{config as wrong, raise};

/// The configuration of a world: what a file, the environment (`ANABRANCH__...`) and single settings give together.
#[pyclass(frozen, module = "anabranch", name = "Config")]
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) loaded: LoadedConfig,
}

/// A value as the text of `--set`.
fn text_of(value: &Bound<'_, PyAny>) -> PyResult<String> {
    if value.is_instance_of::<PyBool>() {
        return Ok(if value.is_truthy()? { "true" } else { "false" }.to_owned());
    }
    if let Ok(text) = value.extract::<String>() {
        return Ok(text);
    }
    if let Ok(list) = value.extract::<Vec<Bound<'_, PyAny>>>() {
        return Ok(list.iter().map(text_of).collect::<PyResult<Vec<_>>>()?.join(","));
    }
    Ok(value.str()?.to_string())
}

/// `{"heap": {"bytes": "1 GiB"}}` and `{"heap.bytes": "1 GiB"}` as settings.
fn flatten(prefix: &str, mapping: &Bound<'_, PyMapping>, into: &mut Vec<String>) -> PyResult<()> {
    for item in mapping.items()? {
        let (key, value) = item.extract::<(String, Bound<'_, PyAny>)>()?;
        let key = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
        match value.cast::<PyMapping>() {
            Ok(table) => flatten(&key, table, into)?,
            Err(_) => into.push(format!("{key}={}", text_of(&value)?)),
        }
    }
    Ok(())
}

impl Config {
    /// What `config=` of `init` and `spawn_threads` may be: nothing, a path, a mapping or a `Config`; with `set` on top.
    pub(crate) fn from_argument(given: Option<&Bound<'_, PyAny>>, set: Vec<String>) -> PyResult<Self> {
        let given = given.filter(|given| !given.is_none());
        if let Some(given) = given
            && let Ok(config) = given.cast::<Self>()
        {
            if set.is_empty() {
                return Ok(config.get().clone());
            }
            return Err(wrong("give `set` to Config.load, or no Config"));
        }
        let mut options =
            LoadOptions { environment: Environment::of_process().to_vec(), ..LoadOptions::default() };
        if let Some(given) = given {
            match given.cast::<PyMapping>() {
                Ok(mapping) => flatten("", mapping, &mut options.set)?,
                Err(_) => options.file = Some(given.extract::<PathBuf>()?),
            }
        }
        options.set.extend(set);
        Self::load_with(&options)
    }

    fn load_with(options: &LoadOptions) -> PyResult<Self> {
        let loaded = config::Config::load_with(options).map_err(raise)?;
        Ok(Self { loaded })
    }
}

#[pymethods]
impl Config {
    /// Settings of a TOML file, of `ANABRANCH__...` variables unless `environment` is false, and of `set`, each `"key=value"`; later ones win.
    #[staticmethod]
    #[pyo3(signature = (path = None, *, set = Vec::new(), environment = true))]
    fn load(path: Option<PathBuf>, set: Vec<String>, environment: bool) -> PyResult<Self> {
        let environment = if environment { Environment::of_process().to_vec() } else { Vec::new() };
        Self::load_with(&LoadOptions { file: path, environment, set, ..LoadOptions::default() })
    }

    /// Every setting: its key, its value as text, and what set it.
    fn fields(&self) -> Vec<(String, String, String)> {
        let with_origin = |(key, value): (String, String)| {
            let origin = self.loaded.origins.of(&key).to_string();
            (key, value, origin)
        };
        self.loaded.config.fields().into_iter().map(with_origin).collect()
    }

    /// The value of a setting: a number, a truth value or text (sizes and durations with their units); `None` where it is unset.
    fn __getitem__<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyAny>> {
        let Some(setting) = config::setting_named(key) else {
            return Err(pyo3::exceptions::PyKeyError::new_err(key.to_owned()));
        };
        let Some(value) = setting.value(&self.loaded.config) else { return Ok(py.None().into_bound(py)) };
        if let Some(number) = value.as_integer() {
            return Ok(number.into_pyobject(py)?.into_any());
        }
        if let Some(number) = value.as_float() {
            return Ok(number.into_pyobject(py)?.into_any());
        }
        if let Some(truth) = value.as_bool() {
            return Ok(PyBool::new(py, truth).to_owned().into_any());
        }
        // Sizes, durations, words and paths are text; lists are the text of `--set`.
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Ok(text.into_pyobject(py)?.into_any())
    }

    fn __repr__(&self) -> String {
        let set = self.loaded.origins.set_keys().map(|(key, _)| key).collect::<Vec<_>>();
        format!("anabranch.Config({})", set.join(", "))
    }
}
