//! Filling and reading the memory that contenders work on. It may be NCCL's, so it is known by its address alone.
#![expect(unsafe_code, reason = "copying between the host and addresses")]

use anabranch::Error;
use anabranch_hip::{Device, Stream};
use anyhow::bail;

use super::contender::Area;

fn check(area: Area, offset: u64, bytes: u64) -> anyhow::Result<()> {
    match offset.checked_add(bytes) {
        Some(end) if end <= area.bytes => Ok(()),
        _ => bail!("{bytes} bytes from {offset} on leave an area of {} bytes", area.bytes),
    }
}

/// Sets bytes, in stream order, and waits for nothing.
///
/// # Errors
/// A range that leaves the area; the runtime's.
pub(crate) fn fill(stream: &Stream, area: Area, offset: u64, bytes: u64, value: u8) -> anyhow::Result<()> {
    check(area, offset, bytes)?;
    // SAFETY: the range lies in the area, which its contender keeps until it is finished, after a wait for the stream.
    unsafe { stream.fill_async(area.start.offset(offset), value, bytes as usize) }.map_err(Error::from)?;
    Ok(())
}

/// Copies to the device and waits for it. No work that touches the range may be in flight.
///
/// # Errors
/// A range that leaves the area; the runtime's.
pub(crate) fn write(device: &Device, area: Area, offset: u64, source: &[u8]) -> anyhow::Result<()> {
    check(area, offset, source.len() as u64)?;
    // SAFETY: the range lies in the area, which its contender keeps; no other work uses it, by this function's contract.
    unsafe { device.write_memory(area.start.offset(offset), source) }.map_err(Error::from)?;
    Ok(())
}

/// Copies from the device and waits for it.
///
/// # Errors
/// A range that leaves the area; the runtime's.
pub(crate) fn read(device: &Device, area: Area, offset: u64, target: &mut [u8]) -> anyhow::Result<()> {
    check(area, offset, target.len() as u64)?;
    // SAFETY: the range lies in the area, which its contender keeps.
    unsafe { device.read_memory(area.start.offset(offset), target) }.map_err(Error::from)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_hip::DeviceAddress;

    #[test]
    fn ranges_stay_within_the_area() {
        let area = Area { start: DeviceAddress(4096), bytes: 100 };
        assert!(check(area, 0, 100).is_ok() && check(area, 100, 0).is_ok());
        for (offset, bytes) in [(1, 100), (101, 0), (u64::MAX, 2)] {
            assert!(check(area, offset, bytes).is_err(), "{offset} {bytes}");
        }
    }
}
