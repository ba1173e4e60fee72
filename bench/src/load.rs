//! The times at which requests start. In a closed loop, each of a number of clients waits for its response before it
//! sends its next request. In an open loop, conversations start at random times that do not depend on the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::client::{Client, Completion, Failure};
use crate::workload::{Workload, poisson_gap};

/// The maximum number of records that wait for the loop in [`run`], which only stores them.
const NUM_WAITING_RECORDS: usize = 1024;

/// The number of requests and their pace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) pace: Pace,
    /// The maximum number of requests (not of conversations), if there is a limit.
    pub(crate) num_requests: Option<u64>,
    /// The time during which requests start, if it is limited.
    pub(crate) duration: Option<Duration>,
    /// The number of requests per conversation, at least 1.
    pub(crate) num_turns: u32,
}

/// The rule for when the next request or conversation starts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// Each client sends its next request when it has received the response to its last one.
    Closed { num_clients: u32 },
    /// Conversations start at random times, `per_second` per second on average.
    Open { per_second: f64 },
}

/// The result of a request that has ended.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) result: Result<Completion, Failure>,
    /// The time from the start of the run to the end of the request.
    pub(crate) ended: Duration,
}

/// The results of a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) records: Vec<Record>,
    /// The time from the start of the run until the last request ended, or until the interruption.
    pub(crate) elapsed: Duration,
    /// The number of requests that were running at the interruption.
    pub(crate) num_unfinished: u64,
    pub(crate) was_interrupted: bool,
    /// Open loop: the longest delay between the planned and the actual start of a conversation. A large value means
    /// that the machine of this program is too slow or too busy.
    pub(crate) latest_start: Option<Duration>,
}

/// The state that all tasks of a run share.
#[derive(Debug)]
struct Session {
    load: Load,
    workload: Arc<Workload>,
    client: Arc<Client>,
    started: Instant,
    next_conversation: AtomicU64,
    num_started: AtomicU64,
    latest_start_us: AtomicU64,
}

/// Sends the load and returns the results. When `interrupted` completes, running requests are aborted.
pub(crate) async fn run(
    load: Load,
    workload: Arc<Workload>,
    client: Arc<Client>,
    interrupted: impl Future<Output = ()>,
) -> Run {
    let session = Arc::new(Session {
        load,
        workload,
        client,
        started: Instant::now(),
        next_conversation: AtomicU64::new(0),
        num_started: AtomicU64::new(0),
        latest_start_us: AtomicU64::new(0),
    });
    let (records_tx, mut records_rx) = mpsc::channel(NUM_WAITING_RECORDS);
    let mut driver = Box::pin(drive(Arc::clone(&session), records_tx));
    let mut interrupted = std::pin::pin!(interrupted);
    let mut records = Vec::new();
    let was_interrupted = loop {
        tokio::select! {
            Some(record) = records_rx.recv() => records.push(record),
            () = &mut driver => break false,
            () = &mut interrupted => break true,
        }
    };
    let interrupted_at = session.started.elapsed();
    // Aborts all tasks. The records that the tasks have sent stay in the channel.
    drop(driver);
    records.extend(std::iter::from_fn(|| records_rx.try_recv().ok()));
    let last_end = records.iter().map(|record: &Record| record.ended).max().unwrap_or_default();
    Run {
        elapsed: if was_interrupted { interrupted_at } else { last_end },
        num_unfinished: session.num_started.load(Ordering::Relaxed).saturating_sub(records.len() as u64),
        records,
        was_interrupted,
        latest_start: match load.pace {
            Pace::Open { .. } => Some(Duration::from_micros(session.latest_start_us.load(Ordering::Relaxed))),
            Pace::Closed { .. } => None,
        },
    }
}

/// Starts conversations up to the limits of the load, and waits until they have ended. Dropping the future aborts the
/// conversations.
async fn drive(session: Arc<Session>, records_tx: mpsc::Sender<Record>) {
    let mut tasks = JoinSet::new();
    match session.load.pace {
        Pace::Closed { num_clients } => {
            for _ in 0..num_clients {
                let (session, records_tx) = (Arc::clone(&session), records_tx.clone());
                tasks.spawn(async move {
                    while session.is_open_at(Instant::now())
                        && let Some((idx, num_turns)) = session.take_conversation()
                    {
                        session.converse(idx, num_turns, &records_tx).await;
                    }
                });
            }
        }
        Pace::Open { per_second } => {
            let mut rng = Rng::with_seed(session.workload.seed);
            let mut arrival = session.started + poisson_gap(per_second, &mut rng);
            while session.is_open_at(arrival)
                && let Some((idx, num_turns)) = session.take_conversation()
            {
                sleep_until(arrival).await;
                let (session, records_tx) = (Arc::clone(&session), records_tx.clone());
                tasks.spawn(async move {
                    session.note_start(arrival.elapsed());
                    session.converse(idx, num_turns, &records_tx).await;
                });
                arrival += poisson_gap(per_second, &mut rng);
                while tasks.try_join_next().is_some_and(succeeded) {}
            }
        }
    }
    while tasks.join_next().await.is_some_and(succeeded) {}
}

impl Session {
    /// Returns the index and the number of turns of the next conversation, or `None` if no requests are left. The last
    /// conversation may have fewer turns than the others.
    fn take_conversation(&self) -> Option<(u64, u32)> {
        let idx = self.next_conversation.fetch_add(1, Ordering::Relaxed);
        let num_before = idx * u64::from(self.load.num_turns);
        let num_left = self.load.num_requests.map_or(u64::MAX, |num_requests| num_requests.saturating_sub(num_before));
        let num_turns = u32::try_from(num_left).unwrap_or(u32::MAX).min(self.load.num_turns);
        (num_turns > 0).then_some((idx, num_turns))
    }

    fn is_open_at(&self, time: Instant) -> bool {
        self.load.duration.is_none_or(|duration| time < self.started + duration)
    }

    fn note_start(&self, late: Duration) {
        let late_us = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
        self.latest_start_us.fetch_max(late_us, Ordering::Relaxed);
    }

    /// Sends the requests of a conversation one after the other. A failure ends the conversation, and so does the end
    /// of the time in which requests start.
    async fn converse(&self, idx: u64, num_turns: u32, records_tx: &mpsc::Sender<Record>) {
        let mut conversation = self.workload.conversation(idx, self.load.num_turns);
        for turn in 0..num_turns {
            if turn > 0 && !self.is_open_at(Instant::now()) {
                return;
            }
            let request = conversation.next_turn();
            self.num_started.fetch_add(1, Ordering::Relaxed);
            let result = self.client.send(&request).await;
            let has_failed = result.is_err();
            if let Ok(completion) = &result {
                conversation.push_answer(&completion.text);
            }
            let record = Record { result, ended: self.started.elapsed() };
            if records_tx.send(record).await.is_err() || has_failed {
                return;
            }
        }
    }
}

/// Returns true. If the task has panicked, continues the panic, which ends the run, so that the results cannot be
/// wrong.
fn succeeded(ended: Result<(), JoinError>) -> bool {
    match ended.map_err(JoinError::try_into_panic) {
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Ok(()) | Err(Err(_)) => true,
    }
}
