//! Bytes in and out of payloads: little-endian numbers, and byte strings with a 64-bit length in front.

use crate::frame::FrameError;

/// Writes a payload.
#[derive(Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Bytes whose length the reader knows.
    pub(crate) fn fixed(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        self.u64(bytes.len() as u64).fixed(bytes)
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Reads a payload; everything is checked against what is there, so that a bad length allocates nothing.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// Reads the payload of this kind of frame.
    pub(crate) fn new(payload: &'a [u8], what: &'static str) -> Self {
        Self { rest: payload, what }
    }

    pub(crate) fn malformed(&self) -> FrameError {
        FrameError::Malformed { what: self.what }
    }

    pub(crate) fn fixed(&mut self, length: usize) -> Result<&'a [u8], FrameError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or_else(|| self.malformed())?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let taken = self.fixed(N)?;
        taken.try_into().map_err(|_| self.malformed())
    }

    pub(crate) fn u8(&mut self) -> Result<u8, FrameError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, FrameError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, FrameError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], FrameError> {
        let length = usize::try_from(self.u64()?).map_err(|_| self.malformed())?;
        self.fixed(length)
    }

    pub(crate) fn text(&mut self) -> Result<String, FrameError> {
        let bytes = self.bytes()?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| self.malformed())
    }

    /// A count of things of at least this many bytes each.
    pub(crate) fn count(&mut self, each: usize) -> Result<usize, FrameError> {
        let count = usize::try_from(self.u64()?).map_err(|_| self.malformed())?;
        if count > self.rest.len() / each {
            return Err(self.malformed());
        }
        Ok(count)
    }

    /// Ends reading; bytes left over are an error.
    pub(crate) fn finish(self) -> Result<(), FrameError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.malformed()) }
    }
}
