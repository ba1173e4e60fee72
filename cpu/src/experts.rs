//! Mixtures of experts on the CPU: each expert computes only the tokens that chose it.
//!
//! Entry points: [`route`], [`experts`]. Several experts are computed at the same time, because the matrices of one are
//! too small to keep many threads busy. A token's result is the sum over its experts in ascending order, so the result
//! does not depend on the other tokens.

use candle_core::Tensor;
use kernels::linear::{Layer, PackedWeight};
use kernels::{activation, linear, softmax};
use model::graph::{Activation, Clamp, ExpertGroups, ExpertsSpec, Gating, RouterSpec, Scoring, Weighted};
use rayon::prelude::*;

use super::host::{self, View};
use super::model_ops::kernel;

type Result<T> = candle_core::Result<T>;

/// The maximum number of experts that are computed at the same time. It limits the memory of their outputs.
const MAX_TOGETHER: usize = 8;

/// The networks of this rank's experts.
pub(super) struct Networks<'a> {
    /// Gate, up and down of each expert.
    matrices: [&'a [PackedWeight]; 3],
    /// The biases of gate, up and down, each `[experts here, outputs]`.
    biases: Option<[View<'a>; 3]>,
    spec: ExpertsSpec,
}

impl<'a> Networks<'a> {
    pub(super) fn new(
        matrices: [&'a [PackedWeight]; 3],
        biases: Option<[&'a Tensor; 3]>,
        spec: ExpertsSpec,
    ) -> Result<Self> {
        let biases = match biases {
            Some([gate, up, down]) => Some([View::new(gate)?, View::new(up)?, View::new(down)?]),
            None => None,
        };
        Ok(Self { matrices, biases, spec })
    }

    /// The number of experts, padding included.
    fn num(&self) -> usize {
        self.matrices[0].len()
    }

    /// Applies the expert `index` of this rank to x `[n, hidden]`, and writes the result to y `[n, hidden]`.
    fn apply(&self, index: usize, x: &[f32], y: &mut [f32]) {
        let Gating { activation, clamp } = self.spec.gating;
        let [gate, up, down] = self.matrices.map(|matrices| &matrices[index]);
        if self.biases.is_none() && clamp.is_none() {
            linear::gated_mlp(x, [gate, up, down], kernel(activation), y);
            return;
        }
        let biases = self.biases.as_ref().map(|biases| {
            let of_expert = |place: usize, len: usize| &biases[place].f32()[index * len..][..len];
            [of_expert(0, gate.num_outputs()), of_expert(1, up.num_outputs()), of_expert(2, down.num_outputs())]
        });
        let bias = |place: usize| biases.map(|biases| biases[place]);
        let len = x.len() / gate.num_inputs() * gate.num_outputs();
        let [mut opened, mut raised, mut gated] = [(); 3].map(|()| vec![0.0; len]); // [n, intermediate]
        let layers = [(gate, &mut opened), (up, &mut raised)].into_iter().enumerate();
        let layers = layers.map(|(place, (weight, y))| Layer { weight, bias: bias(place), y });
        linear::linear_each(x, layers.collect());
        if let Some(Clamp { limit, offset }) = clamp {
            activation::clamp([limit, offset], &mut opened, &mut raised);
        }
        activation::gated(kernel(activation), &opened, &raised, &mut gated);
        linear::linear(&gated, down, bias(2), y);
    }
}

/// Scores `[tokens, experts]` and maybe a bias for each expert → weights `[tokens, experts]`, as [`Op::Route`] says.
///
/// [`Op::Route`]: model::graph::Op::Route
pub(super) fn route(scores: &Tensor, biases: Option<&Tensor>, spec: RouterSpec) -> Result<Tensor> {
    let (_, num_experts) = scores.dims2()?;
    let mut weights = View::new(scores)?.f32().to_vec(); // [tokens, experts]
    let biases = biases.map(View::new).transpose()?;
    for weights in weights.chunks_exact_mut(num_experts) {
        let scores = weights.to_vec(); // [experts]
        match spec.scoring {
            Scoring::Softmax => softmax::softmax(weights),
            Scoring::Sigmoid => activation::activate(kernel(Activation::Sigmoid), &scores, weights),
        }
        let compares_scores = spec.scoring == Scoring::Sigmoid && biases.is_none() && spec.groups.is_none();
        let mut compared = if compares_scores { scores } else { weights.to_vec() }; // [experts]
        for (compared, bias) in compared.iter_mut().zip(biases.iter().flat_map(View::f32)) {
            *compared += bias;
        }
        if let Some(groups) = spec.groups {
            leave_groups(&mut compared, groups);
        }
        let order = descending(&compared);
        let (chosen, others) = order.split_at(spec.num_chosen);
        others.iter().for_each(|expert| weights[*expert] = 0.0);
        if let Some(least) = spec.least_sum {
            let sum = chosen.iter().map(|expert| weights[*expert]).sum::<f32>().max(least);
            chosen.iter().for_each(|expert| weights[*expert] /= sum);
        }
    }
    host::shaped(weights, scores.shape())
}

/// Replaces the weights `[experts]` of experts outside of the chosen groups by minus infinity.
fn leave_groups(weights: &mut [f32], groups: ExpertGroups) {
    let ExpertGroups { num, num_chosen, num_summed } = groups;
    let size = weights.len() / num;
    let value = |group: &[f32]| descending(group)[..num_summed].iter().map(|expert| group[*expert]).sum::<f32>();
    let values: Vec<f32> = weights.chunks_exact(size).map(value).collect(); // [groups]
    for group in &descending(&values)[num_chosen..] {
        weights[group * size..][..size].fill(f32::NEG_INFINITY);
    }
}

/// Returns the indices of x, those of the largest elements first. Among equals, the lowest index comes first.
fn descending(x: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|a, b| x[*b].total_cmp(&x[*a]));
    order
}

/// x `[tokens, hidden]`, weights `[tokens, experts]`, and the networks of this rank's experts → `[tokens, hidden]`.
pub(super) fn experts([x, mixture]: [&Tensor; 2], networks: &Networks<'_>, rank: usize) -> Result<Tensor> {
    let (num_tokens, hidden_size) = x.dims2()?;
    let (_, num_experts) = mixture.dims2()?;
    let (x, mixture) = (View::new(x)?, View::new(mixture)?);
    let (x, mixture) = (x.f32(), mixture.f32());
    let first = rank * networks.num();
    let here = first..num_experts.min(first + networks.num());
    let tokens_of = |expert| {
        let tokens = (0..num_tokens).map(|token| (token, mixture[token * num_experts + expert]));
        tokens.filter(|(_, weight)| *weight != 0.0).collect()
    };
    let chosen = here.map(|expert| Chosen { local: expert - first, tokens: tokens_of(expert) });
    let chosen: Vec<Chosen> = chosen.filter(|chosen| !chosen.tokens.is_empty()).collect();
    let mut sum = vec![0.0; num_tokens * hidden_size]; // [tokens, hidden]
    for together in chosen.chunks(MAX_TOGETHER) {
        let outputs = together.par_iter().with_max_len(1).map(|chosen| chosen.apply(networks, x, hidden_size));
        let outputs: Vec<Vec<f32>> = outputs.collect(); // [experts][its tokens, hidden]
        for (chosen, outputs) in together.iter().zip(&outputs) {
            chosen.add(networks.spec.weighted, outputs, &mut sum, hidden_size);
        }
    }
    host::shaped(sum, (num_tokens, hidden_size))
}

/// An expert that tokens chose.
struct Chosen {
    /// The index of the expert among those of this rank.
    local: usize,
    /// The tokens, with their weights.
    tokens: Vec<(usize, f32)>,
}

impl Chosen {
    /// Applies the expert to its tokens of x `[tokens, hidden]`. Returns `[its tokens, hidden]`.
    fn apply(&self, networks: &Networks<'_>, x: &[f32], hidden_size: usize) -> Vec<f32> {
        let mut inputs = Vec::with_capacity(self.tokens.len() * hidden_size); // [its tokens, hidden]
        for (token, weight) in &self.tokens {
            let factor = if networks.spec.weighted == Weighted::Input { *weight } else { 1.0 };
            inputs.extend(x[token * hidden_size..][..hidden_size].iter().map(|x| factor * x));
        }
        let mut outputs = vec![0.0; inputs.len()];
        networks.apply(self.local, &inputs, &mut outputs);
        outputs
    }

    /// Adds the outputs `[its tokens, hidden]` to their tokens in `sum` `[tokens, hidden]`.
    fn add(&self, weighted: Weighted, outputs: &[f32], sum: &mut [f32], hidden_size: usize) {
        for ((token, weight), output) in self.tokens.iter().zip(outputs.chunks_exact(hidden_size)) {
            let factor = if weighted == Weighted::Input { 1.0 } else { *weight };
            let to = &mut sum[token * hidden_size..][..hidden_size];
            to.iter_mut().zip(output).for_each(|(to, output)| *to += factor * output);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sigmoids_are_told_apart_by_their_scores() {
        let scores = host::shaped(vec![18.0_f32, 30.0, 20.0, -1.0], (1, 4)).unwrap();
        let spec = RouterSpec { num_chosen: 2, scoring: Scoring::Sigmoid, groups: None, least_sum: None };
        let weights = route(&scores, None, spec).unwrap();
        assert_eq!(View::new(&weights).unwrap().f32(), [0.0, 1.0, 1.0, 0.0]);
    }
}
