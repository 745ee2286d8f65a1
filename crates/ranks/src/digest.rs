//! A digest that all ranks compute alike.

/// FNV-1a (draft-eastlake-fnv): the same on every rank and in every version, which the standard library's hashers do not promise.
pub fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
        (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::digest;

    /// Test vectors of the algorithm's authors (draft-eastlake-fnv, 64 bits).
    #[test]
    fn digests_are_those_of_the_authors() {
        for (text, expected) in
            [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8_u64)]
        {
            assert_eq!(digest(text.as_bytes()), expected, "{text}");
        }
    }
}
