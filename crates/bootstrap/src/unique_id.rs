//! What rank 0 hands to the others so that they find it.

use crate::frame::crc32;
use crate::secret::{self, Bytes32};
use crate::wire::{Reader, Writer};
use crate::{Error, Secret, Session};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// The first bytes of an id: a name and its version.
const HEAD: [u8; 4] = *b"aID1";
/// What the text form begins with.
const PREFIX: &str = "anabranch-id-";

/// Everything that a rank needs to join a world, apart from its rank and the size: where rank 0 listens, a secret, and a nonce that
/// distinguishes this start from any other. Made by [`TcpRoot::unique_id`](crate::TcpRoot::unique_id), and passed on by any
/// channel that others cannot read: a file of mode 0600, MPI's or torch.distributed's broadcast, an environment
/// variable. As bytes it has always [`UniqueId::BYTES`], as text it is one word.
///
/// [`Debug`](fmt::Debug) never prints the secret; [`UniqueId::to_text`] does.
///
/// As bytes: `aID1`; the nonce (16); the secret (32); the number of addresses (1), each as 4 or 6, its bytes, and the port
/// (little-endian); zeros; and a CRC-32 of all that (little-endian).
#[derive(Clone, PartialEq, Eq)]
pub struct UniqueId {
    nonce: [u8; 16],
    secret: Bytes32,
    addresses: Vec<SocketAddr>,
}

/// Why bytes or a text are no id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UniqueIdError {
    /// The text has another form.
    #[error("the text of an id is `{PREFIX}` and {} hexadecimal digits", 2 * UniqueId::BYTES)]
    Text,
    /// Not an id, or one of another version.
    #[error("an id of this version begins with the bytes {HEAD:02x?}")]
    Head,
    /// A byte was changed on its way.
    #[error("the checksum of the id is wrong")]
    Checksum,
    /// Its addresses make no sense.
    #[error("the addresses in the id are malformed")]
    Addresses,
}

impl UniqueId {
    /// The size as bytes.
    pub const BYTES: usize = 128;
    /// What is left for addresses.
    const ADDRESS_BYTES: usize = Self::BYTES - HEAD.len() - 16 - 32 - 1 - 4;

    /// A new secret and nonce for a root at these addresses, of which those are kept, in this order, that there is room for: three
    /// of IPv6 or ten of IPv4 at least.
    pub(crate) fn for_root(addresses: &[SocketAddr]) -> Result<Self, Error> {
        let system = |source| Error::System { what: "getrandom".to_owned(), source };
        let mut room = Self::ADDRESS_BYTES;
        let fits = |address: &&SocketAddr| match room.checked_sub(encoded(**address).len()) {
            Some(left) => {
                room = left;
                true
            }
            None => false,
        };
        let addresses: Vec<SocketAddr> = addresses.iter().filter(fits).copied().collect();
        Ok(Self {
            nonce: secret::random().map_err(system)?,
            secret: secret::random().map_err(system)?,
            addresses,
        })
    }

    /// Where rank 0 listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The secret.
    pub fn secret(&self) -> Secret {
        Secret::new(self.secret)
    }

    /// The session: the nonce.
    pub fn session(&self) -> Session {
        Session { run: hex(&self.nonce), generation: 0 }
    }

    /// As bytes.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let head = Writer::default().fixed(&HEAD).fixed(&self.nonce).fixed(&self.secret);
        let head = head.u8(self.addresses.len() as u8);
        let written = self.addresses.iter().fold(head, |out, address| out.fixed(&encoded(*address))).finish();
        let mut bytes = [0; Self::BYTES];
        // The addresses were chosen to fit.
        for (slot, byte) in bytes.iter_mut().zip(&written) {
            *slot = *byte;
        }
        let checksum = crc32(&bytes[..Self::BYTES - 4]);
        bytes[Self::BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// From bytes.
    ///
    /// # Errors
    /// [`UniqueIdError`].
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self, UniqueIdError> {
        let mut reader = Reader::new(bytes, "id");
        let malformed = |_| UniqueIdError::Addresses;
        if reader.array() != Ok(HEAD) {
            return Err(UniqueIdError::Head);
        }
        if crc32(&bytes[..Self::BYTES - 4]).to_le_bytes() != bytes[Self::BYTES - 4..] {
            return Err(UniqueIdError::Checksum);
        }
        let nonce = reader.array().map_err(malformed)?;
        let secret = reader.array().map_err(malformed)?;
        let count = reader.u8().map_err(malformed)?;
        let mut addresses = Vec::new();
        for _ in 0..count {
            let ip: IpAddr = match reader.u8().map_err(malformed)? {
                4 => reader.array::<4>().map_err(malformed)?.into(),
                6 => reader.array::<16>().map_err(malformed)?.into(),
                _ => return Err(UniqueIdError::Addresses),
            };
            let port = u16::from_le_bytes(reader.array().map_err(malformed)?);
            addresses.push(SocketAddr::new(ip, port));
        }
        let used: usize = addresses.iter().map(|address| encoded(*address).len()).sum();
        if addresses.is_empty() || used > Self::ADDRESS_BYTES {
            return Err(UniqueIdError::Addresses);
        }
        Ok(Self { nonce, secret, addresses })
    }

    /// As text, secret included: who sees it can join.
    pub fn to_text(&self) -> String {
        format!("{PREFIX}{}", hex(&self.to_bytes()))
    }
}

impl FromStr for UniqueId {
    type Err = UniqueIdError;

    fn from_str(text: &str) -> Result<Self, UniqueIdError> {
        let digits = text.trim().strip_prefix(PREFIX).ok_or(UniqueIdError::Text)?.as_bytes();
        let mut bytes = [0; Self::BYTES];
        if digits.len() != 2 * bytes.len() {
            return Err(UniqueIdError::Text);
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            for digit in pair {
                let value = char::from(*digit).to_digit(16).ok_or(UniqueIdError::Text)?;
                *byte = *byte << 4 | value as u8;
            }
        }
        Self::from_bytes(&bytes)
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UniqueId").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

fn encoded(address: SocketAddr) -> Vec<u8> {
    let out = Writer::default();
    let out = match address.ip() {
        IpAddr::V4(ip) => out.u8(4).fixed(&ip.octets()),
        IpAddr::V6(ip) => out.u8(6).fixed(&ip.octets()),
    };
    out.fixed(&address.port().to_le_bytes()).finish()
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address() -> impl Strategy<Value = SocketAddr> {
        let v4 = any::<([u8; 4], u16)>().prop_map(|(ip, port)| SocketAddr::new(ip.into(), port));
        let v6 = any::<([u8; 16], u16)>().prop_map(|(ip, port)| SocketAddr::new(ip.into(), port));
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn ids_read_back(given in prop::collection::vec(address(), 1..12)) {
            let id = UniqueId::for_root(&given).unwrap();
            prop_assert_eq!(id.addresses().first(), given.first());
            prop_assert!(id.addresses().len() >= given.len().min(3));
            prop_assert_eq!(UniqueId::from_bytes(&id.to_bytes()), Ok(id.clone()));
            prop_assert_eq!(id.to_text().parse(), Ok(id));
        }

        #[test]
        fn noise_is_refused(noise in prop::collection::vec(any::<u8>(), UniqueId::BYTES), fix: bool) {
            let mut bytes: [u8; UniqueId::BYTES] = noise.try_into().unwrap();
            if fix {
                bytes[..4].copy_from_slice(&HEAD);
                let checksum = crc32(&bytes[..UniqueId::BYTES - 4]);
                bytes[UniqueId::BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
            }
            // Noise with a good checksum may spell an id; then it has addresses.
            match UniqueId::from_bytes(&bytes) {
                Ok(id) => prop_assert!(fix && !id.addresses().is_empty()),
                Err(error) => prop_assert!(!fix || error == UniqueIdError::Addresses),
            }
        }

        #[test]
        fn texts_never_panic(text in ".{0,300}") {
            drop(text.parse::<UniqueId>());
            prop_assert_eq!(format!("{PREFIX}{text}").parse::<UniqueId>().is_ok(), false);
        }
    }

    #[test]
    fn two_ids_of_one_root_differ_and_do_not_print_their_secret() {
        let address = ["10.0.0.1:7000".parse().unwrap()];
        let (a, b) = (UniqueId::for_root(&address).unwrap(), UniqueId::for_root(&address).unwrap());
        assert_ne!(a.secret(), b.secret());
        assert_ne!(a.session(), b.session());
        assert_eq!(format!("{a:?}"), "UniqueId { addresses: [10.0.0.1:7000], .. }");
        let mut bytes = a.to_bytes();
        bytes[60] ^= 1;
        assert_eq!(UniqueId::from_bytes(&bytes), Err(UniqueIdError::Checksum));
    }
}
