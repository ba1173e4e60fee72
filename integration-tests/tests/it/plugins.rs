//! Tests of `plugin list` and `plugin fetch`, as a user types them. No test uses the network: the wheels are fake, and
//! pip is a script or gets an index that it cannot reach.

use std::path::Path;
use std::process::{Command, Output};

use integration_tests::executable;
use tempfile::TempDir;
use test_support::{output, skipped};

/// A machine without plugins, with its own home. Its PATH has only the script `python3` with the given body, or
/// nothing.
struct Machine {
    folder: TempDir,
}

impl Machine {
    fn new(python: Option<&str>) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let bin = folder.path().join("bin");
        std::fs::create_dir(&bin).expect("a new directory");
        if let Some(body) = python {
            // A child process writes the script. If this process had it open for writing, children of other tests would
            // inherit the descriptor and the script could not be executed.
            let write = r#"printf '#!/bin/sh\n%s\n' "$1" > "$2" && chmod 755 "$2""#;
            let status = Command::new("/bin/sh").args(["-c", write, "sh", body]).arg(bin.join("python3")).status();
            assert!(status.expect("sh runs").success());
        }
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(executable());
        command.env_clear().env("HOME", self.path()).env("PATH", self.path().join("bin"));
        output(command.arg("plugin").args(arguments))
    }

    /// Runs a fetch that must fail with status 1, and returns its error message.
    fn fetch_error(&self, arguments: &[&str]) -> String {
        let output = self.run(&[&["fetch"], arguments].concat());
        let stderr = String::from_utf8(output.stderr).expect("errors are text");
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert_eq!(output.stdout, b"");
        stderr
    }
}

#[test]
fn the_list_shows_every_plugin_and_how_to_get_it() {
    let machine = Machine::new(None);
    let plugin = machine.path().join(".cache/hilo/plugins/libtpu-0.0.51/libtpu.so");
    std::fs::create_dir_all(plugin.parent().unwrap()).unwrap();
    std::fs::write(&plugin, "").unwrap();
    let output = machine.run(&["list"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let table = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[4..].iter().all(|line| line.trim_start().starts_with("nvidia-")), "{table}");
    for (line, kind) in lines[1..].iter().zip(["cpu", "tpu", "cuda13"]) {
        assert!(line.starts_with(&format!("{kind} ")), "{table}");
    }
    assert!(lines[2].ends_with(&format!("{} (in the cache)", plugin.display())), "{table}");
}

#[test]
fn a_wheel_that_is_not_the_pinned_one_is_refused() {
    let machine = Machine::new(None);
    let wheel = machine.path().join("tiny.whl");
    std::fs::write(&wheel, "abc").unwrap();
    let error = machine.fetch_error(&["cpu", "--wheel", wheel.to_str().unwrap()]);
    for part in [
        "error: the sha256 of ",
        "tiny.whl is ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        "has 55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc",
        "xla_cpu_pjrt-0.0.1-py3-none-manylinux_2_27_x86_64.whl",
    ] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
    assert!(!machine.path().join(".cache").exists(), "the cache was touched");
}

#[test]
fn an_offline_pip_is_quoted_and_the_way_out_named() {
    let pip = "echo WARNING: Retrying >&2; echo 'ERROR: No matching distribution found' >&2; exit 1";
    let error = Machine::new(Some(pip)).fetch_error(&["tpu"]);
    for part in [
        "note: libtpu is Google's",
        "downloading libtpu 0.0.51, 204.8 MB, with pip\n",
        "error: pip did not download libtpu==0.0.51 (exit status: 1):\n    WARNING: Retrying\n    ERROR: No matching",
        "download libtpu-0.0.51-cp311-cp311-manylinux_2_31_x86_64.whl elsewhere and pass --wheel <path>",
    ] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

#[test]
fn files_of_the_current_folder_are_not_run() {
    let Ok(python) = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output() else {
        skipped("there is no python3");
        return;
    };
    let python = String::from_utf8(python.stdout).expect("paths are text");
    let machine = Machine::new(Some(&format!("exec {} \"$@\"", python.trim())));
    let folder = machine.path().join("checkout");
    std::fs::create_dir_all(folder.join("pip")).unwrap();
    let owned = machine.path().join("owned");
    for name in ["json.py", "logging.py", "pip/__init__.py", "pip/__main__.py", "sitecustomize.py"] {
        std::fs::write(folder.join(name), format!("open({owned:?}, 'w')\n")).unwrap();
    }
    let mut command = Command::new(executable());
    command.env_clear().env("HOME", machine.path()).env("PATH", machine.path().join("bin"));
    // pip cannot reach this index, and must not wait for it.
    command.env("PIP_INDEX_URL", "http://127.0.0.1:1").env("PIP_RETRIES", "0").env("PYTHONPATH", &folder);
    let output = output(command.current_dir(&folder).args(["plugin", "fetch", "cpu"]));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!owned.exists(), "{stderr}");
    assert!(stderr.contains("pip did not download") || stderr.contains("has no pip"), "{stderr}");
}

#[test]
fn a_wheel_that_pip_brings_is_checked_too() {
    let pip = r#"for word; do [ "$last" = --dest ] && dest=$word; last=$word; done
        echo no wheel > "$dest/xla_cpu_pjrt-0.0.1-py3-none-manylinux_2_27_x86_64.whl""#;
    let machine = Machine::new(Some(pip));
    let error = machine.fetch_error(&["cpu"]);
    assert!(error.contains("error: the sha256 of ") && error.contains("this is not the pinned wheel"), "{error}");
    assert!(!machine.path().join(".cache/hilo/plugins/xla-cpu-pjrt-0.0.1/xla_cpu_pjrt.so").exists());
}

#[test]
fn without_python_the_wheel_to_download_is_named() {
    let error = Machine::new(None).fetch_error(&["cuda13"]);
    assert!(error.contains("error: python3 cannot be run") && error.contains("install python3 and pip"), "{error}");
    for part in ["download jax_cuda13_pjrt-", ", nvidia_cuda_runtime-", " elsewhere and pass --wheel <folder>"] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

#[test]
fn bad_arguments_exit_with_2() {
    let machine = Machine::new(None);
    let arguments: [&[&str]; 4] = [&["fetch"], &["fetch", "gpu"], &["fetch", "cpu", "--wheel"], &["throw"]];
    for arguments in arguments {
        assert_eq!(machine.run(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn the_help_shows_the_command() {
    let output = output(Command::new(executable()).arg("--help"));
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(help.contains("\n  plugin "), "{help}");
    assert!(!help.contains("\n  shard "), "{help}");
}
