//! Random choices that a seed repeats, and the mood of a request: its share of optional parts, and if it may be
//! illegal.

/// The distance between the random number seeds of two runs, so that no client of one run draws the numbers of another
/// run's client.
const CLIENTS_PER_SEED: u64 = 1 << 8;
/// One in this number of requests may be illegal, and then one in [`VALUES_PER_WILD_ONE`] of its values is.
const REQUESTS_PER_WILD_ONE: u32 = 5;
const VALUES_PER_WILD_ONE: u32 = 6;
/// The percentages of the optional parts that a request may have.
const PERCENTAGES: [u32; 3] = [8, 25, 60];

/// The random numbers of one client.
#[derive(Debug)]
pub(crate) struct Draw {
    rng: fastrand::Rng,
    is_wild: bool,
    percent: u32,
}

impl Draw {
    /// Creates the random numbers of `client`.
    pub(crate) fn new(seed: u64, client: u64) -> Self {
        let seed = seed.wrapping_mul(CLIENTS_PER_SEED).wrapping_add(client);
        Self { rng: fastrand::Rng::with_seed(seed), is_wild: false, percent: 0 }
    }

    /// Draws the mood of the next request.
    pub(crate) fn begin_request(&mut self) {
        self.is_wild = self.one_in(REQUESTS_PER_WILD_ONE);
        self.percent = self.pick(&PERCENTAGES);
    }

    /// True if the request has the next optional part.
    pub(crate) fn has(&mut self) -> bool {
        self.rng.u32(..100) < self.percent
    }

    /// True if the next value may be illegal.
    pub(crate) fn goes_too_far(&mut self) -> bool {
        self.is_wild && self.one_in(VALUES_PER_WILD_ONE)
    }

    /// True once in `count` times on average.
    pub(crate) fn one_in(&mut self, count: u32) -> bool {
        self.rng.u32(..count) == 0
    }

    /// A number below `count`, which must not be zero.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        self.rng.usize(..count)
    }

    /// A number between `low` and `high`.
    pub(crate) fn between(&mut self, [low, high]: [f64; 2]) -> f64 {
        low + (high - low) * self.rng.f64()
    }

    /// Any 64-bit number.
    pub(crate) fn any(&mut self) -> u64 {
        self.rng.u64(..)
    }

    /// One of `choices`, which must not be empty.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// One of `choices`, for values that are not `Copy`.
    pub(crate) fn take<T>(&mut self, mut choices: Vec<T>) -> T {
        let index = self.below(choices.len());
        choices.swap_remove(index)
    }
}
