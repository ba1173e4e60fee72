//! Runs the processes of a launch in order: start, readiness, serving, end. When a child dies by itself, all other
//! children are ended.
//!
//! ```text
//! start shards ─▶ all reply to Hello ─▶ start router ─▶ serve ─▶ SIGTERM ─▶ router drains, says Leave ─▶ shards end
//!       └──────────── a child ends ─────────┴───────────────┴─▶ the others are ended, the launch fails
//! ```
//!
//! In a slice of several hosts, host 0 starts the router when the shards of all hosts are ready. The other hosts run
//! their shards until the router tells these to leave. The loss of any host is a failure of all.
//!
//! The supervisor is one thread that receives events from one channel. It owns the child processes. Log lines of the
//! children do not pass through it (`child_logs`), so a slow reader of the log delays neither signals nor the end of a
//! child.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use endpoint::Endpoint;
use proto::exit_status;
use router::{HostPage, HostStage as Stage};
use rustix::process::Signal;
use signal_hook::iterator::Signals;
use tracing::Level;

use crate::banner;
use crate::child_logs::ChildLogs;
use crate::error::LauncherError;
use crate::event::{ChildId, Event};
use crate::exit::Exit;
use crate::hosts::{News, Slice};
use crate::plan::{ChildPlan, LaunchPlan, ShardPlan};
use crate::process::Process;
use crate::readiness::{self, Watch};
use crate::stop::{ROUTER_MARGIN, TERM_DEADLINE};

/// The maximum time that the router gets to find the cause of a failure and to report it to its clients.
const FAREWELL_DEADLINE: Duration = Duration::from_secs(6);
/// The maximum time that the children get to end by themselves after a failure, once the router has ended or
/// [`FAREWELL_DEADLINE`] is over.
const LAST_WORDS_DEADLINE: Duration = Duration::from_secs(1);
/// The maximum time for news of a host to reach another one, and for that host's processes to be scheduled.
const NEWS_DEADLINE: Duration = Duration::from_secs(5);
/// The maximum time to wait for the end of a child after SIGKILL. Only a process that is stuck in the kernel takes
/// longer.
const KILL_DEADLINE: Duration = Duration::from_secs(5);

/// Starts all children and serves until one of the `signals` arrives or something fails. Then ends all children and
/// removes their sockets.
///
/// # Errors
/// When a child cannot be started, does not become ready, or ends by itself.
pub(crate) fn run(plan: &LaunchPlan, signals: Signals, connections: Connections) -> Result<(), LauncherError> {
    let Connections { slice, page, events_tx, events } = connections;
    watch_signals(signals, events_tx.clone());
    let mut supervisor = Supervisor {
        plan,
        slice,
        page: page.clone(),
        unready: plan.all_shards().collect(),
        executable: std::env::current_exe()
            .map_err(|source| LauncherError::Spawn { name: "this executable".into(), source })?,
        events_tx,
        events,
        children: BTreeMap::new(),
        watches: BTreeMap::new(),
        ending: BTreeSet::new(),
        bad_exit: None,
        hung: None,
        lost_host: None,
        expects_signal: false,
        is_serving: false,
        logs: Arc::new(ChildLogs::new(plan.json_output, page)),
    };
    let outcome = match supervisor.serve() {
        Ok(Stopped::BySignal) => supervisor.drain(),
        Ok(Stopped::ByFirstHost) => supervisor.leave(),
        Ok(Stopped::ShardsLeft) => {
            supervisor.wait_for_first_host();
            supervisor.leave()
        }
        Err(error) => Err(supervisor.fail(error)),
    };
    supervisor.remove_sockets();
    supervisor.slice.end(&match &outcome {
        Ok(()) => News::Left,
        Err(error) => News::Failed(error.to_string()),
    });
    outcome
}

/// The connections of this host to its slice, and the events of this launch.
pub(crate) struct Connections {
    pub(crate) slice: Slice,
    /// The pages of a host that has no router, or none yet.
    pub(crate) page: Option<Arc<HostPage>>,
    pub(crate) events_tx: SyncSender<Event>,
    pub(crate) events: Receiver<Event>,
}

/// The reason why this host stops without a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stopped {
    /// This host has the router, and it or another host of the slice was asked to stop.
    BySignal,
    /// Host 0 has ended without a failure.
    ByFirstHost,
    /// The router of host 0 has told the shards of this host to leave, and they have ended.
    ShardsLeft,
}

struct Supervisor<'a> {
    plan: &'a LaunchPlan,
    slice: Slice,
    page: Option<Arc<HostPage>>,
    executable: PathBuf,
    events_tx: SyncSender<Event>,
    events: Receiver<Event>,
    /// Children that have not been reaped.
    children: BTreeMap<ChildId, Process>,
    /// The shards of all hosts that are not ready. The router starts when there are none.
    unready: BTreeSet<ChildId>,
    /// The watches of shards, until the router starts and watches them itself.
    watches: BTreeMap<ChildId, Watch>,
    /// Children that were told to end. Their exit is not an error.
    ending: BTreeSet<ChildId>,
    /// The child that ended badly by itself and is most likely the cause of the failure. If several are equally likely,
    /// this is the first.
    bad_exit: Option<(ChildId, Exit)>,
    /// The error of the first child that was killed because it gave no sign of life while the children ended.
    hung: Option<LauncherError>,
    /// The error of another host that has failed or is lost. If there are several, this is the first.
    lost_host: Option<LauncherError>,
    /// True if this host stops because another host received a signal. Its own first signal is then the same request,
    /// because whoever stops a slice stops all its hosts.
    expects_signal: bool,
    /// True if the router has opened its port, on this host or on host 0.
    is_serving: bool,
    logs: Arc<ChildLogs>,
}

impl Supervisor<'_> {
    /// Starts the children and handles their events. Returns `Ok` when this host should stop.
    fn serve(&mut self) -> Result<Stopped, LauncherError> {
        for shard in &self.plan.shards {
            self.start_shard(shard)?;
        }
        self.slice.tell(&News::Started);
        self.show(Stage::Loading);
        loop {
            let event = self.events.recv().expect("this supervisor holds a sender");
            match event {
                Event::Ready(id) => {
                    self.unready.remove(&id);
                    if self.unready.is_empty() {
                        self.start_router()?;
                    }
                }
                Event::Stop if self.plan.router.is_some() => return Ok(Stopped::BySignal),
                Event::Stop => {
                    tracing::info!("asking host 0 to stop the slice");
                    self.slice.tell(&News::Stop);
                    return self.await_first_host();
                }
                Event::Host(_, News::Stop) if self.plan.router.is_none() => {
                    self.expects_signal = true;
                    return self.await_first_host();
                }
                Event::Host(host, News::Stop) => {
                    tracing::info!("{} was asked to stop, so the slice stops", self.plan.hosts.name(host));
                    self.expects_signal = true;
                    return Ok(Stopped::BySignal);
                }
                // The router of host 0 has told the shard to leave.
                Event::Exited(id, Exit::Status(0)) if self.plan.router.is_none() => {
                    self.reap(id, Exit::Status(0));
                    if self.children.is_empty() {
                        return Ok(Stopped::ShardsLeft);
                    }
                }
                Event::Host(_, News::Left) if self.plan.router.is_none() => return Ok(Stopped::ByFirstHost),
                event => self.handle(event)?,
            }
        }
    }

    /// Goes on, on a host without a router, until host 0 has stopped the slice.
    fn await_first_host(&mut self) -> Result<Stopped, LauncherError> {
        self.show(Stage::Ending);
        // After this time host 0 has drained, or is not going to.
        let time = self.plan.shutdown_timeout.saturating_add(self.rest_of_first_host());
        let deadline = Instant::now().checked_add(time);
        while !self.children.is_empty() {
            match self.next_event(deadline) {
                Some(Event::Exited(id, exit)) => {
                    // The router does not wait for a shard in a long step; the shard then finds the router gone.
                    if is_consequence(id, exit) {
                        self.ending.insert(id);
                    }
                    self.reap(id, exit);
                }
                Some(Event::Stop) if std::mem::take(&mut self.expects_signal) => {}
                // A second signal ends this host at once.
                Some(Event::Host(_, News::Left) | Event::Stop) => return Ok(Stopped::ByFirstHost),
                Some(Event::Host(host, news)) => self.handle_news(host, &news)?,
                Some(Event::Ready(_) | Event::NotReady(..) | Event::Silent(_) | Event::Serving(_)) => {}
                None => {
                    let (name, seconds) = (self.plan.hosts.name(0), time.as_secs());
                    let error =
                        format!("{name} has not stopped the slice within {seconds} s after a signal to this host");
                    return Err(LauncherError::SliceLost(error));
                }
            }
        }
        Ok(Stopped::ShardsLeft)
    }

    /// Waits until host 0 has ended. Until then this host's relays may still forward its shards' last replies; without
    /// these the router reports the shards as lost.
    fn wait_for_first_host(&mut self) {
        let deadline = Instant::now() + self.rest_of_first_host();
        while let Some(event) = self.next_event(Some(deadline)) {
            if let Event::Host(_, News::Left | News::Lost(_) | News::Failed(_)) = event {
                return;
            }
        }
    }

    /// Returns the maximum time that host 0 takes to end after its running requests, and to say so.
    fn rest_of_first_host(&self) -> Duration {
        ROUTER_MARGIN + TERM_DEADLINE + self.plan.shard_deadline + TERM_DEADLINE + NEWS_DEADLINE
    }

    /// Ends the shards of a host without a router, after host 0 has ended the slice.
    fn leave(&mut self) -> Result<(), LauncherError> {
        self.logs.clear_progress();
        self.show(Stage::Ending);
        let shards = self.shard_ids();
        // A router that never served has told no shard to leave.
        if self.is_serving {
            self.wait(&shards, self.plan.shard_deadline);
        }
        self.kill(&shards);
        match self.bad_exit.take() {
            Some((id, exit)) => Err(self.child_exited(id, exit)),
            None => Ok(()),
        }
    }

    /// Starts a shard of this host. On host 0, waits for it on another thread.
    fn start_shard(&mut self, shard: &ShardPlan) -> Result<(), LauncherError> {
        let ChildId::Shard(number) = shard.child.id else { return Ok(()) };
        match self.slice.peers.take(number)? {
            // The sockets are closed here once the child has them.
            Some(inherited) => self.start(&shard.child, std::slice::from_ref(&inherited.flag))?,
            None => self.start(&shard.child, &[])?,
        }
        if self.plan.router.is_some() {
            self.watch(shard.child.id, &shard.endpoint);
        }
        Ok(())
    }

    fn watch(&mut self, id: ChildId, endpoint: &Endpoint) {
        let watch = readiness::watch(id, endpoint.clone(), self.events_tx.clone());
        self.watches.insert(id, watch);
    }

    /// Shows the stage of this host on its page, if it has one.
    fn show(&self, stage: Stage) {
        if let Some(page) = &self.page {
            page.show(stage);
        }
    }

    /// Ends all children in order after a signal. If the router does not serve yet, its end is no error, and its shards
    /// get no time for Leave.
    fn drain(&mut self) -> Result<(), LauncherError> {
        self.logs.clear_progress();
        self.show(Stage::Ending);
        let shards = self.shard_ids();
        // The other hosts expect the end of their connections now.
        self.slice.tell(&News::Stop);
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
                self.wait(&shards, self.plan.shard_deadline);
            }
        }
        self.kill(&self.everyone());
        match (self.hung.take(), self.bad_exit.take()) {
            (Some(error), _) => Err(error),
            (None, Some((id, exit))) => Err(self.child_exited(id, exit)),
            (None, None) => Ok(()),
        }
    }

    /// Announces the stop in the log. If the log's filter drops the line, shows it on stdout if that is a terminal.
    fn announce_stop(&self) {
        let seconds = self.plan.shutdown_timeout.as_secs();
        let text = format!("stopping; running requests have {seconds} s to finish, Ctrl-C again ends them at once");
        if tracing::enabled!(Level::INFO) {
            tracing::info!("{text}");
        } else {
            self.logs.tell(format!("{text}\n"));
        }
    }

    /// Ends all children after a failure and returns the error that names its cause. When a shard dies, the router ends
    /// too, and a shard that cannot load its model reports this on its socket before it ends. Which event arrives first
    /// is a race, so the children get a moment to end by themselves.
    fn fail(&mut self, error: LauncherError) -> LauncherError {
        let everyone = self.everyone();
        if self.plan.router.is_none() {
            // Host 0 should know the cause before its router gives another one.
            self.slice.tell(&News::Failed(error.to_string()));
        }
        // A router that hangs tells its clients nothing. They learn of the failure when its connections end.
        if !matches!(error, LauncherError::Silent { .. }) {
            self.wait(&[ChildId::Router], FAREWELL_DEADLINE);
        }
        self.wait(&everyone, LAST_WORDS_DEADLINE);
        self.wait_for_news(&error);
        let stopped = self.stopped();
        self.kill(&everyone);
        let error = match (error, self.bad_exit.take(), self.lost_host.take()) {
            // A child of this host that only lost its peer follows from the loss of the host.
            (LauncherError::ChildExited { .. } | LauncherError::NotReady { .. }, Some((id, exit)), Some(lost))
                if is_consequence(id, exit) =>
            {
                lost
            }
            (LauncherError::ChildExited { .. } | LauncherError::NotReady { .. }, Some((id, exit)), _) => {
                let error = self.child_exited(id, exit);
                let is_of_slice = self.plan.router.is_none() && is_consequence(id, exit);
                if is_of_slice { LauncherError::SliceLost(error.to_string()) } else { error }
            }
            (LauncherError::NotReady { .. }, None, Some(lost)) => lost,
            (error, ..) => error,
        };
        with_stopped(error, stopped)
    }

    /// Waits a moment for news of another host, if the error may follow from the loss of one.
    fn wait_for_news(&mut self, error: &LauncherError) {
        let is_consequence = self.bad_exit.is_some_and(|(id, exit)| is_consequence(id, exit));
        let may_follow = is_consequence || matches!(error, LauncherError::NotReady { .. });
        let deadline = Instant::now() + LAST_WORDS_DEADLINE;
        while self.plan.hosts.num() > 1 && may_follow && self.lost_host.is_none() {
            match self.next_event(Some(deadline)) {
                Some(Event::Host(host, news)) => self.note_loss(host, &news),
                Some(Event::Exited(id, exit)) => self.reap(id, exit),
                Some(Event::Ready(_) | Event::NotReady(..) | Event::Silent(_) | Event::Serving(_) | Event::Stop) => {}
                None => return,
            }
        }
    }

    /// Returns the first child that is stopped by a signal such as SIGSTOP or by a debugger. A stopped child does not
    /// reply, so other children fail because of it.
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
        let Some(router) = &self.plan.router else { return Ok(()) };
        self.watches.clear();
        self.start(router, &[flag])?;
        drop(writer);
        readiness::watch_router(reader, self.page.clone(), self.events_tx.clone());
        Ok(())
    }

    /// Handles an event while the server starts or serves. Every exit of a child is then an error.
    fn handle(&mut self, event: Event) -> Result<(), LauncherError> {
        match event {
            Event::Exited(id, exit) => {
                self.reap(id, exit);
                return Err(self.child_exited(id, exit));
            }
            Event::Silent(id) => return Err(LauncherError::Silent { id }),
            Event::NotReady(id, reason) => {
                return Err(LauncherError::NotReady { id, reason });
            }
            Event::Serving(ready) => {
                self.is_serving = true;
                self.slice.tell(&News::Serving);
                self.logs.tell(banner::text(&ready));
            }
            Event::Host(host, news) => return self.handle_news(host, &news),
            Event::Ready(_) | Event::Stop => {}
        }
        Ok(())
    }

    /// Handles news of another host while the slice starts or serves.
    fn handle_news(&mut self, host: usize, news: &News) -> Result<(), LauncherError> {
        match news {
            News::Started => {
                let plan = self.plan;
                for (_, id, endpoint) in plan.remote_shards().filter(|(of, ..)| *of == host) {
                    self.watch(id, endpoint);
                }
            }
            News::Serving => {
                self.is_serving = true;
                self.show(Stage::Serving);
            }
            News::Failed(_) | News::Lost(_) | News::Left => {
                self.note_loss(host, news);
                return Err(self.lost_host.take().expect("the loss has been noted"));
            }
            News::Assembled | News::Stop => {}
        }
        Ok(())
    }

    /// Notes that a host has failed or is lost, and lets the router know that its shards are gone.
    fn note_loss(&mut self, host: usize, news: &News) {
        let name = self.plan.hosts.name(host);
        let has_left = || (*news == News::Left).then(|| LauncherError::SliceLost(format!("{name} has ended")));
        let Some(error) = news.loss(&name).or_else(has_left) else { return };
        self.slice.close(host);
        self.lost_host.get_or_insert(error);
    }

    /// Waits until the children `ids` have ended, for at most `timeout`. If a signal arrives meanwhile, they get
    /// SIGTERM.
    fn wait(&mut self, ids: &[ChildId], timeout: Duration) {
        // `None` means no deadline. It results from a timeout beyond the clock's range.
        let deadline = Instant::now().checked_add(timeout);
        while ids.iter().any(|id| self.children.contains_key(id)) {
            let Some(event) = self.next_event(deadline) else { return };
            match event {
                Event::Exited(id, exit) => self.reap(id, exit),
                Event::Stop if std::mem::take(&mut self.expects_signal) => {}
                Event::Stop => {
                    self.ending.extend(ids);
                    self.signal(ids, Signal::TERM);
                }
                Event::Serving(_) => self.is_serving = true,
                Event::Host(host, news) => self.note_loss(host, &news),
                Event::Silent(id) => self.kill_hung(id),
                Event::Ready(_) | Event::NotReady(..) => {}
            }
        }
    }

    /// Kills a child that gives no sign of life, because it does not react to SIGTERM either.
    fn kill_hung(&mut self, id: ChildId) {
        if !self.children.contains_key(&id) {
            return;
        }
        let error = with_stopped(LauncherError::Silent { id }, self.stopped());
        self.hung.get_or_insert(error);
        self.ending.insert(id);
        self.signal(&[id], Signal::KILL);
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

    /// Removes the sockets of shards that were killed. Shards that end by themselves remove their own sockets.
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

/// Returns the error with the name of the child that is stopped, if one is.
fn with_stopped(error: LauncherError, stopped: Option<ChildId>) -> LauncherError {
    match stopped {
        Some(id) => LauncherError::Stopped { error: Box::new(error), stopped: id.to_string() },
        None => error,
    }
}

/// True if a child may have ended because a host of the slice is lost: the router, or a shard whose peer is gone.
fn is_consequence(id: ChildId, exit: Exit) -> bool {
    match id {
        ChildId::Router => matches!(exit, Exit::Status(_)),
        ChildId::Shard(_) => exit == Exit::Status(i32::from(exit_status::FAILURE)),
    }
}

/// Returns how likely an exit is the cause of a failure; a larger number is likelier. When one child dies, the others
/// follow, and which exit is seen first is a race. A child that was killed is most likely the cause. A status that
/// names a problem is likelier to be the cause than the general status, because a child also exits with the general
/// status when its peer is gone.
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
