//! What the environment changes about the NIC. A name or value that is not known is refused, so that no test runs without what it asks for.

use std::path::PathBuf;

/// Every name begins with this.
const PREFIX: &str = "SOFTHCA_";

/// The link layer of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Link {
    #[default]
    Ethernet,
    InfiniBand,
}

/// The atomics that the NIC has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Atomics {
    None,
    /// Fetch-and-add and compare-and-swap of 8 bytes.
    Standard,
    /// Those and the masked ones of 4 and 8 bytes.
    #[default]
    Extended,
}

/// A step in the creation of a queue pair that can be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    QueryHcaCap,
    CreateCq,
    CreateQp,
    Init,
    Rtr,
    Rts,
}

/// What peers are answered from a request on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Counted from 1 over all requests that this process's NICs receive.
    pub(crate) from_request: u64,
    pub(crate) syndrome: u8,
}

/// The settings of the NICs of a process.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Controls {
    /// Where the NICs of all processes meet, and where violations are listed.
    pub(crate) folder: PathBuf,
    pub(crate) link: Link,
    pub(crate) atomics: Atomics,
    /// Whether the clock is in real-time mode: the NIC reports that format of time stamps alone, and refuses queue pairs with free-running ones.
    pub(crate) real_time_clock: bool,
    /// Whether the NIC lacks `qp_error_syndrome`: QUERY_QP does not report which error stopped a queue pair.
    pub(crate) hides_first_error: bool,
    pub(crate) refused_by_devx: Option<Step>,
    pub(crate) refused_by_verbs: Option<Step>,
    pub(crate) failure: Option<Failure>,
    /// The request from which on nothing is answered.
    pub(crate) silent_from: Option<u64>,
    /// The entry, counted from 1, that the NIC reads with a reserved bit set: a violation that must make a run fail.
    pub(crate) damaged_entry: Option<u64>,
    pub(crate) trace: bool,
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn count(text: &str) -> Option<u64> {
    number(text).filter(|count| *count > 0)
}

fn step(text: &str) -> Option<Step> {
    Some(match text {
        "query_hca_cap" => Step::QueryHcaCap,
        "create_cq" => Step::CreateCq,
        "create_qp" => Step::CreateQp,
        "init" => Step::Init,
        "rtr" => Step::Rtr,
        "rts" => Step::Rts,
        _ => return None,
    })
}

fn failure(text: &str) -> Option<Failure> {
    let (from_request, syndrome) = text.split_once(':')?;
    let syndrome = u8::try_from(number(syndrome)?).ok().filter(|syndrome| *syndrome > 0)?;
    Some(Failure { from_request: count(from_request)?, syndrome })
}

impl Controls {
    /// Takes one variable; `None` for a name or a value that is not known.
    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "DIR" => self.folder = Some(PathBuf::from(value)).filter(|folder| folder.is_absolute())?,
            "LINK" => {
                self.link = match value {
                    "ethernet" => Link::Ethernet,
                    "infiniband" => Link::InfiniBand,
                    _ => return None,
                };
            }
            "ATOMICS" => {
                self.atomics = match value {
                    "none" => Atomics::None,
                    "standard" => Atomics::Standard,
                    "extended" => Atomics::Extended,
                    _ => return None,
                };
            }
            "CLOCK" => {
                self.real_time_clock = match value {
                    "free-running" => false,
                    "real-time" => true,
                    _ => return None,
                };
            }
            "SYNDROME" => {
                self.hides_first_error = match value {
                    "query" => false,
                    "none" => true,
                    _ => return None,
                };
            }
            "REFUSE_DEVX" => self.refused_by_devx = Some(step(value)?),
            "REFUSE_VERBS" => {
                self.refused_by_verbs = Some(step(value).filter(|step| *step != Step::QueryHcaCap)?);
            }
            "FAIL_FROM" => self.failure = Some(failure(value)?),
            "SILENT_FROM" => self.silent_from = Some(count(value)?),
            "DAMAGE_ENTRY" => self.damaged_entry = Some(count(value)?),
            "TRACE" => {
                self.trace = match value {
                    "0" => false,
                    "1" => true,
                    _ => return None,
                };
            }
            _ => return None,
        }
        Some(())
    }

    /// Those that the variables ask for.
    pub(crate) fn parse(variables: impl Iterator<Item = (String, String)>) -> Result<Self, String> {
        let mut controls = Self::default();
        for (name, value) in variables {
            let Some(short) = name.strip_prefix(PREFIX) else { continue };
            controls.set(short, &value).ok_or_else(|| {
                format!("{name}={value:?} is not allowed: README.md lists names and values")
            })?;
        }
        if controls.folder.as_os_str().is_empty() {
            return Err("SOFTHCA_DIR is not set: run.sh sets it".to_owned());
        }
        Ok(controls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(variables: &[(&str, &str)]) -> Result<Controls, String> {
        let folder = [("SOFTHCA_DIR", "/q")];
        let all = folder.iter().chain(variables);
        Controls::parse(all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn names_and_values_are_those_of_the_readme() {
        let controls = parse(&[
            ("SOFTHCA_LINK", "infiniband"),
            ("SOFTHCA_ATOMICS", "none"),
            ("SOFTHCA_CLOCK", "real-time"),
            ("SOFTHCA_SYNDROME", "none"),
            ("SOFTHCA_REFUSE_DEVX", "create_qp"),
            ("SOFTHCA_REFUSE_VERBS", "rtr"),
            ("SOFTHCA_FAIL_FROM", "200:0x13"),
            ("SOFTHCA_SILENT_FROM", "7"),
            ("SOFTHCA_DAMAGE_ENTRY", "3"),
            ("HOME", "/"),
        ])
        .unwrap();
        let wanted = Controls {
            folder: "/q".into(),
            link: Link::InfiniBand,
            atomics: Atomics::None,
            real_time_clock: true,
            hides_first_error: true,
            refused_by_devx: Some(Step::CreateQp),
            refused_by_verbs: Some(Step::Rtr),
            failure: Some(Failure { from_request: 200, syndrome: 0x13 }),
            silent_from: Some(7),
            damaged_entry: Some(3),
            trace: false,
        };
        assert_eq!(controls, wanted);
        let readme = include_str!("../README.md");
        for name in [
            "DIR",
            "LINK",
            "ATOMICS",
            "CLOCK",
            "SYNDROME",
            "REFUSE_DEVX",
            "REFUSE_VERBS",
            "FAIL_FROM",
            "SILENT_FROM",
            "DAMAGE_ENTRY",
            "TRACE",
        ] {
            assert!(readme.contains(&format!("`SOFTHCA_{name}`")), "{name} is not in README.md");
        }
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for (name, value) in [
            ("SOFTHCA_ATOMIC", "none"),
            ("SOFTHCA_ATOMICS", "no"),
            ("SOFTHCA_FAIL_FROM", "200"),
            ("SOFTHCA_FAIL_FROM", "0:0x13"),
            ("SOFTHCA_FAIL_FROM", "1:0x100"),
            ("SOFTHCA_REFUSE_VERBS", "query_hca_cap"),
            ("SOFTHCA_SILENT_FROM", "0"),
            ("SOFTHCA_SYNDROME", "always"),
            ("SOFTHCA_TRACE", "yes"),
            ("SOFTHCA_DIR", "relative"),
        ] {
            assert!(parse(&[(name, value)]).unwrap_err().contains(name), "{name}={value}");
        }
        assert!(Controls::parse(std::iter::empty()).unwrap_err().contains("SOFTHCA_DIR"));
    }
}
