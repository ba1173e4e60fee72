//! All ranks of a model as one: every command goes to every rank in the same order, rank 0 speaks for all.
//!
//! Doors: [`ShardGroup::connect`], then a method per command. Every wait has a deadline, named at the top. After an
//! error the conversation is over; nothing is tried again.

use std::convert::Infallible;
use std::time::Duration;

use futures_util::future::try_join_all;
use proto::{HelloReply, ModelInfo, PROTOCOL_VERSION, StepReply, Warmup, WarmupReply, command, reply};
use tokio::time::error::Elapsed;

use super::ShardClientError;
use super::connection::Connection;

/// A shard listens before it loads, so it is there soon or never.
const CONNECT_DEADLINE: Duration = Duration::from_secs(60);
/// A shard that loads says so many times a second.
const HELLO_DEADLINE: Duration = Duration::from_secs(60);
/// One program may take a device's compiler this long.
const WARMUP_DEADLINE: Duration = Duration::from_secs(1800);
/// A step takes milliseconds to seconds; a shard that needs longer hangs.
const STEP_DEADLINE: Duration = Duration::from_secs(60);
/// Freeing a device.
const LEAVE_DEADLINE: Duration = Duration::from_secs(10);

/// The shards of one model.
#[derive(Debug)]
pub(crate) struct ShardGroup {
    /// By rank, at least one.
    connections: Vec<Connection>,
    sequence_number: u64,
}

impl ShardGroup {
    /// Connects to every rank and waits until all have loaded the same model.
    ///
    /// # Errors
    /// When one is missing, does not load, or does not belong to the others.
    pub(crate) async fn connect(shard_uds_path: &str, world_size: u32) -> Result<Self, ShardClientError> {
        tracing::info!("connecting to {world_size} shard(s) at {shard_uds_path}-<rank>");
        let connections = (0..world_size).map(|rank| Connection::connect(shard_uds_path, rank, CONNECT_DEADLINE));
        let mut group = Self { connections: try_join_all(connections).await?, sequence_number: 0 };
        let hello = command::Kind::Hello(proto::Hello { protocol_version: PROTOCOL_VERSION });
        let replies = group.exchange(vec![hello], "hello", HELLO_DEADLINE).await?;
        let replies = replies.into_iter().map(|(rank, kind)| match kind {
            reply::Kind::Hello(hello) => Ok((rank, hello)),
            other => Err(unexpected(rank, "hello", &other)),
        });
        let replies = replies.collect::<Result<Vec<_>, _>>()?;
        check_belong_together(&replies, world_size)?;
        Ok(group)
    }

    /// The facts of the loaded model.
    ///
    /// # Errors
    /// When a rank does not answer.
    pub(crate) async fn info(&mut self) -> Result<ModelInfo, ShardClientError> {
        match self.call_first(command::Kind::Info(proto::Info {}), "info", HELLO_DEADLINE).await? {
            (_, reply::Kind::Info(info)) => Ok(info),
            (rank, other) => Err(unexpected(rank, "info", &other)),
        }
    }

    /// Prepares every rank for these limits. The answer is the least that all can do.
    ///
    /// # Errors
    /// When a rank cannot.
    pub(crate) async fn warmup(&mut self, limits: Warmup) -> Result<WarmupReply, ShardClientError> {
        let replies = self.exchange(vec![command::Kind::Warmup(limits)], "warm-up", WARMUP_DEADLINE).await?;
        let mut least: Option<WarmupReply> = None;
        for (rank, kind) in replies {
            let reply::Kind::Warmup(warmup) = kind else {
                return Err(unexpected(rank, "warm-up", &kind));
            };
            least = Some(least.map_or(warmup, |least| WarmupReply {
                num_slots: least.num_slots.min(warmup.num_slots),
                num_blocks: least.num_blocks.min(warmup.num_blocks),
                max_total_tokens: least.max_total_tokens.min(warmup.max_total_tokens),
                max_batch_prefill_tokens: least.max_batch_prefill_tokens.min(warmup.max_batch_prefill_tokens),
                kv_cache_bytes: least.kv_cache_bytes + warmup.kv_cache_bytes,
                num_programs_compiled: least.num_programs_compiled + warmup.num_programs_compiled,
                // One rank reports tokens, and all are of one kind.
                max_top_n_tokens: least.max_top_n_tokens,
            }));
        }
        least.ok_or(ShardClientError::Closed { rank: 0 })
    }

    /// Ends rows, and computes nothing.
    ///
    /// # Errors
    /// When a rank does not answer that it did.
    pub(crate) async fn release(&mut self, commands: Vec<command::Kind>) -> Result<(), ShardClientError> {
        self.exchange(commands, "release", STEP_DEADLINE).await.map(drop)
    }

    /// Computes one step: the last of these commands. Those before it are under way at the same time.
    ///
    /// # Errors
    /// When a rank does not answer in time, or fails.
    pub(crate) async fn step(&mut self, commands: Vec<command::Kind>) -> Result<StepReply, ShardClientError> {
        let replies = self.exchange(commands, "a step", STEP_DEADLINE).await?;
        match replies.into_iter().next().ok_or(ShardClientError::Closed { rank: 0 })? {
            (_, reply::Kind::Step(step)) => Ok(step),
            (rank, other) => Err(unexpected(rank, "a step", &other)),
        }
    }

    /// Tells every rank to end.
    ///
    /// # Errors
    /// When a rank does not answer that it does.
    pub(crate) async fn leave(mut self) -> Result<(), ShardClientError> {
        match self.call_first(command::Kind::Leave(proto::Leave {}), "leave", LEAVE_DEADLINE).await? {
            (_, reply::Kind::Done(_)) => Ok(()),
            (rank, other) => Err(unexpected(rank, "leave", &other)),
        }
    }

    /// Waits until a rank says something although nothing was asked; most likely it has closed the connection. Safe to
    /// abandon.
    pub(crate) async fn failure(&mut self) -> ShardClientError {
        let watches = self.connections.iter_mut().map(async |connection| -> Result<Infallible, ShardClientError> {
            let kind = connection.receive(0).await?;
            Err(unexpected(connection.rank, "nothing", &kind))
        });
        match try_join_all(watches).await {
            Err(error) => error,
            Ok(_) => ShardClientError::Closed { rank: 0 },
        }
    }

    /// Calls every rank, and takes rank 0's answer.
    async fn call_first(
        &mut self,
        kind: command::Kind,
        name: &'static str,
        deadline: Duration,
    ) -> Result<(u32, reply::Kind), ShardClientError> {
        let replies = self.exchange(vec![kind], name, deadline).await?;
        replies.into_iter().next().ok_or(ShardClientError::Closed { rank: 0 })
    }

    /// Sends commands to every rank and waits for every answer: the last one's, by rank. Those before it must be done.
    /// Each sign of progress renews the deadline.
    async fn exchange(
        &mut self,
        commands: Vec<command::Kind>,
        name: &'static str,
        deadline: Duration,
    ) -> Result<Vec<(u32, reply::Kind)>, ShardClientError> {
        let first_number = self.sequence_number + 1;
        self.sequence_number += commands.len() as u64;
        let exchanges = self.connections.iter_mut().map(async |connection| {
            let rank = connection.rank;
            let timeout = |_| ShardClientError::Timeout { rank, command: name, after: deadline };
            tokio::time::timeout(deadline, connection.send(first_number, &commands)).await.map_err(timeout)??;
            let mut answer = reply::Kind::Done(proto::Done {});
            for number in first_number..=self.sequence_number {
                if !matches!(answer, reply::Kind::Done(_)) {
                    return Err(unexpected(rank, name, &answer));
                }
                answer = answer_of(connection, number, deadline).await.map_err(timeout)??;
            }
            Ok((rank, answer))
        });
        try_join_all(exchanges).await
    }
}

/// The reply of this number, with what it reports before.
async fn answer_of(
    connection: &mut Connection,
    number: u64,
    deadline: Duration,
) -> Result<Result<reply::Kind, ShardClientError>, Elapsed> {
    loop {
        match tokio::time::timeout(deadline, connection.receive(number)).await? {
            // A sign of life; the shard's own log says what is done.
            Ok(reply::Kind::Progress(_)) => {}
            answer => return Ok(answer),
        }
    }
}

fn check_belong_together(replies: &[(u32, HelloReply)], world_size: u32) -> Result<(), ShardClientError> {
    let first_hash = replies.first().map(|(_, hello)| hello.config_hash);
    for &(rank, hello) in replies {
        if hello.protocol_version != PROTOCOL_VERSION {
            let (expected, got) = (PROTOCOL_VERSION, hello.protocol_version);
            return Err(ShardClientError::Version { rank, expected, got });
        }
        if (hello.rank, hello.world_size) != (rank, world_size) {
            let (got_rank, got_world_size) = (hello.rank, hello.world_size);
            return Err(ShardClientError::Rank { rank, world_size, got_rank, got_world_size });
        }
        if Some(hello.config_hash) != first_hash {
            return Err(ShardClientError::ConfigHash { rank });
        }
    }
    Ok(())
}

fn unexpected(rank: u32, command: &'static str, got: &reply::Kind) -> ShardClientError {
    let got = match got {
        reply::Kind::Hello(_) => "a greeting",
        reply::Kind::Info(_) => "facts of the model",
        reply::Kind::Progress(_) => "progress",
        reply::Kind::Warmup(_) => "the result of a warm-up",
        reply::Kind::Step(_) => "the result of a step",
        reply::Kind::Done(_) => "done",
        reply::Kind::Error(_) => "an error",
    };
    ShardClientError::Unexpected { rank, command, got }
}
