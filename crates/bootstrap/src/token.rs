//! The secret that a job's ranks share, and how they prove that they know it.

use sha2::{Digest, Sha256};
use std::fmt;

/// A nonce or a proof.
pub(crate) type Bytes32 = [u8; 32];

/// The block size of SHA-256, which HMAC pads its key to.
const BLOCK: usize = 64;

/// The secret that a job's ranks share. It is never sent: both sides prove that they know it (HMAC-SHA256 over
/// fresh nonces of both). It keeps strangers and other jobs out; it does not hide what is exchanged.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Vec<u8>);

impl Token {
    /// This secret.
    pub fn new(secret: impl Into<Vec<u8>>) -> Self {
        Self(secret.into())
    }

    /// No secret: whoever reaches the port may join. For launchers that hand out none.
    pub fn none() -> Self {
        Self(Vec::new())
    }

    /// HMAC-SHA256 (RFC 2104) over these parts. Each part has a fixed length, so they need no separators.
    pub(crate) fn prove(&self, parts: &[&[u8]]) -> Bytes32 {
        let mut key = [0_u8; BLOCK];
        let digest;
        let secret: &[u8] = if self.0.len() > BLOCK {
            digest = Bytes32::from(Sha256::digest(&self.0));
            &digest
        } else {
            &self.0
        };
        for (slot, byte) in key.iter_mut().zip(secret) {
            *slot = *byte;
        }
        let mut inner = Sha256::new_with_prefix(key.map(|byte| byte ^ 0x36));
        for part in parts {
            inner.update(part);
        }
        let mut outer = Sha256::new_with_prefix(key.map(|byte| byte ^ 0x5c));
        outer.update(inner.finalize());
        outer.finalize().into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "Token(none)" } else { "Token(..)" })
    }
}

/// Compares without giving away by its time where the first difference is.
pub(crate) fn equal_proofs(a: &Bytes32, b: &Bytes32) -> bool {
    let difference = a.iter().zip(b).fold(0_u8, |difference, (a, b)| difference | (a ^ b));
    std::hint::black_box(difference) == 0
}

/// 32 bytes that nobody can foretell.
pub(crate) fn nonce() -> std::io::Result<Bytes32> {
    let mut nonce = Bytes32::default();
    // Up to 256 bytes come whole or not at all (getrandom(2)).
    rustix::rand::getrandom(&mut nonce[..], rustix::rand::GetRandomFlags::empty())?;
    Ok(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
    }

    #[test]
    fn proofs_match_the_published_vectors() {
        // RFC 4231, test cases 2 and 6 (the latter with a key longer than a block).
        assert_eq!(
            hex(&Token::new("Jefe").prove(&[b"what do ya want ", b"for nothing?"])),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            hex(&Token::new(vec![0xaa; 131])
                .prove(&[b"Test Using Larger Than Block-Size Key - Hash Key First"])),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }

    #[test]
    fn proofs_compare_and_tokens_stay_secret() {
        let (a, mut b) = (Token::new("a").prove(&[b"x"]), Token::new("a").prove(&[b"x"]));
        assert!(equal_proofs(&a, &b));
        b[31] ^= 1;
        assert!(!equal_proofs(&a, &b));
        assert_eq!(format!("{:?}", Token::new("secret")), "Token(..)");
        assert_ne!(nonce().unwrap(), nonce().unwrap());
    }
}
