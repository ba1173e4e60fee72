//! The speed of a model's steps on this processor, without a server, compared with the bounds of the hardware.
//!
//! Entry points: [`SpeedArgs`], [`measure`]. Reading a prompt is compared with the multiply-adds per second that the
//! processor can do. Decoding is compared with memory bandwidth, as if each step read every weight that it multiplies
//! once, and all keys and values of its rows. Which weights several rows of a model with experts read depends on their
//! choices, so that there is no comparison. The share of the peak is calculated from the median time of the steps,
//! speeds from the median and from the shortest time. The share of the bandwidth comes from other steps, each compared
//! with reads of memory just before and after it, because the bandwidth of a machine that others use too changes from
//! second to second.

use std::fmt::Write as _;
use std::time::Instant;

use backend::{BLOCK_SIZE, BackendError, Fault, Processors};
use clap::Args;
use devices::{Asked, BackendKind, Device, Quantize};
use kernels::arithmetic::multiply_adds_per_second;
use kernels::linear::WeightType;
use kernels::memory::Reader;
use proto::{Opening, Release, Row, Sample, SamplingParams, Step, Warmup};

use crate::args::{ModelArgs, ShardArgs};
use crate::engine::{self, Engine, EngineError, Progress, Work, num_threads};

/// The maximum number of bytes that are read to measure the bandwidth. If the weights are smaller, as many bytes as
/// they have are read.
const MAX_READ_BYTES: usize = 1 << 30;
/// The number of times that these bytes are read for the bandwidth in the report's head.
const NUM_READS: usize = 8;
/// The number of times that these bytes are read before and after each step. The fastest counts, because the threads of
/// the step are still awake at the first.
const NUM_READS_BETWEEN: usize = 3;

/// The model and the steps to measure.
#[derive(Debug, Clone, Args)]
pub struct SpeedArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    /// Length of each prompt, in tokens
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_tokens: u32,

    /// Batch sizes to measure: numbers of sequences that generate tokens together
    #[arg(long, value_delimiter = ',', default_value = "1,8,32", value_parser = clap::value_parser!(u32).range(1..))]
    pub rows: Vec<u32>,

    /// Number of prompts whose reading is timed, and of decoding steps that are timed for each batch size
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..))]
    pub steps: u32,
}

/// The error of a measurement.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct SpeedError(#[from] Reason);

#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error(
        "--device is {0}, but bench measures the processor; leave the flag out. To measure another device, start a \
         server on it, and measure the server with a client (bench/README.md)"
    )]
    Device(Device),
    #[error(
        "--prompt-tokens and --steps make sequences of {num_tokens} tokens, one more than their sum, but the model \
         takes at most {most}; lower one of them"
    )]
    TooLong { num_tokens: usize, most: usize },
    #[error(
        "{0}; bench derives this limit from the largest of --rows, times the sum of --prompt-tokens and --steps: lower \
         one of them"
    )]
    Memory(Box<EngineError>),
    #[error(transparent)]
    Engine(Box<EngineError>),
}

impl From<EngineError> for Reason {
    /// Converts the error. Messages about the length of sequences and the size of the cache name flags of `bench`.
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::BeyondModel { max_total_tokens, max_position_embeddings } => {
                Self::TooLong { num_tokens: max_total_tokens, most: max_position_embeddings }
            }
            EngineError::OutOfMemory { .. } | EngineError::CacheTooSmall { .. } => Self::Memory(Box::new(error)),
            error => Self::Engine(Box::new(error)),
        }
    }
}

impl From<EngineError> for SpeedError {
    fn from(error: EngineError) -> Self {
        Self(error.into())
    }
}

/// Sequences that run together, in slots from 0, each with its own blocks.
struct Sequences {
    num_sequences: u32,
    blocks_each: u32,
    len: u32,
}

/// The threads, the number of bytes to read and the type of weights with which this machine is measured. Its memory
/// bandwidth and its multiply-adds per second limit the speed of steps.
struct Machine {
    pool: rayon::ThreadPool,
    read_bytes: usize,
    weights: WeightType,
}

/// Loads the model, times its steps, and returns a report. `progress` is called while the model is loaded and warms
/// up.
///
/// # Errors
/// When the flags do not fit the model or the machine, the model cannot be loaded, or a step fails.
pub fn measure(args: &SpeedArgs, progress: &mut (dyn FnMut(&str, u64, u64) + Send)) -> Result<String, SpeedError> {
    let start = Instant::now();
    let sequences = Sequences::of(args);
    let (shard_args, warmup) = (shard_args(&args.model)?, sequences.warmup(args));
    engine::check(&shard_args, &warmup)?;
    let mut engine = engine::load(&shard_args, progress)?;
    let kv_bytes_per_token = warm_up(&mut engine, &warmup, progress)?;
    let mut text = format!("loaded and warm after {:.1} s\n", start.elapsed().as_secs_f64());
    let machine = Machine::of(args, &engine)?;
    let bandwidth = machine.bandwidth(&machine.reader(), NUM_READS);
    let peak = machine.peak();
    let weights_gb = engine.info().weights_bytes as f64 / 1e9;
    let stored = args.model.quantize.map_or_else(|| engine.info().dtype.clone(), |quantize| quantize.to_string());
    let _ = writeln!(text, "{weights_gb:.2} GB of weights as {stored}; memory reads {bandwidth:.1} GB/s");
    let seconds = prefills(&mut engine, args, &sequences)?;
    let tokens = f64::from(args.prompt_tokens);
    let Work { per_token, per_logits, has_experts } = engine.work();
    let multiply_adds = tokens * per_token as f64 + per_logits as f64;
    let share = 100.0 * multiply_adds / median(&seconds) / peak;
    let (rates_of_prompts, peak) = (rates(&seconds, tokens), 2e-9 * peak);
    let _ =
        writeln!(text, "prefill {tokens:<4} {rates_of_prompts}, linear layers at {share:.0} % of {peak:.0} GFLOP/s");
    for num_rows in &args.rows {
        let sequences = || Sequences { num_sequences: *num_rows, ..Sequences::of(args) };
        let seconds = decodes(&mut engine, args, sequences(), &mut || ())?;
        // On average, the contexts of a step contain about half of the tokens to generate.
        let num_tokens = f64::from(*num_rows) * (tokens + f64::from(args.steps) / 2.0);
        let read_gb = (engine.row_bytes() as f64 + num_tokens * kv_bytes_per_token) / 1e9;
        let _ = write!(text, "decode  {num_rows:<4} {}", rates(&seconds, f64::from(*num_rows)));
        if *num_rows == 1 || !has_experts {
            let share = 100.0 * machine.share_of_bandwidth(&mut engine, args, sequences(), read_gb)?;
            let _ = write!(text, ", {read_gb:.2} GB at {share:.0} % of the bandwidth");
        }
        text.push('\n');
    }
    Ok(text)
}

impl Machine {
    /// Returns a machine that is measured with the engine's number of threads and type of weights.
    fn of(args: &SpeedArgs, engine: &Engine) -> Result<Self, SpeedError> {
        let num_threads = num_threads(args.model.threads, &Processors::of_process())?;
        let pool = rayon::ThreadPoolBuilder::new().num_threads(num_threads).build();
        let pool = pool.map_err(|source| EngineError::from(BackendError::device(Fault::Failed, source)))?;
        let read_bytes = usize::try_from(engine.info().weights_bytes).unwrap_or(MAX_READ_BYTES).min(MAX_READ_BYTES);
        let weights = match (args.model.quantize, engine.info().dtype.as_str()) {
            (Some(Quantize::Int4), _) => WeightType::Int4,
            (Some(Quantize::Int8), _) => WeightType::Int8,
            (Some(Quantize::Fp8), _) => unreachable!("no model was loaded so"),
            (None, "bfloat16") => WeightType::Bf16,
            (None, "float16") => WeightType::F16,
            (None, _) => WeightType::F32,
        };
        Ok(Self { pool, read_bytes, weights })
    }

    fn reader(&self) -> Reader {
        self.pool.install(|| Reader::new(self.read_bytes))
    }

    /// Measures the bandwidth of reads, in GB/s.
    fn bandwidth(&self, reader: &Reader, num_reads: usize) -> f64 {
        self.pool.install(|| reader.bandwidth(num_reads))
    }

    /// Returns the median share of the bandwidth that decoding steps use if each reads `read_gb`, in GB.
    ///
    /// # Errors
    /// When a step fails.
    fn share_of_bandwidth(
        &self,
        engine: &mut Engine,
        args: &SpeedArgs,
        sequences: Sequences,
        read_gb: f64,
    ) -> Result<f64, EngineError> {
        let reader = self.reader();
        let mut bandwidths = Vec::new();
        let mut read = || bandwidths.push(self.bandwidth(&reader, NUM_READS_BETWEEN));
        let seconds = decodes(engine, args, sequences, &mut read)?;
        let of_step = |(seconds, around): (&f64, &[f64])| 2.0 * read_gb / seconds / around.iter().sum::<f64>();
        Ok(median(&seconds.iter().zip(bandwidths.windows(2)).map(of_step).collect::<Vec<f64>>()))
    }

    /// Measures the multiply-adds per second.
    fn peak(&self) -> f64 {
        self.pool.install(|| multiply_adds_per_second(self.weights))
    }
}

impl Sequences {
    fn of(args: &SpeedArgs) -> Self {
        let num_sequences = args.rows.iter().copied().max().unwrap_or(1);
        Self { num_sequences, blocks_each: num_tokens(args).div_ceil(BLOCK_SIZE as u32), len: args.prompt_tokens }
    }

    fn warmup(&self, args: &SpeedArgs) -> Warmup {
        let tokens_in_blocks = self.blocks_each.saturating_mul(BLOCK_SIZE as u32);
        Warmup {
            max_total_tokens: Some(num_tokens(args)),
            max_batch_prefill_tokens: Some(args.prompt_tokens),
            max_batch_total_tokens: Some(tokens_in_blocks.saturating_mul(self.num_sequences)),
            max_batch_size: Some(self.num_sequences),
            ..Warmup::default()
        }
    }

    /// Returns a step that reads the prompt of one sequence.
    fn prefill(&self, slot: u32) -> Step {
        let first_block = slot * self.blocks_each;
        let row = Row {
            slot,
            token_ids: (0..self.len).map(|position| 3 + (position * 7 + slot * 31) % 100).collect(),
            new_blocks: (first_block..first_block + self.blocks_each).collect(),
            opening: Some(Box::new(Opening { sampling: Some(SamplingParams::greedy()), ..Opening::default() })),
            token: Some(Sample::default()),
            ..Row::default()
        };
        Step { rows: vec![row] }
    }

    /// Returns a step that generates the next token of each sequence.
    fn decode(&mut self) -> Step {
        let position = self.len;
        self.len += 1;
        let row = |slot| Row { slot, position, token: Some(Sample::default()), ..Row::default() };
        Step { rows: (0..self.num_sequences).map(row).collect() }
    }

    fn release(&self) -> Release {
        Release { slots: (0..self.num_sequences).collect() }
    }
}

/// Returns the length of each sequence in tokens, with the token that the last step samples.
fn num_tokens(args: &SpeedArgs) -> u32 {
    args.prompt_tokens.saturating_add(args.steps).saturating_add(1)
}

fn shard_args(model: &ModelArgs) -> Result<ShardArgs, SpeedError> {
    let device = match model.device {
        Asked::Auto => Device::CPU,
        Asked::Device(device) => device,
    };
    if !matches!(device.backend, BackendKind::Cpu) {
        return Err(Reason::Device(device).into());
    }
    let model = ModelArgs { device: Asked::Device(device), ..model.clone() };
    Ok(ShardArgs {
        model,
        uds_path: endpoint::Endpoint::Unix(std::path::PathBuf::new()),
        shard: 0,
        num_shards: 1,
        devices_per_shard: 1,
        shards_on_host: None,
        collective_path: None,
        peer_sockets: None,
        json_output: false,
        log_level: String::new(),
    })
}

/// Warms up the engine, and returns the bytes of the keys and values of a token.
fn warm_up(engine: &mut Engine, warmup: &Warmup, progress: &mut Progress<'_>) -> Result<f64, EngineError> {
    let reply = engine.warmup(warmup, progress)?;
    Ok(reply.kv_cache_bytes as f64 / f64::from(reply.sizes.unwrap_or_default().num_blocks * BLOCK_SIZE as u32))
}

fn prefills(engine: &mut Engine, args: &SpeedArgs, sequences: &Sequences) -> Result<Vec<f64>, EngineError> {
    let mut seconds = Vec::new();
    for _ in 0..args.steps {
        seconds.push(seconds_of(engine, &sequences.prefill(0))?);
        engine.release(&Release { slots: vec![0] })?;
    }
    Ok(seconds)
}

/// Returns the seconds of each decoding step. `between` is called before the first and after each.
fn decodes(
    engine: &mut Engine,
    args: &SpeedArgs,
    mut sequences: Sequences,
    between: &mut dyn FnMut(),
) -> Result<Vec<f64>, EngineError> {
    for slot in 0..sequences.num_sequences {
        engine.step(&sequences.prefill(slot))?;
    }
    let mut seconds = Vec::new();
    between();
    for _ in 0..args.steps {
        seconds.push(seconds_of(engine, &sequences.decode())?);
        between();
    }
    engine.release(&sequences.release())?;
    Ok(seconds)
}

fn seconds_of(engine: &mut Engine, step: &Step) -> Result<f64, EngineError> {
    let start = Instant::now();
    engine.step(step)?;
    Ok(start.elapsed().as_secs_f64())
}

fn rates(seconds: &[f64], tokens: f64) -> String {
    let shortest = seconds.iter().copied().fold(f64::INFINITY, f64::min);
    let median = median(seconds);
    let [usual, best] = [median, shortest].map(|seconds| tokens / seconds);
    format!("{usual:7.1} tokens/s, best {best:7.1}; a step {:7.1} ms, best {:7.1}", median * 1e3, shortest * 1e3)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        speed: SpeedArgs,
    }

    #[test]
    fn every_number_of_rows_is_measured() {
        let folder = checkpoints::folder("tiny-llama-bf16");
        let fixture = folder.to_str().unwrap();
        let args = ["bench", "--model-id", fixture, "--prompt-tokens", "20", "--rows", "1,3", "--steps", "2"];
        let report = measure(&Command::parse_from(args).speed, &mut |_, _, _| ()).unwrap();
        let of = |start: &str| report.lines().filter(|line| line.starts_with(start)).count();
        assert_eq!((of("prefill 20 "), of("decode  1 "), of("decode  3 "), of("decode")), (1, 1, 1, 2), "{report}");
        // Without reads before and after each step there would be no share.
        assert_eq!((report.matches("% of the bandwidth").count(), report.contains("NaN")), (2, false), "{report}");
    }

    #[test]
    fn errors_of_impossible_measurements_name_the_flags_of_bench() {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            speed: SpeedArgs,
        }
        let error = |flags: &[&str]| {
            let cli = <Cli as clap::Parser>::parse_from(["bench"].iter().chain(flags));
            measure(&cli.speed, &mut |phase, _, _| panic!("{phase} has begun")).unwrap_err().to_string()
        };
        for device in ["tpu", "cuda", "xla-cpu", "mock"] {
            let error = error(&["--device", device]);
            assert!(error.starts_with(&format!("--device is {device}, but bench measures the processor")), "{error}");
        }
        for tokens in ["100000", "4294967295"] {
            let error = error(&["--prompt-tokens", tokens]);
            assert!(error.contains("at most 1024; lower one of them"), "{error}");
        }
        for flags in [["--prompt-tokens", "1008"], ["--steps", "512"]] {
            let error = error(&flags);
            assert!(error.contains("make sequences of 1025 tokens"), "{error}");
        }
        let error = error(&["--prompt-tokens", "900", "--rows", "4000000000"]);
        assert!(error.contains("the sum of --prompt-tokens and --steps: lower one of them"), "{error}");
    }

    #[test]
    fn only_the_cache_is_rounded_up_to_blocks() {
        let args = ["bench", "--model-id", "", "--prompt-tokens", "20", "--rows", "1,3", "--steps", "2"];
        let args = Command::parse_from(args).speed;
        let warmup = Sequences::of(&args).warmup(&args);
        assert_eq!((warmup.max_total_tokens, warmup.max_batch_total_tokens), (Some(23), Some(3 * 32)));
    }

    #[test]
    fn half_of_the_times_are_longer_than_the_median() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert!(median(&[]).is_nan());
    }
}
