//! A run of ranks from its first to its last.

use anyhow::Context;

use super::{Ended, Launch, Meeting, ReservedPort, report, supervise};
use anabranch_bench::reported::Reported;

/// Runs the ranks and turns their end into the command's.
///
/// # Errors
/// [`Reported`] with the failing rank's exit code; a program that cannot be started.
pub(crate) fn finish(plan: &Launch, port_offset: u16) -> anyhow::Result<()> {
    let reserved = ReservedPort::new(port_offset).context("no free port for the rendezvous")?;
    let ended = supervise(plan, &Meeting { port: reserved.port(), secret: secret()? })?;
    // Held until no rank is left: rank 0 may come late.
    drop(reserved);
    if let Ended::Failed(failure) = &ended {
        report(failure, plan.ranks);
    }
    match ended.code() {
        0 => Ok(()),
        code => Err(Reported(code).into()),
    }
}

/// A fresh secret for one world, as hexadecimal digits.
fn secret() -> anyhow::Result<String> {
    let mut bytes = [0_u8; 32];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).context("no random bytes")?;
    let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or_default();
    Ok(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect())
}
