//! Sends a request and records the times at which its tokens arrive. Every wait ends at a deadline.

use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::time::{Instant, timeout, timeout_at};

use crate::api::{Dialect, EventError};
use crate::sse::Parser;
use crate::workload::Turn;

/// The maximum size of a body with an error status. A longer body is reported as unreadable.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// The longest times that a request may wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    /// For a connection.
    pub(crate) connect: Duration,
    /// For the status and headers of the response, and then for each event. Comments in the stream do not count as
    /// events.
    pub(crate) event: Duration,
    /// For the whole request.
    pub(crate) request: Duration,
}

/// A client of one server. It keeps connections open and reuses them.
#[derive(Debug)]
pub(crate) struct Client {
    http: HttpClient<HttpConnector, Full<Bytes>>,
    url: Uri,
    dialect: Dialect,
    timeouts: Timeouts,
}

/// The measurements and the text of a complete stream. Times are measured from the start of the request, so they
/// include opening a connection.
#[derive(Debug, Default)]
pub(crate) struct Completion {
    /// The arrival time of each event with a token.
    pub(crate) token_times: Vec<Duration>,
    pub(crate) end_to_end: Duration,
    /// The number of generated tokens, if the server sends it.
    pub(crate) usage: Option<u64>,
    pub(crate) num_prompt_tokens: Option<u64>,
    pub(crate) text: String,
}

/// The reason why a request has failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("cannot connect: {0}")]
    Connect(String),
    #[error("status {}: {body}", status.as_u16())]
    Status { status: StatusCode, body: String },
    #[error("the server sent no event for {0:?}")]
    Silence(Duration),
    #[error("the answer was not complete after {0:?}")]
    TooSlow(Duration),
    #[error("{0}")]
    ErrorEvent(String),
    #[error("the stream broke off: {0}")]
    BrokenOff(String),
    #[error("{0}")]
    UnknownEvent(String),
}

impl Completion {
    /// The number of generated tokens: the number that the server sent, else the number of events with a token.
    pub(crate) fn num_output_tokens(&self) -> u64 {
        self.usage.unwrap_or(self.token_times.len() as u64)
    }
}

impl Failure {
    /// The kind of the failure. The report counts the failures of each kind.
    pub(crate) fn kind(&self) -> String {
        match self {
            Self::Connect(_) => "no connection".to_owned(),
            Self::Status { status, .. } => format!("status {}", status.as_u16()),
            Self::Silence(_) | Self::TooSlow(_) => "timeout".to_owned(),
            Self::ErrorEvent(_) => "error in the stream".to_owned(),
            Self::BrokenOff(_) => "stream broke off".to_owned(),
            Self::UnknownEvent(_) => "unknown event".to_owned(),
        }
    }
}

impl Client {
    /// Creates a client of the server at `url`. The path of the API is appended to the path of `url`.
    ///
    /// # Panics
    /// When `url` is not a URL.
    pub(crate) fn new(url: &str, dialect: Dialect, timeouts: Timeouts) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(timeouts.connect));
        connector.set_nodelay(true);
        let http = HttpClient::builder(TokioExecutor::new()).build(connector);
        let url = format!("{}{}", url.trim_end_matches('/'), dialect.path());
        Self { http, url: url.parse().expect("a URL and a path are a URL"), dialect, timeouts }
    }

    /// Sends a request and reads its stream to the end.
    ///
    /// # Errors
    /// When the server does not send a complete stream in time.
    pub(crate) async fn send(&self, turn: &Turn) -> Result<Completion, Failure> {
        let limit = self.timeouts.request;
        timeout(limit, self.exchange(turn)).await.unwrap_or(Err(Failure::TooSlow(limit)))
    }

    async fn exchange(&self, turn: &Turn) -> Result<Completion, Failure> {
        let request = Request::post(&self.url)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "text/event-stream")
            .body(Full::from(self.dialect.body(turn)))
            .expect("these headers are valid");
        let started = Instant::now();
        let silence = self.timeouts.event;
        let response = match timeout(silence, self.http.request(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) if error.is_connect() => return Err(Failure::Connect(with_sources(&error))),
            Ok(Err(error)) => return Err(Failure::BrokenOff(with_sources(&error))),
            Err(_) => return Err(Failure::Silence(silence)),
        };
        let (status, body) = (response.status(), response.into_body());
        if status != StatusCode::OK {
            return Err(Failure::Status { status, body: error_text(body, silence).await });
        }
        let (dialect, completion) = (&self.dialect, Completion::default());
        Reading { dialect, started, parser: Parser::default(), completion, is_complete: false }
            .read(body, silence)
            .await
    }
}

/// A stream that is being read, and what has been read so far.
#[derive(Debug)]
struct Reading<'a> {
    dialect: &'a Dialect,
    started: Instant,
    parser: Parser,
    completion: Completion,
    is_complete: bool,
}

impl Reading<'_> {
    async fn read(mut self, mut body: Incoming, silence: Duration) -> Result<Completion, Failure> {
        let mut deadline = Instant::now() + silence;
        loop {
            let frame = timeout_at(deadline, body.frame()).await.map_err(|_| Failure::Silence(silence))?;
            let Some(frame) = frame else { return self.finish() };
            let frame = frame.map_err(|error| Failure::BrokenOff(with_sources(&error)))?;
            let Ok(bytes) = frame.into_data() else { continue };
            if self.take(&bytes)? {
                deadline = Instant::now() + silence;
            }
        }
    }

    /// Processes bytes of the stream. Returns true if they completed an event.
    fn take(&mut self, bytes: &[u8]) -> Result<bool, Failure> {
        let now = self.started.elapsed();
        let events = self.parser.push(bytes).map_err(|error| Failure::UnknownEvent(error.to_string()))?;
        for data in &events {
            let event = self.dialect.read(data).map_err(|error| match error {
                EventError::Server(message) => Failure::ErrorEvent(message),
                EventError::Unknown(_) => Failure::UnknownEvent(error.to_string()),
            })?;
            self.is_complete |= event.is_last;
            let completion = &mut self.completion;
            completion.token_times.extend(event.has_token.then_some(now));
            completion.text.push_str(&event.text);
            completion.usage = event.num_output_tokens.or(completion.usage);
            completion.num_prompt_tokens = event.num_prompt_tokens.or(completion.num_prompt_tokens);
        }
        Ok(!events.is_empty())
    }

    fn finish(self) -> Result<Completion, Failure> {
        if self.is_complete {
            return Ok(Completion { end_to_end: self.started.elapsed(), ..self.completion });
        }
        let num_tokens = self.completion.num_output_tokens();
        Err(Failure::BrokenOff(format!("it ended after {num_tokens} tokens, before its last event")))
    }
}

/// Returns the body of a response with an error status, or a text that says why the body cannot be read.
async fn error_text(body: Incoming, silence: Duration) -> String {
    match timeout(silence, Limited::new(body, MAX_ERROR_BYTES).collect()).await {
        Ok(Ok(body)) => String::from_utf8_lossy(&body.to_bytes()).trim().to_owned(),
        Ok(Err(error)) => format!("its body cannot be read: {error}"),
        Err(_) => "its body did not arrive".to_owned(),
    }
}

/// Returns the message of an error followed by the messages of its causes, because the innermost cause is the most
/// specific.
fn with_sources(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |error| error.source());
    sources.fold(error.to_string(), |text, source| format!("{text}: {source}"))
}
