//! Tests of models whose layers all have an attention window: blocks before the window are freed, and other sequences
//! use them.

use proto::SamplingParams;

use super::shard_model::{MASKED, mask_after};
use super::{BLOCK, Rig, SequenceSpec, chunks, limits, opening, prompt_of, spec};
use crate::*;

const WINDOW: u32 = 9;

fn rig(max_batch_size: u32, max_batch_prefill_tokens: u32, num_blocks: u32) -> Rig {
    let limits = limits(max_batch_size, max_batch_prefill_tokens, num_blocks);
    Rig::new(Limits { window: Some(WINDOW), ..limits })
}

/// Runs all sequences to the end. Returns the number of preemptions, the number of generated tokens, and the maximum
/// number of blocks in use.
fn drain(rig: &mut Rig) -> (u32, usize, u32) {
    let (mut num_preempted, mut num_tokens, mut most_used) = (0, 0, 0);
    while rig.usage().num_waiting + rig.usage().num_running > 0 {
        let (step, events) = rig.next();
        num_preempted += step.num_preempted;
        num_tokens += super::num_tokens(&events);
        most_used = most_used.max(rig.usage().num_used_blocks);
    }
    rig.next();
    (num_preempted, num_tokens, most_used)
}

#[test]
fn a_sequence_longer_than_the_cache_runs() {
    // Twelve tokens after a prompt of eighty need 23 blocks without a window. The cache has five.
    let mut rig = rig(2, 100, 5);
    rig.submit(spec(80, 12));
    assert_eq!(drain(&mut rig), (0, 12, 5));
    assert!(rig.scheduler.submit(spec(80, 200), std::time::Instant::now()).is_ok());
    let (num_preempted, num_tokens, _) = drain(&mut rig);
    assert_eq!((num_preempted, num_tokens), (0, 200));
}

#[test]
fn a_cache_smaller_than_a_window_holds_short_sequences_only() {
    let mut rig = rig(2, 100, 2);
    let now = std::time::Instant::now();
    assert!(rig.scheduler.submit(spec(5, 5), now).is_err());
    rig.submit(spec(5, 4));
    assert_eq!(drain(&mut rig), (0, 4, 2));
}

#[test]
fn sequences_that_would_be_preempted_run_side_by_side() {
    // At its end each sequence has about 40 tokens, which need ten blocks. With a window it holds only a few blocks at
    // a time.
    let run = |window| {
        let mut rig = Rig::new(Limits { window, ..limits(3, 8, 15) });
        (4..7).for_each(|prompt_len| _ = rig.submit(spec(prompt_len, 35)));
        drain(&mut rig)
    };
    let (num_preempted, num_tokens, _) = run(None);
    assert!(num_preempted > 0, "{num_preempted}");
    assert_eq!((num_tokens, run(Some(WINDOW)).0, run(Some(WINDOW)).1), (105, 0, 105));
}

/// The second sequence takes only those blocks of the shared prefix that are in its window, and reads only its own
/// token.
#[test]
fn a_prefix_is_reused_without_the_blocks_before_its_window() {
    let mut rig = rig(4, 100, 50);
    let story = |own: u32| SequenceSpec { prompt: prompt_of((0..40).chain([own])), ..spec(1, 3) };
    rig.submit(story(500));
    drain(&mut rig);
    rig.submit(story(600));
    let (step, _) = rig.next();
    let row = chunks(&step)[0];
    assert_eq!((opening(row).cached_token_ids.len(), row.token_ids.len(), row.new_blocks.len()), (40, 1, 11));
    // The token at position 40 reads positions 32 to 39, which are two blocks, and is itself in a third block.
    assert_eq!(rig.usage().num_used_blocks, 3);
    drain(&mut rig);
}

/// A second sequence takes blocks of the first sequence's prompt while the first one still runs. The tokens of the
/// first sequence stay right, and a third sequence with the same prompt reads the evicted part again.
#[test]
fn blocks_of_a_prefix_that_is_gone_are_not_found() {
    let mut rig = rig(4, 100, 16);
    let reader = SequenceSpec { max_new_tokens: 8, ..spec(40, 8) };
    rig.submit(reader.clone());
    rig.next();
    rig.next();
    let usage = rig.usage();
    assert!(usage.num_cached_blocks > 0, "{usage:?}");
    let stranger = SequenceSpec { prompt: prompt_of(9000..9000 + 10 * BLOCK), ..spec(1, 2) };
    rig.submit(stranger);
    drain(&mut rig);
    let before = rig.shard.num_read;
    rig.submit(reader);
    drain(&mut rig);
    let num_read = rig.shard.num_read - before;
    assert_eq!(num_read, 32, "two blocks are left, those at the beginning");
}

/// Blocks after an evicted part could never be found, so they do not enter the prefix cache. Otherwise they would evict
/// other prefixes.
#[test]
fn a_sequence_whose_beginning_is_gone_leaves_the_prefixes_of_others() {
    let mut rig = rig(2, 100, 10);
    rig.submit(spec(4, 200));
    (0..60).for_each(|_| _ = rig.next());
    let other = SequenceSpec { prompt: prompt_of(9000..9000 + 3 * BLOCK), ..spec(1, 1) };
    rig.submit(other.clone());
    rig.next();
    (0..100).for_each(|_| _ = rig.next());
    assert_eq!(rig.usage().num_running, 1);
    rig.submit(other);
    let (step, _) = rig.next();
    assert_eq!(opening(chunks(&step)[0]).cached_token_ids.len(), 2 * BLOCK as usize);
    drain(&mut rig);
}

#[test]
fn blocks_that_a_sequence_gives_back_admit_another_one() {
    let mut rig = rig(2, 8, 8);
    rig.submit(spec(24, 40));
    let other = rig.submit(spec(9, 1));
    let is_admitted = |events: &[Event]| {
        events.iter().any(|event| event.id == other && matches!(event.kind, SequenceEvent::Admitted { .. }))
    };
    let first = rig.next().1;
    assert!(!is_admitted(&first), "three blocks are left, and one of them for the one that runs");
    assert!((0..10).any(|_| is_admitted(&rig.next().1)));
    drain(&mut rig);
}

/// The first of two sequences moves past the shared prompt while the second one, which waits for its mask, still needs
/// the end of that prompt.
#[test]
fn shared_blocks_that_one_sequence_gives_back_stay_with_the_other() {
    let mut rig = rig(2, 100, 50);
    let story =
        |own: u32, max_new_tokens| SequenceSpec { prompt: prompt_of((0..20).chain([own])), ..spec(1, max_new_tokens) };
    rig.submit(story(500, 30));
    rig.next();
    let masked =
        SequenceSpec { sampling: SamplingParams { seed: MASKED, ..SamplingParams::greedy() }, ..story(600, 1) };
    let second = rig.submit(SequenceSpec { is_masked: true, ..masked });
    (0..20).for_each(|_| _ = rig.next());
    // The second sequence has two of the prompt's five blocks, and one of its own. The first has three others.
    assert_eq!(rig.usage().num_used_blocks, 3 + 3);
    assert!(rig.scheduler.set_mask(second, mask_after(21)));
    drain(&mut rig);
}
