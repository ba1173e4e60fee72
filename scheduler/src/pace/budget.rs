//! The prompt part of one step: tokens and time that are left for chunks.

use super::{FULL_SPEED, MAX_GROWTH, MIN_CHUNK, MIN_TOKENS, Pace, Work};

/// Tokens of a prompt that one step reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Chunk {
    /// The position of the first token.
    pub(crate) start: u32,
    pub(crate) num_tokens: u32,
    /// True if the log-probabilities of the tokens are computed.
    pub(crate) is_reported: bool,
}

/// The limits of the next share of a step's prompt part.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    /// Half of what is left.
    Half,
    /// Everything that the prompt needs, if that is left; otherwise half of what is left.
    AllOrHalf,
    /// Everything that is left.
    Rest,
}

/// The tokens and the time that are left for the prompts of a step. If time is left, a chunk may take more than that
/// rather than have fewer than [`MIN_CHUNK`] tokens.
#[derive(Debug)]
pub(crate) struct Budget<'a> {
    pace: &'a Pace,
    num_tokens: u32,
    /// In ns; infinite if time is not limited.
    time_ns: f64,
}

impl<'a> Budget<'a> {
    /// Returns a budget of tokens without a limit of time.
    pub(crate) fn new(pace: &'a Pace, num_tokens: u32) -> Self {
        Self { pace, num_tokens, time_ns: f64::INFINITY }
    }

    /// Limits the time to what the pace allows in a step whose decoding part is `work`. `first` is the empty chunk of
    /// the first prompt.
    pub(crate) fn limit_time(&mut self, work: &Work, first: &Chunk) {
        let Some(most_read) = self.pace.most_read else { return };
        self.num_tokens = self.num_tokens.min(most_read.saturating_mul(MAX_GROWTH).max(MIN_TOKENS));
        let target = self.pace.target(work).saturating_sub(self.pace.estimate(work)).as_nanos() as f64;
        let [.., alone] = self.pace.prompt.coefficients();
        let full_speed = if work.num_decoding == 0 { FULL_SPEED * alone } else { 0.0 };
        // A positive time also admits a prompt whose cost is not known yet.
        self.time_ns = 1.0;
        let least = self.cost(&Chunk { num_tokens: MIN_TOKENS, ..*first });
        self.time_ns = self.time_ns.max(target).max(full_speed).max(least);
    }

    /// True if nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.num_tokens == 0 || self.time_ns <= 0.0
    }

    /// Takes as many of the `num_unread` next tokens of a prompt as fit into a part of the budget, and returns their
    /// number. `chunk` is the chunk that the step has read of the prompt so far.
    pub(crate) fn take(&mut self, chunk: &Chunk, num_unread: u32, part: Part) -> u32 {
        if self.is_empty() || num_unread == 0 {
            return 0;
        }
        let num_tokens = self.fitting(chunk, num_unread, part);
        let longer = Chunk { num_tokens: chunk.num_tokens + num_tokens, ..*chunk };
        self.num_tokens -= num_tokens;
        self.time_ns -= self.cost(&longer) - self.cost(chunk);
        num_tokens
    }

    /// Returns the number of next tokens that fit into a part of the budget. A new chunk has at least 1.
    fn fitting(&self, chunk: &Chunk, num_unread: u32, part: Part) -> u32 {
        let cost =
            |num_tokens| self.cost(&Chunk { num_tokens: chunk.num_tokens + num_tokens, ..*chunk }) - self.cost(chunk);
        let is_all =
            matches!(part, Part::AllOrHalf) && num_unread <= self.num_tokens && cost(num_unread) <= self.time_ns;
        let (num_tokens, time_ns) = if is_all || matches!(part, Part::Rest) {
            (self.num_tokens, self.time_ns)
        } else {
            (self.num_tokens.div_ceil(2), self.time_ns / 2.0)
        };
        let most = num_unread.min(num_tokens);
        if cost(most) <= time_ns {
            return most;
        }
        // The cost never falls with the number of tokens, so bisection finds the largest number that fits. If chunks
        // are padded, that number fills a size.
        let (mut fitting, mut too_many) = (0, most);
        while too_many - fitting > 1 {
            let middle = fitting + (too_many - fitting) / 2;
            *(if cost(middle) <= time_ns { &mut fitting } else { &mut too_many }) = middle;
        }
        let least = if chunk.num_tokens == 0 { MIN_CHUNK.max(self.pace.padded(1)) } else { 0 };
        fitting.max(least.min(most))
    }

    /// Returns the estimated time of a chunk, in ns: 0 if the chunk has no tokens.
    fn cost(&self, chunk: &Chunk) -> f64 {
        if self.time_ns.is_infinite() || chunk.num_tokens == 0 {
            return 0.0;
        }
        let mut work = Work { num_decoding: 1, ..Work::default() };
        work.add_chunk(*chunk, self.pace);
        self.pace.prompt.estimate(&work.of_prompts())
    }
}
