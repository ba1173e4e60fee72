//! The commands of contributors. `cargo xtask` lists them; `cargo xtask NAME [ARGUMENT ...]` runs one.
//!
//! [`commands`] is the table. `ci` is the run that must pass before a change lands.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program that talks to people")]

mod ci;
mod commands;

use std::path::Path;
use std::process::ExitCode;

/// Returns the root of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the repository")
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, rest)) = words.split_first() else {
        print!("{}", commands::list());
        return ExitCode::SUCCESS;
    };
    let result = match name.as_str() {
        "ci" => ci::main(rest),
        "help" | "--help" | "-h" => {
            print!("{}", commands::list());
            Ok(())
        }
        name => commands::run(name, rest),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
