//! Tests of the conversation with a device that finishes each step only when the test says so.

use std::future::poll_fn;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use backend::{Backend, BackendError, Batch, DevicePlace, MemoryPlan, PendingStep, Progress, Pulse, StateLayout};
use devices::Device;
use endpoint::Stream;
use model::graph::StateBytes;
use proto::{
    Command, HEADER_BYTES, Leave, Opening, Release, Reply, Row, Sample, SamplingParams, Step, Warmup, command, frame,
    reply,
};
use test_support::join;

use super::connection::Connection;
use super::conversation::converse;
use super::{Identity, Interruption, ServerError};
use crate::engine::Engine;
use crate::engine::tests::{FIXTURES, args, fixture};

/// Longer than any wait of a test that passes.
const DEADLINE: Duration = Duration::from_secs(30);
const IDENTITY: Identity = Identity { shard: 0, num_shards: 1 };

/// The mock, whose steps end when the test releases them.
struct HeldBackend {
    mock: Box<dyn Backend>,
    gate: Arc<Gate>,
}

/// The steps that were launched and released.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    launched: Condvar,
}

#[derive(Default)]
struct GateState {
    num_launched: usize,
    num_released: usize,
    /// The index of a step that fails on the device.
    failing: Option<usize>,
    wakers: Vec<Waker>,
}

impl Gate {
    /// Waits until `number` steps were launched.
    fn wait_for_launches(&self, number: usize) {
        let state = self.state.lock().unwrap();
        let (state, timeout) =
            self.launched.wait_timeout_while(state, DEADLINE, |state| state.num_launched < number).unwrap();
        assert!(!timeout.timed_out(), "{} of {number} steps were launched", state.num_launched);
    }

    fn num_launched(&self) -> usize {
        self.state.lock().unwrap().num_launched
    }

    /// Lets the device finish the next step.
    fn release(&self) {
        let mut state = self.state.lock().unwrap();
        state.num_released += 1;
        state.wakers.drain(..).for_each(Waker::wake);
    }
}

impl Backend for HeldBackend {
    fn state_bytes(&self) -> StateBytes {
        self.mock.state_bytes()
    }

    fn memory(&self) -> Result<MemoryPlan, BackendError> {
        self.mock.memory()
    }

    fn pulse(&self) -> Pulse {
        self.mock.pulse()
    }

    fn devices(&self) -> Vec<DevicePlace> {
        self.mock.devices()
    }

    fn allocate(
        &mut self,
        layout: StateLayout,
        assignment: &[i64],
        progress: &mut Progress<'_>,
    ) -> Result<(), BackendError> {
        self.mock.allocate(layout, assignment, progress)
    }

    fn launch(&mut self, batch: &Batch) -> Result<PendingStep, BackendError> {
        let results = self.mock.launch(batch)?;
        let gate = Arc::clone(&self.gate);
        let index = {
            let mut state = gate.state.lock().unwrap();
            state.num_launched += 1;
            gate.launched.notify_all();
            state.num_launched - 1
        };
        Ok(Box::pin(async move {
            let is_failing = poll_fn(|context| {
                let mut state = gate.state.lock().unwrap();
                if state.num_released > index {
                    return Poll::Ready(state.failing == Some(index));
                }
                state.wakers.push(context.waker().clone());
                Poll::Pending
            });
            if is_failing.await { Err(BackendError::NotAllocated) } else { results.await }
        }))
    }
}

/// A client of a conversation, and the device behind it.
struct Client {
    stream: UnixStream,
    sequence_number: u64,
    gate: Arc<Gate>,
    conversation: std::thread::JoinHandle<Result<(), Interruption>>,
}

impl Client {
    /// Starts a conversation over a model whose device holds every step after the warm-up.
    fn start() -> Self {
        let (stream, other) = UnixStream::pair().unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let gate = Arc::new(Gate::default());
        let held = Arc::clone(&gate);
        let args = args(fixture(FIXTURES[0]).to_str().unwrap(), Device::MOCK);
        let conversation = std::thread::spawn(move || {
            let mut engine: Engine = crate::engine::load(&args, &mut |_, _, _| ()).unwrap();
            engine.warmup(&Warmup::default(), &mut |_, _, _| ()).unwrap();
            let mut engine = engine.with_backend(|mock| Box::new(HeldBackend { mock, gate: held }));
            converse(&mut Connection::new(Stream::Unix(other)).unwrap(), &mut engine, IDENTITY, 1)
        });
        Self { stream, sequence_number: 1, gate, conversation }
    }

    fn send(&mut self, kind: command::Kind) {
        self.sequence_number += 1;
        let mut buffer = Vec::new();
        frame::encode(&Command { sequence_number: self.sequence_number, kind: Some(kind) }, &mut buffer).unwrap();
        std::io::Write::write_all(&mut self.stream, &buffer).unwrap();
    }

    /// Sends a step that reads one token of the row in slot 0, or opens the row if `position` is 0.
    fn step(&mut self, position: u32) {
        let opening = Opening { sampling: Some(SamplingParams::greedy()), ..Opening::default() };
        let row = Row {
            slot: 0,
            position,
            token_ids: if position == 0 { vec![5] } else { Vec::new() },
            new_blocks: if position == 0 { vec![0] } else { Vec::new() },
            opening: (position == 0).then(|| Box::new(opening)),
            token: Some(Sample::default()),
            ..Row::default()
        };
        self.send(command::Kind::Step(Step { rows: vec![row] }));
    }

    /// Receives the next reply to a command.
    fn receive(&mut self) -> Reply {
        loop {
            match self.receive_any() {
                Reply { kind: Some(reply::Kind::Beat(_)), .. } => {}
                reply => return reply,
            }
        }
    }

    fn receive_any(&mut self) -> Reply {
        let mut header = [0; HEADER_BYTES];
        std::io::Read::read_exact(&mut self.stream, &mut header).unwrap();
        let mut body = vec![0; frame::body_len(header).unwrap()];
        std::io::Read::read_exact(&mut self.stream, &mut body).unwrap();
        frame::decode(&body).unwrap()
    }

    /// Returns the progress of the next beat.
    fn receive_beat(&mut self) -> u64 {
        loop {
            if let Reply { sequence_number: 0, kind: Some(reply::Kind::Beat(beat)) } = self.receive_any() {
                return beat.progress;
            }
        }
    }

    /// Receives the reply to the command `sequence_number`, which is a step.
    fn receive_step(&mut self, sequence_number: u64) {
        let reply = self.receive();
        assert_eq!(reply.sequence_number, sequence_number);
        assert!(matches!(reply.kind, Some(reply::Kind::Step(_))), "{reply:?}");
    }

    /// Leaves after the reply to the command `sequence_number`, which is a step.
    fn leave_after(mut self, sequence_number: u64) {
        self.receive_step(sequence_number);
        self.leave();
    }

    fn leave(mut self) {
        self.send(command::Kind::Leave(Leave {}));
        assert!(matches!(self.receive().kind, Some(reply::Kind::Done(_))));
        assert!(join(self.conversation, "the end of the conversation").is_ok());
    }
}

#[test]
fn the_next_step_is_launched_before_the_last_one_ends() {
    let mut client = Client::start();
    client.step(0);
    client.gate.wait_for_launches(1);
    client.step(1);
    client.gate.wait_for_launches(2);
    // Two steps are under way. The third waits in the socket until the first has ended.
    client.step(2);
    client.gate.release();
    client.receive_step(2);
    client.gate.wait_for_launches(3);
    client.gate.release();
    client.receive_step(3);
    client.gate.release();
    client.receive_step(4);
    client.leave();
}

#[test]
fn replies_have_the_order_of_their_commands() {
    let mut client = Client::start();
    client.step(0);
    client.send(command::Kind::Release(Release { slots: vec![0] }));
    client.step(0);
    client.gate.wait_for_launches(2);
    client.gate.release();
    client.receive_step(2);
    let reply = client.receive();
    assert!(matches!((reply.sequence_number, &reply.kind), (3, Some(reply::Kind::Done(_)))), "{reply:?}");
    // A client may leave while a step is under way. It gets that reply first.
    client.send(command::Kind::Leave(Leave {}));
    client.gate.release();
    client.receive_step(4);
    assert!(matches!(client.receive().kind, Some(reply::Kind::Done(_))));
    assert!(join(client.conversation, "the end of the conversation").is_ok());
}

#[test]
fn a_wrong_command_does_not_disturb_the_step_under_way() {
    let mut client = Client::start();
    client.step(0);
    client.gate.wait_for_launches(1);
    client.send(command::Kind::Release(Release { slots: vec![3] }));
    client.step(1);
    client.gate.wait_for_launches(2);
    client.gate.release();
    client.receive_step(2);
    let reply = client.receive();
    assert!(matches!((reply.sequence_number, &reply.kind), (3, Some(reply::Kind::Error(_)))), "{reply:?}");
    client.gate.release();
    client.receive_step(4);
    client.leave();
}

#[test]
fn steps_before_the_one_that_fails_are_replied_to() {
    let mut client = Client::start();
    client.gate.state.lock().unwrap().failing = Some(1);
    client.step(0);
    client.step(1);
    client.gate.wait_for_launches(2);
    client.gate.release();
    client.receive_step(2);
    client.gate.release();
    let reply = client.receive();
    assert!(matches!((reply.sequence_number, &reply.kind), (3, Some(reply::Kind::Error(_)))), "{reply:?}");
    let ended = join(client.conversation, "the end of the conversation");
    assert!(matches!(ended, Err(Interruption::Shard(ServerError::Device(_)))));
    assert_eq!(client.gate.num_launched(), 2);
}

#[test]
fn a_client_that_goes_away_ends_the_conversation_while_a_step_is_under_way() {
    let mut client = Client::start();
    client.step(0);
    client.gate.wait_for_launches(1);
    drop(client.stream);
    assert!(matches!(join(client.conversation, "the end of the conversation"), Err(Interruption::Client(_))));
}

#[test]
fn a_shard_beats_while_it_computes_and_while_it_is_idle() {
    let mut client = Client::start();
    // The warm-up made progress, and nothing does while the shard is idle.
    let progress = client.receive_beat();
    assert!(progress > 0);
    assert_eq!(client.receive_beat(), progress);
    client.step(0);
    client.gate.wait_for_launches(1);
    // The mock computes in `launch`, and the device that holds its results does not advance.
    let progress = progress + 1;
    while client.receive_beat() != progress {}
    assert_eq!(client.receive_beat(), progress);
    client.gate.release();
    client.leave_after(2);
}
