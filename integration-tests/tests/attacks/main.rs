//! Attacks on a server while four ordinary streams run. The attacks run one after the other, each on a new server, with
//! a limited number of connections and for a limited time.
//!
//! ```text
//! cargo test -p integration-tests --test attacks                            # as in CI
//! cargo test -p integration-tests --test attacks -- stop-strings readers     # those with these words in their names
//! HILO_TEST_EXECUTABLE=target/release/text-generation-launcher \
//!     cargo test -p integration-tests --test attacks -- --measure [--model-id=FOLDER]
//! ```
//!
//! Under every attack no stream may be lost, and the router must stay within the memory budget that it logs at its
//! start. Afterwards the gauges must be zero, the memory of the router must have fallen, and structured output must be
//! accepted. The gaps between the events of the streams, and the time until structured output is accepted, are printed.
//! They are part of the verdict only with `--measure`, which also attacks for longer, because times mean nothing on a
//! machine that does other work at the same time.

#![expect(clippy::print_stdout, reason = "a program that prints its results")]

mod attack;
mod attackers;
mod battle;
mod report;
mod requests;
mod streams;
mod table;

use std::process::ExitCode;
use std::time::Duration;

use attack::Attack;
use battle::Effort;

/// The effort in CI.
const SHORT: Effort = Effort {
    calm: Duration::from_millis(500),
    attack: Duration::from_millis(1500),
    patience: Duration::from_secs(30),
    kept: 32 << 20,
    judges_time: false,
    niceness: 0,
};
/// The effort of a manual run, on a machine that does nothing else.
const MEASURED: Effort = Effort {
    calm: Duration::from_secs(3),
    attack: Duration::from_secs(8),
    patience: Duration::from_secs(10),
    kept: 0,
    judges_time: true,
    niceness: 10,
};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (options, words): (Vec<_>, Vec<_>) = args.into_iter().partition(|arg| arg.starts_with("--"));
    let is_named = |attack: &&Attack| words.iter().any(|word| attack.name.contains(word.as_str()));
    let is_wanted = |attack: &&Attack| words.is_empty() || is_named(attack);
    let attacks: Vec<_> = table::TABLE.iter().filter(is_wanted).collect();
    if options.iter().any(|option| option == "--list") {
        attacks.iter().for_each(|attack| println!("{}: test", attack.name));
        return ExitCode::SUCCESS;
    }
    let effort = if options.iter().any(|option| option == "--measure") { MEASURED } else { SHORT };
    let model_id = options.iter().find_map(|option| option.strip_prefix("--model-id=")).unwrap_or("demo");
    println!("{}", report::HEAD);
    let mut all_faults = Vec::new();
    for attack in attacks {
        let outcome = battle::fight(attack, model_id, &effort);
        println!("{}", report::row(attack.name, &outcome));
        let faults = report::faults(&outcome, &effort);
        all_faults.extend(faults.into_iter().map(|fault| format!("{}: {fault}", attack.name)));
    }
    all_faults.iter().for_each(|fault| println!("{fault}"));
    if all_faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
