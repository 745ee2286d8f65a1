//! Which of what libfabric finds serves a rank.

use std::sync::Arc;

use anabranch_hip::with_causes;
use anabranch_transport_rdma::nics::NicFilter;
use anabranch_transport_rdma::{NicError, Result};

use crate::domain::Domain;
use crate::environment;
use crate::info::{Info, InfoList, asked};
use crate::library::Libfabric;
use crate::wire::Wire;

/// Where the peers are that a driver has to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All on this machine: loopback interfaces and shared memory will do.
    ThisMachine,
    /// On other machines as well.
    OtherMachines,
}

/// What was chosen, and why that one.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) domain: Arc<Domain>,
    /// For people.
    pub(crate) why: String,
}

/// Opens the first of what libfabric lists (it lists what it takes for best first) that `transport.rdma.nics` allows, by the interface's name,
/// that leads to where peers are, as far as that is known, and that has what kernels need.
///
/// # Errors
/// [`NicError::NoNic`] with the reason of each that does not serve; the errors of [`InfoList::ask`] and of opening the library.
pub(crate) fn choose(provider: Option<&str>, nics: &[String], reach: Reach) -> Result<Chosen> {
    let library = Libfabric::open()?;
    let filter = NicFilter::parse(nics).map_err(|error| NicError::NoNic { reasons: with_causes(&error) })?;
    let (major, minor) = library.version();
    let mut passed_over: Vec<String> = Vec::new();
    let mut seen: Vec<String> = Vec::new();
    for info in InfoList::ask(&library, provider)? {
        // One interface is listed once for each set of what it may be asked for.
        let name = info.describe();
        if seen.contains(&name) {
            continue;
        }
        match serves(&info, &filter, reach) {
            Ok(domain) => {
                let mut why =
                    format!("the first that libfabric {major}.{minor} lists for {}", asked(provider));
                if !passed_over.is_empty() {
                    why = format!("{why} and that serves; passed over: {}", passed_over.join("; "));
                }
                return Ok(Chosen { domain, why });
            }
            Err(reason) => passed_over.push(format!("{name}: {reason}")),
        }
        seen.push(name);
    }
    Err(NicError::NoNic { reasons: passed_over.join("; ") })
}

fn serves(info: &Info, filter: &NicFilter, reach: Reach) -> Result<Arc<Domain>, String> {
    filter.allows(&info.interface())?;
    if reach == Reach::OtherMachines && info.stays_on_this_machine() {
        return Err("it reaches this machine alone, and there are peers on others".to_owned());
    }
    info.check()?;
    environment::check(info.library(), &info.provider())?;
    let words = |error: NicError| with_causes(&error);
    let domain = Domain::open(info).map_err(words)?;
    Wire::new(&domain, 1).map_err(words)?.check_atomics()?;
    Ok(domain)
}
