//! The secret that a job's ranks share.

use crate::Error;
use sha2::{Digest, Sha256};
use std::fmt;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// A nonce or a key.
pub(crate) type Bytes32 = [u8; 32];

/// Sets this use of a secret apart from any other.
const PURPOSE: &[u8] = b"anabranch rendezvous secret 1\0";

/// The secret that a job's ranks share. It is never sent: both sides prove that they know it, and it keys what encrypts
/// everything they say (`tcp/noise.rs`).
///
/// An attacker who records the start of a connection can try guesses offline, so it has to be random
/// ([`Secret::random`], `openssl rand -hex 32`), not a word. [`Debug`](fmt::Debug) never prints it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// The fewest bytes that a secret from a file or the environment may have.
    pub const MIN_BYTES: usize = 16;
    /// The most bytes of a file that holds a secret.
    const MAX_FILE_BYTES: u64 = 4096;

    /// This secret.
    pub fn new(secret: impl Into<Vec<u8>>) -> Self {
        Self(secret.into())
    }

    /// 32 bytes of the system's random generator.
    ///
    /// # Errors
    /// [`Error::System`] when the system gives none.
    pub fn random() -> Result<Self, Error> {
        let bytes: Bytes32 = random().map_err(Error::system("getrandom"))?;
        Ok(Self(bytes.to_vec()))
    }

    /// No secret: every process that reaches the port may join. Allowed where only this machine reaches it, and with
    /// [`TcpConfig::insecure`](crate::TcpConfig::insecure).
    pub fn none() -> Self {
        Self(Vec::new())
    }

    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    /// The secret that a file holds, without white space around it. The file must belong to this process's user or to root and
    /// must not be open to others (mode 0600 or 0400), since every reader can join.
    ///
    /// # Errors
    /// [`Error::Secret`]: it cannot be read, is open to others, is too large, or holds fewer than
    /// [`Secret::MIN_BYTES`] bytes.
    pub(crate) fn read_file(path: &Path) -> Result<Self, Error> {
        let origin = format!("the secret in {}", path.display());
        let refuse = |problem: String, source| Error::Secret { origin: origin.clone(), problem, source };
        let unreadable = |source| refuse("it cannot be read".to_owned(), Some(source));
        // The checks apply to the opened file, whatever the path names a moment later.
        let file = std::fs::File::open(path).map_err(unreadable)?;
        let about = file.metadata().map_err(unreadable)?;
        let (mode, user) = (about.permissions().mode() & 0o7777, rustix::process::geteuid().as_raw());
        if !about.is_file() {
            return Err(refuse("it is not a regular file".to_owned(), None));
        }
        if mode & 0o077 != 0 {
            let problem =
                format!("its mode is {mode:04o}, so that others may use it; `chmod 600` keeps them out");
            return Err(refuse(problem, None));
        }
        if about.uid() != user && about.uid() != 0 {
            let problem = format!("it belongs to user {}, and this process to user {user}", about.uid());
            return Err(refuse(problem, None));
        }
        let mut bytes = Vec::new();
        file.take(Self::MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > Self::MAX_FILE_BYTES {
            return Err(refuse(format!("it has more than {} bytes", Self::MAX_FILE_BYTES), None));
        }
        let secret = bytes.trim_ascii();
        if secret.len() < Self::MIN_BYTES {
            let problem =
                format!("it holds {} bytes, and a secret has at least {}", secret.len(), Self::MIN_BYTES);
            return Err(refuse(problem, None));
        }
        Ok(Self(secret.to_vec()))
    }

    /// The key that the handshake mixes in. Of no secret it is one that everybody knows.
    pub(crate) fn key(&self) -> Bytes32 {
        Sha256::new_with_prefix(PURPOSE).chain_update(&self.0).finalize().into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_none() { "Secret(none)" } else { "Secret(..)" })
    }
}

/// Unpredictable bytes.
pub(crate) fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    const { assert!(N <= 256, "up to 256 bytes come whole or not at all (getrandom(2))") }
    let mut bytes = [0; N];
    rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A file of this content and mode.
    fn file(name: &str, content: &str, mode: u32) -> PathBuf {
        let path = std::env::temp_dir().join(format!("anabranch-secret-{}-{name}", std::process::id()));
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn secrets_stay_secret_and_give_different_keys() {
        assert_eq!(format!("{:?} {:?}", Secret::new("hush"), Secret::none()), "Secret(..) Secret(none)");
        assert_eq!(Secret::new("a").key(), Secret::new("a").key());
        assert_ne!(Secret::new("a").key(), Secret::new("b").key());
        assert_ne!(Secret::random().unwrap(), Secret::random().unwrap());
    }

    #[test]
    fn a_file_that_only_its_owner_reads_gives_its_secret() {
        let long = "0123456789abcdef";
        for mode in [0o600, 0o400] {
            let path = file("good", &format!("{long}\n"), mode);
            assert_eq!(Secret::read_file(&path).unwrap(), Secret::new(long));
            std::fs::remove_file(path).unwrap();
        }
        for (content, mode, words) in [
            (long, 0o640, "its mode is 0640"),
            (long, 0o604, "its mode is 0604"),
            ("short\n", 0o600, "it holds 5 bytes, and a secret has at least 16"),
            ("", 0o600, "it holds 0 bytes"),
            (&"x".repeat(5000), 0o600, "it has more than 4096 bytes"),
        ] {
            let path = file("bad", content, mode);
            let error = Secret::read_file(&path).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains(path.to_str().unwrap()), "{error}");
            assert!(!error.contains(long));
            std::fs::remove_file(path).unwrap();
        }
        let error = Secret::read_file(Path::new("/absent/secret")).unwrap_err().to_string();
        assert!(error.contains("/absent/secret: it cannot be read"), "{error}");
        assert!(Secret::read_file(&std::env::temp_dir()).is_err());
    }
}
