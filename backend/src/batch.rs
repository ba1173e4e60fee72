//! One step as data: the rows that it reads, their tokens one after the other, and the rows that sample.
//!
//! Entry points: [`Batch`] with its `push_` methods; [`StepOutput`], the result of a backend. All backends take the
//! same batch. The only graphs in a batch are the samplers of its rows. A batch does not check its rows, because the
//! shard's `rows` has done so.

use std::ops::Range;
use std::sync::Arc;

use model::Fingerprint;
use model::graph::Graph;
use model::sampling::{BatchSampler, SamplingInputs, TokenMask};
use proto::SamplingParams;

/// The placeholder for the id of a token that the row sampled itself. The actual id is in the token history.
pub const SAMPLED_TOKEN: i32 = -1;

/// The rows of one step, in the order of the command that the shard received. Rows may differ in length.
#[derive(Debug, Default)]
pub struct Batch {
    /// `[tokens]`; [`SAMPLED_TOKEN`] if the id is in the token history.
    pub token_ids: Vec<i32>,
    /// `[tokens]`
    pub positions: Vec<u32>,
    pub rows: Vec<BatchRow>,
    /// The rows' block tables, one after the other.
    block_tables: Vec<u32>,
    pub sampled: Vec<SampledRow>,
    sampling_inputs: SamplingInputs,
    pub targets: PromptTargets,
    /// The cached first tokens of rows, which this step does not read.
    pub cached_tokens: Vec<CachedTokens>,
}

/// The first tokens of a row whose keys and values are already in the KV cache. A backend must add them to the token
/// history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedTokens {
    pub slot: usize,
    /// The ids of the tokens from position 0.
    pub token_ids: Vec<i32>,
}

/// The tokens of a row, and the slot and blocks that they belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchRow {
    pub slot: usize,
    /// The index of the row's first token in [`Batch::token_ids`].
    pub first_token: usize,
    /// The number of tokens that the row reads in this step: the last ones of its context.
    pub num_tokens: usize,
    /// The number of tokens of the row's context after this step: the cached tokens and those that the row has read.
    pub context_len: usize,
    block_table: Range<usize>,
}

/// A row that samples a token from the logits of its last token.
#[derive(Debug)]
pub struct SampledRow {
    /// Index in [`Batch::rows`].
    pub row: usize,
    /// The number of tokens of the row's prompt.
    pub prompt_len: usize,
    pub params: Arc<SamplingParams>,
    /// Tokens that the row may not choose in this step, at most [`MAX_HELD_BACK_TOKENS`](proto::MAX_HELD_BACK_TOKENS).
    pub held_back: Arc<[i32]>,
    /// Tokens that the row may choose in this step; `None` allows all.
    pub mask: Option<TokenMask>,
    /// The graph from logits to a token; see [`model::sampling::Samplers::graph`].
    pub sampler: Arc<Graph>,
    /// The least [`BatchSampler`] that can sample this row, for devices that run one compiled sampler for the whole
    /// batch.
    pub batch_sampler: BatchSampler,
}

/// Prompt tokens whose log-probability is requested: the targets. The three lists have one entry per target.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PromptTargets {
    /// For each target, the index in [`Batch::token_ids`] of the token before the target.
    pub token_indices: Vec<i32>,
    pub token_ids: Vec<i32>,
    /// The number of best tokens to report at the position of each target.
    pub top_n: Vec<i32>,
}

/// The result of a step.
#[derive(Debug, Default, PartialEq)]
pub struct StepOutput {
    /// One per [`Batch::sampled`].
    pub tokens: Vec<SampledToken>,
    /// One per target of [`Batch::targets`].
    pub prompt_tokens: Vec<PromptToken>,
    /// The hash of the programs that ran, of their inputs and, on some backends, of the sampled tokens. Ranks that ran
    /// the same step have the same hash, so a difference shows that the ranks have diverged.
    pub fingerprint: u64,
}

/// A token that a row sampled.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SampledToken {
    pub token_id: u32,
    /// NaN if no token could be sampled: the logits were not finite, or no token was allowed.
    pub logprob: f32,
    /// Ids and log-probabilities of the best tokens, best first: as many as requested, or more if the last ones tie, or
    /// fewer if the others are impossible.
    pub top_tokens: Vec<(u32, f32)>,
}

/// The report about one target of [`PromptTargets`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PromptToken {
    pub logprob: f32,
    /// Ids and log-probabilities of the best tokens at the target's position, best first: as many as requested, or more
    /// if the last ones tie, or fewer if the others are impossible.
    pub top_tokens: Vec<(u32, f32)>,
}

impl SampledToken {
    /// Returns a number by which ranks compare their outcomes: the token id, and a bit that is set if no token could be
    /// sampled.
    pub fn identity(&self) -> u64 {
        u64::from(self.token_id) | u64::from(self.logprob.is_nan()) << 32
    }
}

impl Batch {
    /// Adds a row in `slot` that reads `token_ids` in this step, the first of them at `position`. Returns the index of
    /// the row in [`Batch::rows`].
    pub fn push_row(&mut self, slot: usize, position: usize, token_ids: &[i32], block_table: &[u32]) -> usize {
        let first_token = self.token_ids.len();
        let first_block = self.block_tables.len();
        self.token_ids.extend_from_slice(token_ids);
        let context_len = position + token_ids.len();
        self.positions.extend((position..context_len).map(|position| position as u32));
        self.block_tables.extend_from_slice(block_table);
        self.rows.push(BatchRow {
            slot,
            first_token,
            num_tokens: token_ids.len(),
            context_len,
            block_table: first_block..self.block_tables.len(),
        });
        self.rows.len() - 1
    }

    /// Adds the first tokens of the row in `slot`, which are in the KV cache and which this step does not read. An
    /// empty list is ignored.
    pub fn push_cached_tokens(&mut self, slot: usize, token_ids: &[u32]) {
        if !token_ids.is_empty() {
            let token_ids = token_ids.iter().map(|id| *id as i32).collect();
            self.cached_tokens.push(CachedTokens { slot, token_ids });
        }
    }

    /// Makes `row` sample the token after its last one. Tokens that end a sequence are held back until the row has
    /// generated `min_new_tokens` tokens.
    pub fn push_sampled(&mut self, row: usize, prompt_len: usize, sampler: &RowSampler) {
        let params = &sampler.params;
        let batch_sampler = BatchSampler::of(params);
        let num_generated = self.rows[row].context_len - prompt_len;
        self.sampling_inputs.push(params, num_generated as u32);
        let is_early = num_generated < params.min_new_tokens as usize;
        let held_back = if is_early { Arc::clone(&sampler.eos_token_ids) } else { Arc::default() };
        let sampler = Arc::clone(&sampler.graph);
        let params = Arc::clone(params);
        self.sampled.push(SampledRow { row, prompt_len, params, held_back, mask: None, sampler, batch_sampler });
    }

    /// Makes the row of the last [`push_sampled`](Self::push_sampled) sample with `graph`, and only among the tokens of
    /// `mask`. If all tokens of the mask are held back, none is held back any more, because a complete grammar allows
    /// only the end of the sequence.
    ///
    /// # Panics
    /// When no row samples.
    pub fn mask_sampled(&mut self, mask: TokenMask, graph: Arc<Graph>) {
        let sampled = self.sampled.last_mut().expect("a row that samples was pushed");
        if mask.tokens().all(|token| sampled.held_back.contains(&(token as i32))) {
            sampled.held_back = Arc::default();
        }
        (sampled.mask, sampled.sampler) = (Some(mask), graph);
        sampled.batch_sampler = BatchSampler::Everything;
    }

    /// Requests the log-probability of `token_id`, which follows the token at `token_index`, and the `top_n` best
    /// tokens at the same position.
    pub fn push_target(&mut self, token_index: usize, token_id: i32, top_n: u32) {
        self.targets.token_indices.push(token_index as i32);
        self.targets.token_ids.push(token_id);
        self.targets.top_n.push(i32::try_from(top_n).unwrap_or(i32::MAX));
    }

    /// True if the log-probability of a prompt token after one of the row's tokens is requested.
    pub fn has_target(&self, row: &BatchRow) -> bool {
        let tokens = row.first_token..row.first_token + row.num_tokens;
        self.targets.token_indices.iter().any(|index| tokens.contains(&(*index as usize)))
    }

    /// Returns the blocks of a row, in order of position.
    pub fn block_table(&self, row: &BatchRow) -> &[u32] {
        &self.block_tables[row.block_table.clone()]
    }

    /// Returns `fingerprint` after adding everything that a step reads of its rows.
    pub fn fingerprint(&self, fingerprint: Fingerprint) -> Fingerprint {
        let signed =
            |numbers: &[i32]| numbers.iter().map(|number| u64::from(number.cast_unsigned())).collect::<Vec<_>>();
        let unsigned = |numbers: &[u32]| numbers.iter().map(|number| u64::from(*number)).collect::<Vec<_>>();
        let sizes = |sizes: [usize; 4]| sizes.map(|size| size as u64);
        let Self { token_ids, positions, rows, block_tables, sampled, sampling_inputs, targets, cached_tokens } = self;
        let lens = [token_ids.len(), rows.len(), sampled.len(), targets.token_ids.len()];
        let rows = rows.iter().flat_map(|row| sizes([row.slot, row.first_token, row.num_tokens, row.block_table.end]));
        let sampled = sampled.iter().flat_map(|sampled| {
            let held_back = sampled.held_back.iter().map(|token| u64::from(token.cast_unsigned()));
            let logit_bias = sampled.params.logit_bias.iter();
            let logit_bias = logit_bias.flat_map(|entry| [u64::from(entry.token_id), u64::from(entry.bias.to_bits())]);
            let places = [sampled.row, sampled.prompt_len].map(|number| number as u64);
            let words = sampled.mask.as_ref().map_or([].as_slice(), TokenMask::words);
            let lens = [held_back.len(), sampled.params.logit_bias.len(), words.len()].map(|len| len as u64);
            let words = words.iter().map(|word| u64::from(*word));
            places.into_iter().chain(lens).chain(held_back).chain(logit_bias).chain(words)
        });
        let fingerprint = fingerprint.numbers(sizes(lens)).numbers(signed(token_ids)).numbers(unsigned(positions));
        let fingerprint = fingerprint.numbers(rows).numbers(unsigned(block_tables)).numbers(sampled);
        let fingerprint = fingerprint.numbers(signed(&targets.token_indices)).numbers(signed(&targets.token_ids));
        let fingerprint = fingerprint.numbers(signed(&targets.top_n));
        let fingerprint = cached_tokens.iter().fold(fingerprint, |fingerprint, cached| {
            let CachedTokens { slot, token_ids } = cached;
            fingerprint.numbers([*slot as u64, token_ids.len() as u64]).numbers(signed(token_ids))
        });
        sampling_inputs.fingerprint(fingerprint)
    }

    /// Returns the sampling parameters of the rows in [`sampled`](Self::sampled) as columns, with the rows in the same
    /// order.
    pub fn sampling_inputs(&self) -> &SamplingInputs {
        &self.sampling_inputs
    }
}

/// The sampler of a row.
#[derive(Debug, Clone)]
pub struct RowSampler {
    pub params: Arc<SamplingParams>,
    pub graph: Arc<Graph>,
    /// Tokens that end a sequence. They are held back until the row has generated `min_new_tokens` tokens.
    pub eos_token_ids: Arc<[i32]>,
}

#[cfg(test)]
mod tests {
    use proto::LogitBias;

    use super::*;

    #[test]
    fn a_mask_of_nothing_but_ends_ends() {
        let params = Arc::new(SamplingParams { min_new_tokens: 5, ..SamplingParams::greedy() });
        let graph = Arc::new(Graph::default());
        let sampler = RowSampler { params, graph: Arc::clone(&graph), eos_token_ids: Arc::new([7, 2]) };
        for (byte, num_held_back) in [(0b1000_0100, 0), (0b1000_0000, 0), (0b1000_0001, 2)] {
            let mut batch = Batch::default();
            let row = batch.push_row(0, 0, &[1], &[0]);
            batch.push_sampled(row, 1, &sampler);
            let unmasked = batch.fingerprint(Fingerprint::default());
            batch.mask_sampled(TokenMask::new(&[byte], 8), Arc::clone(&graph));
            assert_eq!(batch.sampled[0].held_back.len(), num_held_back, "{byte:b}");
            assert_eq!(batch.sampled[0].batch_sampler, BatchSampler::Everything);
            assert_ne!(batch.fingerprint(Fingerprint::default()), unmasked);
        }
    }

    #[test]
    fn everything_that_a_step_reads_is_in_its_fingerprint() {
        let of = |change: &dyn Fn(&mut Batch, &mut SamplingParams)| {
            let (params, graph) = (Arc::new(SamplingParams::greedy()), Arc::new(Graph::default()));
            let mut sampler = RowSampler { params, graph, eos_token_ids: Arc::new([7]) };
            let mut batch = Batch::default();
            change(&mut batch, Arc::make_mut(&mut sampler.params));
            let row = batch.push_row(1, 16, &[5, 6], &[3, 4]);
            batch.push_sampled(row, 17, &sampler);
            batch.fingerprint(Fingerprint::default())
        };
        let known = of(&|_, _| ());
        assert_eq!(known, of(&|_, _| ()));
        let row = |slot, position, token, block| {
            let mut batch = Batch::default();
            batch.push_row(slot, position, &[token, 6], &[block, 4]);
            batch.fingerprint(Fingerprint::default())
        };
        let known_row = row(1, 16, 5, 3);
        for other in [row(2, 16, 5, 3), row(1, 15, 5, 3), row(1, 16, 4, 3), row(1, 16, 5, 2)] {
            assert_ne!(other, known_row);
        }
        assert_ne!(known, known_row);
        assert_ne!(known, of(&|_, params| params.frequency_penalty = 0.5));
        assert_ne!(known, of(&|_, params| params.min_new_tokens = 2));
        assert_eq!(known, of(&|_, params| params.min_new_tokens = 1));
        let biases = [(4, 0.5), (5, 0.5), (4, -0.5)]
            .map(|(token_id, bias)| of(&|_, params| params.logit_bias = vec![LogitBias { token_id, bias }]));
        assert!(!biases.contains(&known) && biases[0] != biases[1] && biases[0] != biases[2]);
        let target = of(&|batch, _| batch.push_target(0, 6, 0));
        assert_ne!(known, target);
        assert_ne!(target, of(&|batch, _| batch.push_target(0, 6, 1)));
        assert_ne!(known, of(&|batch, _| _ = batch.push_row(0, 0, &[1], &[])));
        assert_ne!(known, of(&|batch, _| batch.push_cached_tokens(0, &[1])));
    }
}
