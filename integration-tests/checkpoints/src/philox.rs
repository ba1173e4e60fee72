//! Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).

const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Returns the four words of a counter. The same key and counter always have the same words.
pub(crate) fn words(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let halves = |multiplier: u64, word: u32| {
        let product = multiplier * u64::from(word);
        ((product >> 32) as u32, product as u32)
    };
    for _ in 0..ROUNDS {
        let (high, low) = halves(MULTIPLIERS[0], counter[0]);
        let (other_high, other_low) = halves(MULTIPLIERS[1], counter[2]);
        counter = [other_high ^ counter[1] ^ key[0], other_low, high ^ counter[3] ^ key[1], low];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers that the authors publish with their library, Random123.
    #[test]
    fn known_answers() {
        let zeros = [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8];
        assert_eq!(words([0; 4], [0; 2]), zeros);
        let ones = [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd];
        assert_eq!(words([u32::MAX; 4], [u32::MAX; 2]), ones);
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        let of_pi = [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1];
        assert_eq!(words(pi, [0xa409_3822, 0x299f_31d0]), of_pi);
    }
}
