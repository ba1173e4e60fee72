//! The same model on XLA-CPU and on the CPU backend: the tokens must be the same, and log-probabilities must agree
//! within a stated tolerance.
//!
//! XLA-CPU keeps keys and values in f32, and so does the CPU backend here. The plugin compiles the same kinds of
//! programs as for a TPU, but for a smaller model.

use devices::plugins::testing::plugin_path;
use devices::{Device, Quantize};
use proto::{LogitBias, SampledToken, SamplingParams};

use super::independence::shared_and_resumed;
use super::ranks::Engines;
use super::{FIXTURES, Rig, args, fixture, ids, masked, report, reporting, tokens};
use crate::args::KvCacheDtype;

/// The largest difference of a log-probability, by fixture. Sums in f32 are in another order. With 16-bit floats XLA
/// rounds activations too; the rounding error of f16 is an eighth of that of bf16.
const TOLERANCES: [(&str, f32); 5] = [
    ("tiny-llama-gqa-untied", 1e-4),
    ("tiny-llama-tied", 1e-4),
    ("tiny-llama3-rope", 1e-4),
    ("tiny-llama-bf16", 0.3),
    ("tiny-llama-f16", 0.04),
];

/// The tolerances with int8 weights, for three of these models. XLA's order of sums depends on the processor; on some
/// processors (Zen 4), more activations are rounded to another integer.
const INTEGER_TOLERANCES: [(&str, f32); 3] =
    [("tiny-llama-gqa-untied", 0.1), ("tiny-llama-tied", 0.1), ("tiny-llama-bf16", 0.1)];

fn prompt(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 37 + i * i) % 250).collect()
}

pub(super) fn check(xla: &[SampledToken], cpu: &[SampledToken], tolerance: f32, what: &str) {
    assert_eq!(ids(xla), ids(cpu), "{what}");
    for (xla, cpu) in xla.iter().zip(cpu) {
        assert!((xla.logprob - cpu.logprob).abs() <= tolerance, "{what}: {} instead of {}", xla.logprob, cpu.logprob);
        // If the tolerance is larger, neighbours in the list may be swapped.
        assert!(tolerance > 1e-3 || xla.top_token_ids() == cpu.top_token_ids(), "{what}: {xla:?} instead of {cpu:?}");
        assert_eq!(xla.top_token_ids().len(), cpu.top_token_ids().len(), "{what}");
        for (xla, cpu) in xla.top_logprobs().iter().zip(cpu.top_logprobs()) {
            assert!((xla - cpu).abs() <= tolerance, "{what}: {xla} instead of {cpu}");
        }
    }
}

#[test]
fn rows_behind_cached_tokens_are_those_of_the_cpu_backend() {
    let penalised = SamplingParams {
        is_greedy: false,
        temperature: 1.3,
        repetition_penalty: 1.2,
        frequency_penalty: 0.3,
        seed: 5,
        ..SamplingParams::greedy()
    };
    let Some(mut xla) = Rig::xla_fixture(FIXTURES[0]) else {
        return;
    };
    let [alone, ..] = shared_and_resumed(&mut Rig::fixture(FIXTURES[0]), &penalised);
    for tokens in shared_and_resumed(&mut xla, &penalised) {
        check(&tokens, &alone, 1e-4, "penalised");
    }
}

#[test]
fn tokens_are_those_of_the_cpu_backend() {
    let greedy = SamplingParams::greedy();
    let drawn = SamplingParams { is_greedy: false, temperature: 0.8, seed: 11, ..greedy.clone() };
    let everything = SamplingParams {
        is_greedy: false,
        temperature: 1.3,
        top_k: 50,
        top_p: 0.95,
        min_p: 0.01,
        typical_p: 0.97,
        repetition_penalty: 1.1,
        frequency_penalty: 0.3,
        presence_penalty: 0.2,
        seed: 1 << 40 | 5,
        top_n_tokens: 3,
        ..greedy.clone()
    };
    let logit_bias = [(3, 4.0), (17, -100.0), (200, 6.5)].map(|(token_id, bias)| LogitBias { token_id, bias }).to_vec();
    let steered = SamplingParams {
        logit_bias: logit_bias.clone(),
        watermark_gamma: 0.25,
        watermark_delta: 2.0,
        ..everything.clone()
    };
    let biased = SamplingParams { logit_bias, top_n_tokens: 4, ..greedy.clone() };
    let near_best =
        SamplingParams { is_greedy: false, temperature: 1.5, min_p: 0.3, top_n_tokens: 5, seed: 3, ..greedy.clone() };
    let penalised = SamplingParams {
        repetition_penalty: 1.3,
        presence_penalty: 1.5,
        min_new_tokens: 6,
        top_n_tokens: 5,
        ..greedy.clone()
    };
    for (name, tolerance) in TOLERANCES {
        let (mut cpu, Some(mut xla)) = (Rig::fixture_with(name, KvCacheDtype::F32), Rig::xla_fixture_for(name, 2))
        else {
            return;
        };
        let greedy = [(&greedy, 1), (&greedy, 40), (&penalised, 64), (&biased, 31)];
        let drawn = [(&drawn, 23), (&everything, 33), (&near_best, 17), (&steered, 29)];
        for (params, len) in greedy.into_iter().chain(drawn) {
            let what = format!("{name}, {params:?}");
            // The rounding of activations sooner or later changes a token that is sampled at random, or a token whose
            // score a bias brings near other scores.
            let is_steady = params.is_greedy && params.logit_bias.is_empty();
            let num_tokens = if tolerance < 1e-3 || is_steady { 12 } else { 1 };
            let [xla, cpu] = [&mut xla, &mut cpu].map(|rig| rig.generate(1, &prompt(len), params.clone(), num_tokens));
            check(&xla, &cpu, tolerance, &what);
        }
    }
    assert_eq!(TOLERANCES.map(|(name, _)| name), FIXTURES);
}

/// The two backends may round some activations to different integers, hence the large tolerance.
#[test]
fn tokens_of_integers_are_those_of_the_cpu_backend() {
    for (name, tolerance) in INTEGER_TOLERANCES {
        let rig = |device, kv_cache_dtype| {
            let mut args = args(fixture(name).to_str().unwrap(), device);
            (args.model.quantize, args.model.kv_cache_dtype) = (Some(Quantize::Int8), kv_cache_dtype);
            Rig::warm_for(Engines::load(&[args]).unwrap(), 2)
        };
        if plugin_path(Device::XLA_CPU).is_none() {
            return;
        }
        let (mut cpu, mut xla) = (rig(Device::CPU, KvCacheDtype::F32), rig(Device::XLA_CPU, KvCacheDtype::Auto));
        for len in [1, 31, 40, 64] {
            let params = SamplingParams { top_n_tokens: 3, ..SamplingParams::greedy() };
            let [xla, cpu] = [&mut xla, &mut cpu].map(|rig| rig.generate(1, &prompt(len), params.clone(), 12));
            check(&xla, &cpu, tolerance, &format!("{name}, {len}"));
        }
    }
}

#[test]
fn prompt_logprobs_and_chunks_are_those_of_the_cpu_backend() {
    let name = FIXTURES[0];
    let (mut cpu, Some(mut xla)) = (Rig::fixture_with(name, KvCacheDtype::F32), Rig::xla_fixture(name)) else {
        return;
    };
    let prompt = prompt(90);
    let params = SamplingParams::greedy();
    let chunk = reporting(cpu.chunk(0, &prompt, Some(params.clone()), true), 4, None);
    let expected = cpu.step(vec![chunk]);
    for cuts in [vec![], vec![1], vec![31, 33, 89]] {
        let starts = std::iter::once(0).chain(cuts.clone());
        let ends = cuts.iter().copied().chain([prompt.len()]);
        let (mut logprobs, mut made, mut tops) = (Vec::new(), Vec::new(), Vec::new());
        for (start, end) in starts.zip(ends) {
            let is_last = end == prompt.len();
            let chunk = xla.chunk(4, &prompt[start..end], (start == 0).then(|| params.clone()), is_last);
            let reply = xla.step(vec![reporting(chunk, 4, prompt.get(end).copied())]);
            logprobs.extend(report(&reply, 0).logprobs.clone());
            tops.extend(report(&reply, 0).top_tokens.clone());
            made.extend(tokens(&reply));
        }
        xla.release(4);
        check(&made, &tokens(&expected), 1e-4, &format!("{cuts:?}"));
        for (xla, cpu) in logprobs.iter().zip(&report(&expected, 0).logprobs) {
            assert!((xla - cpu).abs() <= 1e-4, "{cuts:?}: {xla} instead of {cpu}");
        }
        assert_eq!(logprobs.len(), prompt.len() - 1);
        assert_eq!(tops.len(), prompt.len() - 1);
        for (xla, cpu) in tops.iter().zip(&report(&expected, 0).top_tokens) {
            assert_eq!(xla.token_ids.len(), cpu.token_ids.len(), "{cuts:?}");
            let pairs = xla.logprobs.iter().zip(&cpu.logprobs);
            pairs.for_each(|(xla, cpu)| assert!((xla - cpu).abs() <= 1e-4, "{cuts:?}: {xla} instead of {cpu}"));
        }
    }
}

#[test]
fn masked_steps_are_those_of_the_cpu_backend() {
    let name = FIXTURES[0];
    let (mut cpu, Some(mut xla)) = (Rig::fixture_with(name, KvCacheDtype::F32), Rig::xla_fixture(name)) else {
        return;
    };
    let vocab_size = cpu.engine.info().vocab_size as usize;
    let mask = |step: usize| Some((0..vocab_size.div_ceil(8)).map(|i| (i * 37 + step * 11) as u8 | 1).collect());
    let params =
        SamplingParams { is_greedy: false, temperature: 1.2, top_n_tokens: 3, seed: 8, ..SamplingParams::greedy() };
    let [xla, cpu] = [&mut xla, &mut cpu].map(|rig| {
        rig.start(0, &prompt(9), SamplingParams::greedy());
        let chunk = masked(rig.chunk(1, &prompt(23), Some(params.clone()), true), mask(0));
        let mut made = tokens(&rig.step(vec![chunk]));
        for step in 1..10 {
            // The row in slot 1 has no mask, and every third step has no mask.
            let row = rig.row(1);
            let allowed_tokens = if step % 3 == 0 { None } else { mask(step) };
            let rows = vec![rig.row(0), masked(row, allowed_tokens)];
            made.extend(tokens(&rig.step(rows)));
        }
        made
    });
    check(&xla, &cpu, 1e-4, "masked steps");
}

#[test]
fn a_row_alone_equals_a_row_among_others() {
    let Some(mut rig) = Rig::xla_fixture(FIXTURES[0]) else {
        return;
    };
    let params = SamplingParams { is_greedy: false, temperature: 0.9, top_p: 0.9, seed: 5, ..SamplingParams::greedy() };
    let alone = rig.generate(5, &prompt(23), params.clone(), 8);
    rig.start(0, &prompt(3), SamplingParams::greedy());
    let chunks = vec![
        rig.chunk(2, &prompt(9), Some(SamplingParams { repetition_penalty: 1.2, ..params.clone() }), true),
        rig.chunk(5, &prompt(23), Some(params), true),
        rig.chunk(3, &prompt(61), Some(SamplingParams::greedy()), false),
    ];
    let rows = vec![rig.row(0)];
    let mut together = vec![tokens(&rig.step([chunks, rows].concat()))[1].clone()];
    for _ in 1..8 {
        let rows = vec![rig.row(0), rig.row(5), rig.row(2)];
        together.push(tokens(&rig.step(rows))[1].clone());
    }
    check(&together, &alone, 1e-4, "among others");
}
