//! **Invariant**: on the CPU, a row's tokens and log-probabilities have the same bits for all neighbours in the batch,
//! and for all chunks of its prompt.
//!
//! The tests compare bits on a tiny Llama, and run random steps on the mock.

use proptest::prelude::*;
use proto::{SampledToken, SamplingParams};

use super::ranks::on_cpu_ranks;
use super::{FIXTURES, Rig, fixture, report, reporting, tokens};

pub(super) fn sampling(seed: u64) -> SamplingParams {
    SamplingParams {
        temperature: 1.3,
        top_k: 50,
        top_p: 0.95,
        repetition_penalty: 1.1,
        frequency_penalty: 0.3,
        presence_penalty: 0.2,
        seed,
        is_greedy: false,
        top_n_tokens: 3,
        ..SamplingParams::greedy()
    }
}

pub(super) fn prompt(len: usize, salt: u32) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 37 + salt * 101 + i * i) % 250).collect()
}

pub(super) fn bits(tokens: &[SampledToken]) -> Vec<(u32, u32, Vec<u32>)> {
    let logprobs = |token: &SampledToken| token.top_logprobs().iter().map(|logprob| logprob.to_bits()).collect();
    tokens.iter().map(|token| (token.token_id, token.logprob.to_bits(), logprobs(token))).collect()
}

/// Returns the tokens of a row that runs alone, and of the same row among others.
pub(super) fn steps_among_others(rig: &mut Rig) -> [Vec<SampledToken>; 2] {
    let observed = prompt(23, 0);
    let alone = rig.generate(5, &observed, sampling(7), 12);

    // Neighbours join before the observed row and with it, and one leaves while it runs.
    rig.start(0, &prompt(3, 1), SamplingParams::greedy());
    rig.start(1, &prompt(40, 2), sampling(8));
    let chunks = vec![
        rig.chunk(2, &prompt(9, 3), Some(sampling(9)), true),
        rig.chunk(5, &observed, Some(sampling(7)), true),
        rig.chunk(3, &prompt(31, 4), Some(SamplingParams::greedy()), false),
    ];
    let rows = vec![rig.row(1), rig.row(0)];
    let reply = rig.step([chunks, rows].concat());
    // Slot 3 has not read its whole prompt, so the reply does not contain its row.
    assert_eq!(reply.rows.iter().map(|row| row.slot).collect::<Vec<_>>(), [2, 5, 1, 0]);
    let mut together = vec![tokens(&reply)[1].clone()];
    for step in 1..12 {
        if step == 4 {
            rig.release(1);
        }
        let mut rows = vec![rig.row(0), rig.row(5)];
        rows.extend((step < 4).then(|| rig.row(1)));
        rows.push(rig.row(2));
        together.push(tokens(&rig.step(rows))[1].clone());
    }
    for slot in [0, 2, 3, 5] {
        rig.release(slot);
    }
    [alone, together]
}

#[test]
fn a_row_alone_equals_a_row_among_others() {
    let ranks = on_cpu_ranks(fixture(FIXTURES[0]).to_str().unwrap(), 2);
    let rigs = [FIXTURES[0], FIXTURES[3]].map(|name| (name, Rig::fixture(name)));
    for (name, mut rig) in rigs.into_iter().chain([("two ranks", ranks)]) {
        let [alone, together] = steps_among_others(&mut rig);
        assert_eq!(bits(&together), bits(&alone), "{name}");
    }
}

#[test]
fn a_chunked_prompt_equals_a_whole_one() {
    let mut rig = Rig::fixture(FIXTURES[0]);
    let prompt = prompt(45, 6);
    let params = sampling(3);
    let chunk = reporting(rig.chunk(0, &prompt, Some(params.clone()), true), 2, None);
    let whole = rig.step(vec![chunk]);
    let mut whole_tokens = tokens(&whole);
    whole_tokens.extend((0..5).map(|_| rig.next(0)));

    for cuts in [vec![1], vec![16, 17], vec![7, 8, 30, 44]] {
        let mut starts = vec![0];
        starts.extend(&cuts);
        let mut ends = cuts.clone();
        ends.push(prompt.len());
        let mut logprobs = Vec::new();
        let mut tops = Vec::new();
        let mut made = Vec::new();
        for (start, end) in starts.into_iter().zip(ends) {
            let is_last = end == prompt.len();
            let chunk = rig.chunk(4, &prompt[start..end], (start == 0).then(|| params.clone()), is_last);
            let reply = rig.step(vec![reporting(chunk, 2, prompt.get(end).copied())]);
            logprobs.extend(report(&reply, 0).logprobs.clone());
            tops.extend(report(&reply, 0).top_tokens.clone());
            made.extend(tokens(&reply));
        }
        made.extend((0..5).map(|_| rig.next(4)));
        rig.release(4);
        let bits_of = |logprobs: &[f32]| logprobs.iter().map(|logprob| logprob.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits_of(&logprobs), bits_of(&report(&whole, 0).logprobs), "{cuts:?}");
        assert_eq!(tops, report(&whole, 0).top_tokens, "{cuts:?}");
        assert_eq!(bits(&made), bits(&whole_tokens), "{cuts:?}");
    }
}

/// Returns the tokens of a row in three ways: alone; after blocks that another row has filled; and after a preemption,
/// when the row reads its own tokens again.
pub(super) fn shared_and_resumed(rig: &mut Rig, params: &SamplingParams) -> [Vec<SampledToken>; 3] {
    let prompt = prompt(45, 6);
    let alone = rig.generate(2, &prompt, params.clone(), 14);
    rig.start(0, &prompt[..40], SamplingParams::greedy());
    let chunk = rig.chunk_after_prefix((0, 1), &prompt, params.clone(), 0);
    assert_eq!(chunk.position, 32);
    let mut shared = tokens(&rig.step(vec![chunk]));
    shared.extend((0..4).map(|_| rig.next(1)));
    let resumed = |rig: &mut Rig, behind: u32| {
        let ids: Vec<u32> = prompt.iter().copied().chain(super::ids(&alone)).take(50).collect();
        let chunk = rig.chunk_after_prefix((behind, 3), &ids, params.clone(), 5);
        let mut made = alone[..5].to_vec();
        made.extend(tokens(&rig.step(vec![chunk])));
        made.extend((0..8).map(|_| rig.next(3)));
        rig.release(3);
        made
    };
    // The preempted row first shares the blocks of slot 1, and then has no cached blocks.
    shared.extend(resumed(rig, 1).split_off(5));
    let read_again = resumed(rig, 5);
    [alone, shared, read_again]
}

#[test]
fn a_row_behind_cached_tokens_equals_one_that_reads_them() {
    let ranks = on_cpu_ranks(fixture(FIXTURES[0]).to_str().unwrap(), 2);
    let rigs = [FIXTURES[0], FIXTURES[3]].map(|name| (name, Rig::fixture(name)));
    for (name, mut rig) in rigs.into_iter().chain([("two ranks", ranks)]) {
        for params in [sampling(7), SamplingParams::greedy(), SamplingParams { is_greedy: true, ..sampling(7) }] {
            let [alone, shared, read_again] = shared_and_resumed(&mut rig, &params);
            assert_eq!(bits(&shared), bits(&alone), "{name}");
            assert_eq!(bits(&read_again), bits(&alone), "{name}");
            rig.release(0);
            rig.release(1);
        }
    }
}

#[test]
fn a_slot_used_again_remembers_nothing() {
    let mut rig = Rig::fixture(FIXTURES[1]);
    let fresh = rig.generate(2, &prompt(10, 1), sampling(1), 6);
    rig.generate(2, &prompt(60, 2), sampling(2), 20);
    assert_eq!(bits(&rig.generate(2, &prompt(10, 1), sampling(1), 6)), bits(&fresh));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// In random steps, every row generates the tokens that it generates alone. A token of the mock depends on all
    /// tokens of its row.
    #[test]
    fn random_steps_mix_nothing_up(script in prop::collection::vec((0..6u32, 1..40usize, any::<bool>()), 1..60)) {
        let mut rig = Rig::mock();
        let mut alone = Rig::mock();
        let mut expected: Vec<Option<std::collections::VecDeque<u32>>> = vec![None; 6];
        for (salt, (slot, len, releases)) in script.into_iter().enumerate() {
            let running: Vec<u32> = (0..6).filter(|other| *other != slot && expected[*other as usize].is_some()).collect();
            let index = slot as usize;
            let mut chunks = Vec::new();
            if expected[index].is_none() {
                let prompt = prompt(len, salt as u32);
                expected[index] = Some(super::ids(&alone.generate(7, &prompt, SamplingParams::greedy(), 61)).into());
                chunks.push(rig.chunk(slot, &prompt, Some(SamplingParams::greedy()), true));
            } else if releases {
                rig.release(slot);
                expected[index] = None;
                continue;
            }
            let mut rows: Vec<_> = running.iter().map(|slot| rig.row(*slot)).collect();
            if chunks.is_empty() {
                rows.push(rig.row(slot));
            }
            for row in rig.step([chunks, rows].concat()).rows {
                let next = expected[row.slot as usize].as_mut().and_then(|tokens| tokens.pop_front());
                prop_assert_eq!(row.token.map(|token| token.token_id), next, "slot {}", row.slot);
            }
        }
    }
}

#[test]
fn candidates_change_no_logprob_of_a_prompt() {
    let mut rig = Rig::fixture(FIXTURES[0]);
    let prompt = prompt(80, 6);
    let mut logprobs = |top_n| {
        let chunk = reporting(rig.chunk(0, &prompt, Some(SamplingParams::greedy()), true), top_n, None);
        let reply = rig.step(vec![chunk]);
        rig.release(0);
        let report = report(&reply, 0);
        assert!(report.top_tokens.iter().all(|top| top.token_ids.len() == top_n as usize));
        report.logprobs.iter().map(|logprob| logprob.to_bits()).collect::<Vec<_>>()
    };
    assert_eq!(logprobs(0), logprobs(5));
}
