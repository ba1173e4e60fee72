//! The keys with which clients may call, if there are any.
//!
//! Doors: [`ApiKey`], [`ApiKeys`]. Comparing takes the same time whichever character is the first that differs, and a key is never
//! printed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use subtle::{Choice, ConstantTimeEq};

/// A key. It cannot be printed.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

/// All keys; none where everybody may call.
#[derive(Debug, Clone, Default)]
pub(crate) struct ApiKeys(Vec<ApiKey>);

/// Why a file has no keys.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiKeysError {
    #[error("`api_key_file` {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("`api_key_file` {0} has no keys: one per line is expected")]
    Empty(PathBuf),
}

impl ApiKey {
    /// The key, for the one who hands it on.
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
            _ => Err("an API key must be of visible ASCII characters"),
        }
    }
}

impl ApiKeys {
    /// Those that were given, and those in a file: one per line, empty lines and those that begin with `#` left out.
    ///
    /// # Errors
    /// When the file cannot be read or has no keys: nobody is to be let in by mistake.
    pub(crate) fn load(given: &[ApiKey], file: Option<&Path>) -> Result<Self, ApiKeysError> {
        let mut keys = given.to_vec();
        if let Some(path) = file {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|source| ApiKeysError::Read { path: path.to_path_buf(), source })?;
            let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
            let of_file: Vec<ApiKey> = lines.filter_map(|line| line.parse().ok()).collect();
            if of_file.is_empty() {
                return Err(ApiKeysError::Empty(path.to_path_buf()));
            }
            keys.extend(of_file);
        }
        Ok(Self(keys))
    }

    /// Whether everybody may call.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it is one of the keys. All of them are looked at.
    pub(crate) fn accept(&self, given: &str) -> bool {
        let is_same = |key: &ApiKey| key.0.as_bytes().ct_eq(given.as_bytes());
        self.0.iter().map(is_same).fold(Choice::from(0), |found, is_same| found | is_same).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_from_flags_and_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys");
        std::fs::write(&path, "# team a\nfirst\n\n  second  \n").unwrap();
        let given = ["given".parse().unwrap()];
        let keys = ApiKeys::load(&given, Some(&path)).unwrap();
        assert!(["given", "first", "second"].iter().all(|key| keys.accept(key)));
        assert!(["", "firs", "first ", "First", "# team a"].iter().all(|key| !keys.accept(key)));
        assert!(!format!("{keys:?}").contains("first"), "{keys:?}");
        std::fs::write(&path, "# nobody\n").unwrap();
        assert!(ApiKeys::load(&given, Some(&path)).unwrap_err().to_string().ends_with("one per line is expected"));
        let missing = ApiKeys::load(&given, Some(Path::new("/nowhere"))).unwrap_err().to_string();
        assert!(missing.starts_with("`api_key_file` /nowhere: "), "{missing}");
        assert!(ApiKeys::load(&[], None).unwrap().is_empty());
        assert!("".parse::<ApiKey>().is_err() && "a b".parse::<ApiKey>().is_err());
    }
}
