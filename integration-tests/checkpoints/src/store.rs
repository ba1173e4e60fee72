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
    let is_profile = |folder: &&Path| folder.join("deps").is_dir();
    let profile = executable.ancestors().skip(1).find(is_profile);
    profile.and_then(Path::parent).map_or_else(std::env::temp_dir, Path::to_path_buf)
}

/// Returns the path of `name` in the folder for `sources`. If it does not exist, `write` writes it.
///
/// `sources` is everything that decides the contents, so changed sources have another folder.
pub(crate) fn derived(sources: &[u8], name: &str, write: impl FnOnce(&Path)) -> PathBuf {
    let parent = target().join("test-checkpoints");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_complete_folder_is_seen() {
        let parts = ["first", "second", "third"];
        // Sources that no earlier run has derived.
        let scratch = tempfile::tempdir().unwrap();
        let sources = scratch.path().as_os_str().as_encoded_bytes();
        let write = |folder: &Path| {
            fs::create_dir(folder).unwrap();
            parts.iter().for_each(|part| fs::write(folder.join(part), part).unwrap());
        };
        let derive = || {
            let folder = derived(sources, "model", write);
            parts.map(|part| fs::read_to_string(folder.join(part)).unwrap())
        };
        let found: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(derive)).collect();
            threads.into_iter().map(|thread| test_support::join_scoped(thread, "a derived checkpoint")).collect()
        });
        assert!(found.iter().all(|found| *found == parts));
        let complete = derived(sources, "model", |_| panic!("it exists"));
        fs::remove_dir_all(complete.parent().unwrap()).unwrap();
    }

    #[test]
    fn nothing_is_left_if_the_derivation_fails() {
        let derive = || derived(b"a checkpoint that cannot be derived", "model", |_| panic!("another hash"));
        let [first, second] = [(); 2].map(|()| std::panic::catch_unwind(derive).unwrap_err());
        assert_eq!([first, second].map(|panic| *panic.downcast_ref::<&str>().unwrap()), ["another hash"; 2]);
    }
}
