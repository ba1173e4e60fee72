//! Tests with fixed scripts of calls. The submodules contain tests with random histories, and tests of shared blocks,
//! tenants and windows.

mod histories;
mod pace;
mod shard_model;
mod sharing;
mod tenants;
mod windows;

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::time::{Duration, Instant};

use proto::{GivenTokens, Row, RowReply, SampledToken, SamplingParams, StepReply, command};

use crate::*;
use shard_model::ShardModel;

const EOS: u32 = 1;
const TOKEN: u32 = 7;
const BLOCK: u32 = 4;

fn limits(max_batch_size: u32, max_batch_prefill_tokens: u32, num_blocks: u32) -> Limits {
    let eos_token_ids = vec![EOS];
    let block_size_tokens = BLOCK;
    let (caches_prefixes, max_step_bytes) = (true, proto::MAX_STEP_BYTES);
    Limits {
        max_batch_size,
        max_batch_prefill_tokens,
        num_blocks,
        block_size_tokens,
        eos_token_ids,
        window: None,
        caches_prefixes,
        max_step_bytes,
    }
}

/// Returns a prompt of these tokens in the scope that all requests share.
fn prompt_of(token_ids: impl IntoIterator<Item = u32>) -> Prompt {
    Prompt { token_ids: token_ids.into_iter().collect(), scope: PrefixScope::SHARED }
}

/// Returns the shared scope if `number` is 0, otherwise the scope of the tenant with this number.
fn scope(number: u32) -> PrefixScope {
    let tenant = (number > 0).then(|| Tenant::new(number));
    PrefixScope::new(ScopeParts { tenant, salt: None }, &BuildHasherDefault::<DefaultHasher>::default())
}

/// Returns a sequence whose prompt shares no block with prompts of other lengths.
fn spec(prompt_len: u32, max_new_tokens: u32) -> SequenceSpec {
    SequenceSpec {
        prompt: prompt_of((0..prompt_len).map(|i| 100 * prompt_len + i)),
        sampling: SamplingParams::greedy(),
        wants: PromptWants::default(),
        max_new_tokens,
        ignores_eos: true,
        deadline: None,
        is_masked: false,
        tenant: Tenant::default(),
    }
}

/// A scheduler and a model of its shards. They run one step at a time.
struct Rig {
    scheduler: Scheduler,
    shard: ShardModel,
}

impl Rig {
    fn new(limits: Limits) -> Self {
        Self { shard: ShardModel::new(&limits), scheduler: Scheduler::new(limits) }
    }

    fn submit(&mut self, spec: SequenceSpec) -> SequenceId {
        self.scheduler.submit(spec, Instant::now()).unwrap()
    }

    /// Runs one step. Returns the step and its events.
    fn next(&mut self) -> (Step, Vec<Event>) {
        let step = self.scheduler.schedule(Instant::now(), &Pace::default()).unwrap();
        let reply = self.shard.run(&step);
        let mut events = step.events.clone();
        if step.phase().is_some() {
            events.extend(self.scheduler.apply(reply).unwrap());
        }
        (step, events)
    }

    fn usage(&self) -> Usage {
        self.scheduler.usage()
    }
}

/// Returns the rows that read chunks of prompts.
fn chunks(step: &Step) -> Vec<&Row> {
    step.rows.iter().filter(|row| !row.reads_sampled()).collect()
}

fn chunk_lens(step: &Step) -> Vec<usize> {
    chunks(step).iter().map(|row| row.token_ids.len()).collect()
}

/// Returns the opening of a row.
fn opening(row: &Row) -> &proto::Opening {
    row.opening.as_ref().expect("the row opens a sequence")
}

fn num_tokens(events: &[Event]) -> usize {
    events.iter().filter(|event| matches!(event.kind, SequenceEvent::Token { .. })).count()
}

#[test]
fn steps_that_read_prompts_are_prefills_and_others_decodes() {
    let mut rig = Rig::new(limits(4, 100, 10));
    rig.submit(spec(5, 3));
    for phase in [Phase::Prefill, Phase::Decode, Phase::Decode] {
        let step = rig.next().0;
        assert_eq!(step.phase(), Some(phase));
        assert!(matches!(step.into_commands()[..], [command::Kind::Step(_)]));
    }
    let step = rig.next().0;
    assert_eq!(step.phase(), None);
    assert!(matches!(step.into_commands()[..], [command::Kind::Release(_)]));
}

#[test]
fn a_sequence_is_read_then_decoded_then_released() {
    let mut rig = Rig::new(limits(4, 100, 10));
    let id = rig.submit(spec(7, 3));
    let (step, events) = rig.next();
    assert_eq!((chunk_lens(&step), step.num_decoding(), num_tokens(&events)), (vec![7], 0, 1));
    // Blocks are allocated when they are needed: the 7 prompt tokens and the first generated token fill two blocks.
    assert_eq!((rig.usage().num_used_blocks, rig.usage().num_running), (2, 1));
    let (step, _) = rig.next();
    assert_eq!((step.num_decoding(), step.rows[0].position, step.rows[0].new_blocks.len()), (1, 7, 0));
    let (step, events) = rig.next();
    assert_eq!((step.rows[0].position, step.rows[0].new_blocks.len()), (8, 1));
    let SequenceEvent::Token { finish, .. } = &events[0].kind else { panic!("{events:?}") };
    assert_eq!((events[0].id, *finish), (id, Some(TokenFinish::Length)));
    // Two blocks are full and stay in the prefix cache; the third is free.
    assert_eq!(rig.usage(), Usage { num_cached_blocks: 2, num_blocks: 10, ..Usage::default() });
    let (step, _) = rig.next();
    assert!(step.phase().is_none() && step.releases.len() == 1);
    assert!(rig.scheduler.schedule(Instant::now(), &Pace::default()).is_none() && rig.shard.rows.is_empty());
}

#[test]
fn a_sequence_joins_while_others_decode() {
    let mut rig = Rig::new(limits(4, 100, 10));
    rig.submit(spec(2, 9));
    rig.next();
    rig.submit(spec(3, 9));
    let (step, events) = rig.next();
    assert_eq!((step.rows.len(), step.num_decoding(), num_tokens(&events)), (2, 1, 2));
}

#[test]
fn a_long_prompt_is_read_in_chunks_while_others_decode() {
    let mut rig = Rig::new(limits(4, 4, 20));
    rig.submit(spec(2, 9));
    rig.next();
    rig.submit(spec(7, 1));
    let (step, _) = rig.next();
    assert_eq!((chunk_lens(&step), step.num_decoding(), chunks(&step)[0].token.is_some()), (vec![4], 1, false));
    let (step, events) = rig.next();
    assert_eq!((chunk_lens(&step), step.num_decoding(), chunks(&step)[0].token.is_some()), (vec![3], 1, true));
    assert_eq!(num_tokens(&events), 2);
}

#[test]
fn a_long_prompt_leaves_half_of_the_budget_to_short_ones() {
    let mut rig = Rig::new(limits(8, 8, 100));
    rig.submit(spec(50, 1));
    assert_eq!(chunk_lens(&rig.next().0), [8]);
    let short = [rig.submit(spec(3, 1)), rig.submit(spec(2, 1))];
    let (step, events) = rig.next();
    // The first prompt gets half of the budget, and the others share the second half in order of arrival.
    assert_eq!(chunk_lens(&step), [4, 3, 1]);
    assert_eq!(events.iter().find(|event| matches!(event.kind, SequenceEvent::Token { .. })).unwrap().id, short[0]);
    // The first prompt also gets the tokens of the second half that the others do not need.
    assert_eq!(chunk_lens(&rig.next().0), [7, 1]);
}

#[test]
fn a_short_prompt_is_read_beside_two_long_ones() {
    let mut rig = Rig::new(limits(8, 8, 100));
    rig.submit(spec(40, 1));
    rig.submit(spec(30, 1));
    assert_eq!(chunk_lens(&rig.next().0), [4, 4]);
    let short = rig.submit(spec(5, 1));
    let is_its_token = |event: &Event| event.id == short && matches!(event.kind, SequenceEvent::Token { .. });
    let steps: Vec<_> = (0..3).map(|_| rig.next()).collect();
    assert!(steps.iter().any(|(_, events)| events.iter().any(is_its_token)), "{steps:?}");
    assert!(steps.iter().all(|(step, _)| chunk_lens(step)[0] >= 4), "the first has half: {steps:?}");
}

#[test]
fn a_sequence_without_room_is_overtaken_a_bounded_number_of_times() {
    let mut rig = Rig::new(limits(4, 100, 8));
    rig.submit(spec(9, 20));
    rig.next();
    let large = rig.submit(spec(25, 2));
    let mut num_overtaken = 0;
    for round in 0..1000 {
        rig.submit(SequenceSpec { prompt: prompt_of([5000 + round]), ..spec(1, 1) });
        let (_, events) = rig.next();
        let admitted: Vec<_> =
            events.iter().filter(|event| matches!(event.kind, SequenceEvent::Admitted { .. })).map(|e| e.id).collect();
        if admitted.contains(&large) {
            break;
        }
        num_overtaken += admitted.len() as u32;
        if round % 10 == 9 {
            rig.submit(SequenceSpec { prompt: prompt_of([7000 + round; 9]), ..spec(9, 20) });
        }
    }
    assert!((1..=admission::MAX_OVERTAKEN).contains(&num_overtaken), "{num_overtaken} went before it");
    assert!(rig.scheduler.waiting.iter().all(|sequence| sequence.id > large), "it was admitted");
}

#[test]
fn eos_ends_a_sequence_unless_the_length_does() {
    let cases = [
        (2, false, Some(TokenFinish::Eos)),
        (1, false, Some(TokenFinish::Length)),
        (2, true, None),
        (1, true, Some(TokenFinish::Length)),
    ];
    for (max_new_tokens, ignores_eos, expected) in cases {
        let mut scheduler = Scheduler::new(limits(1, 10, 10));
        let spec = SequenceSpec { ignores_eos, ..spec(1, max_new_tokens) };
        scheduler.submit(spec, Instant::now()).unwrap();
        scheduler.schedule(Instant::now(), &Pace::default()).unwrap();
        let events = scheduler.apply(reply([(0, EOS)])).unwrap();
        let SequenceEvent::Token { finish, .. } = &events[0].kind else { panic!("{events:?}") };
        assert_eq!(*finish, expected);
    }
}

#[test]
fn time_in_the_queue_is_reported() {
    let start = Instant::now();
    let mut scheduler = Scheduler::new(limits(1, 10, 10));
    let id = scheduler.submit(spec(3, 1), start).unwrap();
    let step = scheduler.schedule(start + Duration::from_secs(3), &Pace::default()).unwrap();
    let waited = Duration::from_secs(3);
    let kind = SequenceEvent::Admitted { waited, num_prompt_tokens: 3, num_cached: 0 };
    assert_eq!(step.events, [Event { id, kind }]);
}

#[test]
fn whose_time_is_over_ends_wherever_it_is() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut scheduler = Scheduler::new(limits(1, 10, 10));
    let mut submit = |seconds| {
        let deadline = Some(at(seconds));
        scheduler.submit(SequenceSpec { deadline, ..spec(3, 9) }, start).unwrap()
    };
    let (running, waiting, patient) = (submit(5), submit(4), submit(60));
    assert_eq!(scheduler.schedule(at(1), &Pace::default()).unwrap().rows.len(), 1);
    let timed_out = |id| Event { id, kind: SequenceEvent::TimedOut };
    assert_eq!(scheduler.schedule(at(4), &Pace::default()).unwrap().events, [timed_out(waiting)]);
    let step = scheduler.schedule(at(6), &Pace::default()).unwrap();
    assert_eq!((step.events[0].clone(), step.releases.len()), (timed_out(running), 1));
    assert_eq!(step.events[1].id, patient, "its slot is there for the next");
    assert!(!scheduler.cancel(running) && scheduler.cancel(patient));
}

#[test]
fn cancelling_gives_back_and_is_idempotent() {
    let mut rig = Rig::new(limits(1, 10, 10));
    let running = rig.submit(spec(3, 3));
    let waiting = rig.submit(spec(3, 3));
    rig.next();
    assert!(rig.scheduler.cancel(waiting) && rig.scheduler.cancel(running) && !rig.scheduler.cancel(running));
    assert_eq!(rig.usage(), Usage { num_blocks: 10, ..Usage::default() });
    let (step, _) = rig.next();
    assert!(
        step.phase().is_none()
            && rig.scheduler.schedule(Instant::now(), &Pace::default()).is_none()
            && rig.shard.rows.is_empty()
    );
}

#[test]
fn a_sequence_that_can_never_run_is_refused() {
    let mut scheduler = Scheduler::new(limits(1, 10, 2));
    assert!(scheduler.submit(spec(4, 5), Instant::now()).is_ok());
    for (prompt_len, max_new_tokens) in [(4, 6), (0, 1), (1, 0), (1, u32::MAX)] {
        assert!(scheduler.submit(spec(prompt_len, max_new_tokens), Instant::now()).is_err());
    }
}

#[test]
fn a_reply_to_another_step_changes_nothing() {
    let mut scheduler = Scheduler::new(limits(2, 10, 10));
    assert_eq!(scheduler.apply(StepReply::default()), Err(ReplyMismatch::NoStep));
    scheduler.submit(spec(3, 3), Instant::now()).unwrap();
    scheduler.schedule(Instant::now(), &Pace::default()).unwrap();
    assert_eq!(scheduler.apply(reply([])), Err(ReplyMismatch::NumRows { expected: 1, got: 0 }));
    assert_eq!(scheduler.apply(reply([(1, TOKEN)])), Err(ReplyMismatch::Slot { expected: 0, got: 1 }));
    let mut wrong = |change: fn(&mut RowReply)| {
        let mut reply = reply([(0, TOKEN)]);
        change(&mut reply.rows[0]);
        scheduler.apply(reply).unwrap_err()
    };
    assert_eq!(wrong(|row| row.token = None), ReplyMismatch::NoToken { slot: 0 });
    let mismatch = ReplyMismatch::NumLogprobs { slot: 0, expected: 0, got: 1 };
    assert_eq!(
        wrong(|row| row.logprobs = Some(Box::new(GivenTokens { logprobs: vec![-1.0], top_tokens: vec![] }))),
        mismatch
    );
    assert_eq!(scheduler.apply(reply([(0, TOKEN)])).unwrap().len(), 1);
}

#[test]
fn a_reply_with_other_logprobs_than_were_asked_for_changes_nothing() {
    let mut rig = Rig::new(limits(2, 4, 10));
    rig.submit(SequenceSpec { wants: PromptWants { logprobs: Some(1) }, ..spec(6, 3) });
    let step = rig.scheduler.schedule(Instant::now(), &Pace::default()).unwrap();
    let reply = rig.shard.run(&step);
    let mut wrong = |change: fn(&mut GivenTokens)| {
        let mut reply = reply.clone();
        change(reply.rows[0].logprobs.as_mut().unwrap());
        rig.scheduler.apply(reply).unwrap_err()
    };
    let mismatch = ReplyMismatch::NumLogprobs { slot: 0, expected: 4, got: 3 };
    assert_eq!(wrong(|given| _ = given.logprobs.pop()), mismatch);
    let mismatch = ReplyMismatch::NumTopTokens { slot: 0, expected: 4, got: 0 };
    assert_eq!(wrong(|given| given.top_tokens.clear()), mismatch);
    let mut unwanted = reply.clone();
    unwanted.rows[0].token = Some(SampledToken::default());
    assert_eq!(rig.scheduler.apply(unwanted), Err(ReplyMismatch::UnwantedToken { slot: 0 }));
    assert_eq!(rig.scheduler.apply(reply).unwrap().len(), 1);
}

/// Returns a reply with the given tokens. Each item is a slot and a token id.
fn reply(tokens: impl IntoIterator<Item = (u32, u32)>) -> StepReply {
    let token = |token_id| Some(SampledToken { token_id, ..SampledToken::default() });
    let row = |(slot, token_id)| RowReply { slot, token: token(token_id), ..RowReply::default() };
    StepReply { rows: tokens.into_iter().map(row).collect(), ..StepReply::default() }
}
