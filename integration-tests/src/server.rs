//! A launcher with its children, as a test uses it: started, waited for until it is ready, sent signals, and waited for
//! until it exits.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use serde_json::Value;

use crate::Client;
use crate::device::{shared_programs, test_device, test_num_shard};
use crate::log_reader::{LogReader, Reading};
use crate::ports::listening_port;

/// The maximum time from the start to the ready line, with loading, compiling and warm-up on a busy machine. The wait
/// ends early if the launcher exits.
const START_DEADLINE: Duration = Duration::from_secs(600);
/// The maximum time until a launcher that should exit has exited. If it takes longer, the test fails.
const END_DEADLINE: Duration = Duration::from_secs(90);

/// The environment variable that names an executable to test instead of one that is built from this tree.
const EXECUTABLE_VARIABLE: &str = "HILO_TEST_EXECUTABLE";

/// The flags, the environment and the log reader of a server to start.
#[derive(Debug)]
pub struct ServerBuilder {
    args: Vec<String>,
    env: Vec<(String, String)>,
    reader: LogReader,
    json_output: bool,
    has_private_sockets: bool,
    namespace: Option<String>,
    executable: Option<PathBuf>,
}

/// A running server. Dropping this value kills the launcher.
#[derive(Debug)]
pub struct Server {
    child: Child,
    url: String,
    /// The read end of a pipe that nobody reads.
    _unread: Option<std::io::PipeReader>,
    /// Lines of the launcher's log, read by a thread so that the pipe does not fill.
    lines: Mutex<Receiver<String>>,
    is_log_unread: Arc<AtomicBool>,
    log: Mutex<Vec<String>>,
    directory: tempfile::TempDir,
}

/// A server that has exited.
#[derive(Debug)]
pub struct Finished {
    /// The launcher's exit status.
    pub status: ExitStatus,
    /// Everything that the harness read from the launcher's output.
    pub log: Vec<String>,
    /// The time from the call of [`Server::stop`] or [`Server::wait`] to the exit.
    pub took: Duration,
}

impl ServerBuilder {
    /// Adds a flag and its value.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "reads better at the call")]
    pub fn flag(mut self, name: &str, value: impl ToString) -> Self {
        self.args.extend([name.to_owned(), value.to_string()]);
        self
    }

    /// Sets an environment variable of the launcher.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "reads better at the call")]
    pub fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.env.push((name.to_owned(), value.to_string()));
        self
    }

    /// Sets the reader of the log. By default the harness reads stdout.
    #[must_use]
    pub fn log_reader(mut self, reader: LogReader) -> Self {
        self.reader = reader;
        self
    }

    /// Starts another executable instead of [`executable`].
    #[must_use]
    pub fn executable(mut self, path: &Path) -> Self {
        self.executable = Some(path.to_owned());
        self
    }

    /// Starts the launcher in a network namespace.
    #[must_use]
    pub fn in_namespace(mut self, name: &str) -> Self {
        self.namespace = Some(name.to_owned());
        self
    }

    /// Makes the launcher log text for people instead of JSON.
    #[must_use]
    pub fn text_log(mut self) -> Self {
        self.json_output = false;
        self
    }

    /// Lets the launcher choose the directory of the shards' sockets.
    #[must_use]
    pub fn private_sockets(mut self) -> Self {
        self.has_private_sockets = true;
        self
    }

    /// Starts the server and waits until it listens, without reading its log.
    ///
    /// # Panics
    /// When the launcher exits first, or does not listen before the deadline.
    pub fn start_unseen(self) -> Server {
        let mut server = self.spawn();
        server.wait_listening();
        server
    }

    /// Starts the server and waits until it is ready.
    ///
    /// # Panics
    /// When the server does not become ready; the message contains its log.
    pub fn start(self) -> Server {
        let mut server = self.spawn();
        server.wait_ready();
        server
    }

    /// Starts the launcher and returns at once.
    ///
    /// # Panics
    /// When the executable cannot be built or started.
    pub fn spawn(self) -> Server {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let executable = self.executable.as_deref().unwrap_or_else(|| executable());
        let mut command = match &self.namespace {
            // `ip` becomes the launcher, so the process id is the launcher's.
            Some(name) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name]).arg(executable);
                command
            }
            None => self.reader.command(executable),
        };
        if self.json_output {
            command.arg("--json-output");
        }
        command.args(&self.args);
        let socket = directory.path().join("shard").display().to_string();
        let programs = shared_programs().display().to_string();
        for (flag, value) in [("--port", "0"), ("--shard-uds-path", &socket), ("--program-cache", &programs)] {
            let is_left_out = self.has_private_sockets && flag == "--shard-uds-path";
            if !is_left_out && !self.args.iter().any(|arg| arg == flag) {
                command.args([flag, value]);
            }
        }
        command.env_remove("HOSTNAME").envs(self.env).stdin(Stdio::null());
        let reading = self.reader.connect(&mut command);
        let mut child = command.spawn().expect("the launcher starts");
        // Dropping the command closes the launcher's ends of the pipes in this process; they must be open in the
        // launcher only.
        drop(command);
        let is_log_unread: Arc<AtomicBool> = Arc::default();
        let read = |stream: Box<dyn Read + Send>| read_lines(stream, Arc::clone(&is_log_unread));
        let (lines, unread) = match reading {
            Reading::Stdout => (read(Box::new(child.stdout.take().expect("stdout is piped"))), None),
            Reading::Stream(stream) => (read(Box::new(stream)), None),
            Reading::Nobody(unread) => (read(Box::new(std::io::empty())), unread),
        };
        Server {
            child,
            url: String::new(),
            _unread: unread,
            lines: Mutex::new(lines),
            is_log_unread,
            log: Mutex::default(),
            directory,
        }
    }
}

impl Server {
    /// Returns the builder of a server with this model on this device.
    pub fn builder(model_id: &str, device: &str) -> ServerBuilder {
        let builder = ServerBuilder {
            args: Vec::new(),
            env: Vec::new(),
            reader: LogReader::Harness,
            json_output: true,
            has_private_sockets: false,
            namespace: None,
            executable: None,
        };
        builder.flag("--model-id", model_id).flag("--device", device)
    }

    /// Returns the builder of a server with the demo model's tokenizer on the mock device, which replies immediately.
    pub fn mock() -> ServerBuilder {
        Self::builder("demo", "mock")
    }

    /// Returns the builder of a server with the demo model on the device to test.
    pub fn demo() -> ServerBuilder {
        Self::model("demo")
    }

    /// Returns the builder of a server with this model on the device to test.
    pub fn model(model_id: &str) -> ServerBuilder {
        Self::builder(model_id, test_device()).flag("--num-shard", test_num_shard())
    }

    /// A client of this server.
    pub fn client(&self) -> Client {
        Client::new(&self.url)
    }

    /// The address on which the server listens.
    ///
    /// # Panics
    /// When the server is not ready.
    pub fn address(&self) -> SocketAddr {
        let address = self.url.trim_start_matches("http://");
        address.parse().unwrap_or_else(|error| panic!("{error}: {address:?}"))
    }

    /// Stops reading the launcher's output, so that its pipe fills.
    pub fn leave_log_unread(&self) {
        self.is_log_unread.store(true, Ordering::Relaxed);
    }

    /// Returns a field of the first log line with this message. Only lines from before the server was ready are
    /// searched.
    pub fn logged(&self, message: &str, field: &str) -> Option<String> {
        let log = self.log.lock().expect("no test thread panics with the log");
        let line = log
            .iter()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .find(|line| line["message"] == message)?;
        line[field].as_str().map(str::to_owned)
    }

    /// The directory that contains the shards' sockets, unless `--shard-uds-path` is set or the launcher chooses one.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The process id of the launcher.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process ids of the running descendants of the launcher.
    pub fn descendants(&self) -> Vec<i32> {
        let mut pids = vec![self.child.id() as i32];
        let mut next = 0;
        while next < pids.len() {
            let parent = pids[next];
            next += 1;
            for thread in std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten() {
                let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
                pids.extend(children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
            }
        }
        pids.split_off(1)
    }

    /// The process id of the first descendant that runs this subcommand.
    ///
    /// # Panics
    /// When no descendant runs it.
    pub fn child(&self, subcommand: &str) -> i32 {
        self.find_child(subcommand).unwrap_or_else(|| panic!("no child runs {subcommand}"))
    }

    fn find_child(&self, subcommand: &str) -> Option<i32> {
        self.children(subcommand).first().copied()
    }

    /// The process ids of the descendants that run this subcommand.
    pub fn children(&self, subcommand: &str) -> Vec<i32> {
        let is_wanted = |pid: &i32| {
            let argv = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            argv.split(|byte| *byte == 0).nth(1) == Some(subcommand.as_bytes())
        };
        self.descendants().into_iter().filter(is_wanted).collect()
    }

    /// Waits for the first line of the launcher's log.
    ///
    /// # Panics
    /// When the launcher writes no line before it exits.
    pub fn wait_first_line(&self) {
        self.next_line(Instant::now() + START_DEADLINE).expect("the launcher logs something");
    }

    /// Sends a signal to the launcher.
    pub fn signal(&self, signal: Signal) {
        send_signal(self.child.id() as i32, signal);
    }

    /// Sends SIGTERM and waits for the exit.
    pub fn stop(self) -> Finished {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Waits for the exit.
    ///
    /// # Panics
    /// When the launcher does not exit in time.
    pub fn wait(mut self) -> Finished {
        let start = Instant::now();
        self.drain_lines(start + END_DEADLINE);
        self.wait_for_end(start + END_DEADLINE);
        let status = self.child.wait().expect("the launcher can be waited for");
        let took = start.elapsed();
        let log = std::mem::take(&mut *self.log.lock().expect("no test thread panics with the log"));
        Finished { status, log, took }
    }

    fn wait_ready(&mut self) {
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            let line = self
                .next_line(deadline)
                .unwrap_or_else(|| panic!("the server did not get ready:\n{}", self.log_text()));
            let Ok(line) = serde_json::from_str::<Value>(&line) else {
                continue;
            };
            if line["message"] == "ready" {
                self.url = line["url"].as_str().expect("the ready line has a url").replace("0.0.0.0", "127.0.0.1");
                return;
            }
        }
    }

    /// Waits until the launcher has exited. The end of its log does not show this: a log that nobody reads ends at
    /// once.
    fn wait_for_end(&self, deadline: Instant) {
        let pid = Pid::from_child(&self.child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("the launcher was not waited for");
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).expect("a short time");
        let num_ready = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&left)).expect("a poll");
        assert!(num_ready > 0, "the launcher did not end within {END_DEADLINE:?}:\n{}", self.log_text());
    }

    fn wait_listening(&mut self) {
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            assert!(Instant::now() < deadline, "the server did not listen:\n{}", self.log_text());
            let status = self.child.try_wait().expect("the launcher can be waited for");
            assert!(status.is_none(), "the launcher ended: {status:?}");
            let router = self.find_child("router");
            if let Some(port) = router.and_then(listening_port) {
                self.url = format!("http://127.0.0.1:{port}");
                return;
            }
            std::thread::yield_now();
        }
    }

    fn next_line(&self, deadline: Instant) -> Option<String> {
        let lines = self.lines.lock().expect("no test thread panics with the lines");
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                self.log.lock().expect("no test thread panics with the log").push(line.clone());
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => None,
        }
    }

    fn drain_lines(&mut self, deadline: Instant) {
        while self.next_line(deadline).is_some() {}
        assert!(Instant::now() < deadline, "the launcher did not end within {END_DEADLINE:?}:\n{}", self.log_text());
    }

    fn log_text(&self) -> String {
        self.log.lock().expect("no test thread panics with the log").join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to any process of a test.
pub fn send_signal(pid: i32, signal: Signal) {
    let pid = Pid::from_raw(pid).expect("a process id is positive");
    let _ = rustix::process::kill_process(pid, signal);
}

/// The path of the launcher: the one in `HILO_TEST_EXECUTABLE`, or that of an executable that is built once per test
/// process, in release if the tests are and otherwise in dev.
pub fn executable() -> &'static Path {
    static EXECUTABLE: OnceLock<PathBuf> = OnceLock::new();
    EXECUTABLE.get_or_init(|| {
        if let Some(executable) = std::env::var_os(EXECUTABLE_VARIABLE) {
            return executable.into();
        }
        let profile = profile_folder();
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--manifest-path"]).arg(
            Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace").join("Cargo.toml"),
        );
        build.arg("--target-dir").arg(target_folder());
        if profile.ends_with("release") {
            build.args(["--release", "--package", "launcher"]);
        } else {
            // This selects the same features with which `cargo test --workspace` built the dependencies.
            build.args(["--workspace", "--bin", "text-generation-launcher", "--tests"]);
        }
        assert!(build.status().expect("cargo runs").success(), "the launcher does not build");
        profile.join("text-generation-launcher")
    })
}

/// The target directory that this test was built in.
pub(crate) fn target_folder() -> PathBuf {
    profile_folder().parent().expect("profiles lie in the target directory").to_owned()
}

fn profile_folder() -> PathBuf {
    let test = std::env::current_exe().expect("the test knows its path");
    test.ancestors().nth(2).expect("tests lie in target/<profile>/deps").to_owned()
}

/// Reads lines on a new thread until `is_unread` is set. The thread then keeps the pipe open without reading it, so
/// that it fills.
fn read_lines(stdout: impl Read + Send + 'static, is_unread: Arc<AtomicBool>) -> Receiver<String> {
    let (lines_tx, lines) = mpsc::sync_channel(1 << 16);
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines() {
            let Ok(line) = line else { return };
            if lines_tx.send(line).is_err() {
                return;
            }
            while is_unread.load(Ordering::Relaxed) {
                std::thread::park();
            }
        }
    });
    lines
}
