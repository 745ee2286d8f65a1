//! A socket between the two processes, for what ranks tell one another before NICs can.

use core::time::Duration;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use anabranch_clock::{Moment, sleep};
use anyhow::{Context as _, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How long one process waits for the other.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Both ends are alike.
#[derive(Debug)]
pub(crate) struct Link(UnixStream);

impl Link {
    pub(crate) fn listen(path: &Path) -> Result<Self> {
        Self::new(UnixListener::bind(path)?.accept()?.0)
    }

    pub(crate) fn connect(path: &Path) -> Result<Self> {
        let until = Moment::now().after(LONGEST_WAIT);
        loop {
            match UnixStream::connect(path) {
                Ok(stream) => return Self::new(stream),
                Err(error) if until.remaining().is_zero() => return Err(error.into()),
                Err(_) => sleep(Duration::from_millis(5)),
            }
        }
    }

    fn new(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(LONGEST_WAIT))?;
        Ok(Self(stream))
    }

    pub(crate) fn tell<T: Serialize>(&mut self, value: &T) -> Result<()> {
        let bytes = serde_json::to_vec(value)?;
        self.0.write_all(&u32::try_from(bytes.len())?.to_le_bytes())?;
        Ok(self.0.write_all(&bytes)?)
    }

    pub(crate) fn hear<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).context("the other process says nothing more")?;
        let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
        self.0.read_exact(&mut bytes)?;
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// Both are here.
    pub(crate) fn meet(&mut self) -> Result<()> {
        self.tell(&())?;
        self.hear()
    }

    /// Waits until the other process has ended, however it did.
    pub(crate) fn wait_for_the_end(&mut self) -> Result<()> {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest)?;
        Ok(())
    }
}
