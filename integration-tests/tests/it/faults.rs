//! Tests of every fault at every moment and in either shard: no process waits for ever, every client gets an error, the
//! launcher names the shard, and nothing is left behind.
//!
//! On the CPU the two shards add their results over shared memory, so a shard that does not arrive blocks the other
//! one. Each test is a kind of fault; its moments run in parallel, because most cases only wait for a deadline.

use std::time::Duration;

use integration_tests::{Client, Fault, Finished, Interposer, Moment, Server, send_signal};
use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::until_within;

use crate::failures::{last_error, terminal_event, wait_until_gone};

/// The promised maximum time from a fault to the exit of the launcher. It is longer than the server's deadlines for
/// silent shards.
const END_DEADLINE: Duration = Duration::from_secs(25);
/// The launcher's exit status after a device process failed.
const DEVICE_FAILED: i32 = 17;
const NUM_SHARDS: u32 = 2;

/// A fault, its moment, and the number of its shard (`rank`).
#[derive(Debug, Clone, Copy)]
struct Case {
    fault: Fault,
    moment: Moment,
    rank: u32,
}

fn check_all_moments(fault: Fault) {
    let moments = [Moment::Load, Moment::WarmUp, Moment::Prefill, Moment::Decode, Moment::Idle];
    std::thread::scope(|scope| {
        for moment in moments {
            scope.spawn(move || (0..NUM_SHARDS).for_each(|rank| Case { fault, moment, rank }.check()));
        }
    });
}

impl Case {
    fn check(self) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let uds_path = directory.path().join("s");
        let interposer = Interposer::start(&uds_path, self.rank);
        let builder =
            Server::builder("demo", "cpu").flag("--num-shard", NUM_SHARDS).flag("--shard-uds-path", uds_path.display());
        let (pids, finished) = match self.moment {
            Moment::Load | Moment::WarmUp => {
                let is_signal = matches!(self.fault, Fault::Signal(_));
                if !(is_signal && self.moment == Moment::Load) {
                    interposer.arm(self.moment, self.fault);
                }
                let server = builder.spawn();
                let pid = self.wait_for_process(&server);
                let pids = server.descendants();
                if let (Fault::Signal(signal), Moment::Load) = (self.fault, self.moment) {
                    send_signal(pid, signal);
                }
                (pids, server.wait())
            }
            Moment::Prefill | Moment::Decode | Moment::Idle => {
                let server = builder.start();
                let pids = server.descendants();
                self.strike_while_serving(&server.client(), &interposer);
                (pids, server.wait())
            }
        };
        self.check_end(&finished);
        wait_until_gone(&pids);
        let files = std::fs::read_dir(directory.path()).expect("the directory is there");
        let left: Vec<_> = files.flatten().map(|file| file.file_name()).collect();
        // The interposer's own sockets may stay, because the shard does not know of them and cannot remove them.
        let ours = |name: &str| name.ends_with(".moved") || name.ends_with(&format!("-{}", self.rank));
        assert!(left.iter().all(|name| ours(&name.to_string_lossy())), "{self:?} left {left:?}");
    }

    /// Waits until the shard's process exists, and returns its id.
    fn wait_for_process(self, server: &Server) -> i32 {
        let rank = self.rank.to_string();
        let plays_it = |pid: &i32| {
            let argv = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut argv = argv.split(|byte| *byte == 0).skip_while(|argument| *argument != b"--shard");
            argv.nth(1) == Some(rank.as_bytes())
        };
        let mut found = None;
        until_within(END_DEADLINE, &format!("the shard's process, {self:?}"), || {
            found = server.descendants().into_iter().find(plays_it);
            found.is_some()
        });
        found.expect("the wait ends with a process")
    }

    /// Injects the fault into a server that serves or has served requests, and checks that every waiting client gets an
    /// error.
    fn strike_while_serving(self, client: &Client, interposer: &Interposer) {
        // No generation ends before the fault.
        let parameters =
            json!({"max_new_tokens": 900, "ignore_eos_token": true, "do_sample": true, "temperature": 3.0, "seed": 1});
        let body = |inputs: &str| json!({"inputs": inputs, "parameters": parameters});
        if self.moment == Moment::Idle {
            assert!(!client.generate("Once", 2).is_empty());
            interposer.strike(self.fault);
            if matches!(self.fault, Fault::Signal(Signal::STOP) | Fault::WrongFingerprint) {
                assert_eq!(client.post("/generate", &body("Once")).status, 424, "{self:?}");
            }
            return;
        }
        let mut stream = client.stream("/generate_stream", &body("Once upon a time")).expect("a stream");
        assert!(stream.next().is_some_and(|event| event.get("token").is_some()));
        interposer.arm(self.moment, self.fault);
        if self.moment == Moment::Prefill {
            let response = client.post("/generate", &body("Once"));
            assert_eq!(
                (response.status, response.error().1.as_str()),
                (424, "generation"),
                "{self:?}: {}",
                response.text
            );
        }
        let end: Value = terminal_event(stream);
        assert_eq!(end["error_type"], "generation", "{self:?}: {end}");
    }

    fn check_end(self, finished: &Finished) {
        let error = last_error(&finished.log);
        assert_eq!(finished.status.code(), Some(DEVICE_FAILED), "{self:?}: {error}");
        assert!(finished.took < END_DEADLINE, "{self:?} took {:?}: {error}", finished.took);
        let rank = self.rank;
        let names = [format!("shard-{rank}"), format!("shard {rank}"), format!("rank {rank}")];
        assert!(names.iter().any(|name| error.contains(name.as_str())), "{self:?}: {error}");
        // While a shard loads its model, either the launcher or the router notices that the connection was closed.
        if (self.fault, self.moment) == (Fault::Close, Moment::Load) {
            let heard = ["closed its socket", "closed the connection"].iter().any(|heard| error.contains(heard));
            assert!(heard, "{self:?}: {error}");
            return;
        }
        let expected = match self.fault {
            Fault::Signal(Signal::KILL) => "was killed by signal 9",
            Fault::Signal(_) => "was stopped by a signal",
            Fault::Close => "closed the connection",
            Fault::Garbage if self.moment == Moment::Load => "frame of 4294967295 bytes",
            Fault::Garbage => "sent a message that is not a reply",
            Fault::WrongNumber => "answered command",
            Fault::WrongFingerprint if self.moment == Moment::Load => {
                "has another model, other settings or another instruction set"
            }
            Fault::WrongFingerprint => "ran other programs or inputs than",
        };
        assert!(error.contains(expected), "{self:?}: {error}");
    }
}

#[test]
fn a_rank_is_killed() {
    check_all_moments(Fault::Signal(Signal::KILL));
}

#[test]
fn a_rank_is_stopped() {
    check_all_moments(Fault::Signal(Signal::STOP));
}

#[test]
fn a_rank_closes_its_socket() {
    check_all_moments(Fault::Close);
}

#[test]
fn a_rank_sends_garbage() {
    check_all_moments(Fault::Garbage);
}

#[test]
fn a_rank_answers_another_command() {
    check_all_moments(Fault::WrongNumber);
}

#[test]
fn a_rank_runs_something_else() {
    check_all_moments(Fault::WrongFingerprint);
}
