//! The programs that consume a decoder's hidden states, and the results of these programs.
//!
//! Entry points: [`State::consume`] starts the sampler of a launch and the programs for its targets, the prompt tokens
//! whose log-probabilities are reported; [`Reports`] contains the pending copies of the results to the host;
//! [`Reports::outputs`] makes a [`StepOutput`] from them. Each of these programs applies the output head to the hidden
//! states that it needs, so logits never leave a program.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use backend::{Batch, PromptToken, Pulse, SampledToken, StepOutput};
use model::Fingerprint;
use model::sampling::BatchSampler;
use pjrt::{Argument, Buffer, Download};

use super::bucket::Launch;
use super::program::{ProgramKey, TARGETS, TOP_TOKENS};
use super::state::{Decoded, Host, LocalDevice, State, failed, upload};
use super::token_input::TokenInput;
use crate::error::XlaError;

/// A launch whose hidden states are consumed, with its batch and devices.
#[derive(Clone, Copy)]
pub(super) struct Consumers<'a> {
    pub(super) batch: &'a Batch,
    pub(super) launch: &'a Launch,
    pub(super) host: Host<'a>,
}

/// The pending copies of a step's results to the host.
#[derive(Debug)]
pub(super) struct Reports {
    num_sampled: usize,
    num_targets: usize,
    samples: Vec<Samples>,
    targets: Vec<Targets>,
    /// The hash of the programs of the step and of the batch's data.
    pub(super) fingerprint: Fingerprint,
}

/// The pending copy of a sampler's results, `[bucket_rows, 2 or more]` i32: for each row a token id, the bits of its
/// logprob and, if the program reports them, top tokens with the bits of their logprobs.
#[derive(Debug)]
struct Samples {
    /// For each row that samples, its index in [`Batch::sampled`] and its row in the results.
    places: Vec<(usize, usize)>,
    bucket_rows: usize,
    download: Download,
}

/// The pending copy of the results for up to [`TARGETS`] prompt tokens, `[TARGETS, ..]` i32: for each the bits of its
/// logprob, and top tokens with the bits of their logprobs.
#[derive(Debug)]
struct Targets {
    /// Indices in the lists of [`Batch::targets`].
    targets: Vec<usize>,
    download: Download,
}

impl State {
    /// Starts the launch's sampler, if it has one, and the programs for its targets, and starts copying their results
    /// to the host.
    ///
    /// # Errors
    /// When a launch or a transfer cannot be started. The state is then lost.
    pub(super) fn consume(
        &mut self,
        decoded: Decoded,
        consumers: Consumers<'_>,
        reports: &mut Reports,
    ) -> Result<(), XlaError> {
        let Decoded { last, columns, hidden } = decoded;
        if let Some(sampler) = consumers.launch.sampler {
            reports.samples.push(self.sample(sampler, [last, columns], consumers)?);
        }
        if !hidden.is_empty() {
            self.report_targets(&hidden, consumers, reports)?;
        }
        Ok(())
    }

    /// Starts the sampler. `inputs` are the last hidden states and the sampler's columns, each with one buffer per
    /// device.
    fn sample(
        &mut self,
        sampler: BatchSampler,
        inputs: [Vec<Buffer>; 2],
        consumers: Consumers<'_>,
    ) -> Result<Samples, XlaError> {
        let Consumers { batch, launch: Launch { rows, bucket_rows, .. }, host } = consumers;
        let key = ProgramKey::Sampler { rows: *bucket_rows, sampler };
        let token_inputs = if sampler.reads_token_inputs() { self.token_inputs(consumers)? } else { Vec::new() };
        let [last, columns] = inputs;
        let lists = last.into_iter().zip(columns).enumerate().map(|(device, (last, columns))| {
            let donated = [last, columns].into_iter().map(Argument::Donate);
            donated.chain(token_inputs.iter().map(|input| Argument::Keep(&input[device]))).collect()
        });
        let results = self.run(key, lists.collect(), host)?;
        // All devices return the same report.
        let report = results.into_iter().flatten().next().expect("samplers report on at least one device");
        let download = report.to_host().map_err(|source| failed(key, source))?;
        let place = |row: usize| rows.iter().position(|known| *known == row);
        let sampled = batch.sampled.iter().enumerate();
        let places = sampled.filter_map(|(index, sampled)| Some((index, place(sampled.row)?))).collect();
        Ok(Samples { places, bucket_rows: *bucket_rows, download })
    }

    /// Returns the arrays of [`TokenInput`] for the rows of a launch as `[input][device]`, in the order of the
    /// sampler's arguments.
    fn token_inputs(
        &mut self,
        Consumers { batch, launch, host }: Consumers<'_>,
    ) -> Result<Vec<Vec<Arc<Buffer>>>, XlaError> {
        let Launch { rows, bucket_rows, .. } = launch;
        let sizes = self.model.programs.token_sizes(*bucket_rows);
        let mut inputs = Vec::with_capacity(TokenInput::ALL.len());
        for input in TokenInput::ALL {
            let send = |numbers: &[i32]| {
                let send = |local: &LocalDevice| upload(host, local, &input.dims(sizes), numbers).map(Arc::new);
                host.devices.iter().map(send).collect::<Result<Vec<_>, _>>()
            };
            inputs.push(match input.pack(batch, rows, sizes) {
                Some(packed) => {
                    let numbers = packed.iter().map(|number| u64::from(number.cast_unsigned()));
                    self.fingerprint = self.fingerprint.numbers(numbers);
                    send(&packed)?
                }
                None => match self.neutral_inputs.entry((input, *bucket_rows)) {
                    Entry::Occupied(known) => known.get().clone(),
                    Entry::Vacant(new) => new.insert(send(&input.neutral(sizes))?).clone(),
                },
            });
        }
        Ok(inputs)
    }

    /// Starts the programs for the targets among the rows of a prefill; `hidden` is `[rows * tokens_per_row, hidden]`
    /// on each device.
    fn report_targets(
        &mut self,
        hidden: &[Buffer],
        Consumers { batch, launch, host }: Consumers<'_>,
        reports: &mut Reports,
    ) -> Result<(), XlaError> {
        let mut wanted: Vec<(usize, i32)> = Vec::new();
        for (target, token_index) in batch.targets.token_indices.iter().enumerate() {
            let place = launch.rows.iter().enumerate().find_map(|(place, row)| {
                let row = &batch.rows[*row];
                let offset = (*token_index as usize).checked_sub(row.first_token)?;
                (offset < row.num_tokens).then_some(place * launch.tokens_per_row + offset)
            });
            wanted.extend(place.map(|place| (target, place as i32)));
        }
        let key = ProgramKey::Targets { tokens: hidden[0].dims()[0] };
        for wanted in wanted.chunks(TARGETS) {
            let mut packed = vec![0; 3 * TARGETS]; // [3, targets]
            for (index, (target, place)) in wanted.iter().enumerate() {
                packed[index] = *place;
                packed[TARGETS + index] = batch.targets.token_ids[*target];
                packed[2 * TARGETS + index] = batch.targets.top_n[*target];
            }
            self.fingerprint = self.fingerprint.numbers(packed.iter().map(|number| u64::from(number.cast_unsigned())));
            let upload = |local: &LocalDevice| upload(host, local, &[3, TARGETS], &packed);
            let packed = host.devices.iter().map(upload).collect::<Result<Vec<_>, _>>()?;
            let pairs = hidden.iter().zip(&packed);
            let arguments =
                pairs.map(|(hidden, packed)| vec![Argument::Keep(hidden), Argument::Keep(packed)]).collect();
            let results = self.run(key, arguments, host)?;
            let download = results[0][0].to_host().map_err(|source| failed(key, source))?;
            reports.targets.push(Targets { targets: wanted.iter().map(|(target, _)| *target).collect(), download });
        }
        Ok(())
    }
}

impl Reports {
    /// Returns the reports of a step that has started nothing yet.
    pub(super) fn new(batch: &Batch) -> Self {
        let (num_sampled, num_targets) = (batch.sampled.len(), batch.targets.token_ids.len());
        let (samples, targets) = (Vec::new(), Vec::new());
        Self { num_sampled, num_targets, samples, targets, fingerprint: Fingerprint::default() }
    }

    /// Returns the results in the order of the batch, when all copies have arrived. `pulse` advances with each copy.
    ///
    /// # Errors
    /// When a launch or a copy failed on the device.
    pub(super) async fn outputs(self, pulse: &Pulse) -> Result<StepOutput, XlaError> {
        let failed = |source| XlaError::Program { program: "download of step results".to_owned(), source };
        let mut tokens = vec![SampledToken::default(); self.num_sampled];
        for Samples { places, bucket_rows, download } in self.samples {
            let words = words(&download.await.map_err(failed)?);
            pulse.advance();
            let width = words.len() / bucket_rows;
            for (index, place) in places {
                tokens[index] = sampled_token(&words[place * width..][..width]);
            }
        }
        let mut prompt_tokens = vec![PromptToken::default(); self.num_targets];
        for Targets { targets, download } in self.targets {
            let words = words(&download.await.map_err(failed)?);
            pulse.advance();
            for (target, words) in targets.into_iter().zip(words.chunks_exact(words.len() / TARGETS)) {
                prompt_tokens[target] = PromptToken { logprob: number(words[0]), top_tokens: top_tokens(&words[1..]) };
            }
        }
        Ok(StepOutput { tokens, prompt_tokens, fingerprint: self.fingerprint.value() })
    }
}

fn sampled_token(words: &[i32]) -> SampledToken {
    let top_tokens = top_tokens(&words[2..]);
    SampledToken { token_id: words[0].cast_unsigned(), logprob: number(words[1]), top_tokens }
}

/// Returns the top tokens with their logprobs; none if `words` is too short to contain them. In unused entries, which
/// come last, the token id is negative.
fn top_tokens(words: &[i32]) -> Vec<(u32, f32)> {
    let Some((ids, logprobs)) = words.get(..2 * TOP_TOKENS).map(|top| top.split_at(TOP_TOKENS)) else {
        return Vec::new();
    };
    let reported = ids.iter().zip(logprobs).filter(|(id, _)| **id >= 0);
    reported.map(|(id, logprob)| (id.cast_unsigned(), number(*logprob))).collect()
}

fn number(word: i32) -> f32 {
    f32::from_bits(word.cast_unsigned())
}

fn words(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks_exact(4).map(|word| i32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}
