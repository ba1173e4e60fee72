//! A server that behaves like the Hugging Face Hub and like the other host to which the Hub redirects large downloads.
//! It has redirects, ranges, ETags, tokens, and faults on demand. It serves one model and records the requests.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use serde_json::json;
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The commit of the branch `main`.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// The id of the model.
pub const MODEL_ID: &str = "org/tiny";
/// A former id of the model.
pub const OLD_MODEL_ID: &str = "org/old-name";
/// The maximum number of bytes of a file that are sent at a time.
const CHUNK_BYTES: usize = 16 << 10;

/// A running Hub with one model. Its threads end with the test process.
#[derive(Debug)]
pub struct Hub {
    hub: SocketAddr,
    state: Arc<State>,
}

/// A fault of the Hub in the response to a request.
#[derive(Debug, Clone)]
pub enum HubFault {
    /// The response has this status and these headers, and no body.
    Status(u16, Vec<(&'static str, String)>),
    /// The response has this header instead of a header of the same name.
    Header(&'static str, String),
    /// The connection is closed after this number of bytes of the body.
    Cut(usize),
    /// Nothing is sent after this number of bytes of the body, and the connection stays open.
    Stall(usize),
    /// The first byte of the body is wrong.
    WrongByte,
    /// The body has this number of bytes more than the file.
    Longer(usize),
    /// The requested range is ignored, and the file is sent from its start.
    NoRanges,
}

/// A request that the Hub received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubRequest {
    /// `GET` or `HEAD`.
    pub method: String,
    /// The path with the query.
    pub path: String,
    /// True if the request went to the host of large files.
    pub is_elsewhere: bool,
    /// All headers, by lower-case name.
    pub headers: BTreeMap<String, String>,
}

#[derive(Debug)]
struct State {
    elsewhere: SocketAddr,
    files: BTreeMap<String, Vec<u8>>,
    token: Option<String>,
    faults: Mutex<Vec<Rule>>,
    requests: Mutex<Vec<HubRequest>>,
    served: Mutex<Served>,
    changed: Condvar,
}

/// A fault for the next `times` requests of this method whose path contains `part`.
#[derive(Debug)]
struct Rule {
    method: &'static str,
    part: &'static str,
    times: usize,
    fault: HubFault,
}

/// The number of bytes of files that were sent so far, and the maximum of this number.
#[derive(Debug)]
struct Served {
    num_bytes: u64,
    limit: u64,
}

/// A response of the Hub.
struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Hub {
    /// Starts a Hub whose model has these files. If there is a `token`, only clients with it may read the model.
    ///
    /// # Panics
    /// When no port is free.
    pub fn start(files: impl IntoIterator<Item = (String, Vec<u8>)>, token: Option<&str>) -> Self {
        let bind = || TcpListener::bind("127.0.0.1:0").expect("a free port");
        let (hub, elsewhere) = (bind(), bind());
        let address = |listener: &TcpListener| listener.local_addr().expect("a bound socket has an address");
        let state = Arc::new(State {
            elsewhere: address(&elsewhere),
            files: files.into_iter().collect(),
            token: token.map(str::to_owned),
            faults: Mutex::default(),
            requests: Mutex::default(),
            served: Mutex::new(Served { num_bytes: 0, limit: u64::MAX }),
            changed: Condvar::new(),
        });
        let started = Self { hub: address(&hub), state };
        for (listener, is_elsewhere) in [(hub, false), (elsewhere, true)] {
            let state = Arc::clone(&started.state);
            std::thread::spawn(move || accept(&listener, &state, is_elsewhere));
        }
        started
    }

    /// The value for `HF_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.hub)
    }

    /// Injects the fault into the next `times` requests with this method whose path contains `part`.
    pub fn fault(&self, method: &'static str, part: &'static str, times: usize, fault: HubFault) {
        lock(&self.state.faults).push(Rule { method, part, times, fault });
    }

    /// Returns the requests since the last call of this function.
    pub fn requests(&self) -> Vec<HubRequest> {
        std::mem::take(&mut lock(&self.state.requests))
    }

    /// The number of bytes of files that were sent so far.
    pub fn num_bytes_sent(&self) -> u64 {
        lock(&self.state.served).num_bytes
    }

    /// Stops sending after `num_bytes` more bytes of files.
    pub fn limit(&self, num_bytes: u64) {
        let mut served = lock(&self.state.served);
        served.limit = served.num_bytes.saturating_add(num_bytes);
        self.state.changed.notify_all();
    }

    /// Waits until all bytes that [`Self::limit`] allows have been sent.
    ///
    /// # Panics
    /// When they have not been sent within 60 s.
    pub fn wait_for_limit(&self) {
        let has_more = |served: &mut Served| served.num_bytes < served.limit;
        let deadline = std::time::Duration::from_secs(60);
        let guard = self.state.changed.wait_timeout_while(lock(&self.state.served), deadline, has_more);
        let (served, timeout) = guard.expect("no thread panics with the lock");
        assert!(!timeout.timed_out(), "{} bytes were sent and no more asked for", served.num_bytes);
    }
}

fn accept(listener: &TcpListener, state: &Arc<State>, is_elsewhere: bool) {
    for connection in listener.incoming().flatten() {
        let state = Arc::clone(state);
        // The error is ignored: a client that is killed breaks its connection, which is not a failure of the test.
        std::thread::spawn(move || drop(state.converse(connection, is_elsewhere)));
    }
}

impl State {
    fn converse(&self, mut connection: TcpStream, is_elsewhere: bool) -> std::io::Result<()> {
        let Some(request) = read_request(&connection, is_elsewhere)? else { return Ok(()) };
        lock(&self.requests).push(request.clone());
        let fault = self.take_fault(&request);
        let mut answer = match (&fault, is_elsewhere) {
            (Some(HubFault::Status(status, headers)), _) => Answer::new(*status, headers.clone()),
            (_, true) => self.contents(&request, fault.as_ref()),
            (_, false) => self.route(&request, fault.as_ref()),
        };
        let mut end = answer.body.len();
        match &fault {
            Some(HubFault::Header(name, value)) => {
                answer.headers.retain(|(other, _)| other != name);
                answer.headers.push((name, value.clone()));
            }
            Some(HubFault::Cut(len) | HubFault::Stall(len)) => end = end.min(*len),
            Some(HubFault::WrongByte) => answer.body[0] ^= 1,
            Some(HubFault::Longer(len)) => {
                answer.body.resize(end + len, 0);
                end = answer.body.len();
            }
            None | Some(HubFault::Status(..) | HubFault::NoRanges) => {}
        }
        write!(connection, "HTTP/1.1 {} Answer\r\nConnection: close\r\n", answer.status)?;
        if !answer.headers.iter().any(|(name, _)| *name == "Content-Length") {
            write!(connection, "Content-Length: {}\r\n", answer.body.len())?;
        }
        for (name, value) in &answer.headers {
            write!(connection, "{name}: {value}\r\n")?;
        }
        connection.write_all(b"\r\n")?;
        match (request.method.as_str(), request.path.starts_with("/api/models/")) {
            ("GET", true) => connection.write_all(&answer.body[..end])?,
            ("GET", false) => self.send(&mut connection, &answer.body[..end])?,
            _ => {}
        }
        if let Some(HubFault::Stall(_)) = fault {
            // This read ends when the client closes the connection.
            connection.read_to_end(&mut Vec::new())?;
        }
        Ok(())
    }

    /// Returns the response of the Hub's own host.
    fn route(&self, request: &HubRequest, fault: Option<&HubFault>) -> Answer {
        let error = |status, code: &str, message: &str| {
            Answer::new(status, vec![("X-Error-Code", code.to_owned()), ("X-Error-Message", message.to_owned())])
        };
        let given = request.headers.get("authorization");
        match (&self.token, given) {
            (Some(token), Some(given)) if *given != format!("Bearer {token}") => {
                return error(401, "", "Invalid credentials in Authorization header");
            }
            (Some(_), None) => return error(401, "RepoNotFound", "Invalid username or password."),
            _ => {}
        }
        if request.path.contains(OLD_MODEL_ID) {
            return Answer::new(307, vec![("Location", request.path.replace(OLD_MODEL_ID, MODEL_ID))]);
        }
        let api = format!("/api/models/{MODEL_ID}/revision/");
        if let Some(revision) = request.path.strip_prefix(&api) {
            return match revision {
                "main" | "refs%2Fpr%2F1" | COMMIT => Answer::json(&self.listing()),
                _ => error(404, "RevisionNotFound", &format!("Invalid rev id: {revision}")),
            };
        }
        let (resolve, cached) =
            (format!("/{MODEL_ID}/resolve/{COMMIT}/"), format!("/api/resolve-cache/models/{MODEL_ID}/{COMMIT}/"));
        let name = request.path.strip_prefix(&resolve).or_else(|| request.path.strip_prefix(&cached));
        let Some(name) = name else { return error(401, "RepoNotFound", "Invalid username or password.") };
        let Some(bytes) = self.files.get(name) else { return error(404, "EntryNotFound", "Entry not found") };
        let commit = ("X-Repo-Commit", COMMIT.to_owned());
        if is_large(name) {
            let location = format!("http://{}/blobs/{name}?signature=x%2Fy", self.elsewhere);
            let (etag, size) = (format!("\"{}\"", sha256(bytes)), bytes.len().to_string());
            let headers = [("Location", location), ("X-Linked-Etag", etag), ("X-Linked-Size", size), commit];
            return Answer::new(302, headers.to_vec());
        }
        if request.path.starts_with(&resolve) {
            return Answer::new(307, vec![("Location", format!("{cached}{name}")), commit]);
        }
        let mut answer = self.contents(request, fault);
        answer.headers.extend([("ETag", format!("\"{}\"", git_sha1(bytes))), commit]);
        answer
    }

    /// Returns the response with a file, or with the requested range of the file.
    fn contents(&self, request: &HubRequest, fault: Option<&HubFault>) -> Answer {
        let path = request.path.split('?').next().unwrap_or_default();
        let name = path.rsplit('/').next().unwrap_or_default();
        let bytes = &self.files[name];
        let range = request.headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
        let start = range.and_then(|start| start.parse().ok()).filter(|_| !matches!(fault, Some(HubFault::NoRanges)));
        match start {
            None => Answer { status: 200, headers: Vec::new(), body: bytes.clone() },
            Some(start) if start >= bytes.len() => Answer::new(416, Vec::new()),
            Some(start) => {
                let range = format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len());
                Answer { status: 206, headers: vec![("Content-Range", range)], body: bytes[start..].to_vec() }
            }
        }
    }

    fn listing(&self) -> serde_json::Value {
        let siblings: Vec<_> = self.files.keys().map(|name| json!({"rfilename": name})).collect();
        json!({"id": MODEL_ID, "sha": COMMIT, "siblings": siblings, "tags": ["text-generation"], "gated": false})
    }

    fn take_fault(&self, request: &HubRequest) -> Option<HubFault> {
        let mut rules = lock(&self.faults);
        let is_meant =
            |rule: &&mut Rule| rule.times > 0 && rule.method == request.method && request.path.contains(rule.part);
        let rule = rules.iter_mut().find(is_meant)?;
        rule.times -= 1;
        Some(rule.fault.clone())
    }

    /// Sends bytes of a file. While the limit is reached, it waits.
    fn send(&self, connection: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let is_full = |served: &mut Served| served.num_bytes >= served.limit;
            let guard = self.changed.wait_while(lock(&self.served), is_full);
            let mut served = guard.expect("no thread panics with the lock");
            let allowed = usize::try_from(served.limit - served.num_bytes).unwrap_or(usize::MAX);
            let len = rest.len().min(CHUNK_BYTES).min(allowed);
            served.num_bytes += len as u64;
            drop(served);
            let outcome = connection.write_all(&rest[..len]);
            self.changed.notify_all();
            outcome?;
            rest = &rest[len..];
        }
        connection.flush()
    }
}

impl Answer {
    fn new(status: u16, headers: Vec<(&'static str, String)>) -> Self {
        Self { status, headers, body: Vec::new() }
    }

    fn json(value: &serde_json::Value) -> Self {
        let headers = vec![("Content-Type", "application/json".to_owned())];
        Self { status: 200, headers, body: value.to_string().into_bytes() }
    }
}

fn read_request(connection: &TcpStream, is_elsewhere: bool) -> std::io::Result<Option<HubRequest>> {
    let mut lines = BufReader::new(connection).lines();
    let Some(first) = lines.next().transpose()? else { return Ok(None) };
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default().to_owned());
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    Ok(Some(HubRequest { method, path, is_elsewhere, headers }))
}

/// True if the file is stored on the other host, with its SHA-256 as ETag.
fn is_large(name: &str) -> bool {
    name.ends_with(".safetensors")
}

/// Returns the id that git gives to a file: a SHA-1 that covers its length and its bytes.
fn git_sha1(bytes: &[u8]) -> String {
    let hash = Sha1::new().chain_update(format!("blob {}\0", bytes.len())).chain_update(bytes);
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics with the lock")
}
