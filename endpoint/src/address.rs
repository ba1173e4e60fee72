//! Endpoints, and how they are parsed from text and printed.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;

/// The start of a TCP address. Text with this start but without the two slashes is an error, not a path, because a
/// typing error is more likely than a file with such a name.
const TCP: &str = "tcp:";
const UNIX: &str = "unix:";

/// An address of a socket. As text it is a path, `unix:path` or `tcp://host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// The path of a Unix socket.
    Unix(PathBuf),
    /// A host and port on TCP.
    Tcp {
        /// A host name, or an IP address without brackets.
        host: String,
        /// The port. 0 only for listening on a port that the system chooses; parsed addresses never have port 0.
        port: u16,
    },
}

/// The error for text that is not an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what the variant means")]
pub enum AddressError {
    #[error(
        "{0:?} is not an address; it must be a path, unix:path, or tcp://host:port with a port from 1 to 65535 and an \
         IPv6 address in brackets"
    )]
    Malformed(String),
    #[error(
        "{prefix:?} has no port for shard {shard}: each shard adds its number to the port, and 65535 is the last one; use \
         a lower port"
    )]
    NoPort { prefix: String, shard: u32 },
}

impl Endpoint {
    /// Returns the address of one shard: `prefix` with `-<shard>` appended to a path, as in TGI, or with the shard's
    /// number added to a port.
    ///
    /// # Errors
    /// When `prefix` is not an address, or the shard's port would be above 65535.
    pub fn of_shard(prefix: &str, shard: u32) -> Result<Self, AddressError> {
        if !prefix.starts_with(TCP) {
            return proto::socket_path(prefix, shard).parse();
        }
        let (host, first_port) = parse_tcp(prefix)?;
        let port = u16::try_from(shard).ok().and_then(|shard| first_port.checked_add(shard));
        let port = port.ok_or_else(|| AddressError::NoPort { prefix: prefix.to_owned(), shard })?;
        Ok(Self::Tcp { host, port })
    }
}

impl FromStr for Endpoint {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.starts_with(TCP) {
            return parse_tcp(text).map(|(host, port)| Self::Tcp { host, port });
        }
        let path = text.strip_prefix(UNIX).unwrap_or(text);
        if path.is_empty() {
            return Err(AddressError::Malformed(text.to_owned()));
        }
        Ok(Self::Unix(path.into()))
    }
}

/// Returns the host and the port of `tcp://host:port`.
fn parse_tcp(text: &str) -> Result<(String, u16), AddressError> {
    let place = text.strip_prefix(TCP).and_then(|rest| rest.strip_prefix("//"));
    let parsed = place.and_then(|place| place.rsplit_once(':')).and_then(|(host, port)| {
        let host = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']')?.parse::<Ipv6Addr>().ok()?.to_string(),
            None => Some(host).filter(|host| is_name(host))?.to_owned(),
        };
        Some((host, port.parse().ok().filter(|port| *port > 0)?))
    });
    parsed.ok_or_else(|| AddressError::Malformed(text.to_owned()))
}

/// True if `host` may be a host name or an IPv4 address.
fn is_name(host: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    !host.is_empty() && host.bytes().all(is_allowed)
}

/// Writes text that parses to the same address, if a path is UTF-8 and a port is not 0.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => {
                let path = path.display().to_string();
                let is_ambiguous = path.starts_with(TCP) || path.starts_with(UNIX);
                write!(f, "{}{path}", if is_ambiguous { UNIX } else { "" })
            }
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn addresses_are_parsed_and_printed() {
        for (text, expected, printed) in [
            ("/run/hilo/shard-0", Endpoint::Unix("/run/hilo/shard-0".into()), "/run/hilo/shard-0"),
            ("unix:/run/a b", Endpoint::Unix("/run/a b".into()), "/run/a b"),
            ("relative", Endpoint::Unix("relative".into()), "relative"),
            ("unix:tcp://x", Endpoint::Unix("tcp://x".into()), "unix:tcp://x"),
            ("unix:unix:x", Endpoint::Unix("unix:x".into()), "unix:unix:x"),
            ("tcp://127.0.0.1:9000", tcp("127.0.0.1", 9000), "tcp://127.0.0.1:9000"),
            ("tcp://host-1.example_x.org:1", tcp("host-1.example_x.org", 1), "tcp://host-1.example_x.org:1"),
            ("tcp://[0:0::1]:65535", tcp("::1", 65535), "tcp://[::1]:65535"),
        ] {
            assert_eq!(text.parse(), Ok(expected.clone()), "{text}");
            assert_eq!(expected.to_string(), printed);
            assert_eq!(printed.parse(), Ok(expected));
        }
    }

    #[test]
    fn bad_addresses_are_named() {
        for text in [
            "",
            "unix:",
            "tcp:",
            "tcp://",
            "tcp:127.0.0.1:9000",
            "tcp:/127.0.0.1:9000",
            "tcp://127.0.0.1",
            "tcp://127.0.0.1:",
            "tcp://127.0.0.1:0",
            "tcp://127.0.0.1:65536",
            "tcp://127.0.0.1:http",
            "tcp://127.0.0.1:9000/",
            "tcp://:9000",
            "tcp://::1:9000",
            "tcp://[::1:9000",
            "tcp://[host]:9000",
            "tcp://user@host:9000",
            "tcp://a b:9000",
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{text:?} is not an address; ")), "{text}: {error}");
        }
    }

    #[test]
    fn every_rank_has_its_address() {
        assert_eq!(Endpoint::of_shard("/tmp/s", 3), Ok(Endpoint::Unix("/tmp/s-3".into())));
        assert_eq!(Endpoint::of_shard("unix:s", 0), Ok(Endpoint::Unix("s-0".into())));
        assert_eq!(Endpoint::of_shard("tcp://[::1]:9000", 2), Ok(tcp("::1", 9002)));
        assert_eq!(Endpoint::of_shard("tcp://a:65535", 0), Ok(tcp("a", 65535)));
        for shard in [1, 1 << 16, u32::MAX] {
            let error = Endpoint::of_shard("tcp://a:65535", shard).unwrap_err().to_string();
            assert!(error.starts_with(&format!("\"tcp://a:65535\" has no port for shard {shard}: ")), "{error}");
        }
        assert!(Endpoint::of_shard("tcp://a", 0).is_err());
    }
}
