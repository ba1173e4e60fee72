//! Tests of logit biases and token masks, and of the sampler with every processor.

use backend::BLOCK_SIZE;
use backend::{Batch, RowSampler, SAMPLED_TOKEN};
use model::sampling::{BatchSampler, TokenMask};
use proptest::prelude::*;
use proto::{LogitBias, MAX_LOGIT_BIASES, SamplingParams};

use super::case::{greedy, layout, plain_batch};
use super::*;

/// Returns biases, at most one per token: none, some or as many as allowed.
fn biases(numbers: &mut Numbers, vocab_size: usize) -> Vec<LogitBias> {
    let most = vocab_size.min(MAX_LOGIT_BIASES);
    let len = [0, 1, numbers.below(most + 1), most][numbers.below(4)];
    let mut tokens = numbers.permutation(vocab_size);
    tokens.truncate(len);
    tokens.into_iter().map(|token| LogitBias { token_id: token as u32, bias: 200.0 * numbers.unit() - 100.0 }).collect()
}

/// Returns a mask of random bits, including bits after the vocabulary.
fn mask(numbers: &mut Numbers, vocab_size: usize) -> TokenMask {
    let bytes: Vec<u8> = (0..TokenMask::num_bytes(vocab_size)).map(|_| numbers.below(256) as u8).collect();
    TokenMask::new(&bytes, vocab_size)
}

/// Returns parameters that usually leave several tokens to choose from; about a third of the rows are greedy.
fn params(numbers: &mut Numbers, vocab_size: usize) -> SamplingParams {
    let mut between = |low: f32, high: f32| low + (high - low) * numbers.unit();
    let (temperature, top_p, min_p) = (between(0.5, 1.5), between(0.7, 1.0), between(0.0, 0.05));
    let (repetition_penalty, typical_p) = (between(0.7, 1.5), between(0.7, 1.0));
    let (frequency_penalty, presence_penalty) = (between(-1.0, 1.0), between(-1.0, 1.0));
    let (watermark_gamma, watermark_delta) = (between(0.1, 0.9), between(-2.0, 2.0));
    SamplingParams {
        temperature,
        top_k: [0, 5, 10 + numbers.below(50) as u32][numbers.below(3)],
        top_p,
        min_p,
        typical_p,
        repetition_penalty,
        frequency_penalty,
        presence_penalty,
        min_new_tokens: numbers.below(20) as u32,
        logit_bias: biases(numbers, vocab_size),
        watermark_gamma,
        watermark_delta,
        seed: u64::from(numbers.word()),
        is_greedy: numbers.below(3) == 0,
        ..SamplingParams::greedy()
    }
}

/// Tests all processors together. Seeds are fixed, because the two backends sum in different types, and with random
/// seeds one in some thousand rows would be so close to a threshold that the tokens differ.
#[test]
fn samplers_with_everything_choose_the_same() {
    const ROWS: usize = 5;
    const LEN: usize = 40;
    for seed in 0..8 {
        let mut numbers = Numbers::new(seed);
        let vocab_size = 20 + numbers.below(600);
        let graph = BatchSampler::Everything.graph(vocab_size).unwrap();
        // Tokens and their log-probabilities; top tokens have their own test.
        let graph = Graph::clone(&graph).finish(&graph.outputs()[..2]);
        let mut batch = Batch::default();
        for slot in 0..ROWS {
            let position = numbers.below(LEN - 1);
            let row = batch.push_row(slot, position, &[SAMPLED_TOKEN], &[0, 0, 0]);
            let params = params(&mut numbers, vocab_size).into();
            let sampler = RowSampler { params, eos_token_ids: [0, 11].into(), ..greedy(&graph) };
            batch.push_sampled(row, 1 + numbers.below(position + 1), &sampler);
            if numbers.below(2) == 0 {
                batch.mask_sampled(mask(&mut numbers, vocab_size), graph.clone());
            }
        }
        let mut case = Case::new(graph, batch, [ROWS + 2, 1], layout(ROWS, 1, LEN));
        case.history = numbers.indices(ROWS * LEN, vocab_size);
        case.arguments = vec![floats(&[ROWS, vocab_size], numbers.floats(ROWS * vocab_size, 5.0))];
        case.check(&[Tolerance::Exact, Tolerance::Close { relative: 1e-5, absolute: 1e-4 }]);
    }
}

proptest! {
    #![proptest_config(cases(5))]

    #[test]
    fn biases_are_added(
        num_rows in 1..6usize,
        vocab_size in prop_oneof![1..40usize, 300..900usize],
        seed in any::<u64>(),
    ) {
        let mut graph = Graph::default();
        let scores = rows(&mut graph, 0, &[vocab_size], DType::F32);
        let biased = graph.add_logit_bias(scores).unwrap();
        let graph = graph.finish(&[biased]);
        let mut numbers = Numbers::new(seed);
        let mut batch = plain_batch(&graph, num_rows);
        for row in &mut batch.sampled {
            let logit_bias = biases(&mut numbers, vocab_size);
            row.params = SamplingParams { logit_bias, ..SamplingParams::greedy() }.into();
        }
        let scores = floats(&[num_rows, vocab_size], numbers.floats(num_rows * vocab_size, 30.0));
        let case = Case::new(graph, batch, [num_rows + 2, 1], layout(num_rows, 1, BLOCK_SIZE));
        // The result is one sum of two numbers.
        Case { arguments: vec![scores], ..case }.check(&[Tolerance::Exact]);
    }

    #[test]
    fn masks_are_bits(num_rows in 1..6usize, vocab_size in prop_oneof![1..70usize, 300..900usize], seed in any::<u64>()) {
        let mut graph = Graph::default();
        let is_allowed = graph.is_allowed(vocab_size);
        let [zero, one] = [0.0, 1.0].map(|number| graph.constant(number));
        let allowed = graph.select(is_allowed, one, zero).unwrap();
        let graph = graph.finish(&[allowed]);
        let mut numbers = Numbers::new(seed);
        let mut batch = plain_batch(&graph, num_rows);
        for row in &mut batch.sampled {
            row.mask = (numbers.below(3) > 0).then(|| mask(&mut numbers, vocab_size));
        }
        Case::new(graph, batch, [num_rows + 2, 1], layout(num_rows, 1, BLOCK_SIZE)).check(&[Tolerance::Exact]);
    }
}
