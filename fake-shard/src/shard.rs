//! A shard without a model: it speaks the protocol over a real socket and checks slots, positions and the number of
//! blocks. A row's next token is a function of all its tokens, so that a mix-up of rows changes the answer.
//!
//! Tests can make the shard wait before each step, die at a step, or report failed rows.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use endpoint::Endpoint;
use proto::{
    Command, GivenTokens, HEADER_BYTES, HelloReply, ModelInfo, PROTOCOL_VERSION, Progress, Reply, RowFailure, RowReply,
    SampledToken, SamplingDefaults, SamplingParams, ShardError, StepDone, StepReply, StepSizes, TopTokens, Warmup,
    WarmupReply, command, frame, reply, shard_error,
};
use sockets::{Listener, Socket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use crate::VOCAB_SIZE;

/// The number of tokens in a block of the shard's cache.
pub const BLOCK_SIZE: u32 = 16;
/// The first id of a token with text. Smaller ids are the demo tokenizer's special tokens.
const FIRST_TEXT_TOKEN: u32 = 6;

/// A function that returns the next token of a row, from the row's tokens and its sampling parameters.
pub type NextToken = dyn Fn(&[u32], &SamplingParams) -> u32 + Send + Sync;

/// A function that returns the reason why a row with these tokens cannot continue, if there is one.
pub type Fails = dyn Fn(&[u32]) -> Option<RowFailure> + Send + Sync;

/// The behaviour of the shard.
#[derive(Clone)]
pub struct FakeShard {
    /// Returns the next token of a row.
    pub next_token: Arc<NextToken>,
    /// The version of the protocol that the shard claims to speak.
    pub protocol_version: u32,
    /// The build of the shard, which refuses a client of another one. `None` for a shard that takes every client.
    pub build: Option<&'static str>,
    /// The number of slots, unless the router asks for another one.
    pub num_slots: u32,
    /// The number of blocks, unless the router asks for another one.
    pub num_blocks: u32,
    /// The maximum number of tokens of a row, unless the router asks for another one.
    pub max_total_tokens: u32,
    /// Each step waits for a permit.
    pub steps: Arc<Semaphore>,
    /// Returns the failure of a row with these tokens, if any.
    pub fails: Arc<Fails>,
    /// The number of the step, counted from 1, at which the shard closes the connection instead of replying.
    pub dies_at_step: Option<u32>,
    /// The fingerprint that the shard reports for every step.
    pub fingerprint: u64,
    /// True if rows may begin after a cached prefix that they do not read.
    pub can_skip_prefix: bool,
    /// The progress that the shard's beats report; `None` if it gives no sign of life.
    pub beats: Option<Arc<AtomicU64>>,
    /// The counters of all clones of the shard.
    pub stats: Arc<ShardStats>,
}

/// The counters of the shard.
#[derive(Debug, Default)]
pub struct ShardStats {
    /// The number of warm-ups.
    pub num_warmups: AtomicU32,
    /// The number of steps, computed or not.
    pub num_steps: AtomicU32,
    /// The number of rows that were opened.
    pub num_opened: AtomicU32,
    /// The number of slots that were released.
    pub num_released: AtomicU32,
    /// The maximum number of rows of a step that got a token.
    pub max_rows: AtomicU32,
    /// The number of clients that said goodbye.
    pub num_leaves: AtomicU32,
}

/// An open row.
struct Row {
    tokens: Vec<u32>,
    position: u32,
    num_blocks: u32,
    sampling: SamplingParams,
}

impl Default for FakeShard {
    fn default() -> Self {
        Self {
            next_token: Arc::new(hash_of_tokens),
            protocol_version: PROTOCOL_VERSION,
            build: None,
            num_slots: 8,
            num_blocks: 256,
            max_total_tokens: 512,
            steps: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            fails: Arc::new(|_| None),
            dies_at_step: None,
            fingerprint: 0,
            can_skip_prefix: true,
            beats: Some(Arc::default()),
            stats: Arc::default(),
        }
    }
}

/// Returns a text token that depends on every token, and on the seed unless the row is greedy.
pub fn hash_of_tokens(tokens: &[u32], sampling: &SamplingParams) -> u32 {
    let seed = if sampling.is_greedy { 0 } else { sampling.seed };
    let step = |hash: u64, token: &u32| (hash ^ u64::from(*token)).wrapping_mul(0x0100_0000_01b3);
    let hash = tokens.iter().fold(0xcbf2_9ce4_8422_2325 ^ seed, step);
    FIRST_TEXT_TOKEN + ((hash >> 20) % u64::from(VOCAB_SIZE - FIRST_TEXT_TOKEN)) as u32
}

impl FakeShard {
    /// Listens as shard `shard` of `num_shards`, and serves one connection.
    ///
    /// # Panics
    /// When the address is not free, or the client breaks the protocol. Only the first panic is the caller's.
    pub fn listen(self, uds_path: &Path, shard: u32, num_shards: u32) -> tokio::task::JoinHandle<()> {
        let endpoint = Endpoint::of_shard(uds_path.to_str().expect("a path in UTF-8"), shard).expect("an address");
        let (listener, file) = endpoint.bind_private().expect("a free address");
        let listener = Listener::from_std(listener).expect("a runtime with I/O");
        tokio::spawn(async move {
            let _file = file;
            let mut stream = Socket::new(listener.accept().await.expect("a connection"));
            let _beats = self.beats.clone().map(|progress| AbortOnDrop(tokio::spawn(beat(stream.clone(), progress))));
            let mut rows = BTreeMap::new();
            while let Some(Command { sequence_number, kind }) = read(&mut stream).await {
                if let Some(command::Kind::Hello(_) | command::Kind::Warmup(_)) = kind {
                    let progress = Progress { phase: "warm up".into(), done: 1, total: 2 };
                    write(&mut stream, sequence_number, reply::Kind::Progress(progress)).await;
                }
                let has_left = matches!(kind, Some(command::Kind::Leave(_)));
                let Some(answer) = self.answer(kind.expect("a command"), &mut rows, (shard, num_shards)).await else {
                    return;
                };
                write(&mut stream, sequence_number, answer).await;
                if has_left {
                    return;
                }
            }
        })
    }

    /// Returns the reply to a command, or `None` if the shard dies instead.
    async fn answer(
        &self,
        kind: command::Kind,
        rows: &mut BTreeMap<u32, Row>,
        (shard, num_shards): (u32, u32),
    ) -> Option<reply::Kind> {
        Some(match kind {
            command::Kind::Hello(hello) if self.build.is_some() && hello.build.as_deref() != self.build => {
                let message = format!("client {:?}, shard {:?}", hello.build, self.build);
                reply::Kind::Error(ShardError::new(shard_error::Kind::Version, message))
            }
            command::Kind::Hello(_) => {
                let protocol_version = self.protocol_version;
                let hello = HelloReply { protocol_version, shard, num_shards, config_hash: 7, pid: 1, devices: vec![] };
                reply::Kind::Hello(hello)
            }
            command::Kind::Info(_) => reply::Kind::Info(Box::new(ModelInfo {
                dtype: "float32".into(),
                device: "cpu".into(),
                instruction_set: "avx2".into(),
                vocab_size: VOCAB_SIZE,
                eos_token_ids: vec![1],
                block_size: BLOCK_SIZE,
                sampling_defaults: Some(SamplingDefaults {
                    draws: true,
                    temperature: Some(0.5),
                    ..SamplingDefaults::default()
                }),
                can_skip_prefix: self.can_skip_prefix,
                ..ModelInfo::default()
            })),
            command::Kind::Fit(fit) => reply::Kind::Fit(self.fit(&fit.wishes.expect("wishes"))),
            command::Kind::Warmup(limits) => {
                self.stats.num_warmups.fetch_add(1, Ordering::Relaxed);
                reply::Kind::Warmup(WarmupReply { sizes: Some(self.fit(&limits)), ..WarmupReply::default() })
            }
            command::Kind::Step(step) => return self.step(step, rows, shard).await,
            command::Kind::Release(proto::Release { slots }) => {
                self.stats.num_released.fetch_add(slots.len() as u32, Ordering::Relaxed);
                match slots.iter().find(|slot| rows.remove(slot).is_none()) {
                    Some(slot) => protocol_error(format!("slot {slot} is not open")),
                    None => reply::Kind::Done(proto::Done {}),
                }
            }
            command::Kind::Leave(_) => {
                self.stats.num_leaves.fetch_add(1, Ordering::Relaxed);
                reply::Kind::Done(proto::Done {})
            }
        })
    }

    fn fit(&self, wishes: &Warmup) -> StepSizes {
        StepSizes {
            num_slots: wishes.max_batch_size.unwrap_or(self.num_slots),
            num_blocks: wishes.max_batch_total_tokens.map_or(self.num_blocks, |tokens| tokens / BLOCK_SIZE),
            max_total_tokens: wishes.max_total_tokens.unwrap_or(self.max_total_tokens),
            max_batch_prefill_tokens: wishes.max_batch_prefill_tokens.unwrap_or(64),
        }
    }

    async fn step(&self, step: proto::Step, rows: &mut BTreeMap<u32, Row>, shard: u32) -> Option<reply::Kind> {
        let number = self.stats.num_steps.fetch_add(1, Ordering::Relaxed) + 1;
        self.steps.acquire().await.expect("an open semaphore").forget();
        if self.dies_at_step == Some(number) {
            return None;
        }
        let fingerprint = self.fingerprint;
        Some(match self.compute(step, rows) {
            Ok(answer) if shard == 0 => reply::Kind::Step(StepReply { fingerprint, ..answer }),
            Ok(_) => reply::Kind::StepDone(StepDone { fingerprint, ..StepDone::default() }),
            Err(message) => protocol_error(message),
        })
    }

    fn compute(&self, step: proto::Step, rows: &mut BTreeMap<u32, Row>) -> Result<StepReply, String> {
        let mut answers = Vec::new();
        for row in step.rows {
            answers.extend(self.run(row, rows)?);
        }
        let num_tokens = answers.iter().filter(|answer| answer.token.is_some()).count();
        self.stats.max_rows.fetch_max(num_tokens as u32, Ordering::Relaxed);
        Ok(StepReply { rows: answers, forward_ns: 1000, idle_ns: 2000, ..StepReply::default() })
    }

    /// Runs a row. Returns `None` if the row asks for no result.
    fn run(&self, step: proto::Row, rows: &mut BTreeMap<u32, Row>) -> Result<Option<RowReply>, String> {
        let slot = step.slot;
        let num_tokens = step.num_tokens() as u32;
        if let Some(opening) = step.opening {
            let proto::Opening { sampling, cached_token_ids, .. } = *opening;
            self.stats.num_opened.fetch_add(1, Ordering::Relaxed);
            let position = cached_token_ids.len() as u32;
            if position > 0 && !self.can_skip_prefix {
                return Err(format!("slot {slot} skips {position} tokens, but this model must read every token"));
            }
            let row = Row {
                tokens: cached_token_ids,
                position,
                num_blocks: 0,
                sampling: sampling.expect("sampling parameters"),
            };
            if slot >= self.num_slots || rows.insert(slot, row).is_some() {
                return Err(format!("slot {slot} is open or does not exist"));
            }
        }
        let row = rows.get_mut(&slot).ok_or(format!("slot {slot} is not open"))?;
        row.advance(step.position, num_tokens, &step.new_blocks)?;
        let mut answer = RowReply { slot, ..RowReply::default() };
        answer.logprobs = step.logprobs.map(|wanted| {
            let next = u32::from(wanted.next_token_id.is_some());
            Box::new(given_tokens(step.position + 1..row.position + next, wanted.top_n_tokens))
        });
        row.tokens.extend(step.token_ids);
        if let Some(sample) = &step.token {
            let failure = (self.fails)(&row.tokens);
            answer.failure = failure.map(Into::into);
            answer.token = Some(self.sample(row, sample.allowed_tokens.as_deref()));
        }
        Ok((answer.token.is_some() || answer.logprobs.is_some()).then_some(answer))
    }

    /// Returns the token of `next_token` or, if that is not allowed, the next allowed token in the order of ids.
    fn sample(&self, row: &mut Row, allowed: Option<&[u8]>) -> SampledToken {
        let wished = (self.next_token)(&row.tokens, &row.sampling);
        let is_allowed = |id: &u32| allowed.is_none_or(|mask| mask[*id as usize / 8] >> (*id % 8) & 1 == 1);
        let token_id = (wished..VOCAB_SIZE).chain(0..wished).find(is_allowed).expect("an allowed token");
        row.tokens.push(token_id);
        let logprob = -(token_id as f32) / 1000.0;
        let top_n = row.sampling.top_n_tokens;
        let token_ids: Vec<u32> = (token_id..).take(top_n as usize).collect();
        let logprobs = token_ids.iter().map(|&id| -(id as f32) / 1000.0).collect();
        let top_tokens = (top_n > 0).then(|| Box::new(TopTokens { token_ids, logprobs }));
        SampledToken { token_id, logprob, top_tokens }
    }
}

/// Returns the report on prompt tokens: position p has the log-probability −p and the top tokens p, p + 10, ….
fn given_tokens(positions: std::ops::Range<u32>, top_n: u32) -> GivenTokens {
    let best = |at: u32, shard: u32| (at + shard * 10) % VOCAB_SIZE;
    let top_tokens = |at: u32| TopTokens {
        token_ids: (0..top_n).map(|shard| best(at, shard)).collect(),
        logprobs: (0..top_n).map(|shard| -(shard as f32) / 2.0).collect(),
    };
    GivenTokens {
        logprobs: positions.clone().map(|at| -(at as f32)).collect(),
        top_tokens: positions.filter(|_| top_n > 0).map(top_tokens).collect(),
    }
}

impl Row {
    fn advance(&mut self, position: u32, num_tokens: u32, new_blocks: &[u32]) -> Result<(), String> {
        self.num_blocks += new_blocks.len() as u32;
        if position != self.position || position + num_tokens > self.num_blocks * BLOCK_SIZE {
            return Err(format!("position {position} with {num_tokens} tokens, row is at {}", self.position));
        }
        self.position += num_tokens;
        Ok(())
    }
}

fn protocol_error(message: String) -> reply::Kind {
    reply::Kind::Error(ShardError::new(shard_error::Kind::Protocol, message))
}

/// A task that ends with this value.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn beat(mut stream: Socket, progress: Arc<AtomicU64>) {
    loop {
        tokio::time::sleep(liveness::BEAT_INTERVAL).await;
        let beat = proto::Beat { progress: progress.load(Ordering::Relaxed) };
        write(&mut stream, 0, reply::Kind::Beat(beat)).await;
    }
}

async fn read(stream: &mut Socket) -> Option<Command> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).await.ok()?;
    let mut body = vec![0; frame::body_len(header).expect("a frame")];
    stream.read_exact(&mut body).await.ok()?;
    Some(frame::decode(&body).expect("a command"))
}

async fn write(stream: &mut Socket, sequence_number: u64, kind: reply::Kind) {
    let mut buffer = Vec::new();
    frame::encode(&Reply { sequence_number, kind: Some(kind) }, &mut buffer).expect("a short reply");
    let _ = stream.write_all(&buffer).await;
}
