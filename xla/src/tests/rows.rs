//! Tests of operations that read a whole row of scores but choose no token.

use proptest::prelude::*;

use super::case::TOP_TOKENS;
use super::*;

/// Scores of which some are minus infinity; some rows have only such scores, and some contain NaN or infinity.
fn scores(numbers: &mut Numbers, num_rows: usize, vocab_size: usize) -> Vec<f32> {
    let mut scores = numbers.floats(num_rows * vocab_size, 30.0);
    for row in scores.chunks_exact_mut(vocab_size) {
        match numbers.below(6) {
            0 => row[numbers.below(vocab_size)] = numbers.one_of(&[f32::NAN, f32::INFINITY]),
            1 => row.fill(f32::NEG_INFINITY),
            2 | 3 => row.iter_mut().step_by(3).for_each(|score| *score = f32::NEG_INFINITY),
            _ => {}
        }
    }
    scores
}

proptest! {
    #![proptest_config(cases(5))]

    #[test]
    fn sums_and_log_probabilities(
        num_rows in 1..6usize,
        vocab_size in prop_oneof![1..40usize, 500..3000usize],
        runs_rows_together in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut graph = Graph::default();
        let x = rows(&mut graph, 0, &[vocab_size], DType::F32);
        let logprobs = graph.log_softmax(x).unwrap();
        let mut outputs = vec![logprobs];
        if !runs_rows_together {
            let finite = rows(&mut graph, 1, &[vocab_size], DType::F32);
            outputs.push(graph.sum_columns(finite).unwrap());
        }
        let graph = graph.finish(&outputs);
        let mut numbers = Numbers::new(seed);
        let dims = [num_rows, vocab_size];
        let finite = numbers.floats(num_rows * vocab_size, 10.0);
        // Sums of f32 differ from sums of f64 in proportion to the absolute sum.
        let limit = |row: &[f32]| row.iter().map(|x| x.abs()).sum::<f32>() * 1e-6;
        let limits = finite.chunks_exact(vocab_size).map(limit).collect();
        let mut arguments = vec![floats(&dims, scores(&mut numbers, num_rows, vocab_size))];
        // The result is a difference of numbers up to 60 and the logarithm of a sum of exponentials.
        let mut tolerances = vec![Tolerance::Close { relative: 0.0, absolute: 1e-5 }];
        if !runs_rows_together {
            arguments.push(floats(&dims, finite));
            tolerances.push(Tolerance::Each(limits));
        }
        let case = Case { runs_rows_together, ..Case::plain(graph, num_rows, arguments) };
        case.check(&tolerances);
    }

    #[test]
    fn columns_are_picked(num_rows in 1..6usize, size in 1..700usize, seed in any::<u64>()) {
        let mut graph = Graph::default();
        let x = rows(&mut graph, 0, &[size], DType::F32);
        let index = rows(&mut graph, 1, &[], DType::I32);
        let indices = graph.argument(2, Shape::new([Dim::Rows, Dim::TopTokens]), DType::I32);
        let outputs = [graph.gather_columns(x, index).unwrap(), graph.gather_columns(x, indices).unwrap()];
        let graph = graph.finish(&outputs);
        let mut numbers = Numbers::new(seed);
        let x = floats(&[num_rows, size], scores(&mut numbers, num_rows, size));
        let index = integers(&[num_rows], numbers.indices(num_rows, size));
        let indices = integers(&[num_rows, TOP_TOKENS], numbers.indices(num_rows * TOP_TOKENS, size));
        // The elements are only copied.
        Case::plain(graph, num_rows, vec![x, index, indices]).check(&[Tolerance::Exact, Tolerance::Exact]);
    }

    #[test]
    fn random_numbers_have_the_same_bits(num_rows in 1..50usize, seed in any::<u64>()) {
        let mut graph = Graph::default();
        let words = [0, 1, 2].map(|index| rows(&mut graph, index, &[], DType::U32));
        let uniform = graph.uniform(words).unwrap();
        let graph = graph.finish(&[uniform]);
        let mut numbers = Numbers::new(seed);
        let mut words = |end: u32| {
            let words = (0..num_rows).map(|_| numbers.word() % end).collect();
            Array { dims: vec![num_rows], elements: Elements::U32(words) }
        };
        let arguments = vec![words(u32::MAX), words(u32::MAX), words(10)];
        // Integer arithmetic and a product with a power of two are exact.
        Case::plain(graph, num_rows, arguments).check(&[Tolerance::Exact]);
    }
}
