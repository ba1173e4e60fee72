//! A row that cannot continue fails alone: the reply contains the failure, and the tokens of other rows are the same as
//! without the failed row.
//!
//! Tested on the CPU with one rank and two, with several types of keys and values, on XLA-CPU and on the mock.

use devices::Device;
use devices::plugins::testing::plugin_path;
use proto::{RowFailure, SampledToken, SamplingParams, StepReply};

use super::corrupted::{rewrite, set_config};
use super::independence::{bits, prompt, sampling};
use super::ranks::{Engines, on_cpu_ranks};
use super::{FIXTURES, Rig, args, fixture, ids, masked, report, reporting, tokens};
use crate::args::KvCacheDtype;

/// The token whose hidden states become infinite or NaN.
const BAD: u32 = 90;

/// Returns a checkpoint of finite numbers in which the embedding of [`BAD`] becomes infinite when it is used.
fn overflowing() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("families/granite-bias").join(file), directory.path().join(file)).unwrap();
    }
    set_config(directory.path(), "embedding_multiplier", 2.0.into());
    rewrite(directory.path(), |parts| {
        let [start, end] = parts.offsets("model.embed_tokens.weight");
        let row_bytes = (end - start) / 128;
        let row = &mut parts.data[start + BAD as usize * row_bytes..][..row_bytes];
        row.copy_from_slice(&2e38_f32.to_le_bytes().repeat(row_bytes / 4));
    });
    directory
}

fn on_two_ranks() -> Rig {
    on_cpu_ranks(fixture(FIXTURES[0]).to_str().unwrap(), 2)
}

fn failures(reply: &StepReply) -> Vec<(u32, RowFailure)> {
    reply.rows.iter().filter(|row| row.failure.is_some()).map(|row| (row.slot, row.failure())).collect()
}

fn tokens_of(reply: &StepReply, slot: u32) -> SampledToken {
    reply.rows.iter().find(|row| row.slot == slot).unwrap().token.clone().unwrap()
}

/// Runs a row in a batch with a row that fails, then another row in the slot and blocks of the failed row. Returns the
/// tokens of both rows, each first generated alone and then generated in this way.
fn beside_a_failure(rig: &mut Rig) -> [Vec<SampledToken>; 4] {
    let (observed, later) = (vec![5, 6, 7, 8, 9], vec![11, 12, 13]);
    let alone = rig.generate(1, &observed, SamplingParams::greedy(), 6);
    let later_alone = rig.generate(3, &later, sampling(3), 6);
    let chunks = vec![
        rig.chunk(1, &observed, Some(SamplingParams::greedy()), true),
        rig.chunk(2, &[5, 6, BAD, 8, 9], Some(SamplingParams::greedy()), true),
    ];
    let reply = rig.step(chunks);
    assert_eq!(failures(&reply), [(2, RowFailure::NotFinite)]);
    let mut together = vec![tokens_of(&reply, 1)];
    for step in 1..6 {
        // The router learns of the failure one step late.
        let mut rows = vec![rig.row(1)];
        rows.extend((step < 2).then(|| rig.row(2)));
        let reply = rig.step(rows);
        assert_eq!(failures(&reply), if step < 2 { vec![(2, RowFailure::NotFinite)] } else { vec![] });
        together.push(tokens_of(&reply, 1));
        if step == 1 {
            rig.release(2);
        }
    }
    rig.release(1);
    let later_together = rig.generate(2, &later, sampling(3), 6);
    [alone, together, later_alone, later_together]
}

#[test]
fn a_row_that_is_not_finite_leaves_all_others_as_they_are() {
    let directory = overflowing();
    let model_id = directory.path().to_str().unwrap();
    let mut rigs = Vec::new();
    for kv_cache_dtype in [KvCacheDtype::F32, KvCacheDtype::Bf16, KvCacheDtype::Int8] {
        let mut args = args(model_id, Device::CPU);
        args.model.kv_cache_dtype = kv_cache_dtype;
        rigs.push(Rig::warm(Engines::load(&[args]).unwrap()));
    }
    rigs.push(on_cpu_ranks(model_id, 2));
    for mut rig in rigs {
        let [alone, together, later_alone, later_together] = beside_a_failure(&mut rig);
        assert_eq!(bits(&together), bits(&alone));
        assert_eq!(bits(&later_together), bits(&later_alone));
    }
    if plugin_path(Device::XLA_CPU).is_some() {
        let mut rig = Rig::warm_for(Engines::load(&[args(model_id, Device::XLA_CPU)]).unwrap(), 4);
        let [alone, together, later_alone, later_together] = beside_a_failure(&mut rig);
        assert_eq!((ids(&together), ids(&later_together)), (ids(&alone), ids(&later_alone)));
    }
}

/// The log-probabilities after the token [`BAD`] would not be finite, so the row fails at the chunk with that token,
/// before the rest of the prompt is read.
#[test]
fn prompt_logprobs_that_are_not_finite_are_a_failure_before_the_prompt_is_read() {
    let directory = overflowing();
    let mut rig = Rig::new(directory.path().to_str().unwrap(), Device::CPU);
    let chunks = vec![
        reporting(rig.chunk(1, &[5, 6, BAD, 8], Some(SamplingParams::greedy()), false), 0, None),
        reporting(rig.chunk(2, &[5, 6, 7, 8], Some(SamplingParams::greedy()), false), 0, None),
    ];
    let reply = rig.step(chunks);
    assert_eq!((failures(&reply), tokens(&reply).len()), (vec![(1, RowFailure::NotFinite)], 0));
    assert!(report(&reply, 1).logprobs.iter().all(|logprob| logprob.is_finite()));
}

#[test]
fn a_row_that_may_choose_nothing_fails_alone() {
    let rigs = [Some(Rig::mock()), Some(Rig::fixture(FIXTURES[0])), Some(on_two_ranks())];
    for mut rig in rigs.into_iter().chain([Rig::xla_fixture_for(FIXTURES[0], 3)]).flatten() {
        let nothing = Some(vec![0; rig.engine.info().vocab_size.div_ceil(8) as usize]);
        for params in [SamplingParams::greedy(), sampling(4)] {
            let params = SamplingParams { min_new_tokens: 3, ..params };
            let alone = rig.generate(1, &prompt(20, 0), params.clone(), 3);
            let chunk = rig.chunk(2, &prompt(7, 1), Some(params.clone()), true);
            let chunks = vec![rig.chunk(1, &prompt(20, 0), Some(params.clone()), true), masked(chunk, nothing.clone())];
            let reply = rig.step(chunks);
            assert_eq!(failures(&reply), [(2, RowFailure::NothingAllowed)]);
            let rows = vec![rig.row(1), masked(rig.row(2), nothing.clone())];
            let reply = [reply, rig.step(rows)];
            assert_eq!(failures(&reply[1]), [(2, RowFailure::NothingAllowed)]);
            let tokens: Vec<SampledToken> =
                reply.iter().map(|reply| tokens_of(reply, 1)).chain([rig.next(1)]).collect();
            assert_eq!(ids(&tokens), ids(&alone));
            [1, 2].into_iter().for_each(|slot| rig.release(slot));
        }
    }
}

/// Rows generate tokens even if parameters are at the ends of their legal ranges, one parameter or several, and with a
/// mask that allows one token.
#[test]
fn extreme_parameters_make_tokens() {
    let drawn = SamplingParams { is_greedy: false, seed: 7, top_n_tokens: 5, ..SamplingParams::greedy() };
    let smallest = f32::from_bits(1);
    let mut extremes = Vec::new();
    for temperature in [smallest, 1e-40, f32::MIN_POSITIVE, 1e-20, 1e-6, 1e6, f32::MAX] {
        extremes.push(SamplingParams { temperature, ..drawn.clone() });
        for repetition_penalty in [0.01, 100.0] {
            extremes.push(SamplingParams { temperature, repetition_penalty, ..drawn.clone() });
        }
    }
    for share in [smallest, 1e-20, 1.0 - f32::EPSILON / 2.0] {
        let shares = SamplingParams { top_p: share, typical_p: share, min_p: share, ..drawn.clone() };
        extremes.push(SamplingParams { temperature: smallest, ..shares.clone() });
        extremes.push(shares);
    }
    let rigs = [Some(Rig::fixture(FIXTURES[0])), Some(on_two_ranks())];
    for mut rig in rigs.into_iter().chain([Rig::xla_fixture_for(FIXTURES[0], 3)]).flatten() {
        let mut one = vec![0; rig.engine.info().vocab_size.div_ceil(8) as usize];
        one[0] = 1 << 5;
        let best = rig.generate(1, &prompt(20, 0), SamplingParams::greedy(), 1).remove(0);
        for params in &extremes {
            let chunk = rig.chunk(2, &prompt(20, 0), Some(params.clone()), true);
            let chunks =
                vec![rig.chunk(1, &prompt(20, 0), Some(params.clone()), true), masked(chunk, Some(one.clone()))];
            let reply = rig.step(chunks);
            assert_eq!(failures(&reply), [], "{params:?}");
            let made = tokens(&reply);
            assert!(made.iter().all(|token| token.logprob.is_finite()), "{params:?}: {reply:?}");
            assert_eq!((made[1].token_id, made[1].logprob), (5, 0.0), "{params:?}");
            if params.temperature < 1e-9 && params.repetition_penalty == 1.0 {
                assert_eq!((made[0].token_id, made[0].logprob), (best.token_id, 0.0), "{params:?}");
            }
            [1, 2].into_iter().for_each(|slot| rig.release(slot));
        }
    }
}
