//! Runs the chosen units in two lanes.
//!
//! The main lane prints as it goes. The other lane begins with what needs no executable, waits until the tests are
//! built, and prints each step when it ends. When a step fails, the other lane is stopped.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use matrix::Choice;

use super::choice::{Chosen, computes_cells};
use super::report::{self, Times};
use super::steps::{BUILD, LIBRARIES, Lane, Rank, STEPS, Step, Unit};
use crate::root;

/// The time in seconds after which not even the core begins, below the limit of a run.
const HARD_SECONDS: u64 = 4800;
/// Tests that compute cells of the matrix.
const CELL_TESTS: &str = "cargo test --workspace --locked --lib -- engine::tests::families engine::tests::gguf";

/// A run under way.
struct Run {
    chosen: Chosen,
    begin: Instant,
    /// The time in seconds after which nothing that was drawn begins.
    soft_seconds: u64,
    folder: PathBuf,
    /// The environment variables of every step.
    variables: Vec<(&'static str, PathBuf)>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    times: Times,
    /// The process group of the step in the lane beside.
    group: Option<u32>,
    /// The name of the first step that failed.
    failed: Option<String>,
}

/// Runs what was chosen, and prints the times and what was left out.
///
/// # Errors
/// When a step fails.
pub(crate) fn run(chosen: Chosen, soft_seconds: u64) -> Result<(), String> {
    let run = Arc::new(Run::new(chosen, soft_seconds)?);
    let (built, until_built) = mpsc::channel();
    let other = Arc::clone(&run);
    let beside = std::thread::spawn(move || other.lane(Lane::Beside, None, Some(&until_built)));
    run.lane(Lane::Main, Some(&built), None);
    // The lane beside then waits no longer.
    drop(built);
    if run.has_failed() {
        run.stop_beside();
    }
    let _ = beside.join();
    let state = run.state.lock().expect("no lane panics with the state");
    print!("{}", report::end(&run.chosen, &state.times, &run.folder, run.begin.elapsed()));
    match &state.failed {
        None => Ok(()),
        Some(step) => Err(format!("{step} failed")),
    }
}

impl Run {
    fn new(chosen: Chosen, soft_seconds: u64) -> Result<Self, String> {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
        let folder = target.join("ci");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut variables = vec![
            ("HILO_REQUIRE_PLUGINS", PathBuf::from("1")),
            ("HILO_REQUIRE_NAMESPACES", PathBuf::from("1")),
            ("HILO_SKIPS", folder.join("skips")),
            (matrix::CELLS_VARIABLE, folder.join("cells")),
        ];
        if chosen.taken.iter().any(|(_, item)| item.names().0 == BUILD) {
            variables.push(("HILO_TEST_EXECUTABLE", target.join("debug/text-generation-launcher")));
        }
        let state = Mutex::default();
        Ok(Self { chosen, begin: Instant::now(), soft_seconds, folder, variables, state })
    }

    /// Runs the steps of a lane in order. Sends to `built` when the tests are built; steps that need an executable wait
    /// for that.
    fn lane(&self, lane: Lane, built: Option<&mpsc::Sender<()>>, until_built: Option<&Receiver<()>>) {
        let mut is_waiting = until_built.is_some();
        if is_waiting {
            self.prepare();
        }
        for step in STEPS.iter().filter(|step| step.lane == lane) {
            let certain = [self.chosen.units(step, Choice::Core), self.chosen.units(step, Choice::Touched)].concat();
            let drawn = self.chosen.units(step, Choice::Drawn);
            if is_waiting && step.needs_build && !(certain.is_empty() && drawn.is_empty()) {
                // The main lane drops the sender when it ends early.
                let _ = until_built.map(Receiver::recv);
                is_waiting = false;
            }
            let only_cells = certain.is_empty() && computes_cells(step, &self.chosen);
            for (units, is_drawn) in [(certain, false), (drawn, true)] {
                if self.has_failed() {
                    return;
                }
                if !units.is_empty() || (only_cells && !is_drawn) {
                    self.group(step, &units, is_drawn);
                }
            }
            if step.name == BUILD
                && let Some(built) = built
            {
                let _ = built.send(());
            }
        }
    }

    /// Downloads the packages of the chosen steps in the lane beside, while the main lane compiles.
    fn prepare(&self) {
        let begin = Instant::now();
        for step in STEPS.iter().filter(|step| step.lane == Lane::Beside && step.needs_build) {
            let chosen =
                [Choice::Core, Choice::Touched, Choice::Drawn].map(|choice| self.chosen.units(step, choice)).concat();
            // Without packages the step itself fails, with a message.
            if !chosen.is_empty() && step.rank() != Rank::Full && !self.has_failed() {
                self.command(step, &format!("export HILO_PREPARE=1; {}", line(step, &chosen)));
            }
        }
        println!("\n==> packages (beside): {} s", begin.elapsed().as_secs());
    }

    /// Runs units of a step, if there is time.
    fn group(&self, step: &'static Step, units: &[&'static Unit], is_drawn: bool) {
        let estimate: u64 = units.iter().map(|unit| unit.seconds).sum();
        let limit = if is_drawn { self.soft_seconds } else { self.soft_seconds.max(HARD_SECONDS) };
        let factor = self.state.lock().expect("no lane panics with the state").times.factor();
        let expected = self.begin.elapsed().as_secs_f64() + estimate as f64 * factor;
        if expected > limit as f64 {
            let names = units.iter().map(|unit| format!("{}/{}", step.name, unit.name));
            self.state.lock().expect("no lane panics with the state").times.leave_out(names);
            return;
        }
        if step.name == LIBRARIES {
            self.write_cells(factor);
        }
        let begin = Instant::now();
        println!("\n==> {}{}", step.name, if is_drawn { ", drawn" } else { "" });
        let is_ok = self.command(step, &line(step, units));
        let mut state = self.state.lock().expect("no lane panics with the state");
        state.times.add(step, is_drawn, estimate, begin.elapsed());
        if !is_ok && state.failed.is_none() {
            state.failed = Some(step.name.to_owned());
        }
    }

    /// Runs a command line and returns true if it succeeds.
    fn command(&self, step: &Step, line: &str) -> bool {
        let mut shell = Command::new("bash");
        shell.args(["-euo", "pipefail", "-c", line]).current_dir(root()).stdin(Stdio::null());
        shell.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if step.lane == Lane::Main {
            return shell.status().is_ok_and(|status| status.success());
        }
        let path = self.folder.join(format!("{}.log", step.name));
        let output = File::create(&path).and_then(|file| Ok((file.try_clone()?, file)));
        let Ok((stdout, stderr)) = output else { return false };
        let child = shell.stdout(stdout).stderr(stderr).process_group(0).spawn();
        let Ok(mut child) = child else { return false };
        self.state.lock().expect("no lane panics with the state").group = Some(child.id());
        let status = child.wait();
        self.state.lock().expect("no lane panics with the state").group = None;
        print!("\n==> {} (beside)\n{}", step.name, fs::read_to_string(&path).unwrap_or_default());
        status.is_ok_and(|status| status.success())
    }

    /// Writes the file of cells. Drawing ends early enough for all other steps of the main lane.
    fn write_cells(&self, factor: f64) {
        let after =
            STEPS.iter().filter(|step| step.lane == Lane::Main).skip_while(|step| step.name != LIBRARIES).skip(1);
        let certain = after.flat_map(|step| {
            [self.chosen.units(step, Choice::Core), self.chosen.units(step, Choice::Touched)].concat()
        });
        let reserve = certain.map(|unit| unit.seconds).sum::<u64>() as f64 * factor;
        let left = (self.soft_seconds as f64 - self.begin.elapsed().as_secs_f64() - reserve).clamp(0.0, 1e9);
        let until = (SystemTime::now() + Duration::from_secs_f64(left)).duration_since(UNIX_EPOCH);
        let mut text = format!("{}\n", until.map_or(0, |time| time.as_secs()));
        for (choice, form, name) in self.chosen.cells() {
            text += &format!("{} {} {name}\n", choice.word(), form.name);
        }
        if let Err(error) = fs::write(self.folder.join("cells"), text) {
            println!("cells cannot be written: {error}");
        }
    }

    fn has_failed(&self) -> bool {
        self.state.lock().expect("no lane panics with the state").failed.is_some()
    }

    fn stop_beside(&self) {
        let group = self.state.lock().expect("no lane panics with the state").group;
        if let Some(group) = group {
            let _ = Command::new("kill").args(["--", &format!("-{group}")]).status();
        }
    }
}

/// Returns the command line of a step for some of its units.
fn line(step: &Step, units: &[&Unit]) -> String {
    if units.is_empty() {
        return CELL_TESTS.to_owned();
    }
    let names = |after: &str| units.iter().map(|unit| format!("{}{after}", unit.name)).collect::<Vec<_>>().join(" ");
    step.line.replace("UNITS", &names("")).replace("MODULES", &names("::"))
}

/// Returns the lines of a file in the folder of a run. Without the file there are none.
pub(crate) fn lines(folder: &Path, name: &str) -> Vec<String> {
    fs::read_to_string(folder.join(name)).unwrap_or_default().lines().map(str::to_owned).collect()
}
