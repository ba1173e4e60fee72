//! Rotary position embedding: rotates pairs of a head's values by an angle that grows with the position.
//!
//! Entry points: [`RotaryTable`], built before the first step; [`rotary`], called at every step; [`Pairing`], the
//! choice of the values that form a pair. If the rotated part is shorter than the head, the other values stay
//! unchanged. The caller chooses the frequencies.

use rayon::prelude::*;

use crate::rows::rows_per_task;

/// The choice of the two values of a head that form a pair and are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pairing {
    /// Value i of the first half of the rotated part and value i of the second half, as in most Hugging Face models.
    Halves,
    /// Neighbouring values, as in the RoPE paper.
    Neighbours,
}

/// The cosines and sines of every position.
#[derive(Debug, Clone)]
pub struct RotaryTable {
    num_frequencies: usize,
    pairing: Pairing,
    /// `[positions, frequencies]` of (cosine, sine).
    turns: Vec<(f32, f32)>,
}

impl RotaryTable {
    /// Builds the table of positions 0 to `num_positions - 1`.
    ///
    /// The angle of pair i at position p is `p * frequencies[i]`, rounded to f32 as Hugging Face does. `scale`
    /// multiplies the cosines and sines; it is 1 unless the model's RoPE scaling sets another. The rotated part of a
    /// head has twice as many values as there are frequencies.
    pub fn new(frequencies: &[f32], num_positions: usize, scale: f32, pairing: Pairing) -> Self {
        let num_frequencies = frequencies.len();
        let mut turns = Vec::with_capacity(num_positions * num_frequencies); // [positions, frequencies]
        for position in 0..num_positions {
            for frequency in frequencies {
                let angle = f64::from(position as f32 * frequency);
                turns.push((angle.cos() as f32 * scale, angle.sin() as f32 * scale));
            }
        }
        Self { num_frequencies, pairing, turns }
    }

    /// The number of positions in the table.
    pub fn num_positions(&self) -> usize {
        self.turns.len().checked_div(self.num_frequencies).unwrap_or(0)
    }
}

/// Rotates every head of x `[tokens, heads, head_dim]` in place, by the position of its token.
///
/// # Panics
/// When `x` is not whole heads for each of the `positions`, the rotated part is longer than a head, or `table` lacks a
/// position.
pub fn rotary(x: &mut [f32], head_dim: usize, positions: &[u32], table: &RotaryTable) {
    let half = table.num_frequencies;
    assert!(2 * half <= head_dim, "{half} frequencies rotate more than a head of {head_dim}");
    if positions.is_empty() {
        assert!(x.is_empty(), "x holds {} values for no position", x.len());
        return;
    }
    let width = x.len() / positions.len();
    let is_whole_heads = width > 0 && width.is_multiple_of(head_dim) && width * positions.len() == x.len();
    assert!(is_whole_heads, "x holds {} values, not {} tokens of heads of {head_dim}", x.len(), positions.len());
    let task_rows = rows_per_task(positions.len(), width);
    x.par_chunks_mut(task_rows * width).zip(positions.par_chunks(task_rows)).for_each(|(x, positions)| {
        for (token, position) in x.chunks_exact_mut(width).zip(positions) {
            let turns = &table.turns[*position as usize * half..][..half];
            let heads = token.chunks_exact_mut(head_dim).map(|head| &mut head[..2 * half]);
            match table.pairing {
                Pairing::Halves => heads.for_each(|head| rotate_halves(head, turns)),
                Pairing::Neighbours => heads.for_each(|head| rotate_neighbours(head, turns)),
            }
        }
    });
}

fn rotate_halves(head: &mut [f32], turns: &[(f32, f32)]) {
    let (first, second) = head.split_at_mut(turns.len());
    for ((a, b), (cosine, sine)) in first.iter_mut().zip(second).zip(turns) {
        (*a, *b) = (*a * cosine - *b * sine, *b * cosine + *a * sine);
    }
}

fn rotate_neighbours(head: &mut [f32], turns: &[(f32, f32)]) {
    let (pairs, _) = head.as_chunks_mut::<2>();
    for ([a, b], (cosine, sine)) in pairs.iter_mut().zip(turns) {
        (*a, *b) = (*a * cosine - *b * sine, *b * cosine + *a * sine);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_rotated_and_the_rest_is_kept() {
        let table = RotaryTable::new(&[std::f32::consts::FRAC_PI_2, 0.0], 3, 1.0, Pairing::Halves);
        assert_eq!(table.num_positions(), 3);
        let mut x = [1.0, 2.0, 3.0, 4.0, 5.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        rotary(&mut x, 5, &[0, 1], &table);
        assert_eq!(x[..5], [1.0, 2.0, 3.0, 4.0, 5.0]);
        for (value, expected) in x[5..].iter().zip([-3.0, 2.0, 1.0, 4.0, 5.0]) {
            assert!((value - expected).abs() < 1e-6, "{value} instead of {expected}");
        }
    }

    #[test]
    fn neighbours_are_rotated_and_the_rest_is_kept() {
        let table = RotaryTable::new(&[std::f32::consts::FRAC_PI_2, 0.0], 2, 1.0, Pairing::Neighbours);
        let mut x = [1.0, 2.0, 3.0, 4.0, 5.0];
        rotary(&mut x, 5, &[1], &table);
        for (value, expected) in x.iter().zip([-2.0, 1.0, 3.0, 4.0, 5.0]) {
            assert!((value - expected).abs() < 1e-6, "{value} instead of {expected}");
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let frequencies: Vec<f32> = (0..32).map(|i| 0.8_f32.powi(i)).collect();
        let table = RotaryTable::new(&frequencies, 300, 1.0, Pairing::Halves);
        let positions: Vec<u32> = (0..300).rev().collect();
        let x: Vec<f32> = (0..300 * 256).map(|i| (i as f32).sin()).collect();
        let mut together = x.clone();
        rotary(&mut together, 64, &positions, &table);
        let mut alone = x;
        for (token, position) in alone.chunks_mut(256).zip(&positions) {
            rotary(token, 64, &[*position], &table);
        }
        assert_eq!(together, alone);
    }
}
