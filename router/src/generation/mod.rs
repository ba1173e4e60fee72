//! All the work on one request, from permit to last event: permit → validation → submit → tokens → text. A sequence gives its permit
//! back when it ends, however slowly its events are read.
//!
//! A request that cannot be carried out is refused before its answer begins. Whoever drops a generation cancels it:
//! its event channel closes, and the batcher gives its slots and blocks back at the next step.

mod best_of;
mod error;
mod report;
mod stream;
mod timings;

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::batcher::BatcherHandle;
use crate::config::RequestLimits;
use crate::grammar::GrammarError;
use crate::metrics::Metrics;
use crate::scheduler::SequenceSpec;
use crate::text::Tokenizer;
use crate::validation::{Delivery, GenerationOptions, Prompt, ValidRequest, ValidationError, Validator};

pub(crate) use best_of::Outcome;
pub(crate) use error::GenerationError;
pub(crate) use report::{RequestId, Trace};
pub(crate) use stream::{Completion, Finish, Piece, PromptToken, Token};
pub(crate) use timings::Timings;

use report::Report;
use stream::TokenStream;
use timings::Arrival;

/// What one request asks for.
#[derive(Debug, Clone)]
pub(crate) struct GenerationRequest {
    pub(crate) prompt: Prompt,
    pub(crate) options: GenerationOptions,
    pub(crate) received_at: Instant,
    /// Its name in the log.
    pub(crate) request_id: RequestId,
}

/// Starts generations.
#[derive(Debug)]
pub(crate) struct Generator {
    permits: Arc<Semaphore>,
    validator: Validator,
    tokenizer: Arc<Tokenizer>,
    batcher: BatcherHandle,
    metrics: Arc<Metrics>,
    request_timeout: Option<Duration>,
}

/// Of one sequence or several; given back when they end.
pub(crate) type Permit = OwnedSemaphorePermit;

/// A generation that is read token by token.
#[derive(Debug)]
pub(crate) struct Generation {
    tokens: TokenStream,
    arrival: Arrival,
    report: Report,
}

impl Generator {
    pub(crate) fn new(
        limits: &RequestLimits,
        tokenizer: Arc<Tokenizer>,
        validator: Validator,
        batcher: BatcherHandle,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(limits.max_concurrent_requests as usize)),
            request_timeout: limits.request_timeout,
            validator,
            tokenizer,
            batcher,
            metrics,
        }
    }

    /// Begins a generation that is read token by token.
    ///
    /// # Errors
    /// When the request cannot be carried out; nothing has begun then.
    pub(crate) async fn stream(&self, request: GenerationRequest) -> Result<Generation, GenerationError> {
        let mut report = Report::new(&self.metrics, &request.request_id);
        match self.begin_stream(request).await {
            Ok((tokens, arrival)) => Ok(Generation { tokens, arrival, report }),
            Err(error) => {
                report.failure(&error);
                Err(error)
            }
        }
    }

    /// Begins generations that are read side by side.
    ///
    /// # Errors
    /// When one of them cannot be carried out; the others are cancelled then.
    pub(crate) async fn stream_all(
        &self,
        requests: Vec<GenerationRequest>,
    ) -> Result<Vec<Generation>, GenerationError> {
        let mut generations = Vec::with_capacity(requests.len());
        for request in requests {
            generations.push(self.stream(request).await?);
        }
        Ok(generations)
    }

    /// Carries out a generation, with the best of several sequences if the request wants several.
    ///
    /// # Errors
    /// When the request cannot be carried out or its generation failed.
    pub(crate) async fn complete(&self, request: GenerationRequest) -> Result<Outcome, GenerationError> {
        let mut report = Report::new(&self.metrics, &request.request_id);
        match self.complete_best_of(request).await {
            Ok(outcome) => {
                report.success(&outcome.best.finish, &outcome.timings);
                Ok(outcome)
            }
            Err(error) => {
                report.failure(&error);
                Err(error)
            }
        }
    }

    /// The text of a prompt; of token ids, which must be known to be in the vocabulary, what they stand for.
    ///
    /// # Errors
    /// When the tokenizer's decoder fails.
    pub(crate) fn text_of(&self, prompt: Prompt) -> Result<String, GenerationError> {
        match prompt {
            Prompt::Text(text) | Prompt::Rendered(text) => Ok(text),
            Prompt::TokenIds(token_ids) => Ok(self.tokenizer.detokenize(&token_ids)?),
        }
    }

    async fn begin_stream(&self, request: GenerationRequest) -> Result<(TokenStream, Arrival), GenerationError> {
        let (valid, _, permit) = self.admit(&request, Delivery::Stream).await?;
        let arrival = Arrival { received_at: request.received_at, validated_at: Instant::now() };
        Ok((self.submit(&valid, &request, permit).await?, arrival))
    }

    async fn complete_best_of(&self, request: GenerationRequest) -> Result<Outcome, GenerationError> {
        let (valid, num_sequences, mut permit) = self.admit(&request, Delivery::Whole).await?;
        let arrival = Arrival { received_at: request.received_at, validated_at: Instant::now() };
        let mut sequences = Vec::with_capacity(num_sequences as usize);
        for _ in 0..num_sequences {
            let one = permit.split(1).ok_or(GenerationError::Overloaded)?;
            sequences.push(self.submit(&valid, &request, one).await?);
        }
        best_of::collect(sequences, arrival).await
    }

    /// Permits for every sequence, then validation. The number of sequences is checked first, before it costs anything.
    async fn admit(
        &self,
        request: &GenerationRequest,
        delivery: Delivery,
    ) -> Result<(ValidRequest, u32, Permit), GenerationError> {
        let num_sequences = self.validator.num_sequences(&request.options, delivery)?;
        let permits = Arc::clone(&self.permits).try_acquire_many_owned(num_sequences);
        let permit = permits.map_err(|_| GenerationError::Overloaded)?;
        let valid = self.validator.validate(&request.prompt, &request.options).await;
        let valid = valid.map_err(|error| match error {
            ValidationError::Grammar(GrammarError::Busy) => GenerationError::Overloaded,
            error => GenerationError::Validation(error),
        })?;
        self.metrics.request_input_length.record(valid.prompt.len() as f64);
        self.metrics.request_max_new_tokens.record(valid.max_new_tokens);
        Ok((valid, num_sequences, permit))
    }

    /// Hands one sequence to the batcher. Sequences without a seed of their own get a random one.
    async fn submit(
        &self,
        valid: &ValidRequest,
        request: &GenerationRequest,
        permit: Permit,
    ) -> Result<TokenStream, GenerationError> {
        let mut sampling = valid.sampling.clone();
        if !valid.has_seed {
            sampling.seed = fastrand::u64(..);
        }
        let seed = (!sampling.is_greedy).then_some(sampling.seed);
        let ValidRequest { prompt, max_new_tokens, ignores_eos, grammar, .. } = valid;
        let spec = SequenceSpec {
            prompt: prompt.clone(),
            sampling,
            max_new_tokens: *max_new_tokens,
            ignores_eos: *ignores_eos,
            is_masked: grammar.is_some(),
            deadline: self.request_timeout.and_then(|timeout| request.received_at.checked_add(timeout)),
        };
        let events = self.batcher.submit(spec, grammar.as_ref(), permit).await?;
        TokenStream::new(Arc::clone(&self.tokenizer), request, valid, seed, events)
    }
}

impl Generation {
    /// The next token, `None` after the last one or after an error.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, GenerationError>>> {
        let result = ready!(self.tokens.poll_next(cx));
        match &result {
            Some(Ok(Piece { finish: Some(finish), .. })) => {
                self.report.success(finish, &self.tokens.timings(self.arrival));
            }
            Some(Ok(Piece { finish: None, .. })) | None => {}
            Some(Err(error)) => self.report.failure(error),
        }
        Poll::Ready(result)
    }
}
