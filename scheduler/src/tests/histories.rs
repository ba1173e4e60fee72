//! Tests with random histories: sequences of actions (submit, cancel, set a mask, step, reply, wait, poison, fail) in
//! any order.
//!
//! The tests check that no slot or block leaks or has two owners, that no budget is exceeded, that every sequence ends
//! exactly once and generates the same tokens as when it runs alone, and that no sequence starves. The last check runs
//! once no sequence is submitted any more: the number of steps until all sequences end has a bound, which is computed
//! from their numbers of tokens.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proto::{Command, SamplingParams, StepReply, command, frame};

use super::shard_model::{MASKED, ShardModel, completion, mask_after};
use super::{EOS, limits, scope};
use crate::prefix_tree::PrefixTree;
use crate::*;

/// Returns the number of histories of a test run: the environment variable `HILO_HISTORIES`, or 1000 if it is not a
/// number.
fn num_histories() -> u32 {
    std::env::var("HILO_HISTORIES").ok().and_then(|number| number.parse().ok()).unwrap_or(1000)
}

/// The next action of a client, the clock or the shard.
#[derive(Debug, Clone, Copy)]
enum Action {
    Submit {
        prompt: PromptShape,
        max_new_tokens: u32,
        wants_prompt_logprobs: bool,
        ignores_eos: bool,
        seconds: Option<u64>,
        is_masked: bool,
    },
    Cancel(usize),
    Mask(usize),
    Schedule,
    Reply,
    Wait {
        seconds: u64,
    },
    /// Makes the keys and values of a row's last token non-finite.
    Poison(usize),
    FailAll,
}

/// The shape of a prompt: the first `shared_len` tokens of one of two stories, which other prompts share, then
/// `own_len` tokens that few other prompts have.
#[derive(Debug, Clone, Copy)]
struct PromptShape {
    story: u32,
    shared_len: u32,
    own: u32,
    own_len: u32,
}

impl PromptShape {
    fn token_ids(self) -> Arc<[u32]> {
        let shared = (0..self.shared_len).map(|i| 100 + self.story * 100 + i);
        shared.chain((0..self.own_len).map(|i| 1000 + self.own * 100 + i)).collect()
    }
}

fn action() -> impl Strategy<Value = Action> {
    let prompt = (0..2u32, 0..24u32, 0..3u32, 1..8u32).prop_map(|(story, shared_len, own, own_len)| PromptShape {
        story,
        shared_len,
        own,
        own_len,
    });
    let seconds = prop_oneof![5 => Just(None), 1 => (1..6u64).prop_map(Some)];
    let is_masked = prop_oneof![3 => Just(false), 1 => Just(true)];
    let submit = (prompt, 1..20u32, any::<bool>(), any::<bool>(), seconds, is_masked);
    prop_oneof![
        6 => submit.prop_map(|(prompt, max_new_tokens, wants_prompt_logprobs, ignores_eos, seconds, is_masked)| Action::Submit {
            prompt, max_new_tokens, wants_prompt_logprobs, ignores_eos, seconds, is_masked }),
        1 => any::<usize>().prop_map(Action::Cancel),
        6 => any::<usize>().prop_map(Action::Mask),
        16 => Just(Action::Schedule),
        16 => Just(Action::Reply),
        1 => (0..3u64).prop_map(|seconds| Action::Wait { seconds }),
        1 => any::<usize>().prop_map(Action::Poison),
        1 => prop_oneof![20 => Just(Action::Schedule), 1 => Just(Action::FailAll)],
    ]
}

fn pace() -> impl Strategy<Value = Pace> {
    let targets = prop_oneof![1 => Just(None), 1 => (1..5u64).prop_map(|ms| Some(Duration::from_millis(ms)))];
    let sizes = prop_oneof![1 => Just(Vec::new()), 1 => Just(vec![4, 12, 40])];
    prop_oneof![1 => Just(Pace::default()), 2 => (targets, sizes).prop_map(|(target, sizes)| Pace::new(target, sizes))]
}

/// The calls of a scheduler and their results, in order.
#[derive(Debug, Default)]
struct Log {
    entries: Vec<Entry>,
}

#[derive(Debug)]
enum Entry {
    Submit(SequenceSpec, Instant, Result<SequenceId, SubmitError>),
    Cancel(SequenceId, bool),
    Mask(SequenceId, Vec<u8>, bool),
    Schedule(Instant, Box<Pace>, Option<Step>),
    Apply(StepReply, Vec<Event>),
    FailAll(Vec<Event>),
}

impl Log {
    /// Repeats the calls on a new scheduler, and checks that the results are the same.
    fn replay(self, limits: Limits) {
        let mut scheduler = Scheduler::new(limits);
        for entry in self.entries {
            match entry {
                Entry::Submit(spec, now, result) => assert_eq!(scheduler.submit(spec, now), result),
                Entry::Cancel(id, result) => assert_eq!(scheduler.cancel(id), result),
                Entry::Mask(id, mask, result) => assert_eq!(scheduler.set_mask(id, mask), result),
                Entry::Schedule(now, pace, step) => {
                    let again = scheduler.schedule(now, &pace);
                    assert_eq!(format!("{again:?}"), format!("{step:?}"));
                }
                Entry::Apply(reply, events) => assert_eq!(scheduler.apply(reply).unwrap(), events),
                Entry::FailAll(events) => assert_eq!(scheduler.fail_all("the shard died"), events),
            }
        }
    }
}

/// The reader of a sequence: the events that it has seen so far, and the tokens that it should see.
#[derive(Debug)]
struct Reader {
    spec: SequenceSpec,
    expected: Vec<u32>,
    num_seen: usize,
    num_prompt_logprobs: usize,
    was_admitted: bool,
    /// The number of tokens before the token whose mask was set last.
    masked_at: Option<usize>,
}

/// A scheduler, a shard with at most `window` steps under way, and the readers of the sequences that have not ended.
struct Simulation {
    limits: Limits,
    scheduler: Scheduler,
    shard: ShardModel,
    window: usize,
    now: Instant,
    in_flight: VecDeque<StepReply>,
    readers: BTreeMap<SequenceId, Reader>,
    /// The blocks of the prefix cache, according to the recorded events.
    stored: BTreeMap<BlockHash, Vec<u32>>,
    pace: Pace,
    /// `None` if the history is not replayed.
    log: Option<Log>,
    num_preempted: u32,
    num_cached: u32,
    num_failed: u32,
    num_removed: u32,
    num_actions: u32,
}

impl Simulation {
    fn new(limits: Limits, window: usize, is_logged: bool) -> Self {
        let mut scheduler = Scheduler::new(limits.clone());
        scheduler.record_block_events();
        Self {
            scheduler,
            stored: BTreeMap::new(),
            shard: ShardModel::new(&limits),
            limits,
            window,
            now: Instant::now(),
            in_flight: VecDeque::new(),
            readers: BTreeMap::new(),
            log: is_logged.then(Log::default),
            pace: Pace::default(),
            num_preempted: 0,
            num_cached: 0,
            num_failed: 0,
            num_removed: 0,
            num_actions: 0,
        }
    }

    fn note(&mut self, entry: impl FnOnce() -> Entry) {
        if let Some(log) = &mut self.log {
            log.entries.push(entry());
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Submit { prompt, max_new_tokens, wants_prompt_logprobs, ignores_eos, seconds, is_masked } => {
                let scope = scope(u32::from(max_new_tokens % 3 == 0));
                let prompt = Prompt { token_ids: prompt.token_ids(), scope };
                let seed = if is_masked { MASKED } else { 0 };
                let top_n_tokens = u32::from(max_new_tokens % 2 == 0);
                let wants = PromptWants { logprobs: wants_prompt_logprobs.then_some(top_n_tokens) };
                let sampling = SamplingParams { seed, ..SamplingParams::greedy() };
                let deadline = seconds.map(|seconds| self.now + Duration::from_secs(seconds));
                let tenant = Tenant::new(u32::from(max_new_tokens % 4 == 0));
                self.submit(SequenceSpec {
                    prompt,
                    sampling,
                    wants,
                    max_new_tokens,
                    ignores_eos,
                    deadline,
                    is_masked,
                    tenant,
                });
            }
            Action::Cancel(index) => {
                let id = self.readers.keys().nth(index % self.readers.len().max(1)).copied();
                if let Some(id) = id {
                    assert!(self.scheduler.cancel(id), "a living sequence can be cancelled");
                    assert!(!self.scheduler.cancel(id), "once");
                    self.readers.remove(&id);
                    self.note(|| Entry::Cancel(id, true));
                    self.note(|| Entry::Cancel(id, false));
                }
            }
            Action::Mask(index) => {
                let id = self.readers.keys().nth(index % self.readers.len().max(1)).copied();
                id.into_iter().for_each(|id| self.set_mask(id));
            }
            Action::Schedule => self.schedule(),
            Action::Reply => self.reply(),
            Action::Wait { seconds } => self.now += Duration::from_secs(seconds),
            Action::Poison(index) => self.shard.poison(index),
            Action::FailAll => {
                let events = self.scheduler.fail_all("the shard died");
                self.note(|| Entry::FailAll(events.clone()));
                events.into_iter().for_each(|event| self.see(event));
                assert!(self.readers.is_empty());
            }
        }
        let usage = self.scheduler.usage();
        assert_eq!(self.readers.len() as u32, usage.num_waiting + usage.num_running);
        assert!(usage.num_used_blocks + usage.num_cached_blocks <= usage.num_blocks);
        self.take_block_events();
        // A comparison after each action would take as long as the rest of the history.
        self.num_actions += 1;
        if self.num_actions.is_multiple_of(4) {
            self.check_stored();
        }
    }

    /// Applies the recorded events. Each must name blocks and parents that are stored at that time.
    fn take_block_events(&mut self) {
        let block_size = self.limits.block_size_tokens as usize;
        for event in self.scheduler.take_block_events() {
            match event {
                BlockEvent::Stored { mut parent, blocks, token_ids } => {
                    assert_eq!(token_ids.len(), blocks.len() * block_size);
                    for (block, token_ids) in blocks.into_iter().zip(token_ids.chunks(block_size)) {
                        assert_eq!(block, BlockHash::new(parent, token_ids));
                        let before = parent.map_or(&[][..], |parent| &self.stored[&parent]);
                        let prefix = [before, token_ids].concat();
                        assert!(self.stored.insert(block, prefix).is_none(), "stored twice");
                        parent = Some(block);
                    }
                }
                BlockEvent::Removed { blocks } => {
                    for block in blocks {
                        assert!(self.stored.remove(&block).is_some(), "removed, but not stored");
                        self.num_removed += 1;
                    }
                }
            }
        }
    }

    /// Checks that the stored blocks are those that a lookup finds.
    fn check_stored(&self) {
        let found = self.scheduler.pool.tree().map_or(BTreeSet::new(), PrefixTree::shared_prefixes);
        assert_eq!(self.stored.values().cloned().collect::<BTreeSet<_>>(), found);
    }

    fn submit(&mut self, spec: SequenceSpec) {
        let result = self.scheduler.submit(spec.clone(), self.now);
        let now = self.now;
        self.note(|| Entry::Submit(spec.clone(), now, result.clone()));
        if let Ok(id) = result {
            let expected = completion(&spec.prompt.token_ids, spec.max_new_tokens, spec.ignores_eos);
            let reader =
                Reader { spec, expected, num_seen: 0, num_prompt_logprobs: 0, was_admitted: false, masked_at: None };
            assert!(self.readers.insert(id, reader).is_none());
        }
    }

    /// Sets the mask of the next token. The scheduler must accept one mask per token, and only for sequences with
    /// masks.
    fn set_mask(&mut self, id: SequenceId) {
        let Some(reader) = self.readers.get_mut(&id) else { return };
        let num_known = reader.spec.prompt.token_ids.len() + reader.num_seen;
        let is_new = reader.masked_at.replace(num_known) != Some(num_known);
        let expected = reader.spec.is_masked && is_new;
        let mask = mask_after(num_known as u32);
        assert_eq!(self.scheduler.set_mask(id, mask.clone()), expected);
        self.note(|| Entry::Mask(id, mask, expected));
    }

    fn schedule(&mut self) {
        if self.in_flight.len() >= self.window {
            return;
        }
        let pace = Box::new(self.pace.clone());
        let step = self.scheduler.schedule(self.now, &pace);
        if let Some(step) = &step {
            self.check_bytes(step);
            // Any time will do: the pace must only change which step reads a token.
            self.pace.learn(&step.work, Duration::from_micros(u64::from(step.work.num_prompt_tokens) % 7 * 1000));
        }
        let reply = step.as_ref().map(|step| self.shard.run(step));
        let (now, events) = (self.now, step.as_ref().map_or(Vec::new(), |step| step.events.clone()));
        if let (Some(step), Some(reply)) = (&step, reply) {
            self.num_preempted += step.num_preempted;
            if step.phase().is_some() {
                self.in_flight.push_back(reply);
            }
        }
        self.note(|| Entry::Schedule(now, pace, step));
        events.into_iter().for_each(|event| self.see(event));
    }

    /// Checks that a step is within the size limit, with 40 more bytes for each row and for the step. A step that opens
    /// only one sequence may be larger.
    fn check_bytes(&self, step: &Step) {
        let kind = Some(command::Kind::Step(proto::Step { rows: step.rows.clone() }));
        let mut bytes = Vec::new();
        frame::encode(&Command { sequence_number: 1, kind }, &mut bytes).unwrap();
        let num_bytes = bytes.len();
        let num_opened = step.rows.iter().filter(|row| row.opening.is_some()).count();
        let most = self.limits.max_step_bytes + 40 * (step.rows.len() + 1);
        assert!(num_bytes <= most || num_opened == 1, "{num_bytes} bytes of {num_opened} openings");
    }

    fn reply(&mut self) {
        let Some(reply) = self.in_flight.pop_front() else {
            return;
        };
        let slots = self.scheduler.rows.iter().map(|(slot, running)| (running.sequence.id, slot.0));
        let slots: BTreeMap<SequenceId, u32> = slots.collect();
        let events = self.scheduler.apply(reply.clone()).unwrap();
        for Event { id, kind } in &events {
            if let SequenceEvent::Failed(_) = kind {
                self.shard.note_failure(slots[id]);
                self.num_failed += 1;
            }
        }
        self.note(|| Entry::Apply(reply, events.clone()));
        events.into_iter().for_each(|event| self.see(event));
    }

    fn see(&mut self, Event { id, kind }: Event) {
        let reader = self.readers.get_mut(&id).expect("an event for a sequence that has ended");
        let is_last = kind.is_terminal();
        match kind {
            SequenceEvent::Admitted { num_prompt_tokens, num_cached, .. } => {
                assert!(!std::mem::replace(&mut reader.was_admitted, true), "admitted twice");
                assert_eq!(num_prompt_tokens as usize, reader.spec.prompt.token_ids.len());
                assert!(num_cached < num_prompt_tokens);
                self.num_cached += num_cached;
            }
            SequenceEvent::Prompt(PromptReport { logprobs, top_tokens }) => {
                let asked = reader.spec.wants.logprobs.is_some_and(|top_n| top_n > 0);
                assert_eq!(top_tokens.len(), if asked { logprobs.len() } else { 0 });
                for (index, logprob) in logprobs.iter().enumerate() {
                    // The first token has no log-probability.
                    reader.num_prompt_logprobs += 1;
                    assert_eq!(*logprob, -(reader.num_prompt_logprobs as f32), "logprob of another position");
                    let tops = top_tokens.get(index).map(|top_tokens| top_tokens.token_ids[0] as usize);
                    assert_eq!(tops, asked.then_some(reader.num_prompt_logprobs), "top tokens of another position");
                }
            }
            SequenceEvent::Failed(_) => {}
            SequenceEvent::TimedOut => {
                assert!(reader.spec.deadline.is_some_and(|deadline| deadline <= self.now));
            }
            SequenceEvent::Token { token, finish } => {
                let Reader { spec, expected, num_seen, num_prompt_logprobs, .. } = reader;
                assert_eq!(token.token_id, expected[*num_seen], "token {num_seen} is not what it makes alone");
                *num_seen += 1;
                let is_eos = token.token_id == EOS && !spec.ignores_eos;
                let expected_finish = match (*num_seen == spec.max_new_tokens as usize, is_eos) {
                    (true, _) => Some(TokenFinish::Length),
                    (false, true) => Some(TokenFinish::Eos),
                    (false, false) => None,
                };
                assert_eq!(finish, expected_finish);
                assert_eq!(
                    *num_prompt_logprobs,
                    if spec.wants.logprobs.is_some() { spec.prompt.token_ids.len() - 1 } else { 0 }
                );
            }
        }
        if is_last {
            self.readers.remove(&id);
        }
    }

    /// Checks that every sequence ends, and that no slot or block is left over.
    fn drain(&mut self) {
        // A masked sequence waits for the reply with a token before it can generate the next one.
        let steps_per_token = |reader: &Reader| if reader.spec.is_masked { self.window } else { 1 };
        let work = |reader: &Reader| {
            reader.spec.prompt.token_ids.len()
                + reader.spec.max_new_tokens as usize * steps_per_token(reader)
                + self.window
        };
        let most_rounds = self.readers.values().map(work).sum::<usize>() + 2;
        for _ in 0..most_rounds {
            let ids: Vec<SequenceId> = self.readers.keys().copied().collect();
            ids.into_iter().for_each(|id| self.set_mask(id));
            let before = self.in_flight.len();
            self.schedule();
            if self.in_flight.len() == before || self.in_flight.len() == self.window {
                self.reply();
            }
            if self.readers.is_empty() {
                break;
            }
        }
        assert!(self.readers.is_empty(), "somebody starves: {:?}", self.readers.keys());
        while !self.in_flight.is_empty() {
            self.reply();
        }
        self.schedule();
        assert!(self.in_flight.is_empty() && self.shard.rows.is_empty());
        assert!(self.scheduler.schedule(self.now, &self.pace).is_none());
        let usage = self.scheduler.usage();
        let num_cached_blocks = usage.num_cached_blocks;
        assert_eq!(usage, Usage { num_cached_blocks, num_blocks: self.limits.num_blocks, ..Usage::default() });
        assert_eq!(self.scheduler.pool.num_available(), self.limits.num_blocks);
        assert!(self.limits.caches_prefixes || num_cached_blocks == 0);
        self.take_block_events();
        self.check_stored();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: num_histories(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_history_leaks_overruns_starves_or_changes_a_token(
        actions in prop::collection::vec(action(), 0..120),
        max_batch_size in 1..6u32,
        max_batch_prefill_tokens in 1..40u32,
        num_blocks in 1..24u32,
        window in 1..3usize,
        caches_prefixes in prop_oneof![4 => Just(true), 1 => Just(false)],
        attention_window in prop_oneof![1 => Just(None), 1 => (1..24u32).prop_map(Some)],
        max_step_bytes in prop_oneof![3 => Just(proto::MAX_STEP_BYTES), 1 => 100..4000usize],
        is_logged in prop_oneof![15 => Just(false), 1 => Just(true)],
        pace in pace(),
    ) {
        let limits = limits(max_batch_size, max_batch_prefill_tokens, num_blocks);
        let limits = Limits { window: attention_window, caches_prefixes, max_step_bytes, ..limits };
        let mut simulation = Simulation::new(limits.clone(), window, is_logged);
        simulation.pace = pace;
        for action in actions {
            simulation.act(action);
        }
        simulation.drain();
        if let Some(log) = simulation.log {
            log.replay(limits);
        }
    }
}

/// Checks that histories really share blocks, preempt sequences and have failures.
#[test]
fn histories_share_preempt_and_fail() {
    // With an attention window, fewer sequences are preempted.
    for (window, num_blocks, least_preempted) in [(None, 16, 6), (Some(9), 9, 1)] {
        check_busy_history(Limits { window, ..limits(5, 20, num_blocks) }, least_preempted);
    }
}

fn check_busy_history(limits: Limits, least_preempted: u32) {
    let mut simulation = Simulation::new(limits, 2, true);
    for own in 0..30 {
        let prompt = PromptShape { story: own % 2, shared_len: 12, own, own_len: 3 };
        let submit = Action::Submit {
            prompt,
            max_new_tokens: 19,
            wants_prompt_logprobs: own % 7 == 0,
            ignores_eos: true,
            seconds: None,
            is_masked: own % 5 == 0,
        };
        [submit, Action::Schedule, Action::Schedule, Action::Reply]
            .into_iter()
            .for_each(|action| simulation.act(action));
        if own % 10 == 9 {
            simulation.act(Action::Poison(own as usize));
        }
    }
    simulation.drain();
    let Simulation { num_preempted, num_cached, num_failed, num_removed, .. } = simulation;
    assert!(
        num_preempted >= least_preempted && num_cached > 100 && num_failed > 0 && num_removed > 20,
        "{num_preempted} {num_cached} {num_failed} {num_removed}"
    );
    let (limits, log) = (simulation.limits.clone(), simulation.log.take());
    log.unwrap().replay(limits);
}
