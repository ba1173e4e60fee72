//! Tests of single steps: invalid steps are refused without any change, broken weights are an error, and rows get what
//! they request.
//!
//! Rows request masks, best tokens, and `min_new_tokens`.

use devices::Device;
use devices::plugins::testing::plugin_path;
use proto::{Release, Row, SamplingParams, ShardError, Step, shard_error};

use super::super::EngineError;
use super::ranks::Engines;
use super::{Rig, args, fixture, load, report, reporting, tokens};

fn kind(error: &EngineError) -> shard_error::Kind {
    ShardError::from(error).kind()
}

fn refused(engine: &mut Engines, step: &Step) -> String {
    let error = engine.step(step).unwrap_err();
    assert_eq!(kind(&error), shard_error::Kind::Protocol);
    error.to_string()
}

#[test]
fn steps_before_warmup_are_refused() {
    let mut engine = load(&args("demo", Device::MOCK), &mut |_, _, _| ()).unwrap();
    let error = engine.step(&Step::default()).unwrap_err();
    assert_eq!(kind(&error), shard_error::Kind::Protocol);
    insta::assert_snapshot!(error, @"the router sent a command before warm-up, which is a defect of this server");
}

#[test]
fn one_bad_row_leaves_the_others_as_they_were() {
    let mut rig = Rig::mock();
    let expected = super::ids(&rig.generate(1, &[5, 6, 7], SamplingParams::greedy(), 4));
    let first = rig.start(1, &[5, 6, 7], SamplingParams::greedy());
    let good = rig.row(1);
    let bad = Row { slot: 2, ..Row::default() };
    let message = refused(&mut rig.engine, &Step { rows: vec![good.clone(), bad] });
    let expected_message = "the router sent a wrong command, which is a defect of this server: slot 2 is not open";
    assert_eq!(message, expected_message);
    let error = rig.engine.release(&Release { slots: vec![1, 2] }).unwrap_err();
    assert_eq!(error.to_string(), expected_message);
    let second = tokens(&rig.step(vec![good])).remove(0);
    let made = [first.token_id, second.token_id, rig.next(1).token_id, rig.next(1).token_id];
    assert_eq!(made, expected[..]);
}

/// Returns a mask that allows `tokens`.
fn mask(tokens: &[u32], vocab_size: u32) -> Option<Vec<u8>> {
    let mut bytes = vec![0; vocab_size.div_ceil(8) as usize];
    tokens.iter().for_each(|token| bytes[*token as usize / 8] |= 1 << (token % 8));
    Some(bytes)
}

#[test]
fn masked_rows_choose_what_is_allowed() {
    for mut rig in [Rig::mock(), Rig::fixture("tiny-llama-tied")] {
        let vocab_size = rig.engine.info().vocab_size;
        let params = SamplingParams { top_n_tokens: 5, ..SamplingParams::greedy() };
        let free = rig.generate(1, &[5, 6, 7], params.clone(), 2);
        let wanted = vec![vocab_size - 1, free[0].top_token_ids()[2], vocab_size / 3];
        let masked = |rig: &mut Rig, allowed: &[u32]| {
            let chunk = rig.chunk(1, &[5, 6, 7], Some(params.clone()), true);
            tokens(&rig.step(vec![super::masked(chunk, mask(allowed, vocab_size))])).remove(0)
        };
        let first = masked(&mut rig, &wanted);
        // The third best token of all is the best allowed one, because the other two allowed tokens are worse.
        assert_eq!(first.token_id, wanted[1]);
        let mut reported = first.top_token_ids().to_vec();
        reported.sort_unstable();
        let mut expected = wanted.clone();
        expected.sort_unstable();
        assert_eq!(reported, expected);
        // The mask applies to one row in one step: other rows ignore it, and the row continues without it.
        let row = super::masked(rig.row(1), mask(&[9], vocab_size));
        let chunk = rig.chunk(2, &[5, 6, 7], Some(params.clone()), true);
        let made = tokens(&rig.step(vec![chunk, row]));
        assert_eq!((&made[0], made[1].token_id), (&free[0], 9));
        let third = rig.next(1);
        assert!(third.top_token_ids().len() >= 5, "{third:?}");
        let same = rig.generate(3, &[5, 6, 7, first.token_id, 9], params.clone(), 1).remove(0);
        assert_eq!((third.token_id, third.logprob), (same.token_id, same.logprob));
        rig.release(1);
        rig.release(2);
        let only = masked(&mut rig, &[4]);
        assert_eq!((only.token_id, only.top_token_ids()), (4, [4].as_slice()));
    }
}

#[test]
fn a_model_whose_scores_are_not_finite_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json", "model.safetensors"] {
        std::fs::copy(fixture("tiny-llama-tied").join(file), directory.path().join(file)).unwrap();
    }
    // The last tensor of the file is the last norm. With the largest float as its weights, the products overflow.
    let path = directory.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let len = bytes.len();
    bytes[len - 192..].copy_from_slice(&[f32::MAX.to_le_bytes(); 48].concat());
    std::fs::write(&path, bytes).unwrap();
    let xla = plugin_path(Device::XLA_CPU).map(|_| Device::XLA_CPU);
    let sizes = proto::Warmup {
        max_total_tokens: Some(64),
        max_batch_prefill_tokens: Some(64),
        max_batch_total_tokens: Some(128),
        max_batch_size: Some(2),
        ..proto::Warmup::default()
    };
    let mut errors = Vec::new();
    for device in [Some(Device::CPU), xla].into_iter().flatten() {
        let mut engine = load(&args(directory.path().to_str().unwrap(), device), &mut |_, _, _| ()).unwrap();
        let error = engine.warmup(&sizes, &mut |_, _, _| ()).unwrap_err();
        assert_eq!((kind(&error), error.exit_status()), (shard_error::Kind::Model, 2), "{device}");
        assert!(!engine.is_warm(), "{device}");
        errors.push(error.to_string());
    }
    errors.dedup();
    insta::assert_snapshot!(
        errors.join("\n"),
        @"the model's scores of the next token are NaN or infinite in the warm-up, so it can generate nothing: a weight or a number in its configuration, such as the epsilon of the norms or rope_theta, is wrong, or its activations exceed what float32 can represent; compare the files with the published ones, or try another --dtype"
    );
}

#[test]
fn the_mock_reports_as_many_tokens_as_asked_for() {
    let mut rig = Rig::mock();
    let params = SamplingParams { top_n_tokens: 4, ..SamplingParams::greedy() };
    let chunk = reporting(rig.chunk(0, &[5, 6, 7], Some(params), true), 2, Some(8));
    let reply = rig.step(vec![chunk]);
    let token = &tokens(&reply)[0];
    assert_eq!((token.top_token_ids().len(), token.top_token_ids()[0]), (4, token.token_id));
    assert_eq!(report(&reply, 0).logprobs.len(), 3);
    let top_lens = report(&reply, 0).top_tokens.iter().map(|top| (top.token_ids.len(), top.logprobs.len()));
    assert_eq!(top_lens.collect::<Vec<_>>(), [(2, 2); 3]);
    assert!(!rig.engine.info().eos_token_ids.contains(&token.token_id));
}

#[test]
fn the_end_of_sequence_waits_for_enough_tokens() {
    let mut rig = Rig::fixture(super::FIXTURES[0]);
    let eos_token_ids = rig.engine.info().eos_token_ids.clone();
    assert!(!eos_token_ids.is_empty());
    let params = SamplingParams { min_new_tokens: 3, top_n_tokens: 1 << 20, ..SamplingParams::greedy() };
    let tokens = rig.generate(2, &[5, 6, 7], params, 5);
    let may_end = tokens.iter().map(|token| eos_token_ids.iter().all(|id| token.top_token_ids().contains(id)));
    assert_eq!(may_end.collect::<Vec<_>>(), [false, false, false, true, true]);
}
