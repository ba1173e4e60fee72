//! To add a sampling parameter:
//! 1. Its field, neutral value and legal range in `proto`; its client names in the router.
//! 2. `graph/op.rs`: its [`SamplingInput`](crate::graph::SamplingInput). `inputs.rs`: its value per row; the destructuring
//!    there stops compiling until that is done.
//! 3. Here: a file with a function from scores to scores, and a row in [`PROCESSORS`].
//!
//! This room leads from logits to a token, as graph operations, so that it runs on the device behind the model.
//! A row runs only the processors that it asks for: [`Samplers`] keeps one graph per set of them. A processor given its
//! neutral value changes no bit, so a device that compiles graphs ahead runs a [`BatchSampler`] for all rows of a batch.

mod choice;
mod frequency_penalty;
mod inputs;
mod min_new_tokens;
mod min_p;
mod presence_penalty;
mod repetition_penalty;
mod samplers;
mod temperature;
#[cfg(test)]
mod tests;
mod top_k;
mod top_p;
mod typical_p;

pub(crate) use inputs::{Column, SamplingInputs};
use proto::SamplingParams;
pub(crate) use samplers::{BatchSampler, Samplers};

use crate::graph::{Graph, GraphError, TokenScope, Value};

/// One change of the scores before the choice.
struct Processor {
    /// Whether these parameters leave the scores as they are.
    is_off: fn(&SamplingParams) -> bool,
    /// Whether it looks at the tokens of the row: greedy rows have it too.
    is_penalty: bool,
    /// Scores `[rows, vocab]` → scores.
    apply: fn(&mut Graph, Value) -> Result<Value, GraphError>,
}

/// In the order of TGI: penalties see the model's logits; temperature comes before the processors that look at
/// probabilities; each of those looks at what the one before has left. What TGI has not is where others have it: the
/// presence penalty behind the one for frequency (vLLM), the others as in transformers' `GenerationMixin._get_logits_processor`.
const PROCESSORS: [Processor; 9] = [
    Processor { is_off: |p| p.repetition_penalty == 1.0, is_penalty: true, apply: repetition_penalty::apply },
    Processor { is_off: |p| p.frequency_penalty == 0.0, is_penalty: true, apply: frequency_penalty::apply },
    Processor { is_off: |p| p.presence_penalty == 0.0, is_penalty: true, apply: presence_penalty::apply },
    Processor { is_off: |p| p.min_new_tokens == 0, is_penalty: true, apply: min_new_tokens::apply },
    Processor { is_off: |p| p.temperature == 1.0, is_penalty: false, apply: temperature::apply },
    Processor { is_off: |p| p.top_k == 0, is_penalty: false, apply: top_k::apply },
    Processor { is_off: |p| p.top_p == 1.0, is_penalty: false, apply: top_p::apply },
    Processor { is_off: |p| p.min_p == 0.0, is_penalty: false, apply: min_p::apply },
    Processor { is_off: |p| p.typical_p == 1.0, is_penalty: false, apply: typical_p::apply },
];

/// Log-probabilities of given tokens: logits `[rows, vocab]`, targets `[rows]` (i32) → `[rows]`.
pub(crate) fn target_logprobs(graph: &mut Graph, logits: Value, targets: Value) -> Result<Value, GraphError> {
    let logprobs = graph.log_softmax(logits)?; // [rows, vocab]
    graph.gather_columns(logprobs, targets) // [rows]
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
