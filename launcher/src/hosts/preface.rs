//! The beginning of each connection between two hosts: both sides prove that they know the secret, and the side that
//! connects names the purpose of the connection.
//!
//! ```text
//!  connects ── magic, version, encryption ───────▶ listens
//!           ◀───── magic, version, encryption ──     then TLS, if both sides have it
//!           ── nonce ────────────────────────────▶
//!           ◀──────────────────────── nonce ──
//!           ── proof ────────────────────────────▶
//!           ◀─────────────── known, proof ──         nothing but 0 if the first proof is wrong
//!           ── purpose, proof ───────────────────▶
//!           ◀───────────────── verdict, proof ──     then the bytes of the purpose
//! ```
//!
//! The greetings are never encrypted, so that a side without TLS and one with it can name the difference. The side that
//! connects proves first: a stranger who connects gets no proof with which a weak secret could be guessed.
//!
//! A proof covers both nonces, the side, the purpose and the TLS connection if there is one, so a recorded or relayed
//! proof is useless in another conversation.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use endpoint::Stream;
use serde_json::{Value, json};

use super::tls::{Channel, Tls};
use super::{Secret, owner};

const MAGIC: &[u8; 8] = b"HILODOOR";
/// The version of the preface and of the messages between launchers. Increase it with each change.
const VERSION: u16 = 2;
const NONCE_BYTES: usize = 32;
/// The maximum length of a purpose or of a verdict's text, in bytes.
const MAX_TEXT_BYTES: usize = 64 << 10;
/// The maximum time of a preface, with TLS, for the side that connects.
const DEADLINE: Duration = Duration::from_secs(10);
/// The maximum time from an accepted connection to its proof. Until then it may be anybody's.
const PROOF_DEADLINE: Duration = Duration::from_secs(2);

const UNKNOWN: u8 = 0;
const KNOWN: u8 = 1;

const ACCEPTED: u8 = 0;
const BUSY: u8 = 1;
const REFUSED: u8 = 2;

/// The purpose of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The link between two launchers. Host 0 sends a random `session` and the `settings` that all hosts must share.
    Join { session: String, settings: Value },
    /// Commands of the router for a shard.
    Shard { session: String, shard: u32 },
    /// Sums between two shards; `to` is on the host that listens.
    Peer { session: String, from: u32, to: u32 },
}

/// The decision about a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Accepted,
    /// Not now: the same request may succeed later.
    Busy(String),
    Refused(String),
}

/// The reason why a connection has no purpose.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrefaceError {
    #[error("{}", told(.0))]
    Io(#[from] io::Error),
    #[error("{}", told(.0))]
    Unreachable(io::Error),
    #[error("TLS failed: {0}")]
    Tls(io::Error),
    #[error("it has {}, but this host has {}; pass --slice-tls on every host or on none", tls(*.there), tls(!.there))]
    Encryption { there: bool },
    #[error("it is not a host of a slice")]
    NotAHost,
    #[error(
        "it speaks version {found} between hosts, but this host speaks version {VERSION}; use one release everywhere"
    )]
    Version { found: u16 },
    #[error("it has another secret; pass the same --slice-secret-file on every host")]
    Secret,
    #[error(
        "it belongs to the user with id {uid}, and the hosts have no secret; run all hosts as one user, or pass \
         --slice-secret-file, the same on every host"
    )]
    Owner { uid: u32 },
    #[error("{0}")]
    Busy(String),
    #[error("{0}")]
    Refused(String),
}

impl PrefaceError {
    /// True if another attempt may succeed without a change of configuration.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::Io(_) | Self::Unreachable(_) | Self::Tls(_) | Self::Busy(_))
    }

    /// True if a program that is no host can cause the error.
    pub(super) fn is_of_anybody(&self) -> bool {
        matches!(self, Self::Io(_) | Self::Tls(_) | Self::NotAHost | Self::Owner { .. })
    }
}

/// Begins a connection that this host has made.
///
/// # Errors
/// When the other side is not a host with the same version, encryption and secret, or does not accept the purpose.
pub(super) fn call(
    stream: TcpStream,
    (secret, tls): (&Secret, Option<&Tls>),
    purpose: &Purpose,
) -> Result<Stream, PrefaceError> {
    let until = Instant::now() + DEADLINE;
    greet(&stream, tls, until)?;
    check_owner(&stream, secret)?;
    let Channel { mut stream, binding } = Channel::connected(stream, tls, until).map_err(PrefaceError::Tls)?;
    let mut wire = Wire { stream: &mut stream, until };
    let own = nonce()?;
    wire.send(&[&own])?;
    let theirs: [u8; NONCE_BYTES] = wire.read()?;
    wire.send(&[&secret.prove(&[b"connects", &binding, &own, &theirs])])?;
    let [answer] = wire.read()?;
    // Whoever does not know the secret learns no purpose.
    if answer != KNOWN || !secret.is_proof(&[b"listens", &binding, &own, &theirs], &wire.read()?) {
        return Err(PrefaceError::Secret);
    }
    let text = purpose.to_json().to_string();
    let proof = secret.prove(&[b"wants", &binding, &own, &theirs, text.as_bytes()]);
    wire.send(&[&len(text.len()), text.as_bytes(), &proof])?;
    let [code] = wire.read()?;
    let reason = wire.text()?;
    if !secret.is_proof(&[b"decides", &binding, &own, &theirs, &[code], reason.as_bytes()], &wire.read()?) {
        return Err(PrefaceError::Secret);
    }
    match code {
        ACCEPTED => Ok(stream),
        BUSY => Err(PrefaceError::Busy(reason)),
        _ => Err(PrefaceError::Refused(reason)),
    }
}

/// Begins a connection that was made to this host, and returns it with its purpose, which `decide` has accepted. Calls
/// `proved` as soon as the other side has proved that it knows the secret.
///
/// # Errors
/// When the other side is not a host with the same version, encryption and secret, or `decide` does not accept.
pub(super) fn answer(
    stream: TcpStream,
    (secret, tls): (&Secret, Option<&Tls>),
    proved: impl FnOnce(),
    decide: impl FnOnce(&Purpose) -> Verdict,
) -> Result<(Stream, Purpose), PrefaceError> {
    let until = Instant::now() + PROOF_DEADLINE;
    greet(&stream, tls, until)?;
    check_owner(&stream, secret)?;
    let Channel { mut stream, binding } = Channel::accepted(stream, tls, until).map_err(PrefaceError::Tls)?;
    let mut wire = Wire { stream: &mut stream, until };
    let own = nonce()?;
    wire.send(&[&own])?;
    let theirs: [u8; NONCE_BYTES] = wire.read()?;
    if !secret.is_proof(&[b"connects", &binding, &theirs, &own], &wire.read()?) {
        wire.send(&[&[UNKNOWN]])?;
        return Err(PrefaceError::Secret);
    }
    proved();
    wire.until = Instant::now() + DEADLINE;
    wire.send(&[&[KNOWN], &secret.prove(&[b"listens", &binding, &theirs, &own])])?;
    let text = wire.text()?;
    if !secret.is_proof(&[b"wants", &binding, &theirs, &own, text.as_bytes()], &wire.read()?) {
        return Err(PrefaceError::Secret);
    }
    let purpose = serde_json::from_str(&text).ok().and_then(|json| Purpose::from_json(&json));
    let purpose = purpose.ok_or(PrefaceError::NotAHost)?;
    let verdict = decide(&purpose);
    let (code, reason) = match &verdict {
        Verdict::Accepted => (ACCEPTED, ""),
        Verdict::Busy(reason) => (BUSY, reason.as_str()),
        Verdict::Refused(reason) => (REFUSED, reason.as_str()),
    };
    let proof = secret.prove(&[b"decides", &binding, &theirs, &own, &[code], reason.as_bytes()]);
    wire.send(&[&[code], &len(reason.len()), reason.as_bytes(), &proof])?;
    match verdict {
        Verdict::Accepted => Ok((stream, purpose)),
        Verdict::Busy(reason) => Err(PrefaceError::Busy(reason)),
        Verdict::Refused(reason) => Err(PrefaceError::Refused(reason)),
    }
}

/// Exchanges greetings, which are not encrypted. Both sides send theirs first, so that both can name every difference.
fn greet(stream: &TcpStream, tls: Option<&Tls>, until: Instant) -> Result<(), PrefaceError> {
    let mut stream = Stream::Tcp(stream.try_clone()?);
    let mut wire = Wire { stream: &mut stream, until };
    wire.send(&[MAGIC, &VERSION.to_le_bytes(), &[u8::from(tls.is_some())]])?;
    if &wire.read::<8>()? != MAGIC {
        return Err(PrefaceError::NotAHost);
    }
    match u16::from_le_bytes(wire.read()?) {
        VERSION => {}
        found => return Err(PrefaceError::Version { found }),
    }
    let there = wire.read::<1>()? != [0];
    if there == tls.is_some() { Ok(()) } else { Err(PrefaceError::Encryption { there }) }
}

/// Without a secret, checks that both ends of a connection have the same user.
fn check_owner(stream: &TcpStream, secret: &Secret) -> Result<(), PrefaceError> {
    match if secret.is_empty() { owner::other_user(stream)? } else { None } {
        Some(uid) => Err(PrefaceError::Owner { uid }),
        None => Ok(()),
    }
}

/// Returns the words for a host with TLS or without it.
fn tls(is_on: bool) -> &'static str {
    if is_on { "--slice-tls" } else { "no --slice-tls" }
}

/// Returns an error of a connection in words.
fn told(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => "it does not answer".to_owned(),
        io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
        _ => error.to_string(),
    }
}

/// A connection whose preface must be over at a point in time.
struct Wire<'a> {
    stream: &'a mut Stream,
    until: Instant,
}

impl Wire<'_> {
    fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write_all(&parts.concat())
    }

    fn read<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn text(&mut self) -> Result<String, PrefaceError> {
        let len = u32::from_le_bytes(self.read()?) as usize;
        if len > MAX_TEXT_BYTES {
            return Err(PrefaceError::NotAHost);
        }
        let mut bytes = vec![0; len];
        self.fill(&mut bytes)?;
        String::from_utf8(bytes).map_err(|_| PrefaceError::NotAHost)
    }

    fn fill(&mut self, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_read_timeout(Some(self.left()?))?;
            match self.stream.read(bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => bytes = &mut bytes[len..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Purpose {
    fn to_json(&self) -> Value {
        match self {
            Self::Join { session, settings } => json!({"join": session, "settings": settings}),
            Self::Shard { session, shard } => json!({"session": session, "shard": shard}),
            Self::Peer { session, from, to } => json!({"session": session, "from": from, "to": to}),
        }
    }

    fn from_json(json: &Value) -> Option<Self> {
        let text = |name: &str| Some(json.get(name)?.as_str()?.to_owned());
        let number = |name: &str| u32::try_from(json.get(name)?.as_u64()?).ok();
        if let Some(session) = text("join") {
            return Some(Self::Join { session, settings: json.get("settings")?.clone() });
        }
        let session = text("session")?;
        match number("shard") {
            Some(shard) => Some(Self::Shard { session, shard }),
            None => Some(Self::Peer { session, from: number("from")?, to: number("to")? }),
        }
    }

    /// The session that the purpose names.
    pub(super) fn session(&self) -> &str {
        match self {
            Self::Join { session, .. } | Self::Shard { session, .. } | Self::Peer { session, .. } => session,
        }
    }
}

fn len(len: usize) -> [u8; 4] {
    u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes()
}

/// Returns random bytes of the system.
///
/// # Errors
/// When the system has none.
pub(super) fn nonce() -> io::Result<[u8; NONCE_BYTES]> {
    let mut bytes = [0; NONCE_BYTES];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_are_read_as_they_were_written() {
        let session = || "a1".to_owned();
        for purpose in [
            Purpose::Join { session: session(), settings: json!({"--device": "cpu"}) },
            Purpose::Shard { session: session(), shard: 3 },
            Purpose::Peer { session: session(), from: 0, to: 2 },
        ] {
            assert_eq!(Purpose::from_json(&purpose.to_json()), Some(purpose));
        }
        assert_eq!(Purpose::from_json(&json!({"session": "a", "shard": -1})), None);
    }
}
