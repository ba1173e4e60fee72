//! The order of a launch: start, readiness, serving, end. The first child that dies ends all.
//!
//! ```text
//! start shards ─▶ all reply to Hello ─▶ start router ─▶ serve ─▶ SIGTERM ─▶ router drains, says Leave ─▶ shards end
//!       └──────────── a child ends ─────────┴───────────────┴─▶ the others are ended, the launch fails
//! ```
//!
//! The supervisor is one thread with one channel. It owns the child processes and nothing else. Log lines of the
//! children bypass it (`child_logs`), so a slow reader of the log does not delay signals or the end of a child.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use endpoint::Endpoint;
use proto::exit_status;
use rustix::process::Signal;
use signal_hook::iterator::Signals;
use tracing::Level;

use crate::banner;
use crate::child_logs::ChildLogs;
use crate::error::LauncherError;
use crate::event::{self, ChildId, Event};
use crate::exit::Exit;
use crate::plan::{ChildPlan, LaunchPlan};
use crate::process::Process;
use crate::readiness::{self, Watch};

/// The time that the router needs, beyond that of the generations, to send Leave and to end.
const ROUTER_MARGIN: Duration = Duration::from_secs(10);
/// The time for a shard to free its device after Leave.
const SHARD_LEAVE_DEADLINE: Duration = Duration::from_secs(10);
/// The time for the router to find the cause of a failure and to tell its clients.
const FAREWELL_DEADLINE: Duration = Duration::from_secs(6);
/// The time for shards to log why they end.
const LAST_WORDS_DEADLINE: Duration = Duration::from_secs(1);
/// The time from SIGTERM to SIGKILL.
const TERM_DEADLINE: Duration = Duration::from_secs(1);
/// The time from SIGKILL to the end of a process. Only a process stuck in the kernel takes longer.
const KILL_DEADLINE: Duration = Duration::from_secs(5);

/// Starts all children, serves until one of the `signals` or a failure, and leaves no process and no socket behind.
///
/// # Errors
/// When a child ends by itself or does not get ready.
pub(crate) fn run(plan: &LaunchPlan, signals: Signals) -> Result<(), LauncherError> {
    let (events_tx, events) = event::channel();
    watch_signals(signals, events_tx.clone());
    let mut supervisor = Supervisor {
        plan,
        executable: std::env::current_exe()
            .map_err(|source| LauncherError::Spawn { name: "this executable".into(), source })?,
        events_tx,
        events,
        children: BTreeMap::new(),
        watches: BTreeMap::new(),
        ending: BTreeSet::new(),
        bad_exit: None,
        is_serving: false,
        logs: Arc::new(ChildLogs::new(plan.json_output)),
    };
    let outcome = match supervisor.serve() {
        Ok(()) => supervisor.drain(),
        Err(error) => Err(supervisor.fail(error)),
    };
    supervisor.remove_sockets();
    outcome
}

struct Supervisor<'a> {
    plan: &'a LaunchPlan,
    executable: PathBuf,
    events_tx: SyncSender<Event>,
    events: Receiver<Event>,
    /// Children that have not been reaped.
    children: BTreeMap<ChildId, Process>,
    /// Shards that are not ready.
    watches: BTreeMap<ChildId, Watch>,
    /// Children that were told to end; their exit is not an error.
    ending: BTreeSet<ChildId>,
    /// The most likely cause of a failure: a child that ended badly by itself. Of equally likely ones, the first.
    bad_exit: Option<(ChildId, Exit)>,
    /// True if the router has opened its port.
    is_serving: bool,
    logs: Arc<ChildLogs>,
}

impl Supervisor<'_> {
    /// Starts the children and watches them. Returns when a signal asks to stop.
    fn serve(&mut self) -> Result<(), LauncherError> {
        for shard in &self.plan.shards {
            self.start(&shard.child, &[])?;
            let watch = readiness::watch(shard.child.id, shard.endpoint.clone(), self.events_tx.clone());
            self.watches.insert(shard.child.id, watch);
        }
        loop {
            let event = self.events.recv().expect("this supervisor holds a sender");
            if let Event::Ready(id) = event {
                self.watches.remove(&id);
                if self.watches.is_empty() {
                    self.start_router()?;
                }
            } else if let Event::Stop = event {
                return Ok(());
            } else {
                self.handle(event)?;
            }
        }
    }

    /// Ends everything in order after a signal. A router that does not serve yet is ended at once, and its shards get
    /// no time for Leave.
    fn drain(&mut self) -> Result<(), LauncherError> {
        self.logs.clear_progress();
        let shards = self.shard_ids();
        if self.children.contains_key(&ChildId::Router) {
            // Shards whose router has stopped may exit in any way.
            self.ending.extend(&shards);
            if self.is_serving {
                self.announce_stop();
            } else {
                self.ending.insert(ChildId::Router);
            }
            self.signal(&[ChildId::Router], Signal::TERM);
            self.wait(&[ChildId::Router], self.plan.shutdown_timeout.saturating_add(ROUTER_MARGIN));
            self.kill(&[ChildId::Router]);
            if self.is_serving {
                self.wait(&shards, SHARD_LEAVE_DEADLINE);
            }
        }
        self.kill(&self.everyone());
        match self.bad_exit.take() {
            Some((id, exit)) => Err(self.child_exited(id, exit)),
            None => Ok(()),
        }
    }

    /// Announces the stop, in the log or, if the log's filter drops it, to a person at a terminal.
    fn announce_stop(&self) {
        let seconds = self.plan.shutdown_timeout.as_secs();
        let text = format!("stopping; running requests have {seconds} s to finish, Ctrl-C again ends them at once");
        if tracing::enabled!(Level::INFO) {
            tracing::info!("{text}");
        } else {
            self.logs.tell(format!("{text}\n"));
        }
    }

    /// Ends everything after a failure and returns the error that names its cause. A shard that dies takes the router
    /// with it, and a shard that cannot load says so on its socket before it ends. Which event arrives first is a race,
    /// so the children get a moment to end by themselves.
    fn fail(&mut self, error: LauncherError) -> LauncherError {
        let everyone = self.everyone();
        self.wait(&[ChildId::Router], FAREWELL_DEADLINE);
        self.wait(&everyone, LAST_WORDS_DEADLINE);
        let stopped = self.stopped();
        self.kill(&everyone);
        let error = match (error, self.bad_exit.take()) {
            (LauncherError::ChildExited { .. } | LauncherError::NotReady { .. }, Some((id, exit))) => {
                self.child_exited(id, exit)
            }
            (error, _) => error,
        };
        match stopped {
            Some(id) => LauncherError::Stopped { error: Box::new(error), stopped: id.to_string() },
            None => error,
        }
    }

    /// Returns a child that exists but was stopped by a signal. It replies to nothing, and other children fail in its
    /// place.
    fn stopped(&self) -> Option<ChildId> {
        self.children.iter().find(|(_, process)| process.is_stopped()).map(|(id, _)| *id)
    }

    fn start(&mut self, plan: &ChildPlan, extra: &[String]) -> Result<(), LauncherError> {
        let process = Process::spawn(&self.executable, plan, extra, &self.logs, self.events_tx.clone())?;
        self.children.insert(plan.id, process);
        Ok(())
    }

    fn start_router(&mut self) -> Result<(), LauncherError> {
        let failed = |source| LauncherError::Spawn { name: ChildId::Router.to_string(), source };
        let (reader, writer, flag) = readiness::router_pipe().map_err(failed)?;
        self.start(&self.plan.router, &[flag])?;
        drop(writer);
        readiness::watch_router(reader, self.events_tx.clone());
        Ok(())
    }

    /// Acts on an event. The exit of a child that was not told to end is an error.
    fn handle(&mut self, event: Event) -> Result<(), LauncherError> {
        match event {
            Event::Exited(id, exit) => {
                self.reap(id, exit);
                return Err(self.child_exited(id, exit));
            }
            Event::NotReady(id, reason) => {
                return Err(LauncherError::NotReady { id, reason });
            }
            Event::Serving(ready) => {
                self.is_serving = true;
                self.logs.tell(banner::text(&ready));
            }
            Event::Ready(_) | Event::Stop => {}
        }
        Ok(())
    }

    /// Waits until the children `ids` have ended. A second signal is passed on to them.
    fn wait(&mut self, ids: &[ChildId], timeout: Duration) {
        // `None`, for a time beyond the clock's range, means no deadline.
        let deadline = Instant::now().checked_add(timeout);
        while ids.iter().any(|id| self.children.contains_key(id)) {
            let Some(event) = self.next_event(deadline) else { return };
            match event {
                Event::Exited(id, exit) => self.reap(id, exit),
                Event::Stop => {
                    self.ending.extend(ids);
                    self.signal(ids, Signal::TERM);
                }
                Event::Serving(_) => self.is_serving = true,
                Event::Ready(_) | Event::NotReady(..) => {}
            }
        }
    }

    fn next_event(&self, deadline: Option<Instant>) -> Option<Event> {
        match deadline {
            Some(deadline) => self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok(),
            None => self.events.recv().ok(),
        }
    }

    fn kill(&mut self, ids: &[ChildId]) {
        for (signal, timeout) in [(Signal::TERM, TERM_DEADLINE), (Signal::KILL, KILL_DEADLINE)] {
            self.ending.extend(ids);
            self.signal(ids, signal);
            self.wait(ids, timeout);
        }
    }

    fn reap(&mut self, id: ChildId, exit: Exit) {
        if let Some(process) = self.children.remove(&id) {
            process.reap();
        }
        self.watches.remove(&id);
        let is_news = exit != Exit::Status(0) && !self.ending.contains(&id);
        if is_news && self.bad_exit.is_none_or(|(known, known_exit)| blame(id, exit) > blame(known, known_exit)) {
            self.bad_exit = Some((id, exit));
        }
    }

    fn signal(&self, ids: &[ChildId], signal: Signal) {
        for process in ids.iter().filter_map(|id| self.children.get(id)) {
            process.signal(signal);
        }
    }

    fn shard_ids(&self) -> Vec<ChildId> {
        self.plan.shards.iter().map(|shard| shard.child.id).collect()
    }

    fn everyone(&self) -> Vec<ChildId> {
        self.shard_ids().into_iter().chain([ChildId::Router]).collect()
    }

    fn child_exited(&self, id: ChildId, exit: Exit) -> LauncherError {
        LauncherError::ChildExited { id, exit, last_words: self.logs.last_words(id) }
    }

    /// Removes the sockets of shards that were killed; others remove their own.
    fn remove_sockets(&self) {
        for shard in &self.plan.shards {
            let Endpoint::Unix(path) = &shard.endpoint else { continue };
            let is_socket = path.metadata().is_ok_and(|file| file.file_type().is_socket());
            if is_socket && shard.endpoint.connect().is_err() {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// Ranks exits by how likely they are the cause. When one child dies the others follow, and which exit is seen first is
/// a race. A child that was killed is the cause. A status that names a problem comes before the general status of a
/// child whose peer is gone.
fn blame(id: ChildId, exit: Exit) -> u8 {
    match (exit, id) {
        (Exit::Signal(_), _) => 3,
        (Exit::Status(status), _) if status != i32::from(exit_status::FAILURE) => 2,
        (Exit::Status(_), ChildId::Router) => 1,
        (Exit::Status(_), ChildId::Shard(_)) => 0,
    }
}

/// Turns SIGINT, SIGTERM and SIGHUP into events.
fn watch_signals(mut signals: Signals, events: SyncSender<Event>) {
    std::thread::spawn(move || {
        for _signal in signals.forever() {
            if events.send(Event::Stop).is_err() {
                return;
            }
        }
    });
}
