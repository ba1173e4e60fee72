//! The folder of derived checkpoints below cargo's target directory. Processes that derive the same one at the same
//! time each write their own, and the first that is complete stays.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Returns the SHA-256 of `bytes` in hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the target directory of the executable that runs. If the executable was moved, returns the directory for
/// temporary files.
fn target() -> PathBuf {
    let executable = std::env::current_exe().expect("the executable has a path");
    let is_target = |folder: &&Path| folder.join("CACHEDIR.TAG").exists();
    executable.ancestors().skip(1).find(is_target).map_or_else(std::env::temp_dir, Path::to_path_buf)
}

/// Returns the path of `name` in the folder for `sources`. If it does not exist, `write` writes it.
///
/// `sources` is everything that decides the contents, so changed sources have another folder.
pub(crate) fn derived(sources: &[u8], name: &str, write: impl FnOnce(&Path)) -> PathBuf {
    let parent = target().join("checkpoints");
    let complete = parent.join(&sha256(sources)[..16]);
    let path = complete.join(name);
    if path.exists() {
        return path;
    }
    fs::create_dir_all(&parent).unwrap_or_else(|error| panic!("{}: {error}", parent.display()));
    let scratch = tempfile::tempdir_in(&parent).unwrap_or_else(|error| panic!("{}: {error}", parent.display()));
    write(&scratch.path().join(name));
    // A folder does not replace one that has files: then another process was faster.
    let renamed = fs::rename(scratch.path(), &complete);
    assert!(path.exists(), "{}: {renamed:?}", complete.display());
    path
}
