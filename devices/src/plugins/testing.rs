//! Plugins for tests. A test whose plugin is missing is skipped with a message, or fails if the plugin is required.
//!
//! Entry points: [`plugin_path`] for any plugin; [`with_libtpu`] for libtpu, which reads its environment only once,
//! when it is loaded, and therefore runs in a child process.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Surroundings, find};
use crate::Device;

/// The environment variable that [`with_libtpu`] sets in its child process.
const CHILD: &str = "HILO_TEST_CHILD";
/// Environment variables that make libtpu load quietly and quickly on a machine without a TPU.
const ENVIRONMENT: [(&str, &str); 6] = [
    ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1"),
    ("TPU_ACCELERATOR_TYPE", "v5litepod-4"),
    ("TPU_LOG_DIR", "disabled"),
    ("TPU_MIN_LOG_LEVEL", "3"),
    ("TPU_SKIP_MDS_QUERY", "1"),
    ("TPU_WORKER_HOSTNAMES", "localhost"),
];

/// Returns the path of `device`'s plugin. If this machine lacks the plugin, prints that the test is skipped and returns
/// `None`.
///
/// # Panics
/// When no plugin drives `device`, or when the plugin is missing although `HILO_REQUIRE_PLUGINS=1` promises it.
pub fn plugin_path(device: Device) -> Option<PathBuf> {
    match find(device.plugin().expect("a plugin drives the device"), None, &Surroundings::of_process()) {
        Ok(found) => Some(found.path),
        Err(error) => {
            test_support::skipped_unless_required("HILO_REQUIRE_PLUGINS", &error.to_string());
            None
        }
    }
}

/// Runs `body` with the path of libtpu in a child process, which runs only the test `test` of `module`. Without libtpu,
/// `body` does not run.
///
/// # Panics
/// When the child process fails or does not run the test.
pub fn with_libtpu(module: &str, test: &str, body: impl FnOnce(&Path)) {
    if std::env::var_os(CHILD).is_some() {
        if let Some(path) = plugin_path(Device::TPU) {
            body(&path);
        }
        return;
    }
    let (_, folder) = module.split_once("::").expect("below the crate");
    let executable = std::env::current_exe().expect("this test has a path");
    let arguments = [&format!("{folder}::{test}"), "--exact", "--nocapture"];
    let child = test_support::output(Command::new(executable).args(arguments).env(CHILD, "1").envs(ENVIRONMENT));
    let [stdout, stderr] = [&child.stdout, &child.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(child.status.success(), "{stdout}\n{stderr}");
    assert!(stdout.contains("1 passed"), "the child ran no test: {stdout}");
    stdout.lines().filter(|line| line.starts_with("skipped")).for_each(|line| println!("{line}"));
}
