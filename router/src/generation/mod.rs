//! All the work on one request, from permit to last event: permit → validation → submit → tokens → text. The permit is
//! taken before the prompt is rendered or tokenized. A sequence returns its permit when it ends, even if the client has
//! not read its events, unless the memory for unread events is used up.
//!
//! A request that cannot be carried out is refused before its response begins. Dropping a generation cancels it: its
//! event channel closes, and the batcher frees its slots and blocks at the next step.

mod best_of;
mod error;
mod permits;
mod report;
mod request;
mod stream;
mod timings;

use std::hash::RandomState;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use scheduler::{PrefixScope, Prompt, ScopeParts, SequenceSpec, Tenant};

use crate::batcher::BatcherHandle;
use crate::config::RequestLimits;
use crate::grammar::GrammarError;
use crate::lifecycle::{Shutdown, Stage};
use crate::metrics::Metrics;
use crate::text::{TextError, Tokenizer};
use crate::validation::{Delivery, PromptInput, ValidRequest, ValidationError, Validator};

pub(crate) use best_of::Outcome;
pub(crate) use error::GenerationError;
pub(crate) use permits::{Permit, Permits};
pub(crate) use report::{RequestId, Trace};
pub(crate) use request::{GenerationRequest, ValidPrompt};
pub(crate) use stream::{Completion, Finish, FinishReason, Piece, PromptToken, Token};
pub(crate) use timings::Timings;

use report::Report;
use stream::TokenStream;
use timings::Arrival;

/// Admits and validates requests, and starts their generations.
#[derive(Debug)]
pub(crate) struct Generator {
    permits: Permits,
    validator: Validator,
    tokenizer: Arc<Tokenizer>,
    batcher: BatcherHandle,
    metrics: Arc<Metrics>,
    shutdown: Shutdown,
    request_timeout: Option<Duration>,
    /// True if tenants do not find each other's prompts in the prefix cache.
    separates_tenants: bool,
    /// Hashes a tenant and a salt to a scope of the prefix cache. The hasher's keys are random, so no client can choose
    /// a salt whose scope collides with another client's.
    hasher: RandomState,
}

/// One sequence of a request, which is read token by token, with its report.
#[derive(Debug)]
pub(crate) struct Generation {
    tokens: TokenStream,
    arrival: Arrival,
    report: Report,
}

/// A validated request, ready to submit.
struct Prepared {
    valid: ValidRequest,
    arrival: Arrival,
    /// One report for each choice.
    reports: Vec<Report>,
}

impl Generator {
    pub(crate) fn new(
        limits: &RequestLimits,
        permits: Permits,
        (tokenizer, validator): (Arc<Tokenizer>, Validator),
        (batcher, metrics, shutdown): (BatcherHandle, Arc<Metrics>, Shutdown),
    ) -> Self {
        let RequestLimits { request_timeout, separates_tenants, .. } = *limits;
        let hasher = RandomState::new();
        Self { permits, validator, tokenizer, batcher, metrics, shutdown, request_timeout, separates_tenants, hasher }
    }

    /// Takes `num_sequences` permits. Must be called before the prompt is rendered or tokenized.
    ///
    /// # Errors
    /// When too few permits are free now, or the request needs more permits than a tenant can ever have.
    pub(crate) fn admit(
        &self,
        tenant: Tenant,
        num_sequences: u32,
        request_id: &RequestId,
    ) -> Result<Permit, GenerationError> {
        let limit = self.permits.most();
        let permit = if num_sequences > limit {
            Err(ValidationError::Sequences { limit, given: num_sequences }.into())
        } else {
            self.permits.try_take(tenant, num_sequences).ok_or(GenerationError::Overloaded)
        };
        permit.inspect_err(|error| Report::new(&self.metrics, request_id).failure(error))
    }

    /// Checks the number of sequences of a request whose prompt is ready, and takes its permits.
    ///
    /// # Errors
    /// When the request's options do not fit its delivery, or as [`admit`](Self::admit).
    pub(crate) fn admit_request(
        &self,
        tenant: Tenant,
        request: &GenerationRequest,
        delivery: Delivery,
    ) -> Result<Permit, GenerationError> {
        let checked = self.validator.check_sequences(&request.options, delivery).map_err(GenerationError::from);
        checked.inspect_err(|error| Report::new(&self.metrics, &request.request_id).failure(error))?;
        self.admit(tenant, request.num_sequences(), &request.request_id)
    }

    /// Returns the tokens that the model would read for a request. `permit` keeps the memory for them.
    ///
    /// # Errors
    /// When the request would not be carried out.
    pub(crate) async fn render(
        &self,
        permit: &mut Permit,
        request: &GenerationRequest,
    ) -> Result<ValidPrompt, GenerationError> {
        let valid = self.validate(permit, request).await?;
        Ok(ValidPrompt {
            token_ids: valid.prompt,
            num_choices: request.num_choices,
            max_new_tokens: valid.max_new_tokens,
        })
    }

    /// Begins a generation that is read token by token.
    ///
    /// # Errors
    /// When the request cannot be carried out. A sequence that was submitted already is cancelled then.
    pub(crate) async fn stream(
        &self,
        permit: Permit,
        request: GenerationRequest,
    ) -> Result<Generation, GenerationError> {
        let generations = self.stream_all(permit, vec![request]).await?;
        generations.into_iter().next().ok_or(GenerationError::Incomplete)
    }

    /// Begins the generations of several requests, which are read together. They are returned in the order of the
    /// requests, with all choices of a request one after the other.
    ///
    /// # Errors
    /// When one request cannot be carried out. The generations of the others are cancelled then.
    pub(crate) async fn stream_all(
        &self,
        mut permit: Permit,
        requests: Vec<GenerationRequest>,
    ) -> Result<Vec<Generation>, GenerationError> {
        let mut generations = Vec::new();
        for request in requests {
            let mut own = permit.split(request.num_sequences()).ok_or(GenerationError::Overloaded)?;
            let Prepared { valid, arrival, reports } = self.prepare(&mut own, &request).await?;
            for (choice, mut report) in (0..).zip(reports) {
                let tokens = self.submit(&valid, &request, choice, &mut own).await;
                let tokens = tokens.inspect_err(|error| report.failure(error))?;
                generations.push(Generation { tokens, arrival, report });
            }
        }
        Ok(generations)
    }

    /// Carries out a generation, and returns the best of several sequences if the request asks for several (`best_of`).
    ///
    /// # Errors
    /// When the request cannot be carried out or its generation failed.
    pub(crate) async fn complete(
        &self,
        permit: Permit,
        request: GenerationRequest,
    ) -> Result<Outcome, GenerationError> {
        let outcomes = self.complete_all(permit, vec![request]).await?;
        outcomes.into_iter().next().ok_or(GenerationError::Incomplete)
    }

    /// Carries out the generations of several requests together. The outcomes are in the order of the requests, with
    /// all choices of a request one after the other.
    ///
    /// # Errors
    /// When one request cannot be carried out or its generation failed. The other generations are cancelled then.
    pub(crate) async fn complete_all(
        &self,
        mut permit: Permit,
        requests: Vec<GenerationRequest>,
    ) -> Result<Vec<Outcome>, GenerationError> {
        let mut all = Vec::with_capacity(requests.len());
        for request in requests {
            let own = permit.split(request.num_sequences()).ok_or(GenerationError::Overloaded)?;
            all.push(self.complete_choices(own, request));
        }
        Ok(try_join_all(all).await?.into_iter().flatten().collect())
    }

    /// Returns the text of a prompt. Token ids, which must be in the vocabulary, are detokenized.
    ///
    /// # Errors
    /// When the tokenizer's decoder fails.
    pub(crate) fn text_of(&self, prompt: &PromptInput) -> Result<Arc<str>, GenerationError> {
        match prompt {
            PromptInput::Text(text) | PromptInput::Rendered(text) => Ok(Arc::clone(text)),
            PromptInput::TokenIds(token_ids) => Ok(self.tokenizer.detokenize(token_ids)?.into()),
        }
    }

    async fn complete_choices(
        &self,
        mut permit: Permit,
        request: GenerationRequest,
    ) -> Result<Vec<Outcome>, GenerationError> {
        let Prepared { valid, arrival, reports } = self.prepare(&mut permit, &request).await?;
        let mut choices = Vec::with_capacity(reports.len());
        for (choice, mut report) in (0..).zip(reports) {
            let mut sequences = Vec::with_capacity(request.best_of() as usize);
            for _ in 0..request.best_of() {
                let sequence = self.submit(&valid, &request, choice, &mut permit).await;
                sequences.push(sequence.inspect_err(|error| report.failure(error))?);
            }
            choices.push(async move {
                let outcome = best_of::collect(sequences, arrival).await;
                match &outcome {
                    Ok(Outcome { best, timings, .. }) => report.success(&best.finish, timings),
                    Err(error) => report.failure(error),
                }
                outcome
            });
        }
        try_join_all(choices).await
    }

    /// Validates a request, once for all its sequences, and takes memory for its tokens.
    async fn prepare(&self, permit: &mut Permit, request: &GenerationRequest) -> Result<Prepared, GenerationError> {
        let mut report = Report::new(&self.metrics, &request.request_id);
        let valid = self.validate(permit, request).await.inspect_err(|error| report.failure(error))?;
        for _ in 0..request.num_choices {
            self.metrics.request_input_length.record(valid.prompt.len() as f64);
            self.metrics.request_max_new_tokens.record(valid.max_new_tokens);
            self.metrics.vllm.note_request(valid.prompt.len(), valid.max_new_tokens);
        }
        let arrival = Arrival { received_at: request.received_at, validated_at: Instant::now() };
        let more = (1..request.num_choices).map(|_| Report::new(&self.metrics, &request.request_id));
        Ok(Prepared { valid, arrival, reports: std::iter::once(report).chain(more).collect() })
    }

    /// Validates a request, and takes memory for its tokens.
    async fn validate(
        &self,
        permit: &mut Permit,
        request: &GenerationRequest,
    ) -> Result<ValidRequest, GenerationError> {
        let validated = async {
            let valid = self.validator.validate(&request.prompt, &request.options).await?;
            // All sequences share the prompt, and each sends a copy of it to the shards.
            let token_bytes = size_of_val(&*valid.prompt).saturating_mul(request.num_sequences() as usize + 1);
            if let Some(memory) = self.validator.memory_for(token_bytes).await? {
                permit.keep(memory);
            }
            Ok(valid)
        };
        self.before_end(validated).await?.map_err(|error| match error {
            ValidationError::Grammar { error: GrammarError::Busy, .. }
            | ValidationError::Tokenizer(TextError::Busy) => GenerationError::Overloaded,
            error => GenerationError::Validation(error),
        })
    }

    /// Waits for `work`, but no longer than running requests may take when the server stops. So a client is told also
    /// while nobody else, such as the batcher in a long step, can tell it.
    async fn before_end<T>(&self, work: impl Future<Output = T>) -> Result<T, GenerationError> {
        tokio::select! {
            biased;
            result = work => Ok(result),
            () = self.shutdown.reached(Stage::Ending) => Err(GenerationError::Stopping),
        }
    }

    /// Submits one sequence to the batcher. If the request has a seed, a sequence of choice `n` gets this seed plus
    /// `n`, otherwise each sequence gets a random seed.
    async fn submit(
        &self,
        valid: &ValidRequest,
        request: &GenerationRequest,
        choice: u32,
        permit: &mut Permit,
    ) -> Result<TokenStream, GenerationError> {
        let mut sampling = valid.sampling.clone();
        sampling.seed = if valid.has_seed { sampling.seed.wrapping_add(choice.into()) } else { fastrand::u64(..) };
        let seed = (!sampling.is_greedy).then_some(sampling.seed);
        let ValidRequest { prompt, max_new_tokens, ignores_eos, grammar, .. } = valid;
        let permit = permit.split(1).ok_or(GenerationError::Overloaded)?;
        let scope = self.scope(permit.tenant(), request.options.cache_salt.as_deref());
        let spec = SequenceSpec {
            prompt: Prompt { token_ids: Arc::clone(prompt), scope },
            sampling,
            wants: valid.wants,
            max_new_tokens: *max_new_tokens,
            ignores_eos: *ignores_eos,
            is_masked: grammar.is_some(),
            deadline: self.request_timeout.and_then(|timeout| request.received_at.checked_add(timeout)),
            tenant: permit.tenant(),
        };
        let events = self.before_end(self.batcher.submit(spec, grammar.as_ref(), permit)).await??;
        let events = (events, self.shutdown.ending());
        TokenStream::new(Arc::clone(&self.tokenizer), request, valid, seed, events)
    }

    /// The scope of the prefix cache in which a sequence looks for its prompt.
    fn scope(&self, tenant: Tenant, salt: Option<&str>) -> PrefixScope {
        PrefixScope::new(ScopeParts { tenant: self.separates_tenants.then_some(tenant), salt }, &self.hasher)
    }
}

impl Generation {
    /// Returns the next token, or `None` after the last one or after an error.
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
