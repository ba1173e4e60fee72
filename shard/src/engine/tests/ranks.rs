//! Models split over several ranks: they generate the tokens of one rank alone, and every rank returns the same
//! replies.
//!
//! Entry point: [`Engines`], the engines of all shards. A rank is here a thread with its own engine, or a device of one
//! engine.

use std::path::Path;

use backend::Batch;
use backend::StateLayout;
use devices::plugins::testing::plugin_path;
use devices::{Device, Quantize};
use proto::{ModelInfo, Release, SampledToken, SamplingParams, Step, StepReply, Warmup, WarmupReply};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use test_support::join_scoped;

use super::super::{Engine, EngineError, load};
use super::{FIXTURES, Rig, args, fixture, ids, report, reporting, tokens, tolerance};
use crate::args::ShardArgs;

/// The engines of all shards of a model. A command goes to all of them at once, as the router sends it.
pub(in crate::engine) struct Engines(Vec<Engine>);

/// A function that loads the engine of one shard.
pub(super) type Load = fn(&ShardArgs) -> Result<Engine, EngineError>;

impl Engines {
    /// Loads one engine per shard.
    pub(super) fn load(args: &[ShardArgs]) -> Result<Self, EngineError> {
        Self::load_with(args, |args| load(args, &mut |_, _, _| ()))
    }

    /// Loads one engine per shard with `load`.
    pub(super) fn load_with(args: &[ShardArgs], load: Load) -> Result<Self, EngineError> {
        if let [args] = args {
            return Ok(Self(vec![load(args)?]));
        }
        let engines = std::thread::scope(|scope| {
            let loading: Vec<_> = args.iter().map(|args| scope.spawn(move || load(args))).collect();
            loading.into_iter().map(|thread| join_scoped(thread, "a shard that loads")).collect::<Result<_, _>>()
        });
        Ok(Self(engines?))
    }

    pub(super) fn info(&self) -> &ModelInfo {
        self.0[0].info()
    }

    pub(super) fn warmup(&mut self, warmup: &Warmup) -> Result<WarmupReply, EngineError> {
        let timeless = |reply: WarmupReply| WarmupReply { slowest_token_ns: 0, decode_ns: 0, ..reply };
        self.tell(|engine| engine.warmup(warmup, &mut |_, _, _| ()).map(timeless))
    }

    pub(super) fn step(&mut self, step: &Step) -> Result<StepReply, EngineError> {
        self.tell(|engine| timeless(engine.step(step)?))
    }

    pub(super) fn release(&mut self, release: &Release) -> Result<(), EngineError> {
        self.tell(|engine| engine.release(release))
    }

    /// Executes a command on all engines, and returns the result of the first, or the first error. Results without an
    /// error must be the same.
    fn tell<T: PartialEq + std::fmt::Debug + Send>(
        &mut self,
        command: impl Fn(&mut Engine) -> Result<T, EngineError> + Sync,
    ) -> Result<T, EngineError> {
        if let [engine] = &mut self.0[..] {
            return command(engine);
        }
        let command = &command;
        let mut answers: Vec<_> = std::thread::scope(|scope| {
            let told: Vec<_> = self.0.iter_mut().map(|engine| scope.spawn(move || command(engine))).collect();
            told.into_iter().map(|thread| join_scoped(thread, "a command to a shard")).collect()
        });
        let first = answers.remove(0)?;
        for answer in answers {
            assert_eq!(format!("{:?}", answer?), format!("{first:?}"), "ranks disagree");
        }
        Ok(first)
    }
}

/// Returns a reply without durations, which differ from run to run.
fn timeless(reply: StepReply) -> Result<StepReply, EngineError> {
    Ok(StepReply { forward_ns: 0, idle_ns: 0, ..reply })
}

/// A tiny Llama with random weights. Most numbers of ranks do not divide its sizes evenly.
#[derive(Debug, Clone, Copy)]
struct TinyLlama {
    vocab_size: usize,
    intermediate_size: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    is_tied: bool,
    has_bias: bool,
}

const HIDDEN_SIZE: usize = 32;
const HEAD_DIM: usize = 8;

impl TinyLlama {
    const ODD: Self = Self {
        vocab_size: 97,
        intermediate_size: 45,
        num_attention_heads: 4,
        num_key_value_heads: 1,
        is_tied: true,
        has_bias: true,
    };

    /// Writes a checkpoint.
    fn write(&self, directory: &Path) {
        let Self { vocab_size, intermediate_size, num_attention_heads, num_key_value_heads, is_tied, has_bias } = *self;
        let config = serde_json::json!({
            "architectures": ["LlamaForCausalLM"], "dtype": "float32", "hidden_size": HIDDEN_SIZE, "head_dim": HEAD_DIM,
            "vocab_size": vocab_size, "intermediate_size": intermediate_size, "num_hidden_layers": 2,
            "num_attention_heads": num_attention_heads, "num_key_value_heads": num_key_value_heads,
            "max_position_embeddings": 128, "tie_word_embeddings": is_tied,
            "attention_bias": has_bias, "mlp_bias": has_bias,
        });
        std::fs::write(directory.join("config.json"), config.to_string()).unwrap();
        let tensors: Vec<(String, Vec<usize>)> = self.tensors();
        let bytes: Vec<Vec<u8>> = (1..).zip(&tensors).map(|(seed, (_, shape))| random(shape, seed)).collect();
        let views = tensors.iter().zip(&bytes);
        let views =
            views.map(|((name, shape), bytes)| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
        std::fs::write(directory.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    }

    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let width = self.num_attention_heads * HEAD_DIM;
        let kv_width = self.num_key_value_heads * HEAD_DIM;
        let linear = [
            ("self_attn.q_proj", width, HIDDEN_SIZE),
            ("self_attn.k_proj", kv_width, HIDDEN_SIZE),
            ("self_attn.v_proj", kv_width, HIDDEN_SIZE),
            ("self_attn.o_proj", HIDDEN_SIZE, width),
            ("mlp.gate_proj", self.intermediate_size, HIDDEN_SIZE),
            ("mlp.up_proj", self.intermediate_size, HIDDEN_SIZE),
            ("mlp.down_proj", HIDDEN_SIZE, self.intermediate_size),
        ];
        let mut tensors = vec![
            ("model.embed_tokens.weight".to_owned(), vec![self.vocab_size, HIDDEN_SIZE]),
            ("model.norm.weight".to_owned(), vec![HIDDEN_SIZE]),
        ];
        tensors.extend((!self.is_tied).then(|| ("lm_head.weight".to_owned(), vec![self.vocab_size, HIDDEN_SIZE])));
        for layer in 0..2 {
            for norm in ["input_layernorm", "post_attention_layernorm"] {
                tensors.push((format!("model.layers.{layer}.{norm}.weight"), vec![HIDDEN_SIZE]));
            }
            for (name, num_outputs, num_inputs) in linear {
                let name = format!("model.layers.{layer}.{name}");
                tensors.push((format!("{name}.weight"), vec![num_outputs, num_inputs]));
                tensors.extend(self.has_bias.then(|| (format!("{name}.bias"), vec![num_outputs])));
            }
        }
        tensors
    }
}

/// Returns the bytes of pseudorandom numbers between -0.5 and 0.5.
fn random(shape: &[usize], seed: u64) -> Vec<u8> {
    let number = |index: u64| {
        let hash = (index + 1).wrapping_mul(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        ((hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..shape.iter().product::<usize>() as u64).flat_map(|index| number(index).to_le_bytes()).collect()
}

/// Generates the tokens of two greedy rows and of a row that samples at random, each with the log-probabilities of the
/// best tokens.
fn generate(rig: &mut Rig, vocab_size: usize) -> Vec<Vec<SampledToken>> {
    let greedy = SamplingParams { top_n_tokens: 5, ..SamplingParams::greedy() };
    let drawn = SamplingParams {
        is_greedy: false,
        temperature: 1.4,
        top_p: 0.95,
        repetition_penalty: 1.1,
        seed: 5,
        ..greedy.clone()
    };
    let prompt = |len: u32| (0..len).map(|i| (i * 37 + i * i) % vocab_size as u32).collect::<Vec<_>>();
    [(greedy.clone(), 1), (greedy, 40), (drawn, 23)]
        .map(|(params, len)| rig.generate(1, &prompt(len), params, 8))
        .into_iter()
        .collect()
}

/// Compares the tokens of ranks with those of one rank. `tolerance` is the largest difference of a log-probability.
fn check(ranks: &[Vec<SampledToken>], alone: &[Vec<SampledToken>], tolerance: f32, what: &str) {
    for (ranks, alone) in ranks.iter().zip(alone) {
        assert_eq!(ids(ranks), ids(alone), "{what}");
        for (ranks, alone) in ranks.iter().zip(alone) {
            assert_eq!(ranks.top_logprobs().len(), alone.top_logprobs().len(), "{what}");
            for (ranks, alone) in ranks.top_logprobs().iter().zip(alone.top_logprobs()) {
                assert!((ranks - alone).abs() <= tolerance, "{what}: {ranks} instead of {alone}");
            }
        }
    }
}

/// Returns models whose heads, features or vocabulary ranks must pad or copy.
fn tiny_llamas() -> [TinyLlama; 3] {
    let odd = TinyLlama::ODD;
    [
        odd,
        TinyLlama { is_tied: false, has_bias: false, num_attention_heads: 8, num_key_value_heads: 2, ..odd },
        TinyLlama { vocab_size: 99, intermediate_size: 6, num_key_value_heads: 4, has_bias: false, ..odd },
    ]
}

/// Returns a rig on `devices_per_shard` devices of XLA-CPU. If there is no plugin, prints that and returns `None`.
fn on_xla_devices(model_id: &str, devices_per_shard: u32) -> Option<Rig> {
    plugin_path(Device::XLA_CPU)?;
    let args = ShardArgs { devices_per_shard, ..args(model_id, Device::XLA_CPU) };
    Some(Rig::warm_for(Engines::load(&[args]).unwrap(), 2))
}

/// Returns a rig on `num_shards` ranks of the CPU, each a thread.
pub(super) fn on_cpu_ranks(model_id: &str, num_shards: u32) -> Rig {
    cpu_ranks(&args(model_id, Device::CPU), num_shards, |args| load(args, &mut |_, _, _| ()))
}

/// As [`on_cpu_ranks`], with `load` for each rank.
pub(super) fn cpu_ranks(args: &ShardArgs, num_shards: u32, load: Load) -> Rig {
    let shared = tempfile::NamedTempFile::new().unwrap();
    let collective_path = Some(shared.path().to_path_buf());
    let of_shard = |shard| ShardArgs { shard, num_shards, collective_path: collective_path.clone(), ..args.clone() };
    Rig::warm(Engines::load_with(&(0..num_shards).map(of_shard).collect::<Vec<_>>(), load).unwrap())
}

#[test]
fn cpu_ranks_make_the_tokens_of_one() {
    for name in FIXTURES {
        let expected = generate(&mut Rig::fixture(name), 250);
        for num_shards in [2, 4] {
            let mut rig = on_cpu_ranks(fixture(name).to_str().unwrap(), num_shards);
            // A sum in another order may round a key or value to the other neighbour. Neighbours in bf16 are eight
            // times as far apart as in f16.
            let exact = if name == "tiny-llama-bf16" { 1.6e-2 } else { 1e-4 };
            let exact = if name == "tiny-llama-f16" { 2e-3 } else { exact };
            let tolerance = tolerance(name == "tiny-llama-bf16", exact, 5e-2) as f32;
            check(&generate(&mut rig, 250), &expected, tolerance, &format!("{name} on {num_shards} ranks"));
        }
    }
}

#[test]
fn cpu_ranks_pad_and_copy() {
    for model in tiny_llamas() {
        let directory = tempfile::tempdir().unwrap();
        model.write(directory.path());
        let path = directory.path().to_str().unwrap();
        let expected = generate(&mut Rig::new(path, Device::CPU), model.vocab_size);
        for num_shards in [2, 4] {
            let mut rig = on_cpu_ranks(path, num_shards);
            check(&generate(&mut rig, model.vocab_size), &expected, 1e-4, &format!("{model:?} on {num_shards} ranks"));
        }
    }
}

#[test]
fn cpu_ranks_report_prompts_and_batches() {
    let name = FIXTURES[0];
    let prompt: Vec<u32> = (0..70).map(|i| (i * i) % 250).collect();
    let [alone, ranks] = [Rig::fixture(name), on_cpu_ranks(fixture(name).to_str().unwrap(), 4)].map(|mut rig| {
        rig.start(0, &prompt[..9], SamplingParams::greedy());
        let chunk = reporting(rig.chunk(1, &prompt, Some(SamplingParams::greedy()), true), 0, None);
        let row = rig.row(0);
        rig.step(vec![chunk, row])
    });
    assert_eq!(ids(&tokens(&ranks)), ids(&tokens(&alone)));
    let logprobs = |reply: &StepReply| report(reply, 0).logprobs.clone();
    for (ranks, alone) in logprobs(&ranks).into_iter().zip(logprobs(&alone)) {
        assert!((ranks - alone).abs() <= 1e-4, "{ranks} instead of {alone}");
    }
    assert_eq!(logprobs(&ranks).len(), prompt.len() - 1);
}

#[test]
fn the_others_hear_of_a_rank_that_is_gone() {
    let mut rig = on_cpu_ranks(fixture(FIXTURES[0]).to_str().unwrap(), 4);
    let chunk = rig.chunk(0, &[1, 2, 3], Some(SamplingParams::greedy()), true);
    let step = Step { rows: vec![chunk] };
    drop(rig.engine.0.remove(1));
    for (engine, rank) in rig.engine.0.iter_mut().zip([0, 2, 3]) {
        let error = engine.step(&step).unwrap_err();
        assert_eq!(error.to_string(), format!("rank {rank}: rank 1 has ended the group"));
        assert!(error.leaves_rows_unknown());
    }
}

#[test]
fn devices_make_the_tokens_of_one() {
    for name in FIXTURES {
        let path = fixture(name);
        let path = path.to_str().unwrap();
        // `devices_pad_and_copy` runs other models on four devices.
        let counts = if name == FIXTURES[0] { &[2, 4][..] } else { &[2] };
        // XLA-CPU rounds activations to 16-bit floats, so the reference is one device of XLA-CPU. Sums in another order
        // may still be rounded to another neighbour.
        let is_short = name.ends_with("16");
        let alone = if is_short { on_xla_devices(path, 1) } else { Some(Rig::fixture(name)) };
        let Some(mut alone) = alone else { return };
        let (expected, tolerance) = (generate(&mut alone, 250), if is_short { 0.1 } else { 1e-4 });
        for &num_devices in counts {
            let Some(mut rig) = on_xla_devices(path, num_devices) else { return };
            check(&generate(&mut rig, 250), &expected, tolerance, &format!("{name} on {num_devices} devices"));
        }
    }
}

/// If the inputs of a linear layer are split, each device quantizes its own share of the activations and weights, as
/// CPU ranks do.
#[test]
fn devices_of_integers_make_the_tokens_of_cpu_ranks() {
    if plugin_path(Device::XLA_CPU).is_none() {
        return;
    }
    let [first, second, ..] = FIXTURES;
    for (name, quantize) in [(first, Quantize::Int8), (second, Quantize::Int8), (first, Quantize::Int4)] {
        let of_integers = |device| {
            let mut args = args(fixture(name).to_str().unwrap(), device);
            args.model.quantize = Some(quantize);
            args
        };
        let devices = ShardArgs { devices_per_shard: 2, ..of_integers(Device::XLA_CPU) };
        let mut rig = Rig::warm_for(Engines::load(&[devices]).unwrap(), 2);
        let expected =
            generate(&mut cpu_ranks(&of_integers(Device::CPU), 2, |args| load(args, &mut |_, _, _| ())), 250);
        // An activation about halfway between two integers may be rounded to either.
        check(&generate(&mut rig, 250), &expected, 0.1, &format!("{name} of {quantize}"));
    }
}

#[test]
fn devices_pad_and_copy() {
    for (model, num_devices) in tiny_llamas().into_iter().zip([2, 4, 4]) {
        let directory = tempfile::tempdir().unwrap();
        model.write(directory.path());
        let path = directory.path().to_str().unwrap();
        let Some(mut rig) = on_xla_devices(path, num_devices) else { return };
        let expected = generate(&mut Rig::new(path, Device::CPU), model.vocab_size);
        check(&generate(&mut rig, model.vocab_size), &expected, 1e-4, &format!("{model:?} on {num_devices} devices"));
    }
}

/// Returns the fingerprint of a step that reads `tokens`. All ranks must have the same fingerprint.
fn fingerprint(rig: &mut Rig, tokens: &[i32]) -> u64 {
    let mut batch = Batch::default();
    batch.push_row(0, 0, tokens, &[0]);
    rig.engine.tell(|engine| Ok(pollster::block_on(engine.backend.launch(&batch)?)?.fingerprint)).unwrap()
}

#[test]
fn ranks_that_do_the_same_have_one_fingerprint() {
    let path = fixture(FIXTURES[0]);
    let mock = |shard| ShardArgs { shard, num_shards: 2, ..args("demo", Device::MOCK) };
    let mocks = Rig::warm(Engines::load(&[mock(0), mock(1)]).unwrap());
    for mut rig in
        [mocks, on_cpu_ranks(path.to_str().unwrap(), 2)].into_iter().chain(on_xla_devices(path.to_str().unwrap(), 2))
    {
        let known = fingerprint(&mut rig, &[1, 2, 3]);
        assert_eq!(fingerprint(&mut rig, &[1, 2, 3]), known);
        assert_ne!(fingerprint(&mut rig, &[1, 2, 4]), known);
        assert_ne!(fingerprint(&mut rig, &[1]), known);
    }
}

#[test]
fn devices_are_told_and_assigned() {
    let device = |shard| ShardArgs { shard, num_shards: 3, devices_per_shard: 2, ..args("demo", Device::MOCK) };
    let ids = |engine: &Engine| engine.backend.devices().iter().map(|device| device.id).collect::<Vec<_>>();
    let engine = load(&device(1), &mut |_, _, _| ()).unwrap();
    assert_eq!(ids(&engine), [2, 3]);
    let Some(mut rig) = on_xla_devices(fixture(FIXTURES[1]).to_str().unwrap(), 2) else { return };
    let engine = &mut rig.engine.0[0];
    assert_eq!(ids(engine), [0, 1]);
    let layout = StateLayout { num_slots: 1, num_blocks: 8, max_total_tokens: 32, max_batch_prefill_tokens: 32 };
    let mut message =
        |assignment: &[i64]| engine.backend.allocate(layout, assignment, &mut |_, _, _| ()).unwrap_err().to_string();
    insta::assert_snapshot!(
        message(&[0]),
        @"the router assigns 1 device(s) to 2 ranks, which is a defect of this server"
    );
    insta::assert_snapshot!(
        message(&[1, 0]),
        @"the router assigns device 1 to rank 0, whose weights are on device 0, which is a defect of this server"
    );
}

#[test]
fn impossible_numbers_of_ranks_are_errors() {
    let message = |args: ShardArgs| load(&args, &mut |_, _, _| ()).err().unwrap().to_string();
    let tiny = || args(fixture("tiny-llama-gqa-untied").to_str().unwrap(), Device::XLA_CPU);
    let heads = message(ShardArgs { devices_per_shard: 3, ..tiny() });
    insta::assert_snapshot!(
        heads,
        @"config.json: num_attention_heads is 8: --num-shard may be 1, 2, 4, 8; with --devices-per-shard, the product of both must be one of these"
    );
    insta::assert_snapshot!(
        message(ShardArgs { num_shards: 2, ..tiny() }),
        @"`num_shard` is 2, but --device xla-cpu runs a model in one process; use --devices-per-shard instead"
    );
    let cpu = args(fixture("tiny-llama-gqa-untied").to_str().unwrap(), Device::CPU);
    insta::assert_snapshot!(
        message(ShardArgs { devices_per_shard: 2, ..cpu.clone() }),
        @"`devices_per_shard` is 2, but a shard on --device cpu has one device; use --num-shard instead"
    );
    insta::assert_snapshot!(
        message(ShardArgs { shard: 2, num_shards: 2, ..cpu.clone() }),
        @"--shard is 2, but must be below --num-shards 2"
    );
    insta::assert_snapshot!(
        message(ShardArgs { num_shards: 2, ..cpu }),
        @"--collective-path is missing: 2 shards of one host need a file that they share"
    );
}
