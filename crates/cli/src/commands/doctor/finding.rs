//! One check of the doctor.

use serde::Serialize;
use serde_json::{Map, Value};

/// What it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    /// As it should be.
    Ok,
    /// It works, but not as it should.
    Warning,
    /// Not here, and not needed by the configuration.
    Absent,
    /// Something that the configuration needs does not work.
    Wrong,
}

/// One check of the doctor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Finding {
    /// Where it belongs: `runtimes`, `devices`, `links`, ...
    pub(super) section: &'static str,
    /// What it is.
    pub(super) name: String,
    /// What it means.
    pub(super) status: Status,
    /// What was seen.
    pub(super) detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hint: Option<String>,
    /// The same as numbers and words, for programs.
    #[serde(flatten)]
    pub(super) values: Map<String, Value>,
}

impl Finding {
    pub(super) fn ok(section: &'static str, name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(section, name, Status::Ok, detail)
    }

    /// Something missing: wrong when it is needed.
    pub(super) fn missing(
        section: &'static str,
        name: impl Into<String>,
        needed: bool,
        detail: impl Into<String>,
    ) -> Self {
        Self::new(section, name, if needed { Status::Wrong } else { Status::Absent }, detail)
    }

    /// Something that works and deserves a look.
    pub(super) fn warning(section: &'static str, name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(section, name, Status::Warning, detail)
    }

    fn new(
        section: &'static str,
        name: impl Into<String>,
        status: Status,
        detail: impl Into<String>,
    ) -> Self {
        Self { section, name: name.into(), status, detail: detail.into(), hint: None, values: Map::new() }
    }

    /// Says what to do when it is wrong or deserves a look; dropped otherwise.
    #[must_use]
    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        if matches!(self.status, Status::Wrong | Status::Warning) {
            self.hint = Some(hint.into());
        }
        self
    }

    /// Adds a value for programs.
    #[must_use]
    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.values.insert(name.to_owned(), value.into());
        self
    }

    /// The lines for people. What is absent and not needed gets one, unless all is asked for.
    pub(super) fn lines(&self, all: bool) -> Vec<String> {
        let mark = match self.status {
            Status::Ok => "  ok    ",
            Status::Warning => "  WARN  ",
            Status::Absent => "  -     ",
            Status::Wrong => "  WRONG ",
        };
        if self.status == Status::Absent && !all {
            return vec![format!("{mark}{}: {}", self.name, shortened(&self.detail))];
        }
        let mut detail = self.detail.lines();
        let mut lines = vec![format!("{mark}{}: {}", self.name, detail.next().unwrap_or_default())];
        lines.extend(detail.map(|line| format!("          {}", line.trim_start())));
        lines.extend(self.hint.iter().map(|hint| format!("          hint: {hint}")));
        lines
    }
}

/// The beginning of a long complaint, and where the rest is.
fn shortened(text: &str) -> String {
    const MOST: usize = 100;
    let first = text.lines().next().unwrap_or_default();
    if first.len() == text.len() && text.chars().count() <= MOST {
        return text.to_owned();
    }
    let cut: String = first.chars().take(MOST).collect();
    format!("{}... (--verbose: all)", cut.trim_end_matches(':'))
}

/// A size for people.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_belongs_to_what_is_wrong() {
        let wrong = Finding::missing("runtimes", "amd", true, "no library\ntried a").hint("install ROCm");
        assert_eq!(
            wrong.lines(false),
            ["  WRONG amd: no library", "          tried a", "          hint: install ROCm"]
        );
        let absent = Finding::missing("runtimes", "amd", false, "no library").hint("install ROCm");
        assert_eq!((absent.status, absent.hint), (Status::Absent, None));
        assert_eq!(
            Finding::missing("a", "b", false, "x\ny").lines(false),
            ["  -     b: x... (--verbose: all)"]
        );
        assert_eq!(size(1 << 31), "2.0 GiB");
    }
}
