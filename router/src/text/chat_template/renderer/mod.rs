//! Processes that render conversations. A template can take any memory and any time in a single step, and nothing
//! interrupts a step or counts its memory, so a child process renders, with limits of memory and processor time.
//!
//! Entry points: [`IsolatedTemplate::render`] here, and [`render_chats_as_process`] in the child, which is the same
//! executable with the hidden subcommand `SUBCOMMAND`. Each thread that renders keeps its own children, one for each
//! template, because a child has the priority of the thread that started it. The kernel ends a child with that thread
//! (`PR_SET_PDEATHSIG`). A child that exceeds a limit, or whose client leaves, is replaced for the next conversation.

mod child;
mod messages;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::fmt;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;

pub use child::{ChatRendererArgs, render_chats_as_process};

use super::ChatTemplateError;
use super::program::{Conversation, TemplateSource};
use crate::text::caller;
use messages::{Limits, Order, Reply, Work, receive, receive_bytes, send};

/// The hidden subcommand of the executable that runs the child's part.
#[cfg(not(test))]
const SUBCOMMAND: &str = "render-chats";

/// This executable, also if its file was replaced or removed after the start.
const EXECUTABLE: &str = "/proc/self/exe";

/// The memory that one rendering may take, at least and at most, in addition to [`BYTES_PER_INPUT_BYTE`].
pub(super) const MIN_MEMORY_BYTES: u64 = 16 << 20;
pub(super) const MAX_MEMORY_BYTES: u64 = 64 << 20;

/// The memory that the inputs of a rendering take, in bytes per byte of their JSON. Small messages take the most.
const BYTES_PER_INPUT_BYTE: u64 = 48;

/// The processor time that one rendering may take, in seconds.
pub(super) const MAX_SECONDS: u64 = 5;

/// The maximum size of a template's source, in bytes.
const MAX_SOURCE_BYTES: usize = 1 << 20;

/// A child is ended if it does not read or write for this number of periods. Periods are counted, not time, so that a
/// pause of this process and its children does no harm.
const PERIOD: Duration = Duration::from_secs(1);
const MAX_SILENT_PERIODS: usize = 60;

/// The maximum number of children that a thread keeps: for the template of conversations with tools, and for the other.
const MAX_KEPT: usize = 2;

thread_local! {
    /// The children of this thread that have no work.
    static RENDERERS: RefCell<Vec<Renderer>> = const { RefCell::new(Vec::new()) };
}

/// A template that child processes compile and render.
#[derive(Debug)]
pub(super) struct IsolatedTemplate {
    id: u64,
    /// A `TemplateSource` in JSON.
    source: Vec<u8>,
    pub(super) limits: Limits,
}

/// A child process that has compiled a template.
#[derive(Debug)]
struct Renderer {
    template_id: u64,
    child: Child,
    connection: BufReader<PatientStream>,
}

/// A socket that returns the error `TimedOut` after [`MAX_SILENT_PERIODS`], and `ConnectionAborted` after the first
/// period in which the client has left.
#[derive(Debug)]
struct PatientStream(UnixStream);

impl IsolatedTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// When it is not valid Jinja, when compiling it exceeds a limit, or when no process can be started.
    pub(super) fn compile(source: &TemplateSource<'_>) -> Result<Self, ChatTemplateError> {
        static NUM_TEMPLATES: AtomicU64 = AtomicU64::new(0);

        let unreadable = |reason| Err(ChatTemplateError::Unreadable(reason));
        let num_bytes = source.text.len();
        if num_bytes > MAX_SOURCE_BYTES {
            return unreadable(format!("it has {num_bytes} bytes; at most {MAX_SOURCE_BYTES} are allowed"));
        }
        let source = match serde_json::to_vec(source) {
            Ok(source) => source,
            Err(error) => return unreadable(error.to_string()),
        };
        let id = NUM_TEMPLATES.fetch_add(1, Ordering::Relaxed);
        let limits = Limits { memory_bytes: MAX_MEMORY_BYTES, seconds: MAX_SECONDS };
        let template = Self { id, source, limits };
        keep(Renderer::start(&template)?);
        Ok(template)
    }

    /// Returns the text of a conversation.
    ///
    /// # Errors
    /// The template's own error message, or the reason why rendering failed.
    pub(super) fn render(&self, conversation: &Conversation<'_>) -> Result<String, ChatTemplateError> {
        let conversation =
            serde_json::to_vec(conversation).map_err(|error| ChatTemplateError::Failed(error.to_string()))?;
        let renderer = match take(self.id) {
            Some(renderer) => renderer,
            None => Renderer::start(self)?,
        };
        let (renderer, text) = renderer.work(Work::Render, &conversation, self.limits)?;
        // A child that was at a limit, or read a long conversation, may keep the memory.
        let is_long = BYTES_PER_INPUT_BYTE * conversation.len() as u64 > self.limits.memory_bytes;
        if !is_long && !matches!(text, Err(ChatTemplateError::TooManySteps)) {
            keep(renderer);
        }
        text
    }
}

impl Renderer {
    /// Starts a child and lets it compile the template.
    fn start(template: &IsolatedTemplate) -> Result<Self, ChatTemplateError> {
        let (own_end, child_end) = UnixStream::pair().map_err(|error| no_process(&error))?;
        own_end.set_read_timeout(Some(PERIOD)).map_err(|error| no_process(&error))?;
        own_end.set_write_timeout(Some(PERIOD)).map_err(|error| no_process(&error))?;
        let child = command(child_end.into()).spawn().map_err(|error| no_process(&error))?;
        let connection = BufReader::new(PatientStream(own_end));
        let renderer = Self { template_id: template.id, child, connection };
        let (renderer, compiled) = renderer.work(Work::Compile, &template.source, template.limits)?;
        compiled.map(|_| renderer)
    }

    /// Lets the child work. Returns the child and the outcome.
    ///
    /// # Errors
    /// When the child exceeded a limit or failed, or the client left; the child is ended then.
    fn work(
        mut self,
        work: Work,
        bytes: &[u8],
        mut limits: Limits,
    ) -> Result<(Self, Result<String, ChatTemplateError>), ChatTemplateError> {
        limits.memory_bytes += BYTES_PER_INPUT_BYTE * bytes.len() as u64;
        match self.exchange(&Order { work, limits }, bytes) {
            Ok(outcome) => Ok((self, outcome)),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                Err(no_process(&format_args!("it was silent for {MAX_SILENT_PERIODS} s")))
            }
            // Nobody gets this error.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {
                Err(ChatTemplateError::Failed("the client has left".to_owned()))
            }
            // The child lives, but what it sent is no reply.
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::Other) => {
                Err(no_process(&error))
            }
            // The exit status of a child that has ended says more than the error of the connection.
            Err(error) => Err(error_of(self.end(), limits, &error)),
        }
    }

    fn exchange(&mut self, order: &Order, bytes: &[u8]) -> io::Result<Result<String, ChatTemplateError>> {
        send(self.connection.get_mut(), order, bytes)?;
        let (reply, num_bytes) = receive(&mut self.connection)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        // The child had this limit, so more bytes are a defect.
        if num_bytes as u64 > order.limits.memory_bytes {
            return Err(io::Error::other(format!("it sent {num_bytes} bytes")));
        }
        let text = String::from_utf8(receive_bytes(&mut self.connection, num_bytes)?).map_err(io::Error::other)?;
        Ok(match reply {
            Reply::Done => Ok(text),
            Reply::Failed(failure) => Err(failure.with_sentence(text)),
        })
    }

    /// Ends the child and frees its process id. Returns its exit status, which a child that has ended by itself keeps.
    fn end(&mut self) -> Option<ExitStatus> {
        // It fails if the child has ended.
        let _ = self.child.kill();
        self.child.wait().ok()
    }
}

impl Drop for Renderer {
    fn drop(&mut self) {
        self.end();
    }
}

impl PatientStream {
    /// Repeats `attempt` until it does not time out, or nobody needs its result.
    fn patiently<T>(&mut self, mut attempt: impl FnMut(&mut UnixStream) -> io::Result<T>) -> io::Result<T> {
        for _ in 0..MAX_SILENT_PERIODS {
            match attempt(&mut self.0) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Err(_) if caller::has_left() => return Err(io::ErrorKind::ConnectionAborted.into()),
                Err(_) => {}
                Ok(done) => return Ok(done),
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

impl Read for PatientStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.patiently(|stream| stream.read(bytes))
    }
}

impl Write for PatientStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.patiently(|stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Ends the children of this thread, which are started again if it renders again.
pub(super) fn end_children() {
    drop(RENDERERS.take());
}

/// Takes this thread's child for a template, if there is one and it lives.
fn take(template_id: u64) -> Option<Renderer> {
    let mut found = RENDERERS.with_borrow_mut(|renderers| {
        let place = renderers.iter().position(|renderer| renderer.template_id == template_id)?;
        Some(renderers.remove(place))
    })?;
    matches!(found.child.try_wait(), Ok(None)).then_some(found)
}

fn keep(renderer: Renderer) {
    let oldest = RENDERERS.with_borrow_mut(|renderers| {
        renderers.push(renderer);
        (renderers.len() > MAX_KEPT).then(|| renderers.remove(0))
    });
    drop(oldest);
}

fn command(stdin: OwnedFd) -> Command {
    let mut command = Command::new(EXECUTABLE);
    // The child needs nothing of the environment, which may contain secrets.
    command.env_clear().stdin(stdin).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    #[cfg(test)]
    child::tests::be_child(&mut command);
    #[cfg(not(test))]
    command.arg(SUBCOMMAND);
    command.arg(format!("--parent-pid={}", std::process::id()));
    command
}

/// Returns the error of a work whose child ended without a reply.
fn error_of(status: Option<ExitStatus>, limits: Limits, error: &io::Error) -> ChatTemplateError {
    match status.and_then(|status| status.signal()).and_then(Signal::from_named_raw) {
        Some(Signal::XCPU) => ChatTemplateError::TooMuchTime { seconds: limits.seconds },
        // An allocation that fails, or a stack that overflows, aborts the process.
        Some(Signal::ABORT | Signal::SEGV | Signal::BUS | Signal::KILL) => {
            ChatTemplateError::TooMuchMemory { bytes: limits.memory_bytes }
        }
        _ => match status {
            Some(status) => no_process(&format_args!("{error}, {status}")),
            None => no_process(error),
        },
    }
}

/// Returns the error for a child that cannot work.
fn no_process(reason: &dyn fmt::Display) -> ChatTemplateError {
    tracing::warn!("the process that renders conversations failed: {reason}");
    ChatTemplateError::NoProcess(reason.to_string())
}
