//! Parses `--log-level`: a level, or a filter in the syntax of `tracing_subscriber::EnvFilter`.
//!
//! In that syntax, a single word that is not a level is the name of a module, and silences all other modules. Here such
//! a word is an error, because it is probably a misspelled level.

use std::str::FromStr as _;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
const DEFAULT: &str = "info";
/// The names of levels in other programs, each with our name for it.
const OTHER_NAMES: [(&str, &str); 8] = [
    ("critical", "error"),
    ("fatal", "error"),
    ("notice", "info"),
    ("verbose", "debug"),
    ("all", "trace"),
    ("none", "off"),
    ("quiet", "off"),
    ("silent", "off"),
];
/// If the Jaro similarity between a word and a level is above this number, the word counts as a misspelling of the
/// level.
const MIN_LIKENESS: f64 = 0.75;

/// The error for a log level that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error(
    "log level {text:?} is not error, warn, info, debug, trace, off, or a filter such as \"info,router=debug\": {reason}"
)]
pub struct LogLevelError {
    text: String,
    reason: String,
}

/// Returns the filter that `text` describes; `info` if `text` is empty. Python's name `warning` means `warn`.
pub(crate) fn filter(text: &str) -> Result<EnvFilter, LogLevelError> {
    let error = |reason| LogLevelError { text: text.into(), reason };
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let directives = parts.map(directive).collect::<Result<Vec<_>, _>>().map_err(error)?;
    let directives = if directives.is_empty() { DEFAULT.to_owned() } else { directives.join(",") };
    EnvFilter::try_new(directives).map_err(|source| error(source.to_string()))
}

fn directive(text: &str) -> Result<String, String> {
    if text.contains(['[', ']', '{', '}']) {
        return Ok(text.to_owned());
    }
    let (target, level) = match text.rsplit_once('=') {
        Some((target, level)) => (Some(target.trim()), level.trim()),
        None => (None, text),
    };
    let level = if level.eq_ignore_ascii_case("warning") { "warn" } else { level };
    if LevelFilter::from_str(level).is_err() {
        return Err(advice(level, target));
    }
    Ok(target.map_or_else(|| level.to_owned(), |target| format!("{target}={level}")))
}

fn advice(word: &str, target: Option<&str>) -> String {
    match (likely_level(word), target) {
        (Some(level), Some(target)) => format!("did you mean \"{target}={level}\"?"),
        (Some(level), None) => format!("did you mean {level:?}?"),
        (None, Some(_)) => format!("{word:?} is not a level"),
        (None, None) => format!("if {word:?} is a module, write \"info,{word}=debug\""),
    }
}

fn likely_level(word: &str) -> Option<&'static str> {
    let word = word.to_ascii_lowercase();
    if let Some((_, level)) = OTHER_NAMES.iter().find(|(name, _)| *name == word) {
        return Some(level);
    }
    let likeness = |level: &&str| strsim::jaro(&word, level);
    let best = LEVELS.into_iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(&best) > MIN_LIKENESS).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_filters() {
        for (text, expected) in [
            ("info", "info"),
            ("WARN", "warn"),
            ("warning", "warn"),
            ("Warning", "warn"),
            ("off", "off"),
            ("", "info"),
            (" info , router=debug ", "router=debug,info"),
            ("warn,launcher=info", "launcher=info,warn"),
            ("router=warning", "router=warn"),
            ("info,[step]=trace", "[step]=trace,info"),
        ] {
            let found = filter(text).map(|filter| filter.to_string());
            let mut found: Vec<_> = found.as_deref().unwrap().split(',').collect();
            let mut expected: Vec<_> = expected.split(',').collect();
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn mistakes_are_named_with_what_was_meant() {
        for (text, advice) in [
            ("loud", "if \"loud\" is a module, write \"info,loud=debug\""),
            ("verbose", "did you mean \"debug\"?"),
            ("wran", "did you mean \"warn\"?"),
            ("erorr", "did you mean \"error\"?"),
            ("information", "did you mean \"info\"?"),
            ("CRITICAL", "did you mean \"error\"?"),
            ("info,foo=bar", "\"bar\" is not a level"),
            ("info,router=debgu", "did you mean \"router=debug\"?"),
            ("info,router", "if \"router\" is a module, write \"info,router=debug\""),
        ] {
            let error = filter(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("log level {text:?} is not error, warn, info,")), "{error}");
            assert!(error.ends_with(advice), "{error}");
        }
    }
}
