//! Trials of grammars: a child process takes the first step of a build, which nothing can interrupt, with limits of
//! processor time and memory. This process then compiles only grammars for which the child finished.
//!
//! Entry points: [`Trials::run`] here, and [`try_grammar_as_process`] in the child, which is the same executable with
//! the hidden subcommand `SUBCOMMAND`. The child reads one [`Request`] from stdin, writes one [`Reply`] to stdout, and
//! ends. It never outlives the trial, whose thread kills and reaps it, nor this process (`PR_SET_PDEATHSIG`).

mod child;

use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use llguidance::api::TopLevelGrammar;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

pub use child::{GrammarTrialArgs, try_grammar_as_process};

use super::GrammarError;
use super::stop::BuildStop;
use crate::aside::num_turns;

#[cfg(not(test))]
/// The hidden subcommand of the executable that runs the child's part.
const SUBCOMMAND: &str = "try-grammar";

/// This executable, also if its file was replaced or removed after the start.
const EXECUTABLE: &str = "/proc/self/exe";

/// The processor time that a trial may take.
const MAX_TIME: Duration = Duration::from_secs(2);

/// The memory that a trial may take, in addition to that of a child without work: at least and at most. Half of the
/// least is for the stack.
const MIN_BYTES: usize = 32 << 20;
const MAX_BYTES: usize = 128 << 20;

/// The maximum size of a reply, in bytes. An error message has a few hundred.
const MAX_REPLY_BYTES: u64 = 64 << 10;

/// The limits of trials.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trials {
    /// The memory that one trial may take.
    memory_bytes: usize,
    /// The maximum number of trials at a time.
    num_turns: usize,
}

/// The tokens that a grammar can name, instead of the whole vocabulary.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct NamedTokens {
    pub(super) vocab_size: u32,
    pub(super) eos_token_ids: Vec<u32>,
    /// The tokens that are not text, by id, in `llguidance`'s form.
    pub(super) special: Vec<(u32, Vec<u8>)>,
}

/// The message to the child.
#[derive(Debug, Serialize, Deserialize)]
struct Request<S, T> {
    source: S,
    tokens: T,
}

/// The message from the child. A child that exceeds a limit sends none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Reply {
    Finished,
    /// The grammar is invalid or too large, with the reason.
    Refused(String),
    /// The child cannot work, for example because it cannot limit itself.
    Failed(String),
}

impl Trials {
    /// Divides `memory_bytes` between the trials that may run at a time.
    pub(super) fn new(memory_bytes: usize) -> Self {
        let num_turns = (memory_bytes / MIN_BYTES).clamp(1, num_turns());
        Self { memory_bytes: (memory_bytes / num_turns).clamp(MIN_BYTES, MAX_BYTES), num_turns }
    }

    pub(super) fn num_turns(&self) -> usize {
        self.num_turns
    }

    /// Tries a grammar in a child process. The calling thread must live until this returns, because the kernel ends the
    /// child with the thread that started it.
    ///
    /// # Errors
    /// When the grammar is invalid, the trial exceeds its time or memory, the child cannot be started, or `stop` was
    /// used.
    pub(super) fn run(
        &self,
        source: &TopLevelGrammar,
        tokens: &NamedTokens,
        stop: &BuildStop,
    ) -> Result<(), GrammarError> {
        let request = serde_json::to_vec(&Request { source, tokens }).map_err(io::Error::from);
        let request = request.map_err(|error| no_trial(&error))?;
        let mut child = self.command().spawn().map_err(|error| no_trial(&error))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        stop.set_child(child);
        let mut reply = Vec::new();
        // A child that ends early closes the pipes, and its exit status says more than the errors here.
        let _ = stdin.map(|mut stdin| stdin.write_all(&request));
        let _ = stdout.map(|stdout| stdout.take(MAX_REPLY_BYTES).read_to_end(&mut reply));
        let status = stop.end_child();
        stop.check()?;
        match serde_json::from_slice(reply_in(&reply)) {
            Ok(Reply::Finished) => Ok(()),
            Ok(Reply::Refused(reason)) => Err(GrammarError::Invalid(reason)),
            Ok(Reply::Failed(reason)) => Err(no_trial(&reason)),
            Err(_) => Err(self.error_of(status)),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(EXECUTABLE);
        // The child needs nothing of the environment, which may contain secrets.
        command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        #[cfg(test)]
        child::tests::be_child(&mut command);
        #[cfg(not(test))]
        command.arg(SUBCOMMAND);
        command.arg(format!("--parent-pid={}", std::process::id()));
        command.arg(format!("--memory-bytes={}", self.memory_bytes));
        command.arg(format!("--seconds={}", MAX_TIME.as_secs()));
        command
    }

    /// Returns the error of a trial whose child ended without a reply.
    fn error_of(&self, status: Option<ExitStatus>) -> GrammarError {
        let what = "its intersections, complements or repeated groups take more than";
        let signal = status.and_then(|status| status.signal()).and_then(Signal::from_named_raw);
        match signal {
            Some(Signal::XCPU) => {
                GrammarError::Invalid(format!("{what} {MAX_TIME:?} of processor time to compile; simplify them"))
            }
            // An allocation that fails aborts the process.
            Some(Signal::ABORT | Signal::SEGV | Signal::BUS | Signal::KILL) => {
                GrammarError::Invalid(format!("{what} {} MiB to compile; simplify them", self.memory_bytes >> 20))
            }
            _ => no_trial(&status.map_or_else(|| "it is gone".to_owned(), |status| status.to_string())),
        }
    }
}

/// Returns the reply in the output of a child. The child of a unit test prints lines of the test harness before it.
fn reply_in(output: &[u8]) -> &[u8] {
    let start = output.iter().rposition(|byte| *byte == child::MARK).map_or(0, |place| place + 1);
    &output[start..]
}

/// Returns the error for a child that cannot work.
fn no_trial(reason: &dyn std::fmt::Display) -> GrammarError {
    tracing::warn!("a grammar cannot be tried in a process of its own: {reason}");
    GrammarError::NoTrial(reason.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use test_support::{join_scoped, until};

    use super::*;

    fn tokens() -> NamedTokens {
        NamedTokens { vocab_size: 300, eos_token_ids: vec![1], special: vec![(2, b"\xff<|mark|>".to_vec())] }
    }

    fn run(trials: Trials, source: &TopLevelGrammar) -> Result<(), GrammarError> {
        trials.run(source, &tokens(), &BuildStop::default())
    }

    fn refused(trials: Trials, source: &TopLevelGrammar) -> String {
        match run(trials, source) {
            Err(GrammarError::Invalid(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    /// Returns a schema of texts that must match all of `count` expressions at the same time.
    fn intersection(count: u8) -> TopLevelGrammar {
        let pattern = |n: u8| json!({"type": "string", "pattern": format!(".*[{}-z].{{12}}", char::from(b'a' + n))});
        TopLevelGrammar::from_json_schema(json!({"allOf": (0..count).map(pattern).collect::<Vec<_>>()}))
    }

    #[test]
    fn a_child_says_if_it_finishes() {
        let trials = Trials::new(MIN_BYTES);
        assert_eq!(run(trials, &intersection(2)), Ok(()));
        let marks = "start: <|mark|> <[7]> A\nA: /[a-z]+/ & ~/b+/";
        assert_eq!(run(trials, &TopLevelGrammar::from_lark(marks.to_owned())), Ok(()));
        let reason = refused(trials, &TopLevelGrammar::from_regex("(a"));
        assert!(reason.contains("unclosed group"), "{reason}");
        let reason = refused(trials, &TopLevelGrammar::from_lark("start: <|other|>".to_owned()));
        assert!(reason.contains("<|other|>"), "{reason}");
        let panics = json!({"type": "integer", "minimum": "é".repeat(60)});
        let reason = refused(trials, &TopLevelGrammar::from_json_schema(panics));
        assert_eq!(reason, "it is beyond what this server can compile");
    }

    #[test]
    fn a_child_that_takes_too_much_is_ended() {
        let what = "its intersections, complements or repeated groups take more than";
        let reason = refused(Trials::new(MIN_BYTES), &intersection(20));
        assert_eq!(reason, format!("{what} 32 MiB to compile; simplify them"));
        let much = Trials { memory_bytes: 8 << 30, num_turns: 1 };
        assert_eq!(refused(much, &intersection(20)), format!("{what} 2s of processor time to compile; simplify them"));
    }

    #[test]
    fn a_child_is_ended_with_the_build() {
        let (much, stop) = (Trials { memory_bytes: 8 << 30, num_turns: 1 }, BuildStop::default());
        std::thread::scope(|scope| {
            let trial = scope.spawn(|| much.run(&intersection(20), &tokens(), &stop));
            until("the child", || stop.has_child() || trial.is_finished());
            stop.stop();
            assert_eq!(join_scoped(trial, "the end of the trial"), Err(GrammarError::Busy));
        });
        assert!(!stop.has_child(), "it is reaped");
    }

    #[test]
    fn trials_share_their_memory() {
        for (memory_bytes, of_each) in [(0, 32 << 20), (40 << 20, 40 << 20), (1 << 30, 128 << 20)] {
            let trials = Trials::new(memory_bytes);
            assert!((1..=num_turns()).contains(&trials.num_turns()));
            assert!(trials.memory_bytes * trials.num_turns() <= memory_bytes.max(MIN_BYTES), "{trials:?}");
            assert_eq!(trials.memory_bytes, of_each.min(memory_bytes.max(MIN_BYTES) / trials.num_turns()));
        }
    }
}
