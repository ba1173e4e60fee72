//! To add a sampling parameter:
//! 1. Its field, neutral value and legal range in `proto`; its client names in the router.
//! 2. `graph/op.rs`: its [`SamplingInput`](crate::graph::SamplingInput). `inputs.rs`: its value per row; the destructuring
//!    there stops compiling until that is done.
//! 3. Here: a file with a function from scores to scores, and a row in [`PROCESSORS`].
//!
//! This room leads from logits to a token, as graph operations, so that it runs on the device behind the model.
//! A row runs only the processors that it asks for: [`Samplers`] keeps one graph per set of them. A processor given its
//! neutral value changes no bit, so a device that compiles graphs ahead runs a [`BatchSampler`] for all rows of a batch.

mod allowed_tokens;
mod choice;
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
pub use inputs::{Column, SamplingInputs};
use samplers::BatchSampler::{Drawing, Everything, Penalising};
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
    Processor { is_off: |row| row.params.watermark_delta == 0.0, least: Everything, apply: watermark::apply },
    Processor { is_off: |row| row.params.logit_bias.is_empty(), least: Everything, apply: logit_bias::apply },
    Processor {
        is_off: |row| row.params.repetition_penalty == 1.0,
        least: Penalising,
        apply: repetition_penalty::apply,
    },
    Processor { is_off: |row| row.params.frequency_penalty == 0.0, least: Penalising, apply: frequency_penalty::apply },
    Processor { is_off: |row| row.params.presence_penalty == 0.0, least: Penalising, apply: presence_penalty::apply },
    Processor { is_off: |row| row.params.min_new_tokens == 0, least: Penalising, apply: min_new_tokens::apply },
    Processor { is_off: |row| !row.is_masked, least: Everything, apply: allowed_tokens::apply },
    Processor { is_off: |row| row.params.temperature == 1.0, least: Drawing, apply: temperature::apply },
    Processor { is_off: |row| row.params.top_k == 0, least: Drawing, apply: top_k::apply },
    Processor { is_off: |row| row.params.top_p == 1.0, least: Drawing, apply: top_p::apply },
    Processor { is_off: |row| row.params.min_p == 0.0, least: Drawing, apply: min_p::apply },
    Processor { is_off: |row| row.params.typical_p == 1.0, least: Drawing, apply: typical_p::apply },
];

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
