//! The child's part: compiles one template, and renders conversations with it, each within its limits.
//!
//! Entry point: [`render_chats_as_process`]. The process ends with its parent, or when the parent closes the
//! connection, which is the stdin of the process. It ends by a signal or an abort when it exceeds a limit.

use std::io::{self, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use proto::exit_status;

use super::messages::{Failure, Order, Reply, Work, receive, receive_bytes, send};
use crate::process_limits::{self, MappedMemory};
use crate::text::chat_template::ChatTemplateError;
use crate::text::chat_template::program::Program;

/// The stack of the thread that renders, in bytes. The limit of memory does not include it.
const STACK_BYTES: usize = 8 << 20;

/// The maximum length of the sentence of an error, in bytes. A template can raise a text of any length.
const MAX_SENTENCE_BYTES: usize = 16 << 10;

/// The arguments of the child.
#[derive(Debug, Clone, clap::Args)]
pub struct ChatRendererArgs {
    /// Process id of the router
    #[arg(long)]
    parent_pid: i32,
}

/// Renders the conversations that come over stdin, which is a socket.
pub fn render_chats_as_process(args: &ChatRendererArgs) -> ExitCode {
    // A message would need memory, of which little may be left.
    std::panic::set_hook(Box::new(|_| {}));
    let thread = || std::thread::Builder::new().name("chats".to_owned()).stack_size(STACK_BYTES).spawn(serve);
    let ended = process_limits::begin_child(args.parent_pid).and_then(|()| thread());
    match ended.map(std::thread::JoinHandle::join) {
        Ok(Ok(Ok(()))) => ExitCode::SUCCESS,
        _ => ExitCode::from(exit_status::FAILURE),
    }
}

/// Serves orders until the parent closes the connection.
fn serve() -> io::Result<()> {
    let mut output = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut input = BufReader::new(output.try_clone()?);
    let mut resting = MappedMemory::now()?;
    let mut program = None;
    while let Some((Order { work, limits }, num_bytes)) = receive(&mut input)? {
        resting.limit(limits.memory_bytes)?;
        process_limits::limit_processor_time(limits.seconds)?;
        let bytes = receive_bytes(&mut input, num_bytes)?;
        let outcome = match (work, &program) {
            (Work::Compile, _) => compile(&bytes).map(|compiled| {
                program = Some(compiled);
                String::new()
            }),
            (Work::Render, Some(program)) => render(program, &bytes),
            (Work::Render, None) => return Err(io::Error::other("the first order must be a template")),
        };
        match outcome {
            Ok(text) => send(&mut output, &Reply::Done, text.as_bytes())?,
            Err(error) => {
                let (failure, sentence) = Failure::of(error);
                let end = sentence.floor_char_boundary(MAX_SENTENCE_BYTES);
                send(&mut output, &Reply::Failed(failure), &sentence.as_bytes()[..end])?;
            }
        }
        if work == Work::Compile {
            resting = MappedMemory::now()?;
        }
    }
    Ok(())
}

fn compile(bytes: &[u8]) -> Result<Program, ChatTemplateError> {
    let source = serde_json::from_slice(bytes).map_err(|error| ChatTemplateError::Unreadable(error.to_string()))?;
    Program::compile(source)
}

fn render(program: &Program, bytes: &[u8]) -> Result<String, ChatTemplateError> {
    // The nesting of JSON is limited, and the arguments of a call can be deep after they are parsed.
    let deep = |error| ChatTemplateError::Failed(format!("the conversation is nested too deeply: {error}"));
    program.render(&serde_json::from_slice(bytes).map_err(deep)?)
}

#[cfg(test)]
pub(super) mod tests {
    use std::process::Command;

    use clap::Parser as _;
    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    /// The variable that makes the test below a process that renders.
    const IS_CHILD: &str = "HILO_TEST_RENDERS_CHATS";

    #[derive(Debug, clap::Parser)]
    struct Words {
        #[command(flatten)]
        args: ChatRendererArgs,
    }

    /// Makes a command of this test executable run only the test below, as a child.
    pub(in crate::text::chat_template::renderer) fn be_child(command: &mut Command) {
        command.env(IS_CHILD, "1");
        command.args(["text::chat_template::renderer::child::tests::be_a_process_that_renders", "--exact"]);
        command.args(["--nocapture", "--test-threads=1", "--"]);
    }

    /// Not a test of its own: other tests start this executable again with only this test.
    #[test]
    fn be_a_process_that_renders() {
        if std::env::var_os(IS_CHILD).is_some() {
            let words = std::env::args().skip_while(|word| word != "--");
            let _ = render_chats_as_process(&Words::parse_from(words).args);
            kill_process(getpid(), Signal::KILL).unwrap();
        }
    }
}
