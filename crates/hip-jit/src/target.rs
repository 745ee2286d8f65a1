//! Which machine a kernel is compiled for: the architecture string that the device reports, taken apart.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The family of tool chains that makes code for a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TargetKind {
    /// AMD GPUs (`gfx...`).
    Amd,
    /// NVIDIA GPUs (`sm_...`).
    Nvidia,
    /// The GPU made of CPU threads (`host:wave<W>`).
    Host,
}

impl fmt::Display for TargetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Amd => "amd",
            Self::Nvidia => "nvidia",
            Self::Host => "host",
        })
    }
}

/// A target: kind, base architecture, features, wave size.
///
/// Parsed from what the device reports (`gfx942:sramecc+:xnack-`, `sm_90`, `host:wave1`) or from what the
/// user writes; `host` means `host:wave1`. Two targets are equal when their canonical strings are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    kind: TargetKind,
    base: Arc<str>,
    /// On, off, or as the device has it.
    sramecc: Option<bool>,
    xnack: Option<bool>,
    wave_size: u32,
    /// Of the host: every access is a call into a seeded machine.
    instrumented: bool,
}

/// Why a target string is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown target `{given}`: {problem}{}; accepted are {FAMILIES}", suggestion_text(.suggestion.as_deref()))]
pub struct TargetError {
    /// What was given.
    pub given: String,
    /// What is wrong with it.
    pub problem: String,
    /// The nearest known target, if one is near.
    pub suggestion: Option<String>,
}

fn suggestion_text(suggestion: Option<&str>) -> String {
    suggestion.map(|name| format!(", did you mean `{name}`?")).unwrap_or_default()
}

const FAMILIES: &str = "gfx9.., gfx10.., gfx11.., gfx12.. (with :sramecc+/-, :xnack+/-; also gfx9-generic, \
     gfx9-4-generic, gfx10-1-generic, gfx10-3-generic, gfx11-generic, gfx12-generic), sm_70 and later, \
     host, host:wave<1, 4, 32, 64>, the last also with :instrumented";

/// Names for suggestions only: a name of a known family that is not in this list is accepted too, and the
/// compiler then rejects names that it does not know.
const KNOWN: &[&str] = &[
    "gfx900",
    "gfx906",
    "gfx908",
    "gfx90a",
    "gfx942",
    "gfx950",
    "gfx1010",
    "gfx1030",
    "gfx1100",
    "gfx1101",
    "gfx1102",
    "gfx1150",
    "gfx1151",
    "gfx1200",
    "gfx1201",
    "gfx1250",
    "sm_70",
    "sm_75",
    "sm_80",
    "sm_86",
    "sm_89",
    "sm_90",
    "sm_90a",
    "sm_100",
    "sm_103",
    "sm_120",
    "host",
    "host:wave1",
    "host:wave32",
    "host:wave64",
];

const GENERIC: &[&str] = &[
    "gfx9-generic",
    "gfx9-4-generic",
    "gfx10-1-generic",
    "gfx10-3-generic",
    "gfx11-generic",
    "gfx12-generic",
];

impl Target {
    /// Which family of tool chains makes code for it.
    pub fn kind(&self) -> TargetKind {
        self.kind
    }

    /// The architecture without features: `gfx942`, `sm_90`, `host`.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Features of an AMD target with their setting, sorted by name: `[("sramecc", true), ("xnack", false)]`.
    pub fn features(&self) -> impl Iterator<Item = (&'static str, bool)> {
        [("sramecc", self.sramecc), ("xnack", self.xnack)]
            .into_iter()
            .filter_map(|(name, setting)| setting.map(|on| (name, on)))
    }

    /// Lanes that run in step.
    pub fn wave_size(&self) -> u32 {
        self.wave_size
    }

    /// The host target of a given wave width.
    ///
    /// # Errors
    /// The width is not 1, 4, 32 or 64.
    pub fn host(wave_size: u32) -> Result<Self, TargetError> {
        if [1, 4, 32, 64].contains(&wave_size) {
            return Ok(Self {
                kind: TargetKind::Host,
                base: "host".into(),
                sramecc: None,
                xnack: None,
                wave_size,
                instrumented: false,
            });
        }
        let given = format!("host:wave{wave_size}");
        Err(refused(&given, "a wave has 1, 4, 32 or 64 lanes"))
    }

    /// The host target for kernels of a seeded machine (`host:wave4:instrumented`); other kinds are as they were.
    #[must_use]
    pub fn instrumented(mut self) -> Self {
        self.instrumented = self.kind == TargetKind::Host;
        self
    }

    /// Whether kernels are made for a seeded machine.
    pub(crate) fn is_instrumented(&self) -> bool {
        self.instrumented
    }

    /// The number of an AMD target's family: 9, 10, 11 or 12.
    pub(crate) fn amd_family(&self) -> Option<u32> {
        let version = self.base.strip_prefix("gfx")?;
        if let Some((family, _)) = version.split_once('-') {
            return family.parse().ok();
        }
        version.get(..version.len().checked_sub(2)?)?.parse().ok()
    }

    /// Ticks a millisecond of an AMD GPU's constant clock, which kernels read: 25 MHz before MI300, 100 MHz since. Loading a
    /// kernel checks it against what the device reports.
    pub fn amd_clock_khz(&self) -> Option<u32> {
        let family = self.amd_family()?;
        let slow = family == 9 && !["gfx94", "gfx95", "gfx9-4"].iter().any(|new| self.base.starts_with(new));
        Some(if slow { 25_000 } else { 100_000 })
    }

    /// A name for a directory: the canonical string with `:` replaced by `,`.
    pub(crate) fn directory_name(&self) -> String {
        self.to_string().replace(':', ",")
    }

    /// The suffix of `ANABRANCH_ARCH_`: `GFX942`, `GFX9_4_GENERIC`, `SM_90`, `HOST`.
    pub(crate) fn define_name(&self) -> String {
        self.base.to_ascii_uppercase().replace('-', "_")
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.base)?;
        if self.kind == TargetKind::Host {
            write!(f, ":wave{}", self.wave_size)?;
            return if self.instrumented { f.write_str(INSTRUMENTED) } else { Ok(()) };
        }
        for (name, on) in self.features() {
            write!(f, ":{name}{}", if on { '+' } else { '-' })?;
        }
        Ok(())
    }
}

/// Behind the wave width of a seeded machine's architecture.
const INSTRUMENTED: &str = ":instrumented";

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        if text == "host" || text.starts_with("host:") {
            parse_host(text)
        } else if text.starts_with("gfx") {
            parse_amd(text)
        } else if text.starts_with("sm_") {
            parse_nvidia(text)
        } else {
            Err(refused(text, "no such family"))
        }
    }
}

fn parse_host(text: &str) -> Result<Target, TargetError> {
    let Some(rest) = text.strip_prefix("host:") else { return Target::host(1) };
    let (rest, instrumented) = rest.strip_suffix(INSTRUMENTED).map_or((rest, false), |rest| (rest, true));
    let width = rest
        .strip_prefix("wave")
        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| refused(text, "`host:` is followed by `wave` and a number"))?;
    let target = Target::host(width).map_err(|error| refused(text, &error.problem))?;
    Ok(if instrumented { target.instrumented() } else { target })
}

fn parse_amd(text: &str) -> Result<Target, TargetError> {
    let mut parts = text.split(':');
    let base = parts.next().unwrap_or_default();
    let wave_size = amd_wave_size(base).ok_or_else(|| refused(text, "no such architecture"))?;
    let mut target = Target {
        kind: TargetKind::Amd,
        base: base.into(),
        sramecc: None,
        xnack: None,
        wave_size,
        instrumented: false,
    };
    for part in parts {
        let (name, on) = match (part.strip_suffix('+'), part.strip_suffix('-')) {
            (Some(name), _) => (name, true),
            (_, Some(name)) => (name, false),
            _ => return Err(refused(text, &format!("feature `{part}` does not end in + or -"))),
        };
        let setting = match name {
            "sramecc" => &mut target.sramecc,
            "xnack" => &mut target.xnack,
            _ => return Err(refused(text, &format!("feature `{name}` is neither sramecc nor xnack"))),
        };
        if setting.replace(on).is_some() {
            return Err(refused(text, &format!("feature `{name}` is given twice")));
        }
    }
    Ok(target)
}

/// Lanes of a wave, by family; `None` when the name is not of a known family.
fn amd_wave_size(base: &str) -> Option<u32> {
    if GENERIC.contains(&base) {
        return Some(if base.starts_with("gfx9") { 64 } else { 32 });
    }
    let version = base.strip_prefix("gfx")?;
    let (family, stepping) = version.split_at_checked(version.len().checked_sub(2)?)?;
    let [minor, step] = stepping.as_bytes() else { return None };
    if !minor.is_ascii_digit() || !(step.is_ascii_digit() || (b'a'..=b'f').contains(step)) {
        return None;
    }
    match family {
        "9" => Some(64),
        "10" | "11" | "12" => Some(32),
        _ => None,
    }
}

fn parse_nvidia(text: &str) -> Result<Target, TargetError> {
    let version = text.strip_prefix("sm_").unwrap_or_default();
    let digits = version.strip_suffix(['a', 'f']).unwrap_or(version);
    let number: u32 = Some(digits)
        .filter(|digits| (2..=3).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| refused(text, "`sm_` is followed by a number of two or three digits"))?;
    if number < 70 {
        return Err(refused(text, "scoped atomics need sm_70 or later"));
    }
    Ok(Target {
        kind: TargetKind::Nvidia,
        base: text.into(),
        sramecc: None,
        xnack: None,
        wave_size: 32,
        instrumented: false,
    })
}

fn refused(given: &str, problem: &str) -> TargetError {
    let suggestion = KNOWN
        .iter()
        .chain(GENERIC)
        .map(|name| (edit_distance(given, name), *name))
        .min()
        .filter(|(distance, name)| *distance <= 2 && *name != given)
        .map(|(_, name)| name.to_owned());
    TargetError { given: given.to_owned(), problem: problem.to_owned(), suggestion }
}

/// Insertions, deletions and replacements between two short words.
pub(crate) fn edit_distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = i;
        let mut before = i + 1;
        for (cell, b) in row.iter_mut().skip(1).zip(&right) {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = *cell;
            before = replaced.min(diagonal + 1).min(before + 1);
            *cell = before;
        }
        row[0] = i + 1;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_targets_have_a_canonical_form_and_a_wave_size() {
        for (text, canonical, kind, wave, define) in [
            ("gfx90a", "gfx90a", TargetKind::Amd, 64, "GFX90A"),
            ("gfx942:xnack-:sramecc+", "gfx942:sramecc+:xnack-", TargetKind::Amd, 64, "GFX942"),
            ("gfx950", "gfx950", TargetKind::Amd, 64, "GFX950"),
            ("gfx9-4-generic", "gfx9-4-generic", TargetKind::Amd, 64, "GFX9_4_GENERIC"),
            ("gfx1100", "gfx1100", TargetKind::Amd, 32, "GFX1100"),
            ("gfx1250", "gfx1250", TargetKind::Amd, 32, "GFX1250"),
            ("sm_90", "sm_90", TargetKind::Nvidia, 32, "SM_90"),
            ("sm_100a", "sm_100a", TargetKind::Nvidia, 32, "SM_100A"),
            ("host", "host:wave1", TargetKind::Host, 1, "HOST"),
            ("host:wave64", "host:wave64", TargetKind::Host, 64, "HOST"),
            ("host:wave4:instrumented", "host:wave4:instrumented", TargetKind::Host, 4, "HOST"),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!(target.to_string(), canonical);
            assert_eq!((target.kind(), target.wave_size()), (kind, wave), "{text}");
            assert_eq!(target.define_name(), define);
            assert_eq!(target.amd_family().is_some(), kind == TargetKind::Amd);
            assert_eq!(canonical.parse::<Target>().unwrap(), target);
        }
        for (text, family) in
            [("gfx90a", 9), ("gfx9-4-generic", 9), ("gfx1030", 10), ("gfx11-generic", 11), ("gfx1250", 12)]
        {
            assert_eq!(text.parse::<Target>().unwrap().amd_family(), Some(family));
        }
        assert_eq!(Target::host(4).unwrap().instrumented(), "host:wave4:instrumented".parse().unwrap());
        assert_ne!("host:wave4".parse::<Target>(), "host:wave4:instrumented".parse::<Target>());
        assert!(!"sm_90".parse::<Target>().unwrap().instrumented().is_instrumented());
        assert_ne!("gfx942:xnack-".parse::<Target>(), "gfx942:xnack+".parse::<Target>());
        assert_eq!("gfx942:xnack-".parse::<Target>().unwrap().directory_name(), "gfx942,xnack-");
    }

    #[test]
    fn refused_targets_say_what_is_accepted_and_what_is_near() {
        for (text, suggestion) in [
            ("gfx94", Some("gfx942")), // nearest of several: the shortest edit, then by name
            ("gfx1300", None),
            ("sm90", Some("sm_90")),
            ("sm_60", None),
            ("sm_9", Some("sm_90")),
            ("hots", Some("host")),
            ("host:wave3", None),
            ("host:wave128", None),
            ("gfx942:foo+", None),
            ("gfx942:xnack", None),
            ("gfx942:xnack+:xnack-", None),
            ("gfx", None),
            ("", None),
            ("gfx\u{e9}42", None),
        ] {
            let error = text.parse::<Target>().unwrap_err();
            if let Some(suggestion) = suggestion {
                let near = error.suggestion.clone().unwrap();
                assert_eq!(edit_distance(text, &near), edit_distance(text, suggestion), "{text}: {near}");
            }
            let message = error.to_string();
            assert!(message.contains(&format!("`{text}`")) && message.contains("host:wave"), "{message}");
        }
    }
}
