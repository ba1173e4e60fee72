//! Tests of the checks of commands.
//!
//! A test with random commands shows that accepted commands keep the table consistent.

use std::sync::Arc;

use model::sampling::Samplers;
use proptest::prelude::*;
use proto::{Logprobs, Row as StepRow, Sample, SamplingParams};

use super::*;

const LIMITS: Limits = Limits {
    layout: StateLayout { num_slots: 4, num_blocks: 10, max_total_tokens: 40, max_batch_prefill_tokens: 30 },
    vocab_size: 100,
    window: None,
};

fn sampler() -> RowSampler {
    let params = SamplingParams::greedy();
    let graph = Samplers::new(LIMITS.vocab_size).graph(&params).unwrap();
    RowSampler { params: Arc::new(params), graph, eos_token_ids: Arc::default() }
}

/// Returns a table in which slot 0 has sampled a token after a prompt of 16 tokens in block 3, and slot 1 has read 5
/// tokens of its prompt into block 4.
fn table() -> RowTable {
    let mut rows = RowTable::new(LIMITS);
    carry_out(&mut rows, &last(first(chunk(0, 0, 16, &[3]))));
    carry_out(&mut rows, &first(chunk(1, 0, 5, &[4])));
    rows
}

/// Executes a checked row as the engine does.
fn carry_out(rows: &mut RowTable, row: &StepRow) {
    if let Some(opening) = &row.opening {
        rows.open(row.slot, opening, sampler());
    }
    rows.extend(row);
}

fn chunk(slot: u32, position: u32, num_tokens: usize, new_blocks: &[u32]) -> StepRow {
    StepRow { slot, position, token_ids: vec![7; num_tokens], new_blocks: new_blocks.to_vec(), ..StepRow::default() }
}

/// Returns `row` with an opening.
fn first(row: StepRow) -> StepRow {
    behind(0, row)
}

/// Returns `row` with an opening after `num_cached` cached tokens.
fn behind(num_cached: u32, row: StepRow) -> StepRow {
    let opening = Opening {
        sampling: Some(SamplingParams::greedy()),
        cached_token_ids: vec![7; num_cached as usize],
        num_generated_tokens: 0,
    };
    StepRow { position: row.position + num_cached, opening: Some(Box::new(opening)), ..row }
}

/// Returns `row` with its opening changed.
fn opened(mut row: StepRow, change: impl FnOnce(&mut Opening)) -> StepRow {
    change(row.opening.as_mut().unwrap());
    row
}

/// Returns `row` with a request for a sampled token.
fn last(row: StepRow) -> StepRow {
    StepRow { token: Some(Sample::default()), ..row }
}

fn decode(slot: u32, position: u32, new_blocks: &[u32]) -> StepRow {
    last(chunk(slot, position, 0, new_blocks))
}

fn message(result: Result<(), RowError>) -> String {
    result.map_or_else(|error| error.to_string(), |()| "ok".to_owned())
}

/// Returns the message of the error of a step with this row, or "ok".
fn checked(row: StepRow) -> String {
    message(table().check(&Step { rows: vec![row] }))
}

fn check(row: StepRow, expected: &str) {
    assert_eq!(checked(row), expected);
}

#[test]
fn rows_in_the_wrong_slot() {
    check(first(chunk(2, 0, 16, &[0])), "ok");
    insta::assert_snapshot!(checked(first(chunk(4, 0, 1, &[0]))), @"slot 4 does not exist: there are 4 slots");
    insta::assert_snapshot!(checked(first(chunk(1, 0, 1, &[0]))), @"slot 1 is already open");
    insta::assert_snapshot!(checked(chunk(2, 0, 1, &[0])), @"slot 2 is not open");
    let bad = opened(first(chunk(2, 0, 1, &[0])), |opening| opening.sampling.as_mut().unwrap().temperature = -1.0);
    insta::assert_snapshot!(checked(bad), @"slot 2: `temperature` must be strictly positive");
    let unsaid = opened(first(chunk(2, 0, 1, &[0])), |opening| opening.sampling = None);
    insta::assert_snapshot!(checked(unsaid), @"slot 2: `temperature` must be strictly positive");
}

#[test]
fn rows_behind_cached_tokens() {
    check(behind(16, chunk(2, 0, 3, &[3, 5])), "ok");
    insta::assert_snapshot!(
        checked(behind(16, chunk(2, 0, 3, &[3]))),
        @"slot 2 needs 2 blocks for 19 tokens, but its table has 1"
    );
    let elsewhere = StepRow { position: 15, ..behind(16, chunk(2, 0, 3, &[3, 5])) };
    insta::assert_snapshot!(checked(elsewhere), @"slot 2 has 16 tokens in the cache, but the command says 15");
    let unknown = opened(behind(1, chunk(2, 0, 1, &[3])), |opening| opening.cached_token_ids = vec![100]);
    insta::assert_snapshot!(checked(unknown), @"slot 2 gets token 100, but the vocabulary has 100 tokens");
}

#[test]
fn logprobs_are_of_tokens_that_are_given() {
    let wanting = |next_token_id, row| StepRow { logprobs: Some(Logprobs { next_token_id, top_n_tokens: 0 }), ..row };
    check(wanting(None, first(chunk(2, 0, 3, &[3]))), "ok");
    check(wanting(Some(7), first(chunk(2, 0, 3, &[3]))), "ok");
    check(wanting(Some(7), chunk(1, 5, 3, &[])), "ok");
    insta::assert_snapshot!(
        checked(wanting(Some(100), first(chunk(2, 0, 3, &[3])))),
        @"slot 2 gets token 100, but the vocabulary has 100 tokens"
    );
    insta::assert_snapshot!(
        checked(wanting(None, decode(0, 16, &[0]))),
        @"slot 0 wants the logprobs of given tokens, but no tokens are given"
    );
}

#[test]
fn tokens_that_a_row_generated_earlier_are_read_again_as_generated() {
    let resumed = |num_generated_tokens| {
        let row = last(behind(16, chunk(2, 0, 3, &[3, 5])));
        opened(row, |opening| opening.num_generated_tokens = num_generated_tokens)
    };
    insta::assert_snapshot!(
        checked(resumed(19)),
        @"slot 2 has read 19 tokens, of which 19 cannot be generated: the first is of the prompt"
    );
    check(resumed(18), "ok");
    let mut rows = table();
    carry_out(&mut rows, &resumed(4));
    carry_out(&mut rows, &decode(2, 19, &[]));
    let row = rows.open_row(2).unwrap();
    assert_eq!((row.num_tokens, row.prompt_len), (20, Some(15)));
}

#[test]
fn masks_that_fit_no_vocabulary() {
    let mask = [&[0; 12], [8].as_slice()].concat();
    let masked = |bytes: &[u8], row| StepRow { token: Some(Sample { allowed_tokens: Some(bytes.to_vec()) }), ..row };
    check(masked(&mask, decode(0, 16, &[0])), "ok");
    insta::assert_snapshot!(
        checked(masked(&mask[1..], decode(0, 16, &[0]))),
        @"slot 0 gets a mask of 12 bytes, but the vocabulary of 100 needs 13"
    );
    insta::assert_snapshot!(
        checked(masked(&[255; 14], decode(0, 16, &[0]))),
        @"slot 0 gets a mask of 14 bytes, but the vocabulary of 100 needs 13"
    );
    // A mask that allows no token is no error of the step, because the row fails alone.
    check(masked(&[0; 13], decode(0, 16, &[0])), "ok");
    check(masked(&mask, first(chunk(2, 0, 16, &[0]))), "ok");
}

#[test]
fn rows_with_the_wrong_tokens() {
    check(chunk(1, 5, 11, &[]), "ok");
    insta::assert_snapshot!(checked(chunk(1, 4, 1, &[])), @"slot 1 has 5 tokens in the cache, but the command says 4");
    insta::assert_snapshot!(
        checked(StepRow { position: 3, ..first(chunk(2, 0, 1, &[0])) }),
        @"slot 2 has 0 tokens in the cache, but the command says 3"
    );
    let unknown = StepRow { token_ids: vec![99, 100], ..chunk(1, 5, 2, &[]) };
    insta::assert_snapshot!(checked(unknown), @"slot 1 gets token 100, but the vocabulary has 100 tokens");
    insta::assert_snapshot!(
        checked(first(chunk(2, 0, 31, &[0, 1]))),
        @"the step has 31 prompt tokens, but the limit is 30"
    );
}

#[test]
fn rows_with_the_wrong_blocks() {
    check(chunk(1, 5, 12, &[5]), "ok");
    insta::assert_snapshot!(checked(chunk(1, 5, 12, &[])), @"slot 1 needs 2 blocks for 17 tokens, but its table has 1");
    insta::assert_snapshot!(checked(chunk(1, 5, 1, &[10])), @"slot 1 gets block 10, but there are 10 blocks");
    insta::assert_snapshot!(checked(chunk(1, 5, 1, &[4])), @"slot 1 gets block 4, which it has already");
    insta::assert_snapshot!(checked(chunk(1, 5, 1, &[6, 6])), @"slot 1 gets block 6, which it has already");
}

/// With a window of 17 tokens, the row does not own the block of its first 16 tokens from position 32 on.
#[test]
fn blocks_before_the_window_may_come_again() {
    let limits = Limits { window: Some(17), ..LIMITS };
    let check = |rows: &RowTable, row| message(rows.check(&Step { rows: vec![row] }));
    for (num_tokens, is_dead) in [(31, false), (32, true)] {
        let mut rows = RowTable::new(limits);
        carry_out(&mut rows, &last(first(chunk(0, 0, num_tokens, &[3, 4]))));
        let decode = |block| check(&rows, decode(0, num_tokens as u32, &[block]));
        assert_eq!(decode(3), if is_dead { "ok" } else { "slot 0 gets block 3, which it has already" });
        assert_eq!(decode(4), "slot 0 gets block 4, which it has already");
    }
    // A row that opens after a prefix of 32 tokens does not own the first block of the prefix.
    let rows = RowTable::new(limits);
    let open = |num_cached, blocks: &[u32]| check(&rows, behind(num_cached, chunk(2, 0, 1, blocks)));
    assert_eq!(open(32, &[3, 5, 3]), "ok");
    insta::assert_snapshot!(open(32, &[3, 5, 5]), @"slot 2 gets block 5, which it has already");
    insta::assert_snapshot!(open(16, &[3, 3]), @"slot 2 gets block 3, which it has already");
}

#[test]
fn rows_that_read_the_token_that_they_sampled() {
    check(decode(0, 16, &[0]), "ok");
    insta::assert_snapshot!(
        checked(decode(0, 17, &[0])),
        @"slot 0 has 16 tokens in the cache, but the command says 17"
    );
    insta::assert_snapshot!(checked(decode(0, 16, &[])), @"slot 0 needs 2 blocks for 17 tokens, but its table has 1");
    let nothing = "slot 1 is to go on from the token that the shard sampled for it, but the shard has sampled none";
    check(decode(1, 5, &[]), nothing);
    check(first(decode(2, 0, &[0])), &nothing.replace('1', "2"));
    insta::assert_snapshot!(checked(decode(3, 0, &[])), @"slot 3 is not open");
    // Given tokens may replace the sampled token. The row then has no sampled token until it samples again.
    check(chunk(0, 16, 2, &[0]), "ok");
    let mut rows = table();
    carry_out(&mut rows, &chunk(0, 16, 2, &[0]));
    let step = |row| Step { rows: vec![row] };
    assert_eq!(rows.check(&step(decode(0, 18, &[]))), Err(RowError::NothingSampled { slot: 0 }));
    carry_out(&mut rows, &last(chunk(0, 18, 22, &[1])));
    assert_eq!(rows.open_row(0).unwrap().prompt_len, Some(16));
    let expected = "slot 0 would hold 41 tokens, but the limit is 40";
    assert_eq!(message(rows.check(&step(decode(0, 40, &[])))), expected);
}

#[test]
fn whole_commands() {
    let rows = table();
    assert_eq!(rows.check(&Step::default()), Err(RowError::EmptyStep));
    let both = |others: &[StepRow]| Step { rows: [&[chunk(1, 5, 1, &[])], others].concat() };
    let twice = both(&[decode(0, 16, &[0]), decode(0, 16, &[1])]);
    assert_eq!(rows.check(&twice), Err(RowError::SlotTwice { slot: 0 }));
    assert_eq!(rows.check(&both(&[decode(0, 16, &[0])])), Ok(()));
    let release = |slots: &[u32]| message(rows.check_release(&Release { slots: slots.to_vec() }));
    assert_eq!(release(&[0, 1]), "ok");
    insta::assert_snapshot!(release(&[0, 0]), @"slot 0 occurs twice in one command");
    insta::assert_snapshot!(release(&[0, 2]), @"slot 2 is not open");
    insta::assert_snapshot!(release(&[9]), @"slot 9 does not exist: there are 4 slots");
}

prop_compose! {
    fn any_row()(slot in 0..6u32, position in 0..20u32, token_ids in prop::collection::vec(0..110u32, 0..40),
        new_blocks in prop::collection::vec(0..12u32, 0..4), opens in any::<bool>(), samples in any::<bool>(),
        num_generated_tokens in prop_oneof![3 => Just(0), 1 => 0..30u32]
    ) -> StepRow {
        let opening = opens.then(|| Box::new(Opening {
            sampling: Some(SamplingParams::greedy()),
            cached_token_ids: vec![7; position as usize],
            num_generated_tokens,
        }));
        let token = samples.then(Sample::default);
        StepRow { slot, position, token_ids, new_blocks, opening, token, logprobs: None }
    }
}

proptest! {
    /// Every command that passes the check can be executed, and no row outgrows its block table.
    #[test]
    fn accepted_commands_keep_the_books_right(script in prop::collection::vec(any_row(), 1..60)) {
        let mut rows = table();
        for row in script {
            if rows.check(&Step { rows: vec![row.clone()] }).is_err() {
                continue;
            }
            carry_out(&mut rows, &row);
            let open = rows.open_row(row.slot).unwrap();
            prop_assert!(open.num_tokens <= LIMITS.layout.max_total_tokens);
            prop_assert!(open.num_tokens <= open.block_table.len() * BLOCK_SIZE);
            prop_assert!(open.block_table.iter().all(|block| (*block as usize) < LIMITS.layout.num_blocks));
            prop_assert!(open.prompt_len.is_none_or(|len| 0 < len && len <= open.num_tokens));
            if row.token.is_some() && row.slot % 2 == 0 {
                rows.check_release(&Release { slots: vec![row.slot] }).unwrap();
                rows.release(row.slot);
            }
        }
    }
}
