//! One flag of another server that is accepted but not implemented.
//!
//! To add a flag: add one row to the table of its server, with the reason, and the same row to `docs/compatibility.md`.

use std::fmt;

/// The effect of giving a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The flag is not needed: the user loses nothing because it is ignored.
    Harmless,
    /// The flag is ignored with a warning: the user loses something, but responses are the same.
    Missing,
    /// The server does not start, because responses or the use of memory would differ from what the user asked for.
    Refused,
}

/// A flag: its effect, the reason, and what to do instead.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) flag: &'static str,
    pub(super) short: Option<char>,
    pub(super) verdict: Verdict,
    pub(super) reason: &'static str,
    /// A value, in addition to [`NO`], that asks for the default behaviour.
    pub(super) neutral: Option<&'static str>,
    /// True if the flag has an environment variable, whose name is the flag's in upper snake case.
    pub(super) has_variable: bool,
}

/// Values that mean no, in lower case.
const NO: [&str; 5] = ["", "0", "false", "no", "off"];

impl Row {
    pub(super) const fn new(flag: &'static str, verdict: Verdict, reason: &'static str) -> Self {
        Self { flag, short: None, verdict, reason, neutral: None, has_variable: true }
    }

    /// The environment variable of the flag.
    pub(super) fn variable(&self) -> Option<String> {
        self.has_variable.then(|| self.flag.to_uppercase().replace('-', "_"))
    }

    /// True if the value asks for the behaviour without the flag.
    pub(super) fn asks_for_nothing(&self, value: &str) -> bool {
        let value = value.trim().to_lowercase();
        let is_equal = |neutral: &str| {
            let [a, b] = [value.as_str(), neutral].map(|number| number.parse::<f64>().ok());
            value == neutral || a.is_some() && a == b
        };
        NO.contains(&value.as_str()) || self.neutral.is_some_and(is_equal)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Harmless => "changes nothing",
            Self::Missing => "warns",
            Self::Refused => "refused",
        })
    }
}
