//! Tests of the operations of models that compute each token on its own.

use std::sync::Arc;

use backend::Batch;
use model::graph::{Pairing, RotarySpec};
use proptest::prelude::*;

use super::case::layout;
use super::collectives::rows_of_one_token;
use super::*;

const FLOATS: [FloatType; 3] = [FloatType::F32, FloatType::Bf16, FloatType::F16];

/// Returns the largest relative error of rounding to the type `dtype`.
fn rounding(dtype: FloatType) -> f32 {
    match dtype {
        FloatType::Bf16 => 1.0 / 256.0,
        FloatType::F16 => 1.0 / 2048.0,
        FloatType::F32 => 0.0,
    }
}

/// Returns Σ |x · w| for each output of a linear layer. Errors of the output are proportional to this sum.
fn magnitudes(x: &[f32], weight: &[f32], size: usize) -> Vec<f32> {
    let magnitude = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| (x * w).abs()).sum();
    x.chunks_exact(size).flat_map(|x| weight.chunks_exact(size).map(move |w| magnitude(x, w))).collect()
}

proptest! {
    #![proptest_config(cases(6))]

    #[test]
    fn linear_layers(
        num_rows in prop_oneof![Just(1..2usize), Just(2..20usize)].prop_flat_map(|range| range),
        [num_inputs, num_outputs] in prop::array::uniform2(1..150usize),
        dtype in prop::sample::select(FLOATS.to_vec()),
        has_bias in any::<bool>(),
        is_short in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut graph = Graph::default();
        let x = tokens(&mut graph, 0, &[num_inputs]);
        let spec = weight("weight", &[num_outputs, num_inputs], dtype);
        let bias_spec = weight("bias", &[num_outputs], dtype);
        let matrix = graph.weight(&spec);
        let bias = has_bias.then(|| graph.weight(&bias_spec));
        let y = graph.linear(x, matrix, bias).unwrap();
        let graph = graph.finish(&[y]);
        let mut numbers = Numbers::new(seed);
        let len = num_rows * num_inputs;
        let x = if is_short { numbers.short_floats(len) } else { numbers.floats(len, 2.0) };
        let matrix = numbers.short_floats(num_outputs * num_inputs);
        // The sums of f32 have another order. The device also rounds x to the weight's type, which does not change
        // short floats.
        let rounding = if is_short { 0.0 } else { rounding(dtype) };
        let limit = |magnitude: f32| magnitude * (rounding + 1e-6) + 1e-6;
        let limits = magnitudes(&x, &matrix, num_inputs).into_iter().map(limit).collect();
        let mut case = Case::plain(graph, num_rows, vec![floats(&[num_rows, num_inputs], x)]);
        case.weights = vec![(spec, matrix)];
        if has_bias {
            case.weights.push((bias_spec, numbers.short_floats(num_outputs)));
        }
        // A program of a single row has another form.
        let case = if num_rows == 1 { case.unpadded() } else { case };
        case.check(&[Tolerance::Each(limits)]);
    }
}

proptest! {
    #![proptest_config(cases(6))]

    /// Each head of x is multiplied by its matrix, and joined with the same head of y.
    #[test]
    fn heads_have_matrices_of_their_own(
        [num_rows, num_heads] in prop::array::uniform2(1..6usize),
        [num_inputs, num_outputs, num_others] in prop::array::uniform3(1..70usize),
        dtype in prop::sample::select(FLOATS.to_vec()),
        seed in any::<u64>(),
    ) {
        let mut graph = Graph::default();
        let [x, y] = [(0, num_inputs), (1, num_others)].map(|(index, dim)| tokens(&mut graph, index, &[num_heads, dim]));
        let spec = weight("weight", &[num_heads, num_outputs, num_inputs], dtype);
        let matrices = graph.weight(&spec);
        let multiplied = graph.head_linear(x, matrices).unwrap();
        let joined = graph.join(multiplied, y).unwrap();
        let graph = graph.finish(&[joined]);
        let mut numbers = Numbers::new(seed);
        let [x, y] = [num_inputs, num_others].map(|dim| {
            floats(&[num_rows, num_heads, dim], numbers.short_floats(num_rows * num_heads * dim))
        });
        let mut case = Case::plain(graph, num_rows, vec![x, y]);
        case.weights = vec![(spec, numbers.short_floats(num_heads * num_outputs * num_inputs))];
        // Sums of short floats are exact in any order.
        case.check(&[Tolerance::Close { relative: 0.0, absolute: 1e-4 }]);
    }
}

proptest! {
    #![proptest_config(cases(6))]

    /// Sums of integers are exact, so the same x and weight give the same products.
    #[test]
    fn linear_layers_of_integers(
        num_rows in prop_oneof![Just(1..2usize), Just(2..20usize)].prop_flat_map(|range| range),
        [num_inputs, num_outputs] in prop::array::uniform2(1..150usize),
        scale in prop::sample::select(vec![1e-32_f32, 1e-3, 1.0, 1e3]),
        (has_bias, rounding) in (any::<bool>(), any_rounding()),
        seed in any::<u64>(),
    ) {
        let mut graph = Graph::default();
        let x = tokens(&mut graph, 0, &[num_inputs]);
        let weight_spec = weight("weight", &[num_outputs, num_inputs], FloatType::F32);
        let spec = WeightSpec { rounding: Some(rounding), ..weight_spec };
        let bias_spec = weight("bias", &[num_outputs], FloatType::F32);
        let matrix = graph.weight(&spec);
        let bias = has_bias.then(|| graph.weight(&bias_spec));
        let y = graph.linear(x, matrix, bias).unwrap();
        let graph = graph.finish(&[y]);
        let mut numbers = Numbers::new(seed);
        let x = numbers.floats(num_rows * num_inputs, scale);
        let matrix = numbers.floats(num_outputs * num_inputs, 2.0);
        // Scales are quotients and products of floats; a bias may be close to the negative product.
        let limit = |magnitude: f32| magnitude * 2e-6 + if has_bias { 1e-6 } else { 0.0 };
        let limits = magnitudes(&x, &matrix, num_inputs).into_iter().map(limit).collect();
        let mut case = Case::plain(graph, num_rows, vec![floats(&[num_rows, num_inputs], x)]);
        case.weights = vec![(spec, matrix)];
        if has_bias {
            case.weights.push((bias_spec, numbers.short_floats(num_outputs)));
        }
        let case = if num_rows == 1 { case.unpadded() } else { case };
        case.check(&[Tolerance::Each(limits)]);
    }

    /// The embedding table is also the weight of the output head.
    #[test]
    fn embeddings_of_integers(
        num_rows in 1..6usize,
        [vocab_size, hidden_size] in prop::array::uniform2(1..40usize),
        seed in any::<u64>(),
    ) {
        let mut graph = Graph::default();
        let spec = integers_of(weight("table", &[vocab_size, hidden_size], FloatType::Bf16));
        let (table, ids) = (graph.weight(&spec), graph.input(Input::TokenIds));
        let hidden = graph.embedding(table, ids).unwrap();
        let logits = graph.linear(hidden, table, None).unwrap();
        let graph = graph.finish(&[hidden, logits]);
        let mut numbers = Numbers::new(seed);
        let ids = numbers.indices(num_rows, vocab_size);
        let mut case = Case::new(graph, rows_of_one_token(num_rows, &ids), [num_rows + 1, 1], layout(num_rows + 1, 1, 16));
        case.weights = vec![(spec, numbers.short_floats(vocab_size * hidden_size))];
        let logits = Tolerance::Close { relative: 1e-6, absolute: 2e-6 * hidden_size as f32 };
        case.check(&[Tolerance::Exact, logits]);
    }
}

proptest! {
    #![proptest_config(cases(4))]

    #[test]
    fn embeddings_are_rows_of_the_table(
        lens in prop::collection::vec(1..5usize, 1..4),
        [vocab_size, hidden_size] in prop::array::uniform2(1..40usize),
        dtype in prop::sample::select(FLOATS.to_vec()),
        seed in any::<u64>(),
    ) {
        let mut graph = Graph::default();
        let spec = weight("table", &[vocab_size, hidden_size], dtype);
        let (table, ids) = (graph.weight(&spec), graph.input(Input::TokenIds));
        let hidden = graph.embedding(table, ids).unwrap();
        let graph = graph.finish(&[hidden]);
        let mut numbers = Numbers::new(seed);
        let mut batch = Batch::default();
        for (slot, len) in lens.iter().enumerate() {
            batch.push_row(slot, 0, &numbers.indices(*len, vocab_size), &[0]);
        }
        let mut case = Case::new(graph, batch, [lens.len() + 1, 5], layout(4, 1, 16));
        case.weights = vec![(spec, numbers.floats(vocab_size * hidden_size, 2.0))];
        // f32 can represent every number of a shorter type.
        case.check(&[Tolerance::Exact]);
    }

    #[test]
    fn norms(
        num_rows in 1..6usize,
        [heads, size] in [1..4usize, 1..200usize],
        dtype in prop::sample::select(FLOATS.to_vec()),
        scale in prop::sample::select(vec![1e-3_f32, 1.0, 1e3]),
        seed in any::<u64>(),
    ) {
        let mut graph = Graph::default();
        let specs = [("weight", vec![heads * size]), ("head_weight", vec![size]), ("weights", vec![heads, size])]
            .map(|(name, shape)| weight(name, &shape, dtype));
        let x = tokens(&mut graph, 0, &[heads * size]);
        let [all, each, own] = [0, 1, 2].map(|index: usize| graph.weight(&specs[index]));
        let normed = graph.rms_norm(x, all, 1e-5, 0.0).unwrap();
        let layer_normed = graph.layer_norm(x, &[all, all], 1e-5, 0.0).unwrap();
        // Some models norm each head on its own.
        let x = graph.reshape(x, &[heads, size]).unwrap();
        let normed_heads = graph.rms_norm(x, each, 1e-6, 1.0).unwrap();
        let own_weights = graph.layer_norm(x, &[own], 1e-5, 1.0).unwrap();
        let bare = graph.rms_norm(x, None, 1e-5, 0.0).unwrap();
        let bare_layer = graph.layer_norm(x, &[], 1e-5, 0.0).unwrap();
        let graph = graph.finish(&[normed, normed_heads, layer_normed, own_weights, bare, bare_layer]);
        let mut numbers = Numbers::new(seed);
        let x = floats(&[num_rows, heads * size], numbers.floats(num_rows * heads * size, scale));
        let mut case = Case::plain(graph, num_rows, vec![x]);
        let mut weights = |spec: WeightSpec| {
            let len = spec.shape.iter().product();
            (spec, numbers.floats(len, 2.0))
        };
        case.weights = specs.map(&mut weights).to_vec();
        // The results differ by a sum in another order, an inverse square root and three roundings. 1 + weight may be
        // close to 0.
        let tolerance = Tolerance::Close { relative: 2e-6, absolute: 0.0 };
        let shifted = Tolerance::Close { relative: 2e-6, absolute: 1e-5 };
        // A value may be close to the mean that is subtracted from it. The difference is then divided by the spread of
        // the values, which is 0 for a single value.
        let centred = Tolerance::Close { relative: 1e-5, absolute: if size * heads < 3 { 2e-3 } else { 2e-5 * spread(heads * size) } };
        let own = Tolerance::Close { relative: 1e-5, absolute: if size < 3 { 2e-3 } else { 2e-5 * spread(size) } };
        case.check(&[tolerance.clone(), shifted, centred, own.clone(), tolerance, own]);
    }

    #[test]
    fn rotary_turns(
        lens in prop::collection::vec(1..5usize, 1..4),
        heads in 1..4usize,
        [half, rest] in [1..20usize, 0..5usize],
        amplitude in prop::sample::select(vec![1.0_f32, 1.2]),
        pairing in prop::sample::select(vec![Pairing::Halves, Pairing::Neighbours]),
        seed in any::<u64>(),
    ) {
        // The rotation is partial if there is a rest.
        let head_dim = 2 * half + rest;
        let frequencies = (0..half).map(|i| 10_000_f32.powf(-(i as f32) / half as f32)).collect();
        let spec = Arc::new(RotarySpec { frequencies, amplitude, pairing });
        let mut graph = Graph::default();
        let x = tokens(&mut graph, 0, &[heads, head_dim]);
        let positions = graph.input(Input::Positions);
        let turned = graph.rotary(x, positions, &spec).unwrap();
        let graph = graph.finish(&[turned]);
        let mut numbers = Numbers::new(seed);
        let mut batch = Batch::default();
        for (slot, len) in lens.iter().enumerate() {
            let position = numbers.one_of(&[0, 3, 1000, 100_000]);
            batch.push_row(slot, position, &vec![0; *len], &[]);
        }
        let num_tokens: usize = lens.iter().sum();
        let mut case = Case::new(graph, batch, [lens.len() + 1, 5], layout(4, 1, 100_016));
        case.arguments = vec![floats(&[num_tokens, heads, head_dim], numbers.floats(num_tokens * heads * head_dim, 2.0))];
        // The angles have the same bits. Sine and cosine differ in the last bits, also after the reduction of a large
        // angle.
        case.check(&[Tolerance::Close { relative: 0.0, absolute: 2e-6 }]);
    }

    #[test]
    fn factors_grow_with_positions(lens in prop::collection::vec(1..5usize, 1..4), heads in 1..4usize, seed in any::<u64>()) {
        let mut graph = Graph::default();
        let x = tokens(&mut graph, 0, &[heads, 6]);
        let positions = graph.input(Input::Positions);
        let mut numbers = Numbers::new(seed);
        let scale = PositionScale {
            beta: numbers.one_of(&[0.1, 2.0]),
            period: numbers.one_of(&[2.0, 16.0, 16_384.0]),
            offset: numbers.one_of(&[0.0, 1.0]),
        };
        let scaled = graph.scale_by_position(x, positions, scale).unwrap();
        let graph = graph.finish(&[scaled]);
        let mut batch = Batch::default();
        for (slot, len) in lens.iter().enumerate() {
            batch.push_row(slot, numbers.one_of(&[0, 3, 15, 1000, 100_000]), &vec![0; *len], &[]);
        }
        let num_tokens: usize = lens.iter().sum();
        let mut case = Case::new(graph, batch, [lens.len() + 1, 5], layout(4, 1, 100_016));
        case.arguments = vec![floats(&[num_tokens, heads, 6], numbers.floats(num_tokens * heads * 6, 2.0))];
        case.check(&[Tolerance::Close { relative: 1e-6, absolute: 0.0 }]);
    }

    #[test]
    fn xielu_has_weights(num_rows in 1..6usize, size in 1..100usize, seed in any::<u64>(), dtype in prop::sample::select(FLOATS.to_vec())) {
        let mut graph = Graph::default();
        let x = tokens(&mut graph, 0, &[size]);
        let specs = [("positive", &[1][..]), ("negative", &[1]), ("beta", &[]), ("eps", &[])]
            .map(|(name, shape)| weight(name, shape, dtype));
        let parameters = specs.each_ref().map(|spec| graph.weight(spec));
        let y = graph.xielu(x, parameters).unwrap();
        let graph = graph.finish(&[y]);
        let mut numbers = Numbers::new(seed);
        let limit = numbers.one_of(&[1e-5, 1.0, 10.0]);
        let arguments = vec![floats(&[num_rows, size], numbers.floats(num_rows * size, limit))];
        let mut case = Case::plain(graph, num_rows, arguments);
        let alphas = numbers.floats(2, 3.0);
        case.weights = specs.into_iter().zip([vec![alphas[0]], vec![alphas[1]], vec![0.5], vec![-1e-6]]).collect();
        // Both sides of the difference e^x - 1 - x may be close.
        case.check(&[Tolerance::Close { relative: 4e-6, absolute: 1e-6 * limit }]);
    }

    #[test]
    fn activations(num_rows in 1..6usize, size in 1..100usize, seed in any::<u64>()) {
        let functions = [
            Activation::Silu,
            Activation::Gelu,
            Activation::GeluTanh,
            Activation::QuickGelu,
            Activation::Relu,
            Activation::SquaredRelu,
            Activation::Sigmoid,
            Activation::Tanh,
        ];
        let mut graph = Graph::default();
        let [gate, up] = [0, 1].map(|index| tokens(&mut graph, index, &[size]));
        let mut outputs = functions.map(|function| graph.activate(function, gate).unwrap()).to_vec();
        outputs.extend(functions.map(|function| graph.gated(function, gate, up).unwrap()));
        let graph = graph.finish(&outputs);
        let mut numbers = Numbers::new(seed);
        let len = num_rows * size;
        let limit = numbers.one_of(&[1.0, 10.0, 120.0]);
        let arguments = vec![floats(&[num_rows, size], numbers.floats(len, limit)), floats(&[num_rows, size], numbers.floats(len, 2.0))];
        // Both exponentials are right to 2 units in the last place. Very negative gates may give 0. The tail of the
        // normal distribution and the hyperbolic tangent are differences of numbers up to 1, and the tail is multiplied
        // by x.
        let gate = Tolerance::Close { relative: 1e-6, absolute: 1e-30 };
        let bounded = Tolerance::Close { relative: 2e-6, absolute: 5e-7 * limit.max(1.0) };
        let tolerances = functions.map(|function| match function {
            Activation::Silu | Activation::Sigmoid | Activation::Relu | Activation::SquaredRelu => gate.clone(),
            Activation::Gelu | Activation::GeluTanh | Activation::QuickGelu | Activation::Tanh => bounded.clone(),
        });
        Case::plain(graph, num_rows, arguments).check(&[tolerances.clone(), tolerances].concat());
    }

    #[test]
    fn biases_and_sums(num_rows in 1..6usize, size in 1..100usize, seed in any::<u64>(), dtype in prop::sample::select(FLOATS.to_vec())) {
        let mut graph = Graph::default();
        let [x, y] = [0, 1].map(|index| tokens(&mut graph, index, &[size]));
        let spec = weight("bias", &[size], dtype);
        let bias = graph.weight(&spec);
        let shifted = graph.add_bias(y, bias).unwrap();
        let scaled = graph.scale_columns(y, bias).unwrap();
        let one_weight = weight("one weight", &[1], dtype);
        let factor = graph.weight(&one_weight);
        let scaled = graph.scale_columns(scaled, factor).unwrap();
        let last = graph.columns(y, size / 3..size).unwrap();
        let sum = graph.binary(Binary::Add, x, y).unwrap();
        let squares = graph.binary(Binary::Multiply, x, x).unwrap();
        let squares = graph.sum_columns(squares).unwrap();
        let one = graph.constant(1.0);
        let squares = graph.binary(Binary::Add, squares, one).unwrap();
        let root = graph.unary(Unary::ReciprocalRoot, squares).unwrap();
        let normed = graph.binary(Binary::Multiply, x, root).unwrap();
        let graph = graph.finish(&[shifted, scaled, sum, normed, last]);
        let mut numbers = Numbers::new(seed);
        let len = num_rows * size;
        let arguments = [(); 2].map(|()| floats(&[num_rows, size], numbers.floats(len, 2.0))).to_vec();
        let mut case = Case::plain(graph, num_rows, arguments);
        case.weights = vec![(spec, numbers.floats(size, 2.0)), (one_weight, numbers.floats(1, 2.0))];
        // IEEE 754 defines a single sum or product to the bit. The sum of all squares depends on the order.
        let normed = Tolerance::Close { relative: 2e-6, absolute: 0.0 };
        case.check(&[Tolerance::Exact, Tolerance::Exact, Tolerance::Exact, normed, Tolerance::Exact]);
    }
}

/// Returns the largest magnitude that one of `size` values can have after they are normed together.
fn spread(size: usize) -> f32 {
    (size as f32).sqrt()
}
