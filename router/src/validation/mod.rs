//! Checks a client's request once: a prompt and [`GenerationOptions`] become a [`ValidRequest`], which can be carried
//! out.
//!
//! Errors that TGI has keep TGI's order and wording, because clients match on them; `tests.rs` checks both. An option
//! that this server does not support is an error that names the option.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use proto::{MAX_HELD_BACK_TOKENS, MAX_PROMPT_TOP_N_TOKENS, SamplingError, SamplingParams};
use scheduler::PromptWants;

use crate::config::RequestLimits;
use crate::grammar::{CompiledGrammar, Grammar, GrammarCompiler, GrammarError};
use crate::memory::Held;
use crate::text::{AnswerForm, StopPatterns, TextError, TokenizerPool};

/// The maximum length of a stop string, in bytes.
const MAX_STOP_BYTES: usize = 1 << 10;
/// The maximum length of all stop strings of a request together, in bytes.
const MAX_STOPS_BYTES: usize = 16 << 10;

/// The text or the tokens that the model continues. Clones are cheap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PromptInput {
    /// A text to which the tokenizer adds the special tokens that the model expects.
    Text(Arc<str>),
    /// A text that already contains its special tokens, as chat templates write them.
    Rendered(Arc<str>),
    /// Token ids.
    TokenIds(Arc<[u32]>),
}

/// The options of a generation, set by the client or by defaults: unchecked, and independent of the API.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GenerationOptions {
    /// The sampling parameters; the seed counts only with `has_seed`.
    pub(crate) sampling: SamplingParams,
    /// If set, the log-probabilities of the prompt's tokens are wanted, with this many of the best tokens at each
    /// position.
    pub(crate) prompt_logprobs: Option<u32>,
    pub(crate) has_seed: bool,
    /// True if the request or the defaults ask for random sampling, or set a parameter that shapes it, even to its
    /// neutral value.
    pub(crate) names_sampling: bool,
    /// True if the client's `top_k` is zero or negative and the API refuses that. In `sampling`, zero means that top-k
    /// is off.
    pub(crate) has_non_positive_top_k: bool,
    pub(crate) best_of: Option<u32>,
    /// The maximum number of tokens to generate; `None` means as many as the context has room for.
    pub(crate) max_new_tokens: Option<u32>,
    /// The names of fields in the client's API.
    pub(crate) names: FieldNames,
    /// True if a `max_new_tokens` that exceeds the room in the context is reduced to that room instead of refused.
    pub(crate) cuts_max_new_tokens: bool,
    /// True if the model's end-of-sequence tokens do not end the sequence.
    pub(crate) ignores_eos: bool,
    pub(crate) stop_strings: Vec<String>,
    /// If set, only this many tokens at the prompt's end are kept.
    pub(crate) truncate_tokens: Option<u32>,
    /// True if the client wants a watermark. The validator sets the watermark's γ and δ, which the server determines,
    /// in `sampling`.
    pub(crate) wants_watermark: bool,
    pub(crate) wants_full_text: bool,
    pub(crate) wants_details: bool,
    /// True for the APIs of OpenAI and Anthropic: each piece contains the text that it adds, and the text ends before
    /// the stop string.
    pub(crate) wants_deltas: bool,
    /// The form by which thoughts and tool calls are parsed out of the deltas; `None` if the deltas are not parsed.
    pub(crate) answer_form: Option<AnswerForm>,
    /// The grammar that the generated text must follow.
    pub(crate) grammar: Option<Arc<Grammar>>,
    /// Only requests with the same salt share cached prompts.
    pub(crate) cache_salt: Option<String>,
    /// An adapter, which is always refused: it would change the answer and is not supported.
    pub(crate) adapter_id: Option<String>,
}

/// The names that the client's API gives to some options. Errors about these options have the names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FieldNames {
    pub(crate) max_new_tokens: &'static str,
    pub(crate) min_new_tokens: &'static str,
    pub(crate) ignores_eos: &'static str,
    /// The field with the grammar, or with the tools that the grammar enforces.
    pub(crate) grammar: &'static str,
}

/// The way in which the response is sent to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    Whole,
    Stream,
}

/// A request that can be carried out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ValidRequest {
    /// The tokens of the prompt: at least one, at most `max_input_tokens`.
    pub(crate) prompt: Arc<[u32]>,
    pub(crate) sampling: SamplingParams,
    pub(crate) wants: PromptWants,
    pub(crate) has_seed: bool,
    /// The maximum number of tokens to generate, at least one.
    pub(crate) max_new_tokens: u32,
    pub(crate) ignores_eos: bool,
    pub(crate) stop_patterns: StopPatterns,
    pub(crate) grammar: Option<CompiledGrammar>,
}

/// The reason why a request cannot be carried out.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum ValidationError {
    #[error("`best_of` != 1 is not allowed for this endpoint")]
    BestOfDisabled,
    #[error("`best_of` must be > 0 and <= {limit}. Given: {given}")]
    BestOf { limit: u32, given: u32 },
    #[error("`best_of` != 1 is not supported when streaming tokens")]
    BestOfStream,
    #[error("`decoder_input_details` == true is not supported when streaming tokens")]
    PromptDetailsStream,
    #[error("you must use sampling when `best_of` is > 1")]
    BestOfSampling,
    #[error("{0}")]
    Sampling(#[from] SamplingError),
    #[error("`top_k` must be strictly positive")]
    TopK,
    #[error("`{0}` must be strictly positive")]
    MaxNewTokens(&'static str),
    #[error("`stop` supports up to {limit} stop sequences. Given: {given}")]
    StopSequences { limit: u32, given: usize },
    #[error("`stop` sequences cannot be empty")]
    EmptyStopSequence,
    #[error("`stop` sequences must have at most {MAX_STOP_BYTES} bytes. Given: one with {given}")]
    StopSequenceBytes { given: usize },
    #[error("`stop` sequences must have at most {MAX_STOPS_BYTES} bytes together. Given: {given}")]
    StopSequencesBytes { given: usize },
    #[error("`cache_salt` must be a non-empty string")]
    CacheSalt,
    #[error(
        "a request must have at most {limit} sequences, counting all choices of all prompts (from \
         `--max-concurrent-requests` and the number of API keys). Given: {given}"
    )]
    Sequences { limit: u32, given: u32 },
    #[error("`seed` must not be set when `best_of` > 1")]
    BestOfSeed,
    #[error("`top_n_tokens` must be >= 0 and <= {limit}. Given: {given}")]
    TopNTokens { limit: u32, given: u32 },
    #[error("`logprobs` of a prompt must be <= {MAX_PROMPT_TOP_N_TOKENS}. Given: {given}")]
    PromptTopNTokens { given: u32 },
    #[error("`inputs` cannot be empty")]
    EmptyInput,
    #[error("`truncate` must be strictly positive and less than {limit}. Given: {given}")]
    Truncate { limit: u32, given: u32 },
    #[error("`adapter_id` is not supported. Given: {0}")]
    Adapter(String),
    #[error("`inputs` must have at most {limit} bytes. Given: {given}")]
    InputBytes { limit: usize, given: usize },
    #[error("tokenizer error {0}")]
    Tokenizer(TextError),
    #[error("tokenizer error token id {token_id} is outside the model's vocabulary of {vocab_size}")]
    TokenId { token_id: u32, vocab_size: u32 },
    #[error(
        "`inputs` tokens + `max_new_tokens` must be <= {limit}. Given: {input} `inputs` tokens and {max_new} \
         `max_new_tokens`"
    )]
    TotalTokens { limit: u32, input: u32, max_new: u32 },
    #[error("`inputs` must have less than {limit} tokens. Given: {given}")]
    InputTokens { limit: u32, given: u32, total_limit: u32 },
    #[error("`{name}` must be <= {limit}, the maximum number of tokens that this request can generate. Given: {given}")]
    MinNewTokens { name: &'static str, limit: u32, given: u32 },
    #[error(
        "`{name}` is not supported for models with more than {MAX_HELD_BACK_TOKENS} end-of-sequence tokens; this model \
         has {given}"
    )]
    EosTokens { name: &'static str, given: usize },
    #[error("grammar is not supported")]
    GrammarDisabled,
    #[error("{field} is not valid: {error}")]
    Grammar { field: &'static str, error: GrammarError },
    #[error("`{0}` cannot be given together with a grammar: the text ends where the grammar ends")]
    GrammarAnd(&'static str),
}

impl PromptInput {
    /// The text, or an empty string for token ids.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Rendered(text) => text,
            Self::TokenIds(_) => "",
        }
    }

    pub(crate) fn num_characters(&self) -> usize {
        self.text().chars().count()
    }
}

/// The validator: the limits of requests, the tokenizers, and the grammar compiler.
#[derive(Debug)]
pub(crate) struct Validator {
    limits: RequestLimits,
    tokenizer_pool: TokenizerPool,
    /// `None` if grammars are not allowed.
    grammars: Option<GrammarCompiler>,
}

impl Validator {
    pub(crate) fn new(limits: RequestLimits, tokenizer_pool: TokenizerPool, grammars: Option<GrammarCompiler>) -> Self {
        Self { limits, tokenizer_pool, grammars }
    }

    /// Checks the number of sequences before anything is reserved for them.
    ///
    /// # Errors
    /// When the number is not allowed for this delivery, or a stream asks for details of the prompt.
    pub(crate) fn check_sequences(
        &self,
        options: &GenerationOptions,
        delivery: Delivery,
    ) -> Result<(), ValidationError> {
        let (given, limit) = (options.best_of.unwrap_or(1), self.limits.max_best_of);
        match delivery {
            Delivery::Stream if given != 1 => Err(ValidationError::BestOfStream),
            Delivery::Stream if options.prompt_logprobs.is_some() => Err(ValidationError::PromptDetailsStream),
            Delivery::Whole if limit == 1 && given > 1 => Err(ValidationError::BestOfDisabled),
            Delivery::Whole if given == 0 || given > limit => Err(ValidationError::BestOf { limit, given }),
            Delivery::Stream | Delivery::Whole => Ok(()),
        }
    }

    /// Checks the options and the prompt, tokenizes the prompt, and compiles the grammar.
    ///
    /// # Errors
    /// The first error in TGI's order.
    pub(crate) async fn validate(
        &self,
        prompt: &PromptInput,
        options: &GenerationOptions,
    ) -> Result<ValidRequest, ValidationError> {
        check_parameters(options, &self.limits)?;
        check_input(prompt, options, &self.limits)?;
        let pool = &self.tokenizer_pool;
        let token_ids = match prompt {
            PromptInput::Text(text) => pool.tokenize(text).await.map(Arc::from),
            PromptInput::Rendered(text) => pool.tokenize_rendered(text).await.map(Arc::from),
            PromptInput::TokenIds(token_ids) => Ok(Arc::clone(token_ids)),
        };
        let token_ids = token_ids.map_err(ValidationError::Tokenizer)?;
        let prompt = truncate(token_ids, options.truncate_tokens);
        let max_new_tokens = check_prompt(&prompt, options, &self.limits)?;
        let grammar = match &options.grammar {
            Some(grammar) => Some(self.compile(grammar, options).await?),
            None => None,
        };
        Ok(ValidRequest {
            prompt,
            sampling: sampling(options, &self.limits),
            wants: PromptWants::of_logprobs(options.prompt_logprobs),
            has_seed: options.has_seed,
            max_new_tokens,
            ignores_eos: options.ignores_eos,
            stop_patterns: StopPatterns::new(&options.stop_strings),
            grammar,
        })
    }

    /// Takes memory for the tokens of a request; returns `None` if the tokens are few.
    ///
    /// # Errors
    /// When other requests hold the memory for too long.
    pub(crate) async fn memory_for(&self, num_bytes: usize) -> Result<Option<Held>, ValidationError> {
        self.tokenizer_pool.memory_for(num_bytes).await.map_err(ValidationError::Tokenizer)
    }

    async fn compile(
        &self,
        grammar: &Arc<Grammar>,
        options: &GenerationOptions,
    ) -> Result<CompiledGrammar, ValidationError> {
        let Some(grammars) = &self.grammars else { return Err(ValidationError::GrammarDisabled) };
        if options.ignores_eos {
            return Err(ValidationError::GrammarAnd(options.names.ignores_eos));
        }
        if options.sampling.min_new_tokens > 0 {
            return Err(ValidationError::GrammarAnd(options.names.min_new_tokens));
        }
        let field = options.names.grammar;
        grammars.compile(grammar).await.map_err(|error| ValidationError::Grammar { field, error })
    }
}

fn check_parameters(options: &GenerationOptions, limits: &RequestLimits) -> Result<(), ValidationError> {
    let has_several = options.best_of.is_some_and(|best_of| best_of > 1);
    if has_several && !options.names_sampling {
        return Err(ValidationError::BestOfSampling);
    }
    options.sampling.check()?;
    options.sampling.check_tokens(limits.vocab_size)?;
    if options.has_non_positive_top_k {
        return Err(ValidationError::TopK);
    }
    if options.max_new_tokens == Some(0) {
        return Err(ValidationError::MaxNewTokens(options.names.max_new_tokens));
    }
    let num_stops = options.stop_strings.len();
    if num_stops > limits.max_stop_sequences as usize {
        return Err(ValidationError::StopSequences { limit: limits.max_stop_sequences, given: num_stops });
    }
    if options.stop_strings.iter().any(String::is_empty) {
        return Err(ValidationError::EmptyStopSequence);
    }
    let lens = || options.stop_strings.iter().map(String::len);
    if let Some(given) = lens().find(|len| *len > MAX_STOP_BYTES) {
        return Err(ValidationError::StopSequenceBytes { given });
    }
    let given = lens().sum();
    if given > MAX_STOPS_BYTES {
        return Err(ValidationError::StopSequencesBytes { given });
    }
    if options.cache_salt.as_ref().is_some_and(String::is_empty) {
        return Err(ValidationError::CacheSalt);
    }
    if has_several && options.has_seed {
        return Err(ValidationError::BestOfSeed);
    }
    let (limit, given) = (limits.max_top_n_tokens, options.sampling.top_n_tokens);
    if given > limit {
        return Err(ValidationError::TopNTokens { limit, given });
    }
    let given = options.prompt_logprobs.unwrap_or(0);
    if given > MAX_PROMPT_TOP_N_TOKENS {
        return Err(ValidationError::PromptTopNTokens { given });
    }
    if options.sampling.min_new_tokens > 0 && limits.num_eos_tokens > MAX_HELD_BACK_TOKENS {
        return Err(ValidationError::EosTokens { name: options.names.min_new_tokens, given: limits.num_eos_tokens });
    }
    Ok(())
}

fn check_input(
    prompt: &PromptInput,
    options: &GenerationOptions,
    limits: &RequestLimits,
) -> Result<(), ValidationError> {
    let (is_empty, num_bytes) = match prompt {
        PromptInput::Text(text) | PromptInput::Rendered(text) => (text.is_empty(), text.len()),
        PromptInput::TokenIds(token_ids) => (token_ids.is_empty(), 0),
    };
    if is_empty {
        return Err(ValidationError::EmptyInput);
    }
    let limit = limits.max_input_tokens;
    if let Some(given) = options.truncate_tokens
        && (given == 0 || given > limit)
    {
        return Err(ValidationError::Truncate { limit, given });
    }
    if let Some(adapter_id) = &options.adapter_id {
        return Err(ValidationError::Adapter(adapter_id.clone()));
    }
    let limit = limits.max_input_bytes();
    if num_bytes > limit {
        return Err(ValidationError::InputBytes { limit, given: num_bytes });
    }
    Ok(())
}

/// Returns the sampling parameters, with the server's γ and δ if the client wants a watermark.
fn sampling(options: &GenerationOptions, limits: &RequestLimits) -> SamplingParams {
    let mut sampling = options.sampling.clone();
    if options.wants_watermark {
        (sampling.watermark_gamma, sampling.watermark_delta) = (limits.watermark_gamma, limits.watermark_delta);
    }
    sampling
}

fn truncate(token_ids: Arc<[u32]>, keep_tokens: Option<u32>) -> Arc<[u32]> {
    match token_ids.len().checked_sub(keep_tokens.map_or(usize::MAX, |keep| keep as usize)) {
        None | Some(0) => token_ids,
        Some(num_dropped) => token_ids[num_dropped..].into(),
    }
}

/// Checks the prompt's tokens and returns the maximum number of tokens to generate.
fn check_prompt(prompt: &[u32], options: &GenerationOptions, limits: &RequestLimits) -> Result<u32, ValidationError> {
    let vocab_size = limits.vocab_size;
    if let Some(&token_id) = prompt.iter().find(|&&token_id| token_id >= vocab_size) {
        return Err(ValidationError::TokenId { token_id, vocab_size });
    }
    let input = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
    let total_limit = limits.max_total_tokens;
    let left = total_limit.saturating_sub(input);
    let max_new = match options.max_new_tokens {
        Some(given) if !options.cuts_max_new_tokens => given,
        Some(given) => given.min(left),
        None => left,
    };
    let is_asked = options.max_new_tokens.is_some() && !options.cuts_max_new_tokens;
    if is_asked && input.saturating_add(max_new) > total_limit {
        return Err(ValidationError::TotalTokens { limit: total_limit, input, max_new });
    }
    let limit = limits.max_input_tokens;
    if input > limit {
        return Err(ValidationError::InputTokens { limit, given: input, total_limit });
    }
    if input == 0 {
        return Err(ValidationError::EmptyInput);
    }
    let given = options.sampling.min_new_tokens;
    if given > max_new {
        return Err(ValidationError::MinNewTokens { name: options.names.min_new_tokens, limit: max_new, given });
    }
    Ok(max_new)
}
