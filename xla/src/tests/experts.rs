//! Tests of mixtures of experts: the choice of experts on one device, and their results on two.

use std::sync::Arc;

use backend::BLOCK_SIZE;
use proptest::prelude::*;

use super::collectives::{check_with, rows_of_one_token};
use super::*;

/// The sizes of a layer of experts. Each token chooses two experts if there are two.
#[derive(Debug, Clone, Copy)]
struct Layer {
    num_experts: usize,
    hidden_size: usize,
    intermediate_size: usize,
    rounding: Option<Rounding>,
    /// True if the experts have biases and clamped gates.
    has_biases: bool,
    weighted: Weighted,
}

impl Layer {
    /// Returns the graph of a rank, and the matrices of the experts.
    fn graph(self, num_ranks: usize) -> (Arc<Graph>, Vec<WeightSpec>) {
        let Self { num_experts, hidden_size, intermediate_size, rounding, has_biases, weighted } = self;
        let num_chosen = num_experts.min(2);
        let spec = |name: &str, shape: [usize; 3]| WeightSpec {
            partition: Partition::Column,
            num_ranks,
            rounding,
            ..weight(name, &shape, FloatType::F32)
        };
        let mut specs = vec![
            spec("gate", [num_experts, intermediate_size, hidden_size]),
            spec("up", [num_experts, intermediate_size, hidden_size]),
            spec("down", [num_experts, hidden_size, intermediate_size]),
        ];
        let bias = |name: &str, len: usize| WeightSpec {
            partition: Partition::Column,
            num_ranks,
            ..weight(name, &[num_experts, len], FloatType::F32)
        };
        if has_biases {
            let biases = [("gate", intermediate_size), ("up", intermediate_size), ("down", hidden_size)];
            specs.extend(biases.map(|(name, len)| bias(&format!("{name}_bias"), len)));
        }
        let mut graph = Graph::default();
        let (x, scores) = (tokens(&mut graph, 0, &[hidden_size]), tokens(&mut graph, 1, &[num_experts]));
        let mixture = graph.route(scores, None, RouterSpec::softmax(num_chosen, true)).unwrap();
        let matrices = [0, 1, 2].map(|index: usize| graph.weight(&specs[index]));
        let biases = has_biases.then(|| [3, 4, 5].map(|index: usize| graph.weight(&specs[index])));
        let activation = match (rounding, has_biases) {
            (Some(_), _) => Activation::Relu,
            (None, true) => Activation::QuickGelu,
            (None, false) => Activation::Silu,
        };
        let clamp = has_biases.then_some(Clamp { limit: 1.5, offset: 1.0 });
        let gating = Gating { activation, clamp };
        let spec = ExpertsSpec { num_chosen, gating, weighted };
        let part = graph.experts([x, mixture], matrices, biases, spec).unwrap();
        let sum = if num_ranks == 1 { part } else { graph.all_reduce(part).unwrap() };
        (graph.finish(&[sum]), specs)
    }

    /// Returns x and the scores of the experts.
    ///
    /// Quantized experts quantize what they compute in between, and there the smallest difference can make another
    /// integer. Therefore all that they compute before is exact: the scales of x and of the weights are powers of two,
    /// and the two chosen experts have the same score.
    fn arguments(self, num_rows: usize, numbers: &mut Numbers) -> [Array; 2] {
        let Self { num_experts, hidden_size, rounding, .. } = self;
        let [x, scores] = if rounding.is_none() {
            [numbers.short_floats(num_rows * hidden_size), numbers.floats(num_rows * num_experts, 4.0)]
        } else {
            let x = numbers.rows_of_largest(largest(Rounding::Int8), num_rows, hidden_size);
            [x, (0..num_rows).flat_map(|_| numbers.equal_scores(num_experts)).collect()]
        };
        [floats(&[num_rows, hidden_size], x), floats(&[num_rows, num_experts], scores)]
    }

    /// Returns the values of a weight.
    fn weights(self, spec: &WeightSpec, numbers: &mut Numbers) -> Vec<f32> {
        match (spec.rounding, &spec.shape[..]) {
            (Some(rounding), [num_experts, num_outputs, num_inputs]) => {
                numbers.rows_of_largest(largest(rounding), num_experts * num_outputs, *num_inputs)
            }
            (_, shape) => numbers.short_floats(shape.iter().product()),
        }
    }

    fn tolerance(self) -> Tolerance {
        // The last sums are of products: a weight up to 2, times two of the first sums, which are up to 4 for each
        // input.
        let size = (self.hidden_size * self.hidden_size * self.intermediate_size) as f32;
        Tolerance::Close { relative: 1e-5, absolute: 2e-5 * size }
    }
}

/// Returns the largest magnitude of a row whose scale is 2⁻⁶.
fn largest(rounding: Rounding) -> f32 {
    match rounding {
        Rounding::Int8 => 127.0 / 64.0,
        Rounding::Int4 => 120.0 / 64.0,
        Rounding::Fp8 => panic!("the CPU backend has no weights of fp8"),
    }
}

fn weighted() -> impl Strategy<Value = Weighted> {
    prop::sample::select(vec![Weighted::Output, Weighted::Input])
}

/// Returns a strategy for numbers of experts and choices among them.
fn choices() -> impl Strategy<Value = (usize, RouterSpec)> {
    let sizes = [1..5usize, 1..6usize];
    let shares = prop::array::uniform3(0.0..1.0_f64);
    let scoring = prop::sample::select(vec![Scoring::Softmax, Scoring::Sigmoid]);
    let least_sum = prop::option::of(prop::sample::select(vec![1e-20_f32, 0.7]));
    (sizes, shares, scoring, least_sum, any::<bool>()).prop_map(
        |([num, size], shares, scoring, least_sum, has_groups)| {
            let part = |share: f64, whole: usize| 1 + (share * whole as f64) as usize;
            let groups = ExpertGroups { num, num_chosen: part(shares[0], num), num_summed: part(shares[1], size) };
            let num_eligible = if has_groups { groups.num_chosen * size } else { num * size };
            let groups = has_groups.then_some(groups);
            (num * size, RouterSpec { num_chosen: part(shares[2], num_eligible), scoring, groups, least_sum })
        },
    )
}

proptest! {
    #![proptest_config(cases(10))]

    #[test]
    fn routes(
        num_rows in 1..8usize,
        (num_experts, spec) in choices(),
        [has_equals, has_biases] in any::<[bool; 2]>(),
        seed in any::<u64>(),
    ) {
        let mut graph = Graph::default();
        let scores = tokens(&mut graph, 0, &[num_experts]);
        let of_choice = weight("biases", &[1, num_experts], FloatType::F32);
        let biases = has_biases.then(|| graph.weight(&of_choice));
        let mixture = graph.route(scores, biases, spec).unwrap();
        let graph = graph.finish(&[mixture]);
        let mut numbers = Numbers::new(seed);
        let len = num_rows * num_experts;
        let scores = if has_equals {
            (0..len).map(|_| numbers.one_of(&[0.0, 1.0, -2.0])).collect()
        } else {
            numbers.floats(len, 8.0)
        };
        // A weight is the quotient of an exponential and a sum in another order. Weights of 0 are exact.
        let tolerance = Tolerance::Close { relative: 3e-6, absolute: 0.0 };
        let mut case = Case::plain(graph, num_rows, vec![floats(&[num_rows, num_experts], scores)]);
        if has_biases {
            case.weights = vec![(of_choice, numbers.floats(num_experts, 1.0))];
        }
        case.check(&[tolerance]);
    }
}

proptest! {
    #![proptest_config(cases(5))]

    /// With many tokens and few experts, an expert needs several tiles.
    #[test]
    fn experts_of_two_devices(
        num_rows in prop_oneof![1..6usize, 20..60usize],
        num_experts in 2..24usize,
        [hidden_size, intermediate_size] in prop::array::uniform2(1..20usize),
        rounding in prop::option::of(any_rounding()),
        has_biases in any::<bool>(),
        weighted in weighted(),
        seed in any::<u64>(),
    ) {
        let layer = Layer { num_experts, hidden_size, intermediate_size, rounding, has_biases, weighted };
        let build = |num_ranks: usize| layer.graph(num_ranks);
        let mut numbers = Numbers::new(seed);
        let arguments = layer.arguments(num_rows, &mut numbers);
        let batch = || rows_of_one_token(num_rows, &vec![0; num_rows]);
        let weights = &mut |spec: &WeightSpec| layer.weights(spec, &mut numbers);
        check_with(&build, (batch, [num_rows + 1, 1]), &arguments, weights, &[layer.tolerance()]);
    }

    /// In programs with a fixed length of context, the loop also runs for tiles without choices.
    #[test]
    fn tiles_without_choices_change_nothing(
        num_rows in prop_oneof![1..6usize, 20..60usize],
        num_experts in 1..24usize,
        has_biases in any::<bool>(),
        weighted in weighted(),
        seed in any::<u64>(),
    ) {
        let layer = Layer { num_experts, hidden_size: 6, intermediate_size: 4, rounding: None, has_biases, weighted };
        let (graph, specs) = layer.graph(1);
        let mut numbers = Numbers::new(seed);
        let mut case = Case::plain(graph, num_rows, layer.arguments(num_rows, &mut numbers).into());
        case.sizes.context = Some(BLOCK_SIZE);
        let values = |spec: WeightSpec| {
            let values = numbers.short_floats(spec.shape.iter().product());
            (spec, values)
        };
        case.weights = specs.into_iter().map(values).collect();
        case.check(&[layer.tolerance()]);
    }
}
