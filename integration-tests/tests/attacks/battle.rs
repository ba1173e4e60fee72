//! Runs an attack from start to end: ordinary streams before it, the same streams during it, and the checks of the
//! server afterwards.

use std::time::Duration;

use integration_tests::aftermath::{self, Aftermath};
use integration_tests::{Client, End, Processes, Resident, Server, pause};
use test_support::join_scoped;

use crate::attack::Attack;
use crate::attackers;
use crate::streams::{self, Tally};

/// The durations of a test of an attack, and the limits that decide its verdict.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// The time for which the streams run without the attack.
    pub(crate) calm: Duration,
    /// The time for which the attack runs.
    pub(crate) attack: Duration,
    /// The time for which a refused stream is requested again.
    pub(crate) patience: Duration,
    /// The number of bytes that the router may keep after the attack, in addition to the allowed percentage of its
    /// memory before the attack.
    pub(crate) kept: u64,
    /// True if slow answers are violations.
    pub(crate) judges_time: bool,
    /// The niceness of the attackers.
    pub(crate) niceness: i32,
}

/// The measurements of an attack.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) calm: Tally,
    pub(crate) attacked: Tally,
    /// The memory of the processes after the streams without the attack.
    pub(crate) before: Resident,
    /// The peak of the memory of the processes during the attack.
    pub(crate) peak: Resident,
    /// The memory budget that the router logged at its start, in bytes.
    pub(crate) budget: Option<u64>,
    /// The checks of the server after the attack; `None` if a process has exited.
    pub(crate) aftermath: Option<Aftermath>,
}

/// Starts a server of the model, attacks it and checks it.
pub(crate) fn fight(attack: &Attack, model_id: &str, effort: &Effort) -> Outcome {
    let builder = Server::model(model_id);
    let builder = attack.flags.iter().fold(builder, |builder, (flag, value)| builder.flag(flag, value));
    let server = builder.start();
    let client = attack.api_keys.map_or(server.client(), |[_, ordinary]| server.client().with_api_key(ordinary));
    let processes = Processes::of(&server);
    // The first grammar creates tables that stay in memory, so it is sent before the memory is measured.
    let _ = aftermath::ask_for_structured_output(&client);
    let calm = phase(effort.calm, |end| streams::run(&client, effort.patience, end));
    let before = processes.now();
    processes.forget_peak();
    if attack.is_log_unread {
        server.leave_log_unread();
    }
    let attacked = phase(effort.attack, |end| attacked_streams(attack, &server, &client, effort, end));
    let peak = processes.peak();
    let most = aftermath::most_afterwards(before, effort.kept);
    let aftermath = processes.are_alive().then(|| aftermath::examine(&client, &processes, most));
    Outcome { calm, attacked, before, peak, budget: budget(&server), aftermath }
}

/// Runs `run` in a phase whose end comes after `time`.
fn phase<T: Send>(time: Duration, run: impl FnOnce(&End) -> T + Send) -> T {
    let end = End::default();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| run(&end));
        pause(time);
        end.set();
        join_scoped(running, "the end of a phase")
    })
}

fn attacked_streams(attack: &Attack, server: &Server, client: &Client, effort: &Effort, end: &End) -> Tally {
    std::thread::scope(|scope| {
        scope.spawn(|| attackers::attack(attack, server.address(), effort.niceness, end));
        streams::run(client, effort.patience, end)
    })
}

/// The memory budget that the router logged at its start, in bytes.
fn budget(server: &Server) -> Option<u64> {
    let total = server.logged("memory budget of the router", "total")?;
    let mib: u64 = total.strip_suffix(" MiB")?.parse().ok()?;
    Some(mib << 20)
}
