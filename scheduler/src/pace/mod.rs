//! The pace of a scheduler: the measured times of steps, and from them the size of the next step's prompt part.
//!
//! Entry points: [`Pace::new`], [`Pace::learn`]. [`Budget`] is the prompt part of one step. While a sequence generates
//! tokens, a step lasts about as long as four steps that read no prompt, so that long prompts do not hold up the tokens
//! of others. When nothing generates, a step that reads several prompts lasts as long too, or longer if that makes
//! prompts faster: if each step takes a time of its own, that time is at most 1/16 of the prompts' time. A prompt that
//! is alone has no limit of time.

mod budget;
mod fit;

use std::time::Duration;

pub(crate) use budget::{Budget, Chunk, Part};

use fit::Fit;

/// The number of steps without prompts that a step with prompts may last.
const DECODE_STEPS: f64 = 4.0;
/// The minimum target, so that prompts of small models are read in pieces of useful size.
const MIN_TARGET: Duration = Duration::from_millis(10);
/// The minimum number of prompt tokens of a step, however long they take.
const MIN_TOKENS: u32 = 32;
/// The minimum number of tokens of a chunk that ends before its prompt does.
const MIN_CHUNK: u32 = 16;
/// The maximum factor by which a step may read more tokens than the largest step that was measured.
const MAX_GROWTH: u32 = 2;
/// The maximum factor by which a time counts as shorter than its estimate. If the end of a step is noticed late, the
/// next step looks short, and short times have much weight.
const MAX_FALL: f64 = 2.0;
/// The minimum factor between the time of prompts and the time of its own that a step without decoding takes.
const FULL_SPEED: f64 = 16.0;

/// The work of one step, on which its time depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// The number of sequences that decode.
    pub num_decoding: u32,
    /// The number of tokens that these sequences have in the KV cache.
    pub decode_context: u64,
    /// The number of chunks of prompts.
    pub num_chunks: u32,
    /// The number of tokens in the chunks, padding included.
    pub num_prompt_tokens: u32,
    /// The number of prompt tokens whose log-probabilities are computed.
    pub num_reported: u32,
    /// The number of tokens that the tokens of the chunks read from the KV cache, each token counted once per reader.
    pub prompt_context: u64,
}

/// The measured times of steps, and the target for the next ones. By default there are no measurements, and the number
/// of tokens in a step is not limited by time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pace {
    target: Option<Duration>,
    /// The padded lengths of chunks, ascending; empty if chunks are not padded.
    chunk_sizes: Vec<u32>,
    decode: Fit<3>,
    prompt: Fit<5>,
    /// The largest number of prompt tokens in a measured step; `None` before the first measurement.
    most_read: Option<u32>,
}

impl Pace {
    /// Creates a pace without measurements. `target` is the time that a step with prompts lasts while sequences decode;
    /// `None` derives it from steps that only decode. `chunk_sizes` are the ascending lengths to which the device pads
    /// chunks of prompts, if it does.
    pub fn new(target: Option<Duration>, chunk_sizes: Vec<u32>) -> Self {
        Self { target, chunk_sizes, most_read: Some(0), ..Self::default() }
    }

    /// Learns the time that the device took for a step.
    pub fn learn(&mut self, work: &Work, time: Duration) {
        let time_ns = (time.as_nanos() as f64).max(1.0);
        if work.num_chunks == 0 {
            if work.num_decoding > 0 {
                learn(&mut self.decode, &work.of_decoding(), time_ns);
            }
            return;
        }
        // A delay of the machine could make the part of the prompts look small, but never free.
        let prompts_ns = (time_ns - self.decode.estimate(&work.of_decoding())).max(0.1 * time_ns);
        learn(&mut self.prompt, &work.of_prompts(), prompts_ns);
        self.most_read = self.most_read.max(Some(work.num_prompt_tokens));
    }

    /// Returns the estimated time of a step.
    pub fn estimate(&self, work: &Work) -> Duration {
        let decode = self.decode.estimate(&work.of_decoding());
        let prompts = if work.num_chunks > 0 { self.prompt.estimate(&work.of_prompts()) } else { 0.0 };
        Duration::from_nanos((decode + prompts) as u64)
    }

    /// Returns the target for a step whose decoding part is `work`.
    pub fn target(&self, work: &Work) -> Duration {
        self.target.unwrap_or_else(|| {
            let decoding = if work.num_decoding > 0 { *work } else { Work { num_decoding: 1, ..Work::default() } };
            MIN_TARGET.max(Duration::from_nanos((DECODE_STEPS * self.decode.estimate(&decoding.of_decoding())) as u64))
        })
    }

    /// Returns the padded length of a chunk of `num_tokens` tokens.
    pub(crate) fn padded(&self, num_tokens: u32) -> u32 {
        self.chunk_sizes.iter().copied().find(|size| *size >= num_tokens).unwrap_or(num_tokens)
    }
}

fn learn<const N: usize>(fit: &mut Fit<N>, features: &[f64; N], time_ns: f64) {
    fit.learn(features, time_ns.max(fit.estimate(features) / MAX_FALL));
}

impl Work {
    /// The features of the time that a step takes without prompts. All are 0 in a step without decoding, whose time
    /// belongs to its prompts.
    fn of_decoding(&self) -> [f64; 3] {
        [f64::from(self.num_decoding.min(1)), f64::from(self.num_decoding), self.decode_context as f64]
    }

    /// The features of the time that prompts add to a step: tokens, reported tokens, context, chunks, and 1 in a step
    /// without decoding.
    fn of_prompts(&self) -> [f64; 5] {
        let is_alone = u32::from(self.num_decoding == 0);
        let [tokens, reported, chunks, alone] =
            [self.num_prompt_tokens, self.num_reported, self.num_chunks, is_alone].map(f64::from);
        [tokens, reported, self.prompt_context as f64, chunks, alone]
    }

    /// Adds a sequence that decodes after `context` tokens.
    pub(crate) fn add_decoding(&mut self, context: u32) {
        self.num_decoding += 1;
        self.decode_context += u64::from(context);
    }

    /// Adds a chunk.
    pub(crate) fn add_chunk(&mut self, chunk: Chunk, pace: &Pace) {
        self.num_chunks += 1;
        self.num_prompt_tokens += pace.padded(chunk.num_tokens);
        self.num_reported += if chunk.is_reported { chunk.num_tokens } else { 0 };
        let (start, num_tokens) = (u64::from(chunk.start), u64::from(chunk.num_tokens));
        self.prompt_context += num_tokens * start + num_tokens * num_tokens / 2;
    }
}
