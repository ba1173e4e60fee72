//! `text-generation-launcher health`: asks a server on this machine if it is healthy, as a container's HEALTHCHECK
//! does.
//!
//! The address comes from the flags and variables of a launch: those given to this command or, with `--pid`, the flags
//! of a running launcher and the variables of this process.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use endpoint::Endpoint;
use router::HttpArgs;
use ureq::Agent;
use ureq::tls::TlsConfig;

use crate::command_line;

/// The maximum time for the server's response; on a Unix socket, for each read and write.
const DEADLINE: Duration = Duration::from_secs(5);
const EXECUTABLE: &str = "text-generation-launcher";
/// The HTTP status of a healthy server.
const HEALTHY: u16 = 200;

/// The arguments of `health`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct HealthArgs {
    /// Process id of a running launcher, whose flags are used instead of these; in a container it is 1
    #[arg(long)]
    pid: Option<u32>,

    #[command(flatten)]
    http: HttpArgs,
}

/// The address of the server: the URL of its health check, or its Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Url(String),
    Socket(Endpoint),
}

#[derive(Debug, thiserror::Error)]
enum HealthError {
    #[error("the command line of process {pid} cannot be read: {source}")]
    Process { pid: u32, source: io::Error },
    #[error("process {0} is not a {EXECUTABLE} that serves a model; pass the process id of one with --pid")]
    NotServing(u32),
    #[error("`hostname` {0:?} is not an IP address, such as 0.0.0.0, 127.0.0.1 or ::")]
    Hostname(String),
    #[error("`port` is 0, with which the server chooses a free port; pass the port that it chose, which its log names")]
    Port,
    #[error("no HTTP response from {place}: {reason}")]
    NoAnswer { place: Place, reason: String },
    #[error("{place} responds with status {status}, not {HEALTHY}")]
    Unhealthy { place: Place, status: u16 },
}

/// Asks the server once. The exit status is 0 if the server is healthy, otherwise 1.
pub(crate) fn run_as_process(args: &HealthArgs) -> ExitCode {
    match check(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr().lock(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn check(args: &HealthArgs) -> Result<(), HealthError> {
    let place = match args.pid {
        Some(pid) => Place::new(&flags_of(pid)?)?,
        None => Place::new(&args.http)?,
    };
    let answer = match &place {
        Place::Url(url) => ask_url(url).map_err(|error| error.to_string()),
        Place::Socket(endpoint) => ask_socket(endpoint).map_err(|error| error.to_string()),
    };
    match answer {
        Ok(HEALTHY) => Ok(()),
        Ok(status) => Err(HealthError::Unhealthy { place, status }),
        Err(reason) => Err(HealthError::NoAnswer { place, reason }),
    }
}

/// Returns the HTTP flags of the running launcher `pid`. Variables are read from this process; in a container both
/// processes have the same ones.
fn flags_of(pid: u32) -> Result<HttpArgs, HealthError> {
    let command_line = std::fs::read(format!("/proc/{pid}/cmdline"));
    let command_line = command_line.map_err(|source| HealthError::Process { pid, source })?;
    flags_in(&command_line).ok_or(HealthError::NotServing(pid))
}

/// Returns the HTTP flags in the command line of a launch, in the format of `/proc/<pid>/cmdline`. An init program such
/// as Docker's puts its own arguments first. Returns `None` if the command line starts no server.
fn flags_in(command_line: &[u8]) -> Option<HttpArgs> {
    let arguments = command_line.strip_suffix(b"\0")?.split(|byte| *byte == 0);
    let arguments = arguments.map(|argument| OsString::from_vec(argument.to_vec()));
    let is_other = |argument: &OsString| Path::new(argument).file_name() != Some(EXECUTABLE.as_ref());
    let mut arguments = arguments.skip_while(is_other).peekable();
    arguments.peek()?;
    let args = command_line::parse(arguments).ok()?;
    args.part.is_none().then_some(args.launch.http)
}

fn ask_url(url: &str) -> Result<u16, ureq::Error> {
    // The certificate is for the name that clients use, not for the address of this machine, so it is not checked.
    let tls = TlsConfig::builder().disable_verification(true).build();
    let config = Agent::config_builder().http_status_as_error(false).tls_config(tls).proxy(None);
    let agent: Agent = config.timeout_global(Some(DEADLINE)).build().into();
    Ok(agent.get(url).call()?.status().as_u16())
}

fn ask_socket(endpoint: &Endpoint) -> io::Result<u16> {
    let mut stream = endpoint.connect()?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut line = String::new();
    BufReader::new(stream.take(1 << 10)).read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("the server sent {line:?} instead")))
}

impl Place {
    /// The address where a server with these flags listens, as seen from this machine.
    fn new(http: &HttpArgs) -> Result<Self, HealthError> {
        if let Some(path) = &http.uds {
            return Ok(Self::Socket(Endpoint::Unix(path.clone())));
        }
        let address = match http.hostname.parse() {
            Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) => Ipv4Addr::LOCALHOST.into(),
            Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED)) => Ipv6Addr::LOCALHOST.into(),
            Ok(address) => address,
            Err(_) => return Err(HealthError::Hostname(http.hostname.clone())),
        };
        if http.port == 0 {
            return Err(HealthError::Port);
        }
        let scheme = if http.tls_certfile.is_some() { "https" } else { "http" };
        Ok(Self::Url(format!("{scheme}://{}/health", SocketAddr::new(address, http.port))))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => f.write_str(url),
            Self::Socket(endpoint) => endpoint.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use test_support::{accept, accept_unix, join};

    use super::*;

    fn place(command_line: &str) -> Option<String> {
        let http = flags_in(format!("{}\0", command_line.replace(' ', "\0")).as_bytes())?;
        Some(Place::new(&http).map_or_else(|error| error.to_string(), |place| place.to_string()))
    }

    #[test]
    fn the_flags_of_a_launch_say_where_to_ask() {
        for (command_line, expected) in [
            ("text-generation-launcher --port 80", "http://127.0.0.1:80/health"),
            ("/usr/bin/text-generation-launcher -p 1 --hostname=::", "http://[::1]:1/health"),
            ("text-generation-launcher --port 1 --hostname 10.0.0.1 --num-shard 2", "http://10.0.0.1:1/health"),
            ("/sbin/docker-init -- text-generation-launcher --port=8", "http://127.0.0.1:8/health"),
            ("text-generation-launcher --port=8 --tls-certfile c --ssl-keyfile k", "https://127.0.0.1:8/health"),
            ("text-generation-launcher --uds /data/http", "/data/http"),
        ] {
            assert_eq!(place(command_line).as_deref(), Some(expected), "{command_line}");
        }
        insta::assert_snapshot!(
            place("text-generation-launcher --port 0").unwrap(),
            @"`port` is 0, with which the server chooses a free port; pass the port that it chose, which its log names"
        );
        insta::assert_snapshot!(
            place("text-generation-launcher --hostname web-1").unwrap(),
            @r#"`hostname` "web-1" is not an IP address, such as 0.0.0.0, 127.0.0.1 or ::"#
        );
    }

    #[test]
    fn processes_that_do_not_serve_have_no_place() {
        for command_line in ["/lib/systemd/systemd --system", "text-generation-launcher plugin list", "", "sh -c ls"] {
            assert_eq!(place(command_line), None, "{command_line}");
        }
        assert!(flags_of(u32::MAX).is_err());
    }

    /// Sends a response to one request on the connection.
    fn answer(mut stream: impl Read + Write, status_line: &str) {
        let mut request = [0; 1 << 10];
        assert!(stream.read(&mut request).unwrap() > 0 && request.starts_with(b"GET /health HTTP/1.1\r\n"));
        write!(stream, "{status_line}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
    }

    fn ask(place: &str) -> Result<(), String> {
        let (flag, value) = place.split_once(' ').unwrap();
        let http = flags_in(format!("{EXECUTABLE}\0--hostname=127.0.0.1\0{flag}\0{value}\0").as_bytes()).unwrap();
        check(&HealthArgs { pid: None, http }).map_err(|error| error.to_string())
    }

    #[test]
    fn only_status_200_is_healthy() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let (tcp, unix) = (TcpListener::bind("127.0.0.1:0").unwrap(), UnixListener::bind(&path).unwrap());
        let address = format!("--port {}", tcp.local_addr().unwrap().port());
        let socket = format!("--uds {}", path.display());
        let server = std::thread::spawn(move || {
            for status_line in ["HTTP/1.1 200 OK", "HTTP/1.1 503 Service Unavailable", "garbage"] {
                answer(accept(&tcp, "a client on TCP"), status_line);
                answer(accept_unix(&unix, "a client on the Unix socket"), status_line);
            }
        });
        for place in [&address, &socket] {
            assert_eq!(ask(place), Ok(()), "{place}");
        }
        for sentence in ["responds with status 503", "no HTTP response from "] {
            for place in [&address, &socket] {
                let error = ask(place).unwrap_err();
                assert!(error.contains(sentence), "{place}: {error}");
            }
        }
        join(server, "the server of three rounds");
        assert!(
            ask(&address).unwrap_err().starts_with("no HTTP response from http://127.0.0.1:"),
            "nobody listens any more"
        );
        assert!(ask(&socket).unwrap_err().starts_with("no HTTP response from /"), "nobody listens any more");
    }
}
