//! The child's part of a trial: limits this process, takes the first step of a build, and says if it finished.
//!
//! Entry point: [`try_grammar_as_process`]. The process ends with its parent, and it ends by a signal or an abort when
//! it exceeds a limit.

use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::sync::mpsc;

use llguidance::api::TopLevelGrammar;
use proto::exit_status;
use rustix::thread::gettid;

use super::{NamedTokens, Reply, Request};
use crate::aside::lower_priority;
use crate::grammar::internal::{BEYOND, to_internal_or_panic, token_env};
use crate::grammar::{GrammarError, LATE_NICENESS, PROMPT_TIME};
use crate::process_limits::{self, MappedMemory};

/// The stack of the thread that compiles, in bytes, taken from the memory of the trial.
const STACK_BYTES: usize = 16 << 20;

/// The byte before a reply. It is in no text.
pub(super) const MARK: u8 = 0;

/// The arguments of the child.
#[derive(Debug, Clone, clap::Args)]
pub struct GrammarTrialArgs {
    /// Process id of the router
    #[arg(long)]
    parent_pid: i32,

    /// Memory for the trial, in bytes
    #[arg(long)]
    memory_bytes: u64,

    /// Processor time for the trial, in seconds
    #[arg(long)]
    seconds: u64,
}

/// Tries the grammar on stdin and writes the outcome to stdout.
pub fn try_grammar_as_process(args: &GrammarTrialArgs) -> ExitCode {
    let reply = match limit(args) {
        Ok(()) => try_grammar(),
        Err(error) => Reply::Failed(format!("the limits of the process cannot be set: {error}")),
    };
    let mut output = vec![MARK];
    let written = serde_json::to_writer(&mut output, &reply).map_err(io::Error::from);
    let mut stdout = io::stdout().lock();
    let written = written.and_then(|()| stdout.write_all(&output)).and_then(|()| stdout.flush());
    if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(exit_status::FAILURE) }
}

/// Limits the memory and the processor time of this process, and lets it end with its parent.
fn limit(args: &GrammarTrialArgs) -> io::Result<()> {
    process_limits::begin_child(args.parent_pid)?;
    MappedMemory::now()?.limit(args.memory_bytes)?;
    process_limits::limit_processor_time(args.seconds)
}

/// Reads the request and compiles its grammar on a thread with a stack of its own, whose priority falls if it takes
/// long.
fn try_grammar() -> Reply {
    let (started_tx, started_rx) = mpsc::sync_channel(1);
    let (reply_tx, reply_rx) = mpsc::sync_channel(1);
    // A message would need memory, of which little may be left.
    std::panic::set_hook(Box::new(|_| {}));
    let work = move || {
        let _ = started_tx.send(gettid());
        let _ = reply_tx.send(reply());
    };
    let thread = std::thread::Builder::new().name("grammar".to_owned()).stack_size(STACK_BYTES).spawn(work);
    let thread_id = match thread {
        Ok(_) => started_rx.recv().ok(),
        Err(error) => return Reply::Failed(format!("a thread cannot be started: {error}")),
    };
    if let Ok(reply) = reply_rx.recv_timeout(PROMPT_TIME) {
        return reply;
    }
    lower_priority(thread_id, LATE_NICENESS);
    reply_rx.recv().unwrap_or_else(|_| Reply::Refused(BEYOND.to_owned()))
}

fn reply() -> Reply {
    let mut request = Vec::new();
    if let Err(error) = io::stdin().lock().read_to_end(&mut request) {
        return Reply::Failed(format!("the request cannot be read: {error}"));
    }
    let Request { source, tokens } = match serde_json::from_slice::<Request<TopLevelGrammar, NamedTokens>>(&request) {
        Ok(request) => request,
        // The nesting of JSON is limited, and the request has a few levels more than the schema.
        Err(error) => return Reply::Refused(format!("it is nested too deeply: {error}")),
    };
    let mut words = vec![Vec::new(); tokens.vocab_size as usize];
    for (id, word) in tokens.special {
        if let Some(place) = words.get_mut(id as usize) {
            *place = word;
        }
    }
    let env = token_env(tokens.vocab_size, &tokens.eos_token_ids, words);
    match env.and_then(|env| to_internal_or_panic(source, &env)) {
        Ok(_) => Reply::Finished,
        Err(GrammarError::Invalid(reason)) => Reply::Refused(reason),
        Err(error) => Reply::Failed(error.to_string()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::process::Command;

    use clap::Parser as _;
    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    /// The variable that makes the test below the child of a trial.
    const IS_CHILD: &str = "HILO_TEST_IS_TRIAL";

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: GrammarTrialArgs,
    }

    /// Makes a command of this test executable run only the test below, as a child.
    pub(in crate::grammar::trial) fn be_child(command: &mut Command) {
        command.env(IS_CHILD, "1").args(["grammar::trial::child::tests::be_the_child_of_a_trial", "--exact"]);
        command.args(["--nocapture", "--test-threads=1", "--"]);
    }

    /// Not a test of its own: other tests start this executable again with only this test.
    #[test]
    fn be_the_child_of_a_trial() {
        if std::env::var_os(IS_CHILD).is_some() {
            let words = std::env::args().skip_while(|word| word != "--");
            let _ = try_grammar_as_process(&Line::parse_from(words).args);
            // The test harness must write nothing after the reply.
            kill_process(getpid(), Signal::KILL).unwrap();
        }
    }
}
