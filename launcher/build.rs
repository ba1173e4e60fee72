//! Gives the executable its identity: the linker writes a build id, and the commit, the target and the features are
//! passed to the compiler. `HILO_COMMIT` names the commit where there is no repository, as in the build of an image.

use std::path::Path;
use std::process::Command;

/// The files of git that change with every commit and every checkout, relative to its folder.
const FILES_OF_HEAD: [&str; 3] = ["HEAD", "logs/HEAD", "refs/heads"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=HILO_COMMIT");
    if variable("CARGO_CFG_TARGET_OS") == "linux" {
        // Not every compiler asks for a build id by itself, and the default length differs between linkers.
        println!("cargo::rustc-link-arg-bins=-Wl,--build-id=sha1");
    }
    for (name, value) in [
        ("COMMIT", commit()),
        ("TARGET", variable("TARGET")),
        ("PROFILE", variable("PROFILE")),
        ("FEATURES", variable("CARGO_CFG_TARGET_FEATURE")),
    ] {
        println!("cargo::rustc-env=HILO_BUILD_{name}={value}");
    }
}

/// Returns the commit that `HILO_COMMIT` names, or that of the repository; empty if there is neither.
fn commit() -> String {
    let given = variable("HILO_COMMIT");
    let given = given.trim();
    let is_commit = |text: &str| (7..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !given.is_empty() {
        assert!(
            is_commit(given.strip_suffix("-dirty").unwrap_or(given)),
            "HILO_COMMIT is {given:?}; it must be a commit, such as `git rev-parse HEAD` prints it, or empty"
        );
        return given.to_owned();
    }
    // A folder below an unrelated repository is not one of its files.
    let is_ours = git(&["ls-files", "--error-unmatch", "Cargo.toml"]).is_some();
    let Some(head) = git(&["rev-parse", "HEAD"]).filter(|_| is_ours) else { return String::new() };
    for file in FILES_OF_HEAD {
        git(&["rev-parse", "--git-path", file]).iter().for_each(|path| watch(Path::new(path)));
    }
    if variable("PROFILE") == "release" {
        watch_sources();
    }
    let changes = git(&["--no-optional-locks", "status", "--porcelain", "--untracked-files=no", ".."]);
    if changes.is_none_or(|changes| !changes.is_empty()) { head + "-dirty" } else { head }
}

/// Makes cargo run this script again after a change of any crate, so that the mark of a change is never stale. A build
/// for development does without, because the launcher would be compiled again after a change of any test.
fn watch_sources() {
    let folders = std::fs::read_dir("..").into_iter().flatten().flatten().map(|entry| entry.path());
    folders.filter(|folder| folder.join("Cargo.toml").is_file()).for_each(|folder| watch(&folder));
    ["../Cargo.toml", "../Cargo.lock"].iter().for_each(|file| watch(Path::new(file)));
}

/// Makes cargo run this script again when the file, or any file in the folder, changes. Without the file, cargo would
/// run it every time.
fn watch(path: &Path) {
    if path.exists() {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

/// Returns the output of git, without the newline at its end; `None` if git is missing or fails.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}
