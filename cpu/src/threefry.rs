//! Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror and Shaw, 2011): random numbers as a function of key and counter.
//!
//! Entry points: [`threefry`], [`uniform`]. The functions have no state: the same key and counter give the same number
//! on every device.

const PARITY: u32 = 0x1bd1_1bda;
const ROTATIONS: [u32; 8] = [13, 15, 26, 6, 17, 29, 16, 24];
const NUM_ROUNDS: usize = 20;

/// Returns two random words.
pub(super) fn threefry(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    let keys = [key[0], key[1], PARITY ^ key[0] ^ key[1]];
    let [mut a, mut b] = [counter[0].wrapping_add(keys[0]), counter[1].wrapping_add(keys[1])];
    for round in 0..NUM_ROUNDS {
        a = a.wrapping_add(b);
        b = b.rotate_left(ROTATIONS[round % ROTATIONS.len()]) ^ a;
        if round % 4 == 3 {
            let injection = round / 4 + 1;
            a = a.wrapping_add(keys[injection % 3]);
            b = b.wrapping_add(keys[(injection + 1) % 3]).wrapping_add(injection as u32);
        }
    }
    [a, b]
}

/// Returns a number in [0, 1): the upper 24 bits of the first word, divided by 2²⁴.
pub(super) fn uniform(key: [u32; 2], counter: [u32; 2]) -> f32 {
    (threefry(key, counter)[0] >> 8) as f32 / (1 << 24) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        // `kat_vectors` of Random123, threefry2x32 20.
        let ones = [u32::MAX, u32::MAX];
        assert_eq!(threefry([0, 0], [0, 0]), [0x6b20_0159, 0x99ba_4efe]);
        assert_eq!(threefry(ones, ones), [0x1cb9_96fc, 0xbb00_2be7]);
        assert_eq!(threefry([0x1319_8a2e, 0x0370_7344], [0x243f_6a88, 0x85a3_08d3]), [0xc492_3a9c, 0x483d_f7a0]);
    }

    #[test]
    fn uniform_numbers_fill_the_unit_interval() {
        let numbers: Vec<f32> = (0..10_000).map(|counter| uniform([5, 0], [counter, 0])).collect();
        assert!(numbers.iter().all(|u| (0.0..1.0).contains(u)));
        let mean = numbers.iter().sum::<f32>() / numbers.len() as f32;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
    }
}
