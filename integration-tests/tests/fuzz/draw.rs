//! Random choices, which are the same for the same seed. Each request also has a random mood: the share of optional
//! parts that it has, and whether it may be illegal.

/// The distance between the seeds of two runs for the random number generator. A client adds its number, which is
/// smaller, so no client of one run has the seed of another run's client.
const CLIENTS_PER_SEED: u64 = 1 << 8;
/// One in this number of requests may be illegal. Of its values, one in [`VALUES_PER_WILD_ONE`] may be.
const REQUESTS_PER_WILD_ONE: u32 = 5;
const VALUES_PER_WILD_ONE: u32 = 6;
/// The percentages of optional parts, one of which is chosen for each request.
const PERCENTAGES: [u32; 3] = [8, 25, 60];

/// The random number generator of one client, with the mood of its current request.
#[derive(Debug)]
pub(crate) struct Draw {
    rng: fastrand::Rng,
    is_wild: bool,
    percent: u32,
}

impl Draw {
    /// Creates the random number generator of `client`.
    pub(crate) fn new(seed: u64, client: u64) -> Self {
        let seed = seed.wrapping_mul(CLIENTS_PER_SEED).wrapping_add(client);
        Self { rng: fastrand::Rng::with_seed(seed), is_wild: false, percent: 0 }
    }

    /// Draws the mood of the next request.
    pub(crate) fn begin_request(&mut self) {
        self.is_wild = self.one_in(REQUESTS_PER_WILD_ONE);
        self.percent = self.pick(&PERCENTAGES);
    }

    /// Decides whether the request has the next optional part.
    pub(crate) fn has(&mut self) -> bool {
        self.rng.u32(..100) < self.percent
    }

    /// Decides whether the next value may be illegal.
    pub(crate) fn goes_too_far(&mut self) -> bool {
        self.is_wild && self.one_in(VALUES_PER_WILD_ONE)
    }

    /// Returns true once in `count` calls on average.
    pub(crate) fn one_in(&mut self, count: u32) -> bool {
        self.rng.u32(..count) == 0
    }

    /// Draws a number below `count`, which must not be zero.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        self.rng.usize(..count)
    }

    /// Draws a number between `low` and `high`.
    pub(crate) fn between(&mut self, [low, high]: [f64; 2]) -> f64 {
        low + (high - low) * self.rng.f64()
    }

    /// Draws any 64-bit number.
    pub(crate) fn any(&mut self) -> u64 {
        self.rng.u64(..)
    }

    /// Draws one of `choices`, which must not be empty.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Draws one of `choices`, which must not be empty and need not be `Copy`.
    pub(crate) fn take<T>(&mut self, mut choices: Vec<T>) -> T {
        let index = self.below(choices.len());
        choices.swap_remove(index)
    }
}
