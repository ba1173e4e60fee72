//! Mixtures of experts as StableHLO.
//!
//! Entry points: [`route`], [`experts`]. Programs have fixed sizes, and the chosen experts are known only on the
//! device. If the tokens make fewer choices in total than the device has experts, as when few rows decode, a loop over
//! the choices reads the matrices of one expert per iteration, which is fewer bytes than all experts have. Otherwise a
//! loop over the experts reads each expert once and applies it to all tokens, with weight 0 for the tokens that did not
//! choose it. This needs more arithmetic, but no sorting, no gathered copies of tokens and no limit of tokens per
//! expert.

use model::graph::{DType, ExpertsSpec, RouterSpec};

use super::emitter::{Emitter, Reduction};
use super::tensor::{Tensor, Type};
use super::{activation, model_ops, selection};

/// Returns the weights of experts for scores `[tokens, experts]`, in the same shape: the softmax over all experts for
/// the `num_chosen` largest of each token, and 0 for the others. If `is_normalised`, the weights of a token are divided
/// by their sum.
pub(super) fn route(emitter: &mut Emitter, scores: &Tensor, spec: RouterSpec) -> Tensor {
    let largest = emitter.reduce(Reduction::Max, scores, &[1]); // [tokens]
    let largest = emitter.broadcast(&largest, &[0], scores.dims()); // [tokens, experts]
    let shifted = emitter.elementwise("subtract", &[scores, &largest]); // [tokens, experts]
    let exponentials = emitter.elementwise("exponential", &[&shifted]); // [tokens, experts]
    let mut kept = emitter.splat(0.0, scores.ty.clone()); // [tokens, experts]
    for choice in choices(emitter, &exponentials, spec.num_chosen) {
        kept = emitter.select(&choice.is_it, &exponentials, &kept); // [tokens, experts]
    }
    let summands = if spec.is_normalised { &kept } else { &exponentials };
    let sum = emitter.reduce(Reduction::Sum, summands, &[1]); // [tokens]
    let sum = emitter.broadcast(&sum, &[0], scores.dims()); // [tokens, experts]
    emitter.elementwise("divide", &[&kept, &sum]) // [tokens, experts]
}

/// One chosen expert of each token.
struct Choice {
    /// `[tokens]` i32
    expert: Tensor,
    /// `[tokens, experts]`
    is_it: Tensor,
}

/// Returns the expert with the largest of the weights `[tokens, experts]` for each token, then the expert with the
/// second largest, and so on, `num` in total. The weights must not be negative.
fn choices(emitter: &mut Emitter, weights: &Tensor, num: usize) -> Vec<Choice> {
    let mut left = weights.clone(); // [tokens, experts]
    let none = emitter.splat(-1.0, left.ty.clone()); // [tokens, experts]
    let experts = emitter.iota(1, Type::new(left.dims(), DType::I32)); // [tokens, experts]
    let mut choices = Vec::with_capacity(num);
    for _ in 0..num {
        let expert = selection::arg_max(emitter, &left); // [tokens]
        let repeated = emitter.broadcast(&expert, &[0], experts.dims()); // [tokens, experts]
        let is_it = emitter.compare("EQ", &experts, &repeated); // [tokens, experts]
        left = emitter.select(&is_it, &none, &left); // [tokens, experts]
        choices.push(Choice { expert, is_it });
    }
    choices
}

/// Computes the summand that the experts on device `rank` contribute to the result, which is the sum over all devices.
/// `operands` are those of `Op::Experts`: x, the weights of the experts, and the gate, up and down matrices.
pub(super) fn experts(emitter: &mut Emitter, operands: &[Tensor], spec: ExpertsSpec, rank: &Tensor) -> Tensor {
    let experts = Matrices { matrices: [&operands[2], &operands[3], &operands[4]], spec };
    let [num_tokens, num_here] = [operands[0].dims()[0], operands[2].dims()[0]];
    let here = emitter.scalar(num_here as f64, DType::I32); // []
    let first = emitter.elementwise("multiply", &[rank, &here]); // []
    if num_tokens * spec.num_chosen < num_here {
        each_choice(emitter, [&operands[0], &operands[1]], &experts, &first)
    } else {
        each_expert(emitter, [&operands[0], &operands[1]], &experts, &first)
    }
}

/// The gate, up and down matrices of this device's experts. The first dimension of each stack is that of the experts.
struct Matrices<'a> {
    matrices: [&'a Tensor; 3],
    spec: ExpertsSpec,
}

impl Matrices<'_> {
    fn num(&self) -> usize {
        self.matrices[0].dims()[0]
    }

    /// Applies the expert with this `index` `[]` on the device to x `[n, hidden]`.
    fn apply(&self, emitter: &mut Emitter, x: &Tensor, index: &Tensor) -> Tensor {
        let zero = emitter.scalar(0.0, DType::I32); // []
        let [gate, up, down] = self.matrices.map(|stack| {
            let arrays = [Some(stack), stack.scale.as_deref(), stack.factors.as_deref()];
            Tensor::weight(arrays.into_iter().flatten().map(|stack| {
                let mut start = vec![&zero; stack.dims().len()];
                start[0] = index;
                let own = &stack.dims()[1..];
                let one = emitter.dynamic_slice(stack, &start, &[&[1], own].concat()); // [1, ..]
                emitter.reshape(&one, own) // [..]
            }))
        });
        let opened = model_ops::linear(emitter, x, &gate, None); // [n, intermediate]
        let opened = activation::activate(emitter, self.spec.activation, &opened); // [n, intermediate]
        let raised = model_ops::linear(emitter, x, &up, None); // [n, intermediate]
        let gated = emitter.elementwise("multiply", &[&opened, &raised]); // [n, intermediate]
        model_ops::linear(emitter, &gated, &down, None) // [n, hidden]
    }
}

/// Computes this device's summand with a loop over its experts. `first` `[]` is the index of the first one among the
/// experts of all devices.
fn each_expert(emitter: &mut Emitter, [x, mixture]: [&Tensor; 2], experts: &Matrices<'_>, first: &Tensor) -> Tensor {
    let num_tokens = x.dims()[0];
    let [zero, one] = [0.0, 1.0].map(|number| emitter.scalar(number, DType::I32)); // []
    let end = emitter.scalar(experts.num() as f64, DType::I32); // []
    let sum = emitter.splat(0.0, x.ty.clone()); // [tokens, hidden]
    let mut done = emitter.repeat(
        &[zero.clone(), sum],
        |emitter, values| emitter.compare("LT", &values[0], &end),
        |emitter, values| {
            let [index, sum] = [&values[0], &values[1]];
            // Experts that are padding have no column. They get the last column instead, but their matrices are zeros.
            let column = emitter.elementwise("add", &[first, index]); // []
            let weights = emitter.dynamic_slice(mixture, &[&zero, &column], &[num_tokens, 1]); // [tokens, 1]
            let weights = emitter.reshape(&weights, &[num_tokens]); // [tokens]
            let weights = emitter.broadcast(&weights, &[0], x.dims()); // [tokens, hidden]
            let made = experts.apply(emitter, x, index); // [tokens, hidden]
            let made = emitter.elementwise("multiply", &[&made, &weights]); // [tokens, hidden]
            let sum = emitter.elementwise("add", &[sum, &made]); // [tokens, hidden]
            vec![emitter.elementwise("add", &[index, &one]), sum]
        },
    );
    done.remove(1) // [tokens, hidden]
}

/// Computes this device's summand with a loop over the choices of all tokens. Choices of other devices' experts have
/// weight 0.
fn each_choice(emitter: &mut Emitter, [x, mixture]: [&Tensor; 2], experts: &Matrices<'_>, first: &Tensor) -> Tensor {
    let [num_tokens, hidden_size, num_chosen] = [x.dims()[0], x.dims()[1], experts.spec.num_chosen];
    let (chosen, weights) = chosen_here(emitter, mixture, experts, first); // [tokens * chosen]
    let [zero, one] = [0.0, 1.0].map(|number| emitter.scalar(number, DType::I32)); // []
    let per_token = emitter.scalar(num_chosen as f64, DType::I32); // []
    let end = emitter.scalar((num_tokens * num_chosen) as f64, DType::I32); // []
    let sum = emitter.splat(0.0, x.ty.clone()); // [tokens, hidden]
    let mut done = emitter.repeat(
        &[zero.clone(), sum],
        |emitter, values| emitter.compare("LT", &values[0], &end),
        |emitter, values| {
            let [choice, sum] = [&values[0], &values[1]];
            let token = emitter.elementwise("divide", &[choice, &per_token]); // []
            let row = emitter.dynamic_slice(x, &[&token, &zero], &[1, hidden_size]); // [1, hidden]
            let expert = emitter.dynamic_slice(&chosen, &[choice], &[1]); // [1]
            let expert = emitter.reshape(&expert, &[]); // []
            let weight = emitter.dynamic_slice(&weights, &[choice], &[1]); // [1]
            let weight = emitter.broadcast(&weight, &[0], &[1, hidden_size]); // [1, hidden]
            let made = experts.apply(emitter, &row, &expert); // [1, hidden]
            let made = emitter.elementwise("multiply", &[&made, &weight]); // [1, hidden]
            let before = emitter.dynamic_slice(sum, &[&token, &zero], &[1, hidden_size]); // [1, hidden]
            let made = emitter.elementwise("add", &[&before, &made]); // [1, hidden]
            let sum = emitter.dynamic_update_slice(sum, &made, &[&token, &zero]); // [tokens, hidden]
            vec![emitter.elementwise("add", &[choice, &one]), sum]
        },
    );
    done.remove(1) // [tokens, hidden]
}

/// Returns the chosen experts of each token, as indices on this device, and their weights; both `[tokens * chosen]`.
/// Experts of other devices have index 0 and weight 0.
fn chosen_here(emitter: &mut Emitter, mixture: &Tensor, experts: &Matrices<'_>, first: &Tensor) -> (Tensor, Tensor) {
    let [num_tokens, num_chosen] = [mixture.dims()[0], experts.spec.num_chosen];
    let (mut numbers, mut weights) = (Vec::new(), Vec::new());
    for Choice { expert, .. } in choices(emitter, mixture, num_chosen) {
        let weight = model_ops::gather_columns(emitter, mixture, &expert); // [tokens]
        let first = emitter.broadcast(first, &[], expert.dims()); // [tokens]
        let number = emitter.elementwise("subtract", &[&expert, &first]); // [tokens]
        let zero = emitter.splat(0.0, number.ty.clone()); // [tokens]
        let end = emitter.splat(experts.num() as f64, number.ty.clone()); // [tokens]
        let is_after = emitter.compare("GE", &number, &zero); // [tokens]
        let is_before = emitter.compare("LT", &number, &end); // [tokens]
        let is_here = emitter.elementwise("and", &[&is_after, &is_before]); // [tokens]
        let nothing = emitter.splat(0.0, weight.ty.clone()); // [tokens]
        let weight = emitter.select(&is_here, &weight, &nothing); // [tokens]
        let number = emitter.select(&is_here, &number, &zero); // [tokens]
        numbers.push(emitter.reshape(&number, &[num_tokens, 1])); // [tokens, 1]
        weights.push(emitter.reshape(&weight, &[num_tokens, 1])); // [tokens, 1]
    }
    let [numbers, weights] = [numbers, weights].map(|columns| {
        let joined = emitter.concatenate(&columns.iter().collect::<Vec<_>>(), 1); // [tokens, chosen]
        emitter.reshape(&joined, &[num_tokens * num_chosen]) // [tokens * chosen]
    });
    (numbers, weights)
}
