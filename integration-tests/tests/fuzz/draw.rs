//! Random choices that a seed repeats, and the mood of a request: how many optional parts it has, and how far it goes.

/// Seeds are this far apart, so that no client of one draws what a client of another does.
const CLIENTS_PER_SEED: u64 = 1 << 8;
/// One request of this many may go beyond what is legal, and then with one value of as many.
const REQUESTS_PER_WILD_ONE: u32 = 5;
const VALUES_PER_WILD_ONE: u32 = 6;
/// Percentages of the optional parts that a request has.
const PERCENTAGES: [u32; 3] = [8, 25, 60];

/// The random numbers of one client.
#[derive(Debug)]
pub(crate) struct Draw {
    rng: fastrand::Rng,
    is_wild: bool,
    percent: u32,
}

impl Draw {
    /// The numbers of this client.
    pub(crate) fn new(seed: u64, client: u64) -> Self {
        let seed = seed.wrapping_mul(CLIENTS_PER_SEED).wrapping_add(client);
        Self { rng: fastrand::Rng::with_seed(seed), is_wild: false, percent: 0 }
    }

    /// Draws the mood of the next request.
    pub(crate) fn begin_request(&mut self) {
        self.is_wild = self.one_in(REQUESTS_PER_WILD_ONE);
        self.percent = self.pick(&PERCENTAGES);
    }

    /// Decides whether the request has an optional part.
    pub(crate) fn has(&mut self) -> bool {
        self.rng.u32(..100) < self.percent
    }

    /// Decides whether the next value may be beyond what is legal.
    pub(crate) fn goes_too_far(&mut self) -> bool {
        self.is_wild && self.one_in(VALUES_PER_WILD_ONE)
    }

    /// True once in `count` times.
    pub(crate) fn one_in(&mut self, count: u32) -> bool {
        self.rng.u32(..count) == 0
    }

    /// A number below `count`, which is not zero.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        self.rng.usize(..count)
    }

    /// A number between two.
    pub(crate) fn between(&mut self, [low, high]: [f64; 2]) -> f64 {
        low + (high - low) * self.rng.f64()
    }

    /// Any number of 64 bits.
    pub(crate) fn any(&mut self) -> u64 {
        self.rng.u64(..)
    }

    /// One of several, of which there is at least one.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// The same of values that are not copied.
    pub(crate) fn take<T>(&mut self, mut choices: Vec<T>) -> T {
        let index = self.below(choices.len());
        choices.swap_remove(index)
    }
}
