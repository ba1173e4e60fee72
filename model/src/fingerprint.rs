//! Fingerprints: hashes of 64 bits, by which ranks compare their steps without exchanging the data.
//!
//! Entry point: [`Fingerprint`], 64-bit FNV-1a whose steps take numbers of 64 bits instead of bytes. The hash is the
//! same on every machine and in every build. Two lists of one length that differ in exactly one number always have
//! different fingerprints. The hash is not cryptographic: lists with equal fingerprints can be constructed.

/// The hash of a list of numbers. More numbers can be added at the end of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Default for Fingerprint {
    /// Returns the hash of an empty list.
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fingerprint {
    /// Returns the hash after adding a number, in one step of FNV-1a. For a number below 256 this is the published step
    /// for a byte.
    pub fn number(self, number: u64) -> Self {
        Self((self.0 ^ number).wrapping_mul(0x0100_0000_01b3))
    }

    /// Adds numbers, but not their count.
    pub fn numbers(self, numbers: impl IntoIterator<Item = u64>) -> Self {
        numbers.into_iter().fold(self, Self::number)
    }

    /// Adds bytes, but not their count.
    pub fn bytes(self, bytes: &[u8]) -> Self {
        self.numbers(bytes.iter().map(|byte| u64::from(*byte)))
    }

    /// The hash.
    pub fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        // From the reference implementation's test vectors.
        for (text, expected) in
            [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            assert_eq!(Fingerprint::default().bytes(text.as_bytes()).value(), expected, "{text}");
        }
    }

    #[test]
    fn order_and_every_bit_matter() {
        let of = |numbers: [u64; 3]| Fingerprint::default().numbers(numbers);
        assert_ne!(of([1, 2, 3]), of([1, 3, 2]));
        (0..64).for_each(|bit| assert_ne!(of([1, 1 << bit, 3]), of([1, 0, 3])));
    }
}
