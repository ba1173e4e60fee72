//! The command line of the fuzz test.

use std::str::FromStr;
use std::time::Duration;

/// The default of `--seconds`, which CI uses.
const TIME: Duration = Duration::from_secs(25);
/// The default of `--seed`.
const SEED: u64 = 1;

/// The options of a run.
#[derive(Debug)]
pub(crate) struct Arguments {
    /// The time for which requests are sent.
    pub(crate) time: Duration,
    pub(crate) seed: u64,
    /// The number of shards of the server; `None` for the same number as in other tests (`HILO_TEST_NUM_SHARD`).
    pub(crate) shards: Option<u32>,
    /// True if a test runner asks only for the names of the tests.
    pub(crate) is_list: bool,
    /// False if the words on the command line name only other tests.
    pub(crate) is_named: bool,
}

impl Arguments {
    /// Parses the arguments. Unknown options are ignored, because `cargo test` passes the same ones to all tests.
    ///
    /// # Errors
    /// When the value of an option is not a number.
    pub(crate) fn read(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut read = Self { time: TIME, seed: SEED, shards: None, is_list: false, is_named: true };
        let mut words = Vec::new();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--seconds" => read.time = Duration::from_secs(number(&arg, args.next())?),
                "--seed" => read.seed = number(&arg, args.next())?,
                "--shards" => read.shards = Some(number(&arg, args.next())?),
                "--list" => read.is_list = true,
                option if option.starts_with("--") => {}
                word => words.push(word.to_owned()),
            }
        }
        read.is_named = words.is_empty() || words.iter().any(|word| "fuzz".contains(word.as_str()));
        Ok(read)
    }
}

fn number<T: FromStr>(option: &str, value: Option<String>) -> Result<T, String> {
    let value = value.unwrap_or_default();
    value.parse().map_err(|_| format!("{option} must be a number. Given: {value:?}"))
}
