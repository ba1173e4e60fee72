//! The tokens of the vocabulary that a row may choose in a step.
//!
//! Entry point: [`TokenMask`]. A mask arrives as bytes and is kept as words, the layout that devices read.

use std::sync::Arc;

/// A set of tokens of a vocabulary. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMask {
    /// Bit `i % 32` of word `i / 32` is 1 if the mask contains token i; bits after the vocabulary are 0.
    words: Arc<[u32]>,
}

impl TokenMask {
    /// Returns the length of a mask in bytes.
    pub fn num_bytes(vocab_size: usize) -> usize {
        vocab_size.div_ceil(8)
    }

    /// Returns the length of a mask in words of 32 bits.
    pub fn num_words(vocab_size: usize) -> usize {
        vocab_size.div_ceil(32)
    }

    /// Returns the mask of the tokens i for which bit `i % 8` of byte `i / 8` is set. Bits after the vocabulary are
    /// ignored.
    pub fn new(bytes: &[u8], vocab_size: usize) -> Self {
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        let mut words: Vec<u32> = bytes.chunks(4).map(word).collect();
        words.resize(Self::num_words(vocab_size), 0);
        if let Some(last) = words.last_mut()
            && !vocab_size.is_multiple_of(32)
        {
            *last &= (1 << (vocab_size % 32)) - 1;
        }
        Self { words: words.into() }
    }

    /// True if the mask contains `token`.
    pub fn has(&self, token: usize) -> bool {
        self.words.get(token / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// Returns the tokens of the mask in ascending order.
    pub fn tokens(&self) -> impl Iterator<Item = usize> {
        let bits = |word: u32| (0..32).filter(move |bit| word >> bit & 1 == 1);
        self.words.iter().enumerate().flat_map(move |(index, word)| bits(*word).map(move |bit| 32 * index + bit))
    }

    /// The [`num_words`](Self::num_words) words of the mask; bit `i % 32` of word `i / 32` is 1 if the mask contains
    /// token i.
    pub fn words(&self) -> &[u32] {
        &self.words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_tokens() {
        let mask = TokenMask::new(&[0b0000_0101, 0, 0, 0x80, 0xff], 35);
        assert_eq!(mask.tokens().collect::<Vec<_>>(), [0, 2, 31, 32, 33, 34]);
        assert_eq!(mask.words(), [0x8000_0005, 0b111]);
        let has: Vec<usize> = (0..100).filter(|token| mask.has(*token)).collect();
        assert_eq!(has, [0, 2, 31, 32, 33, 34]);
        assert_eq!((TokenMask::num_bytes(35), TokenMask::num_words(35)), (5, 2));
        assert_eq!(TokenMask::new(&[255; 4], 32).tokens().count(), 32);
    }
}
