//! The identity of an executable. Two executables with the same version may compute different bits, so processes that
//! work together compare the build ids that the linker wrote into their executables.
//!
//! Entry points: [`BuildId::of_process`], and [`Build`], which adds how the executable was compiled.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::Path;
use std::sync::OnceLock;

use object::elf::{ELF_NOTE_GNU, FileHeader64, NT_GNU_BUILD_ID};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{Endianness, ReadCache};
use sha2::{Digest as _, Sha256};

/// The executable that this process runs, even if another file has taken its path since (`proc(5)`).
const OWN_EXECUTABLE: &str = "/proc/self/exe";

/// The start of the name of an executable without a build id. The SHA-256 of the file follows.
const CONTENTS: &str = "sha256-";

/// The name of an executable that cannot be read.
const UNKNOWN: &str = "unknown";

/// The number of digits in [`BuildId::short`].
const SHORT_DIGITS: usize = 12;

/// The size of one read of a file whose contents are hashed, in bytes.
const BUFFER_BYTES: usize = 256 << 10;

/// The name of an executable, in lower-case hexadecimal digits: the build id that the linker wrote. An executable
/// without a build id is named `sha256-` and the SHA-256 of its contents; one that cannot be read, `unknown`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildId(pub String);

/// The identity of an executable, and how it was compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Build {
    /// The version in the manifest.
    pub version: &'static str,
    /// The name of the executable.
    pub id: BuildId,
    /// The commit, with `-dirty` appended if files had been changed since. `None` if the sources were no repository and
    /// nobody named the commit.
    pub commit: Option<&'static str>,
    /// The target triple, such as `x86_64-unknown-linux-gnu`.
    pub target: &'static str,
    /// `release` or `debug`.
    pub profile: &'static str,
    /// The features of the processor that the compiler used everywhere, with commas.
    pub features: &'static str,
}

impl BuildId {
    /// The name of the executable that this process runs.
    pub fn of_process() -> &'static Self {
        static OWN: OnceLock<BuildId> = OnceLock::new();
        OWN.get_or_init(|| Self::of_file(Path::new(OWN_EXECUTABLE)).unwrap_or_else(|_| Self(UNKNOWN.to_owned())))
    }

    /// Reads the name of an executable.
    fn of_file(path: &Path) -> io::Result<Self> {
        match linker_id(&File::open(path)?) {
            Some(id) => Ok(Self(hexadecimal(&id))),
            None => Ok(Self(format!("{CONTENTS}{}", hexadecimal(&sha256(File::open(path)?)?)))),
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name with only its first 12 digits, for lines of many responses.
    pub fn short(&self) -> &str {
        let start = if self.0.starts_with(CONTENTS) { CONTENTS.len() } else { 0 };
        self.0.get(..start + SHORT_DIGITS).unwrap_or(&self.0)
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, id, commit, .. } = self;
        match commit {
            Some(commit) => write!(f, "{version}, build {id}, commit {commit}"),
            None => write!(f, "{version}, build {id}"),
        }
    }
}

/// Returns the build id in the notes of an executable for 64 bits; `None` if it has none or is malformed.
fn linker_id(file: &File) -> Option<Vec<u8>> {
    let data = ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(&data).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, &data).ok()?.iter();
    let notes = segments.filter_map(|segment| segment.notes(endian, &data).ok().flatten()).flatten().flatten();
    let mut ids = notes.filter(|note| note.name() == ELF_NOTE_GNU && note.n_type(endian) == NT_GNU_BUILD_ID);
    ids.next().map(|note| note.desc().to_vec()).filter(|id| !id.is_empty())
}

fn sha256(file: File) -> io::Result<[u8; 32]> {
    let mut reader = BufReader::with_capacity(BUFFER_BYTES, file);
    let mut sha256 = Sha256::new();
    loop {
        let bytes = reader.fill_buf()?;
        if bytes.is_empty() {
            return Ok(sha256.finalize().into());
        }
        sha256.update(bytes);
        let num_read = bytes.len();
        reader.consume(num_read);
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a 64-bit executable with one segment of notes, in which the only note has this name and type.
    fn executable(name: &[u8; 4], note_type: u32, id: &[u8]) -> Vec<u8> {
        let note_len = 16 + id.len() as u64;
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(16, 0);
        let start = [[2, 0, 62, 0, 1, 0, 0, 0], 0_u64.to_le_bytes(), 64_u64.to_le_bytes(), 0_u64.to_le_bytes()];
        bytes.extend(start.concat());
        // Flags; the sizes of the header, of a program header and their number; no sections.
        bytes.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0, 0, 0, 0, 0]);
        bytes.extend([4, 0, 0, 0, 4, 0, 0, 0]);
        bytes.extend([120, 0, 0, note_len, note_len, 4].map(u64::to_le_bytes).concat());
        bytes.extend([4, id.len() as u32, note_type].map(u32::to_le_bytes).concat());
        bytes.extend(name);
        bytes.extend(id);
        bytes
    }

    fn name(bytes: &[u8]) -> BuildId {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        BuildId::of_file(file.path()).unwrap()
    }

    #[test]
    fn an_executable_has_the_name_that_the_linker_wrote() {
        let id = name(&executable(b"GNU\0", 3, &[0xab, 0xcd, 0, 1, 2, 3, 4, 0xff]));
        assert_eq!((id.as_str(), id.short()), ("abcd0001020304ff", "abcd00010203"));
        assert_eq!(name(&executable(b"GNU\0", 3, &[0x0f])).short(), "0f", "a short name is whole");
    }

    #[test]
    fn an_executable_without_a_build_id_is_named_by_its_contents() {
        let unnamed = name(&executable(b"GNU\0", 1, &[0xab; 20]));
        assert!(unnamed.as_str().starts_with("sha256-") && unnamed.as_str().len() == 7 + 64, "{unnamed}");
        assert_eq!(unnamed.short(), &unnamed.as_str()[..7 + 12]);
        assert_ne!(unnamed, name(&executable(b"GNU\0", 1, &[0xac; 20])), "other contents have another name");
        let stranger = executable(b"ABC\0", 3, &[0xab; 20]);
        for bytes in [&b""[..], b"#!/bin/sh\n", &stranger, &stranger[..130]] {
            assert!(name(bytes).as_str().starts_with("sha256-"), "{bytes:?}");
        }
        let empty = "sha256-e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(name(b"").as_str(), empty);
    }

    #[test]
    fn a_process_has_the_name_of_its_executable() {
        let file = BuildId::of_file(&std::env::current_exe().unwrap()).unwrap();
        assert_eq!(BuildId::of_process(), &file);
    }

    #[test]
    fn a_build_is_named_with_its_commit() {
        let (target, profile, features) = ("x86_64-unknown-linux-gnu", "release", "sse2");
        let id = name(&executable(b"GNU\0", 3, &[0xab; 4]));
        let build = Build { version: "0.1.0", id, commit: Some("c0ffee"), target, profile, features };
        assert_eq!(build.to_string(), "0.1.0, build abababab, commit c0ffee");
        assert_eq!(Build { commit: None, ..build }.to_string(), "0.1.0, build abababab");
    }
}
