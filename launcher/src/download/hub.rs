//! Requests to the Hub: for the list of a model's files, for the size and the ETag of a file, and for its bytes from an
//! offset on.
//!
//! The crate `hf-hub` provides the addresses and the type of the list of files. Responses are read here, because the
//! download of `hf-hub` takes a connection that was cut for the end of the file, has no timeout, and does not say why a
//! request was refused. Each call here is one try; `retry.rs` decides whether another one follows.

use std::io::{ErrorKind, Read};
use std::path::Path;
use std::time::Duration;

use hf_hub::api::RepoInfo;
use hf_hub::api::sync::{Api, ApiBuilder, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use ureq::http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, LOCATION, RANGE, RETRY_AFTER,
};
use ureq::http::{Response, Uri};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::typestate::WithoutBody;
use ureq::{Agent, Body, RequestBuilder};

use super::error::{HubError, Unreached};
use super::settings::Settings;

const MAX_REDIRECTS: usize = 10;
/// The message with which the Hub rejects a token. Only this message distinguishes an unknown token from a missing
/// model.
const BAD_TOKEN: &str = "Invalid credentials in Authorization header";

/// A client for one revision of one model on the Hub.
#[derive(Debug)]
pub(crate) struct Hub<'a> {
    model: &'a str,
    revision: &'a str,
    settings: &'a Settings,
    api: Api,
    agent: Agent,
}

/// The Hub's description of a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listing {
    /// The commit, 40 hexadecimal digits.
    pub(crate) commit: String,
    /// The paths of all files of the commit.
    pub(crate) names: Vec<String>,
}

/// A file that can be downloaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemoteFile {
    pub(crate) name: String,
    /// The ETag of the contents, without quotes; it names the blob in the cache. On the Hub it is their SHA-256 or
    /// their Git object id.
    pub(crate) etag: String,
    pub(crate) size_bytes: u64,
    pub(crate) url: String,
}

/// The rest of a file, from an offset on.
pub(crate) struct Part {
    /// The offset of the first byte of `bytes`: the requested offset, or 0.
    pub(crate) start_bytes: u64,
    pub(crate) bytes: Box<dyn Read>,
}

/// The kind of a request. It decides what a refusal means.
#[derive(Debug, Clone, Copy)]
enum Asked<'a> {
    Listing,
    File(&'a str),
}

impl<'a> Hub<'a> {
    /// Creates a client for one revision of a model.
    ///
    /// # Errors
    /// [`HubError::Certificates`] when the file of certificates cannot be read or is invalid.
    pub(crate) fn new(model: &'a str, revision: &'a str, settings: &'a Settings) -> Result<Self, HubError> {
        let tls = settings.certificates.as_deref().map_or_else(|| Ok(TlsConfig::default()), tls_config)?;
        let api = ApiBuilder::from_cache(Cache::new(settings.cache.clone())).with_endpoint(settings.endpoint.clone());
        let api = api.build().expect("the build can fail only with native-tls, which is not used");
        let mut user_agent = concat!("hilo/", env!("CARGO_PKG_VERSION")).to_owned();
        if let Some(origin) = &settings.origin {
            user_agent += &format!("; origin/{origin}");
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .user_agent(user_agent)
            .tls_config(tls)
            // A server that is reached over an encrypted connection cannot redirect to one that is not encrypted.
            .https_only(settings.endpoint.starts_with("https:"))
            .timeout_resolve(Some(settings.timeout))
            .timeout_connect(Some(settings.timeout))
            .timeout_recv_response(Some(settings.timeout))
            .timeout_per_read(Some(settings.timeout));
        Ok(Self { model, revision, settings, api, agent: config.build().into() })
    }

    /// Asks for the revision's commit and files.
    ///
    /// # Errors
    /// When the Hub cannot be reached, refuses the request, or sends an invalid response.
    pub(crate) fn listing(&self) -> Result<Listing, HubError> {
        let mut url = self.repo(self.revision).info_request().uri_ref().map(Uri::to_string).unwrap_or_default();
        let mut response = self.ask(self.agent.get(&url), &url)?;
        for _ in 0..MAX_REDIRECTS {
            let Some(next) = redirect(&response, &url) else { break };
            url = next;
            response = self.ask(self.agent.get(&url), &url)?;
        }
        if !response.status().is_success() {
            return Err(self.refusal(&response, &url, Asked::Listing));
        }
        let failed = |problem: String| HubError::Answer { url: url.clone(), problem };
        let info: RepoInfo = serde_json::from_reader(response.into_body().into_reader()).map_err(|error| {
            if !error.is_io() && !error.is_eof() {
                return failed(error.to_string());
            }
            // The response began, and its rest did not come.
            let is_late = error.io_error_kind() == Some(ErrorKind::TimedOut);
            let how = if is_late { Unreached::Silent } else { Unreached::Broken };
            HubError::Unreachable { endpoint: self.settings.endpoint.clone(), reason: error.to_string(), how }
        })?;
        if !is_commit(&info.sha) {
            return Err(failed(format!("commit {:?} is not 40 hexadecimal digits", info.sha)));
        }
        let names = info.siblings.into_iter().map(|file| file.rfilename).collect();
        Ok(Listing { commit: info.sha, names })
    }

    /// Looks up the ETag, the size and the address of a file. Redirects within one host are followed, because a moved
    /// model has one. A redirect to another host is followed only until a response contains the file's `x-linked-etag`,
    /// because the server that stores the bytes does not know this ETag.
    ///
    /// # Errors
    /// When the Hub cannot be reached, refuses the request, redirects too often, or sends no usable ETag or no size.
    pub(crate) fn file(&self, commit: &str, name: &str) -> Result<RemoteFile, HubError> {
        let mut url = self.repo(commit).url(name);
        let (mut linked_etag, mut linked_size) = (None, None);
        for _ in 0..MAX_REDIRECTS {
            let response = self.ask(self.agent.head(&url), &url)?;
            let (status, headers) = (response.status(), response.headers());
            if !status.is_success() && !status.is_redirection() {
                return Err(self.refusal(&response, &url, Asked::File(name)));
            }
            linked_etag = linked_etag.or_else(|| text(headers, "x-linked-etag"));
            linked_size = linked_size.or_else(|| text(headers, "x-linked-size"));
            let next = redirect(&response, &url);
            if let Some(next) = next.as_ref().filter(|next| has_same_host(next, &url) || linked_etag.is_none()) {
                url.clone_from(next);
                continue;
            }
            let own = |name: &str| text(headers, name).filter(|_| next.is_none());
            let etag = linked_etag.or_else(|| own(ETAG.as_str())).as_deref().and_then(etag);
            let size_bytes = linked_size.or_else(|| own(CONTENT_LENGTH.as_str())).and_then(|size| size.parse().ok());
            return match (etag, size_bytes) {
                (Some(etag), Some(size_bytes)) => Ok(RemoteFile { name: name.to_owned(), etag, size_bytes, url }),
                (etag, _) => {
                    let problem = if etag.is_none() { "no usable ETag" } else { "no size" };
                    Err(HubError::Answer { url, problem: problem.to_owned() })
                }
            };
        }
        Err(HubError::Answer { url, problem: format!("more than {MAX_REDIRECTS} redirects") })
    }

    /// Opens a file at an offset. A server that does not support ranges sends the file from its start.
    ///
    /// # Errors
    /// When the server cannot be reached, refuses the request, or sends another range or a file of another size.
    pub(crate) fn open(&self, file: &RemoteFile, start_bytes: u64) -> Result<Part, HubError> {
        let mut request = self.request(self.agent.get(&file.url), &file.url);
        if start_bytes > 0 {
            request = request.header(RANGE, format!("bytes={start_bytes}-"));
        }
        let response = request.call().map_err(|error| self.unreachable(&error))?;
        let headers = response.headers();
        let (start, size) = match response.status().as_u16() {
            200 => (0, text(headers, CONTENT_LENGTH.as_str())),
            206 => content_range(&text(headers, CONTENT_RANGE.as_str()).unwrap_or_default()),
            416 if start_bytes > 0 => return self.open(file, 0),
            _ => return Err(self.refusal(&response, &file.url, Asked::File(&file.name))),
        };
        let is_other_size = size.as_ref().is_some_and(|size| *size != file.size_bytes.to_string());
        if is_other_size || ![0, start_bytes].contains(&start) {
            let (found, expected) = (size.unwrap_or_default(), file.size_bytes);
            let problem = format!("bytes from {start} of {found}, expected from {start_bytes} of {expected}");
            return Err(HubError::Answer { url: file.url.clone(), problem });
        }
        Ok(Part { start_bytes: start, bytes: Box::new(response.into_body().into_reader()) })
    }

    fn repo(&self, revision: &str) -> ApiRepo {
        self.api.repo(Repo::with_revision(self.model.to_owned(), RepoType::Model, revision.to_owned()))
    }

    /// Sends a request without following a redirect, because ureq would also send the token to another port of the
    /// host.
    fn ask(&self, request: RequestBuilder<WithoutBody>, url: &str) -> Result<Response<Body>, HubError> {
        let request = request.config().max_redirects(0).build();
        self.request(request, url).call().map_err(|error| self.unreachable(&error))
    }

    /// Adds the headers of every request. The token goes only to the Hub itself, never to a server to which the Hub
    /// redirects.
    fn request(&self, request: RequestBuilder<WithoutBody>, url: &str) -> RequestBuilder<WithoutBody> {
        // A compressed response would have another size than the file.
        let request = request.header(ACCEPT_ENCODING, "identity");
        match &self.settings.token {
            Some(token) if has_same_host(url, &self.settings.endpoint) => {
                request.header(AUTHORIZATION, format!("Bearer {}", token.value))
            }
            _ => request,
        }
    }

    fn unreachable(&self, error: &ureq::Error) -> HubError {
        use ureq::Error::{ConnectionFailed, HostNotFound, Io, Protocol, RequireHttpsOnly, Timeout};
        if let RequireHttpsOnly(url) = error {
            return HubError::Open { endpoint: self.settings.endpoint.clone(), url: url.clone() };
        }
        let how = match error {
            // Errors about certificates have the kind `InvalidData`.
            Io(error) if error.kind() == ErrorKind::InvalidData => Unreached::Final,
            Io(error) if is_refusal(error.kind()) => Unreached::Refused,
            ConnectionFailed | HostNotFound => Unreached::Refused,
            Timeout(_) => Unreached::Silent,
            Io(_) | Protocol(_) => Unreached::Broken,
            _ => Unreached::Final,
        };
        HubError::Unreachable { endpoint: self.settings.endpoint.clone(), reason: error.to_string(), how }
    }

    fn refusal(&self, response: &Response<Body>, url: &str, asked: Asked<'_>) -> HubError {
        let Settings { endpoint, token, .. } = self.settings;
        let (endpoint, token) = (endpoint.clone(), token.as_ref().map(|token| token.source.clone()));
        let (model, url) = (self.model.to_owned(), url.to_owned());
        let code = text(response.headers(), "x-error-code").unwrap_or_default();
        let message = text(response.headers(), "x-error-message").unwrap_or_default();
        match (response.status().as_u16(), code.as_str(), token, asked) {
            (_, "GatedRepo", token, _) => HubError::Gated { model, endpoint, token },
            (401, _, Some(token), _) if message == BAD_TOKEN => HubError::BadToken { endpoint, token },
            (_, "RevisionNotFound", ..) => HubError::NoRevision { model, revision: self.revision.to_owned(), endpoint },
            (_, "EntryNotFound", _, Asked::File(name)) => HubError::NoFile { model, name: name.to_owned() },
            (401, _, token, _) | (_, "RepoNotFound", token, _) => HubError::NoModel { model, endpoint, token },
            (404, _, token, Asked::Listing) => HubError::NoModel { model, endpoint, token },
            (404, _, _, Asked::File(name)) => HubError::NoFile { model, name: name.to_owned() },
            (403, ..) if !has_same_host(&url, &endpoint) => HubError::ForbiddenElsewhere { url, message, endpoint },
            (403, _, token, _) => HubError::Forbidden { url, message, endpoint, token },
            (429, _, token, _) => {
                let seconds = text(response.headers(), RETRY_AFTER.as_str()).and_then(|seconds| seconds.parse().ok());
                HubError::TooManyRequests { endpoint, token, retry_after: seconds.map(Duration::from_secs) }
            }
            (status, ..) => HubError::Status { url, status, message },
        }
    }
}

fn is_refusal(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionRefused | ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable)
}

/// True if the revision is the full name of a commit, not of a branch or a tag.
pub(crate) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns a configuration of TLS that trusts only the certificates in this file.
fn tls_config(path: &Path) -> Result<TlsConfig, HubError> {
    let failed = |problem: String| HubError::Certificates { path: path.to_path_buf(), problem };
    let pem = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    let mut certificates = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| failed(error.to_string()))? {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() {
        return Err(failed("it contains none".to_owned()));
    }
    Ok(TlsConfig::builder().root_certs(RootCerts::from(certificates)).build())
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.trim().to_owned())
}

/// Returns the ETag in a header without `W/` and quotes, if it can be the name of a file.
fn etag(header: &str) -> Option<String> {
    let etag = header.strip_prefix("W/").unwrap_or(header).trim_matches('"');
    let is_name = !etag.is_empty() && etag.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    is_name.then(|| etag.to_owned())
}

/// Returns the start of the range and the size of the whole file from a header such as `bytes 5-9/10`.
fn content_range(header: &str) -> (u64, Option<String>) {
    let range = header.strip_prefix("bytes ").and_then(|range| range.split_once('/'));
    let start = |(range, _): (&str, &str)| range.split('-').next().and_then(|start| start.parse().ok());
    // The start is `u64::MAX` if the header cannot be read, because no caller asks for that offset.
    (range.and_then(start).unwrap_or(u64::MAX), range.map(|(_, size)| size.to_owned()))
}

fn has_same_host(a: &str, b: &str) -> bool {
    let host = |url: &str| url.parse::<Uri>().ok().map(|url| (url.scheme().cloned(), url.authority().cloned()));
    host(a).is_some() && host(a) == host(b)
}

/// The address to which a response redirects, or `None` if it does not.
fn redirect(response: &Response<Body>, url: &str) -> Option<String> {
    let location = text(response.headers(), LOCATION.as_str()).filter(|_| response.status().is_redirection())?;
    Some(absolute(url, &location))
}

/// The absolute address of a `Location` header that was read from `url`.
fn absolute(url: &str, location: &str) -> String {
    let is_path = location.starts_with('/') && !location.starts_with("//");
    let parsed = url.parse::<Uri>().ok().filter(|_| is_path);
    match parsed.as_ref().and_then(|url| Some((url.scheme_str()?, url.authority()?))) {
        Some((scheme, authority)) => format!("{scheme}://{authority}{location}"),
        None => location.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::HubArgs;
    use crate::environment::Environment;

    #[test]
    fn headers_are_read() {
        assert_eq!(etag("\"abc-1\""), Some("abc-1".into()));
        assert_eq!(etag("W/\"abc\""), Some("abc".into()));
        for bad in ["", "\"\"", "../../x", "a/b", ".a"] {
            assert_eq!(etag(bad), None, "{bad:?}");
        }
        assert_eq!(content_range("bytes 5-9/10"), (5, Some("10".into())));
        assert_eq!(content_range("bytes */10"), (u64::MAX, Some("10".into())));
        assert_eq!(content_range("pages 1-2/3"), (u64::MAX, None));
    }

    #[test]
    fn locations_are_seen_from_where_they_are_read() {
        assert_eq!(absolute("http://h:1/a/b", "/c?d"), "http://h:1/c?d");
        assert_eq!(absolute("http://h:1/a/b", "https://cdn/c"), "https://cdn/c");
        assert!(has_same_host("http://h:1/a", "http://h:1"));
        for other in ["http://h:2/a", "https://h:1/a", "//h:1/a", "nonsense"] {
            assert!(!has_same_host(other, "http://h:1"), "{other}");
        }
    }

    #[test]
    fn a_refusal_by_another_server_is_not_blamed_on_the_token() {
        let environment = Environment([("HOME", "/nowhere".into()), ("HF_TOKEN", "hf_x".into())].into());
        let settings = Settings::new(&HubArgs::default(), &environment).unwrap();
        let hub = Hub::new("org/tiny", "main", &settings).unwrap();
        let response = Response::builder().status(403).body(Body::builder().data("")).unwrap();
        let error = |url: &str| hub.refusal(&response, url, Asked::Listing).to_string();
        assert!(error(&settings.endpoint).contains("the token that was used is from HF_TOKEN"));
        let elsewhere = error("https://elsewhere.example/x");
        let expected = "the request for https://elsewhere.example/x is refused (status 403); https://";
        assert!(elsewhere.starts_with(expected) && elsewhere.contains("gets no token"), "{elsewhere}");
    }

    #[test]
    fn an_encrypted_hub_sends_nobody_to_an_open_place() {
        let settings = |endpoint: &str| {
            let environment = Environment([("HOME", "/nowhere".into()), ("HF_ENDPOINT", endpoint.into())].into());
            Settings::new(&HubArgs::default(), &environment).unwrap()
        };
        // Nothing listens on this port.
        let url = "http://127.0.0.1:1/x".to_owned();
        let file = RemoteFile { name: "x".into(), etag: "e".into(), size_bytes: 1, url };
        let error = |settings: &Settings| {
            Hub::new("org/tiny", "main", settings).unwrap().open(&file, 0).err().unwrap().to_string()
        };
        let refused = error(&settings("https://hub.example"));
        insta::assert_snapshot!(
            refused,
            @"https://hub.example redirects to http://127.0.0.1:1/x, which is not encrypted; nothing is downloaded from there"
        );
        assert!(error(&settings("http://hub.example")).contains("cannot be reached"));
    }

    #[test]
    fn a_file_without_certificates_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        assert!(tls_config(&path).unwrap_err().to_string().contains("ca.pem: No such file"));
        std::fs::write(&path, "nothing").unwrap();
        assert!(tls_config(&path).unwrap_err().to_string().ends_with("ca.pem: it contains none"));
        let certificate = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
        std::fs::write(&path, certificate).unwrap();
        assert!(tls_config(&path).is_ok());
    }

    #[test]
    fn commits_are_told_from_branches() {
        assert!(is_commit("0123456789abcdef0123456789abcdef01234567"));
        assert!(!is_commit("main") && !is_commit("refs/pr/1") && !is_commit(&"g".repeat(40)));
    }
}
