//! Tests of samplers: their scores against values worked out by hand and those of transformers, and their random
//! choices against the distribution.
//!
//! The graphs come from `model::sampling`; other backends must agree with the results checked here.

mod draws;
mod legal_range;
mod processors;
mod watermark;

use std::sync::Arc;

use backend::RowSampler;
use kernels::attention::KvType;
use model::graph::Graph;
use model::sampling::{BatchSampler, Samplers};
use proto::SamplingParams;

use super::*;

const VOCAB_SIZE: usize = 6;
const PROMPT: [i32; 3] = [0, 1, 1];

/// Samples one token from `logits` for a row that has read [`PROMPT`] and generated `generated`.
fn sample(logits: &[f32; VOCAB_SIZE], generated: &[i32], params: SamplingParams) -> SampledToken {
    let layout = StateLayout { num_slots: 1, num_blocks: 1, max_total_tokens: 16, max_batch_prefill_tokens: 16 };
    let state = State::allocate(&Graph::default(), KvType::F32, layout).unwrap();
    let graph = Samplers::new(VOCAB_SIZE).graph(&params).unwrap();
    let mut batch = Batch::default();
    let row = batch.push_row(0, 0, &[PROMPT.as_slice(), generated].concat(), &[0]);
    batch.push_sampled(
        row,
        PROMPT.len(),
        &RowSampler { params: Arc::new(params), graph: graph.clone(), eos_token_ids: Arc::new([2, 5]) },
    );
    state.history.current_tokens(&batch);
    let logits = host::shaped(logits.to_vec(), (1, VOCAB_SIZE)).unwrap();
    let (membership, arguments) = (Membership::alone(), [logits]);
    let step = Step {
        batch: &batch,
        state: &state,
        membership: &membership,
        pulse: &backend::Pulse::default(),
        sampled: 0,
        arguments: &arguments,
    };
    let token = sampled_token(&executor::run(&graph, &[], &step).unwrap()).unwrap();
    let len = PROMPT.len() + generated.len();
    assert_eq!(state.history.tokens(0, len..len + 1).next(), Some(token.token_id as i32));
    token
}

/// Returns the scores before the choice, up to a constant: all log-probabilities, minus infinity for dropped tokens.
fn scores(logits: &[f32; VOCAB_SIZE], generated: &[i32], params: SamplingParams) -> [f32; VOCAB_SIZE] {
    let token = sample(logits, generated, SamplingParams { top_n_tokens: VOCAB_SIZE as u32, ..params });
    let mut scores = [f32::NEG_INFINITY; VOCAB_SIZE];
    token.top_tokens.iter().for_each(|(id, logprob)| scores[*id as usize] = *logprob);
    scores
}

/// Samples with `params` and compares the log-probabilities with those of the expected scores.
fn check(params: SamplingParams, logits: [f32; VOCAB_SIZE], generated: &[i32], expected: [f32; VOCAB_SIZE]) {
    let log_sum = expected.iter().map(|score| f64::from(*score).exp()).sum::<f64>().ln() as f32;
    for (id, (score, expected)) in scores(&logits, generated, params).into_iter().zip(expected).enumerate() {
        let expected = expected - log_sum;
        let agrees = score == expected || (score - expected).abs() < 1e-5;
        assert!(agrees, "token {id}: {score} instead of {expected}");
    }
}

fn sampling() -> SamplingParams {
    SamplingParams { is_greedy: false, ..SamplingParams::greedy() }
}

const NEVER: f32 = f32::NEG_INFINITY;

#[test]
fn greedy_takes_the_best_and_the_lowest_of_equals() {
    let token = sample(&[0.0, 2.0, 1.0, 2.0, NEVER, -1.0], &[], SamplingParams::greedy());
    assert_eq!(token.token_id, 1);
    let sum = 1.0 + 2.0 * 2.0_f32.exp() + 1.0_f32.exp() + (-1.0_f32).exp();
    assert!((token.logprob - (2.0 - sum.ln())).abs() < 1e-6);
    assert_eq!(token.top_tokens, []);
}

#[test]
fn penalties_count_what_they_say() {
    let logits = [1.0, -1.0, 2.0, 0.5, -0.5, 3.0];
    // Tokens 0 and 1 are in the prompt; 2 and 4 were generated, 2 twice.
    let generated = [2, 4, 2];
    let params = SamplingParams { repetition_penalty: 2.0, ..SamplingParams::greedy() };
    check(params, logits, &generated, [0.5, -2.0, 1.0, 0.5, -1.0, 3.0]);
    let params = SamplingParams { frequency_penalty: 0.5, ..SamplingParams::greedy() };
    check(params, logits, &generated, [1.0, -1.0, 1.0, 0.5, -1.0, 3.0]);
    let params = SamplingParams { frequency_penalty: -0.5, ..SamplingParams::greedy() };
    check(params, logits, &generated, [1.0, -1.0, 3.0, 0.5, 0.0, 3.0]);
    let params = SamplingParams { presence_penalty: 0.5, ..SamplingParams::greedy() };
    check(params.clone(), logits, &generated, [1.0, -1.0, 1.5, 0.5, -1.0, 3.0]);
    check(params.clone(), logits, &[], logits);
    let params = SamplingParams { frequency_penalty: 0.5, ..params };
    check(params, logits, &generated, [1.0, -1.0, 0.5, 0.5, -1.5, 3.0]);
    let params = SamplingParams { repetition_penalty: 2.0, frequency_penalty: 2.0, ..SamplingParams::greedy() };
    check(params, logits, &generated, [0.5, -2.0, -3.0, 0.5, -3.0, 3.0]);
}

#[test]
fn the_end_of_sequence_waits_for_enough_tokens() {
    let logits = [1.0, -1.0, 2.0, 0.5, -0.5, 3.0];
    let held_back = [1.0, -1.0, NEVER, 0.5, -0.5, NEVER];
    for params in [SamplingParams::greedy(), sampling()] {
        let params = SamplingParams { min_new_tokens: 2, ..params };
        check(params.clone(), logits, &[], held_back);
        check(params.clone(), logits, &[0], held_back);
        check(params, logits, &[0, 1], logits);
    }
    let params = SamplingParams { min_new_tokens: 1, ..SamplingParams::greedy() };
    assert_eq!([vec![], vec![0]].map(|generated| sample(&logits, &generated, params.clone()).token_id), [0, 5]);
}

#[test]
fn temperature_divides() {
    let params = SamplingParams { temperature: 0.5, ..sampling() };
    check(params, [1.0, -1.0, 2.0, 0.5, -0.5, 0.0], &[], [2.0, -2.0, 4.0, 1.0, -1.0, 0.0]);
    let greedy = SamplingParams { temperature: 0.5, ..SamplingParams::greedy() };
    check(greedy, [1.0, -1.0, 2.0, 0.5, -0.5, 0.0], &[], [1.0, -1.0, 2.0, 0.5, -0.5, 0.0]);
}

#[test]
fn top_k_keeps_ties() {
    let logits = [3.0, 1.0, 2.0, 1.0, 0.0, -1.0];
    let params = |top_k| SamplingParams { top_k, ..sampling() };
    check(params(2), logits, &[], [3.0, NEVER, 2.0, NEVER, NEVER, NEVER]);
    check(params(3), logits, &[], [3.0, 1.0, 2.0, 1.0, NEVER, NEVER]);
    check(params(100), logits, &[], logits);
    check(params(u32::MAX), logits, &[], logits);
    assert_eq!(sample(&logits, &[], params(1)).logprob, 0.0);
}

#[test]
fn top_p_keeps_the_smallest_set_that_reaches_p() {
    let logits = [0.4, 0.05, 0.3, 0.15, 0.06, 0.04].map(f32::ln);
    let params = |top_p| SamplingParams { top_p, ..sampling() };
    let [a, _, c, d, _, _] = logits;
    check(params(0.01), logits, &[], [a, NEVER, NEVER, NEVER, NEVER, NEVER]);
    check(params(0.41), logits, &[], [a, NEVER, c, NEVER, NEVER, NEVER]);
    check(params(0.69), logits, &[], [a, NEVER, c, NEVER, NEVER, NEVER]);
    check(params(0.71), logits, &[], [a, NEVER, c, d, NEVER, NEVER]);
    check(params(1.0), logits, &[], logits);
}

#[test]
fn min_p_keeps_what_is_near_the_best() {
    let logits = [0.4, 0.05, 0.3, 0.15, 0.06, 0.04].map(f32::ln);
    let params = |min_p| SamplingParams { min_p, ..sampling() };
    let [a, b, c, d, e, _] = logits;
    check(params(0.0), logits, &[], logits);
    check(params(0.12), logits, &[], [a, b, c, d, e, NEVER]);
    check(params(0.3), logits, &[], [a, NEVER, c, d, NEVER, NEVER]);
    check(params(0.76), logits, &[], [a, NEVER, NEVER, NEVER, NEVER, NEVER]);
    check(params(1.0), [a, b, a, c, NEVER, d], &[], [a, NEVER, a, NEVER, NEVER, NEVER]);
    // Min-p runs after temperature, which changes 0.06 / 0.4 = 0.15 to about 0.39.
    let warm = logits.map(|logit| logit / 2.0);
    check(
        SamplingParams { temperature: 2.0, ..params(0.38) },
        logits,
        &[],
        [warm[0], NEVER, warm[2], warm[3], warm[4], NEVER],
    );
}

#[test]
fn typical_p_keeps_what_is_closest_to_the_entropy() {
    // The entropy is 1.5285. The distances of the tokens' information from it are 0.6122, 1.4673, 0.3245, 0.3686,
    // 1.2849 and 1.6904.
    let logits = [0.4, 0.05, 0.3, 0.15, 0.06, 0.04].map(f32::ln);
    let params = |typical_p| SamplingParams { typical_p, ..sampling() };
    let [a, b, c, d, e, _] = logits;
    check(params(0.2), logits, &[], [NEVER, NEVER, c, NEVER, NEVER, NEVER]);
    check(params(0.4), logits, &[], [NEVER, NEVER, c, d, NEVER, NEVER]);
    check(params(0.8), logits, &[], [a, NEVER, c, d, NEVER, NEVER]);
    check(params(0.95), logits, &[], [a, b, c, d, e, NEVER]);
    check(params(1.0), logits, &[], logits);
    let impossible = [a, NEVER, c, d, NEVER, NEVER];
    check(params(0.99), impossible, &[], impossible);
}

#[test]
fn each_processor_sees_what_the_one_before_left() {
    // Top-k leaves 0.5 and 0.25, which are two thirds and one third for top-p.
    let logits = [0.5, 0.25, 0.15, 0.06, 0.03, 0.01].map(f32::ln);
    let params = SamplingParams { top_k: 2, top_p: 0.6, ..sampling() };
    check(params, logits, &[], [logits[0], NEVER, NEVER, NEVER, NEVER, NEVER]);
}

#[test]
fn neutral_processors_change_no_bit() {
    let logits = [0.3, -1.7, 2.25, 0.1, -0.6, 1.9];
    let plain = scores(&logits, &[2, 3], sampling());
    // None of these settings has an effect on these logits.
    let params = SamplingParams { top_k: VOCAB_SIZE as u32, ..sampling() };
    assert_eq!(scores(&logits, &[2, 3], params), plain);
    let params = SamplingParams {
        temperature: 1.0,
        repetition_penalty: 1.0,
        frequency_penalty: -0.0,
        presence_penalty: -0.0,
        ..sampling()
    };
    assert_eq!(scores(&logits, &[2, 3], params), plain);
}

#[test]
fn not_a_number_is_never_hidden() {
    for params in
        [SamplingParams::greedy(), SamplingParams { top_k: 2, top_p: 0.5, min_p: 0.5, typical_p: 0.5, ..sampling() }]
    {
        for bad in [f32::NAN, f32::INFINITY] {
            assert!(sample(&[1.0, bad, 0.0, 2.0, 0.5, 0.1], &[], params.clone()).logprob.is_nan(), "{bad}");
        }
        assert!(sample(&[f32::NAN; VOCAB_SIZE], &[], params).logprob.is_nan());
    }
}

#[test]
fn each_step_of_a_seed_draws_anew() {
    let logits = [0.0; VOCAB_SIZE];
    let params = SamplingParams { seed: 42, ..sampling() };
    let tokens: Vec<u32> = (0..12).map(|n| sample(&logits, &vec![0; n], params.clone()).token_id).collect();
    let again: Vec<u32> = (0..12).map(|n| sample(&logits, &vec![5; n], params.clone()).token_id).collect();
    assert_eq!(tokens, again);
    assert!(tokens.iter().any(|token| *token != tokens[0]), "{tokens:?}");
}
