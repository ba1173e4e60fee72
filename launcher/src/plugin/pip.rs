//! Downloads the pinned wheel with pip, so that the user's configuration of pip, its mirrors and its proxies apply.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use devices::plugins::Wheel;

use super::error::FetchError;

/// The maximum number of lines from the end of pip's stderr that an error contains.
const NUM_LAST_LINES: usize = 6;

/// Downloads the wheel of this version of `package` into `folder` and returns the wheel's path. The caller must check
/// its hash. Errors name all `wheels` of the plugin, because each is needed where pip cannot be used.
///
/// # Errors
/// When there is no Python or no pip, when pip fails, and when it downloads another wheel.
pub(crate) fn download(
    python: &OsStr,
    (package, version): (&str, &str),
    pinned: &Wheel,
    folder: &Path,
    wheels: Vec<&'static str>,
) -> Result<PathBuf, FetchError> {
    let wheel = pinned.file_name;
    let requirement = format!("{package}=={version}");
    let mut pip = Command::new(python);
    // Otherwise Python would look in the current folder first for pip and the modules that pip imports.
    pip.current_dir("/").arg("-I");
    pip.args(arguments(pinned)).arg("--dest").arg(folder).arg(&requirement);
    let output = pip.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output();
    let name = || python.display().to_string();
    let output = output.map_err(|source| FetchError::NoPython { python: name(), source, wheels: wheels.clone() })?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        if stderr.contains("No module named pip") {
            return Err(FetchError::NoPip { python: name(), wheels });
        }
        return Err(FetchError::Pip { requirement, status: output.status, stderr: last_lines(&stderr), wheels });
    }
    let path = folder.join(wheel);
    if path.is_file() { Ok(path) } else { Err(FetchError::OtherWheel { wheel, wheels }) }
}

/// Returns the arguments for Python. The tags of the wheel in them make pip choose the pinned wheel, whichever Python
/// runs pip.
fn arguments(wheel: &Wheel) -> Vec<&'static str> {
    let Wheel { platform, python_version, implementation, abi, .. } = *wheel;
    let mut arguments = vec!["-m", "pip", "download", "--disable-pip-version-check", "--no-input"];
    arguments.extend(["--progress-bar", "off", "--no-deps", "--only-binary=:all:", "--platform", platform]);
    arguments.extend(["--python-version", python_version, "--implementation", implementation, "--abi", abi]);
    arguments
}

/// Returns the last lines of pip's stderr that are not empty, indented.
fn last_lines(stderr: &str) -> String {
    let lines: Vec<&str> = stderr.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(NUM_LAST_LINES)..];
    let indented: Vec<String> = last.iter().map(|line| format!("    {line}")).collect();
    if indented.is_empty() { "    (pip wrote nothing)".to_owned() } else { indented.join("\n") }
}
