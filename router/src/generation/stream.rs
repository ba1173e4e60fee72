//! Turns one sequence's token ids into text: detokenizes, finds stop strings, and adds a summary to the last token.
//!
//! The texts of the tokens include special tokens. The generated text has no special tokens, except those that the
//! answer's parser reads. With `wants_full_text` the generated text begins with the prompt. If a stop string ended the
//! sequence, the generated text ends right after the stop string, or right before it with `wants_deltas`, the form of
//! OpenAI's API. A special token that ended a stop string is not in the text, so nothing is cut then.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use proto::{SampledToken, TopTokens};
use scheduler::{PromptReport, SequenceEvent, TokenFinish};

use super::GenerationError;
use super::request::GenerationRequest;
use super::timings::{Arrival, Timings};
use crate::delivery::EventReceiver;
use crate::lifecycle::Ending;
use crate::memory::Account;
use crate::text::{
    Answer, AnswerEvent, AnswerForm, AnswerParser, Detokenizer, StopFound, StopStrings, TextError, Tokenizer,
};
use crate::validation::{PromptInput, ValidRequest};

/// A generated token, or one of the most probable tokens at a position.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Token {
    pub(crate) id: u32,
    /// The text that this token completed; for a candidate, the candidate's own text.
    pub(crate) text: String,
    pub(crate) logprob: f32,
    pub(crate) is_special: bool,
}

/// A token of the prompt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PromptToken {
    pub(crate) id: u32,
    pub(crate) text: String,
    /// The log-probability; NaN for the first token, which has none.
    pub(crate) logprob: f32,
    /// The most probable tokens at this position, best first; empty unless asked for.
    pub(crate) top_tokens: Vec<Token>,
}

/// The reason why a sequence ended without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FinishReason {
    /// The sequence has as many tokens as the request allows.
    Length,
    /// The model ended the sequence, or the answer's parser found the answer complete.
    EosToken,
    /// The text contains a stop string, and no other reason ended the sequence.
    StopSequence,
}

/// The summary of a sequence that has ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Finish {
    pub(crate) reason: FinishReason,
    pub(crate) generated_text: String,
    /// The parsed answer; empty unless asked for.
    pub(crate) answer: Answer,
    pub(crate) num_generated_tokens: u32,
    pub(crate) num_prompt_tokens: u32,
    /// The number of prompt tokens that were in the prefix cache.
    pub(crate) num_cached_tokens: u32,
    /// The index of the stop string that ended the sequence, if one did.
    pub(crate) stop_index: Option<usize>,
    /// The seed of random sampling; `None` for greedy decoding.
    pub(crate) seed: Option<u64>,
}

/// One token of a sequence, with the text and the events that it adds to the answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Piece {
    /// The position of the token among the generated ones, counted from 1.
    pub(crate) index: u32,
    pub(crate) token: Token,
    /// The most probable tokens, best first; empty unless asked for.
    pub(crate) top_tokens: Vec<Token>,
    /// The new generated text that later tokens cannot change; empty unless asked for.
    pub(crate) delta: String,
    /// The events that the answer's parser reads in `delta`; empty unless asked for.
    pub(crate) events: Vec<AnswerEvent>,
    /// The summary, on the last piece.
    pub(crate) finish: Option<Finish>,
}

/// A whole sequence.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Completion {
    pub(crate) finish: Finish,
    /// The prompt's tokens; empty unless asked for.
    pub(crate) prompt: Vec<PromptToken>,
    pub(crate) tokens: Vec<Token>,
    /// The most probable tokens at the position of each token; empty unless asked for.
    pub(crate) top_tokens: Vec<Vec<Token>>,
}

/// The parser of an answer, with the form of the answer and what it has read so far.
#[derive(Debug)]
struct AnswerReader {
    form: AnswerForm,
    parser: AnswerParser,
    answer: Answer,
}

/// A sequence that is read token by token.
#[derive(Debug)]
pub(super) struct TokenStream {
    /// The events of the sequence; `None` after its end.
    events: Option<EventReceiver>,
    /// The end of all requests when the server stops.
    ending: Ending,
    /// The part of the memory budget that the data kept by the reader takes; `None` before the end of the sequence.
    kept: Option<Account>,
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    stop_strings: StopStrings,
    generated_text: String,
    wants_deltas: bool,
    /// The number of bytes of the generated text that were in deltas.
    num_sent_bytes: usize,
    /// The places in the generated text of special tokens that the answer's parser reads and that were in no delta yet.
    marks: Vec<Range<usize>>,
    answer: Option<AnswerReader>,
    prompt: Arc<[u32]>,
    /// The number of tokens that the tokenizer put before the prompt's text.
    num_added: usize,
    prompt_report: PromptReport,
    seed: Option<u64>,
    num_tokens: u32,
    waited: Duration,
    num_cached_tokens: u32,
    first_token_at: Option<Instant>,
}

impl From<TokenFinish> for FinishReason {
    fn from(finish: TokenFinish) -> Self {
        match finish {
            TokenFinish::Length => Self::Length,
            TokenFinish::Eos => Self::EosToken,
        }
    }
}

impl Piece {
    /// The memory that a complete response needs for this token and the top tokens, in bytes: once for the tokens, and
    /// as much again for their text in the response.
    fn num_bytes(&self) -> usize {
        let tokens = self.top_tokens.iter().chain([&self.token]);
        tokens.map(|token| 2 * (size_of::<Token>() + token.text.len())).sum()
    }
}

impl AnswerReader {
    fn new(form: AnswerForm) -> Self {
        Self { parser: AnswerParser::new(form.clone()), form, answer: Answer::default() }
    }

    /// Reads a token's text, with the places of special tokens in it. Returns the events in it, and true if the answer
    /// is complete.
    fn read(&mut self, delta: &str, marks: &[Range<usize>], is_last: bool) -> (Vec<AnswerEvent>, bool) {
        let mut events = Vec::new();
        let was_thinking = self.parser.is_thinking();
        self.parser.push_tokens(delta, marks, &mut events);
        if is_last {
            self.parser.finish(&mut events);
        }
        let has_thought = events.iter().any(|event| matches!(event, AnswerEvent::Reasoning(_)));
        self.answer.num_reasoning_tokens += u32::from(was_thinking || self.parser.is_thinking() || has_thought);
        events.iter().for_each(|event| self.answer.push(event));
        (events, self.parser.is_complete())
    }
}

impl TokenStream {
    /// Creates the stream of a sequence, which will read `events` until `ending`. `seed` is the seed if the tokens are
    /// drawn at random.
    ///
    /// # Errors
    /// When the prompt's tokens cannot be detokenized.
    pub(super) fn new(
        tokenizer: Arc<Tokenizer>,
        request: &GenerationRequest,
        valid: &ValidRequest,
        seed: Option<u64>,
        (events, ending): (EventReceiver, Ending),
    ) -> Result<Self, GenerationError> {
        let prefix = if request.options.wants_full_text { request.prompt.text() } else { "" };
        let num_added = match &request.prompt {
            PromptInput::Text(text) => tokenizer.num_added(text, &valid.prompt)?,
            PromptInput::Rendered(_) | PromptInput::TokenIds(_) => 0,
        };
        Ok(Self {
            events: Some(events),
            ending,
            kept: None,
            detokenizer: Detokenizer::new(&tokenizer, &valid.prompt)?,
            tokenizer,
            stop_strings: StopStrings::new(valid.stop_patterns.clone()),
            generated_text: prefix.to_owned(),
            wants_deltas: request.options.wants_deltas,
            num_sent_bytes: 0,
            marks: Vec::new(),
            answer: request.options.answer_form.clone().map(AnswerReader::new),
            prompt: Arc::clone(&valid.prompt),
            num_added,
            prompt_report: valid.wants.logprobs.map(|_| PromptReport::of_first_token()).unwrap_or_default(),
            seed,
            num_tokens: 0,
            waited: Duration::ZERO,
            num_cached_tokens: 0,
            first_token_at: None,
        })
    }

    /// Returns the next token, or `None` after the last one or after an error. At the stream's end the event channel is
    /// closed, which cancels the sequence if it still runs. When the server stops, the stream ends by itself: the
    /// batcher may be in a long step and have nothing to send.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, GenerationError>>> {
        let Some(events) = &mut self.events else { return Poll::Ready(None) };
        let result = loop {
            let Poll::Ready(event) = events.poll_recv(cx) else {
                ready!(self.ending.poll(cx));
                break Err(GenerationError::Stopping);
            };
            match event {
                Some(SequenceEvent::Admitted { waited, num_prompt_tokens: _, num_cached }) => {
                    self.waited = waited;
                    self.num_cached_tokens = num_cached;
                }
                Some(SequenceEvent::Prompt(report)) => self.prompt_report.extend(report),
                Some(SequenceEvent::Token { token, finish }) => break self.token(&token, finish),
                Some(SequenceEvent::Failed(message)) => break Err(GenerationError::Failed(message)),
                Some(SequenceEvent::TimedOut) => break Err(GenerationError::TimedOut),
                None => break Err(GenerationError::Incomplete),
            }
        };
        let has_ended = match &result {
            Ok(piece) => piece.finish.is_some(),
            Err(_) => true,
        };
        if has_ended {
            self.kept = self.events.take().map(EventReceiver::into_kept);
        }
        Poll::Ready(Some(result))
    }

    /// Reads the sequence to its end and returns all of it.
    pub(super) async fn collect(&mut self) -> Result<Completion, GenerationError> {
        let (mut tokens, mut top_tokens, mut num_bytes) = (Vec::new(), Vec::new(), 0);
        while let Some(piece) = poll_fn(|cx| self.poll_next(cx)).await {
            let piece = piece?;
            num_bytes += piece.num_bytes();
            if let Some(events) = &mut self.events
                && !events.keep(num_bytes).await
            {
                return Err(GenerationError::Overloaded);
            }
            tokens.push(piece.token);
            if !piece.top_tokens.is_empty() {
                top_tokens.push(piece.top_tokens);
            }
            if let Some(finish) = piece.finish {
                return Ok(Completion { finish, prompt: self.prompt_tokens()?, tokens, top_tokens });
            }
        }
        Err(GenerationError::Incomplete)
    }

    /// Returns the memory that is counted for the whole sequence; `None` before its end.
    pub(super) fn into_kept(self) -> Option<Account> {
        self.kept
    }

    /// Returns the times of the sequence.
    pub(super) fn timings(&self, arrival: Arrival) -> Timings {
        Timings {
            arrival,
            waited: self.waited,
            first_token_at: self.first_token_at,
            finished_at: Instant::now(),
            num_generated_tokens: self.num_tokens,
            num_cached_tokens: self.num_cached_tokens,
        }
    }

    fn token(&mut self, token: &SampledToken, finish: Option<TokenFinish>) -> Result<Piece, GenerationError> {
        self.num_tokens += 1;
        self.first_token_at.get_or_insert_with(Instant::now);
        let is_special = self.tokenizer.is_special(token.token_id);
        let mut text = self.detokenizer.push(&self.tokenizer, token.token_id)?;
        let stop = self.stop_strings.push(&text);
        let finish = finish.map(FinishReason::from).or_else(|| stop.map(|_| FinishReason::StopSequence));
        if finish.is_some() {
            text.push_str(&self.detokenizer.flush(&self.tokenizer)?);
        }
        let is_hidden = is_special && !self.is_mark(token.token_id)?;
        self.extend_generated_text(token.token_id, &text, is_hidden)?;
        if is_special && !is_hidden {
            self.add_mark(token.token_id)?;
        }
        if let (Some(FinishReason::StopSequence), Some(stop)) = (finish, stop) {
            self.cut_generated_text(stop, is_hidden);
        }
        let begin = self.num_sent_bytes;
        let delta = if self.wants_deltas { self.delta(finish.is_some()) } else { String::new() };
        let marks = self.marks_in(begin..begin + delta.len());
        let (events, is_complete) = match &mut self.answer {
            Some(answer) => answer.read(&delta, &marks, finish.is_some()),
            None => (Vec::new(), false),
        };
        let finish = finish.or(is_complete.then_some(FinishReason::EosToken));
        let top_tokens = self.top_tokens(token.top_token_ids(), token.top_logprobs())?;
        let token = Token { id: token.token_id, text, logprob: token.logprob, is_special };
        let stop_index = stop.map(|stop| stop.index);
        let finish = finish.map(|reason| self.finish(reason, stop_index));
        Ok(Piece { index: self.num_tokens, token, top_tokens, delta, events, finish })
    }

    /// True if the answer's parser reads this special token.
    fn is_mark(&self, token_id: u32) -> Result<bool, TextError> {
        let Some(AnswerReader { form, .. }) = &self.answer else { return Ok(false) };
        Ok(form.has_mark(self.tokenizer.detokenize(&[token_id])?.trim()))
    }

    /// Adds a token's text to the generated text. A hidden token, a special one that the parser does not read, adds no
    /// text of its own, but text that was held back before it is added.
    fn extend_generated_text(&mut self, token_id: u32, text: &str, is_hidden: bool) -> Result<(), TextError> {
        if is_hidden {
            let markup = self.tokenizer.detokenize(&[token_id])?;
            self.generated_text.push_str(text.strip_suffix(markup.trim()).unwrap_or_default());
        } else {
            self.generated_text.push_str(text);
        }
        Ok(())
    }

    /// Adds the place of a special token that the parser reads, which is the last text that was added.
    fn add_mark(&mut self, token_id: u32) -> Result<(), TextError> {
        let markup = self.tokenizer.detokenize(&[token_id])?;
        let begin = self.generated_text.rfind(markup.trim());
        self.marks.extend(begin.map(|begin| begin..begin + markup.trim().len()));
        Ok(())
    }

    /// Returns the places of special tokens in a part of the generated text, counted from its start, and forgets those
    /// that end in it.
    fn marks_in(&mut self, part: Range<usize>) -> Vec<Range<usize>> {
        let clip = |at: usize| at.clamp(part.start, part.end) - part.start;
        let marks = self.marks.iter().map(|mark| clip(mark.start)..clip(mark.end));
        let marks = marks.filter(|mark| !mark.is_empty()).collect();
        self.marks.retain(|mark| mark.end > part.end);
        marks
    }

    /// Cuts the generated text after the stop string, or before it with `wants_deltas`. Nothing is cut if a hidden
    /// token completed the stop string, because the generated text lacks the text of that token.
    fn cut_generated_text(&mut self, stop: StopFound, is_hidden: bool) {
        if !is_hidden {
            let stop_bytes = if self.wants_deltas { stop.len_bytes } else { 0 };
            let len = self.generated_text.len().saturating_sub(stop.rest_bytes + stop_bytes);
            self.generated_text.truncate(self.generated_text.floor_char_boundary(len));
        }
    }

    /// Returns the generated text that was in no delta yet. Unless this is the last token, text that may begin a stop
    /// string is held back.
    fn delta(&mut self, is_last: bool) -> String {
        let new = self.generated_text.get(self.num_sent_bytes..).unwrap_or_default();
        let held_back = if is_last { 0 } else { self.stop_strings.num_held_back().min(new.len()) };
        let delta = new[..new.floor_char_boundary(new.len() - held_back)].to_owned();
        self.num_sent_bytes += delta.len();
        delta
    }

    fn finish(&mut self, reason: FinishReason, stop_index: Option<usize>) -> Finish {
        Finish {
            reason,
            generated_text: std::mem::take(&mut self.generated_text),
            answer: self.answer.as_mut().map(|reader| std::mem::take(&mut reader.answer)).unwrap_or_default(),
            num_generated_tokens: self.num_tokens,
            // The prompt has at most `max_input_tokens` tokens, a u32.
            num_prompt_tokens: self.prompt.len() as u32,
            num_cached_tokens: self.num_cached_tokens,
            stop_index: stop_index.filter(|_| reason == FinishReason::StopSequence),
            seed: self.seed,
        }
    }

    fn top_tokens(&self, token_ids: &[u32], logprobs: &[f32]) -> Result<Vec<Token>, TextError> {
        let candidates = token_ids.iter().zip(logprobs);
        candidates
            .map(|(&id, &logprob)| {
                let text = self.tokenizer.detokenize(&[id])?;
                Ok(Token { id, text, logprob, is_special: self.tokenizer.is_special(id) })
            })
            .collect()
    }

    /// Returns the prompt's tokens with their log-probabilities and top tokens. With `wants_deltas` (the form of
    /// OpenAI's API), the tokens that the tokenizer put before the prompt's text are left out, and the texts of the
    /// other tokens join to the prompt's text.
    fn prompt_tokens(&self) -> Result<Vec<PromptToken>, TextError> {
        let num_left_out = if self.wants_deltas { self.num_added } else { 0 };
        let report = &self.prompt_report;
        let mut detokenizer = Detokenizer::new(&self.tokenizer, &[])?;
        let mut tokens = Vec::with_capacity(report.logprobs.len());
        for (index, (&id, &logprob)) in self.prompt.iter().zip(&report.logprobs).enumerate().skip(num_left_out) {
            let text = if self.wants_deltas {
                detokenizer.push(&self.tokenizer, id)?
            } else {
                self.tokenizer.detokenize(&[id])?
            };
            let top_tokens = match report.top_tokens.get(index) {
                Some(TopTokens { token_ids, logprobs }) => self.top_tokens(token_ids, logprobs)?,
                None => Vec::new(),
            };
            tokens.push(PromptToken { id, text, logprob, top_tokens });
        }
        if let (true, Some(last)) = (self.wants_deltas, tokens.last_mut()) {
            last.text.push_str(&detokenizer.flush(&self.tokenizer)?);
        }
        Ok(tokens)
    }
}
