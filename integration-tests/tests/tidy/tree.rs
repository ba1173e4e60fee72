//! Reads the Rust files of the workspace.

use std::path::{Path, PathBuf};

/// The folders of the workspace's crates.
pub(crate) const CRATES: [&str; 29] = [
    "proto",
    "test-support",
    "build-id",
    "machine",
    "liveness",
    "model-files",
    "telemetry",
    "endpoint",
    "sockets",
    "shard-client",
    "fake-shard",
    "zmtp",
    "collectives",
    "numbers",
    "kernels",
    "pjrt",
    "devices",
    "model",
    "backend",
    "cpu",
    "xla",
    "shard",
    "scheduler",
    "router",
    "launcher",
    "bench",
    "integration-tests",
    "matrix",
    "xtask",
];

/// A Rust file of the workspace.
pub(crate) struct SourceFile {
    /// The path relative to the repository.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

impl SourceFile {
    /// True if the file is compiled for tests only.
    pub(crate) fn is_test(&self) -> bool {
        let parts = self.path.iter();
        parts.into_iter().any(|part| ["tests", "tests.rs", "testing"].iter().any(|name| part == *name))
    }

    /// The text of the file without the unit tests at its end.
    pub(crate) fn product(&self) -> &str {
        self.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default()
    }

    /// The lines of the file that are compiled for tests only, each with its number.
    pub(crate) fn test_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let is_whole = self.is_test() || self.path.starts_with("integration-tests");
        let num_others = if is_whole { 0 } else { self.product().lines().count() };
        self.text.lines().enumerate().skip(num_others).map(|(index, line)| (index + 1, line))
    }
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the repository").to_path_buf()
}

/// The Rust files below a folder of the repository, sorted.
pub(crate) fn rust_files(folder: &str) -> Vec<SourceFile> {
    let mut paths = Vec::new();
    collect(&root().join(folder), &mut paths);
    paths.sort();
    let read = |path: PathBuf| SourceFile {
        text: std::fs::read_to_string(&path).expect("source files are text"),
        path: path.strip_prefix(root()).expect("below the root").to_path_buf(),
    };
    paths.into_iter().map(read).collect()
}

/// The Rust files of all crates.
pub(crate) fn all_rust_files() -> Vec<SourceFile> {
    CRATES.iter().flat_map(|folder| rust_files(folder)).collect()
}

pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("a readable folder").path();
        if path.is_dir() {
            if path.file_name() != Some("target".as_ref()) {
                collect(&path, paths);
            }
        } else if path.extension() == Some("rs".as_ref()) {
            paths.push(path);
        }
    }
}
