//! Logits and greedy tokens of tiny checkpoints against those recorded from transformers.
//!
//! `integration-tests/fixtures/make_references.py` computes the references in f32 from the weights as saved, so keys
//! and values are in f32 here too. The greedy tokens must be the same, or near the best if the processor rounds to
//! bf16. Log-probabilities must agree within a stated tolerance.

use proto::{SampledToken, SamplingParams};
use serde_json::Value;

use super::ranks::Engines;
use super::{FIXTURES, Rig, fixture, ids, report, reporting, tolerance};
use crate::args::KvCacheDtype;

/// The largest difference of a log-probability, as a share of the largest absolute logit of the row.
const TOLERANCE: f64 = 2e-5;
/// The same tolerance if the processor multiplies bf16 with bf16.
const ROUNDED_TOLERANCE: f64 = 2e-2;

pub(super) struct Reference {
    pub(super) prompts: Vec<Value>,
}

impl Reference {
    pub(super) fn read(name: &str) -> Self {
        let json = std::fs::read(checkpoints::tracked(name).join("reference.json")).unwrap();
        let reference: Value = serde_json::from_slice(&json).unwrap();
        Self { prompts: reference["prompts"].as_array().unwrap().clone() }
    }
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

pub(super) fn token_ids(value: &Value) -> Vec<u32> {
    numbers(value).into_iter().map(|id| id as u32).collect()
}

/// Returns the log-probabilities after `prompt`, in the order of the vocabulary.
fn logprobs(rig: &mut Rig, prompt: &[u32], vocab_size: usize) -> Vec<f64> {
    let params = SamplingParams { top_n_tokens: vocab_size as u32, ..SamplingParams::greedy() };
    let token = rig.start(0, prompt, params);
    rig.release(0);
    assert_eq!(token.top_token_ids().len(), vocab_size);
    let mut logprobs = vec![f64::NAN; vocab_size];
    for (id, logprob) in token.top_token_ids().iter().zip(token.top_logprobs()) {
        logprobs[*id as usize] = f64::from(*logprob);
    }
    logprobs
}

/// Returns how far the log-probabilities after `prompt` are from those of `logits`, in the order of the vocabulary, as
/// shares of the largest absolute logit.
fn differences(rig: &mut Rig, prompt: &[u32], logits: &Value) -> Vec<f64> {
    let logits = numbers(logits);
    let largest = logits.iter().fold(0.0_f64, |largest, logit| largest.max(logit.abs()));
    let log_sum = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
    let logprobs = logprobs(rig, prompt, logits.len()).into_iter().zip(&logits);
    logprobs.map(|(logprob, logit)| (logprob - (logit - log_sum)).abs() / largest).collect()
}

/// Compares the log-probabilities after `prompt` with those of `logits`. The tolerance is a share of the largest
/// absolute logit.
pub(super) fn check_logits(rig: &mut Rig, prompt: &[u32], logits: &Value, (tolerance, what): (f64, &str)) {
    for (id, difference) in differences(rig, prompt, logits).into_iter().enumerate() {
        assert!(difference <= tolerance, "{what}, token {id}: off by {difference} of the largest logit");
    }
}

/// Returns the largest of the differences that [`check_logits`] compares with its tolerance; NaN if one is NaN.
pub(super) fn difference(rig: &mut Rig, prompt: &[u32], logits: &Value) -> f64 {
    differences(rig, prompt, logits).into_iter().max_by(f64::total_cmp).expect("a vocabulary is not empty")
}

/// Does the same as [`check_logits`] for the best tokens that are reported with `token`.
pub(super) fn check_top(token: &SampledToken, logits: &Value, tolerance: f64, what: &str) {
    let logits = numbers(logits);
    let largest = logits.iter().fold(0.0_f64, |largest, logit| largest.max(logit.abs()));
    let log_sum = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
    assert!(!token.top_token_ids().is_empty(), "{what}");
    for (id, logprob) in token.top_token_ids().iter().zip(token.top_logprobs()) {
        let difference = (f64::from(*logprob) - (logits[*id as usize] - log_sum)).abs();
        assert!(difference <= tolerance * largest, "{what}, token {id}: off by {difference}, largest logit {largest}");
    }
}

#[test]
fn logits_agree_with_transformers() {
    for name in FIXTURES {
        let mut rig = Rig::fixture_with(name, KvCacheDtype::F32);
        let tolerance = tolerance(name == "tiny-llama-bf16", TOLERANCE, ROUNDED_TOLERANCE);
        for prompt in &Reference::read(name).prompts {
            let token_ids = token_ids(&prompt["prompt"]);
            check_logits(&mut rig, &token_ids, &prompt["last_logits"], (tolerance, name));
            for (position, logits) in prompt["logits"].as_array().into_iter().flatten().enumerate() {
                check_logits(&mut rig, &token_ids[..=position], logits, (tolerance, name));
            }
        }
    }
}

#[test]
fn greedy_tokens_agree_with_transformers() {
    for name in FIXTURES {
        let mut rig = Rig::fixture_with(name, KvCacheDtype::F32);
        for prompt in &Reference::read(name).prompts {
            let (prompt_ids, expected) = (token_ids(&prompt["prompt"]), token_ids(&prompt["greedy"]));
            if tolerance(name == "tiny-llama-bf16", 0.0, ROUNDED_TOLERANCE) == 0.0 {
                let tokens = rig.generate(3, &prompt_ids, SamplingParams::greedy(), expected.len());
                assert_eq!(ids(&tokens), expected, "{name}");
            } else {
                check_near_best(&mut rig, prompt, (&prompt_ids, &expected), name);
            }
        }
    }
}

/// Checks that each expected token is near the best token after the expected tokens before it. If activations are
/// rounded, tokens with almost the same score may be swapped.
fn check_near_best(rig: &mut Rig, prompt: &Value, (prompt_ids, expected): (&[u32], &[u32]), name: &str) {
    let logits = numbers(&prompt["last_logits"]);
    let largest = logits.iter().fold(0.0_f64, |largest, logit| largest.max(logit.abs()));
    for count in 0..expected.len() {
        let before = [prompt_ids, &expected[..count]].concat();
        let logprobs = logprobs(rig, &before, logits.len());
        let best = logprobs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let difference = best - logprobs[expected[count] as usize];
        // One of the two scores may be too high and the other too low.
        assert!(difference <= 2.0 * ROUNDED_TOLERANCE * largest, "{name}, token {count}: {difference} below the best");
    }
}

#[test]
fn prompt_logprobs_are_those_of_each_prefix() {
    let name = FIXTURES[0];
    let mut rig = Rig::fixture(name);
    let prompt = &Reference::read(name).prompts[0];
    let token_ids = token_ids(&prompt["prompt"]);
    let chunk = reporting(rig.chunk(0, &token_ids, Some(SamplingParams::greedy()), true), 3, None);
    let reply = rig.step(vec![chunk]);
    let logprobs = &report(&reply, 0).logprobs;
    assert_eq!(logprobs.len(), token_ids.len() - 1);
    for (position, logits) in prompt["logits"].as_array().unwrap().iter().enumerate().take(token_ids.len() - 1) {
        let logits = numbers(logits);
        let log_sum = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
        let expected = logits[token_ids[position + 1] as usize] - log_sum;
        let difference = (f64::from(logprobs[position]) - expected).abs();
        assert!(difference < 1e-3, "position {position}: {difference}");
        let top = &report(&reply, 0).top_tokens[position];
        let mut best: Vec<usize> = (0..logits.len()).collect();
        best.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        assert_eq!(top.token_ids, best[..3].iter().map(|id| *id as u32).collect::<Vec<_>>(), "position {position}");
        for (id, logprob) in top.token_ids.iter().zip(&top.logprobs) {
            let difference = (f64::from(*logprob) - (logits[*id as usize] - log_sum)).abs();
            assert!(difference < 1e-3, "position {position}, token {id}: {difference}");
        }
    }
}

#[test]
fn another_dtype_is_close() {
    let name = "tiny-llama-gqa-untied";
    let reference = Reference::read(name);
    let prompt = token_ids(&reference.prompts[0]["prompt"]);
    let logits = numbers(&reference.prompts[0]["last_logits"]);
    let log_sum = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
    for (dtype, tolerance) in [(crate::args::Dtype::Bfloat16, 0.3), (crate::args::Dtype::Float16, 0.05)] {
        let mut args = super::args(fixture(name).to_str().unwrap(), devices::Device::CPU);
        args.model.dtype = Some(dtype);
        let engine = Engines::load(&[args]).unwrap();
        assert_eq!(engine.info().dtype, dtype.to_string());
        let mut rig = Rig::warm(engine);
        let logprobs = logprobs(&mut rig, &prompt, logits.len());
        let largest = logprobs
            .iter()
            .zip(&logits)
            .map(|(logprob, logit)| (logprob - (logit - log_sum)).abs())
            .fold(0.0, f64::max);
        assert!(largest > 0.0 && largest < tolerance, "{dtype}: {largest}");
    }
}
