//! What a process holds, for tests that look for leaks.

use std::time::{Duration, Instant};

use crate::Error;

/// Counts of things that leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Open file descriptors.
    pub files: usize,
    /// Threads.
    pub threads: usize,
    /// Memory mappings.
    pub mappings: usize,
    /// Address space of shared and private mappings, KiB.
    pub address_space_kib: usize,
}

impl Resources {
    /// Those of this process, now.
    ///
    /// # Errors
    /// [`Error::Resources`].
    pub fn now() -> Result<Self, Error> {
        let count = |path: &'static str| {
            std::fs::read_dir(path).map(Iterator::count).map_err(|source| Error::Resources { path, source })
        };
        let read = |path: &'static str| {
            std::fs::read_to_string(path).map_err(|source| Error::Resources { path, source })
        };
        let status = read("/proc/self/status")?;
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
        Ok(Self {
            files: count("/proc/self/fd")?,
            threads: count("/proc/self/task")?,
            mappings: read("/proc/self/maps")?.lines().count(),
            address_space_kib: size
                .and_then(|text| text.split_whitespace().next())
                .and_then(|number| number.parse().ok())
                .unwrap_or(0),
        })
    }

    /// The resources of this process without ended threads, which the kernel lists for a moment after they were joined.
    /// Waits until files and threads have been the same for 100 ms, at most 10 s.
    ///
    /// # Errors
    /// [`Error::Resources`].
    #[expect(
        clippy::disallowed_methods,
        reason = "the kernel's list of threads changes in the machine's time"
    )]
    pub fn at_rest() -> Result<Self, Error> {
        let end = Instant::now() + Duration::from_secs(10);
        let mut last = Self::now()?;
        let mut since = Instant::now();
        while since.elapsed() < Duration::from_millis(100) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
            let now = Self::now()?;
            if (now.files, now.threads) != (last.files, last.threads) {
                since = Instant::now();
            }
            last = now;
        }
        Ok(last)
    }
}
