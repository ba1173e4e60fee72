//! Tests of blocks that several sequences share, blocks that no sequence uses any more, and sequences that must give up
//! their blocks.

use proto::RowFailure;

use super::{BLOCK, Rig, SequenceSpec, chunk_lens, chunks, limits, num_tokens, opening, prompt_of, spec};
use crate::*;

/// Returns a sequence whose prompt has `len` tokens that are the same for all calls, then the tokens `own`.
fn prompt(len: u32, own: &[u32]) -> SequenceSpec {
    SequenceSpec { prompt: prompt_of((0..len).chain(own.iter().copied())), ..spec(1, 3) }
}

fn drain(rig: &mut Rig) {
    while rig.usage().num_waiting + rig.usage().num_running > 0 {
        rig.next();
    }
    rig.next();
}

#[test]
fn a_prompt_seen_before_is_not_read_again() {
    let mut rig = Rig::new(limits(4, 100, 50));
    rig.submit(prompt(20, &[500]));
    drain(&mut rig);
    assert_eq!(rig.shard.num_read, 21);
    rig.submit(prompt(20, &[600, 601]));
    let (step, events) = rig.next();
    let row = chunks(&step)[0];
    assert_eq!((chunk_lens(&step), row.position, opening(row).cached_token_ids.len()), (vec![2], 20, 20));
    let SequenceEvent::Admitted { num_prompt_tokens: 22, num_cached: 20, .. } = events[0].kind else {
        panic!("{events:?}")
    };
}

/// The last token must always be read, because the next token is computed from it.
#[test]
fn the_last_block_of_a_cached_prompt_is_read() {
    let mut rig = Rig::new(limits(4, 100, 50));
    for expected in [16, 4] {
        rig.submit(prompt(16, &[]));
        assert_eq!(chunk_lens(&rig.next().0), [expected]);
        drain(&mut rig);
    }
}

#[test]
fn the_next_turn_of_a_conversation_reads_only_what_is_new() {
    let mut rig = Rig::new(limits(4, 100, 50));
    let mut conversation: Vec<u32> = (0..10).collect();
    let mut num_old = 0;
    for turn in 0..5 {
        rig.submit(SequenceSpec { prompt: prompt_of(conversation.iter().copied()), max_new_tokens: 10, ..spec(1, 1) });
        let before = rig.shard.num_read;
        while rig.usage().num_waiting + rig.usage().num_running > 0 {
            let (_, events) = rig.next();
            for event in events {
                if let SequenceEvent::Token { token, .. } = event.kind {
                    conversation.push(token.token_id);
                }
            }
        }
        let num_new = conversation.len() - 10 - num_old;
        let num_read = (rig.shard.num_read - before) as usize;
        assert!(num_read <= num_new + 2 * BLOCK as usize, "turn {turn} reads {num_read} tokens for {num_new} new ones");
        num_old = conversation.len();
        conversation.extend((0..6).map(|i| 1000 + 100 * turn + i));
    }
}

/// A request with `best_of` submits several sequences with the same prompt.
#[test]
fn twins_wait_for_the_end_of_the_step_and_share() {
    let mut rig = Rig::new(limits(4, 100, 50));
    (0..3).for_each(|_| _ = rig.submit(prompt(20, &[500])));
    let (step, _) = rig.next();
    assert_eq!((chunk_lens(&step), rig.usage().num_waiting), (vec![21], 2));
    let (step, events) = rig.next();
    assert_eq!((chunk_lens(&step), step.num_decoding(), num_tokens(&events)), (vec![1, 1], 1, 3));
    // The three sequences share five blocks, and each has one of its own.
    assert_eq!(rig.usage().num_used_blocks, 8);
    drain(&mut rig);
}

#[test]
fn a_sequence_that_wants_prompt_logprobs_reads_its_whole_prompt() {
    let mut rig = Rig::new(limits(4, 100, 50));
    for _ in 0..2 {
        rig.submit(SequenceSpec { wants: PromptWants { logprobs: Some(0) }, ..prompt(20, &[]) });
        let (step, events) = rig.next();
        assert_eq!((chunk_lens(&step), chunks(&step)[0].position), (vec![20], 0));
        let is_logprobs =
            |event: &Event| matches!(&event.kind, SequenceEvent::Prompt(report) if report.logprobs.len() == 19);
        assert!(events.iter().any(is_logprobs));
    }
    drain(&mut rig);
    assert_eq!(rig.usage().num_used_blocks, 0);
}

#[test]
fn without_a_cache_everything_is_read() {
    let mut rig = Rig::new(Limits { caches_prefixes: false, ..limits(4, 100, 50) });
    (0..3).for_each(|_| _ = rig.submit(prompt(20, &[500])));
    assert_eq!(chunk_lens(&rig.next().0), [21, 21, 21]);
    drain(&mut rig);
    assert_eq!(rig.usage().num_cached_blocks, 0);
}

#[test]
fn without_a_cache_who_gives_way_reads_everything_again() {
    let mut rig = Rig::new(Limits { caches_prefixes: false, ..limits(4, 100, 8) });
    [7, 6].into_iter().for_each(|prompt_len| _ = rig.submit(spec(prompt_len, 20)));
    let mut again = Vec::new();
    while rig.usage().num_waiting + rig.usage().num_running > 0 {
        let (step, _) = rig.next();
        let opened = step.rows.into_iter().filter(|row| row.opening.is_some());
        again.extend(opened.filter(|row| opening(row).num_generated_tokens > 0));
    }
    let [row] = &again[..] else { panic!("{again:?}") };
    assert_eq!((row.position, opening(row).cached_token_ids.len()), (0, 0));
    assert_eq!(row.token_ids.len(), 6 + opening(row).num_generated_tokens as usize);
}

#[test]
fn the_least_recently_used_prompt_is_forgotten_first() {
    let mut rig = Rig::new(limits(1, 100, 10));
    let story = |first: u32| SequenceSpec { prompt: prompt_of(first..first + 12), max_new_tokens: 1, ..spec(1, 1) };
    let mut run = |first| {
        rig.submit(story(first));
        let lens = chunk_lens(&rig.next().0);
        rig.next();
        lens[0]
    };
    assert_eq!([run(100), run(200), run(300)], [12, 12, 12]);
    assert_eq!(run(100), 4, "used again, and now the last to go");
    // Prompt 400 needs three blocks: one is free, and two are taken from prompt 200. The next run of prompt 100 takes
    // the third block of prompt 200.
    assert_eq!(run(400), 12);
    assert_eq!((run(100), run(300), run(400), run(200)), (4, 4, 4, 12));
}

#[test]
fn the_sequence_admitted_last_gives_way_and_comes_back() {
    let mut rig = Rig::new(limits(4, 100, 8));
    // The prompts of 7 and 6 tokens have two blocks each. At its end each sequence needs seven blocks.
    let [first, second] = [rig.submit(spec(7, 20)), rig.submit(spec(6, 20))];
    let (mut num_preempted, mut finished, mut num_seen) = (0, Vec::new(), [0, 0]);
    while finished.len() < 2 {
        let (step, events) = rig.next();
        num_preempted += step.num_preempted;
        for event in events {
            if let SequenceEvent::Token { finish, .. } = event.kind {
                num_seen[usize::from(event.id == second)] += 1;
                finished.extend(finish.map(|_| event.id));
            }
        }
        let resumed = step.rows.iter().filter_map(|row| row.opening.as_ref());
        if let Some(opening) = resumed.into_iter().find(|opening| opening.num_generated_tokens > 0) {
            assert_eq!(opening.num_generated_tokens, num_seen[1] - 1, "what it has made counts as generated");
        }
    }
    assert_eq!((num_preempted, finished, num_seen), (1, vec![first, second], [20, 20]));
}

#[test]
fn tokens_under_way_of_a_sequence_that_gave_way_are_dropped_and_made_again() {
    let mut rig = Rig::new(limits(4, 100, 5));
    let [first, second] = [rig.submit(spec(7, 6)), rig.submit(spec(6, 6))];
    let mut replies = std::collections::VecDeque::new();
    let mut tokens = [Vec::new(), Vec::new()];
    let mut num_preempted = 0;
    for _ in 0..40 {
        let step = rig.scheduler.schedule(std::time::Instant::now(), &Pace::default());
        let is_idle = step.is_none();
        if let Some(step) = step {
            num_preempted += step.num_preempted;
            let reply = rig.shard.run(&step);
            replies.extend(step.phase().map(|_| reply));
        }
        if replies.len() == 2 || is_idle {
            for event in replies.pop_front().map_or(Vec::new(), |reply| rig.scheduler.apply(reply).unwrap()) {
                let SequenceEvent::Token { token, .. } = event.kind else { continue };
                tokens[usize::from(event.id == second)].push(token.token_id);
            }
        }
    }
    assert!(num_preempted > 0 && first < second);
    let alone = |spec: SequenceSpec| super::shard_model::completion(&spec.prompt.token_ids, 6, true);
    assert_eq!(tokens, [alone(spec(7, 6)), alone(spec(6, 6))]);
}

/// Runs the next step, in which the sequence in slot 0 fails for this reason.
fn fail_first(rig: &mut Rig, failure: RowFailure) -> Vec<Event> {
    let step = rig.scheduler.schedule(Instant::now(), &Pace::default()).unwrap();
    let reply = failed(rig.shard.run(&step), failure);
    rig.scheduler.apply(reply).unwrap()
}

/// Returns `reply` with the row in slot 0 replaced by a failure.
fn failed(mut reply: StepReply, failure: RowFailure) -> StepReply {
    let row = reply.rows.iter_mut().find(|row| row.slot == 0).unwrap();
    *row = RowReply { slot: 0, failure: Some(failure.into()), ..RowReply::default() };
    reply
}

#[test]
fn blocks_that_are_not_finite_are_read_anew() {
    for (kind, num_cached) in
        [(RowFailure::NotFinite, 0), (RowFailure::Unspecified, 0), (RowFailure::NothingAllowed, 20)]
    {
        let mut rig = Rig::new(limits(4, 100, 50));
        rig.submit(prompt(20, &[500]));
        drain(&mut rig);
        // The sequence shares five blocks of the previous one, which may be the cause of the failure.
        let id = rig.submit(prompt(20, &[600, 601, 602, 603]));
        let events = fail_first(&mut rig, kind);
        assert!(matches!(&events[..], [Event { id: of, kind: SequenceEvent::Failed(_) }] if *of == id), "{events:?}");
        rig.submit(prompt(20, &[700]));
        let (_, events) = rig.next();
        let SequenceEvent::Admitted { num_cached: found, .. } = events[0].kind else { panic!("{events:?}") };
        assert_eq!(found, num_cached, "{kind:?}");
        drain(&mut rig);
        // Forgotten blocks are evicted first, and every block can be allocated.
        rig.submit(SequenceSpec { prompt: prompt_of(9000..9190), ..spec(1, 10) });
        drain(&mut rig);
        assert_eq!(rig.usage().num_used_blocks, 0);
    }
}

#[test]
fn a_row_that_shares_with_a_failing_one_goes_on() {
    let mut rig = Rig::new(limits(4, 100, 50));
    let first = rig.submit(prompt(20, &[500]));
    rig.next();
    let second = rig.submit(SequenceSpec { max_new_tokens: 9, ..prompt(20, &[600]) });
    rig.next();
    let events = fail_first(&mut rig, RowFailure::NotFinite);
    let tokens = events.iter().filter(|event| matches!(event.kind, SequenceEvent::Token { .. }));
    assert_eq!(tokens.map(|event| event.id).collect::<Vec<_>>(), [second]);
    assert!(!rig.scheduler.cancel(first), "it has ended");
    let mut num_more = 0;
    while rig.usage().num_running > 0 {
        num_more += num_tokens(&rig.next().1);
    }
    assert_eq!(num_more, 7);
    drain(&mut rig);
    assert!(rig.shard.rows.is_empty());
}

/// All tokens of the masked sequence but the last are in blocks of a row that fails before the mask arrives.
#[test]
fn blocks_of_a_row_that_fails_are_not_opened_by_one_that_waited_for_its_mask() {
    let mut rig = Rig::new(limits(4, 100, 50));
    rig.submit(SequenceSpec { max_new_tokens: 9, ..prompt(20, &[500]) });
    rig.next();
    let masked = rig.submit(SequenceSpec { is_masked: true, ..prompt(20, &[600]) });
    let (_, events) = rig.next();
    let SequenceEvent::Admitted { num_cached, .. } = events[0].kind else { panic!("{events:?}") };
    assert_eq!((events[0].id, num_cached, rig.usage().num_running), (masked, 20, 2));
    fail_first(&mut rig, RowFailure::NotFinite);
    assert_eq!((rig.usage().num_running, rig.usage().num_waiting), (0, 1));
    assert!(rig.scheduler.set_mask(masked, vec![255; 200]));
    let step = rig.scheduler.schedule(Instant::now(), &Pace::default()).unwrap();
    let [row] = &step.rows[..] else { panic!("{step:?}") };
    assert_eq!((opening(row).cached_token_ids.len(), row.token_ids.len()), (0, 21));
}

/// With two steps under way, the reply to the second one arrives after the sequence has ended and another sequence has
/// taken its slot.
#[test]
fn replies_under_way_for_a_failing_row_are_dropped() {
    let mut rig = Rig::new(limits(1, 100, 50));
    rig.submit(spec(3, 9));
    let [first, second] = [(); 2].map(|()| rig.scheduler.schedule(Instant::now(), &Pace::default()).unwrap());
    let mut replies = [&first, &second].map(|step| failed(rig.shard.run(step), RowFailure::NotFinite));
    let next = rig.submit(spec(5, 2));
    assert_eq!(rig.scheduler.apply(std::mem::take(&mut replies[0])).unwrap().len(), 1);
    let third = rig.scheduler.schedule(Instant::now(), &Pace::default()).unwrap();
    assert_eq!((third.releases.as_slice(), third.rows.len()), ([SlotId(0)].as_slice(), 1));
    let reply = rig.shard.run(&third);
    assert_eq!(rig.scheduler.apply(std::mem::take(&mut replies[1])).unwrap(), []);
    let events = rig.scheduler.apply(reply).unwrap();
    assert_eq!((events.len(), events[0].id), (1, next));
}
