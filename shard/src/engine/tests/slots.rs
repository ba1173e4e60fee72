//! **Invariant**: a row's tokens do not depend on the row that its slot had before, on the chunks in which the row's
//! prompt is read, or on how often it is read.
//!
//! The model is a tiny Llama that adds a share of a running sum to its hidden states; the slots keep the sum. The tests
//! compare bits on the CPU. On XLA they allow a tolerance, because programs for other chunk sizes add in another order.

use std::sync::Arc;
use std::time::Instant;

use backend::{BLOCK_SIZE, Backend, LocalRanks, ModelGraphs, Processors};
use cpu::{CpuBackend, CpuOptions};
use devices::plugins::testing::plugin_path;
use devices::{Asked, Device};
use kernels::attention::KvType;
use model::graph::{Binary, Graph, StateSpec};
use model::models::Config;
use model::sampling::Samplers;
use model_files::ModelFiles;
use proto::{ModelInfo, SampledToken, Step, command};
use scheduler::{Limits, Pace, PrefixScope, Prompt, PromptWants, Scheduler, SequenceEvent, SequenceSpec, Tenant};
use xla::{Platform, XlaBackend, XlaOptions};

use super::super::load::{Description, describe, membership};
use super::super::{Engine, EngineError, Work, config_json};
use super::independence::{bits, prompt, sampling, steps_among_others};
use super::ranks::{Engines, cpu_ranks};
use super::xla::check;
use super::{FIXTURES, NUM_SLOTS, Rig, args, fixture, shared_programs, tokens};
use crate::args::ShardArgs;

/// Returns the graphs of the same model with hidden states `h + 0.1 * running_sum(h)`.
fn with_running_sum(graphs: &ModelGraphs) -> ModelGraphs {
    let mut decoder = Graph::clone(&graphs.decoder);
    let hidden = decoder.outputs()[0]; // [tokens, hidden]
    let size = decoder.node(hidden).shape.fixed_len();
    let state = decoder.state(&StateSpec::of_slots("sums", &[size]));
    let sums = decoder.running_sum(hidden, state).unwrap(); // [tokens, hidden]
    let share = decoder.constant(0.1);
    let added = decoder.binary(Binary::Multiply, sums, share).unwrap(); // [tokens, hidden]
    let output = decoder.binary(Binary::Add, hidden, added).unwrap(); // [tokens, hidden]
    ModelGraphs { decoder: decoder.finish(&[output]), logits: Arc::clone(&graphs.logits) }
}

/// Loads the model with the running sum, which no file describes. Replaces `engine::load`, but sets only what these
/// tests need: the KV type and the number of threads are fixed, and there are no end-of-sequence tokens.
fn load(args: &ShardArgs) -> Result<Engine, EngineError> {
    let files = ModelFiles::open(&args.model.model_id)?;
    let config = Config::parse(&config_json(&files)?)?;
    let ranks = LocalRanks::of_shard(args.shard, args.num_shards, args.devices_per_shard);
    let Description { checkpoint, graphs, .. } = describe(&files, &config, &args.model, ranks.num_ranks)?;
    let graphs = with_running_sum(&graphs);
    let membership = membership(args)?;
    let progress = &mut |_: u64, _: u64| ();
    let Asked::Device(device) = args.model.device else { unreachable!("tests name a device") };
    let backend: Box<dyn Backend> = match device.platform() {
        Some(spec) => {
            let program_cache = Some(shared_programs());
            let options = XlaOptions { ranks, membership, plugin_path: None, program_cache };
            Box::new(XlaBackend::load(Platform::new(device, spec), options, &graphs, &checkpoint, progress)?)
        }
        None => {
            let (num_threads, processors) = (2, Processors::of_process());
            let options = CpuOptions { membership, num_threads, processors, kv_type: KvType::F32 };
            Box::new(CpuBackend::load(&graphs, &checkpoint, options, progress)?)
        }
    };
    let vocab_size = config.vocab_size()?;
    let info = ModelInfo {
        vocab_size: vocab_size as u32,
        max_position_embeddings: config.max_position_embeddings()? as u32,
        block_size: BLOCK_SIZE as u32,
        can_skip_prefix: graphs.can_skip_prefix(),
        ..ModelInfo::default()
    };
    Ok(Engine {
        info,
        work: Work::default(),
        row_bytes: 0,
        config_hash: 0,
        eos_token_ids: Arc::default(),
        backend,
        samplers: Samplers::new(vocab_size),
        rows: None,
    })
}

fn on(device: Device) -> Rig {
    Rig::warm(Engines::load_with(&[args(fixture(FIXTURES[0]).to_str().unwrap(), device)], load).unwrap())
}

/// Returns rigs on one rank of the CPU, on two ranks of the CPU, and on XLA-CPU if there is a plugin. The boolean is
/// true if the results of the rig must agree bit for bit.
fn rigs() -> Vec<(&'static str, Rig, bool)> {
    let two_ranks = cpu_ranks(&args(fixture(FIXTURES[0]).to_str().unwrap(), Device::CPU), 2, load);
    let xla = plugin_path(Device::XLA_CPU).map(|_| ("xla-cpu", on(Device::XLA_CPU), false));
    [("cpu", on(Device::CPU), true), ("two ranks", two_ranks, true)].into_iter().chain(xla).collect()
}

fn compare(tokens: &[SampledToken], expected: &[SampledToken], (are_bits, what): (bool, &str)) {
    if are_bits {
        assert_eq!(bits(tokens), bits(expected), "{what}");
    } else {
        check(tokens, expected, 1e-4, what);
    }
}

/// Reads a prompt in chunks that end at `cuts` and at its end, and returns `num_tokens` tokens. The last
/// `num_generated` tokens of the prompt were generated by the row.
fn read_in_chunks(
    (rig, slot): (&mut Rig, u32),
    (ids, num_generated): (&[u32], u32),
    cuts: &[usize],
    num_tokens: usize,
) -> Vec<SampledToken> {
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain([ids.len()]);
    let mut made = Vec::new();
    for (start, end) in starts.zip(ends) {
        let mut chunk = rig.chunk(slot, &ids[start..end], (start == 0).then(|| sampling(7)), end == ids.len());
        if let Some(opening) = &mut chunk.opening {
            opening.num_generated_tokens = num_generated;
        }
        made.extend(tokens(&rig.step(vec![chunk])));
    }
    made.extend((1..num_tokens).map(|_| rig.next(slot)));
    rig.release(slot);
    made
}

#[test]
fn the_sum_changes_what_the_model_makes() {
    let [with, without] =
        [on(Device::CPU), Rig::fixture(FIXTURES[0])].map(|mut rig| rig.generate(1, &prompt(45, 6), sampling(7), 4));
    assert_ne!(bits(&with), bits(&without));
}

#[test]
fn backends_agree() {
    let mut rigs = rigs();
    let expected = rigs[0].1.generate(1, &prompt(45, 6), sampling(7), 12);
    for (name, rig, _) in &mut rigs {
        check(&rig.generate(1, &prompt(45, 6), sampling(7), 12), &expected, 1e-4, name);
    }
}

#[test]
fn a_prompt_in_pieces_equals_a_whole_one() {
    for (name, mut rig, are_bits) in rigs() {
        let prompt = prompt(45, 6);
        let whole = rig.generate(0, &prompt, sampling(7), 6);
        for cuts in [vec![1], vec![16, 17], vec![7, 8, 30, 44], (1..45).collect()] {
            // Slot 0 had the row that read the whole prompt at once; slot 4 had no such row.
            for slot in [0, 4] {
                let pieces = read_in_chunks((&mut rig, slot), (&prompt, 0), &cuts, 6);
                compare(&pieces, &whole, (are_bits, &format!("{name}, {cuts:?}")));
            }
        }
    }
}

#[test]
fn a_row_that_is_read_again_goes_on_as_before() {
    for (name, mut rig, are_bits) in rigs() {
        let prompt = prompt(45, 6);
        let alone = rig.generate(2, &prompt, sampling(7), 14);
        let ids: Vec<u32> = prompt.iter().copied().chain(super::ids(&alone)).take(50).collect();
        for cuts in [vec![], vec![20], vec![3, 46]] {
            let again = read_in_chunks((&mut rig, 2), (&ids, 5), &cuts, 9);
            compare(&again, &alone[5..], (are_bits, &format!("{name}, {cuts:?}")));
        }
    }
}

#[test]
fn a_row_alone_equals_a_row_among_others() {
    for (name, mut rig, are_bits) in rigs() {
        let [alone, together] = steps_among_others(&mut rig);
        compare(&together, &alone, (are_bits, name));
    }
}

#[test]
fn a_prefix_is_never_skipped() {
    let mut rig = on(Device::CPU);
    assert!(!rig.engine.info().can_skip_prefix);
    let prompt = prompt(45, 6);
    rig.start(0, &prompt, sampling(7));
    let chunk = rig.chunk_after_prefix((0, 1), &prompt, sampling(7), 0);
    let error = rig.engine.step(&Step { rows: vec![chunk] }).unwrap_err();
    let expected = "the router skips the first 32 tokens of slot 1, which is a defect of this server: this model must \
                    read them, because it has states besides the KV cache";
    assert_eq!(error.to_string(), expected);
    assert_eq!(proto::ShardError::from(&error).kind(), proto::shard_error::Kind::Protocol);
}

/// Returns the tokens of each prompt under a scheduler with `num_blocks` blocks, and the number of preemptions.
pub(super) fn schedule(
    engines: &mut Engines,
    num_blocks: u32,
    prompts: &[Vec<u32>],
    num_tokens: u32,
) -> (Vec<Vec<SampledToken>>, u32) {
    let now = Instant::now();
    let limits = Limits {
        max_batch_size: NUM_SLOTS,
        max_batch_prefill_tokens: 60,
        num_blocks,
        block_size_tokens: BLOCK_SIZE as u32,
        eos_token_ids: vec![],
        window: engines.info().window,
        caches_prefixes: engines.info().can_skip_prefix,
        max_step_bytes: proto::MAX_STEP_BYTES,
    };
    let mut scheduler = Scheduler::new(limits);
    let submit = |prompt: &Vec<u32>| {
        let spec = SequenceSpec {
            prompt: Prompt { token_ids: prompt.as_slice().into(), scope: PrefixScope::SHARED },
            sampling: sampling(7),
            wants: PromptWants::default(),
            max_new_tokens: num_tokens,
            ignores_eos: true,
            deadline: None,
            is_masked: false,
            tenant: Tenant::default(),
        };
        scheduler.submit(spec, now).unwrap()
    };
    let ids: Vec<_> = prompts.iter().map(submit).collect();
    let (mut tokens, mut num_preempted) = (vec![Vec::new(); prompts.len()], 0);
    while let Some(step) = scheduler.schedule(now, &Pace::default()) {
        num_preempted += step.num_preempted;
        for command in step.into_commands() {
            let reply = match command {
                command::Kind::Step(step) => engines.step(&step).unwrap(),
                command::Kind::Release(release) => {
                    engines.release(&release).unwrap();
                    continue;
                }
                other => panic!("{other:?} is no part of a step"),
            };
            for event in scheduler.apply(reply).unwrap() {
                let SequenceEvent::Token { token, .. } = event.kind else { panic!("{event:?}") };
                let sequence = ids.iter().position(|id| *id == event.id).unwrap();
                tokens[sequence].push(token);
            }
        }
    }
    (tokens, num_preempted)
}

/// Runs equal prompts at the same time and in a second round, with too few blocks for all of them.
#[test]
fn a_scheduler_lets_every_prompt_be_read() {
    for (name, mut rig, are_bits) in rigs() {
        let distinct = [prompt(45, 6), prompt(33, 2)];
        let expected = distinct.clone().map(|prompt| rig.generate(0, &prompt, sampling(7), 40));
        let prompts: Vec<Vec<u32>> = [0, 0, 1, 0, 1].map(|idx: usize| distinct[idx].clone()).to_vec();
        let mut total_preempted = 0;
        for _ in 0..2 {
            let (tokens, num_preempted) = schedule(&mut rig.engine, 12, &prompts, 40);
            total_preempted += num_preempted;
            for (prompt, tokens) in prompts.iter().zip(tokens) {
                let expected = &expected[distinct.iter().position(|known| known == prompt).unwrap()];
                compare(&tokens, expected, (are_bits, name));
            }
        }
        assert!(total_preempted > 0, "{name}");
    }
}
