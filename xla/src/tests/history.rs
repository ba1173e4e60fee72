//! Tests of operations that read or write the token history. All results are compared exactly.

use backend::{Batch, SAMPLED_TOKEN};
use proptest::prelude::*;
use proto::MAX_HELD_BACK_TOKENS;

use super::case::{greedy, layout};
use super::*;

const NUM_SLOTS: usize = 5;
const MAX_TOTAL_TOKENS: usize = 40;

fn history(numbers: &mut Numbers, vocab_size: usize) -> Vec<i32> {
    numbers.indices(NUM_SLOTS * MAX_TOTAL_TOKENS, vocab_size)
}

/// Returns rows with contexts of various lengths, some of whose tokens were generated. About a third of the rows, but
/// not the first, do not sample in this step.
fn sampling_batch(numbers: &mut Numbers, graph: &std::sync::Arc<Graph>, num_rows: usize) -> Batch {
    let mut batch = Batch::default();
    for slot in numbers.permutation(NUM_SLOTS).into_iter().take(num_rows) {
        let position = numbers.one_of(&[0, 1, 17, MAX_TOTAL_TOKENS - 2, MAX_TOTAL_TOKENS - 1]);
        let row = batch.push_row(slot, position, &[SAMPLED_TOKEN], &[0, 0, 0]);
        if batch.sampled.is_empty() || numbers.below(3) > 0 {
            let prompt_len = 1 + numbers.below(position + 1);
            batch.push_sampled(row, prompt_len, &greedy(graph));
        }
    }
    batch
}

proptest! {
    #![proptest_config(cases(4))]

    #[test]
    fn current_tokens_are_read_and_noted(
        lens in prop::collection::vec(1..7usize, 1..NUM_SLOTS),
        decodes in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut graph = Graph::default();
        let given = graph.input(Input::TokenIds);
        let current = graph.current_tokens(given).unwrap();
        let graph = graph.finish(&[current]);
        let mut numbers = Numbers::new(seed);
        let mut batch = Batch::default();
        let slots = numbers.permutation(NUM_SLOTS);
        for (len, slot) in lens.iter().zip(slots) {
            let len = if decodes { 1 } else { *len };
            let position = numbers.one_of(&[0, 1, 20, MAX_TOTAL_TOKENS - len]);
            let mut ids = numbers.indices(len, 1000);
            if position > 0 && numbers.below(3) > 0 {
                ids[0] = SAMPLED_TOKEN;
            }
            batch.push_row(slot, position, &ids, &[0, 0, 0]);
        }
        let bucket = [lens.len() + 2, if decodes { 1 } else { 8 }];
        let mut case = Case::new(graph, batch, bucket, layout(NUM_SLOTS, 1, MAX_TOTAL_TOKENS));
        case.history = history(&mut numbers, 1000);
        case.check(&[Tolerance::Exact]);
    }

    #[test]
    fn tokens_are_counted(num_rows in 1..NUM_SLOTS, vocab_size in 1..60usize, seed in any::<u64>()) {
        let mut graph = Graph::default();
        let counts = [TokenScope::Context, TokenScope::Generated].map(|scope| graph.token_counts(scope, vocab_size));
        let graph = graph.finish(&counts);
        let mut numbers = Numbers::new(seed);
        let batch = sampling_batch(&mut numbers, &graph, num_rows);
        let mut case = Case::new(graph, batch, [num_rows + 2, 1], layout(NUM_SLOTS, 1, MAX_TOTAL_TOKENS));
        case.history = history(&mut numbers, vocab_size);
        // After the contexts are tokens of earlier rows, which may be outside of this vocabulary.
        for row in &case.batch.rows {
            case.history[row.slot * MAX_TOTAL_TOKENS..][row.context_len..MAX_TOTAL_TOKENS].fill(i32::MAX);
        }
        case.check(&[Tolerance::Exact, Tolerance::Exact]);
    }

    #[test]
    fn tokens_are_held_back(num_rows in 1..NUM_SLOTS, vocab_size in 1..60usize, seed in any::<u64>()) {
        let mut graph = Graph::default();
        let is_held_back = graph.held_back(vocab_size);
        let [zero, one] = [0.0, 1.0].map(|number| graph.constant(number));
        let held_back = graph.select(is_held_back, one, zero).unwrap();
        let graph = graph.finish(&[held_back]);
        let mut numbers = Numbers::new(seed);
        let mut batch = sampling_batch(&mut numbers, &graph, num_rows);
        for row in &mut batch.sampled {
            let num_tokens = numbers.below(MAX_HELD_BACK_TOKENS + 1);
            row.held_back = numbers.indices(num_tokens, vocab_size).into();
        }
        Case::new(graph, batch, [num_rows + 2, 1], layout(NUM_SLOTS, 1, MAX_TOTAL_TOKENS)).check(&[Tolerance::Exact]);
    }

    #[test]
    fn sampled_tokens_are_noted(num_rows in 1..NUM_SLOTS, seed in any::<u64>()) {
        let mut graph = Graph::default();
        let token = rows(&mut graph, 0, &[], DType::I32);
        let noted = graph.append_token(token).unwrap();
        let graph = graph.finish(&[noted]);
        let mut numbers = Numbers::new(seed);
        let batch = sampling_batch(&mut numbers, &graph, num_rows);
        let num_sampled = batch.sampled.len();
        let mut case = Case::new(graph, batch, [num_rows + 2, 1], layout(NUM_SLOTS, 1, MAX_TOTAL_TOKENS));
        case.history = history(&mut numbers, 1000);
        case.arguments = vec![integers(&[num_sampled], numbers.indices(num_sampled, 1000))];
        case.check(&[Tolerance::Exact]);
    }

    #[test]
    fn numbers_of_contexts_have_the_same_bits(num_rows in 1..NUM_SLOTS, vocab_size in 1..60usize, seed in any::<u64>()) {
        let mut graph = Graph::default();
        let uniform = graph.context_uniform(vocab_size);
        let graph = graph.finish(&[uniform]);
        let mut numbers = Numbers::new(seed);
        let batch = sampling_batch(&mut numbers, &graph, num_rows);
        let mut case = Case::new(graph, batch, [num_rows + 2, 1], layout(NUM_SLOTS, 1, MAX_TOTAL_TOKENS));
        case.history = history(&mut numbers, 200_000);
        case.check(&[Tolerance::Exact]);
    }
}
