//! Scripted scenes, and random histories against a model of the shard that checks every command as a shard would.
//!
//! The histories prove that no slot or block leaks or has two owners, that no budget is passed, that every sequence
//! has exactly one end, and that nobody starves; with one and with two steps under way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proto::{PromptLogprobs, SampledToken, SamplingParams, StepReply, command};

use super::*;

const EOS: u32 = 1;
const TOKEN: u32 = 7;
const BLOCK: u32 = 4;

fn limits(max_batch_size: u32, max_batch_prefill_tokens: u32, num_blocks: u32) -> Limits {
    let eos_token_ids = vec![EOS];
    Limits { max_batch_size, max_batch_prefill_tokens, num_blocks, block_size_tokens: BLOCK, eos_token_ids }
}

fn spec(prompt_len: u32, max_new_tokens: u32) -> SequenceSpec {
    SequenceSpec {
        prompt: (0..prompt_len).collect(),
        sampling: SamplingParams::greedy(),
        max_new_tokens,
        ignores_eos: false,
    }
}

/// What a shard knows of one open row.
#[derive(Debug)]
struct Row {
    position: u32,
    blocks: Vec<u32>,
    wants_prompt_logprobs: bool,
}

/// Checks commands as a shard does, and that no block belongs to two rows.
#[derive(Debug, Default)]
struct ShardModel {
    rows: BTreeMap<u32, Row>,
}

impl ShardModel {
    fn run(&mut self, step: &Step, limits: &Limits, sample: &mut dyn FnMut() -> u32) -> StepReply {
        for slot in &step.releases {
            assert!(self.rows.remove(&slot.0).is_some(), "release of slot {} that is not open", slot.0);
        }
        let mut reply = StepReply::default();
        let mut slots = BTreeSet::new();
        for chunk in &step.chunks {
            assert!(slots.insert(chunk.slot), "slot {} twice in a step", chunk.slot);
            if let Some(sampling) = &chunk.sampling {
                let wants_prompt_logprobs = sampling.wants_prompt_logprobs;
                let row = Row { position: 0, blocks: Vec::new(), wants_prompt_logprobs };
                assert!(self.rows.insert(chunk.slot, row).is_none(), "slot {} opened twice", chunk.slot);
            }
            let num_tokens = chunk.token_ids.len();
            self.advance(chunk.slot, chunk.position, num_tokens as u32, &chunk.new_blocks);
            if self.rows[&chunk.slot].wants_prompt_logprobs {
                reply.prompt_logprobs.push(PromptLogprobs { slot: chunk.slot, logprobs: vec![-1.0; num_tokens] });
            }
            if chunk.samples_token {
                reply.tokens.push(SampledToken { slot: chunk.slot, token_id: sample(), ..Default::default() });
            }
        }
        for row in &step.rows {
            assert!(slots.insert(row.slot), "slot {} twice in a step", row.slot);
            self.advance(row.slot, row.position, 1, &row.new_blocks);
            reply.tokens.push(SampledToken { slot: row.slot, token_id: sample(), ..Default::default() });
        }
        let prompt_tokens: usize = step.chunks.iter().map(|chunk| chunk.token_ids.len()).sum();
        assert!(prompt_tokens <= limits.max_batch_prefill_tokens as usize, "prefill budget passed");
        assert!(slots.len() <= limits.max_batch_size as usize, "batch size passed");
        self.check_blocks(limits);
        reply
    }

    fn advance(&mut self, slot: u32, position: u32, num_tokens: u32, new_blocks: &[u32]) {
        let row = self.rows.get_mut(&slot).unwrap_or_else(|| panic!("slot {slot} is not open"));
        assert_eq!(row.position, position, "position of slot {slot}");
        assert!(num_tokens > 0, "empty chunk");
        row.blocks.extend(new_blocks);
        row.position += num_tokens;
        assert!(row.position <= row.blocks.len() as u32 * BLOCK, "block table of slot {slot} is too short");
    }

    fn check_blocks(&self, limits: &Limits) {
        let mut owned = BTreeSet::new();
        for block in self.rows.values().flat_map(|row| &row.blocks) {
            assert!(*block < limits.num_blocks, "block {block} does not exist");
            assert!(owned.insert(*block), "block {block} has two owners");
        }
    }
}

fn next(scheduler: &mut Scheduler, shard: &mut ShardModel) -> (Step, Vec<Event>) {
    let limits = scheduler.limits.clone();
    let step = scheduler.schedule(Instant::now()).unwrap();
    let reply = shard.run(&step, &limits, &mut || TOKEN);
    let events = if step.phase().is_some() { scheduler.apply(reply).unwrap() } else { Vec::new() };
    (step, events)
}

#[test]
fn rows_alone_are_a_decode_and_chunks_a_prefill() {
    let (mut scheduler, mut shard) = (Scheduler::new(limits(4, 100, 10)), ShardModel::default());
    scheduler.submit(spec(5, 3), Instant::now()).unwrap();
    let mut commands = || next(&mut scheduler, &mut shard).0.into_commands();
    assert!(matches!(commands()[..], [command::Kind::Prefill(_)]));
    assert!(matches!(commands()[..], [command::Kind::Decode(_)]));
    assert!(matches!(commands()[..], [command::Kind::Decode(_)]));
    assert!(matches!(commands()[..], [command::Kind::Release(_)]));
}

#[test]
fn a_sequence_is_read_then_decoded_then_released() {
    let (mut scheduler, mut shard) = (Scheduler::new(limits(4, 100, 10)), ShardModel::default());
    let id = scheduler.submit(spec(5, 3), Instant::now()).unwrap();
    let (step, events) = next(&mut scheduler, &mut shard);
    assert_eq!((step.chunks.len(), step.rows.len(), events.len()), (1, 0, 1));
    // 5 prompt tokens and 2 of the 3 made are written: 7 tokens, 2 blocks of 4.
    assert_eq!((scheduler.usage().num_used_blocks, scheduler.usage().num_used_slots), (2, 1));
    let (step, _) = next(&mut scheduler, &mut shard);
    assert_eq!((step.chunks.len(), step.rows.len(), step.rows[0].position), (0, 1, 5));
    let (_, events) = next(&mut scheduler, &mut shard);
    let SequenceEvent::Token { finish, .. } = &events[0].kind else { panic!("{events:?}") };
    assert_eq!((events[0].id, *finish), (id, Some(FinishReason::Length)));
    assert_eq!(scheduler.usage(), Usage { num_blocks: 10, ..Usage::default() });
    let (step, _) = next(&mut scheduler, &mut shard);
    assert!(step.phase().is_none() && step.releases.len() == 1);
    assert!(scheduler.schedule(Instant::now()).is_none() && shard.rows.is_empty());
}

#[test]
fn a_sequence_joins_while_others_decode() {
    let (mut scheduler, mut shard) = (Scheduler::new(limits(4, 100, 10)), ShardModel::default());
    scheduler.submit(spec(2, 9), Instant::now()).unwrap();
    next(&mut scheduler, &mut shard);
    scheduler.submit(spec(3, 9), Instant::now()).unwrap();
    let (step, events) = next(&mut scheduler, &mut shard);
    assert_eq!((step.chunks.len(), step.rows.len(), events.len()), (1, 1, 2));
}

#[test]
fn a_long_prompt_is_read_in_chunks_while_others_decode() {
    let (mut scheduler, mut shard) = (Scheduler::new(limits(4, 4, 20)), ShardModel::default());
    scheduler.submit(spec(2, 9), Instant::now()).unwrap();
    scheduler.submit(spec(7, 1), Instant::now()).unwrap();
    let lens = |step: &Step| step.chunks.iter().map(|chunk| chunk.token_ids.len()).collect::<Vec<_>>();
    let (step, _) = next(&mut scheduler, &mut shard);
    assert_eq!((lens(&step), step.rows.len()), (vec![2, 2], 0));
    let (step, _) = next(&mut scheduler, &mut shard);
    assert_eq!((lens(&step), step.rows.len(), step.chunks[0].samples_token), (vec![4], 1, false));
    let (step, events) = next(&mut scheduler, &mut shard);
    assert_eq!((lens(&step), step.rows.len(), step.chunks[0].samples_token), (vec![1], 1, true));
    assert_eq!(events.len(), 2);
}

#[test]
fn the_head_of_the_queue_is_never_overtaken() {
    let (mut scheduler, mut shard) = (Scheduler::new(limits(4, 100, 4)), ShardModel::default());
    scheduler.submit(spec(4, 5), Instant::now()).unwrap();
    next(&mut scheduler, &mut shard);
    scheduler.submit(spec(8, 9), Instant::now()).unwrap();
    scheduler.submit(spec(1, 1), Instant::now()).unwrap();
    let (step, _) = next(&mut scheduler, &mut shard);
    // Two blocks are free, the head needs four; the last would fit and waits all the same.
    assert_eq!((step.chunks.len(), scheduler.usage().num_waiting), (0, 2));
}

#[test]
fn eos_ends_a_sequence_unless_the_length_does() {
    let cases = [
        (2, false, Some(FinishReason::EosToken)),
        (1, false, Some(FinishReason::Length)),
        (2, true, None),
        (1, true, Some(FinishReason::Length)),
    ];
    for (max_new_tokens, ignores_eos, expected) in cases {
        let mut scheduler = Scheduler::new(limits(1, 10, 10));
        let spec = SequenceSpec { ignores_eos, ..spec(1, max_new_tokens) };
        scheduler.submit(spec, Instant::now()).unwrap();
        let step = scheduler.schedule(Instant::now()).unwrap();
        let reply = ShardModel::default().run(&step, &scheduler.limits, &mut || EOS);
        let events = scheduler.apply(reply).unwrap();
        let SequenceEvent::Token { finish, .. } = &events[0].kind else { panic!("{events:?}") };
        assert_eq!(*finish, expected);
    }
}

#[test]
fn time_in_the_queue_is_reported() {
    let start = Instant::now();
    let mut scheduler = Scheduler::new(limits(1, 10, 10));
    let id = scheduler.submit(spec(1, 1), start).unwrap();
    let step = scheduler.schedule(start + Duration::from_secs(3)).unwrap();
    assert_eq!(step.events, [Event { id, kind: SequenceEvent::Admitted { waited: Duration::from_secs(3) } }]);
}

#[test]
fn cancelling_gives_back_and_is_idempotent() {
    let (mut scheduler, mut shard) = (Scheduler::new(limits(1, 10, 10)), ShardModel::default());
    let running = scheduler.submit(spec(3, 3), Instant::now()).unwrap();
    let waiting = scheduler.submit(spec(3, 3), Instant::now()).unwrap();
    next(&mut scheduler, &mut shard);
    assert!(scheduler.cancel(waiting) && scheduler.cancel(running) && !scheduler.cancel(running));
    assert_eq!(scheduler.usage(), Usage { num_blocks: 10, ..Usage::default() });
    let (step, _) = next(&mut scheduler, &mut shard);
    assert!(step.phase().is_none() && scheduler.schedule(Instant::now()).is_none() && shard.rows.is_empty());
}

#[test]
fn what_can_never_run_is_refused() {
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
    scheduler.schedule(Instant::now()).unwrap();
    let token = |slot| SampledToken { slot, token_id: TOKEN, ..Default::default() };
    let reply = |tokens| StepReply { tokens, ..Default::default() };
    assert_eq!(scheduler.apply(reply(vec![])), Err(ReplyMismatch::NumTokens { expected: 1, got: 0 }));
    assert_eq!(scheduler.apply(reply(vec![token(1)])), Err(ReplyMismatch::Slot { expected: 0, got: 1 }));
    let mut with_logprobs = reply(vec![token(0)]);
    with_logprobs.prompt_logprobs.push(PromptLogprobs::default());
    assert!(matches!(scheduler.apply(with_logprobs), Err(ReplyMismatch::NumPromptLogprobs { expected: 0, got: 1 })));
    assert_eq!(scheduler.apply(reply(vec![token(0)])).unwrap().len(), 1);
}

/// What a client or the shard does next in a random history.
#[derive(Debug, Clone, Copy)]
enum Action {
    Submit { prompt_len: u32, max_new_tokens: u32, wants_prompt_logprobs: bool },
    Cancel(usize),
    Schedule,
    Reply { token_id: u32 },
    FailAll,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => (1..30u32, 1..20u32, any::<bool>()).prop_map(|(prompt_len, max_new_tokens, wants_prompt_logprobs)| {
            Action::Submit { prompt_len, max_new_tokens, wants_prompt_logprobs }
        }),
        1 => any::<usize>().prop_map(Action::Cancel),
        8 => Just(Action::Schedule),
        8 => prop_oneof![9 => Just(TOKEN), 1 => Just(EOS)].prop_map(|token_id| Action::Reply { token_id }),
        1 => prop_oneof![20 => Just(Action::Schedule), 1 => Just(Action::FailAll)],
    ]
}

/// A scheduler, a shard behind a window of commands, and what the readers have seen.
struct Simulation {
    limits: Limits,
    scheduler: Scheduler,
    shard: ShardModel,
    window: usize,
    in_flight: VecDeque<StepReply>,
    next_token_id: u32,
    alive: BTreeMap<SequenceId, SequenceSpec>,
    num_tokens: BTreeMap<SequenceId, u32>,
    num_prompt_logprobs: BTreeMap<SequenceId, usize>,
    last_admitted: Option<SequenceId>,
}

impl Simulation {
    fn new(limits: Limits, window: usize) -> Self {
        Self {
            scheduler: Scheduler::new(limits.clone()),
            limits,
            shard: ShardModel::default(),
            window,
            in_flight: VecDeque::new(),
            next_token_id: TOKEN,
            alive: BTreeMap::new(),
            num_tokens: BTreeMap::new(),
            num_prompt_logprobs: BTreeMap::new(),
            last_admitted: None,
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Submit { prompt_len, max_new_tokens, wants_prompt_logprobs } => {
                let mut spec = spec(prompt_len, max_new_tokens);
                spec.sampling.wants_prompt_logprobs = wants_prompt_logprobs;
                if let Ok(id) = self.scheduler.submit(spec.clone(), Instant::now()) {
                    assert!(self.alive.insert(id, spec).is_none());
                }
            }
            Action::Cancel(index) => {
                let id = self.alive.keys().nth(index % self.alive.len().max(1)).copied();
                if let Some(id) = id {
                    assert!(self.scheduler.cancel(id), "a living sequence can be cancelled");
                    self.alive.remove(&id);
                }
            }
            Action::Schedule => self.schedule(),
            Action::Reply { token_id } => {
                self.next_token_id = token_id;
                self.reply();
            }
            Action::FailAll => {
                let events = self.scheduler.fail_all("the shard died");
                events.into_iter().for_each(|event| self.see(event));
                assert!(self.alive.is_empty());
            }
        }
        let usage = self.scheduler.usage();
        assert_eq!(self.alive.len() as u32, usage.num_waiting + usage.num_running);
        assert_eq!(usage.num_used_slots, usage.num_running);
    }

    fn schedule(&mut self) {
        if self.in_flight.len() >= self.window {
            return;
        }
        let Some(mut step) = self.scheduler.schedule(Instant::now()) else {
            return;
        };
        for event in std::mem::take(&mut step.events) {
            assert!(self.last_admitted < Some(event.id), "admitted out of order");
            self.last_admitted = Some(event.id);
            self.see(event);
        }
        let token_id = self.next_token_id;
        let reply = self.shard.run(&step, &self.limits, &mut || token_id);
        if step.phase().is_some() {
            self.in_flight.push_back(reply);
        }
    }

    fn reply(&mut self) {
        let Some(reply) = self.in_flight.pop_front() else {
            return;
        };
        for event in self.scheduler.apply(reply).unwrap() {
            self.see(event);
        }
    }

    fn see(&mut self, Event { id, kind }: Event) {
        let spec = self.alive.get(&id).expect("an event for a sequence that has ended").clone();
        match kind {
            SequenceEvent::Admitted { .. } => {}
            SequenceEvent::PromptLogprobs(logprobs) => {
                *self.num_prompt_logprobs.entry(id).or_default() += logprobs.len();
            }
            SequenceEvent::Failed(_) => {
                self.alive.remove(&id);
            }
            SequenceEvent::Token { token, finish } => {
                let num_tokens = self.num_tokens.entry(id).or_default();
                *num_tokens += 1;
                let expected = match (*num_tokens == spec.max_new_tokens, token.token_id == EOS) {
                    (true, _) => Some(FinishReason::Length),
                    (false, true) => Some(FinishReason::EosToken),
                    (false, false) => None,
                };
                assert_eq!(finish, expected);
                let num_logprobs = self.num_prompt_logprobs.get(&id).copied().unwrap_or(0);
                assert_eq!(num_logprobs, if spec.sampling.wants_prompt_logprobs { spec.prompt.len() } else { 0 });
                if finish.is_some() {
                    self.alive.remove(&id);
                }
            }
        }
    }

    /// Every living sequence comes to its end, and nothing is left behind.
    fn drain(&mut self) {
        let work: u32 = self.alive.values().map(|spec| spec.prompt.len() as u32 + spec.max_new_tokens).sum();
        for _ in 0..2 * work + 4 {
            self.schedule();
            self.reply();
        }
        assert!(self.alive.is_empty(), "somebody starves: {:?}", self.alive.keys());
        assert!(
            self.scheduler.schedule(Instant::now()).is_none()
                && self.shard.rows.is_empty()
                && self.in_flight.is_empty()
        );
        assert_eq!(self.scheduler.usage(), Usage { num_blocks: self.limits.num_blocks, ..Usage::default() });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_history_leaks_overruns_or_starves(
        actions in prop::collection::vec(action(), 0..200),
        max_batch_size in 1..6u32,
        max_batch_prefill_tokens in 1..40u32,
        num_blocks in 1..30u32,
        window in 1..3usize,
    ) {
        let mut simulation = Simulation::new(limits(max_batch_size, max_batch_prefill_tokens, num_blocks), window);
        for action in actions {
            simulation.act(action);
        }
        simulation.drain();
    }
}
