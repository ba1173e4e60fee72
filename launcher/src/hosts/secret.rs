//! The secret that the hosts of a slice share, and proofs of knowing it.

use std::fmt;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::Hosts;

/// The minimum length of a secret, in bytes.
const MIN_BYTES: usize = 16;

/// The length of a proof, in bytes.
const PROOF_BYTES: usize = 32;

/// The shared secret. Empty if the hosts are loopback addresses and have none.
#[derive(Clone)]
pub(crate) struct Secret(Vec<u8>);

impl Secret {
    /// Reads the secret of a slice with these hosts. White space around it does not count.
    ///
    /// # Errors
    /// When the file cannot be read or is too short, or when there is no file and a host is not a loopback address.
    pub(crate) fn read(file: Option<&Path>, hosts: &Hosts) -> Result<Self, String> {
        match file {
            Some(file) => {
                let bytes = std::fs::read(file)
                    .map_err(|error| format!("--slice-secret-file {} cannot be read: {error}", file.display()))?;
                let secret = bytes.trim_ascii();
                if secret.len() < MIN_BYTES {
                    let (file, len) = (file.display(), secret.len());
                    return Err(format!(
                        "--slice-secret-file {file} has {len} bytes, but a secret needs at least {MIN_BYTES}; make one \
                         with: head -c 32 /dev/urandom | base64"
                    ));
                }
                Ok(Self(secret.to_owned()))
            }
            None if hosts.are_loopback() => Ok(Self(Vec::new())),
            None => Err(format!(
                "the slice has hosts that are not loopback addresses, such as {}: pass --slice-secret-file, the same \
                 on every host; make the file with: head -c 32 /dev/urandom | base64",
                hosts.all.iter().find(|host| !host.is_loopback()).map_or("", |host| &host.name)
            )),
        }
    }

    /// True if the hosts share none, because they are loopback addresses.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the proof of knowing the secret, for these parts of a conversation.
    pub(super) fn prove(&self, parts: &[&[u8]]) -> [u8; PROOF_BYTES] {
        self.mac(parts).finalize().into_bytes().into()
    }

    /// Checks a proof, in constant time.
    pub(super) fn is_proof(&self, parts: &[&[u8]], proof: &[u8; PROOF_BYTES]) -> bool {
        self.mac(parts).verify_slice(proof).is_ok()
    }

    /// HMAC-SHA-256 (RFC 2104) over the parts, each after its length, so that bytes cannot move between parts.
    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of every length");
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }
}

/// Returns a warning if every user of this machine can read the file of a secret.
pub(crate) fn readable_by_all(flag: &str, path: &Path) -> Option<String> {
    let metadata = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let mode = metadata.permissions().mode() & 0o7777;
    (mode & 0o004 != 0).then(|| {
        let path = path.display();
        format!("{flag} {path} has mode {mode:04o}: every user of this machine can read it; run: chmod o= {path}")
    })
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    #[test]
    fn a_secret_that_everybody_can_read_is_named_with_its_mode() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        fs::write(&path, "a secret of some length").unwrap();
        let warning = |mode| {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let warning = readable_by_all("--slice-secret-file", &path);
            warning.map(|warning| warning.replace(&path.display().to_string(), "PATH"))
        };
        assert_eq!([0o600, 0o440, 0o660].map(warning), [None, None, None]);
        insta::assert_snapshot!(
            warning(0o644).unwrap(),
            @"--slice-secret-file PATH has mode 0644: every user of this machine can read it; run: chmod o= PATH"
        );
    }
}
