//! To add a sampling parameter: a file with its column, the function from scores to scores that reads it, and the
//! processor that names both, as in `min_p.rs`; and the processor's place in [`PROCESSORS`]. A parameter that no processor
//! reads has its column in `choice.rs`. `proto/src/sampling.rs` has the whole recipe.
//!
//! This room leads from logits to a token, as graph operations, so that it runs on the device behind the model.
//! A row runs only the processors that it asks for: [`Samplers`] keeps one graph per set of them. A processor given its
//! neutral value changes no bit, so a device that compiles graphs ahead runs a [`BatchSampler`] for all rows of a batch.

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

/// What a row asks of its sampler in a step.
struct Demand<'a> {
    params: &'a SamplingParams,
    /// Some tokens are not allowed.
    is_masked: bool,
}

/// One change of the scores before the choice.
struct Processor {
    /// What it reads of each row.
    columns: &'static [Column],
    /// Whether such a row's scores stay as they are.
    is_off: fn(&Demand<'_>) -> bool,
    /// The least sampler of a batch that has it. Greedy rows need none that belongs to drawing.
    least: BatchSampler,
    /// Scores `[rows, vocab]` → scores.
    apply: fn(&mut Graph, Value) -> Result<Value, GraphError>,
}

/// In the order of TGI: penalties see the model's logits; temperature comes before the processors that look at
/// probabilities; each of those looks at what the one before has left. What TGI has not is where others have it: the
/// presence penalty behind the one for frequency (vLLM), the others as in transformers' `GenerationMixin._get_logits_processor`.
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

/// All columns, in the order in which [`SamplingInputs`] and devices have them.
pub fn columns() -> impl Iterator<Item = Column> {
    let of_processors = PROCESSORS.into_iter().flat_map(|processor| processor.columns).copied();
    [choice::IS_GREEDY].into_iter().chain(of_processors).chain(choice::COLUMNS)
}

/// Whether rows with these parameters look at the tokens before the last one.
pub fn looks_back(params: &SamplingParams) -> bool {
    let row = Demand { params, is_masked: false };
    PROCESSORS.iter().any(|processor| processor.least >= Penalising && processor.is_on(&row))
}

impl Processor {
    /// Whether such a row needs it.
    fn is_on(&self, row: &Demand<'_>) -> bool {
        !(self.is_off)(row) && (self.least > Drawing || !row.params.is_greedy)
    }
}

/// How often each token of the vocabulary of `scores` occurs, `[rows, vocab]`.
fn token_counts(graph: &mut Graph, scores: Value, scope: TokenScope) -> Value {
    let vocab_size = graph.node(scores).shape.fixed_len();
    graph.token_counts(scope, vocab_size) // [rows, vocab]
}

/// Keeps the tokens with the smallest keys whose probabilities together reach `mass`, with ties; the scores of the others
/// become minus infinity. A mass of 1 keeps all, however the sum is rounded.
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
    // A score that is not a number is not dropped: the logprob then tells.
    let is_dropped = graph.less(threshold, keys)?; // [rows, vocab]
    let never = graph.constant(f32::NEG_INFINITY); // []
    graph.select(is_dropped, never, scores) // [rows, vocab]
}
