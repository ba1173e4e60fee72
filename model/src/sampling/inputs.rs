//! The sampling parameters of a step's rows as columns, the way a device takes them.
//!
//! Door: [`SamplingInputs`]. Rows that choose greedily get neutral values for what only concerns sampling, so that a graph
//! with all processors treats them right.

use proto::SamplingParams;

use crate::fingerprint::Fingerprint;
use crate::graph::SamplingInput;

/// Temperatures beyond have the same distribution as these: below, only the best token is left, or the best ones where several are
/// equal; above, all tokens are alike. Devices take numbers near the ends of their range, and quotients of them, for zero.
const TEMPERATURES: (f32, f32) = (1e-20, 1e20);

/// One entry per row that samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SamplingInputs {
    watermark_gamma: Vec<f32>,
    watermark_delta: Vec<f32>,
    repetition_penalty: Vec<f32>,
    frequency_penalty: Vec<f32>,
    presence_penalty: Vec<f32>,
    temperature: Vec<f32>,
    top_k: Vec<i32>,
    top_p: Vec<f32>,
    min_p: Vec<f32>,
    typical_p: Vec<f32>,
    seed_low: Vec<u32>,
    seed_high: Vec<u32>,
    num_generated: Vec<u32>,
    top_n_tokens: Vec<i32>,
    is_greedy: Vec<f32>,
}

/// A column of numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Column<'a> {
    F32(&'a [f32]),
    I32(&'a [i32]),
    U32(&'a [u32]),
}

impl SamplingInputs {
    /// Adds a row that has generated `num_generated` tokens before this step.
    pub fn push(&mut self, params: &SamplingParams, num_generated: u32) {
        let SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            typical_p,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            seed,
            is_greedy,
            top_n_tokens,
            // A step holds tokens back for as long as it says.
            min_new_tokens: _,
            watermark_gamma,
            watermark_delta,
            // As many as the row likes: no column.
            logit_bias: _,
            wants_prompt_logprobs: _,
            prompt_top_n_tokens: _,
        } = params;
        let neutral = SamplingParams::greedy();
        fn drawn<T: Copy>(is_greedy: bool, value: T, neutral: T) -> T {
            if is_greedy { neutral } else { value }
        }
        // A limit beyond 2^31 tokens is none.
        let limit = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
        self.watermark_gamma.push(*watermark_gamma);
        self.watermark_delta.push(*watermark_delta);
        self.repetition_penalty.push(*repetition_penalty);
        self.frequency_penalty.push(*frequency_penalty);
        self.presence_penalty.push(*presence_penalty);
        let (coldest, hottest) = TEMPERATURES;
        self.temperature.push(drawn(*is_greedy, temperature.clamp(coldest, hottest), neutral.temperature));
        self.top_k.push(limit(drawn(*is_greedy, *top_k, neutral.top_k)));
        self.top_p.push(drawn(*is_greedy, *top_p, neutral.top_p));
        self.min_p.push(drawn(*is_greedy, *min_p, neutral.min_p));
        self.typical_p.push(drawn(*is_greedy, *typical_p, neutral.typical_p));
        let seed = drawn(*is_greedy, *seed, neutral.seed);
        self.seed_low.push((seed & u64::from(u32::MAX)) as u32);
        self.seed_high.push((seed >> 32) as u32);
        self.num_generated.push(num_generated);
        self.top_n_tokens.push(limit(*top_n_tokens));
        self.is_greedy.push(f32::from(*is_greedy));
    }

    /// `fingerprint` with all values.
    pub fn fingerprint(&self, fingerprint: Fingerprint) -> Fingerprint {
        SamplingInput::ALL.iter().fold(fingerprint, |fingerprint, input| match self.column(*input) {
            Column::F32(values) => fingerprint.numbers(values.iter().map(|value| u64::from(value.to_bits()))),
            Column::I32(values) => fingerprint.numbers(values.iter().map(|value| u64::from(value.cast_unsigned()))),
            Column::U32(values) => fingerprint.numbers(values.iter().map(|value| u64::from(*value))),
        })
    }

    /// The values of one parameter, `[rows]`.
    pub fn column(&self, input: SamplingInput) -> Column<'_> {
        match input {
            SamplingInput::WatermarkGamma => Column::F32(&self.watermark_gamma),
            SamplingInput::WatermarkDelta => Column::F32(&self.watermark_delta),
            SamplingInput::RepetitionPenalty => Column::F32(&self.repetition_penalty),
            SamplingInput::FrequencyPenalty => Column::F32(&self.frequency_penalty),
            SamplingInput::PresencePenalty => Column::F32(&self.presence_penalty),
            SamplingInput::Temperature => Column::F32(&self.temperature),
            SamplingInput::TopK => Column::I32(&self.top_k),
            SamplingInput::TopP => Column::F32(&self.top_p),
            SamplingInput::MinP => Column::F32(&self.min_p),
            SamplingInput::TypicalP => Column::F32(&self.typical_p),
            SamplingInput::SeedLow => Column::U32(&self.seed_low),
            SamplingInput::SeedHigh => Column::U32(&self.seed_high),
            SamplingInput::NumGenerated => Column::U32(&self.num_generated),
            SamplingInput::TopNTokens => Column::I32(&self.top_n_tokens),
            SamplingInput::IsGreedy => Column::F32(&self.is_greedy),
        }
    }
}
