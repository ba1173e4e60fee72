//! What a client may say, and what it is answered.
//!
//! Doors: [`refusal`] for the first command, [`converse`] for all that follow. Commands are carried out one at a time, in the
//! order in which they come; an error is an answer like any other, unless it leaves rows in no known state.

use proto::shard_error::Kind;
use proto::{Command, Done, Hello, PROTOCOL_VERSION, Progress, ShardError, command, reply};

use super::connection::Connection;
use super::events::Throttle;
use super::{Interruption, ServerError};
use crate::engine::{Engine, EngineError};

/// Why a command is not carried out.
enum CommandError {
    Protocol(&'static str),
    Engine(EngineError),
}

/// Answers commands until `Leave`.
pub(super) fn converse(connection: &mut Connection, engine: &mut Engine) -> Result<(), Interruption> {
    loop {
        let Command { sequence_number, kind } = connection.read()?;
        let result = match kind {
            Some(command::Kind::Leave(_)) => {
                connection.reply(sequence_number, reply::Kind::Done(Done {}))?;
                return Ok(());
            }
            Some(command::Kind::Hello(_)) => Err(CommandError::Protocol("hello was said already")),
            None => Err(CommandError::Protocol("command of an unknown kind")),
            Some(command::Kind::Info(_)) => Ok(reply::Kind::Info(engine.info().clone())),
            Some(command::Kind::Warmup(warmup)) => {
                let mut throttle = Throttle::default();
                let mut progress = |phase: &str, done: u64, total: u64| {
                    if throttle.lets_pass(done == total) {
                        telemetry::progress(phase, done, total);
                        let progress = Progress { phase: phase.to_owned(), done, total };
                        // A client that is gone is noticed when it gets its answer.
                        let _ = connection.reply(sequence_number, reply::Kind::Progress(progress));
                    }
                };
                engine.warmup(&warmup, &mut progress).map(reply::Kind::Warmup).map_err(CommandError::Engine)
            }
            Some(command::Kind::Prefill(prefill)) => {
                engine.prefill(&prefill).map(reply::Kind::Step).map_err(CommandError::Engine)
            }
            Some(command::Kind::Decode(decode)) => {
                engine.decode(&decode).map(reply::Kind::Step).map_err(CommandError::Engine)
            }
            Some(command::Kind::Release(release)) => {
                engine.release(&release).map(|()| reply::Kind::Done(Done {})).map_err(CommandError::Engine)
            }
        };
        match result {
            Ok(kind) => connection.reply(sequence_number, kind)?,
            Err(error) => refuse(connection, sequence_number, error)?,
        }
    }
}

/// Answers with an error. Goes on unless rows are in no known state.
fn refuse(connection: &mut Connection, sequence_number: u64, error: CommandError) -> Result<(), Interruption> {
    let shard_error = match &error {
        CommandError::Protocol(message) => ShardError::new(Kind::Protocol, *message),
        CommandError::Engine(error) => ShardError::from(error),
    };
    tracing::warn!(error = %shard_error, sequence_number, "command failed");
    connection.reply(sequence_number, reply::Kind::Error(shard_error))?;
    match error {
        CommandError::Engine(error) if error.leaves_rows_unknown() => {
            Err(Interruption::Shard(ServerError::Device(Box::new(error))))
        }
        CommandError::Engine(_) | CommandError::Protocol(_) => Ok(()),
    }
}

/// What is wrong with the first command, if anything.
pub(super) fn refusal(command: &Command) -> Option<ShardError> {
    match &command.kind {
        Some(command::Kind::Hello(Hello { protocol_version })) if *protocol_version == PROTOCOL_VERSION => None,
        Some(command::Kind::Hello(Hello { protocol_version })) => Some(ShardError::new(
            Kind::Version,
            format!("protocol version is {protocol_version}, this shard speaks {PROTOCOL_VERSION}"),
        )),
        Some(
            command::Kind::Info(_)
            | command::Kind::Warmup(_)
            | command::Kind::Prefill(_)
            | command::Kind::Decode(_)
            | command::Kind::Release(_)
            | command::Kind::Leave(_),
        )
        | None => Some(ShardError::new(Kind::Protocol, "the first command must be hello")),
    }
}
