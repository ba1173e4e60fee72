//! The device on which the servers under test compute, unless a test is about a certain device.
//!
//! `HILO_TEST_DEVICE=xla-cpu cargo test -p integration-tests --test it` runs the suite on XLA-CPU. Servers share a
//! program cache in the target directory unless a test names another, so later runs need not compile the same programs
//! again.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use test_support::{output, skipped_unless_required};

use crate::server::{executable, target_folder};

/// The environment variable that names the device to test.
const DEVICE_VARIABLE: &str = "HILO_TEST_DEVICE";
/// The environment variable whose value 1 says that all plugins are installed. A test whose plugin is missing then
/// fails instead of being skipped.
const REQUIRE_VARIABLE: &str = "HILO_REQUIRE_PLUGINS";
/// The device to test if `HILO_TEST_DEVICE` is not set.
const DEFAULT_DEVICE: &str = "cpu";

/// The device to test, as a value of `--device`.
pub fn test_device() -> &'static str {
    static DEVICE: OnceLock<String> = OnceLock::new();
    DEVICE.get_or_init(|| std::env::var(DEVICE_VARIABLE).unwrap_or_else(|_| DEFAULT_DEVICE.to_owned()))
}

/// True if the plugin `kind` is on this machine. If it is not, prints that the test is skipped.
///
/// # Panics
/// When the plugin is missing although `HILO_REQUIRE_PLUGINS` is 1.
pub fn is_plugin_there(kind: &str) -> bool {
    let output = output(Command::new(executable()).args(["plugin", "list"]));
    let table = String::from_utf8(output.stdout).expect("the table is text");
    let row = table.lines().find(|line| line.split_whitespace().next() == Some(kind));
    let row = row.unwrap_or_else(|| panic!("no plugin {kind} in {table}"));
    let is_there = !["not found", "neither a file nor"].iter().any(|excuse| row.contains(excuse));
    if !is_there {
        skipped_unless_required(REQUIRE_VARIABLE, row);
    }
    is_there
}

/// The folder of compiled programs that servers share unless a test names another.
pub(crate) fn shared_programs() -> PathBuf {
    target_folder().join("test-programs")
}

/// The number of shards in tests that do not set it: `HILO_TEST_NUM_SHARD`, or 1.
pub(crate) fn test_num_shard() -> u32 {
    let given = std::env::var("HILO_TEST_NUM_SHARD").ok();
    given.map_or(1, |number| number.parse().expect("HILO_TEST_NUM_SHARD is a number"))
}
