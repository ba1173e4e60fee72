//! Tests of `probe` as a user types it, on XLA-CPU.

use std::process::{Command, Output};

use integration_tests::{executable, is_plugin_there};
use test_support::output;

fn probe(arguments: &[&str]) -> Output {
    let mut command = Command::new(executable());
    // The variables of the flags would replace the arguments that a test leaves out.
    command.arg("probe").args(arguments).env_remove("DEVICE").env_remove("HILO_PLUGIN_PATH");
    output(&mut command)
}

#[test]
fn a_page_has_a_value_for_every_probe() {
    if !is_plugin_there("cpu") {
        return;
    }
    let output = probe(&["--device", "xla-cpu"]);
    let page = String::from_utf8(output.stdout).expect("a page is text");
    assert_eq!(output.status.code(), Some(0), "{page}");
    assert!(!page.contains("failed: "), "{page}");
    let names: Vec<&str> = page.lines().filter_map(|line| line.split("  ").next()).collect();
    for name in [
        "version",
        "device",
        "plugin",
        "platform version",
        "device 1",
        "topology fingerprint",
        "upload and download of f8E4M3FN",
        "download of 64 MiB",
        "upload of 512 KiB",
        "empty launch",
        "launch with 356 arguments",
        "two launches, one wait",
        "content of the cache",
        "ahead of time, 2 device(s), fingerprints",
        "teardown",
        "end of the process",
    ] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    assert!(page.contains("correct result on 2 device(s)"), "{page}");
}

#[test]
fn a_device_without_a_plugin_is_refused() {
    let output = probe(&["--device", "cpu"]);
    let error = String::from_utf8(output.stderr).expect("errors are text");
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("--device is cpu, which probe cannot try: it tries xla-cpu, tpu and cuda"), "{error}");
    let output = probe(&["--device", "xla-cpu", "--plugin-path", "/no/such/file"]);
    let error = String::from_utf8(output.stderr).expect("errors are text");
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(error.contains("--plugin-path is \"/no/such/file\""), "{error}");
}
