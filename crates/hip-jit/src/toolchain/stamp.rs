//! Whether a program is still the file that was identified.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A program file at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    program: PathBuf,
    /// Device, inode, length and the time of the last change, which no copy preserves.
    file: Option<(u64, u64, u64, i64, i64)>,
}

impl Stamp {
    /// To be taken before the program is asked who it is.
    pub(super) fn of(program: &Path) -> Self {
        let file = fs::metadata(program)
            .ok()
            .map(|data| (data.dev(), data.ino(), data.len(), data.ctime(), data.ctime_nsec()));
        Self { program: program.to_owned(), file }
    }

    pub(super) fn is_current(&self) -> bool {
        self.file.is_some() && *self == Self::of(&self.program)
    }
}

#[cfg(test)]
mod tests {
    use super::Stamp;
    use std::fs;

    #[test]
    fn another_file_in_its_place_is_noticed() {
        let folder = crate::scratch::folder("stamp");
        let program = folder.join("program");
        fs::write(&program, "one").unwrap();
        let stamp = Stamp::of(&program);
        assert!(stamp.is_current());
        fs::write(folder.join("next"), "two").unwrap();
        fs::rename(folder.join("next"), &program).unwrap();
        assert!(!stamp.is_current());
        assert!(Stamp::of(&program).is_current());
        fs::remove_file(&program).unwrap();
        assert!(!stamp.is_current() && !Stamp::of(&program).is_current());
        fs::remove_dir_all(folder).unwrap();
    }
}
