//! Tests that samplers draw tokens from the exact distribution, for each processor and for combinations of processors.
//!
//! The expected distribution is computed a second time here, in f64 and by sorting. A graph is run for 100,000 pairs of
//! seed and counter; values that do not depend on them are computed once. Seeds are fixed, so a test always passes or
//! always fails. A correct sampler fails for one in a million choices of seeds.

use std::collections::HashSet;

use kernels::attention::KvType;
use model::graph::{Input, Op};
use proto::LogitBias;
use rayon::prelude::*;

use super::*;
use crate::loader::Weight;

const NUM_TOKENS: usize = 50;
const NUM_SEEDS: usize = 500;
const NUM_COUNTERS: usize = 200;
const NUM_DRAWS: usize = NUM_SEEDS * NUM_COUNTERS;
const PROMPT: [i32; 6] = [3, 3, 8, 21, 30, 49];
const GENERATED: [i32; 7] = [5, 8, 8, 13, 8, 40, 41];
const END_TOKENS: [i32; 2] = [2, 33];
/// The quantile of the standard normal distribution that is exceeded once in a million.
const ONCE_IN_A_MILLION: f64 = 4.753_424;

/// Returns scores between -3 and 3, without ties.
fn logits() -> Vec<f32> {
    (0..NUM_TOKENS as u32).map(|token| 6.0 * threefry::uniform([77, 0], [token, 0]) - 3.0).collect()
}

/// Returns the tokens that are drawn with `params`, one for each seed and counter, `[NUM_SEEDS, NUM_COUNTERS]`.
fn draws(logits: &[f32], params: &SamplingParams) -> Vec<usize> {
    let layout =
        StateLayout { num_slots: 2, num_blocks: 1, max_total_tokens: 256, max_batch_prefill_tokens: NUM_DRAWS };
    let state = State::allocate(&Graph::default(), KvType::F32, layout).unwrap();
    let graph = Samplers::new(NUM_TOKENS).graph(params).unwrap();
    let sampler =
        RowSampler { params: Arc::new(params.clone()), graph: graph.clone(), eos_token_ids: Arc::new(END_TOKENS) };
    let logits = host::shaped(logits.to_vec(), (1, NUM_TOKENS)).unwrap();
    let (membership, arguments) = (Membership::alone(), [logits]);
    let known = {
        let mut batch = Batch::default();
        let row = batch.push_row(0, 0, &[PROMPT.as_slice(), &GENERATED].concat(), &[0]);
        batch.push_sampled(row, PROMPT.len(), &sampler);
        state.history.current_tokens(&batch);
        let step = Step {
            batch: &batch,
            state: &state,
            membership: &membership,
            pulse: &backend::Pulse::default(),
            sampled: 0,
            arguments: &arguments,
        };
        without_seeds(&graph, &step)
    };
    let mut batch = Batch::default();
    for draw in 0..NUM_DRAWS {
        let row = batch.push_row(1, draw % NUM_COUNTERS, &[0], &[0]);
        let params = SamplingParams { seed: 1 + (draw / NUM_COUNTERS) as u64, ..params.clone() };
        batch.push_sampled(row, 1, &RowSampler { params: Arc::new(params), ..sampler.clone() });
    }
    let draw = |sampled| {
        let step = Step {
            batch: &batch,
            state: &state,
            membership: &membership,
            pulse: &backend::Pulse::default(),
            sampled,
            arguments: &arguments,
        };
        sampled_token(&executor::run(&graph, &known, &step).unwrap()).unwrap().token_id as usize
    };
    (0..NUM_DRAWS).into_par_iter().map(draw).collect()
}

/// Returns the values of `graph` that depend on neither seed nor counter.
fn without_seeds(graph: &Graph, step: &Step<'_>) -> Vec<Option<Weight>> {
    let mut is_drawn = vec![false; graph.nodes().len()];
    for (index, node) in graph.nodes().iter().enumerate() {
        let is_seed = matches!(
            node.op,
            Op::Input(Input::Sampling { name: "seed_low" | "seed_high" | "num_generated", dtype: _ })
        );
        is_drawn[index] = is_seed || node.operands.iter().any(|operand| is_drawn[operand.index()]);
    }
    let operands = graph.nodes().iter().flat_map(|node| node.operands.iter().copied());
    let outputs: HashSet<_> = operands.filter(|value| !is_drawn[value.index()]).collect();
    let outputs: Vec<_> = outputs.into_iter().collect();
    let values = executor::run(&graph.clone().finish(&outputs), &[], step).unwrap();
    let mut known = vec![None; graph.nodes().len()];
    outputs.iter().zip(values).for_each(|(output, value)| known[output.index()] = Some(Weight::Tensor(value)));
    known
}

/// Returns the expected probabilities of all tokens.
fn distribution(logits: &[f32], params: &SamplingParams) -> Vec<f64> {
    let mut scores: Vec<f64> = logits.iter().copied().map(f64::from).collect();
    let count = |tokens: &[i32], token: usize| tokens.iter().filter(|other| **other == token as i32).count() as f64;
    // The last token of the row seeds the watermark.
    let seed = GENERATED.map(i32::cast_unsigned)[GENERATED.len() - 1].wrapping_mul(15_485_863);
    for (token, score) in (0..).zip(&mut scores) {
        if threefry::uniform([seed, 0], [token, 1]) < params.watermark_gamma {
            *score += f64::from(params.watermark_delta);
        }
    }
    params.logit_bias.iter().for_each(|entry| scores[entry.token_id as usize] += f64::from(entry.bias));
    for (token, score) in scores.iter_mut().enumerate() {
        let penalty = f64::from(params.repetition_penalty);
        if count(&PROMPT, token) + count(&GENERATED, token) > 0.0 {
            *score = if *score < 0.0 { *score * penalty } else { *score / penalty };
        }
        let generated = count(&GENERATED, token);
        *score -= f64::from(params.frequency_penalty) * generated;
        *score -= f64::from(params.presence_penalty) * generated.min(1.0);
        if params.min_new_tokens as usize > GENERATED.len() && END_TOKENS.contains(&(token as i32)) {
            *score = f64::NEG_INFINITY;
        }
        *score /= f64::from(params.temperature);
    }
    if params.top_k > 0 {
        let mut sorted = scores.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let threshold = sorted[params.top_k as usize - 1];
        keep(&mut scores, |_, score| score >= threshold);
    }
    if params.top_p < 1.0 {
        let worst_first: Vec<f64> = scores.iter().map(|score| -score).collect();
        keep_mass(&mut scores, &worst_first, f64::from(params.top_p));
    }
    let probabilities = softmax(&scores);
    let most = probabilities.iter().copied().fold(0.0, f64::max);
    keep(&mut scores, |token, _| probabilities[token] >= f64::from(params.min_p) * most);
    if params.typical_p < 1.0 {
        let probabilities = softmax(&scores);
        let information = |p: &f64| if *p > 0.0 { -p.ln() } else { f64::INFINITY };
        let entropy: f64 = probabilities.iter().filter(|p| **p > 0.0).map(|p| p * information(p)).sum();
        let distances: Vec<f64> = probabilities.iter().map(|p| (information(p) - entropy).abs()).collect();
        keep_mass(&mut scores, &distances, f64::from(params.typical_p));
    }
    softmax(&scores)
}

/// Keeps the tokens with the smallest keys until their probabilities reach `mass`.
fn keep_mass(scores: &mut [f64], keys: &[f64], mass: f64) {
    let probabilities = softmax(scores);
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by(|a, b| keys[*a].total_cmp(&keys[*b]));
    let mut sum = 0.0;
    let last = order.iter().find(|token| {
        sum += probabilities[**token];
        sum >= mass
    });
    let limit = last.map_or(f64::INFINITY, |token| keys[*token]);
    keep(scores, |token, _| keys[token] <= limit);
}

fn keep(scores: &mut [f64], is_kept: impl Fn(usize, f64) -> bool) {
    for (token, score) in scores.iter_mut().enumerate() {
        *score = if is_kept(token, *score) { *score } else { f64::NEG_INFINITY };
    }
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - most).exp()).sum();
    scores.iter().map(|score| (score - most).exp() / sum).collect()
}

/// Fails if a chi-squared test rejects `counts`: under these probabilities, such counts occur less than once in a
/// million times. Rare events are counted together.
fn check_counts(counts: &[usize], probabilities: &[f64], what: &str) {
    const RARE: f64 = 10.0;
    let num_events = counts.iter().sum::<usize>() as f64;
    let mut cells = vec![(0.0, 0.0)];
    for (count, probability) in counts.iter().zip(probabilities) {
        assert!(*probability > 0.0 || *count == 0, "{what}: an impossible event was counted {count} times");
        let cell = (*count as f64, probability * num_events);
        if cell.1 < RARE {
            cells[0] = (cells[0].0 + cell.0, cells[0].1 + cell.1);
        } else {
            cells.push(cell);
        }
    }
    cells.retain(|(_, expected)| *expected > 0.0);
    let statistic: f64 = cells.iter().map(|(count, expected)| (count - expected).powi(2) / expected).sum();
    // The approximation of Wilson and Hilferty (1931).
    let freedom = (cells.len() - 1) as f64;
    let variance = 2.0 / (9.0 * freedom);
    let limit = freedom * (1.0 - variance + ONCE_IN_A_MILLION * variance.sqrt()).powi(3);
    assert!(statistic <= limit, "{what}: {statistic} is above {limit} for {freedom} degrees of freedom");
}

/// Returns biases that raise, lower and all but forbid tokens.
fn biases() -> Vec<LogitBias> {
    [(5, 2.5), (21, -1.0), (13, -100.0), (49, 0.75)].map(|(token_id, bias)| LogitBias { token_id, bias }).to_vec()
}

fn check_draws(change: impl Fn(&mut SamplingParams)) {
    let mut params = sampling();
    change(&mut params);
    let (logits, mut counts) = (logits(), [0; NUM_TOKENS]);
    draws(&logits, &params).into_iter().for_each(|token| counts[token] += 1);
    let distribution = distribution(&logits, &params);
    check_counts(&counts, &distribution, &format!("{params:?}"));
}

#[test]
fn warpers_draw_from_their_distributions() {
    check_draws(|_| ());
    check_draws(|p| p.temperature = 0.6);
    check_draws(|p| p.temperature = 1.7);
    check_draws(|p| p.top_k = 7);
    check_draws(|p| p.top_p = 0.8);
    check_draws(|p| p.min_p = 0.12);
    check_draws(|p| p.typical_p = 0.7);
}

#[test]
fn combinations_of_warpers_draw_from_their_distributions() {
    check_draws(|p| (p.temperature, p.top_k, p.top_p) = (0.7, 20, 0.9));
    check_draws(|p| (p.temperature, p.min_p, p.typical_p) = (1.3, 0.05, 0.8));
    check_draws(|p| (p.top_k, p.top_p, p.min_p, p.typical_p) = (30, 0.95, 0.03, 0.9));
}

#[test]
fn penalised_rows_draw_from_their_distributions() {
    check_draws(|p| p.repetition_penalty = 1.8);
    check_draws(|p| (p.frequency_penalty, p.presence_penalty) = (0.7, -1.1));
    check_draws(|p| (p.repetition_penalty, p.min_new_tokens, p.top_k) = (0.8, 20, 12));
    check_draws(|p| p.logit_bias = biases());
    check_draws(|p| (p.watermark_gamma, p.watermark_delta) = (0.25, 2.0));
    check_draws(|p| {
        (p.logit_bias, p.watermark_gamma, p.watermark_delta) = (biases(), 0.5, -0.7);
        (p.repetition_penalty, p.frequency_penalty, p.presence_penalty, p.min_new_tokens) = (1.3, -0.4, 0.9, 8);
        (p.temperature, p.top_k, p.top_p, p.min_p, p.typical_p) = (1.2, 40, 0.97, 0.01, 0.95);
    });
}

/// Different seeds, and different counters of a seed, are independent streams.
#[test]
fn draws_are_independent() {
    const NUM_CLASSES: usize = 8;
    let logits = logits();
    let tokens = draws(&logits, &sampling());
    let mut probabilities = [0.0; NUM_CLASSES];
    let distribution = distribution(&logits, &sampling());
    distribution.iter().enumerate().for_each(|(token, p)| probabilities[token % NUM_CLASSES] += p);
    let joint: Vec<f64> = (0..NUM_CLASSES * NUM_CLASSES)
        .map(|i| probabilities[i / NUM_CLASSES] * probabilities[i % NUM_CLASSES])
        .collect();
    let check_pairs = |pairs: &mut dyn Iterator<Item = [usize; 2]>, what: &str| {
        let mut counts = vec![0; joint.len()];
        pairs.for_each(|[a, b]| counts[tokens[a] % NUM_CLASSES * NUM_CLASSES + tokens[b] % NUM_CLASSES] += 1);
        assert_eq!(counts.iter().sum::<usize>(), NUM_DRAWS / 2, "{what}");
        check_counts(&counts, &joint, what);
    };
    check_pairs(&mut (0..NUM_DRAWS).step_by(2).map(|draw| [draw, draw + 1]), "successive counters of a seed");
    let seeds = (0..NUM_SEEDS).step_by(2);
    let mut pairs = seeds.flat_map(|seed| (0..NUM_COUNTERS).map(move |counter| seed * NUM_COUNTERS + counter));
    check_pairs(&mut pairs.by_ref().map(|draw| [draw, draw + NUM_COUNTERS]), "successive seeds at a counter");
    // In each pair, the counter of one draw is the seed of the other draw, and the other way round.
    let seeds =
        (1..NUM_COUNTERS / 2).flat_map(|seed| (NUM_COUNTERS / 2..NUM_COUNTERS).map(move |counter| [seed, counter]));
    let draw = |seed: usize, counter: usize| (seed - 1) * NUM_COUNTERS + counter;
    let crossed = seeds.map(|[seed, counter]| [draw(seed, counter), draw(counter, seed)]);
    let mut counts = vec![0; joint.len()];
    crossed.for_each(|[a, b]| counts[tokens[a] % NUM_CLASSES * NUM_CLASSES + tokens[b] % NUM_CLASSES] += 1);
    check_counts(&counts, &joint, "seed and counter exchanged");
}

/// The limit rejects a slightly wrong distribution, in which an event of probability 2 % is drawn a fifth too often.
#[test]
fn a_wrong_distribution_is_refused() {
    let probabilities = [vec![0.02; 25], vec![0.05; 10]].concat();
    let mut counts: Vec<usize> = probabilities.iter().map(|p| (p * NUM_DRAWS as f64) as usize).collect();
    check_counts(&counts, &probabilities, "as expected");
    (counts[0], counts[30]) = (counts[0] + 400, counts[30] - 400);
    assert!(std::panic::catch_unwind(|| check_counts(&counts, &probabilities, "wrong")).is_err());
}
