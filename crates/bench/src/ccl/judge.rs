//! Giving a contender its inputs and comparing what it made of them with the reference.

use anabranch_hip::{Device, Stream};

use super::collective::Collective;
use super::contender::{Case, Contender};
use super::memory;
use super::reference::{Reference, Sequence};

/// What outputs hold before an operation: no reference value of the types and inputs used.
pub(crate) const UNTOUCHED: u8 = 0xff;

/// Bytes that are copied between host and device at once.
const CHUNK: u64 = 16 << 20;

/// Where the output that is judged starts, and its bytes; `None` for broadcast, whose output is the input's memory.
pub(crate) fn output(case: &Case) -> Option<(u64, u64)> {
    (case.collective != Collective::Broadcast)
        .then(|| (case.places().output, case.size_of(case.elements.output)))
}

/// Marks the contender's memory and writes this rank's input. The stream must be idle; it is idle again afterwards.
///
/// # Errors
/// The runtime's.
pub(crate) fn prepare(
    stream: &Stream,
    contender: &dyn Contender,
    case: &Case,
    reference: &Reference,
) -> anyhow::Result<()> {
    let (area, places) = (contender.memory(), case.places());
    memory::fill(stream, area, 0, places.end, UNTOUCHED)?;
    stream.synchronize().map_err(anabranch::Error::from)?;
    let Some(input) = reference.input() else { return Ok(()) };
    for (offset, bytes) in chunks(case, &[input]) {
        memory::write(stream.device(), area, places.input + offset, &bytes)?;
    }
    Ok(())
}

/// Whether the output is the reference's. What differs goes to the log. The stream must be idle.
///
/// # Errors
/// The runtime's.
pub(crate) fn compare(
    device: &Device,
    contender: &dyn Contender,
    case: &Case,
    reference: &Reference,
) -> anyhow::Result<bool> {
    let Some(expected) = reference.output() else { return Ok(true) };
    let (area, places) = (contender.memory(), case.places());
    let mut found = Vec::new();
    for (offset, bytes) in chunks(case, &expected) {
        found.resize(bytes.len(), 0);
        memory::read(device, area, places.output + offset, &mut found)?;
        if let Err(difference) = reference.compare(offset, &bytes, &found) {
            tracing::error!("{} of {}: {difference}", case.collective, contender.name());
            return Ok(false);
        }
    }
    Ok(true)
}

/// The bytes of sequences that follow each other, in pieces with their offsets.
fn chunks<'a>(case: &'a Case, sequences: &'a [Sequence<'a>]) -> impl Iterator<Item = (u64, Vec<u8>)> + 'a {
    let element = case.size_of(1);
    let mut start = 0;
    sequences.iter().flat_map(move |sequence| {
        let base = start;
        start += sequence.count * element;
        let step = CHUNK / element;
        (0..sequence.count.div_ceil(step)).map(move |chunk| {
            let first = chunk * step;
            let count = step.min(sequence.count - first);
            (base + first * element, sequence.bytes(first, count, element))
        })
    })
}
