//! The sizes for which programs are compiled, and the choice among them for a step.
//!
//! Entry points: [`Buckets::new`], [`Buckets::programs`], [`Buckets::plan`]. The functions are pure. A step becomes
//! launches: at most one for rows of one token, and others for prompt chunks. A launch for prompts reads one chunk, or
//! several short chunks with the same padded length. Every size that a plan can contain is in the list of programs.

use backend::{BLOCK_SIZE, Batch, StateLayout};
use model::sampling::BatchSampler;

use super::program::{ProgramForm, ProgramKey};
use super::stablehlo::{MAX_CHUNK_BLOCKS, QUERY_TILE};

/// The smallest padded length of a prompt chunk, in tokens.
const MIN_PREFILL_TOKENS: usize = 32;
/// The maximum number of short prompt chunks that one launch reads together.
const PREFILL_ROWS: usize = 8;

/// The sizes of programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Buckets {
    /// Numbers of rows of the programs that decode, ascending.
    decode_rows: Vec<usize>,
    /// Padded lengths of prompt chunks, in tokens, ascending.
    pub(super) prefill_tokens: Vec<usize>,
    /// The number of rows of a program that reads several prompt chunks. If it is more than 1, such a program exists
    /// for each padded length with which all its rows together have at most `max_batch_prefill_tokens` tokens.
    prefill_rows: usize,
    max_batch_prefill_tokens: usize,
    /// Lengths of context of the programs that decode, ascending, in tokens. `None`, any length, comes last if it is
    /// there.
    contexts: Vec<Option<usize>>,
}

/// One run of a decoder, and the sampler that follows it if any of the rows samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Launch {
    /// Indices in [`Batch::rows`].
    pub(super) rows: Vec<usize>,
    /// Rows of the program, padding included.
    pub(super) bucket_rows: usize,
    pub(super) tokens_per_row: usize,
    /// The longest context that the program can read, if it decodes and reads a fixed number of tokens of every row;
    /// `None` if the number depends on the contexts.
    pub(super) context: Option<usize>,
    pub(super) sampler: Option<BatchSampler>,
}

impl Buckets {
    /// Returns the sizes for steps of `layout` in programs of `form`.
    pub(super) fn new(layout: StateLayout, form: &ProgramForm) -> Self {
        let StateLayout { num_slots, max_total_tokens, max_batch_prefill_tokens, num_blocks: _ } = layout;
        let mut decode_rows = vec![form.min_decode_rows];
        while decode_rows.last().is_some_and(|last| *last < num_slots) {
            decode_rows.push(2 * decode_rows[decode_rows.len() - 1]);
        }
        let longest = max_batch_prefill_tokens.min(max_total_tokens);
        let mut prefill_tokens = vec![MIN_PREFILL_TOKENS];
        while prefill_tokens.last().is_some_and(|last| *last < longest) {
            let last = prefill_tokens[prefill_tokens.len() - 1];
            // Short lengths are far apart, because up to about 256 tokens a TPU takes longer to read the weights than
            // to compute, so padding costs little.
            prefill_tokens.push(if last < 128 { 4 * last } else { 2 * last });
        }
        if let Some(last) = prefill_tokens.last_mut() {
            let step = if longest > QUERY_TILE { QUERY_TILE } else { BLOCK_SIZE };
            *last = (*last).min(longest.next_multiple_of(step)).max(MIN_PREFILL_TOKENS);
        }
        let prefill_rows = PREFILL_ROWS.min(num_slots.next_power_of_two());
        let contexts = contexts(max_total_tokens, form.fixed_contexts);
        Self { decode_rows, prefill_tokens, prefill_rows, max_batch_prefill_tokens, contexts }
    }

    /// Returns every program that a server can need. Among the programs of one kind, those with the most rows or tokens
    /// come first.
    pub(super) fn programs(&self) -> Vec<ProgramKey> {
        let mut decoders = Vec::new();
        for tokens_per_row in &self.prefill_tokens {
            decoders.push((1, *tokens_per_row));
            if self.fits_several(*tokens_per_row) {
                decoders.push((self.prefill_rows, *tokens_per_row));
            }
        }
        let mut targets: Vec<usize> = decoders.iter().map(|(rows, tokens_per_row)| rows * tokens_per_row).collect();
        targets.sort_unstable();
        targets.dedup();
        decoders.extend(self.decode_rows.iter().map(|rows| (*rows, 1)));
        decoders.sort_by_key(|(rows, tokens_per_row)| std::cmp::Reverse((rows * tokens_per_row, *rows)));
        let decoders = decoders.into_iter().flat_map(|(rows, tokens_per_row)| {
            let contexts = if tokens_per_row == 1 { self.contexts.as_slice() } else { &[None] };
            contexts.iter().map(move |context| ProgramKey::Decoder { rows, tokens_per_row, context: *context })
        });
        let mut sampler_rows = self.decode_rows.clone();
        sampler_rows.extend([1, self.prefill_rows]);
        sampler_rows.sort_unstable();
        sampler_rows.dedup();
        let samplers = sampler_rows.into_iter().rev().flat_map(|rows| {
            BatchSampler::ALL.into_iter().rev().map(move |sampler| ProgramKey::Sampler { rows, sampler })
        });
        let targets = targets.into_iter().rev().map(|tokens| ProgramKey::Targets { tokens });
        [ProgramKey::Clear, ProgramKey::CachedTokens]
            .into_iter()
            .chain(decoders)
            .chain(samplers)
            .chain(targets)
            .collect()
    }

    /// Returns the launches of a step.
    pub(super) fn plan(&self, batch: &Batch) -> Vec<Launch> {
        let mut groups: Vec<(usize, Vec<usize>)> = Vec::new();
        for (index, row) in batch.rows.iter().enumerate() {
            // Only programs with several tokens per row return the hidden states that targets need.
            let is_decode = row.num_tokens == 1 && !batch.has_target(row);
            let tokens_per_row = if is_decode { 1 } else { self.prefill_tokens(row.num_tokens) };
            match groups.iter_mut().find(|(known, _)| *known == tokens_per_row) {
                Some((_, rows)) => rows.push(index),
                None => groups.push((tokens_per_row, vec![index])),
            }
        }
        let mut launches = Vec::new();
        for (tokens_per_row, rows) in groups {
            let most = match tokens_per_row {
                1 => self.decode_rows[self.decode_rows.len() - 1],
                _ if self.fits_several(tokens_per_row) => self.prefill_rows,
                _ => 1,
            };
            for rows in rows.chunks(most) {
                launches.push(self.launch(batch, rows, tokens_per_row, most));
            }
        }
        launches
    }

    fn launch(&self, batch: &Batch, rows: &[usize], tokens_per_row: usize, most: usize) -> Launch {
        let bucket_rows = match tokens_per_row {
            1 => *self.decode_rows.iter().find(|bucket| **bucket >= rows.len()).unwrap_or(&most),
            _ if rows.len() == 1 => 1,
            _ => most,
        };
        let sampled = batch.sampled.iter().filter(|sampled| rows.contains(&sampled.row));
        let sampler = sampled.map(|sampled| sampled.batch_sampler).max();
        let longest = rows.iter().map(|row| batch.rows[*row].context_len).max().unwrap_or_default();
        let suffices = |context: &&Option<usize>| context.is_none_or(|context| longest <= context);
        let context = if tokens_per_row == 1 { self.contexts.iter().find(suffices).copied().flatten() } else { None };
        Launch { rows: rows.to_vec(), bucket_rows, tokens_per_row, context, sampler }
    }

    /// Returns the padded length of a chunk.
    fn prefill_tokens(&self, num_tokens: usize) -> usize {
        let bucket = self.prefill_tokens.iter().find(|bucket| **bucket >= num_tokens);
        *bucket.expect("the engine refuses chunks that are longer than a step")
    }

    fn fits_several(&self, tokens_per_row: usize) -> bool {
        self.prefill_rows > 1 && self.prefill_rows * tokens_per_row <= self.max_batch_prefill_tokens
    }
}

/// Returns the lengths of context of the programs that decode: those of `fixed` that are shorter than a block table,
/// then the length of a block table if an element of `fixed` covers it, else `None`.
fn contexts(max_total_tokens: usize, fixed: &[usize]) -> Vec<Option<usize>> {
    let longest = blocks_per_row(max_total_tokens) * BLOCK_SIZE;
    let shorter = fixed.iter().copied().filter(|context| *context < longest);
    let last = fixed.iter().any(|context| *context >= longest).then_some(longest);
    shorter.map(Some).chain([last]).collect()
}

/// Returns the length of a block table: enough for the longest row, in whole chunks of the attention loop.
pub(super) fn blocks_per_row(max_total_tokens: usize) -> usize {
    let blocks = max_total_tokens.div_ceil(BLOCK_SIZE);
    blocks.next_multiple_of(MAX_CHUNK_BLOCKS.min(blocks.next_power_of_two()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use proto::SamplingParams;

    use super::*;
    use crate::platform::Platform;
    use backend::RowSampler;
    use model::sampling::Samplers;

    fn layout(num_slots: usize, max_batch_prefill_tokens: usize, max_total_tokens: usize) -> StateLayout {
        StateLayout { num_slots, num_blocks: 1, max_total_tokens, max_batch_prefill_tokens }
    }

    fn form(fixed_contexts: &'static [usize]) -> ProgramForm {
        let form = Platform::new(devices::Device::XLA_CPU, &devices::xla_cpu::PLATFORM).form;
        ProgramForm { fixed_contexts, ..form }
    }

    #[test]
    fn contexts_cover_every_row() {
        assert_eq!(contexts(4096, &[]), [None]);
        assert_eq!(contexts(100_000, &[512, 1024]), [Some(512), Some(1024), None]);
        assert_eq!(contexts(1024, &[512, 1024, 2048]), [Some(512), Some(1024)]);
        assert_eq!(contexts(600, &[512, 1024, 2048]), [Some(512), Some(1024)]);
        assert_eq!(contexts(100, &[512]), [Some(128)]);
    }

    #[test]
    fn programs_of_the_defaults() {
        let names: Vec<String> =
            Buckets::new(layout(64, 4096, 4096), &form(&[])).programs().iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(names.join(" "));
    }

    proptest! {
        #[test]
        fn every_launch_has_its_programs_and_every_row_one_launch(
            num_slots in 1..80usize,
            prefill in 1..500usize,
            total in 17..300usize,
            lens in prop::collection::vec((1..300usize, any::<bool>(), 0..300usize), 1..80),
            fixed in prop::sample::select(vec![&[][..], &[64], &[64, 128], &[64, 512]]),
        ) {
            let buckets = Buckets::new(layout(num_slots, prefill, total), &form(fixed));
            let programs = buckets.programs();
            let params = SamplingParams::greedy();
            let graph = Samplers::new(10).graph(&params).unwrap();
            let sampler = RowSampler { params: Arc::new(params), graph, eos_token_ids: Arc::default() };
            let mut batch = Batch::default();
            for (slot, (len, samples, position)) in lens.iter().take(num_slots).enumerate() {
                let len = (*len).min(prefill).min(total);
                let row = batch.push_row(slot, (*position).min(total - len), &vec![0; len], &[]);
                if *samples {
                    batch.push_sampled(row, 0, &sampler);
                }
            }
            let mut seen = Vec::new();
            for launch in buckets.plan(&batch) {
                let Launch { rows, bucket_rows, tokens_per_row, context, sampler } = launch;
                let decoder = ProgramKey::Decoder { rows: bucket_rows, tokens_per_row, context };
                prop_assert!(rows.iter().all(|row| context.is_none_or(|most| batch.rows[*row].context_len <= most)));
                prop_assert!(rows.len() <= bucket_rows, "{} rows", rows.len());
                prop_assert!(rows.iter().all(|row| batch.rows[*row].num_tokens <= tokens_per_row));
                prop_assert!(programs.contains(&decoder), "{decoder}");
                if let Some(sampler) = sampler {
                    let sampler = ProgramKey::Sampler { rows: bucket_rows, sampler };
                    prop_assert!(programs.contains(&sampler), "{sampler}");
                }
                if tokens_per_row > 1 {
                    let targets = ProgramKey::Targets { tokens: bucket_rows * tokens_per_row };
                    prop_assert!(programs.contains(&targets), "{targets}");
                }
                seen.extend(rows);
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..batch.rows.len()).collect::<Vec<_>>());
        }
    }
}
