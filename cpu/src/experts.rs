//! Mixtures of experts on the CPU: each expert computes only the tokens that chose it.
//!
//! Entry points: [`route`], [`experts`]. A token's result is the sum over its experts in ascending order, so the result
//! does not depend on the other tokens.

use candle_core::Tensor;
use kernels::linear::PackedWeight;
use kernels::{linear, softmax};
use model::graph::{Activation, RouterSpec};

use super::host::{self, View};
use super::model_ops::kernel;

type Result<T> = candle_core::Result<T>;

/// Scores `[tokens, experts]` → weights `[tokens, experts]`: the softmax over all experts, kept for each token's
/// `num_chosen` largest and 0 for the other experts. If `is_normalised`, the kept weights are divided by their sum.
pub(super) fn route(scores: &Tensor, spec: RouterSpec) -> Result<Tensor> {
    let (_, num_experts) = scores.dims2()?;
    let mut weights = View::new(scores)?.f32().to_vec(); // [tokens, experts]
    for weights in weights.chunks_exact_mut(num_experts) {
        softmax::softmax(weights);
        let mut order: Vec<usize> = (0..num_experts).collect();
        // The sort is stable: among equal weights the lowest index comes first.
        order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
        let (chosen, others) = order.split_at(spec.num_chosen);
        others.iter().for_each(|expert| weights[*expert] = 0.0);
        if spec.is_normalised {
            let sum: f32 = chosen.iter().map(|expert| weights[*expert]).sum();
            chosen.iter().for_each(|expert| weights[*expert] /= sum);
        }
    }
    host::shaped(weights, scores.shape())
}

/// x `[tokens, hidden]`, weights `[tokens, experts]`, and the matrices of this rank's experts → `[tokens, hidden]`.
pub(super) fn experts(
    [x, mixture]: [&Tensor; 2],
    [gates, ups, downs]: [&[PackedWeight]; 3],
    function: Activation,
    rank: usize,
) -> Result<Tensor> {
    let (num_tokens, hidden_size) = x.dims2()?;
    let (_, num_experts) = mixture.dims2()?;
    let (x, mixture) = (View::new(x)?, View::new(mixture)?);
    let mut sum = vec![0.0; num_tokens * hidden_size]; // [tokens, hidden]
    for (local, ((gate, up), down)) in gates.iter().zip(ups).zip(downs).enumerate() {
        let expert = rank * gates.len() + local;
        if expert >= num_experts {
            break;
        }
        let weight = |token: usize| mixture.f32()[token * num_experts + expert];
        let tokens: Vec<usize> = (0..num_tokens).filter(|token| weight(*token) != 0.0).collect();
        if tokens.is_empty() {
            continue;
        }
        let inputs: Vec<f32> =
            tokens.iter().flat_map(|token| &x.f32()[token * hidden_size..][..hidden_size]).copied().collect();
        let mut outputs = vec![0.0; tokens.len() * hidden_size]; // [its tokens, hidden]
        linear::gated_mlp(&inputs, [gate, up, down], kernel(function), &mut outputs);
        for (token, output) in tokens.iter().zip(outputs.chunks_exact(hidden_size)) {
            let weight = weight(*token);
            let to = &mut sum[token * hidden_size..][..hidden_size];
            to.iter_mut().zip(output).for_each(|(to, output)| *to += weight * output);
        }
    }
    host::shaped(sum, (num_tokens, hidden_size))
}
