//! Checks the files that git tracks: their kinds, their sizes, and those in the root.

use std::process::Command;

use crate::tree::root;

/// The maximum size of a file in bytes.
const MAX_BYTES: u64 = 256 << 10;
/// Larger files.
const LARGE: [&str; 5] = [
    // The model that the server has built in.
    "demo/model.safetensors",
    "integration-tests/fixtures/gguf/gemma3-q8/model.gguf",
    "integration-tests/fixtures/gguf/llama-iq4/model.gguf",
    "integration-tests/fixtures/gguf/llama-k/model.gguf",
    // The checkpoint that shell scripts use.
    "integration-tests/fixtures/tiny-llama-bf16/model.safetensors",
];
/// Files and folders in the root, apart from the folders of crates.
const ROOT: [&str; 22] = [
    ".cargo",
    ".ci",
    ".dockerignore",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "Dockerfile",
    "LICENSE",
    "README.md",
    "clippy.toml",
    "compose.yaml",
    "demo",
    "deny.toml",
    "deploy",
    "docker",
    "docs",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "xtask",
];
/// Endings of files of text.
const TEXT: [&str; 18] = [
    "css", "html", "js", "json", "jsonl", "lock", "md", "proto", "py", "rs", "sh", "snap", "sse", "svg", "toml", "txt",
    "typed", "yaml",
];
/// Endings of files of bytes, and the bytes with which such a file begins, at an offset.
const BINARY: [(&str, usize, &[u8]); 3] =
    [("gguf", 0, b"GGUF"), ("png", 0, b"\x89PNG\r\n\x1a\n"), ("safetensors", 8, b"{\"")];
/// Files of text without an ending.
const NAMES: [&str; 5] = [".dockerignore", ".gitignore", "Dockerfile", "LICENSE", ".ci/run"];

/// Returns the paths of tracked files, relative to the root. Deleted ones are left out.
fn tracked() -> Vec<String> {
    let output = test_support::output(Command::new("git").args(["ls-files", "-z"]).current_dir(root()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let paths = String::from_utf8(output.stdout).expect("paths are text");
    paths.split_terminator('\0').filter(|path| root().join(path).exists()).map(str::to_owned).collect()
}

fn offenders(is_bad: impl Fn(&str) -> bool) -> Vec<String> {
    tracked().into_iter().filter(|path| is_bad(path)).collect()
}

fn bytes(path: &str) -> Vec<u8> {
    std::fs::read(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn files_are_of_known_kinds() {
    let is_unknown = |path: &str| {
        let ending = path.rsplit('/').next().and_then(|name| name.split_once('.')).map(|(_, ending)| ending);
        let ending = ending.and_then(|ending| ending.rsplit('.').next()).unwrap_or_default();
        let is_binary = BINARY.iter().any(|(known, ..)| *known == ending);
        !(is_binary || TEXT.contains(&ending) || NAMES.iter().any(|name| path.ends_with(name)))
    };
    assert_eq!(offenders(is_unknown), Vec::<String>::new(), "an ending is not in TEXT or BINARY of tidy/files.rs");
}

/// An archive or an executable under another ending is found too.
#[test]
fn files_contain_what_their_endings_say() {
    let is_foreign = |path: &str| {
        let bytes = bytes(path);
        match BINARY.iter().find(|(ending, ..)| path.rsplit('.').next() == Some(*ending)) {
            Some((_, offset, magic)) => !bytes.get(*offset..).is_some_and(|bytes| bytes.starts_with(magic)),
            None => std::str::from_utf8(&bytes).is_err() || bytes.contains(&0),
        }
    };
    assert_eq!(offenders(is_foreign), Vec::<String>::new());
}

#[test]
fn large_files_are_listed() {
    let is_large = |path: &str| {
        let len = std::fs::metadata(root().join(path)).map_or(0, |data| data.len());
        len > MAX_BYTES && !LARGE.contains(&path)
    };
    assert_eq!(offenders(is_large), Vec::<String>::new(), "larger than {MAX_BYTES} bytes, and not in LARGE");
}

#[test]
fn the_root_contains_only_known_files() {
    let is_stray = |path: &str| {
        let first = path.split('/').next().unwrap_or(path);
        let is_crate = path != first && root().join(first).join("Cargo.toml").exists();
        !(is_crate || ROOT.contains(&first))
    };
    assert_eq!(offenders(is_stray), Vec::<String>::new(), "not in ROOT of tidy/files.rs");
}
