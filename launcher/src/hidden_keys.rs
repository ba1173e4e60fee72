//! API keys that a user gave as flags. Every user of the machine can read the command line of a process, for example
//! with `ps`, but only its owner can read its environment.
//!
//! Entry point: [`leave_command_line`], which replaces this process by the same executable with the keys in `API_KEY`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

const FLAG: &str = "--api-key";
const VARIABLE: &str = "API_KEY";

/// The arguments without API keys, and the keys as a value of [`VARIABLE`].
#[derive(Debug, PartialEq, Eq)]
struct Parted {
    arguments: Vec<OsString>,
    keys: String,
}

/// Starts this process again without API keys in its command line, if there are any, under the same process id. If the
/// system refuses that, the process goes on as it is.
pub(crate) fn leave_command_line() {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let Some(Parted { arguments, keys }) = part(arguments) else { return };
    let Ok(executable) = std::env::current_exe() else { return };
    // `exec` returns only if it fails.
    let _ = Command::new(executable).arg0(name).args(arguments).env(VARIABLE, keys).exec();
}

/// Takes the keys out of the arguments. Returns `None` if there are none, or if one is missing or cannot be a key: then
/// the parser of the arguments names the mistake.
fn part(arguments: impl Iterator<Item = OsString>) -> Option<Parted> {
    let (mut rest, mut keys) = (Vec::new(), Vec::new());
    let mut arguments = arguments.fuse();
    while let Some(argument) = arguments.next() {
        let text = argument.to_str();
        if text == Some("--") {
            rest.push(argument);
            break;
        }
        let key = match text.and_then(|text| text.strip_prefix(FLAG)) {
            Some("") => arguments.next()?.into_string().ok()?,
            Some(value) if value.starts_with('=') => value[1..].to_owned(),
            _ => {
                rest.push(argument);
                continue;
            }
        };
        if key.split(',').any(|key| key.trim().is_empty()) || key.starts_with('-') {
            return None;
        }
        keys.push(key);
    }
    rest.extend(arguments);
    (!keys.is_empty()).then(|| Parted { arguments: rest, keys: keys.join(",") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parted(arguments: &str) -> Option<(String, String)> {
        let parted = part(arguments.split(' ').map(OsString::from))?;
        let arguments: Vec<&str> = parted.arguments.iter().filter_map(|word| word.to_str()).collect();
        Some((arguments.join(" "), parted.keys))
    }

    #[test]
    fn keys_leave_the_arguments_and_nothing_else_does() {
        let expected = Some(("--port 1 --api-key-file f".to_owned(), "a,b,c".to_owned()));
        assert_eq!(parted("--api-key a --port 1 --api-key=b,c --api-key-file f"), expected);
        assert_eq!(parted("--api-key a -- --api-key b"), Some(("-- --api-key b".to_owned(), "a".to_owned())));
        for without in ["--port 1", "--api-key-file f", "-- --api-key a"] {
            assert_eq!(parted(without), None, "{without}");
        }
    }

    #[test]
    fn mistakes_stay_for_the_parser() {
        for mistaken in ["--api-key", "--api-key=", "--api-key a,,b", "--api-key --port 1", "--api-key a --api-key="] {
            assert_eq!(parted(mistaken), None, "{mistaken}");
        }
    }
}
