//! All ranks of a model as one: every command goes to every rank in the same order, rank 0 speaks for all.
//!
//! Doors: [`ShardGroup::send`], which does not wait for an answer, so that the next step is under way while the last one runs,
//! and [`ShardGroup::next_step`]. Every wait has a deadline (`deadline.rs`). After an error the conversation is over; nothing is
//! tried again.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::future::{select_all, try_join_all};
use proto::{StepDone, StepReply, command, reply};
use tokio::time::Instant;

use super::connection::Connection;
use super::deadline::StepDeadlines;
use super::error::unexpected;
use super::{ShardClientError, deadline};

/// The shards of one model.
#[derive(Debug)]
pub(crate) struct ShardGroup {
    /// By rank, at least one.
    connections: Vec<Connection>,
    sequence_number: u64,
    /// Commands that not every rank has answered, oldest first.
    pending: VecDeque<Pending>,
    /// When the oldest of them became the oldest.
    waits_since: Instant,
    pub(super) deadlines: StepDeadlines,
    pub(super) device_assignment: Vec<i64>,
}

/// A command on its way.
#[derive(Debug, Clone, Copy)]
struct Pending {
    number: u64,
    name: &'static str,
    deadline: Duration,
}

impl ShardGroup {
    pub(super) fn new(connections: Vec<Connection>) -> Self {
        Self {
            connections,
            sequence_number: 0,
            pending: VecDeque::new(),
            waits_since: Instant::now(),
            deadlines: StepDeadlines::default(),
            device_assignment: Vec::new(),
        }
    }

    /// Sends the commands of a step, which reads `num_tokens` tokens, to every rank. Not to be abandoned.
    ///
    /// # Errors
    /// When a rank does not take them in time.
    pub(crate) async fn send(
        &mut self,
        commands: Vec<command::Kind>,
        num_tokens: usize,
    ) -> Result<(), ShardClientError> {
        for kind in commands {
            let name = if matches!(kind, command::Kind::Release(_)) { RELEASE } else { STEP };
            self.send_one(kind, name, self.deadlines.step(num_tokens)).await?;
        }
        Ok(())
    }

    /// Waits for the oldest step that was sent. Safe to abandon and to begin again.
    ///
    /// # Errors
    /// When a rank does not answer in time, fails, or did something else than rank 0.
    pub(crate) async fn next_step(&mut self) -> Result<StepReply, ShardClientError> {
        loop {
            let (name, mut answers) = self.answers().await?;
            if name == RELEASE {
                check_done(name, &answers)?;
                continue;
            }
            if answers.is_empty() {
                return Err(ShardClientError::Closed { rank: 0 });
            }
            return match answers.remove(0) {
                (_, reply::Kind::Step(step)) => agree(step, &answers),
                (rank, other) => Err(unexpected(rank, name, &other)),
            };
        }
    }

    /// Waits until a rank breaks the conversation although no step is under way. Safe to abandon.
    pub(crate) async fn failure(&mut self) -> ShardClientError {
        while !self.pending.is_empty() {
            let answered = self.answers().await;
            if let Err(error) = answered.and_then(|(name, answers)| check_done(name, &answers)) {
                return error;
            }
        }
        let watches = self.connections.iter_mut().map(|connection| {
            Box::pin(async {
                let rank = connection.rank;
                match connection.receive(0).await {
                    Ok(kind) => unexpected(rank, "nothing", &kind),
                    Err(error) => error,
                }
            })
        });
        select_all(watches).await.0
    }

    /// Tells every rank to end.
    ///
    /// # Errors
    /// When a rank does not answer that it does.
    pub(crate) async fn leave(mut self) -> Result<(), ShardClientError> {
        while !self.pending.is_empty() {
            self.answers().await?;
        }
        let answers = self.call(command::Kind::Leave(proto::Leave {}), "leave", deadline::LEAVE).await?;
        check_done("leave", &answers)
    }

    /// Sends a command and waits for every rank's answer to it. Nothing may be under way.
    pub(super) async fn call(
        &mut self,
        kind: command::Kind,
        name: &'static str,
        deadline: Duration,
    ) -> Result<Vec<(u32, reply::Kind)>, ShardClientError> {
        self.send_one(kind, name, deadline).await?;
        Ok(self.answers().await?.1)
    }

    async fn send_one(
        &mut self,
        kind: command::Kind,
        name: &'static str,
        deadline: Duration,
    ) -> Result<(), ShardClientError> {
        self.sequence_number += 1;
        let number = self.sequence_number;
        if self.pending.is_empty() {
            self.waits_since = Instant::now();
        }
        self.pending.push_back(Pending { number, name, deadline });
        let sends = self.connections.iter_mut().map(|connection| connection.send(number, kind.clone()));
        match tokio::time::timeout(deadline, try_join_all(sends)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(self.cause(error).await),
            Err(_) => Err(self.cause(ShardClientError::timeout(name, deadline)).await),
        }
    }

    /// Every rank's answer to the oldest command, with that command's name. Safe to abandon and to begin again.
    async fn answers(&mut self) -> Result<(&'static str, Vec<(u32, reply::Kind)>), ShardClientError> {
        let Some(&Pending { number, name, deadline }) = self.pending.front() else { std::future::pending().await };
        let since = self.waits_since;
        let waits = self.connections.iter_mut().map(|connection| connection.wait_for_answer(number, since, deadline));
        match try_join_all(waits).await {
            Ok(_) => {}
            Err(ShardClientError::Timeout { after, .. }) => {
                return Err(self.cause(ShardClientError::timeout(name, after)).await);
            }
            Err(error) => return Err(self.cause(error).await),
        }
        self.pending.pop_front();
        self.waits_since = Instant::now();
        let answers = self.connections.iter_mut().filter_map(|connection| {
            let answer = connection.take_answer()?;
            Some((connection.rank, answer))
        });
        Ok((name, answers.collect()))
    }

    /// A rank that hears nothing from another one says so, and that one may be about to break off: the cause of a symptom, if
    /// it shows soon.
    async fn cause(&mut self, error: ShardClientError) -> ShardClientError {
        if !error.is_symptom() {
            return error;
        }
        let silent = self.connections.iter().filter(|connection| !connection.has_answered());
        let silent = silent.map(|connection| connection.rank.to_string()).collect::<Vec<_>>().join(" and ");
        let complains = if let ShardClientError::Shard { rank, .. } = &error { Some(*rank) } else { None };
        let watches = self.connections.iter_mut().map(|connection| {
            Box::pin(async move {
                // Who complains ends too, and is not to blame.
                if Some(connection.rank) != complains {
                    let error = connection.broken().await;
                    if !error.is_symptom() {
                        return error;
                    }
                }
                std::future::pending().await
            })
        });
        match tokio::time::timeout(deadline::CAUSE, select_all(watches)).await {
            Ok((cause, ..)) => cause,
            Err(_) => match error {
                ShardClientError::Timeout { command, after, .. } => {
                    ShardClientError::Timeout { ranks: silent, command, after }
                }
                other => other,
            },
        }
    }
}

const RELEASE: &str = "release";
const STEP: &str = "a step";

fn check_done(name: &'static str, answers: &[(u32, reply::Kind)]) -> Result<(), ShardClientError> {
    match answers.iter().find(|(_, kind)| !matches!(kind, reply::Kind::Done(_))) {
        Some((rank, other)) => Err(unexpected(*rank, name, other)),
        None => Ok(()),
    }
}

/// The step of rank 0, if all others did the same.
fn agree(mut step: StepReply, others: &[(u32, reply::Kind)]) -> Result<StepReply, ShardClientError> {
    for (rank, kind) in others {
        let rank = *rank;
        let reply::Kind::StepDone(StepDone { forward_ns: _, num_programs_compiled, fingerprint }) = kind else {
            return Err(unexpected(rank, STEP, kind));
        };
        if *fingerprint != step.fingerprint {
            return Err(ShardClientError::Fingerprint { rank, expected: step.fingerprint, got: *fingerprint });
        }
        step.num_programs_compiled += num_programs_compiled;
    }
    Ok(step)
}
