//! Times candle-transformers on this CPU, for the same steps as `text-generation-launcher bench`.
//!
//! ```text
//! cargo run --release -- MODEL [--prompt-tokens 512] [--rows 1,8,32] [--steps 16]
//! ```
//!
//! `MODEL` is the folder of a checkpoint (Llama, Qwen 3 with and without experts, Gemma 3 without images), or the GGUF
//! file of a Llama model. `--dtype f16|f32` is the type of a checkpoint's weights
//! after loading, because candle does not multiply bf16 on a CPU. `RAYON_NUM_THREADS` sets the number of threads.

use std::fs::File;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use candle_core::quantized::gguf_file;
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama::{Cache, Config, Llama, LlamaConfig};
use candle_transformers::models::quantized_llama::ModelWeights;
use candle_transformers::models::{gemma3, qwen3, qwen3_moe};
use clap::Parser;
use serde_json::Value;

#[derive(Parser)]
struct Args {
    model: PathBuf,
    #[arg(long, default_value = "f16", value_parser = ["f16", "f32"])]
    dtype: String,
    #[arg(long, default_value_t = 512)]
    prompt_tokens: usize,
    #[arg(long, value_delimiter = ',', default_value = "1,8,32")]
    rows: Vec<usize>,
    #[arg(long, default_value_t = 16)]
    steps: usize,
}

/// A model, with the keys and values of the tokens that the model's rows have read.
enum Model {
    Llama { llama: Llama, config: Config, cache: Cache, dtype: DType },
    Qwen3(qwen3::ModelForCausalLM),
    Qwen3Moe(qwen3_moe::ModelForCausalLM),
    Gemma3(gemma3::Model),
    Quantized(ModelWeights),
}

impl Model {
    fn load(args: &Args) -> Result<Self> {
        if args.model.is_dir() { Self::load_checkpoint(args) } else { Self::load_gguf(&args.model) }
    }

    fn load_checkpoint(args: &Args) -> Result<Self> {
        let dtype = if args.dtype == "f16" { DType::F16 } else { DType::F32 };
        let file = File::open(args.model.join("config.json"))?;
        let mut config: Value = serde_json::from_reader(file).map_err(candle_core::Error::wrap)?;
        config["max_position_embeddings"] = (args.prompt_tokens + args.steps + 1).into();
        let weights = args.model.join("model.safetensors");
        let variables = VarBuilder::from_buffered_safetensors(std::fs::read(weights)?, dtype, &Device::Cpu)?;
        match config["architectures"][0].as_str() {
            Some("LlamaForCausalLM") => {
                let config = parsed::<LlamaConfig>(config)?.into_config(false);
                let llama = Llama::load(variables, &config)?;
                let cache = Cache::new(true, dtype, &config, &Device::Cpu)?;
                Ok(Self::Llama { llama, config, cache, dtype })
            }
            Some("Qwen3ForCausalLM") => Ok(Self::Qwen3(qwen3::ModelForCausalLM::new(&parsed(config)?, variables)?)),
            Some("Qwen3MoeForCausalLM") => {
                Ok(Self::Qwen3Moe(qwen3_moe::ModelForCausalLM::new(&parsed(config)?, variables)?))
            }
            Some("Gemma3ForCausalLM") => Ok(Self::Gemma3(gemma3::Model::new(false, &parsed(config)?, variables)?)),
            other => candle_core::bail!("this program does not load the architecture {other:?}"),
        }
    }

    fn load_gguf(path: &Path) -> Result<Self> {
        let mut file = File::open(path)?;
        let content = gguf_file::Content::read(&mut file)?;
        ModelWeights::from_gguf(content, &mut file, &Device::Cpu).map(Self::Quantized)
    }

    /// Clears the keys and values of all rows.
    fn clear(&mut self) -> Result<()> {
        match self {
            Self::Llama { config, cache, dtype, .. } => *cache = Cache::new(true, *dtype, config, &Device::Cpu)?,
            Self::Qwen3(model) => model.clear_kv_cache(),
            Self::Qwen3Moe(model) => model.clear_kv_cache(),
            Self::Gemma3(model) => model.clear_kv_cache(),
            Self::Quantized(weights) => weights.clear_kv_cache(),
        }
        Ok(())
    }

    /// Reads the first tokens of every row, `[rows, length]`, and returns the time that this took.
    fn read(&mut self, tokens: &Tensor) -> Result<Duration> {
        let (rows, length) = tokens.dims2()?;
        match self {
            // With a quantized model, candle can read the prompts of several rows only token by token.
            Self::Quantized(_) if rows > 1 => {
                (0..length).map(|position| self.step(&tokens.narrow(1, position, 1)?, position)).sum()
            }
            _ => self.step(tokens, 0),
        }
    }

    /// Reads `tokens` `[rows, length]`, which start at `position`, and returns the time until the logits of each row's
    /// last token are computed.
    fn step(&mut self, tokens: &Tensor, position: usize) -> Result<Duration> {
        let start = Instant::now();
        let logits = match self {
            Self::Llama { llama, cache, .. } => llama.forward(tokens, position, cache)?,
            Self::Qwen3(model) => model.forward(tokens, position)?,
            Self::Qwen3Moe(model) => model.forward(tokens, position)?,
            Self::Gemma3(model) => model.forward(tokens, position)?,
            Self::Quantized(weights) => weights.forward(tokens, position)?,
        };
        black_box(logits);
        Ok(start.elapsed())
    }
}

/// Reads a configuration of candle. Keys are where transformers 4 has them.
fn parsed<T: serde::de::DeserializeOwned>(config: Value) -> Result<T> {
    serde_json::from_value(config).map_err(candle_core::Error::wrap)
}

/// Returns tokens `[rows, length]` that differ from row to row.
fn prompts(rows: usize, length: usize) -> Result<Tensor> {
    let tokens: Vec<_> =
        (0..rows * length).map(|index| 3 + (index % length * 7 + index / length * 31) as u32 % 100).collect();
    Tensor::from_vec(tokens, (rows, length), &Device::Cpu)
}

fn report(name: &str, mut times: Vec<Duration>, tokens: usize) {
    times.sort_unstable();
    let (usual, best) = (times[times.len() / 2].as_secs_f64(), times[0].as_secs_f64());
    let (rate, best_rate) = (tokens as f64 / usual, tokens as f64 / best);
    println!(
        "{name} {rate:7.1} tokens/s, best {best_rate:7.1}; a step {:7.1} ms, best {:7.1}",
        usual * 1e3,
        best * 1e3
    );
}

fn main() -> Result<()> {
    let args = Args::parse();
    let mut model = Model::load(&args)?;
    let prompt = prompts(1, args.prompt_tokens)?;
    let mut times = vec![];
    for _ in 0..args.steps {
        model.clear()?;
        times.push(model.read(&prompt)?);
    }
    report(&format!("prefill {:<4}", args.prompt_tokens), times, args.prompt_tokens);
    for &rows in &args.rows {
        model.clear()?;
        model.read(&prompts(rows, args.prompt_tokens)?)?;
        let next = prompts(rows, 1)?;
        let times = (0..args.steps).map(|step| model.step(&next, args.prompt_tokens + step)).collect::<Result<_>>()?;
        report(&format!("decode  {rows:<4}"), times, rows);
    }
    Ok(())
}
