//! Tests of operations that choose tokens: thresholds, the best tokens, random sampling.
//!
//! Scores have ties, zeroes of both signs, and minus infinity. Operations that depend on sums are tested twice: with
//! numbers whose sums are exact in any order, so that the results are equal; and with any numbers, so that the result
//! must be right up to the rounding of sums.

use proptest::prelude::*;

use super::*;

/// Vocabularies smaller and larger than a block of the cumulative sum, and one of exactly a block.
fn vocab_sizes() -> impl Strategy<Value = usize> {
    prop_oneof![1..40usize, Just(512), 513..1600usize]
}

/// Scores with ties, zeroes of both signs and minus infinity; some rows have only minus infinity, and some only NaN.
fn scores(numbers: &mut Numbers, num_rows: usize, vocab_size: usize) -> Array {
    let mut scores = Vec::with_capacity(num_rows * vocab_size);
    for _ in 0..num_rows {
        let kind = numbers.below(8);
        scores.extend((0..vocab_size).map(|_| match kind {
            0 => f32::NEG_INFINITY,
            1 => f32::NAN,
            2 | 3 => numbers.one_of(&[0.0, -0.0, 1.0, -1.0, f32::NEG_INFINITY]),
            4 => numbers.one_of(&[-2.0, -3.0, 1e-30, f32::NEG_INFINITY]),
            _ => 200.0 * numbers.unit() - 100.0,
        }));
    }
    floats(&[num_rows, vocab_size], scores)
}

/// Returns a number of tokens for each row: none, some, all, or more than the vocabulary has.
fn limits(numbers: &mut Numbers, num_rows: usize, vocab_size: usize) -> Array {
    let limit = |numbers: &mut Numbers| match numbers.below(5) {
        0 => 0,
        1 => vocab_size as i32,
        2 => numbers.one_of(&[i32::MAX, vocab_size as i32 + 3]),
        _ => 1 + numbers.below(20) as i32,
    };
    integers(&[num_rows], (0..num_rows).map(|_| limit(numbers)).collect())
}

fn row(array: &Array, index: usize) -> Vec<f32> {
    let Elements::F32(elements) = array.rows(&[index]).elements else { panic!("scores are floats") };
    elements
}

proptest! {
    #![proptest_config(cases(4))]

    #[test]
    fn the_best_is_the_lowest_of_equals(num_rows in 1..12usize, vocab_size in vocab_sizes(), seed in any::<u64>()) {
        let mut graph = Graph::default();
        let x = rows(&mut graph, 0, &[vocab_size], DType::F32);
        let best = graph.arg_max(x).unwrap();
        let graph = graph.finish(&[best]);
        let scores = scores(&mut Numbers::new(seed), num_rows, vocab_size);
        Case::plain(graph, num_rows, vec![scores]).check(&[Tolerance::Exact]);
    }

    #[test]
    fn the_kth_largest(num_rows in 1..12usize, vocab_size in vocab_sizes(), seed in any::<u64>()) {
        let mut graph = Graph::default();
        let x = rows(&mut graph, 0, &[vocab_size], DType::F32);
        let k = rows(&mut graph, 1, &[], DType::I32);
        let threshold = graph.kth_largest(x, k).unwrap();
        let graph = graph.finish(&[threshold]);
        let mut numbers = Numbers::new(seed);
        let arguments = vec![scores(&mut numbers, num_rows, vocab_size), limits(&mut numbers, num_rows, vocab_size)];
        // The result is one of the scores, found by comparing them.
        Case::plain(graph, num_rows, arguments).check(&[Tolerance::Exact]);
    }

    #[test]
    fn top_tokens_are_in_order(num_rows in 1..12usize, vocab_size in vocab_sizes(), seed in any::<u64>()) {
        let mut graph = Graph::default();
        let x = rows(&mut graph, 0, &[vocab_size], DType::F32);
        let n = rows(&mut graph, 1, &[], DType::I32);
        let top = graph.top_tokens(x, n).unwrap();
        let graph = graph.finish(&[top]);
        let mut numbers = Numbers::new(seed);
        let arguments = vec![scores(&mut numbers, num_rows, vocab_size), limits(&mut numbers, num_rows, vocab_size)];
        Case::plain(graph, num_rows, arguments).check(&[Tolerance::Exact]);
    }

    #[test]
    fn thresholds_of_a_mass(num_rows in 1..12usize, vocab_size in vocab_sizes(), seed in any::<u64>()) {
        let graph = mass_graph(vocab_size);
        let mut numbers = Numbers::new(seed);
        let keys = scores(&mut numbers, num_rows, vocab_size);
        let weights: Vec<f32> = (0..num_rows * vocab_size).map(|_| numbers.below(64) as f32 / 64.0).collect();
        let masses = weights.chunks_exact(vocab_size).map(|weights| {
            let total: f32 = weights.iter().sum();
            numbers.one_of(&[0.0, 1.0 / 64.0, total, total + 1.0, (total * 32.0).floor() / 64.0, weights[0]])
        });
        let masses = masses.collect();
        let arguments = vec![keys, floats(&[num_rows, vocab_size], weights), floats(&[num_rows], masses)];
        // The result is one of the keys; multiples of 1/64 have exact sums in any order.
        Case::plain(graph, num_rows, arguments).check(&[Tolerance::Exact]);
    }

    #[test]
    fn thresholds_of_a_rounded_mass(num_rows in 1..8usize, vocab_size in vocab_sizes(), seed in any::<u64>()) {
        let mut numbers = Numbers::new(seed);
        let keys = floats(&[num_rows, vocab_size], numbers.floats(num_rows * vocab_size, 5.0));
        let weights: Vec<f32> = (0..num_rows * vocab_size).map(|_| numbers.unit() / vocab_size as f32).collect();
        let weights = floats(&[num_rows, vocab_size], weights);
        let masses: Vec<f32> = (0..num_rows).map(|_| numbers.unit()).collect();
        let arguments = vec![keys.clone(), weights.clone(), floats(&[num_rows], masses.clone())];
        let Some(outcome) = Case::plain(mass_graph(vocab_size), num_rows, arguments).on_xla() else {
            return Ok(());
        };
        for (index, (threshold, mass)) in row(&outcome.outputs[0], 0).iter().zip(masses).enumerate() {
            let (keys, weights) = (row(&keys, index), row(&weights, index));
            let sum = |is_in: &dyn Fn(f32) -> bool| {
                keys.iter().zip(&weights).filter(|(key, _)| is_in(**key)).map(|(_, w)| f64::from(*w)).sum::<f64>()
            };
            let largest = keys.iter().copied().fold(f32::MIN, f32::max);
            prop_assert!(keys.contains(threshold));
            // A sum of up to 1600 f32 numbers below 1 is right to 1e-6.
            prop_assert!(*threshold == largest || sum(&|key| key <= *threshold) >= f64::from(mass) - 1e-6);
            prop_assert!(sum(&|key| key < *threshold) < f64::from(mass) + 1e-6);
        }
    }

    #[test]
    fn draws_of_exact_sums(num_rows in 1..12usize, vocab_size in vocab_sizes(), seed in any::<u64>()) {
        let mut numbers = Numbers::new(seed);
        let mut weights = Vec::with_capacity(num_rows * vocab_size);
        for _ in 0..num_rows {
            let sparsity = numbers.one_of(&[1, 4, 400]);
            weights.extend((0..vocab_size).map(|_| if numbers.below(sparsity) == 0 { numbers.below(16) as f32 } else { 0.0 }));
        }
        let u = (0..num_rows).map(|_| numbers.below(256) as f32 / 256.0).collect();
        let arguments = vec![floats(&[num_rows, vocab_size], weights), floats(&[num_rows], u)];
        // Sums below 2^16 of whole numbers, times a multiple of 1/256, are exact.
        Case::plain(cdf_graph(vocab_size), num_rows, arguments).check(&[Tolerance::Exact]);
    }

    #[test]
    fn draws_of_rounded_sums(num_rows in 1..8usize, vocab_size in vocab_sizes(), seed in any::<u64>()) {
        let mut numbers = Numbers::new(seed);
        let mut weights = numbers.floats(num_rows * vocab_size, 12.0);
        weights.iter_mut().for_each(|weight| *weight = weight.exp());
        let weights = floats(&[num_rows, vocab_size], weights);
        let us: Vec<f32> = (0..num_rows).map(|_| numbers.one_of(&[0.0, 0.5, 1.0 - f32::EPSILON / 2.0])).collect();
        let arguments = vec![weights.clone(), floats(&[num_rows], us.clone())];
        let Some(outcome) = Case::plain(cdf_graph(vocab_size), num_rows, arguments).on_xla() else {
            return Ok(());
        };
        let Elements::I32(tokens) = &outcome.outputs[0].elements else { panic!("tokens are integers") };
        for (index, (token, u)) in tokens.iter().zip(us).enumerate() {
            let weights = row(&weights, index);
            let total: f64 = weights.iter().copied().map(f64::from).sum();
            let before: f64 = weights[..*token as usize].iter().copied().map(f64::from).sum();
            let target = f64::from(u) * total;
            // Prefix sums of f32 are right to 1e-6 of the total.
            prop_assert!(before <= target + 1e-6 * total, "token {token} of {u}");
            prop_assert!(before + f64::from(weights[*token as usize]) >= target - 1e-6 * total, "token {token} of {u}");
        }
    }

    #[test]
    fn rows_of_some_numbers_choose_a_token_that_exists(vocab_size in vocab_sizes(), seed in any::<u64>()) {
        let mut graph = Graph::default();
        let x = rows(&mut graph, 0, &[vocab_size], DType::F32);
        let u = rows(&mut graph, 1, &[], DType::F32);
        let tokens = [graph.arg_max(x).unwrap(), graph.inverse_cdf(x, u).unwrap()];
        let graph = graph.finish(&tokens);
        let mut numbers = Numbers::new(seed);
        let mut scores = numbers.floats(4 * vocab_size, 1.0);
        for row in scores.chunks_exact_mut(vocab_size) {
            row[numbers.below(vocab_size)] = numbers.one_of(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
        }
        let u = (0..4).map(|_| numbers.unit()).collect();
        let case = Case::plain(graph, 4, vec![floats(&[4, vocab_size], scores), floats(&[4], u)]);
        // Any token may be chosen, but it must be in the vocabulary.
        for outcome in [Some(case.on_cpu()), case.on_xla()].into_iter().flatten() {
            for output in outcome.outputs {
                let Elements::I32(tokens) = output.elements else { panic!("tokens are integers") };
                prop_assert!(tokens.iter().all(|token| (0..vocab_size as i32).contains(token)), "{tokens:?}");
            }
        }
    }
}

fn mass_graph(vocab_size: usize) -> std::sync::Arc<Graph> {
    let mut graph = Graph::default();
    let [keys, weights] = [0, 1].map(|index| rows(&mut graph, index, &[vocab_size], DType::F32));
    let mass = rows(&mut graph, 2, &[], DType::F32);
    let threshold = graph.mass_threshold(keys, weights, mass).unwrap();
    graph.finish(&[threshold])
}

fn cdf_graph(vocab_size: usize) -> std::sync::Arc<Graph> {
    let mut graph = Graph::default();
    let probabilities = rows(&mut graph, 0, &[vocab_size], DType::F32);
    let u = rows(&mut graph, 1, &[], DType::F32);
    let token = graph.inverse_cdf(probabilities, u).unwrap();
    graph.finish(&[token])
}
