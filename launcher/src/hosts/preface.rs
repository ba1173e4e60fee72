//! The beginning of each connection between two hosts: both sides prove that they know the secret, and the side that
//! connects names the purpose of the connection.
//!
//! ```text
//!  connects ── magic, version, nonce ────────────▶ listens
//!           ◀──── magic, version, nonce, proof ──
//!           ── purpose, proof ───────────────────▶
//!           ◀───────────────── verdict, proof ──     then the bytes of the purpose
//! ```
//!
//! A proof covers both nonces, the side, the purpose and the TLS connection if there is one, so a recorded or relayed
//! proof is useless in another conversation.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use endpoint::Stream;
use serde_json::{Value, json};

use super::Secret;
use super::tls::Channel;

const MAGIC: &[u8; 8] = b"HILODOOR";
/// The version of the preface and of the messages between launchers. Increase it with each change.
const VERSION: u16 = 1;
const NONCE_BYTES: usize = 32;
/// The maximum length of a purpose or of a verdict's text, in bytes.
const MAX_TEXT_BYTES: usize = 64 << 10;
/// The maximum time of a preface.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);

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
    #[error("TLS failed: {0}; pass --slice-tls on every host or on none")]
    Tls(io::Error),
    #[error("it is not a host of a slice")]
    NotAHost,
    #[error(
        "it speaks version {found} between hosts, but this host speaks version {VERSION}; use one release everywhere"
    )]
    Version { found: u16 },
    #[error("it has another secret; pass the same --slice-secret-file on every host")]
    Secret,
    #[error("{0}")]
    Busy(String),
    #[error("{0}")]
    Refused(String),
}

impl PrefaceError {
    /// True if another attempt may succeed without a change of configuration.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::Io(_) | Self::Tls(_) | Self::Busy(_))
    }
}

/// Begins a connection that this host has made.
///
/// # Errors
/// When the other side is not a host with the same version and secret, or does not accept the purpose.
pub(super) fn call(channel: &mut Channel, secret: &Secret, purpose: &Purpose) -> Result<(), PrefaceError> {
    let Channel { stream, binding } = channel;
    let mut wire = Wire { stream, until: Instant::now() + DEADLINE };
    let own = nonce()?;
    wire.send(&[MAGIC, &VERSION.to_le_bytes(), &own])?;
    let theirs = wire.greeting()?;
    let proof = wire.read()?;
    let is_host = secret.is_proof(&[b"listens", binding, &own, &theirs], &proof);
    // Whoever does not know the secret learns no purpose, only that this side has another secret.
    let text = if is_host { purpose.to_json().to_string() } else { String::new() };
    let proof = secret.prove(&[b"connects", binding, &own, &theirs, text.as_bytes()]);
    wire.send(&[&len(text.len()), text.as_bytes(), &proof])?;
    if !is_host {
        return Err(PrefaceError::Secret);
    }
    let [code] = wire.read()?;
    let reason = wire.text()?;
    let proof = wire.read()?;
    if !secret.is_proof(&[b"decides", binding, &own, &theirs, &[code], reason.as_bytes()], &proof) {
        return Err(PrefaceError::Secret);
    }
    match code {
        ACCEPTED => Ok(()),
        BUSY => Err(PrefaceError::Busy(reason)),
        _ => Err(PrefaceError::Refused(reason)),
    }
}

/// Begins a connection that was made to this host, and returns its purpose, which `decide` has accepted.
///
/// # Errors
/// When the other side is not a host with the same version and secret, or `decide` does not accept.
pub(super) fn answer(
    channel: &mut Channel,
    secret: &Secret,
    decide: impl FnOnce(&Purpose) -> Verdict,
) -> Result<Purpose, PrefaceError> {
    let Channel { stream, binding } = channel;
    let mut wire = Wire { stream, until: Instant::now() + DEADLINE };
    let own = nonce()?;
    // The own version is sent before the other one is judged, so that both sides can name both.
    wire.send(&[MAGIC, &VERSION.to_le_bytes(), &own])?;
    let theirs = wire.greeting()?;
    wire.send(&[&secret.prove(&[b"listens", binding, &theirs, &own])])?;
    let text = wire.text()?;
    let proof = wire.read()?;
    if !secret.is_proof(&[b"connects", binding, &theirs, &own, text.as_bytes()], &proof) {
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
    let proof = secret.prove(&[b"decides", binding, &theirs, &own, &[code], reason.as_bytes()]);
    wire.send(&[&[code], &len(reason.len()), reason.as_bytes(), &proof])?;
    match verdict {
        Verdict::Accepted => Ok(purpose),
        Verdict::Busy(reason) => Err(PrefaceError::Busy(reason)),
        Verdict::Refused(reason) => Err(PrefaceError::Refused(reason)),
    }
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

    /// Reads the other side's magic, version and nonce, and returns the nonce.
    fn greeting(&mut self) -> Result<[u8; NONCE_BYTES], PrefaceError> {
        if &self.read::<8>()? != MAGIC {
            return Err(PrefaceError::NotAHost);
        }
        match u16::from_le_bytes(self.read()?) {
            VERSION => Ok(self.read()?),
            found => Err(PrefaceError::Version { found }),
        }
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
