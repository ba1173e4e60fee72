//! The command line of a shard. A shard reads its flags and their environment variables only here.
//!
//! Entry points: [`ShardArgs`], and [`ModelArgs`], the arguments that the launcher and other commands take too. The
//! launcher starts a shard with the arguments from [`ShardArgs::to_argv`].

use std::ffi::OsString;
use std::num::NonZero;
use std::os::fd::RawFd;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use devices::{Asked, DecodeAttention, Quantize};
use endpoint::Endpoint;

/// Computes the steps of one model on one or more devices.
#[derive(Debug, Clone, PartialEq, Eq, Parser)]
#[command(name = "text-generation-shard", version)]
pub struct ShardArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    /// Path of the Unix socket to listen on, or tcp://host:port with a loopback address; any user of this machine can
    /// connect to the latter
    #[arg(long, default_value = "/tmp/text-generation-server-0")]
    pub uds_path: Endpoint,

    /// Number of this shard, from 0
    #[arg(long, default_value_t = 0)]
    pub shard: u32,

    /// Number of shards that serve the model together
    #[arg(long, default_value_t = 1)]
    pub num_shards: u32,

    /// Number of devices that this shard uses; the model is split over --num-shards × --devices-per-shard devices
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub devices_per_shard: u32,

    /// Number of shards on this host; the shards are numbered host by host [default: all of them]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub shards_on_host: Option<u32>,

    /// File that the shards of this host share
    #[arg(long, hide = true)]
    pub collective_path: Option<PathBuf>,

    /// Inherited sockets to the other shards, by number, in the order of shards, with - for this one
    #[arg(long, hide = true, allow_hyphen_values = true)]
    pub peer_sockets: Option<PeerSockets>,

    /// Log one JSON object per line
    #[arg(long, env)]
    pub json_output: bool,

    /// Level of the log: error, warn, info, debug, trace, or a filter such as `info,shard=debug`
    #[arg(long, env, default_value = "info")]
    pub log_level: String,
}

/// The numbers of the sockets to the other shards, in the order of shards; `None` for the shard itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerSockets(pub Vec<Option<RawFd>>);

/// The error for text that is not a list of sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be the numbers of sockets with commas, and - for the shard itself, such as 7,-,8")]
pub struct PeerSocketsError;

impl std::str::FromStr for PeerSockets {
    type Err = PeerSocketsError;

    fn from_str(text: &str) -> Result<Self, PeerSocketsError> {
        let socket = |word| match word {
            "-" => Ok(None),
            number => number.parse().map(Some).map_err(|_| PeerSocketsError),
        };
        text.split(',').map(socket).collect::<Result<_, _>>().map(Self)
    }
}

impl std::fmt::Display for PeerSockets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words = self.0.iter().map(|socket| socket.map_or_else(|| "-".to_owned(), |number| number.to_string()));
        f.write_str(&words.collect::<Vec<_>>().join(","))
    }
}

/// The model, and how it is computed.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// Model to serve: `demo`, the path of a Hugging Face model directory or of a GGUF file, or organisation/name of a
    /// model on the Hub, with `:Q4_K_M` or another quantization for one of its GGUF files
    #[arg(long, env, default_value = model_files::DEMO_MODEL_ID)]
    pub model_id: String,

    /// Revision of a model on the Hub: a branch, a tag or a commit [default: main]
    #[arg(long, env)]
    pub revision: Option<String>,

    /// Number type of the weights in memory [default: the checkpoint's]
    #[arg(long, env, value_enum)]
    pub dtype: Option<Dtype>,

    #[arg(long, env, value_parser = parse_quantize, help = devices::quantize_help())]
    pub quantize: Option<Quantize>,

    /// Number type of the KV cache on the CPU: f32, f16, bf16, or int8 (8-bit integers, one scale per token and head);
    /// `auto` is the type of the weights before --quantize
    #[arg(long, env, value_parser = parse_kv_cache_dtype, default_value_t = KvCacheDtype::Auto)]
    pub kv_cache_dtype: KvCacheDtype,

    #[arg(long, env, value_enum, default_value_t = Asked::Auto, help = devices::device_help())]
    pub device: Asked,

    /// PJRT plugin of the device: its shared library, or a folder that contains it [default: searched for, see `plugin
    /// list`]
    #[arg(long, env = "HILO_PLUGIN_PATH")]
    pub plugin_path: Option<PathBuf>,

    /// Cache folder of the programs compiled for a device; `none` turns the cache off [default: ~/.cache/hilo/programs]
    #[arg(long, env = "HILO_PROGRAM_CACHE")]
    pub program_cache: Option<PathBuf>,

    /// Number of CPU threads of all shards together, at most the number of CPUs that this process may use [default: one
    /// per core]
    #[arg(long, env = "HILO_THREADS", value_parser = parse_threads)]
    pub threads: Option<NonZero<usize>>,

    /// Instruction set of the CPU kernels: portable, avx2, avx-vnni, avx512, avx512-vnni, avx512-bf16 or amx [default:
    /// the fastest that this CPU has]
    #[arg(long, env = "HILO_CPU_ISA", hide = true)]
    pub cpu_isa: Option<String>,

    /// Attention of rows that decode, on a TPU: `loop`, or `mosaic`, a kernel that no TPU has run yet
    #[arg(long, env = "HILO_ATTENTION", hide = true, value_enum, default_value_t)]
    pub attention: DecodeAttention,

    /// Min duration of a step on the device `mock`, in microseconds
    #[arg(long, env = "HILO_MOCK_STEP_US", hide = true)]
    pub mock_step_us: Option<u64>,
}

/// The number type of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum Dtype {
    /// The type in config.json.
    Auto,
    /// IEEE single precision.
    #[value(alias = "float")]
    Float32,
    /// IEEE half precision.
    #[value(alias = "half")]
    Float16,
    /// The upper 16 bits of single precision.
    Bfloat16,
}

/// The number type of keys and values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum KvCacheDtype {
    /// On the CPU, the type of the weights before quantization; other devices choose a type.
    #[default]
    Auto,
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper 16 bits of single precision.
    Bf16,
    /// Integers from -127 to 127 with a scale per token and head.
    Int8,
}

/// An unknown type of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("allowed are auto, f32, f16, bf16 and int8, which takes about as little memory as fp8")]
pub struct KvCacheDtypeError;

/// An unsupported type of weights in `--quantize`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuantizeError {
    /// A format of checkpoint files, which is recognised without the flag.
    #[error("this format of a checkpoint is recognised without the flag; leave it out")]
    OfCheckpoint,
    /// A quantization of other servers. The value is our quantization of about the same size.
    #[error("this quantization is not supported; use {0}, which makes the weights about as small")]
    Instead(Quantize),
    /// A format of files that is not supported.
    #[error("checkpoints in this format are not read; use one in the format gptq, awq or GGUF and leave the flag out")]
    Exl2,
    /// An unknown name.
    #[error("allowed are int8, int4 and fp8; without the flag the weights stay as they are")]
    Unknown,
}

/// An invalid number of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the number of threads must be at least 1; without the flag each core has one")]
pub struct ThreadsError;

impl ShardArgs {
    /// Returns the arguments, without the program's name, that parse to `self` if no environment variable sets a value
    /// that is absent here.
    pub fn to_argv(&self) -> Vec<OsString> {
        let Self {
            model,
            uds_path,
            shard,
            num_shards,
            devices_per_shard,
            shards_on_host,
            collective_path,
            peer_sockets,
            json_output,
            log_level,
        } = self;
        let mut argv = model.to_argv();
        argv.extend(["--uds-path".into(), uds_path.to_string().into()]);
        argv.extend(["--shard".into(), shard.to_string().into()]);
        argv.extend(["--num-shards".into(), num_shards.to_string().into()]);
        argv.extend(["--devices-per-shard".into(), devices_per_shard.to_string().into()]);
        let on_host = shards_on_host.map(|number| ["--shards-on-host".into(), number.to_string().into()]);
        argv.extend(on_host.into_iter().flatten());
        argv.extend(collective_path.iter().flat_map(|path| ["--collective-path".into(), OsString::from(path)]));
        // One word, because the list may begin with a hyphen.
        argv.extend(peer_sockets.iter().map(|sockets| format!("--peer-sockets={sockets}").into()));
        argv.extend(json_output.then(|| "--json-output".into()));
        argv.extend(["--log-level".into(), log_level.into()]);
        argv
    }
}

impl ModelArgs {
    /// Returns the arguments that parse to `self` if no environment variable sets a value that is absent here.
    pub fn to_argv(&self) -> Vec<OsString> {
        let Self {
            model_id,
            revision,
            dtype,
            quantize,
            kv_cache_dtype,
            device,
            plugin_path,
            program_cache,
            threads,
            cpu_isa,
            attention,
            mock_step_us,
        } = self;
        let path = |path: &Option<PathBuf>| path.as_ref().map(OsString::from);
        let flags: [(&str, Option<OsString>); 12] = [
            ("--model-id", Some(model_id.into())),
            ("--revision", revision.as_ref().map(OsString::from)),
            ("--dtype", dtype.map(|dtype| name(&dtype).into())),
            ("--quantize", quantize.map(|quantize| name(&quantize).into())),
            ("--kv-cache-dtype", Some(name(kv_cache_dtype).into())),
            ("--device", Some(name(device).into())),
            ("--plugin-path", path(plugin_path)),
            ("--program-cache", path(program_cache)),
            ("--threads", threads.map(|threads| threads.to_string().into())),
            ("--cpu-isa", cpu_isa.as_ref().map(OsString::from)),
            ("--attention", Some(name(attention).into())),
            ("--mock-step-us", mock_step_us.map(|step_us| step_us.to_string().into())),
        ];
        let given = flags.into_iter().filter_map(|(flag, value)| Some([flag.into(), value?]));
        given.flatten().collect()
    }
}

impl std::fmt::Display for KvCacheDtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&name(self))
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&name(self))
    }
}

/// Parses a type of keys and values. The error lists the supported types, because those of TGI differ.
fn parse_kv_cache_dtype(text: &str) -> Result<KvCacheDtype, KvCacheDtypeError> {
    KvCacheDtype::from_str(text, false).map_err(|_| KvCacheDtypeError)
}

/// Parses a quantization. The error for a value that only TGI accepts says what to do instead.
pub(crate) fn parse_quantize(text: &str) -> Result<Quantize, QuantizeError> {
    Quantize::from_str(text, false).map_err(|_| match text {
        "gptq" | "awq" | "marlin" | "compressed-tensors" => QuantizeError::OfCheckpoint,
        "bitsandbytes" | "bitsandbytes-int8" | "eetq" => QuantizeError::Instead(Quantize::Int8),
        "bitsandbytes-nf4" | "bitsandbytes-fp4" => QuantizeError::Instead(Quantize::Int4),
        "exl2" => QuantizeError::Exl2,
        _ => QuantizeError::Unknown,
    })
}

fn parse_threads(text: &str) -> Result<NonZero<usize>, ThreadsError> {
    text.parse().map_err(|_| ThreadsError)
}

fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use devices::Device;

    use super::*;

    fn parse(argv: &[OsString]) -> ShardArgs {
        ShardArgs::try_parse_from(std::iter::once(OsString::from("text-generation-shard")).chain(argv.iter().cloned()))
            .unwrap()
    }

    #[test]
    fn argv_parses_back() {
        let all = ShardArgs {
            model: ModelArgs {
                model_id: "/models/a b".into(),
                revision: Some("main".into()),
                dtype: Some(Dtype::Bfloat16),
                quantize: Some(Quantize::Int8),
                kv_cache_dtype: KvCacheDtype::Bf16,
                device: Asked::Device(Device::MOCK),
                plugin_path: Some("/opt/a plugin.so".into()),
                program_cache: Some("/var/cache/hilo".into()),
                threads: NonZero::new(3),
                cpu_isa: Some("avx2".into()),
                attention: DecodeAttention::Mosaic,
                mock_step_us: Some(5000),
            },
            uds_path: Endpoint::Unix("/run/x y-3".into()),
            shard: 3,
            num_shards: 8,
            devices_per_shard: 2,
            shards_on_host: Some(2),
            collective_path: Some("/proc/self/fd/7".into()),
            peer_sockets: Some(PeerSockets(vec![None, Some(7), Some(12)])),
            json_output: true,
            log_level: "info,shard=debug".into(),
        };
        assert_eq!(parse(&all.to_argv()), all);
        let default = parse(&[]);
        assert_eq!(parse(&default.to_argv()), default);
        // A variable of the shard's environment must not replace a value that the launcher was given.
        let argv = default.to_argv();
        for pair in [["--kv-cache-dtype", "auto"], ["--attention", "loop"]] {
            assert!(argv.windows(2).any(|words| words == pair), "{argv:?}");
        }
        assert_eq!((default.model.model_id.as_str(), default.model.device), ("demo", Asked::Auto));
    }

    #[test]
    fn quantizations_of_others_are_refused_in_words() {
        for (value, sentence) in [
            ("gptq", "this format of a checkpoint is recognised without the flag; leave it out"),
            ("awq", "leave it out"),
            ("marlin", "leave it out"),
            ("compressed-tensors", "leave it out"),
            ("bitsandbytes", "use int8"),
            ("bitsandbytes-nf4", "use int4"),
            ("eetq", "use int8"),
            ("exl2", "gptq, awq or GGUF"),
            ("q4_k_m", "int8, int4 and fp8"),
        ] {
            let error = ShardArgs::try_parse_from(["shard", "--quantize", value]).unwrap_err().to_string();
            assert!(error.contains(sentence) && error.contains("'--quantize"), "{value}: {error}");
        }
        assert_eq!(parse_quantize("int4"), Ok(Quantize::Int4));
    }

    #[test]
    fn a_gpu_is_cuda_and_no_threads_are_refused_in_words() {
        let device = |name| ShardArgs::try_parse_from(["shard", "--device", name]).unwrap().model.device;
        assert_eq!((device("gpu"), device("cuda")), (Asked::Device(Device::CUDA), Asked::Device(Device::CUDA)));
        for value in ["0", "many", "-2"] {
            let error = ShardArgs::try_parse_from(["shard", &format!("--threads={value}")]).unwrap_err().to_string();
            assert!(error.contains("the number of threads must be at least 1"), "{error}");
        }
    }

    #[test]
    fn types_of_keys_and_values_that_are_not_there_are_refused_in_words() {
        for (value, expected) in [("auto", Some(KvCacheDtype::Auto)), ("int8", Some(KvCacheDtype::Int8))] {
            assert_eq!(parse_kv_cache_dtype(value).ok(), expected);
        }
        for value in ["fp8_e4m3fn", "fp8_e5m2", "BF16", ""] {
            let error = ShardArgs::try_parse_from(["shard", "--kv-cache-dtype", value]).unwrap_err().to_string();
            assert!(
                error.contains("allowed are auto, f32, f16, bf16 and int8, which takes about as little memory as fp8"),
                "{error}"
            );
        }
    }
}
