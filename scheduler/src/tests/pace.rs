//! Tests of steps whose length is a time, with devices whose times are known.

use std::time::{Duration, Instant};

use super::shard_model::ShardModel;
use super::{limits, prompt_of, spec};
use crate::*;

/// A device whose times are exact sums, in µs.
#[derive(Debug, Clone, Copy)]
struct Device {
    per_step: f64,
    per_row: f64,
    per_token: f64,
    per_reported: f64,
    per_chunk: f64,
    per_kilotoken_of_context: f64,
    /// True if tokens are computed while weights are read, as on a CPU: the longer of both counts.
    overlaps: bool,
}

const CPU: Device = Device {
    per_step: 15_000.0,
    per_row: 400.0,
    per_token: 1000.0,
    per_reported: 300.0,
    per_chunk: 20.0,
    per_kilotoken_of_context: 90.0,
    overlaps: true,
};
const TPU: Device = Device {
    per_step: 5000.0,
    per_row: 20.0,
    per_token: 20.0,
    per_reported: 10.0,
    per_chunk: 100.0,
    per_kilotoken_of_context: 4.0,
    overlaps: false,
};

impl Device {
    fn time(&self, work: &Work) -> Duration {
        let context = (work.decode_context + work.prompt_context) as f64 / 1000.0;
        let tokens = f64::from(work.num_prompt_tokens) * self.per_token
            + f64::from(work.num_decoding) * self.per_row
            + f64::from(work.num_reported) * self.per_reported
            + f64::from(work.num_chunks) * self.per_chunk
            + context * self.per_kilotoken_of_context;
        let micros = if self.overlaps { tokens.max(self.per_step) } else { tokens + self.per_step };
        Duration::from_nanos((micros * 1000.0) as u64)
    }

    fn pace(&self, chunk_sizes: Vec<u32>) -> Pace {
        let mut pace = Pace::new(None, chunk_sizes);
        let work = Work { num_decoding: 1, ..Work::default() };
        pace.learn(&work, self.time(&work));
        pace
    }
}

/// A scheduler in front of a device.
struct Rig {
    scheduler: Scheduler,
    shard: ShardModel,
    device: Device,
    pace: Pace,
    now: Instant,
    next_token: u32,
}

impl Rig {
    fn new(device: Device, chunk_sizes: Vec<u32>) -> Self {
        let limits = Limits { max_batch_prefill_tokens: 4096, ..limits(300, 4096, 100_000) };
        let pace = device.pace(chunk_sizes);
        let shard = ShardModel::new(&limits);
        Self { shard, scheduler: Scheduler::new(limits), device, pace, now: Instant::now(), next_token: 100 }
    }

    fn submit(&mut self, tenant: u32, num_tokens: u32, max_new_tokens: u32, reports: bool) -> SequenceId {
        let prompt = prompt_of(self.next_token..self.next_token + num_tokens);
        self.next_token += num_tokens;
        let wants = PromptWants { logprobs: reports.then_some(0) };
        let tenant = Tenant::new(tenant);
        let spec = SequenceSpec { prompt, wants, tenant, ..spec(num_tokens, max_new_tokens) };
        self.scheduler.submit(spec, self.now).unwrap()
    }

    /// Runs a step. Returns its work, its time, and the sequences that got a token.
    fn step(&mut self) -> Option<(Work, Duration, Vec<SequenceId>)> {
        let step: Step = self.scheduler.schedule(self.now, &self.pace)?;
        let work = step.work;
        let time = self.device.time(&work);
        let reply = self.shard.run(&step);
        step.phase()?;
        self.pace.learn(&work, time);
        self.now += time;
        let events = self.scheduler.apply(reply).unwrap();
        let tokens = events.iter().filter(|event| matches!(event.kind, SequenceEvent::Token { .. }));
        Some((work, time, tokens.map(|event| event.id).collect()))
    }
}

#[test]
fn steps_beside_decoding_last_about_four_decode_steps() {
    for (device, chunk_sizes) in [(CPU, vec![]), (TPU, vec![]), (TPU, vec![32, 128, 256, 512, 1024, 2048, 4096])] {
        let mut rig = Rig::new(device, chunk_sizes.clone());
        (0..4).for_each(|_| _ = rig.submit(0, 40, 100_000, false));
        (0..20).for_each(|_| _ = rig.step());
        for count in 0..200 {
            rig.submit(0, 700 + count % 9 * 300, 1, count % 4 == 0);
        }
        for count in 0..400 {
            let (work, time, _) = rig.step().unwrap();
            let quiet =
                Work { num_decoding: work.num_decoding, decode_context: work.decode_context, ..Work::default() };
            let target = Duration::from_millis(10).max(4 * device.time(&quiet));
            // The first steps have more tokens than were measured before.
            let most = target.mul_f64(if count < 5 { 2.5 } else { 1.7 });
            assert!(time <= most, "step {count} of {chunk_sizes:?}: {time:?} for {target:?}: {work:?}");
            // A padded chunk can leave room.
            let least = if chunk_sizes.is_empty() { 0.6 } else { 0.3 };
            assert!(count < 20 || time >= target.mul_f64(least), "step {count}: {time:?} for {target:?}: {work:?}");
        }
    }
}

#[test]
fn a_step_reads_at_least_32_tokens_however_long_they_take() {
    let slow = Device { per_token: 500_000.0, ..CPU };
    let mut rig = Rig::new(slow, Vec::new());
    rig.submit(0, 40, 1000, false);
    (0..9).for_each(|_| _ = rig.step());
    (0..3).for_each(|_| _ = rig.submit(0, 100, 1, false));
    for _ in 0..7 {
        let (work, ..) = rig.step().unwrap();
        assert!((28..=48).contains(&work.num_prompt_tokens), "{work:?}");
    }
}

#[test]
fn a_prompt_alone_is_read_in_one_step() {
    let mut rig = Rig::new(CPU, Vec::new());
    rig.submit(0, 4000, 3, false);
    assert_eq!(rig.step().unwrap().0.num_prompt_tokens, 4000);
}

#[test]
fn prompts_without_decoding_are_read_at_full_speed() {
    for (device, most) in [(CPU, Duration::from_millis(90)), (TPU, Duration::from_millis(150))] {
        let mut rig = Rig::new(device, Vec::new());
        (0..100).for_each(|_| _ = rig.submit(0, 512, 1, false));
        let (mut tokens, mut total) = (0, Duration::ZERO);
        for count in 0.. {
            let usage = rig.scheduler.usage();
            let Some((work, time, _)) = rig.step() else { break };
            if count > 20 && usage.num_running + usage.num_waiting > 1 && work.num_decoding == 0 {
                tokens += work.num_prompt_tokens;
                total += time;
                assert!(time <= most, "{time:?}: {work:?}");
            }
        }
        let best = f64::from(tokens) * device.per_token / 1e6;
        assert!(best / total.as_secs_f64() > 0.8, "{best} of {total:?}");
    }
}

#[test]
fn a_second_tenant_gets_its_first_token_within_three_steps_of_many_long_prompts() {
    for device in [CPU, TPU] {
        let mut rig = Rig::new(device, Vec::new());
        (0..256).for_each(|_| _ = rig.submit(1, 900, 2, false));
        (0..30).for_each(|_| _ = rig.step());
        for _ in 0..20 {
            let short = rig.submit(2, 12, 20, false);
            let steps = (1..).find(|_| rig.step().unwrap().2.contains(&short)).unwrap();
            assert!(steps <= 3, "{steps} steps");
            (0..25).for_each(|_| _ = rig.step());
            (0..4).for_each(|_| _ = rig.submit(1, 900, 2, false));
        }
    }
}

#[test]
fn a_target_that_is_set_holds() {
    let mut rig = Rig::new(CPU, Vec::new());
    rig.pace = Pace::new(Some(Duration::from_millis(200)), Vec::new());
    rig.submit(0, 40, 1000, false);
    (0..9).for_each(|_| _ = rig.step());
    (0..9).for_each(|_| _ = rig.submit(0, 3000, 1, false));
    for count in 0..60 {
        let (work, time, _) = rig.step().unwrap();
        assert!(count < 10 || (150..300).contains(&time.as_millis()), "{time:?}: {work:?}");
    }
}

#[test]
fn a_time_that_looks_far_too_short_changes_estimates_little() {
    let mut pace = CPU.pace(Vec::new());
    let decoding = Work { num_decoding: 3, decode_context: 300, ..Work::default() };
    let reading = Work { num_chunks: 1, num_prompt_tokens: 64, prompt_context: 2048, ..decoding };
    for work in [decoding, reading] {
        (0..30).for_each(|_| pace.learn(&work, CPU.time(&work)));
        let before = pace.estimate(&work);
        pace.learn(&work, Duration::from_micros(1));
        let after = pace.estimate(&work);
        assert!(after > before.mul_f64(0.7), "{after:?} after {before:?}");
        // A device that has become faster is believed soon.
        (0..30).for_each(|_| pace.learn(&work, CPU.time(&work) / 8));
        assert!(pace.estimate(&work) < before / 7, "{:?} after {before:?}", pace.estimate(&work));
    }
}
