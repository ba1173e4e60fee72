//! All shards of a model as one: every command goes to every shard in the same order, and only shard 0 replies with
//! tokens.
//!
//! Entry points: [`ShardGroup::send`], which does not wait for a reply, so that the next step can be sent while the
//! previous one runs, and [`ShardGroup::next_step`]. Every wait for a reply has a deadline (`deadline.rs`). No command
//! is retried: after an error the group cannot be used any more.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::try_join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use liveness::TICK;
use proto::{Command, StepDone, StepReply, command, frame, reply};
use tokio::sync::watch;
use tokio::time::Instant;

use super::connection::Connection;
use super::deadline::StepDeadlines;
use super::error::{Certainty, unexpected};
use super::{ShardClientError, deadline};

/// The initial capacity of a frame's buffer, in bytes. Most commands are smaller.
const FRAME_BYTES: usize = 4 << 10;

/// The shards of one model.
#[derive(Debug)]
pub struct ShardGroup {
    /// The connections, in the order of shards. There is at least one.
    connections: Vec<Connection>,
    /// The commands to which not every shard has replied, oldest first.
    pending: VecDeque<Pending>,
    /// The sequence number of the last command, which is the same for all shards.
    last_sent: u64,
    /// True while every shard beats.
    are_beating: watch::Sender<bool>,
    /// The most informative error so far, which may not be the cause, and the time until which to look for the cause.
    symptom: Option<(ShardClientError, Instant)>,
    pub(super) deadlines: StepDeadlines,
    pub(super) device_assignment: Vec<i64>,
}

/// A command to which not every shard has replied.
#[derive(Debug, Clone, Copy)]
struct Pending {
    name: &'static str,
    deadline: Duration,
}

/// The parameters of a wait for replies.
#[derive(Debug, Clone, Copy)]
struct Wait {
    deadline: Duration,
    /// True if the shards end after their replies, so that the end of a connection is not an error.
    is_last: bool,
}

impl ShardGroup {
    pub(super) fn new(connections: Vec<Connection>) -> Self {
        Self {
            connections,
            pending: VecDeque::new(),
            last_sent: 0,
            are_beating: watch::Sender::new(true),
            symptom: None,
            deadlines: StepDeadlines::default(),
            device_assignment: Vec::new(),
        }
    }

    /// Sends the commands of a step, which reads `num_tokens` tokens, to every shard. The future must not be dropped
    /// before it completes.
    ///
    /// # Errors
    /// When a shard does not accept the commands in time, or its connection fails.
    pub async fn send(&mut self, commands: Vec<command::Kind>, num_tokens: usize) -> Result<(), ShardClientError> {
        for kind in commands {
            let name = if matches!(kind, command::Kind::Release(_)) { RELEASE } else { STEP };
            self.send_one(kind, name, self.deadlines.step(num_tokens)).await?;
        }
        Ok(())
    }

    /// Waits for the replies to the oldest step that was sent, and returns the reply of shard 0. Safe to abandon and to
    /// begin again.
    ///
    /// # Errors
    /// When a shard does not reply in time, fails, or ran other programs or inputs than shard 0.
    pub async fn next_step(&mut self) -> Result<StepReply, ShardClientError> {
        loop {
            let (name, mut replies) = self.replies().await?;
            if name == RELEASE {
                check_done(name, &replies)?;
                continue;
            }
            if replies.is_empty() {
                return Err(ShardClientError::Closed { shard: 0 });
            }
            return match replies.remove(0) {
                (_, reply::Kind::Step(step)) => agree(step, &replies),
                (shard, other) => Err(unexpected(shard, name, &other)),
            };
        }
    }

    /// Waits until a shard fails, and returns the failure. Must be called only while no step is under way. Safe to
    /// abandon.
    pub async fn failure(&mut self) -> ShardClientError {
        while !self.pending.is_empty() {
            let replied = self.replies().await;
            if let Err(error) = replied.and_then(|(name, replies)| check_done(name, &replies)) {
                return error;
            }
        }
        if self.symptom.is_some() {
            return self.known_cause().await;
        }
        loop {
            self.note_beats();
            let watches = try_join_all(self.connections.iter_mut().map(Connection::watch));
            match tokio::time::timeout(TICK, watches).await {
                Ok(Err(error)) => return self.cause(error).await,
                Ok(Ok(_)) => return ShardClientError::Closed { shard: 0 },
                Err(_) => {}
            }
        }
    }

    /// Returns a receiver of true while every shard beats.
    pub fn beating(&self) -> watch::Receiver<bool> {
        self.are_beating.subscribe()
    }

    fn note_beats(&self) {
        let are_beating = !self.connections.iter().any(Connection::is_doubtful);
        self.are_beating.send_if_modified(|known| std::mem::replace(known, are_beating) != are_beating);
    }

    /// Tells every shard to end, and waits for the confirmations.
    ///
    /// # Errors
    /// When a shard does not confirm in time, or fails.
    pub async fn leave(mut self) -> Result<(), ShardClientError> {
        while !self.pending.is_empty() {
            self.replies().await?;
        }
        let replies = self.call(command::Kind::Leave(proto::Leave {}), LEAVE, deadline::LEAVE).await?;
        check_done(LEAVE, &replies)
    }

    /// Sends a command and waits for every shard's reply. No other command may be under way.
    pub(super) async fn call(
        &mut self,
        kind: command::Kind,
        name: &'static str,
        deadline: Duration,
    ) -> Result<Vec<(u32, reply::Kind)>, ShardClientError> {
        self.send_one(kind, name, deadline).await?;
        Ok(self.replies().await?.1)
    }

    /// Encodes a command once and writes the same bytes to every shard.
    async fn send_one(
        &mut self,
        kind: command::Kind,
        name: &'static str,
        deadline: Duration,
    ) -> Result<(), ShardClientError> {
        if self.pending.is_empty() {
            self.begin_wait();
        }
        let own = Pending { name, deadline };
        self.pending.push_back(own);
        // A command finds no room only behind the oldest one, whose deadline counts then.
        let Pending { name, deadline } = self.pending.front().copied().unwrap_or(own);
        self.last_sent += 1;
        let sequence_number = self.last_sent;
        let mut frame = Vec::with_capacity(FRAME_BYTES);
        frame::encode(&Command { sequence_number, kind: Some(kind) }, &mut frame)
            .map_err(|source| ShardClientError::Frame { shard: 0, source })?;
        let sends = self.connections.iter_mut().map(|connection| connection.send(sequence_number, &frame, deadline));
        match try_join_all(sends).await {
            Ok(_) => Ok(()),
            Err(error) => Err(self.cause_of(error, name).await),
        }
    }

    /// Returns the name of the oldest command, and every shard's reply to that command. Safe to abandon and to begin
    /// again.
    async fn replies(&mut self) -> Result<(&'static str, Vec<(u32, reply::Kind)>), ShardClientError> {
        if self.symptom.is_some() {
            return Err(self.known_cause().await);
        }
        let Some(&Pending { name, deadline }) = self.pending.front() else { std::future::pending().await };
        let wait = Wait { deadline, is_last: name == LEAVE };
        let answered = loop {
            self.note_beats();
            if let Ok(answered) = tokio::time::timeout(TICK, all_answer(&mut self.connections, wait)).await {
                break answered;
            }
        };
        if let Err(error) = answered {
            return Err(self.cause_of(error, name).await);
        }
        self.pending.pop_front();
        self.begin_wait();
        let replies = self.connections.iter_mut().filter_map(|connection| {
            let answer = connection.take_answer()?;
            Some((connection.shard, answer))
        });
        Ok((name, replies.collect()))
    }

    /// Begins the wait for the replies to the oldest command.
    fn begin_wait(&mut self) {
        self.connections.iter_mut().for_each(Connection::begin_wait);
    }

    /// Returns the [`cause`](Self::cause) of an error of a connection. The command `name` was the oldest.
    async fn cause_of(&mut self, error: ShardClientError, name: &'static str) -> ShardClientError {
        match error {
            ShardClientError::Timeout { after, .. } => self.cause(ShardClientError::timeout(name, after)).await,
            error => self.cause(error).await,
        }
    }

    /// Returns the cause of an error if it is found soon, else the error. The error may be a symptom, such as the
    /// report of a shard that waited in vain for another one, which is about to fail. Safe to abandon: the error is
    /// stored in `symptom`, and the next wait continues the search.
    async fn cause(&mut self, error: ShardClientError) -> ShardClientError {
        if error.certainty() == Certainty::Cause {
            return error;
        }
        self.symptom = Some((error, Instant::now() + deadline::CAUSE));
        self.known_cause().await
    }

    /// Searches for the cause of the symptom until its time is over, and returns the best explanation. A timeout names
    /// the shards that have not replied.
    async fn known_cause(&mut self) -> ShardClientError {
        let names = |is_meant: fn(&Connection) -> bool| {
            let meant = self.connections.iter().filter(|connection| is_meant(connection));
            meant.map(|connection| connection.shard.to_string()).collect::<Vec<_>>().join(" and ")
        };
        let unanswered = names(|connection| !connection.has_answered());
        let silent = names(Connection::is_silent);
        let Self { connections, symptom, .. } = self;
        let until = symptom.as_ref().map_or_else(Instant::now, |(_, until)| *until);
        let mut news: FuturesUnordered<_> = connections.iter_mut().map(Connection::broken).collect();
        while let Ok(Some(error)) = tokio::time::timeout_at(until, news.next()).await {
            let known = symptom.as_ref().map(|(known, _)| known);
            if known.is_none_or(|known| known.certainty() < error.certainty()) {
                let is_cause = error.certainty() == Certainty::Cause;
                *symptom = Some((error, until));
                if is_cause {
                    break;
                }
            }
        }
        drop(news);
        match self.symptom.take() {
            Some((ShardClientError::Timeout { command, after, .. }, _)) => {
                ShardClientError::Timeout { shards: unanswered, command, after }
            }
            Some((ShardClientError::Silent { after, .. }, _)) => ShardClientError::Silent { shards: silent, after },
            Some((error, _)) => error,
            None => ShardClientError::Closed { shard: 0 },
        }
    }
}

/// Waits until every shard has a reply to take. Meanwhile shards that have replied are still read, because one of them
/// may fail, and report why, while another shard is silent.
async fn all_answer(connections: &mut [Connection], wait: Wait) -> Result<(), ShardClientError> {
    let Wait { deadline, is_last } = wait;
    let num_silent = connections.iter().filter(|connection| !connection.has_answered()).count();
    let num_silent = &AtomicUsize::new(num_silent);
    let mut reads = pin!(try_join_all(connections.iter_mut().map(async |connection| {
        if !connection.has_answered() {
            connection.wait_for_answer(deadline).await?;
            num_silent.fetch_sub(1, Ordering::Relaxed);
        }
        if !is_last && let Err(failure) = connection.watch().await {
            if num_silent.load(Ordering::Relaxed) > 0 {
                return Err(failure);
            }
            // All shards have replied, and these replies are valid, so the failure is stored for the next wait.
            connection.keep(failure);
        }
        std::future::pending().await
    })));
    poll_fn(|cx| {
        if let Poll::Ready(ended) = reads.as_mut().poll(cx) {
            let ended: Result<Vec<Infallible>, ShardClientError> = ended;
            return Poll::Ready(ended.map(drop));
        }
        if num_silent.load(Ordering::Relaxed) == 0 { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}

const RELEASE: &str = "release";
const STEP: &str = "a step";
const LEAVE: &str = "leave";

fn check_done(name: &'static str, replies: &[(u32, reply::Kind)]) -> Result<(), ShardClientError> {
    match replies.iter().find(|(_, kind)| !matches!(kind, reply::Kind::Done(_))) {
        Some((shard, other)) => Err(unexpected(*shard, name, other)),
        None => Ok(()),
    }
}

/// Returns the reply of shard 0 if all other shards report the same fingerprint.
fn agree(mut step: StepReply, others: &[(u32, reply::Kind)]) -> Result<StepReply, ShardClientError> {
    for (shard, kind) in others {
        let shard = *shard;
        let reply::Kind::StepDone(StepDone { forward_ns: _, num_programs_compiled, fingerprint }) = kind else {
            return Err(unexpected(shard, STEP, kind));
        };
        if *fingerprint != step.fingerprint {
            return Err(ShardClientError::Fingerprint { shard, expected: step.fingerprint, got: *fingerprint });
        }
        step.num_programs_compiled += num_programs_compiled;
    }
    Ok(step)
}
