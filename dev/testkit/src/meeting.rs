//! How ranks that are processes find each other: by a file in which rank 0 says where it listens.
#![expect(clippy::disallowed_methods, reason = "processes are waited for in the machine's time")]

use std::path::Path;
use std::time::{Duration, Instant};

use anabranch_bootstrap::{Deadline, Secret, TcpConfig, TcpRendezvous, TcpRoot};
use anabranch_ranks::GlobalRank;

use crate::{Error, Role};

/// How long to wait for rank 0's word; only a test that hangs takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Joins the ranks of `role` over TCP on this machine. Rank 0 listens at a free port and says so in `file`, which must not be there
/// before; the others wait for it. Calls `joining` before it joins. Collective.
///
/// # Errors
/// [`Error::Meeting`] without a word of rank 0; [`Error::Rendezvous`] when a rank does not come within `deadline`.
pub fn meet(
    role: &Role,
    file: &Path,
    deadline: Duration,
    joining: impl FnOnce(),
) -> Result<TcpRendezvous, Error> {
    let config = |address: String| {
        let rank = GlobalRank::new(role.rank);
        let mut config = TcpConfig::new(address, rank, role.size, Deadline::after(deadline));
        config.secret = Secret::new("test");
        config
    };
    let failed = |source| Error::Meeting { path: file.to_owned(), source };
    if role.rank == 0 {
        let root = TcpRoot::bind("127.0.0.1:0")?;
        let address = root.address().to_string();
        // No reader sees half of it.
        let partial = file.with_extension("partial");
        std::fs::write(&partial, &address).and_then(|()| std::fs::rename(&partial, file)).map_err(failed)?;
        joining();
        return Ok(TcpRendezvous::join_with_root(config(address), root)?);
    }
    let end = Instant::now() + PATIENCE;
    let address = loop {
        match std::fs::read_to_string(file) {
            Ok(address) => break address,
            Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
            Err(error) => return Err(failed(error)),
        }
    };
    joining();
    Ok(TcpRendezvous::join(config(address))?)
}
