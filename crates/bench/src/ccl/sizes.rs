//! The sizes of a run, given one by one or as a range, in nccl-tests' way of writing them.

use std::str::FromStr;

use anabranch::config::ByteSize;
use anyhow::{Context as _, bail};
use clap::Args;

/// A size in bytes: `1K`, `32M` and `1G` count in 1024s, as in nccl-tests (`parsesize` in its `src/common.cu`); what the
/// configuration takes (`1 KiB`, `1 kB`, `1024`) is taken too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = <ByteSize as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let with_unit = match text.bytes().last().map(|letter| letter.to_ascii_uppercase()) {
            Some(b'K') => Some("KiB"),
            Some(b'M') => Some("MiB"),
            Some(b'G') => Some("GiB"),
            _ => None,
        };
        let written = with_unit.map(|unit| format!("{} {unit}", text[..text.len() - 1].trim_end()));
        Ok(Self(written.as_deref().unwrap_or(text).parse::<ByteSize>()?.bytes()))
    }
}

/// Which sizes are measured.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SizeArgs {
    /// Bytes, as nccl-tests counts them: what each rank gives to all_reduce, broadcast and reduce; the output of all ranks'
    /// parts together of all_gather and gather; the input of as many of reduce_scatter, scatter and all_to_all.
    #[arg(long, value_delimiter = ',', value_name = "SIZE,...", conflicts_with_all = ["min", "max", "factor"])]
    sizes: Vec<Size>,
    /// The smallest size of a range.
    #[arg(long, value_name = "SIZE", requires = "max")]
    min: Option<Size>,
    /// The largest size of a range.
    #[arg(long, value_name = "SIZE", requires = "min")]
    max: Option<Size>,
    /// Each size of a range is the one before times this [default: 2].
    #[arg(long, value_name = "N", requires = "min", value_parser = clap::value_parser!(u64).range(2..=1 << 20))]
    factor: Option<u64>,
}

/// What is measured on GPUs unless told otherwise.
const ON_GPUS: [u64; 8] = [1 << 10, 32 << 10, 512 << 10, 1 << 20, 4 << 20, 16 << 20, 256 << 20, 1 << 30];
/// The same on a machine of CPU threads.
const ON_THE_HOST: [u64; 3] = [1 << 10, 32 << 10, 512 << 10];

impl SizeArgs {
    /// Whether there are any.
    pub(crate) fn is_given(&self) -> bool {
        !self.sizes.is_empty() || self.min.is_some()
    }

    /// All sizes, bytes, in the order in which they are measured.
    ///
    /// # Errors
    /// A size of zero; a range whose end is below its start.
    pub(crate) fn all(&self, host: bool) -> anyhow::Result<Vec<u64>> {
        let (Some(min), Some(max)) = (self.min, self.max) else {
            if self.sizes.contains(&Size(0)) {
                bail!("--sizes: 0 bytes leave nothing to measure");
            }
            let given: Vec<u64> = self.sizes.iter().map(|size| size.0).collect();
            return Ok(match (given.is_empty(), host) {
                (false, _) => given,
                (true, true) => ON_THE_HOST.to_vec(),
                (true, false) => ON_GPUS.to_vec(),
            });
        };
        if min.0 == 0 || max.0 < min.0 {
            bail!(
                "--min {} --max {}: the range has to start above 0 and must not end below its start",
                min.0,
                max.0
            );
        }
        let factor = self.factor.unwrap_or(2);
        let steps = std::iter::successors(Some(min.0), |size| size.checked_mul(factor));
        Ok(steps.take_while(|size| *size <= max.0).collect())
    }
}

/// `bytes` in whole elements of `element` bytes for each of `ranks` parts. With several parts, each is a multiple of 16 bytes,
/// as in nccl-tests since 2.13 (`AllGatherGetCollByteCount` in its `src/all_gather.cu`), so the size measured may be a bit smaller
/// than the size asked for.
///
/// # Errors
/// Nothing is left.
pub(crate) fn elements_of_part(bytes: u64, element: u64, ranks: u32, parts: bool) -> anyhow::Result<u64> {
    let count = bytes / element;
    let count = if parts {
        let unit = (16 / element).max(1);
        count / u64::from(ranks) / unit * unit
    } else {
        count
    };
    (count > 0).then_some(count).with_context(|| {
        if parts {
            format!(
                "{bytes} bytes over {ranks} ranks leave nothing: each part is a multiple of 16 bytes, so the least is {} bytes",
                16 * u64::from(ranks)
            )
        } else {
            format!("{bytes} bytes hold no element of {element} bytes")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(arguments: &[&str], host: bool) -> Result<Vec<u64>, String> {
        #[derive(Debug, clap::Parser)]
        struct Only {
            #[command(flatten)]
            sizes: SizeArgs,
        }
        let parsed = <Only as clap::Parser>::try_parse_from([&["bench"], arguments].concat());
        parsed.map_err(|error| error.to_string())?.sizes.all(host).map_err(|error| error.to_string())
    }

    #[test]
    fn sizes_are_written_as_in_nccl_tests() {
        for (text, bytes) in [
            ("8", 8),
            ("1K", 1024),
            ("32k", 32 << 10),
            ("1.5M", 3 << 19),
            ("2G", 2 << 30),
            ("1 KiB", 1024),
            ("1 kB", 1000),
        ] {
            assert_eq!(text.parse::<Size>().unwrap(), Size(bytes), "{text}");
        }
        for text in ["", "K", "-1K", "1X", "1KK", "99999999999G"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_list_or_a_range_or_the_defaults() {
        assert_eq!(all(&["--sizes", "1K,3,1M"], false).unwrap(), [1024, 3, 1 << 20]);
        assert_eq!(all(&["--min", "1K", "--max", "9K"], false).unwrap(), [1024, 2048, 4096, 8192]);
        assert_eq!(all(&["--min", "1", "--max", "64", "--factor", "4"], true).unwrap(), [1, 4, 16, 64]);
        assert_eq!(all(&[], false).unwrap(), ON_GPUS);
        assert_eq!(all(&[], true).unwrap(), ON_THE_HOST);
        let top = u64::MAX.to_string();
        assert_eq!(all(&["--min", &top, "--max", &top], false).unwrap(), [u64::MAX]);
    }

    #[test]
    fn invalid_ranges_are_refused() {
        for (arguments, words) in [
            (&["--sizes", "1K,0"][..], "nothing to measure"),
            (&["--min", "2K", "--max", "1K"], "must not end below"),
            (&["--min", "0", "--max", "1K"], "start above 0"),
            (&["--min", "1K"], "--max"),
            (&["--factor", "2"], "--min"),
            (&["--min", "1", "--max", "8", "--factor", "1"], "factor"),
            (&["--sizes", "1K", "--min", "1", "--max", "8"], "cannot be used with"),
        ] {
            let refused = all(arguments, false).unwrap_err();
            assert!(refused.contains(words), "{arguments:?}: {refused}");
        }
    }

    #[test]
    fn parts_are_multiples_of_16_bytes() {
        assert_eq!(elements_of_part(1024, 2, 4, false).unwrap(), 512);
        assert_eq!(elements_of_part(1024, 2, 4, true).unwrap(), 128);
        // 1024 / 3 = 341 bytes, of which 336 are whole units.
        assert_eq!(elements_of_part(1024, 2, 3, true).unwrap(), 168);
        assert_eq!(elements_of_part(1025, 4, 1, false).unwrap(), 256);
        assert!(elements_of_part(3, 4, 1, false).unwrap_err().to_string().contains("no element of 4"));
        assert!(elements_of_part(63, 1, 4, true).unwrap_err().to_string().contains("the least is 64 bytes"));
        assert_eq!(elements_of_part(64, 1, 4, true).unwrap(), 16);
    }
}
