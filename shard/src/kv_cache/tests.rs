//! Every way in which a command can be off, and that a refused one changes nothing.
//!
//! A random script shows that whatever passes the check leaves the books right.

use std::sync::Arc;

use model::sampling::Samplers;
use proptest::prelude::*;
use proto::SamplingParams;

use super::*;

const LIMITS: Limits = Limits {
    layout: StateLayout { num_slots: 4, num_blocks: 10, max_total_tokens: 40, max_batch_prefill_tokens: 30 },
    vocab_size: 100,
};

fn sampler() -> RowSampler {
    let params = SamplingParams::greedy();
    let graph = Samplers::new(LIMITS.vocab_size).graph(&params).unwrap();
    RowSampler { params: Arc::new(params), graph, eos_token_ids: Arc::default() }
}

/// Slot 0 decodes after a prompt of 16 tokens in block 3; slot 1 has read 5 tokens of its prompt into block 4.
fn table() -> RowTable {
    let mut rows = RowTable::new(LIMITS);
    rows.open(&first(chunk(0, 0, 16, &[3])), sampler());
    rows.extend(0, 16, &[3], true);
    rows.open(&first(chunk(1, 0, 5, &[4])), sampler());
    rows.extend(1, 5, &[4], false);
    rows
}

fn chunk(slot: u32, position: u32, num_tokens: usize, new_blocks: &[u32]) -> PromptChunk {
    PromptChunk {
        slot,
        position,
        token_ids: vec![7; num_tokens],
        new_blocks: new_blocks.to_vec(),
        ..PromptChunk::default()
    }
}

fn first(chunk: PromptChunk) -> PromptChunk {
    PromptChunk { sampling: Some(SamplingParams::greedy()), ..chunk }
}

/// A first chunk behind `num_cached` tokens that are in the cache.
fn behind(num_cached: u32, chunk: PromptChunk) -> PromptChunk {
    PromptChunk { position: num_cached, cached_token_ids: vec![7; num_cached as usize], ..first(chunk) }
}

fn decode(slot: u32, position: u32, new_blocks: &[u32]) -> DecodeRow {
    DecodeRow { slot, position, new_blocks: new_blocks.to_vec(), allowed_tokens: None }
}

fn message(result: Result<(), RowError>) -> String {
    result.map_or_else(|error| error.to_string(), |()| "ok".to_owned())
}

fn check_chunk(chunk: PromptChunk, expected: &str) {
    let prefill = Prefill { chunks: vec![chunk], rows: vec![] };
    assert_eq!(message(table().check_prefill(&prefill)), expected);
}

fn check_row(row: DecodeRow, expected: &str) {
    assert_eq!(message(table().check_decode(&[row])), expected);
}

#[test]
fn chunks_that_belong_to_no_row() {
    check_chunk(first(chunk(2, 0, 16, &[0])), "ok");
    check_chunk(first(chunk(4, 0, 1, &[0])), "slot 4 is beyond the 4 slots");
    check_chunk(first(chunk(1, 0, 1, &[0])), "slot 1 is already open");
    check_chunk(chunk(2, 0, 1, &[0]), "slot 2 is not open");
    let params = SamplingParams { temperature: -1.0, ..SamplingParams::greedy() };
    let bad = PromptChunk { sampling: Some(params), ..chunk(2, 0, 1, &[0]) };
    check_chunk(bad, "slot 2: `temperature` must be strictly positive");
}

#[test]
fn chunks_behind_cached_tokens() {
    check_chunk(behind(16, chunk(2, 0, 3, &[3, 5])), "ok");
    check_chunk(behind(16, chunk(2, 0, 3, &[3])), "slot 2 needs 2 blocks for 19 tokens, its table has 1");
    let elsewhere = PromptChunk { position: 15, ..behind(16, chunk(2, 0, 3, &[3, 5])) };
    check_chunk(elsewhere, "slot 2 has 16 tokens in the cache, the command says 15");
    let unknown = PromptChunk { cached_token_ids: vec![100], position: 1, ..first(chunk(2, 0, 1, &[3])) };
    check_chunk(unknown, "slot 2 gets token 100, the vocabulary has 100");
    let not_first = "slot 1 is told of cached tokens or of generated ones, which only a first chunk can be";
    check_chunk(PromptChunk { cached_token_ids: vec![7], ..chunk(1, 5, 1, &[]) }, not_first);
    check_chunk(PromptChunk { num_generated_tokens: 1, ..chunk(1, 5, 1, &[]) }, not_first);
    let params = SamplingParams { wants_prompt_logprobs: true, ..SamplingParams::greedy() };
    let blind = PromptChunk { sampling: Some(params), ..behind(16, chunk(2, 0, 3, &[3, 5])) };
    check_chunk(blind, "slot 2 wants the logprobs of its prompt, of which 16 tokens would not be computed");
}

#[test]
fn tokens_after_a_chunk_are_named_where_their_logprobs_are_asked_for() {
    let sampling = |wants_prompt_logprobs| SamplingParams { wants_prompt_logprobs, ..SamplingParams::greedy() };
    let before = |next, wants| PromptChunk {
        next_token_id: Some(next),
        sampling: Some(sampling(wants)),
        ..first(chunk(2, 0, 3, &[3]))
    };
    check_chunk(before(7, true), "ok");
    check_chunk(before(100, true), "slot 2 gets token 100, the vocabulary has 100");
    let unasked = "slot 2 names the token after a chunk whose own token follows, or whose logprobs are not asked for";
    check_chunk(before(7, false), unasked);
    check_chunk(PromptChunk { samples_token: true, ..before(7, true) }, unasked);
}

#[test]
fn what_a_row_made_earlier_is_read_again_as_generated() {
    let resumed = |num_generated_tokens| PromptChunk {
        num_generated_tokens,
        samples_token: true,
        ..behind(16, chunk(2, 0, 3, &[3, 5]))
    };
    check_chunk(resumed(19), "slot 2 has read 19 tokens, of which 19 cannot be its own");
    check_chunk(resumed(18), "ok");
    let mut rows = table();
    rows.open(&resumed(4), sampler());
    let row = rows.extend(2, 3, &[3, 5], true);
    assert_eq!((row.num_tokens, row.phase), (19, Phase::Decode { prompt_len: 15 }));
}

#[test]
fn masks_that_fit_no_vocabulary() {
    let mask = |bytes: &[u8]| Some(bytes.to_vec());
    let last = [&[0; 12], [8].as_slice()].concat();
    let check = |allowed_tokens, expected| {
        check_row(DecodeRow { allowed_tokens, ..decode(0, 16, &[0]) }, expected);
    };
    check(mask(&last), "ok");
    check(mask(&last[1..]), "slot 0 gets a mask of 12 bytes, the vocabulary of 100 needs 13");
    check(mask(&[255; 14]), "slot 0 gets a mask of 14 bytes, the vocabulary of 100 needs 13");
    // A mask that allows nothing is that row's failure, which the step answers.
    check(mask(&[0; 13]), "ok");
    let chunk = PromptChunk { allowed_tokens: mask(&last), ..first(chunk(2, 0, 16, &[0])) };
    check_chunk(PromptChunk { samples_token: true, ..chunk.clone() }, "ok");
    check_chunk(chunk, "slot 2 gets a mask for a chunk that samples no token");
}

#[test]
fn chunks_with_the_wrong_tokens() {
    check_chunk(chunk(1, 5, 11, &[]), "ok");
    check_chunk(chunk(0, 16, 1, &[0]), "slot 0 has read its whole prompt and takes no other chunk");
    check_chunk(chunk(1, 4, 1, &[]), "slot 1 has 5 tokens in the cache, the command says 4");
    check_chunk(first(chunk(2, 3, 1, &[0])), "slot 2 has 0 tokens in the cache, the command says 3");
    check_chunk(chunk(1, 5, 0, &[]), "slot 1 gets a chunk without tokens");
    let unknown = PromptChunk { token_ids: vec![99, 100], ..chunk(1, 5, 2, &[]) };
    check_chunk(unknown, "slot 1 gets token 100, the vocabulary has 100");
    check_chunk(first(chunk(2, 0, 31, &[0, 1])), "step of 31 prompt tokens, the limit is 30");
}

#[test]
fn chunks_with_the_wrong_blocks() {
    check_chunk(chunk(1, 5, 12, &[5]), "ok");
    check_chunk(chunk(1, 5, 12, &[]), "slot 1 needs 2 blocks for 17 tokens, its table has 1");
    check_chunk(chunk(1, 5, 1, &[10]), "slot 1 gets block 10, there are 10");
    check_chunk(chunk(1, 5, 1, &[4]), "slot 1 gets block 4, which it has already");
    check_chunk(chunk(1, 5, 1, &[6, 6]), "slot 1 gets block 6, which it has already");
}

#[test]
fn rows_that_decode() {
    check_row(decode(0, 16, &[0]), "ok");
    check_row(decode(0, 17, &[0]), "slot 0 has 16 tokens in the cache, the command says 17");
    check_row(decode(0, 16, &[]), "slot 0 needs 2 blocks for 17 tokens, its table has 1");
    check_row(decode(1, 5, &[]), "slot 1 has not read its whole prompt and cannot decode");
    check_row(decode(3, 0, &[]), "slot 3 is not open");
    let mut full = table();
    full.extend(0, 24, &[0, 1], false);
    let expected = "slot 0 would hold 41 tokens, the limit is 40";
    assert_eq!(message(full.check_decode(&[decode(0, 40, &[])])), expected);
}

#[test]
fn whole_commands() {
    let rows = table();
    assert_eq!(rows.check_decode(&[]), Err(RowError::EmptyStep));
    assert_eq!(rows.check_prefill(&Prefill::default()), Err(RowError::EmptyStep));
    let both = |rows: Vec<DecodeRow>| Prefill { chunks: vec![chunk(1, 5, 1, &[])], rows };
    let twice = both(vec![decode(0, 16, &[0]), decode(0, 16, &[1])]);
    assert_eq!(rows.check_prefill(&twice), Err(RowError::SlotTwice { slot: 0 }));
    assert_eq!(rows.check_prefill(&both(vec![decode(0, 16, &[0])])), Ok(()));
    let release = |slots: &[u32]| message(rows.check_release(&Release { slots: slots.to_vec() }));
    assert_eq!(release(&[0, 1]), "ok");
    assert_eq!(release(&[0, 0]), "slot 0 occurs twice in one command");
    assert_eq!(release(&[0, 2]), "slot 2 is not open");
    assert_eq!(release(&[9]), "slot 9 is beyond the 4 slots");
}

prop_compose! {
    fn any_chunk()(slot in 0..6u32, position in 0..20u32, token_ids in prop::collection::vec(0..110u32, 0..40),
        new_blocks in prop::collection::vec(0..12u32, 0..4), opens in any::<bool>(), samples_token in any::<bool>(),
        num_generated_tokens in prop_oneof![3 => Just(0), 1 => 0..30u32]
    ) -> PromptChunk {
        let sampling = opens.then(SamplingParams::greedy);
        let cached_token_ids = if opens { vec![7; position as usize] } else { Vec::new() };
        let num_generated_tokens = if opens { num_generated_tokens } else { 0 };
        PromptChunk {
            slot,
            position,
            token_ids,
            new_blocks,
            sampling,
            samples_token,
            cached_token_ids,
            num_generated_tokens,
            allowed_tokens: None,
            next_token_id: None,
        }
    }
}

proptest! {
    /// Whatever comes, a command that passes the check can be carried out, and rows never outgrow their tables.
    #[test]
    fn accepted_commands_keep_the_books_right(chunks in prop::collection::vec(any_chunk(), 1..60)) {
        let mut rows = table();
        let graph = sampler();
        for chunk in chunks {
            let prefill = Prefill { chunks: vec![chunk.clone()], rows: vec![] };
            if rows.check_prefill(&prefill).is_err() {
                continue;
            }
            if chunk.sampling.is_some() {
                rows.open(&chunk, graph.clone());
            }
            let row = rows.extend(chunk.slot, chunk.token_ids.len(), &chunk.new_blocks, chunk.samples_token);
            prop_assert!(row.num_tokens <= LIMITS.layout.max_total_tokens);
            prop_assert!(row.num_tokens <= row.block_table.len() * BLOCK_SIZE);
            prop_assert!(row.block_table.iter().all(|block| (*block as usize) < LIMITS.layout.num_blocks));
            if chunk.samples_token {
                rows.check_release(&Release { slots: vec![chunk.slot] }).unwrap();
                rows.release(chunk.slot);
            }
        }
    }
}
