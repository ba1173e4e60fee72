//! The API keys of the server, if there are any.
//!
//! Entry points: [`ApiKey`], [`ApiKeys`]. Keys are compared in constant time, so the time does not reveal where a wrong
//! key differs. Keys are never printed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use scheduler::Tenant;
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// An API key. `Debug` does not print the key.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

/// All API keys. If there are none, every client may call.
#[derive(Debug, Clone, Default)]
pub(crate) struct ApiKeys(Vec<ApiKey>);

/// The reason why API keys cannot be read from a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiKeysError {
    #[error("`api_key_file` {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("`api_key_file` {0} has no keys: one per line is expected")]
    Empty(PathBuf),
    #[error("`api_key_file` {path}, line {line}: {reason}; correct it, or begin the line with # to leave it out")]
    Line { path: PathBuf, line: usize, reason: &'static str },
}

impl ApiKey {
    /// Returns the key as text, for code that passes the key on.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

impl FromStr for ApiKey {
    type Err = &'static str;

    fn from_str(key: &str) -> Result<Self, Self::Err> {
        match key.trim() {
            "" => Err("an API key cannot be empty"),
            key if key.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(Self(key.to_owned())),
            _ => Err("an API key must consist of visible ASCII characters"),
        }
    }
}

impl ApiKeys {
    /// Returns the keys in `given` and in the file, without duplicates. The file has one key per line; empty lines and
    /// lines that begin with `#` are skipped.
    ///
    /// # Errors
    /// When the file cannot be read, has no keys, or has a line that is not a key. A mistake is not ignored, because it
    /// could let clients in or lock them out.
    pub(crate) fn load(given: &[ApiKey], file: Option<&Path>) -> Result<Self, ApiKeysError> {
        let mut keys = given.to_vec();
        if let Some(path) = file {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|source| ApiKeysError::Read { path: path.to_path_buf(), source })?;
            let of_file = keys_of(&text).map_err(|(line, reason)| ApiKeysError::Line {
                path: path.to_path_buf(),
                line,
                reason,
            })?;
            if of_file.is_empty() {
                return Err(ApiKeysError::Empty(path.to_path_buf()));
            }
            keys.extend(of_file);
        }
        let mut once: Vec<ApiKey> = Vec::with_capacity(keys.len());
        for key in keys {
            if !once.contains(&key) {
                once.push(key);
            }
        }
        Ok(Self(once))
    }

    /// True if there are no keys, so that every client may call.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of keys.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the tenant to whom the key belongs, if the key is known. All keys are compared, so the time does not
    /// reveal which key matched.
    pub(crate) fn tenant(&self, given: &str) -> Option<Tenant> {
        let (mut is_known, mut place) = (Choice::from(0), 0);
        for (index, key) in (0..).zip(&self.0) {
            let is_same = key.0.as_bytes().ct_eq(given.as_bytes());
            place.conditional_assign(&index, is_same);
            is_known |= is_same;
        }
        bool::from(is_known).then(|| Tenant::new(place))
    }
}

/// Returns the keys in a file's text. If a line is not a key, returns the number of the first such line and the reason.
fn keys_of(text: &str) -> Result<Vec<ApiKey>, (usize, &'static str)> {
    // Some editors on Windows begin a file with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = (1..).zip(text.lines().map(str::trim));
    let keys = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    keys.map(|(number, line)| line.parse().map_err(|reason| (number, reason))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_no_key_is_named_and_not_repeated() {
        let good = ["\u{feff}first\r\nsecond\r\n", "first\nsecond", "\u{feff}# team\n\n first\t\n#\nsecond\n\n"];
        for text in good {
            let keys = ApiKeys(keys_of(text).unwrap());
            assert!(keys.0.len() == 2 && keys.tenant("first").is_some() && keys.tenant("second").is_some(), "{text:?}");
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys");
        for (text, line) in [("a\nmy secret\n", 2), ("schl\u{fc}ssel", 1), ("a\n\n# x\n\u{feff}b\n", 4), ("a\u{0}b", 1)]
        {
            std::fs::write(&path, text).unwrap();
            let error = ApiKeys::load(&[], Some(&path)).unwrap_err().to_string();
            assert!(error.contains(&format!("keys, line {line}: an API key must consist of visible ASCII")), "{error}");
            assert!(!error.contains("secret") && !error.contains("schl"), "{error}");
        }
    }

    #[test]
    fn keys_come_from_flags_and_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys");
        std::fs::write(&path, "# team a\nfirst\n\n  second  \n").unwrap();
        let given = ["given".parse().unwrap(), "first".parse().unwrap(), "given".parse().unwrap()];
        let keys = ApiKeys::load(&given, Some(&path)).unwrap();
        let tenants = ["given", "first", "second"].map(|key| keys.tenant(key).unwrap().index());
        assert_eq!((tenants, keys.len()), ([0, 1, 2], 3), "a key that is given twice is one");
        assert!(["", "firs", "first ", "First", "# team a"].iter().all(|key| keys.tenant(key).is_none()));
        assert!(!format!("{keys:?}").contains("first"), "{keys:?}");
        std::fs::write(&path, "# nobody\n").unwrap();
        assert!(ApiKeys::load(&given, Some(&path)).unwrap_err().to_string().ends_with("one per line is expected"));
        let missing = ApiKeys::load(&given, Some(Path::new("/nowhere"))).unwrap_err().to_string();
        insta::assert_snapshot!(missing, @"`api_key_file` /nowhere: No such file or directory (os error 2)");
        assert!(ApiKeys::load(&[], None).unwrap().is_empty());
        assert!("".parse::<ApiKey>().is_err() && "a b".parse::<ApiKey>().is_err());
    }
}
