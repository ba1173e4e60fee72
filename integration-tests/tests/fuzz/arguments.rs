//! The command line.

use std::str::FromStr;
use std::time::Duration;

/// Time of the requests in CI.
const TIME: Duration = Duration::from_secs(25);
const SEED: u64 = 1;

/// The options of a run.
#[derive(Debug)]
pub(crate) struct Arguments {
    /// Time of the requests.
    pub(crate) time: Duration,
    pub(crate) seed: u64,
    /// Shards of the server; as many as in other tests where nothing is said.
    pub(crate) shards: Option<u32>,
    /// True where a runner of tests asks for names only.
    pub(crate) is_list: bool,
    /// False where the words on the command line name other tests.
    pub(crate) is_named: bool,
}

impl Arguments {
    /// Reads them. Options that other tests have are ignored, as `cargo test` gives the same to all.
    ///
    /// # Errors
    /// When the value of an option is no number.
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
    value.parse().map_err(|_| format!("{option} wants a number. Given: {value:?}"))
}
