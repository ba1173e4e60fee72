//! Checks that the bytes of a file are those on the Hub. The ETag of a large file is its SHA-256; the ETag of any other
//! file is its Git object id.
//!
//! Entry point: [`Checksum`].

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::hub::RemoteFile;

/// The checksum of the bytes that were hashed so far.
#[derive(Debug, Clone)]
pub(crate) enum Checksum {
    Sha256(Sha256),
    /// A Git object id is the SHA-1 of a header and the bytes. A mirror may use the SHA-1 of the bytes alone.
    Sha1 {
        git: Sha1,
        plain: Sha1,
    },
}

impl Checksum {
    /// Returns the initial state of the checksum of this file, or `None` if the file's ETag is not a checksum.
    pub(crate) fn new(file: &RemoteFile) -> Option<Self> {
        let is_hexadecimal = file.etag.bytes().all(|byte| byte.is_ascii_hexdigit());
        match file.etag.len() {
            64 if is_hexadecimal => Some(Self::Sha256(Sha256::new())),
            40 if is_hexadecimal => {
                let git = Sha1::new().chain_update(format!("blob {}\0", file.size_bytes));
                Some(Self::Sha1 { git, plain: Sha1::new() })
            }
            _ => None,
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Sha1 { git, plain } => {
                git.update(bytes);
                plain.update(bytes);
            }
        }
    }

    /// Returns the checksum of the hashed bytes if it differs from `etag`, or `None` if they are equal.
    pub(crate) fn other_than(&self, etag: &str) -> Option<String> {
        let is_it = |found: &String| found.eq_ignore_ascii_case(etag);
        match self {
            Self::Sha256(hash) => Some(hexadecimal(&hash.clone().finalize())).filter(|found| !is_it(found)),
            Self::Sha1 { git, plain } => {
                let [git, plain] = [git, plain].map(|hash| hexadecimal(&hash.clone().finalize()));
                Some(git).filter(|git| !is_it(git) && !is_it(&plain))
            }
        }
    }
}

fn hexadecimal(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_known_by_every_kind_of_etag() {
        // The SHA-256, the Git object id and the SHA-1 of `hello\n`.
        for etag in [
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
            "ce013625030ba8dba906f756967f9e9ca394464a",
            "F572D396FAE9206628714FB2CE00F72E94F2258F",
        ] {
            let file = RemoteFile { name: "x".into(), etag: etag.into(), size_bytes: 6, url: String::new() };
            for (bytes, is_it) in [(&b"hello\n"[..], true), (b"hellO\n", false)] {
                let mut checksum = Checksum::new(&file).unwrap();
                bytes.chunks(4).for_each(|chunk| checksum.update(chunk));
                assert_eq!(checksum.other_than(etag).is_none(), is_it, "{etag}");
            }
        }
    }

    #[test]
    fn other_etags_are_no_checksums() {
        for etag in ["", "abc", "0123456789abcdef0123456789abcdef", "zz13625030ba8dba906f756967f9e9ca394464ag"] {
            let file = RemoteFile { name: "x".into(), etag: etag.into(), size_bytes: 6, url: String::new() };
            assert!(Checksum::new(&file).is_none(), "{etag}");
        }
    }
}
