//! Mixtures of experts on the CPU: each expert computes only the tokens that chose it.
//!
//! Entry points: [`route`], [`experts`]. A token's result is the sum over its experts in ascending order, so the result
//! does not depend on the other tokens.

use candle_core::Tensor;
use kernels::linear::{Layer, PackedWeight};
use kernels::{activation, linear, softmax};
use model::graph::{Activation, Clamp, ExpertGroups, ExpertsSpec, Gating, RouterSpec, Scoring, Weighted};

use super::host::{self, View};
use super::model_ops::kernel;

type Result<T> = candle_core::Result<T>;

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
    let weighs_input = networks.spec.weighted == Weighted::Input;
    let mut sum = vec![0.0; num_tokens * hidden_size]; // [tokens, hidden]
    for local in 0..networks.num() {
        let expert = rank * networks.num() + local;
        if expert >= num_experts {
            break;
        }
        let weight = |token: usize| mixture.f32()[token * num_experts + expert];
        let tokens: Vec<usize> = (0..num_tokens).filter(|token| weight(*token) != 0.0).collect();
        if tokens.is_empty() {
            continue;
        }
        let of_input = |token: usize| if weighs_input { weight(token) } else { 1.0 };
        let of_output = |token: usize| if weighs_input { 1.0 } else { weight(token) };
        let input = |token: &usize| {
            let factor = of_input(*token);
            x.f32()[token * hidden_size..][..hidden_size].iter().map(move |x| factor * x)
        };
        let inputs: Vec<f32> = tokens.iter().flat_map(input).collect(); // [its tokens, hidden]
        let mut outputs = vec![0.0; tokens.len() * hidden_size]; // [its tokens, hidden]
        networks.apply(local, &inputs, &mut outputs);
        for (token, output) in tokens.iter().zip(outputs.chunks_exact(hidden_size)) {
            let factor = of_output(*token);
            let to = &mut sum[token * hidden_size..][..hidden_size];
            to.iter_mut().zip(output).for_each(|(to, output)| *to += factor * output);
        }
    }
    host::shaped(sum, (num_tokens, hidden_size))
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
