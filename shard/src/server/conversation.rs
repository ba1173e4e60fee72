//! The commands of a client, and the replies to them.
//!
//! Entry points: [`refusal`] for the first command, [`converse`] for all later ones. Commands are carried out one at a
//! time, in the order in which they arrive, and their numbers must be consecutive. A step may be launched before
//! the one before it ends, and replies are sent in the order of the commands (`outstanding`). After an error reply the
//! conversation goes on, unless the error may have left rows in an unknown state.

use std::os::fd::AsFd as _;
use std::sync::mpsc;

use build_id::BuildId;
use liveness::BEAT_INTERVAL;
use proto::shard_error::Kind;
use proto::{
    Command, Done, Hello, PROTOCOL_VERSION, Progress, ShardError, StepDone, StepReply, Warmup, WarmupReply, command,
    reply,
};

use super::beats::Beats;
use super::connection::{Connection, ConnectionError};
use super::events::Throttle;
use super::outstanding::{Outcome, Outstanding};
use super::wakeup::Wakeup;
use super::{Identity, Interruption, ServerError};
use crate::engine::{Engine, EngineError};

/// The maximum number of progress reports that wait to be sent. If the queue is full, a report is dropped.
const REPORTS: usize = 16;

/// The reason why a command failed.
pub(super) enum CommandError {
    Protocol(String),
    Engine(EngineError),
}

/// Carries out commands and replies to them until `Leave`. `last_number` is the number of the first command, which was
/// Hello.
pub(super) fn converse(
    connection: &mut Connection,
    engine: &mut Engine,
    identity: Identity,
    mut last_number: u64,
) -> Result<(), Interruption> {
    let wakeup = Wakeup::new().map_err(ConnectionError::from)?;
    let _beats = Beats::start(connection.sender(), engine.pulse()).map_err(ConnectionError::from)?;
    let waker = wakeup.waker();
    let mut outstanding = Outstanding::new(identity);
    loop {
        while let Some((sequence_number, result)) = outstanding.pop(&waker) {
            send(connection, sequence_number, result)?;
        }
        // A step that the socket already holds is launched before the one under way ends, if fewer than the maximum
        // are under way.
        let may_read = !outstanding.is_full();
        if !outstanding.is_empty() {
            let is_readable = wakeup.wait(may_read.then(|| connection.as_fd())).map_err(ConnectionError::from)?;
            if !is_readable {
                continue;
            }
        }
        let Command { sequence_number, kind } = connection.read()?;
        let expected = last_number + 1;
        last_number = sequence_number;
        let outcome = match kind {
            _ if sequence_number != expected => {
                let message = format!("the command has number {sequence_number}, but {expected} is expected");
                Outcome::Known(Err(CommandError::Protocol(message)))
            }
            Some(command::Kind::Leave(_)) => {
                outstanding.push(sequence_number, Outcome::Known(Ok(reply::Kind::Done(Done {}))));
                return finish(connection, &mut outstanding, &wakeup);
            }
            Some(command::Kind::Warmup(limits)) => {
                finish(connection, &mut outstanding, &wakeup)?;
                let warmup = warm_up(connection, engine, &limits, sequence_number);
                Outcome::Known(warmup.map(reply::Kind::Warmup).map_err(CommandError::Engine))
            }
            kind => carry_out(engine, kind),
        };
        outstanding.push(sequence_number, outcome);
    }
}

/// Carries out a command that sends no reports of progress.
fn carry_out(engine: &mut Engine, kind: Option<command::Kind>) -> Outcome {
    let result = match kind {
        Some(command::Kind::Step(step)) => match engine.launch(&step) {
            Ok(launched) => return Outcome::Step(Box::new(launched)),
            Err(error) => Err(CommandError::Engine(error)),
        },
        Some(command::Kind::Release(release)) => {
            engine.release(&release).map(|()| reply::Kind::Done(Done {})).map_err(CommandError::Engine)
        }
        Some(command::Kind::Info(_)) => Ok(reply::Kind::Info(Box::new(engine.info().clone()))),
        Some(command::Kind::Fit(fit)) => {
            engine.fit(&fit.wishes.unwrap_or_default()).map(reply::Kind::Fit).map_err(CommandError::Engine)
        }
        Some(command::Kind::Hello(_)) => Err(CommandError::Protocol("hello has already been sent".to_owned())),
        Some(command::Kind::Warmup(_) | command::Kind::Leave(_)) | None => {
            Err(CommandError::Protocol("the kind of the command is unknown".to_owned()))
        }
    };
    Outcome::Known(result)
}

/// Waits for the steps under way, and sends all replies.
fn finish(connection: &mut Connection, outstanding: &mut Outstanding, wakeup: &Wakeup) -> Result<(), Interruption> {
    let waker = wakeup.waker();
    while !outstanding.is_empty() {
        match outstanding.pop(&waker) {
            Some((sequence_number, result)) => send(connection, sequence_number, result)?,
            None => _ = wakeup.wait(None).map_err(ConnectionError::from)?,
        }
    }
    Ok(())
}

/// Sends the reply to a command.
fn send(
    connection: &mut Connection,
    sequence_number: u64,
    result: Result<reply::Kind, CommandError>,
) -> Result<(), Interruption> {
    match result {
        Ok(kind) => Ok(connection.reply(sequence_number, kind)?),
        Err(error) => refuse(connection, sequence_number, error),
    }
}

/// Makes the reply to a step. Shard 0 replies with the tokens. The replies of other shards have no tokens: the
/// step's fingerprint shows whether they have computed the same step.
pub(super) fn step_reply(
    result: Result<StepReply, EngineError>,
    Identity { shard, .. }: Identity,
) -> Result<reply::Kind, CommandError> {
    let reply = result.map_err(CommandError::Engine)?;
    if shard == 0 {
        return Ok(reply::Kind::Step(reply));
    }
    let StepReply { forward_ns, num_programs_compiled, fingerprint, idle_ns: _, rows: _ } = reply;
    Ok(reply::Kind::StepDone(StepDone { forward_ns, num_programs_compiled, fingerprint }))
}

/// Warms up on another thread, so that the client gets reports even while the compilation of one program takes minutes:
/// the last one is repeated, because the client counts the time without progress.
fn warm_up(
    connection: &mut Connection,
    engine: &mut Engine,
    limits: &Warmup,
    sequence_number: u64,
) -> Result<WarmupReply, EngineError> {
    let (reports_tx, reports_rx) = mpsc::sync_channel(REPORTS);
    std::thread::scope(|scope| {
        let work = scope.spawn(move || {
            let mut throttle = Throttle::default();
            engine.warmup(limits, &mut |phase, done, total| {
                if throttle.is_due(done == total) {
                    telemetry::progress(phase, done, total);
                    let _ = reports_tx.try_send(Progress { phase: phase.to_owned(), done, total });
                }
            })
        });
        let mut progress = Progress { phase: "warm up".to_owned(), done: 0, total: 1 };
        loop {
            match reports_rx.recv_timeout(BEAT_INTERVAL) {
                Ok(news) => progress = news,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
            // An error is ignored here: sending the final reply then fails too, and that error is handled.
            let _ = connection.reply(sequence_number, reply::Kind::Progress(progress.clone()));
        }
        work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Replies with an error. Returns `Err` if the error may have left rows in an unknown state, or the client is gone.
fn refuse(connection: &mut Connection, sequence_number: u64, error: CommandError) -> Result<(), Interruption> {
    let shard_error = match &error {
        CommandError::Protocol(message) => ShardError::new(Kind::Protocol, message),
        CommandError::Engine(error) => ShardError::from(error),
    };
    // The sender of the command decides how to report the error.
    tracing::debug!(error = %shard_error, sequence_number, "a command failed");
    connection.reply(sequence_number, reply::Kind::Error(shard_error))?;
    match error {
        CommandError::Engine(error) if error.leaves_rows_unknown() => {
            Err(Interruption::Shard(ServerError::Device(Box::new(error))))
        }
        CommandError::Engine(_) | CommandError::Protocol(_) => Ok(()),
    }
}

/// Returns the error for the client if its first command is not a Hello with the protocol version and the build of this
/// shard, which is `own`.
pub(super) fn refusal(command: &Command, own: &BuildId) -> Option<ShardError> {
    match &command.kind {
        Some(command::Kind::Hello(Hello { protocol_version, build: _ })) if *protocol_version != PROTOCOL_VERSION => {
            Some(ShardError::new(
                Kind::Version,
                format!("protocol version is {protocol_version}, but this shard speaks {PROTOCOL_VERSION}"),
            ))
        }
        Some(command::Kind::Hello(Hello { build: Some(build), .. })) if build != own.as_str() => Some(ShardError::new(
            Kind::Version,
            format!(
                "the client is build {build}, but this shard is build {own}; if the executable was replaced, start the \
                 server again"
            ),
        )),
        Some(command::Kind::Hello(_)) => None,
        Some(
            command::Kind::Info(_)
            | command::Kind::Fit(_)
            | command::Kind::Warmup(_)
            | command::Kind::Step(_)
            | command::Kind::Release(_)
            | command::Kind::Leave(_),
        )
        | None => Some(ShardError::new(Kind::Protocol, "the first command must be hello")),
    }
}
