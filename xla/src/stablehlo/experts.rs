//! Mixtures of experts as StableHLO.
//!
//! Entry points: [`route`], [`experts`]. Programs have fixed sizes, and the chosen experts are known only on the
//! device. So a program sorts the choices of all tokens by expert and divides those of each expert into tiles of a
//! fixed size. Each iteration of a loop takes one tile: it gathers the tokens of the tile, applies the expert to them,
//! and adds the results to the tokens' sums. Experts that no token chose have no tile, so nobody reads their matrices.

use model::graph::{Activation, Clamp, DType, ExpertGroups, ExpertsSpec, Gating, RouterSpec, Scoring, Weighted};

use super::emitter::{Combine, Emitter, Reduction};
use super::expert_plan::ExpertPlan;
use super::tensor::{Tensor, Type};
use super::{Sizes, activation, model_ops};

/// Returns the weights of experts for scores `[tokens, experts]` and maybe biases, one for each expert, in the shape of
/// the scores, as [`Op::Route`] says.
///
/// [`Op::Route`]: model::graph::Op::Route
pub(super) fn route(emitter: &mut Emitter, scores: &Tensor, biases: Option<&Tensor>, spec: RouterSpec) -> Tensor {
    let weights = match spec.scoring {
        Scoring::Softmax => softmax(emitter, scores), // [tokens, experts]
        Scoring::Sigmoid => activation::activate(emitter, Activation::Sigmoid, scores), // [tokens, experts]
    };
    let compares_scores = spec.scoring == Scoring::Sigmoid && biases.is_none() && spec.groups.is_none();
    let mut compared = if compares_scores { scores.clone() } else { weights.clone() }; // [tokens, experts]
    if let Some(biases) = biases {
        let biases = emitter.convert(biases, DType::F32); // one for each expert
        let biases = emitter.reshape(&biases, &scores.dims()[1..]); // [experts]
        let biases = emitter.broadcast(&biases, &[1], scores.dims()); // [tokens, experts]
        compared = emitter.elementwise("add", &[&weights, &biases]); // [tokens, experts]
    }
    if let Some(groups) = spec.groups {
        compared = in_groups(emitter, &compared, groups); // [tokens, experts]
    }
    let [_, experts] = largest_columns(emitter, &compared, spec.num_chosen); // [tokens, chosen]
    let kept = kept_columns(emitter, &weights, &experts, 0.0); // [tokens, experts]
    let Some(least) = spec.least_sum else { return kept };
    let sum = emitter.reduce(Reduction::Sum, &kept, &[1]); // [tokens]
    let least = emitter.splat(f64::from(least), sum.ty.clone()); // [tokens]
    let sum = emitter.elementwise("maximum", &[&sum, &least]); // [tokens]
    let sum = emitter.broadcast(&sum, &[0], kept.dims()); // [tokens, experts]
    emitter.elementwise("divide", &[&kept, &sum]) // [tokens, experts]
}

/// Returns the softmax of each row of x `[rows, n]`.
fn softmax(emitter: &mut Emitter, x: &Tensor) -> Tensor {
    let largest = emitter.reduce(Reduction::Max, x, &[1]); // [rows]
    let largest = emitter.broadcast(&largest, &[0], x.dims()); // [rows, n]
    let shifted = emitter.elementwise("subtract", &[x, &largest]); // [rows, n]
    let exponentials = emitter.elementwise("exponential", &[&shifted]); // [rows, n]
    let sum = emitter.reduce(Reduction::Sum, &exponentials, &[1]); // [rows]
    let sum = emitter.broadcast(&sum, &[0], x.dims()); // [rows, n]
    emitter.elementwise("divide", &[&exponentials, &sum]) // [rows, n]
}

/// Returns the weights `[tokens, experts]` of the experts in the chosen groups, and minus infinity for the others.
fn in_groups(emitter: &mut Emitter, weights: &Tensor, groups: ExpertGroups) -> Tensor {
    let [num_tokens, num_experts] = [0, 1].map(|dim: usize| weights.dims()[dim]);
    let ExpertGroups { num, num_chosen, num_summed } = groups;
    let size = num_experts / num;
    let rows = emitter.reshape(weights, &[num_tokens * num, size]); // [tokens * groups, size]
    let [best, _] = largest_columns(emitter, &rows, num_summed); // [tokens * groups, summed]
    let values = emitter.reduce(Reduction::Sum, &best, &[1]); // [tokens * groups]
    let values = emitter.reshape(&values, &[num_tokens, num]); // [tokens, groups]
    let [_, chosen] = largest_columns(emitter, &values, num_chosen); // [tokens, chosen groups]
    let zeros = emitter.splat(0.0, values.ty.clone()); // [tokens, groups]
    let added = kept_columns(emitter, &zeros, &chosen, f64::NEG_INFINITY); // [tokens, groups]
    let added = emitter.broadcast(&added, &[0, 1], &[num_tokens, num, size]); // [tokens, groups, size]
    let added = emitter.reshape(&added, weights.dims()); // [tokens, experts]
    emitter.elementwise("add", &[weights, &added]) // [tokens, experts]
}

/// Returns x `[rows, n]` with each element outside the row's `columns` `[rows, kept]`, i32, replaced by `other`.
fn kept_columns(emitter: &mut Emitter, x: &Tensor, columns: &Tensor, other: f64) -> Tensor {
    let column = emitter.iota(1, Type::new(x.dims(), DType::I32)); // [rows, n]
    let mut kept = emitter.splat(other, x.ty.clone()); // [rows, n]
    for index in 0..columns.dims()[1] {
        let one = emitter.slice(columns, 1, index..index + 1); // [rows, 1]
        let one = emitter.broadcast(&one, &[0, 1], x.dims()); // [rows, n]
        let is_it = emitter.compare("EQ", &column, &one); // [rows, n]
        kept = emitter.select(&is_it, x, &kept); // [rows, n]
    }
    kept
}

/// Returns the `num` largest elements of each row of x `[rows, n]`, descending, and their columns, i32; both
/// `[rows, num]`. Among equals, the lowest column comes first.
fn largest_columns(emitter: &mut Emitter, x: &Tensor, num: usize) -> [Tensor; 2] {
    let columns = emitter.iota(1, Type::new(x.dims(), DType::I32)); // [rows, n]
    let sorted = emitter.sort_pairs(("GT", 1), [x, &columns]); // [rows, n]
    sorted.map(|x| emitter.slice(&x, 1, 0..num)) // [rows, num]
}

/// Computes the summand that the experts on device `rank` contribute to the result, which is the sum over all devices.
/// `operands` are those of `Op::Experts`: x, the weights of the experts, the gate, up and down matrices, and their
/// biases if there are any.
pub(super) fn experts(
    emitter: &mut Emitter,
    operands: &[Tensor],
    spec: ExpertsSpec,
    (rank, sizes): (&Tensor, &Sizes),
) -> Tensor {
    let [x, mixture] = [&operands[0], &operands[1]];
    let experts = Networks { matrices: [2, 3, 4].map(|index: usize| &operands[index]), biases: &operands[5..], spec };
    let plan = ExpertPlan::new(x.dims()[0], mixture.dims()[1], experts.num(), spec.num_chosen);
    let choices = Choices::of(emitter, mixture, plan, rank);
    let tiles = choices.tiles(emitter, plan);
    // A GPU's runtime asks the device after each iteration of a loop whose number of iterations it does not know.
    let num_tiles = match sizes.context {
        Some(_) => emitter.scalar(plan.max_tiles() as f64, DType::I32), // []
        None => tiles.num.clone(),                                      // []
    };
    let [zero, one] = [0.0, 1.0].map(|number| emitter.scalar(number, DType::I32)); // []
    let sum = emitter.splat(0.0, x.ty.clone()); // [tokens, hidden]
    let mut done = emitter.repeat(
        &[num_tiles, sum],
        |emitter, values| emitter.compare("GT", &values[0], &zero),
        |emitter, values| {
            let [num_left, sum] = [&values[0], &values[1]];
            let index = emitter.elementwise("subtract", &[num_left, &one]); // []
            let Tile { expert, tokens, weights } = choices.tile(emitter, &tiles, &index, plan);
            let rows = emitter.gather_rows(x, &tokens); // [tile, hidden]
            let weights = emitter.broadcast(&weights, &[0], rows.dims()); // [tile, hidden]
            let made = match spec.weighted {
                Weighted::Output => {
                    let made = experts.apply(emitter, &rows, &expert); // [tile, hidden]
                    emitter.elementwise("multiply", &[&made, &weights]) // [tile, hidden]
                }
                Weighted::Input => {
                    let rows = emitter.elementwise("multiply", &[&rows, &weights]); // [tile, hidden]
                    experts.apply(emitter, &rows, &expert) // [tile, hidden]
                }
            };
            vec![index, emitter.scatter_rows(sum, &tokens, &made, Combine::Add)]
        },
    );
    done.remove(1) // [tokens, hidden]
}

/// The networks of this device's experts. The first dimension of each stack is that of the experts.
struct Networks<'a> {
    /// Gate, up and down.
    matrices: [&'a Tensor; 3],
    /// The biases of gate, up and down; empty if there are none.
    biases: &'a [Tensor],
    spec: ExpertsSpec,
}

impl Networks<'_> {
    fn num(&self) -> usize {
        self.matrices[0].dims()[0]
    }

    /// Applies the expert with this `index` `[]` on the device to x `[n, hidden]`.
    fn apply(&self, emitter: &mut Emitter, x: &Tensor, index: &Tensor) -> Tensor {
        let zero = emitter.scalar(0.0, DType::I32); // []
        let mut own = |stack: &Tensor| {
            let mut start = vec![&zero; stack.dims().len()];
            start[0] = index;
            let own = &stack.dims()[1..];
            let one = emitter.dynamic_slice(stack, &start, &[&[1], own].concat()); // [1, ..]
            emitter.reshape(&one, own) // [..]
        };
        let [gate, up, down] = self.matrices.map(|stack| {
            let arrays = [Some(stack), stack.scale.as_deref(), stack.factors.as_deref()];
            Tensor::weight(arrays.into_iter().flatten().map(&mut own))
        });
        let biases: Vec<Tensor> = self.biases.iter().map(own).collect(); // [outputs]
        let opened = model_ops::linear(emitter, x, &gate, biases.first()); // [n, intermediate]
        let raised = model_ops::linear(emitter, x, &up, biases.get(1)); // [n, intermediate]
        let gated = gated(emitter, self.spec.gating, opened, raised); // [n, intermediate]
        model_ops::linear(emitter, &gated, &down, biases.get(2)) // [n, hidden]
    }
}

/// Returns the product of gate and up that `gating` describes; all are `[n, intermediate]`.
fn gated(emitter: &mut Emitter, gating: Gating, mut gate: Tensor, mut up: Tensor) -> Tensor {
    if let Some(Clamp { limit, offset }) = gating.clamp {
        // All of these are [n, intermediate].
        let [highest, lowest, offset] = [limit, -limit, offset].map(|x| emitter.splat(f64::from(x), up.ty.clone()));
        gate = emitter.elementwise("minimum", &[&gate, &highest]); // [n, intermediate]
        up = emitter.elementwise("clamp", &[&lowest, &up, &highest]); // [n, intermediate]
        up = emitter.elementwise("add", &[&up, &offset]); // [n, intermediate]
    }
    let opened = activation::activate(emitter, gating.activation, &gate); // [n, intermediate]
    emitter.elementwise("multiply", &[&opened, &up]) // [n, intermediate]
}

/// The choices of all tokens, sorted by expert. Those of other devices' experts come last. A choice is the token's
/// index times the number of experts that a token chooses, plus the index among the token's choices.
struct Choices {
    /// `[2, choices + tile]` i32: the expert's index on this device times the number of choices, plus the choice; and
    /// the bits of the expert's weight. Behind them is room for the end of the last tile.
    keys_and_weights: Tensor,
    /// The number of choices of each of this device's experts, `[experts here]` i32.
    counts: Tensor,
}

/// The tiles of all experts of this device.
struct Tiles {
    /// The number of tiles, `[]` i32.
    num: Tensor,
    /// For each tile the position of its first choice, times the number of experts here, plus its expert: one number,
    /// because an iteration then reads one. `[max tiles]` i32
    starts_and_experts: Tensor,
}

/// One tile: an expert and the tokens that chose it.
struct Tile {
    /// `[]` i32
    expert: Tensor,
    /// `[tile]` i32. Behind the last token, the number of tokens, which is the index of none.
    tokens: Tensor,
    /// `[tile]`
    weights: Tensor,
}

impl Choices {
    /// Returns the choices for the weights `mixture` `[tokens, experts]`.
    fn of(emitter: &mut Emitter, mixture: &Tensor, plan: ExpertPlan, rank: &Tensor) -> Self {
        let ExpertPlan { num_here, num_chosen, tile, .. } = plan;
        let num_choices = plan.num_choices();
        let [weights, experts] =
            largest_columns(emitter, mixture, num_chosen).map(|columns| emitter.reshape(&columns, &[num_choices])); // [choices]
        let local = local_experts(emitter, &experts, num_here, rank); // [choices]
        let each = [num_choices, num_here];
        let of_choice = emitter.broadcast(&local, &[0], &each); // [choices, experts here]
        let expert = emitter.iota(1, of_choice.ty.clone()); // [choices, experts here]
        let is_it = emitter.compare("EQ", &of_choice, &expert); // [choices, experts here]
        let is_it = emitter.convert(&is_it, DType::I32); // [choices, experts here]
        let counts = emitter.reduce(Reduction::Sum, &is_it, &[0]); // [experts here]

        let index = emitter.iota(0, local.ty.clone()); // [choices]
        let factor = emitter.splat(num_choices as f64, local.ty.clone()); // [choices]
        let keys = emitter.elementwise("multiply", &[&local, &factor]); // [choices]
        let keys = emitter.elementwise("add", &[&keys, &index]); // [choices]
        let weights = emitter.bitcast(&weights, DType::I32); // [choices]
        let sorted = emitter.sort_pairs(("LT", 0), [&keys, &weights]); // [choices]
        // Padding has an expert of another device.
        let padding = [num_here * num_choices, 0];
        let rows = [0, 1].map(|row: usize| {
            let padding = emitter.scalar(padding[row] as f64, DType::I32); // []
            let padded = emitter.pad_last(&sorted[row], &padding, num_choices + tile); // [choices + tile]
            emitter.reshape(&padded, &[1, num_choices + tile]) // [1, choices + tile]
        });
        let keys_and_weights = emitter.concatenate(&[&rows[0], &rows[1]], 0); // [2, choices + tile]
        Self { keys_and_weights, counts }
    }

    /// Divides the choices of each expert into tiles.
    fn tiles(&self, emitter: &mut Emitter, plan: ExpertPlan) -> Tiles {
        let ty = self.counts.ty.clone();
        let size = emitter.splat(plan.tile as f64, ty.clone()); // [experts here]
        let almost = emitter.splat((plan.tile - 1) as f64, ty); // [experts here]
        let tiles = emitter.elementwise("add", &[&self.counts, &almost]); // [experts here]
        let tiles = emitter.elementwise("divide", &[&tiles, &size]); // [experts here]
        let num = emitter.reduce(Reduction::Sum, &tiles, &[0]); // []
        let [end_tile, end] = [&tiles, &self.counts].map(|x| totals(emitter, x)); // [experts here]
        // If all tiles of an expert had the same distance, tile 0 of all experts would begin at this position.
        let first = emitter.elementwise("subtract", &[&end, &self.counts]); // [experts here]
        let first_tile = emitter.elementwise("subtract", &[&end_tile, &tiles]); // [experts here]
        let before = emitter.elementwise("multiply", &[&first_tile, &size]); // [experts here]
        let origin = emitter.elementwise("subtract", &[&first, &before]); // [experts here]

        // The expert of a tile is the one whose tiles have begun, but have not ended.
        let each = [plan.max_tiles(), plan.num_here];
        let index = emitter.iota(0, Type::new(each, DType::I32)); // [max tiles, experts here]
        let [first_tile, end_tile, origin] =
            [&first_tile, &end_tile, &origin].map(|x| emitter.broadcast(x, &[1], &each)); // [max tiles, experts here]
        let has_begun = emitter.compare("GE", &index, &first_tile); // [max tiles, experts here]
        let has_more = emitter.compare("LT", &index, &end_tile); // [max tiles, experts here]
        let is_it = emitter.elementwise("and", &[&has_begun, &has_more]); // [max tiles, experts here]
        let size = emitter.splat(plan.tile as f64, index.ty.clone()); // [max tiles, experts here]
        let distance = emitter.elementwise("multiply", &[&index, &size]); // [max tiles, experts here]
        let start = emitter.elementwise("add", &[&origin, &distance]); // [max tiles, experts here]
        let num_here = emitter.splat(plan.num_here as f64, index.ty.clone()); // [max tiles, experts here]
        let start = emitter.elementwise("multiply", &[&start, &num_here]); // [max tiles, experts here]
        let expert = emitter.iota(1, index.ty.clone()); // [max tiles, experts here]
        let both = emitter.elementwise("add", &[&start, &expert]); // [max tiles, experts here]
        // Tiles that no expert has begin behind all choices.
        let none = emitter.splat((plan.num_choices() * plan.num_here) as f64, both.ty.clone()); // [max tiles, experts here]
        let both = emitter.select(&is_it, &both, &none); // [max tiles, experts here]
        Tiles { num, starts_and_experts: emitter.reduce(Reduction::Min, &both, &[1]) }
    }

    /// Returns the tile at `index` `[]`.
    fn tile(&self, emitter: &mut Emitter, tiles: &Tiles, index: &Tensor, plan: ExpertPlan) -> Tile {
        let both = emitter.dynamic_slice(&tiles.starts_and_experts, &[index], &[1]); // [1]
        let both = emitter.reshape(&both, &[]); // []
        let num_here = emitter.scalar(plan.num_here as f64, DType::I32); // []
        let start = emitter.elementwise("divide", &[&both, &num_here]); // []
        let expert = emitter.elementwise("remainder", &[&both, &num_here]); // []
        let zero = emitter.scalar(0.0, DType::I32); // []
        let rows = emitter.dynamic_slice(&self.keys_and_weights, &[&zero, &start], &[2, plan.tile]); // [2, tile]
        let [keys, weights] = [0, 1].map(|row| emitter.row(&rows, row)); // [tile]

        let num_choices = emitter.splat(plan.num_choices() as f64, keys.ty.clone()); // [tile]
        let of_key = emitter.elementwise("divide", &[&keys, &num_choices]); // [tile]
        let choice = emitter.elementwise("remainder", &[&keys, &num_choices]); // [tile]
        let per_token = emitter.splat(plan.num_chosen as f64, choice.ty.clone()); // [tile]
        let token = emitter.elementwise("divide", &[&choice, &per_token]); // [tile]
        let own = emitter.broadcast(&expert, &[], of_key.dims()); // [tile]
        let is_of_expert = emitter.compare("EQ", &of_key, &own); // [tile]
        let none = emitter.splat(plan.num_tokens as f64, token.ty.clone()); // [tile]
        let tokens = emitter.select(&is_of_expert, &token, &none); // [tile]
        Tile { expert, tokens, weights: emitter.bitcast(&weights, DType::F32) }
    }
}

/// Returns the index on this device of each of `experts` `[choices]`, or `num_here` for other devices' experts.
fn local_experts(emitter: &mut Emitter, experts: &Tensor, num_here: usize, rank: &Tensor) -> Tensor {
    let rank = emitter.broadcast(rank, &[], experts.dims()); // [choices]
    let end = emitter.splat(num_here as f64, experts.ty.clone()); // [choices]
    let zero = emitter.splat(0.0, experts.ty.clone()); // [choices]
    let first = emitter.elementwise("multiply", &[&rank, &end]); // [choices]
    let local = emitter.elementwise("subtract", &[experts, &first]); // [choices]
    let is_after = emitter.compare("GE", &local, &zero); // [choices]
    let is_before = emitter.compare("LT", &local, &end); // [choices]
    let is_here = emitter.elementwise("and", &[&is_after, &is_before]); // [choices]
    emitter.select(&is_here, &local, &end) // [choices]
}

/// Returns the sum of the elements of x `[n]` up to each element, `[n]`.
fn totals(emitter: &mut Emitter, x: &Tensor) -> Tensor {
    let each = [x.dims()[0]; 2];
    let of_sum = emitter.iota(0, Type::new(each, DType::I32)); // [n, n]
    let of_summand = emitter.iota(1, of_sum.ty.clone()); // [n, n]
    let is_summand = emitter.compare("LE", &of_summand, &of_sum); // [n, n]
    let summands = emitter.broadcast(x, &[1], &each); // [n, n]
    let none = emitter.splat(0.0, summands.ty.clone()); // [n, n]
    let summands = emitter.select(&is_summand, &summands, &none); // [n, n]
    emitter.reduce(Reduction::Sum, &summands, &[1]) // [n]
}
