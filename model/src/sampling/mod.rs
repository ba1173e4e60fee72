//! To add a sampling parameter, add a file that contains its column, the function from scores to scores that reads the
//! column, and the processor that names both, as in `min_p.rs`. Then add the processor to [`PROCESSORS`]. A parameter
//! that no processor reads has its column in `choice.rs`. `proto/src/sampling.rs` has the whole recipe.
//!
//! The files here build the graphs from logits to a token, which run on the device after the model. On a device that
//! runs rows one by one, a row runs only the processors that it needs ([`Samplers`]). A processor with its neutral
//! value changes no score, so a device that compiles graphs ahead of time runs a [`BatchSampler`] for all rows of a
//! batch.

mod allowed_tokens;
mod choice;
mod column;
mod frequency_penalty;
mod inputs;
mod logit_bias;
mod min_new_tokens;
mod min_p;
mod presence_penalty;
mod repetition_penalty;
mod samplers;
mod targets;
mod temperature;
#[cfg(test)]
mod tests;
mod token_mask;
mod top_k;
mod top_p;
mod typical_p;
mod watermark;

use proto::SamplingParams;

use crate::graph::{Graph, GraphError, TokenScope, Value};
pub use column::{Column, Number};
pub use inputs::SamplingInputs;
use samplers::BatchSampler::{Drawing, Penalising};
pub use samplers::{BatchSampler, Samplers};
pub use targets::{TargetReport, target_graph};
pub use token_mask::TokenMask;

/// The sampling parameters of a row, and whether this step masks tokens.
struct Demand<'a> {
    params: &'a SamplingParams,
    /// True if the step allows only some tokens.
    is_masked: bool,
}

/// One change of the scores before the choice of a token.
struct Processor {
    /// The columns that the processor reads.
    columns: &'static [Column],
    /// True if the row's demand is neutral, so that the processor would leave the scores unchanged.
    is_off: fn(&Demand<'_>) -> bool,
    /// The least [`BatchSampler`] that contains the processor. Processors of `Drawing` do not apply to greedy rows.
    least: BatchSampler,
    /// Adds the processor to a graph: scores `[rows, vocab]` → changed scores.
    apply: fn(&mut Graph, Value) -> Result<Value, GraphError>,
}

/// The processors in the order of TGI: penalties come before temperature, and temperature before the processors that
/// drop improbable tokens. Each processor reads the scores that the previous one left. Processors that TGI lacks are in
/// the order of other implementations: the presence penalty after the frequency penalty (vLLM), the rest as in
/// transformers' `GenerationMixin._get_logits_processor`.
const PROCESSORS: [Processor; 12] = [
    watermark::PROCESSOR,
    logit_bias::PROCESSOR,
    repetition_penalty::PROCESSOR,
    frequency_penalty::PROCESSOR,
    presence_penalty::PROCESSOR,
    min_new_tokens::PROCESSOR,
    allowed_tokens::PROCESSOR,
    temperature::PROCESSOR,
    top_k::PROCESSOR,
    top_p::PROCESSOR,
    min_p::PROCESSOR,
    typical_p::PROCESSOR,
];

/// Returns all columns, in the order in which [`SamplingInputs`] holds them and devices read them.
pub fn columns() -> impl Iterator<Item = Column> {
    let of_processors = PROCESSORS.into_iter().flat_map(|processor| processor.columns).copied();
    [choice::IS_GREEDY].into_iter().chain(of_processors).chain(choice::COLUMNS)
}

/// True if rows with these parameters may read tokens before the last one: if they need a processor of [`Penalising`]
/// or of a later sampler.
pub fn looks_back(params: &SamplingParams) -> bool {
    let row = Demand { params, is_masked: false };
    PROCESSORS.iter().any(|processor| processor.least >= Penalising && processor.is_on(&row))
}

impl Processor {
    /// True if the row needs the processor.
    fn is_on(&self, row: &Demand<'_>) -> bool {
        !(self.is_off)(row) && (self.least > Drawing || !row.params.is_greedy)
    }
}

/// Counts how often each token of the vocabulary of `scores` occurs in the part `scope` of the row, `[rows, vocab]`.
fn token_counts(graph: &mut Graph, scores: Value, scope: TokenScope) -> Value {
    let vocab_size = graph.node(scores).shape.fixed_len();
    graph.token_counts(scope, vocab_size) // [rows, vocab]
}

/// Keeps the tokens with the smallest keys whose probabilities together reach `mass`, and those that tie with the last
/// one. Sets the scores of the other tokens to minus infinity. A mass of 1 keeps all tokens, even if rounding errors
/// make their sum differ from 1.
fn keep_mass(
    graph: &mut Graph,
    scores: Value,
    [keys, probabilities]: [Value; 2],
    mass: Value,
) -> Result<Value, GraphError> {
    let one = graph.constant(1.0); // []
    let is_on = graph.less(mass, one)?; // [rows]
    let threshold = graph.mass_threshold(keys, probabilities, mass)?; // [rows]
    let everything = graph.constant(f32::INFINITY); // []
    let threshold = graph.select(is_on, threshold, everything)?; // [rows]
    // A NaN score is not dropped, so the logprob of the row shows it.
    let is_dropped = graph.less(threshold, keys)?; // [rows, vocab]
    let never = graph.constant(f32::NEG_INFINITY); // []
    graph.select(is_dropped, never, scores) // [rows, vocab]
}
