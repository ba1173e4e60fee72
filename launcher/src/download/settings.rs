//! The settings of downloads: the Hub's address, the folder of the cache, the token and others. They come from
//! flags and from variables of Python's tools and of text-generation-inference. Nothing here uses the network.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::HubError;
use crate::args::HubArgs;
use crate::environment::Environment;

/// The variables that are read here.
pub(crate) const INPUTS: [&str; 18] = [
    "HF_ENDPOINT",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "XDG_CACHE_HOME",
    "HOME",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "HF_API_TOKEN",
    "HF_TOKEN_PATH",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "HF_HUB_DOWNLOAD_TIMEOUT",
    "HF_HUB_USER_AGENT_ORIGIN",
    "HF_HUB_DISABLE_PROGRESS_BARS",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "SSL_CERT_FILE",
];

/// Variables for the token. The first one that is set contains it.
const TOKEN_VARIABLES: [&str; 3] = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_API_TOKEN"];
/// Variables for certificates. The first one that is set names a file of certificates.
const CERTIFICATE_VARIABLES: [&str; 3] = ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"];
const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// The default timeout of `huggingface_hub`.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum timeout. A larger value, which the clock might not represent, is lowered to this.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// The settings of downloads from the Hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The address of the Hub, without a slash at its end.
    pub(crate) endpoint: String,
    /// The folder that contains `models--organisation--name` for each model.
    pub(crate) cache: PathBuf,
    pub(crate) token: Option<Token>,
    /// A file of certificates to trust instead of Mozilla's list, which is part of the executable.
    pub(crate) certificates: Option<PathBuf>,
    /// True if no request may be made.
    pub(crate) is_offline: bool,
    /// The maximum time for each wait on the network: for a connection, for a response, and for more bytes.
    pub(crate) timeout: Duration,
    /// The name of the program that uses this server, for the Hub's statistics.
    pub(crate) origin: Option<String>,
    /// True if a terminal shows bars.
    pub(crate) has_bars: bool,
}

/// The user's access token for the Hub. Its value is never printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) value: String,
    /// The variable or the file that contains it.
    pub(crate) source: String,
}

impl Settings {
    /// Reads the settings from the flags and the environment, and the token from its file if the environment has no
    /// token.
    ///
    /// # Errors
    /// [`HubError::NoCache`] when no variable says where the cache is. [`HubError::TokenFile`], [`HubError::TokenText`]
    /// and [`HubError::Timeout`] for values that cannot be read.
    pub(crate) fn new(args: &HubArgs, environment: &Environment) -> Result<Self, HubError> {
        let path = |name| environment.get(name).map(|path| with_home(path, environment));
        let xdg_cache = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
        let home = path("HF_HOME").or_else(|| Some(xdg_cache?.join("huggingface")));
        let cache = args.huggingface_hub_cache.clone();
        let cache = cache.or_else(|| path("HF_HUB_CACHE")).or_else(|| path("HUGGINGFACE_HUB_CACHE"));
        let cache = cache.or_else(|| Some(home.as_ref()?.join("hub"))).ok_or(HubError::NoCache)?;
        let token_path = path("HF_TOKEN_PATH").or_else(|| Some(home.as_ref()?.join("token")));
        let is_true = |name| environment.get(name).is_some_and(is_true);
        let offline =
            if environment.get("HF_HUB_OFFLINE").is_some() { "HF_HUB_OFFLINE" } else { "TRANSFORMERS_OFFLINE" };
        Ok(Self {
            endpoint: environment.get("HF_ENDPOINT").unwrap_or(DEFAULT_ENDPOINT).trim_end_matches('/').to_owned(),
            // Links in the cache are relative to its folders, so they must not depend on the working directory.
            cache: std::path::absolute(&cache).unwrap_or(cache),
            token: Token::find(environment, token_path.as_deref())?,
            certificates: CERTIFICATE_VARIABLES.iter().find_map(|name| path(name)),
            is_offline: is_true(offline),
            timeout: timeout(environment)?,
            origin: environment.get("HF_HUB_USER_AGENT_ORIGIN").map(str::to_owned),
            has_bars: !is_true("HF_HUB_DISABLE_PROGRESS_BARS"),
        })
    }
}

impl Token {
    fn find(environment: &Environment, path: Option<&Path>) -> Result<Option<Self>, HubError> {
        let given =
            TOKEN_VARIABLES.iter().find_map(|name| Some(((*name).to_owned(), environment.get(name)?.to_owned())));
        let (source, text) = match (given, path) {
            (Some(given), _) => given,
            (None, None) => return Ok(None),
            (None, Some(path)) => match std::fs::read_to_string(path) {
                Ok(text) => (path.display().to_string(), text),
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                    return Ok(None);
                }
                Err(source) => return Err(HubError::TokenFile { path: path.to_path_buf(), source }),
            },
        };
        let value = text.trim();
        match value {
            "" => Ok(None),
            _ if value.bytes().all(|byte| byte.is_ascii_graphic()) => {
                Ok(Some(Self { value: value.to_owned(), source }))
            }
            _ => Err(HubError::TokenText { source_name: source }),
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.source)
    }
}

fn timeout(environment: &Environment) -> Result<Duration, HubError> {
    let Some(text) = environment.get("HF_HUB_DOWNLOAD_TIMEOUT") else { return Ok(DEFAULT_TIMEOUT) };
    let seconds = text.trim().parse::<u64>().ok().filter(|seconds| *seconds > 0);
    seconds
        .map(|seconds| Duration::from_secs(seconds).min(MAX_TIMEOUT))
        .ok_or_else(|| HubError::Timeout { text: text.to_owned() })
}

/// True for the words that Python's tools read as yes.
fn is_true(text: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&text.to_lowercase().as_str())
}

/// Returns the path with a `~` at its start replaced by the home directory.
fn with_home(path: &str, environment: &Environment) -> PathBuf {
    match (path.strip_prefix('~'), environment.get("HOME")) {
        (Some(""), Some(home)) => home.into(),
        (Some(rest), Some(home)) if rest.starts_with('/') => Path::new(home).join(&rest[1..]),
        _ => path.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&'static str, &str)]) -> Result<Settings, HubError> {
        let environment = Environment(variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect());
        Settings::new(&HubArgs::default(), &environment)
    }

    fn check_cache(variables: &[(&'static str, &str)], expected: &str) {
        assert_eq!(settings(variables).unwrap().cache, Path::new(expected), "{variables:?}");
    }

    #[test]
    fn the_cache_is_where_pythons_tools_have_it() {
        check_cache(&[("HOME", "/u")], "/u/.cache/huggingface/hub");
        check_cache(&[("HOME", "/u"), ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub");
        check_cache(&[("HOME", "/u"), ("XDG_CACHE_HOME", "/x"), ("HF_HOME", "~/h")], "/u/h/hub");
        check_cache(&[("HF_HOME", "/h"), ("HUGGINGFACE_HUB_CACHE", "/old")], "/old");
        check_cache(&[("HF_HOME", "/h"), ("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HUB_CACHE", "/new")], "/new");
        check_cache(&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "")], "/h/hub");
        let flag = HubArgs { huggingface_hub_cache: Some("/flag".into()), ..HubArgs::default() };
        let environment = Environment([("HF_HUB_CACHE", "/new".to_owned())].into());
        assert_eq!(Settings::new(&flag, &environment).unwrap().cache, Path::new("/flag"));
        assert!(matches!(settings(&[]), Err(HubError::NoCache)));
    }

    #[test]
    fn the_token_is_that_of_pythons_tools_and_never_shown() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().to_str().unwrap();
        let token = |variables: &[(&'static str, &str)]| {
            let token = settings(&[variables, &[("HF_HOME", home)]].concat()).unwrap().token;
            token.map(|token| (token.value, token.source))
        };
        assert_eq!(token(&[]), None);
        let path = format!("{home}/token");
        std::fs::write(&path, "hf_file\n").unwrap();
        assert_eq!(token(&[]), Some(("hf_file".into(), path.clone())));
        assert_eq!(token(&[("HF_TOKEN_PATH", "/no/such/file")]), None);
        let both = [("HF_TOKEN", " hf_a "), ("HUGGING_FACE_HUB_TOKEN", "hf_b")];
        assert_eq!(token(&both), Some(("hf_a".into(), "HF_TOKEN".into())));
        assert_eq!(token(&[("HF_API_TOKEN", "hf_c")]), Some(("hf_c".into(), "HF_API_TOKEN".into())));
        let shown = format!("{:?}", settings(&[("HOME", "/u"), ("HF_TOKEN", "hf_secret")]).unwrap());
        assert!(!shown.contains("hf_secret") && shown.contains("Token(HF_TOKEN)"), "{shown}");
        let error = settings(&[("HOME", "/u"), ("HF_TOKEN", "hf a\nb")]).unwrap_err().to_string();
        assert!(error.contains("HF_TOKEN") && !error.contains("hf a"), "{error}");
    }

    #[test]
    fn switches_and_numbers() {
        let with = |name, value| settings(&[("HOME", "/u"), (name, value)]).unwrap();
        assert!(with("HF_HUB_OFFLINE", "1").is_offline && with("HF_HUB_OFFLINE", "Yes").is_offline);
        assert!(!with("HF_HUB_OFFLINE", "0").is_offline && with("TRANSFORMERS_OFFLINE", "true").is_offline);
        assert!(!with("HF_HUB_DISABLE_PROGRESS_BARS", "1").has_bars && with("HOME", "/u").has_bars);
        assert_eq!(with("SSL_CERT_FILE", "/ca.pem").certificates, Some("/ca.pem".into()));
        assert_eq!(with("HF_ENDPOINT", "http://mirror/hub/").endpoint, "http://mirror/hub");
        assert_eq!(with("HOME", "/u").endpoint, "https://huggingface.co");
        assert_eq!(with("HF_HUB_DOWNLOAD_TIMEOUT", "3").timeout, Duration::from_secs(3));
        assert_eq!(with("HF_HUB_DOWNLOAD_TIMEOUT", "18446744073709551615").timeout, MAX_TIMEOUT);
        let error = settings(&[("HOME", "/u"), ("HF_HUB_DOWNLOAD_TIMEOUT", "0")]).unwrap_err().to_string();
        assert!(error.contains("HF_HUB_DOWNLOAD_TIMEOUT is \"0\""), "{error}");
    }
}
