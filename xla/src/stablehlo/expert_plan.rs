//! The tiles into which the choices of experts are divided.
//!
//! Entry point: [`ExpertPlan::new`].

/// The smallest number of choices in a tile, unless there are fewer tokens. A TPU pads a matrix to as many rows.
const MIN_TILE: usize = 8;
/// The largest number of choices in a tile. With bf16 matrices, reading an expert takes a TPU about as long as
/// multiplying it with this number of tokens, and a larger tile gains nothing.
const MAX_TILE: usize = 256;

/// The sizes of a layer of experts in one program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpertPlan {
    pub(super) num_tokens: usize,
    /// The number of experts on this device.
    pub(super) num_here: usize,
    /// The number of experts on all devices.
    num_experts: usize,
    /// The number of experts that each token chooses.
    pub(super) num_chosen: usize,
    /// The number of choices in a tile, all of one expert.
    pub(super) tile: usize,
}

/// The work of a device if all experts are chosen equally often.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpectedWork {
    /// The number of experts that a token chose.
    pub(crate) experts: f64,
    pub(crate) tiles: f64,
}

impl ExpertPlan {
    /// Returns the plan of a device with `num_here` of `num_experts` experts. A tile has room for twice the mean number
    /// of an expert's choices, so that most experts need one tile.
    pub(crate) fn new(num_tokens: usize, num_experts: usize, num_here: usize, num_chosen: usize) -> Self {
        let mean = (num_tokens * num_chosen).div_ceil(num_experts);
        let tile = (2 * mean).next_power_of_two().clamp(MIN_TILE, MAX_TILE).min(num_tokens);
        Self { num_tokens, num_here, num_experts, num_chosen, tile }
    }

    /// Returns the number of experts that all tokens choose, with repetitions.
    pub(super) fn num_choices(&self) -> usize {
        self.num_tokens * self.num_chosen
    }

    /// Returns the largest number of tiles that the choices of all tokens can need; at least 1.
    pub(super) fn max_tiles(&self) -> usize {
        // Each expert has at most one tile that is not full, and no token chooses an expert twice.
        let num_choices_here = self.num_tokens * self.num_chosen.min(self.num_here);
        (num_choices_here / self.tile + self.num_here).min(num_choices_here)
    }

    /// Returns the work to expect if each token chooses among the experts at random.
    pub(crate) fn expected(&self) -> ExpectedWork {
        let chance = self.num_chosen as f64 / self.num_experts as f64;
        // The number of an expert's choices has a binomial distribution: its probabilities, from 0 choices on.
        let n = self.num_tokens as f64;
        let log_factorials: Vec<f64> = (0..=self.num_tokens)
            .scan(0.0, |sum, k| {
                *sum += (k.max(1) as f64).ln();
                Some(*sum)
            })
            .collect();
        let probability = |k: usize| {
            if self.num_chosen >= self.num_experts {
                return if k == self.num_tokens { 1.0 } else { 0.0 };
            }
            let ways = log_factorials[self.num_tokens] - log_factorials[k] - log_factorials[self.num_tokens - k];
            (ways + k as f64 * chance.ln() + (n - k as f64) * (1.0 - chance).ln()).exp()
        };
        let tiles: f64 = (1..=self.num_tokens).map(|k| k.div_ceil(self.tile) as f64 * probability(k)).sum();
        let num_here = self.num_here.min(self.num_experts) as f64;
        ExpectedWork { experts: num_here * (1.0 - probability(0)), tiles: num_here * tiles }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_has_room_for_twice_the_mean_number_of_choices() {
        let tile = |num_tokens, num_experts, num_chosen| {
            ExpertPlan::new(num_tokens, num_experts, num_experts, num_chosen).tile
        };
        assert_eq!([tile(1, 128, 8), tile(4, 128, 8), tile(64, 128, 8)], [1, 4, 8]);
        assert_eq!([tile(512, 128, 8), tile(4096, 128, 8), tile(4096, 8, 2)], [64, 256, 256]);
    }

    #[test]
    fn all_choices_fit_into_the_tiles() {
        for (num_tokens, num_experts, num_here, num_chosen) in
            [(1, 4, 4, 2), (7, 4, 2, 3), (64, 128, 16, 8), (9, 1, 1, 1)]
        {
            let plan = ExpertPlan::new(num_tokens, num_experts, num_here, num_chosen);
            // The most tiles: each expert has one choice more than its full tiles, as long as there are choices.
            let mut left = num_tokens * num_chosen.min(num_here);
            let mut counts = vec![0_usize; num_here];
            for count in &mut counts {
                *count = usize::from(left > 0);
                left -= *count;
            }
            for count in &mut counts {
                let more = left.min((num_tokens - *count) / plan.tile * plan.tile);
                *count += more;
                left -= more;
            }
            let tiles: usize = counts.iter().map(|count| count.div_ceil(plan.tile)).sum();
            assert!(tiles <= plan.max_tiles(), "{plan:?}: {tiles} tiles");
        }
    }

    #[test]
    fn expected_work_is_that_of_random_choices() {
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9 * b;
        // One token chooses 8 experts, each for one tile.
        let ExpectedWork { experts, tiles } = ExpertPlan::new(1, 128, 128, 8).expected();
        assert!(close(experts, 8.0) && close(tiles, 8.0), "{experts} {tiles}");
        // Every token chooses every expert.
        let ExpectedWork { experts, tiles } = ExpertPlan::new(300, 4, 2, 4).expected();
        assert!(close(experts, 2.0) && close(tiles, 4.0), "{experts} {tiles}");
        let ExpectedWork { experts, tiles } = ExpertPlan::new(64, 128, 128, 8).expected();
        assert!(close(experts, 128.0 * (1.0 - 0.9375_f64.powi(64))) && experts < tiles && tiles < 1.03 * experts);
    }
}
