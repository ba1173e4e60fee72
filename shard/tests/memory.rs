//! The host memory used by ranks on the CPU: real processes with a checkpoint of 200 MB, most of which is a hole in the
//! file.
//!
//! All ranks together have the checkpoint and the KV cache once; the executable's pages count once too. Peaks are
//! summed over processes, though they may not occur at the same time.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::time::Duration;

use proto::{Command, HEADER_BYTES, Hello, PROTOCOL_VERSION, Reply, Warmup, WarmupReply, command, frame, reply};
use serde_json::{Map, Value, json};

const DEADLINE: Duration = Duration::from_secs(120);

const NUM_LAYERS: usize = 6;
const HIDDEN_SIZE: usize = 1024;
const INTERMEDIATE_SIZE: usize = 2816;
const KV_WIDTH: usize = 256;
const VOCAB_SIZE: usize = 16_000;

/// A shard process and its client.
struct Rank {
    process: Child,
    stream: UnixStream,
}

/// Sums over the ranks, in bytes.
#[derive(Debug)]
struct Memory {
    /// The minimum possible: the checkpoint and the KV cache.
    least: u64,
    at_ready: u64,
    peak: u64,
}

impl Rank {
    fn start(directory: &Path, rank: usize, num_shards: usize) -> Self {
        let socket = directory.join(format!("shard-{rank}"));
        let mut process = Process::new(env!("CARGO_BIN_EXE_text-generation-shard"));
        process.args(["--device", "cpu", "--log-level", "warn", "--model-id"]).arg(directory);
        process.arg("--uds-path").arg(&socket).arg("--collective-path").arg(directory.join("collectives"));
        process.args(["--shard", &rank.to_string(), "--num-shards", &num_shards.to_string()]);
        let process = process.stdout(Stdio::null()).spawn().unwrap();
        Self { process, stream: connect(&socket) }
    }

    fn send(&mut self, sequence_number: u64, kind: command::Kind) {
        let mut buffer = Vec::new();
        frame::encode(&Command { sequence_number, kind: Some(kind) }, &mut buffer).unwrap();
        self.stream.write_all(&buffer).unwrap();
    }

    /// Returns the next reply that is not progress.
    fn receive(&mut self) -> reply::Kind {
        loop {
            let mut header = [0; HEADER_BYTES];
            self.stream.read_exact(&mut header).unwrap();
            let mut body = vec![0; frame::body_len(header).unwrap()];
            self.stream.read_exact(&mut body).unwrap();
            let reply: Reply = frame::decode(&body).unwrap();
            match reply.kind.unwrap() {
                reply::Kind::Progress(_) | reply::Kind::Beat(_) => {}
                kind => return kind,
            }
        }
    }

    /// Returns the value of a line in `/proc/PID/status`, in bytes.
    fn memory(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_matches([':', ' ', '\t', 'k', 'B']).parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn connect(socket: &PathBuf) -> UnixStream {
    let mut stream = None;
    test_support::until("the socket of the rank", || {
        stream = UnixStream::connect(socket).ok();
        stream.is_some()
    });
    let stream = stream.unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Writes a model whose weights are all zero, and returns the size of the checkpoint.
fn write_model(directory: &Path) -> u64 {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "hidden_size": HIDDEN_SIZE, "vocab_size": VOCAB_SIZE,
        "intermediate_size": INTERMEDIATE_SIZE, "num_hidden_layers": NUM_LAYERS, "num_attention_heads": 16,
        "num_key_value_heads": 4, "max_position_embeddings": 512,
    });
    std::fs::write(directory.join("config.json"), config.to_string()).unwrap();
    let mut tensors = vec![
        ("model.embed_tokens".to_owned(), vec![VOCAB_SIZE, HIDDEN_SIZE]),
        ("model.norm".to_owned(), vec![HIDDEN_SIZE]),
        ("lm_head".to_owned(), vec![VOCAB_SIZE, HIDDEN_SIZE]),
    ];
    for layer in 0..NUM_LAYERS {
        let mut push =
            |name: &str, shape: &[usize]| tensors.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
        push("input_layernorm", &[HIDDEN_SIZE]);
        push("post_attention_layernorm", &[HIDDEN_SIZE]);
        push("self_attn.q_proj", &[HIDDEN_SIZE, HIDDEN_SIZE]);
        push("self_attn.k_proj", &[KV_WIDTH, HIDDEN_SIZE]);
        push("self_attn.v_proj", &[KV_WIDTH, HIDDEN_SIZE]);
        push("self_attn.o_proj", &[HIDDEN_SIZE, HIDDEN_SIZE]);
        push("mlp.gate_proj", &[INTERMEDIATE_SIZE, HIDDEN_SIZE]);
        push("mlp.up_proj", &[INTERMEDIATE_SIZE, HIDDEN_SIZE]);
        push("mlp.down_proj", &[HIDDEN_SIZE, INTERMEDIATE_SIZE]);
    }
    let mut header = Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        let entry = json!({ "dtype": "BF16", "shape": shape, "data_offsets": [start, end] });
        header.insert(format!("{name}.weight"), entry);
    }
    let header = Value::Object(header).to_string();
    let mut file = File::create(directory.join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len((8 + header.len() + end) as u64).unwrap();
    end as u64
}

/// Loads and warms up `num_shards` ranks, and returns their memory.
fn measure(num_shards: usize) -> Memory {
    let directory = tempfile::tempdir().unwrap();
    let checkpoint_bytes = write_model(directory.path());
    File::create(directory.path().join("collectives")).unwrap();
    let mut ranks: Vec<Rank> = (0..num_shards).map(|rank| Rank::start(directory.path(), rank, num_shards)).collect();
    for rank in &mut ranks {
        rank.send(1, command::Kind::Hello(Hello { protocol_version: PROTOCOL_VERSION, build: None }));
    }
    for rank in &mut ranks {
        let hello = rank.receive();
        assert!(matches!(hello, reply::Kind::Hello(_)), "{hello:?}");
    }
    let warmup = Warmup {
        max_batch_size: Some(4),
        max_batch_total_tokens: Some(1024),
        max_batch_prefill_tokens: Some(64),
        ..Warmup::default()
    };
    ranks.iter_mut().for_each(|rank| rank.send(2, command::Kind::Warmup(warmup.clone())));
    let replies: Vec<WarmupReply> = ranks
        .iter_mut()
        .map(|rank| match rank.receive() {
            reply::Kind::Warmup(reply) => reply,
            other => panic!("{other:?}"),
        })
        .collect();
    let sum = |name: &str| ranks.iter().map(|rank| rank.memory(name)).sum::<u64>();
    let cache_bytes: u64 = replies.iter().map(|reply| reply.kv_cache_bytes).sum();
    // The remaining file pages are those of the executable, which all processes share.
    let counted_again = sum("RssFile") / num_shards as u64 * (num_shards as u64 - 1);
    let [at_ready, peak] = ["VmRSS", "VmHWM"].map(|name| sum(name) - counted_again);
    Memory { least: checkpoint_bytes + cache_bytes, at_ready, peak }
}

#[test]
fn ranks_together_have_the_checkpoint_once() {
    for num_shards in [1, 2, 4] {
        let memory = measure(num_shards);
        let share = |bytes: u64| bytes as f64 / memory.least as f64;
        let (at_ready, peak) = (share(memory.at_ready), share(memory.peak));
        println!("{num_shards} ranks: {memory:?}, {at_ready:.2} at ready, {peak:.2} at the peak");
        assert!(at_ready <= 1.15 && peak <= 1.3, "{num_shards} ranks: {at_ready:.2}, at the peak {peak:.2}");
    }
}
