//! Runs children one after another until one succeeds or no probe is left to try, and writes the page.
//!
//! Entry point: [`Relay::run`]. A child prints an event per line ([`encode`]). The relay ends a child whose probe
//! exceeds its time limit, because nothing else can stop a call of a plugin that hangs.

use std::io::{BufReader, ErrorKind, Write};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use serde_json::{Value, json};
use shard::probe::{Probe, ProbeEvent, ProbeLine};

use crate::exit::Exit;
use crate::process::{read_line, wait_without_reaping};

/// The width of the column of names.
const NAME_WIDTH: usize = 42;
/// The time that a child may take until its first event.
const START_LIMIT: Duration = Duration::from_secs(30);
/// The time that a child may take to end after its last line.
const END_LIMIT: Duration = Duration::from_secs(60);
/// The time that a killed child may take to end.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// The number of events that may wait to be printed.
const MAX_WAITING: usize = 64;

/// Writes the page: the lines of the children, and a line for each probe that ended its child or was not tried.
pub(super) struct Relay<'a> {
    probes: &'a [Probe],
    out: &'a mut dyn Write,
    has_failures: bool,
}

/// The state of the current child.
struct Progress {
    /// The probe that runs.
    current: Option<usize>,
    /// The number of lines of this probe.
    num_lines: usize,
    /// The time that the child may take until the deadline, counted from the event that set the deadline.
    limit: Duration,
    deadline: Instant,
    last_event: Instant,
}

/// Returns an event as one line of JSON.
pub(super) fn encode(event: &ProbeEvent) -> String {
    match event {
        ProbeEvent::Begin(index) => json!({ "begin": index }).to_string(),
        ProbeEvent::Line(ProbeLine { name, value: Ok(value) }) => json!({ "name": name, "value": value }).to_string(),
        ProbeEvent::Line(ProbeLine { name, value: Err(reason) }) => {
            json!({ "name": name, "failed": reason }).to_string()
        }
    }
}

/// Returns the event in a line, or `None` for a line that is not an event: plugins may print too.
fn decode(line: &str) -> Option<ProbeEvent> {
    let event: Value = serde_json::from_str(line).ok()?;
    if let Some(index) = event["begin"].as_u64() {
        return Some(ProbeEvent::Begin(usize::try_from(index).ok()?));
    }
    let text = |key: &str| event[key].as_str().map(str::to_owned);
    let value = text("value").map(Ok).or_else(|| text("failed").map(Err))?;
    Some(ProbeEvent::Line(ProbeLine { name: text("name")?, value }))
}

impl<'a> Relay<'a> {
    /// Returns a relay that writes the page of `probes` to `out`.
    pub(super) fn new(probes: &'a [Probe], out: &'a mut dyn Write) -> Self {
        Self { probes, out, has_failures: false }
    }

    /// Runs the probes in as many children as it takes. `start` returns the command of a child that begins with the
    /// probe at an index. Returns true if no probe failed.
    pub(super) fn run(mut self, start: impl Fn(usize) -> Command) -> bool {
        let mut next = Some(0);
        while let Some(first) = next {
            next = self.run_child(&mut start(first), first);
        }
        !self.has_failures
    }

    /// Writes a line with a value.
    pub(super) fn line(&mut self, name: &str, value: &str) {
        let written = writeln!(self.out, "{name:<NAME_WIDTH$}  {value}").and_then(|()| self.out.flush());
        // A closed pipe is not a failure: its reader has seen enough.
        if let Err(error) = written
            && error.kind() != ErrorKind::BrokenPipe
        {
            self.has_failures = true;
            let _ = writeln!(std::io::stderr().lock(), "error: stdout cannot be written: {error}");
        }
    }

    fn failed(&mut self, name: &str, reason: &str) {
        self.has_failures = true;
        self.line(name, &format!("failed: {reason}"));
    }

    /// Runs a child that begins with the probe `first`. Returns the probe with which another child should go on, or
    /// `None` if no other child should run.
    fn run_child(&mut self, command: &mut Command, first: usize) -> Option<usize> {
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let (mut child, stdout) = match spawned.map(|mut child| (child.stdout.take(), child)) {
            Ok((Some(stdout), child)) => (child, stdout),
            Ok((None, _)) => return self.give_up(first, "the process has no output"),
            Err(error) => return self.give_up(first, &format!("the process cannot be started: {error}")),
        };
        let events = events_of(stdout, Pid::from_child(&child));
        let mut progress = Progress::new();
        loop {
            match events.recv_timeout(progress.deadline.saturating_duration_since(Instant::now())) {
                Ok(event) => self.note(event, &mut progress),
                Err(RecvTimeoutError::Timeout) => {
                    kill(&mut child, &events);
                    let limit = progress.limit.as_secs();
                    let reason = format!("no result in time, so the process was ended (limit {limit} s)");
                    return self.go_on(first, &progress, &reason);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let time = progress.last_event.elapsed();
                    return match child.wait() {
                        Ok(status) if status.success() => {
                            self.line("end of the process", &format!("{} ms after its last line", time.as_millis()));
                            None
                        }
                        Ok(status) => self.go_on(first, &progress, &format!("the process {}", exit(status))),
                        Err(error) => {
                            let reason = format!("the process ended, but its exit status cannot be read: {error}");
                            self.go_on(first, &progress, &reason)
                        }
                    };
                }
            }
        }
    }

    /// Writes the line of an event.
    fn note(&mut self, event: ProbeEvent, progress: &mut Progress) {
        let is_last = |index: usize| index + 1 >= self.probes.len();
        progress.last_event = Instant::now();
        match event {
            ProbeEvent::Begin(index) => {
                progress.current = Some(index);
                progress.num_lines = 0;
                progress.allow(self.probes.get(index).map_or(START_LIMIT, |probe| probe.limit));
            }
            ProbeEvent::Line(ProbeLine { name, value }) => {
                progress.num_lines += 1;
                if progress.current.is_some_and(is_last) {
                    progress.allow(END_LIMIT);
                }
                match value {
                    Ok(value) => self.line(&name, &value),
                    Err(reason) => self.failed(&name, &reason),
                }
            }
        }
    }

    /// Writes the line of the probe during which the child ended. Returns the probe with which another child should go
    /// on.
    fn go_on(&mut self, first: usize, progress: &Progress, reason: &str) -> Option<usize> {
        let index = progress.current.unwrap_or(first).min(self.probes.len() - 1);
        let probe = self.probes[index];
        let is_last = index + 1 == self.probes.len();
        match is_last && progress.num_lines > 0 {
            true => self.failed("end of the process", reason),
            false => self.failed(probe.name, reason),
        }
        if is_last {
            return None;
        }
        if probe.is_needed || progress.current.is_none() {
            let rest = first.max(index + 1);
            return self.give_up(rest, &format!("not tried, because of {}", probe.name));
        }
        Some(index + 1)
    }

    /// Writes that the probes from `first` on failed.
    fn give_up(&mut self, first: usize, reason: &str) -> Option<usize> {
        for probe in &self.probes[first.min(self.probes.len())..] {
            self.failed(probe.name, reason);
        }
        None
    }
}

impl Progress {
    fn new() -> Self {
        let now = Instant::now();
        Self { current: None, num_lines: 0, limit: START_LIMIT, deadline: now + START_LIMIT, last_event: now }
    }

    /// Sets the time that the child may take from now on.
    fn allow(&mut self, limit: Duration) {
        self.limit = limit;
        self.deadline = Instant::now() + limit;
    }
}

/// Returns the events that the child `pid` prints. The channel ends when the child's output and the child itself have
/// ended. Lines that are not events go to stderr.
fn events_of(stdout: ChildStdout, pid: Pid) -> Receiver<ProbeEvent> {
    let (sender, receiver) = sync_channel(MAX_WAITING);
    std::thread::spawn(move || {
        let mut stdout = BufReader::new(stdout);
        while let Ok(Some(line)) = read_line(&mut stdout) {
            match decode(&line) {
                Some(event) => {
                    // The receiver is gone after a child was ended.
                    if sender.send(event).is_err() {
                        return;
                    }
                }
                None => {
                    let _ = writeln!(std::io::stderr().lock(), "{line}");
                }
            }
        }
        // A child that has closed its output may still hang. The receiver's deadline ends it.
        wait_without_reaping(pid);
        drop(sender);
    });
    receiver
}

/// Ends a child, and waits for its end for some time: a process inside of a driver's call may take long.
fn kill(child: &mut Child, events: &Receiver<ProbeEvent>) {
    let deadline = Instant::now() + KILL_LIMIT;
    if child.kill().is_err() {
        return;
    }
    loop {
        match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => return,
            Err(RecvTimeoutError::Disconnected) => {
                let _ = child.wait();
                return;
            }
        }
    }
}

fn exit(status: ExitStatus) -> Exit {
    status.code().map_or_else(|| Exit::Signal(status.signal().unwrap_or(0)), Exit::Status)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBES: [Probe; 5] = [
        Probe { name: "client", limit: Duration::from_secs(30), is_needed: true },
        Probe { name: "first", limit: Duration::from_secs(30), is_needed: false },
        Probe { name: "second", limit: Duration::from_millis(300), is_needed: false },
        Probe { name: "third", limit: Duration::from_secs(30), is_needed: false },
        Probe { name: "teardown", limit: Duration::from_secs(30), is_needed: false },
    ];

    /// Returns the page and the outcome of children that run a shell script, in which `$1` is the first probe.
    fn page(script: &str) -> (Vec<String>, bool) {
        let begin = r#"begin() { echo "{\"begin\": $1}"; }; line() { echo "{\"name\": \"$1\", \"value\": \"$2\"}"; };
            begin 0; [ $1 -gt 0 ] || line client open"#;
        let script = format!("{begin}\n{script}");
        let mut out = Vec::new();
        let is_good = Relay::new(&PROBES, &mut out).run(|first| {
            let mut command = Command::new("sh");
            command.args(["-c", &script, "sh", &first.to_string()]);
            command
        });
        let text = String::from_utf8(out).unwrap();
        (text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect(), is_good)
    }

    /// Removes the time from the last line.
    fn without_time(mut page: Vec<String>) -> Vec<String> {
        let end = page.iter_mut().find(|line| line.starts_with("end of the process"));
        end.into_iter().for_each(|line| line.truncate("end of the process".len()));
        page
    }

    #[test]
    fn a_page_is_what_its_child_says() {
        let (page, is_good) = page("begin 1; line first 1; echo noise; begin 4; line teardown done");
        assert_eq!(without_time(page), ["client open", "first 1", "teardown done", "end of the process"]);
        assert!(is_good);
    }

    #[test]
    fn after_a_probe_that_hangs_another_child_runs_the_next() {
        let hangs = "[ $1 -gt 1 ] || { begin 1; line first 1; begin 2; line half a; exec sleep 60; }
            begin 3; line third $1; begin 4; line teardown done";
        let (page, is_good) = page(hangs);
        assert_eq!(
            without_time(page),
            [
                "client open",
                "first 1",
                "half a",
                "second failed: no result in time, so the process was ended (limit 0 s)",
                "third 3",
                "teardown done",
                "end of the process"
            ]
        );
        assert!(!is_good);
    }

    #[test]
    fn noise_that_is_not_text_is_no_end() {
        let (page, is_good) = page(r"begin 1; printf '\377\n'; line first 1; begin 4; line teardown done");
        assert_eq!(without_time(page), ["client open", "first 1", "teardown done", "end of the process"]);
        assert!(is_good);
    }

    #[test]
    fn a_child_that_closes_its_output_and_hangs_is_ended() {
        let hangs = "[ $1 -gt 1 ] || { begin 2; exec sleep 60 >&-; }
            begin 3; line third $1; begin 4; line teardown done";
        let (page, is_good) = page(hangs);
        let second = "second failed: no result in time, so the process was ended (limit 0 s)";
        assert_eq!(page[..4], ["client open", second, "third 3", "teardown done"]);
        assert!(!is_good);
    }

    #[test]
    fn the_limit_is_that_of_the_last_event() {
        let mut out = Vec::new();
        let mut relay = Relay::new(&PROBES, &mut out);
        let mut progress = Progress::new();
        relay.note(ProbeEvent::Begin(2), &mut progress);
        assert_eq!(progress.limit, PROBES[2].limit);
        relay.note(ProbeEvent::Begin(4), &mut progress);
        relay.note(ProbeEvent::Line(ProbeLine { name: "teardown".into(), value: Ok("done".into()) }), &mut progress);
        assert_eq!(progress.limit, END_LIMIT);
    }

    #[test]
    fn after_a_probe_that_ends_its_process_another_child_runs_the_next() {
        let dies = "[ $1 -gt 1 ] || { begin 1; kill -ABRT $$; }
            begin 2; line second $1; begin 4; line teardown done";
        let (page, is_good) = page(dies);
        let expected = ["client open", "first failed: the process was killed by signal 6", "second 2", "teardown done"];
        assert_eq!(page[..4], expected);
        assert!(!is_good && page.len() == 5, "{page:?}");
    }

    #[test]
    fn without_a_client_no_other_child_is_tried() {
        let (page, is_good) = page("[ $1 -eq 0 ] || exit 3; begin 1; exit 1");
        assert_eq!(
            page,
            [
                "client open",
                "first failed: the process exited with status 1",
                "client failed: the process exited with status 3",
                "second failed: not tried, because of client",
                "third failed: not tried, because of client",
                "teardown failed: not tried, because of client"
            ]
        );
        assert!(!is_good);
    }

    #[test]
    fn an_event_comes_back_as_it_was() {
        let line = |value| ProbeEvent::Line(ProbeLine { name: "a\tb".to_owned(), value });
        for event in [ProbeEvent::Begin(3), line(Ok("µ\n".to_owned())), line(Err("no \"x\"".to_owned()))] {
            assert_eq!(decode(&encode(&event)), Some(event));
        }
        assert_eq!(decode("WARNING: something"), None);
    }
}
