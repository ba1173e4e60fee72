//! Tests of fetches. The wheels are tiny, a shell script stands in for Python, and the tests check the contents of the
//! cache afterwards.

mod libraries;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use devices::plugins::{Plugin, Surroundings, Wheel};
use devices::xla_cpu;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use test_support::join_scoped;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::fetch::{Fetch, check_machine};
use super::list;

const MEMBER: &str = "package/plugin.so";

/// A folder with a wheel, and the plugin that pins it.
struct Fixture {
    folder: TempDir,
    plugin: &'static Plugin,
    contents: Vec<u8>,
}

impl Fixture {
    fn new() -> Self {
        Self::with_member(MEMBER)
    }

    /// Returns a fixture whose wheel contains `member`, while the plugin expects [`MEMBER`].
    fn with_member(member: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let contents: Vec<u8> = (0..3_000_000_u32).flat_map(|number| (number % 1000).to_le_bytes()).collect();
        let wheel_path = folder.path().join("tiny.whl");
        let mut wheel = ZipWriter::new(std::fs::File::create(&wheel_path).unwrap());
        let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
        for (name, contents) in [("package/__init__.py", &b"pass"[..]), (member, &contents)] {
            wheel.start_file(name, options).unwrap();
            wheel.write_all(contents).unwrap();
        }
        wheel.finish().unwrap();
        let sha256: String =
            Sha256::digest(std::fs::read(&wheel_path).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect();
        let pinned = xla_cpu::PLATFORM.plugin;
        let plugin = Plugin {
            file_name: "plugin.so",
            path_in_wheel: MEMBER,
            wheel: Wheel { file_name: "tiny.whl", sha256: sha256.leak(), ..pinned.wheel },
            ..pinned
        };
        Self { folder, plugin: Box::leak(Box::new(plugin)), contents }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns a fetch that runs the script `python` in this folder as Python.
    fn fetch(&self, wheel: Option<&str>) -> Fetch {
        Fetch {
            plugin: self.plugin,
            cache: self.path("cache"),
            wheels: wheel.iter().map(|name| self.path(name)).collect(),
            python: self.path("python").into(),
        }
    }

    fn error(&self, wheel: Option<&str>) -> String {
        self.fetch(wheel).run().unwrap_err().to_string()
    }

    fn cached(&self, name: &str) -> PathBuf {
        self.path("cache/xla-cpu-pjrt-0.0.1").join(name)
    }

    /// The names in the plugin's folder, sorted.
    fn cached_names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.cached("")).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn assert_complete(&self) {
        assert_eq!(self.cached_names(), ["lock", "plugin.so", "plugin.so.sha256"]);
        assert!(std::fs::read(self.cached("plugin.so")).unwrap() == self.contents, "the plugin is not the wheel's");
        assert_eq!(self.cached("plugin.so").metadata().unwrap().permissions().mode() & 0o777, 0o644);
    }

    /// Writes the script `python` with this body.
    fn python(&self, body: &str) {
        write_script(self.folder.path(), body);
    }

    fn num_calls(&self) -> usize {
        std::fs::read_to_string(self.path("calls")).unwrap_or_default().lines().count()
    }
}

/// Writes the script `python` with this body into `folder`. In the script, `$dest` is pip's `--dest` and `$here` is the
/// folder. A child process writes the script. If this process had it open for writing, children of other tests would
/// inherit the open file, and a file that is open for writing cannot be executed.
fn write_script(folder: &Path, body: &str) {
    let here = folder.display();
    let find_dest = r#"for word; do [ "$last" = --dest ] && dest=$word; last=$word; done"#;
    let script = format!("#!/bin/sh\nhere='{here}'\necho \"$@\" >> \"$here/calls\"\n{find_dest}\n{body}\n");
    let write = r#"printf '%s' "$1" > "$2" && chmod 755 "$2""#;
    let status = Command::new("sh").args(["-c", write, "sh", &script]).arg(folder.join("python")).status().unwrap();
    assert!(status.success());
}

const COPY_WHEEL: &str = r#"cp "$here/tiny.whl" "$dest/""#;

#[test]
fn pip_gets_the_pinned_tags_and_its_wheel_is_unpacked() {
    let fixture = Fixture::new();
    fixture.python(&format!("pwd >> \"$here/folders\"\n{COPY_WHEEL}"));
    fixture.fetch(None).run().unwrap();
    fixture.assert_complete();
    assert_eq!(std::fs::read_to_string(fixture.path("folders")).unwrap(), "/\n");
    let calls = std::fs::read_to_string(fixture.path("calls")).unwrap();
    for part in [
        "-I -m pip download ",
        " --no-deps --only-binary=:all: --platform manylinux_2_27_x86_64 --python-version 3.11 ",
        " --implementation py --abi none ",
        " xla-cpu-pjrt==0.0.1\n",
    ] {
        assert!(calls.contains(part), "{part:?} is not in {calls:?}");
    }
}

#[test]
fn a_complete_plugin_is_not_fetched_again() {
    let fixture = Fixture::new();
    fixture.python(COPY_WHEEL);
    fixture.fetch(None).run().unwrap();
    fixture.fetch(None).run().unwrap();
    fixture.fetch(Some("tiny.whl")).run().unwrap();
    assert_eq!(fixture.num_calls(), 1);
    fixture.assert_complete();
}

#[test]
fn a_plugin_without_its_stamp_is_fetched_again() {
    let fixture = Fixture::new();
    fixture.fetch(Some("tiny.whl")).run().unwrap();
    for stamp in [None, Some("0000  tiny.whl\n")] {
        std::fs::write(fixture.cached("plugin.so"), "half").unwrap();
        match stamp {
            None => std::fs::remove_file(fixture.cached("plugin.so.sha256")).unwrap(),
            Some(text) => std::fs::write(fixture.cached("plugin.so.sha256"), text).unwrap(),
        }
        fixture.fetch(Some("tiny.whl")).run().unwrap();
        fixture.assert_complete();
    }
}

#[test]
fn leftovers_of_a_killed_fetch_are_cleared() {
    let fixture = Fixture::new();
    fixture.python(COPY_WHEEL);
    std::fs::create_dir_all(fixture.cached("download/pip")).unwrap();
    std::fs::write(fixture.cached("plugin.so.partial"), "half").unwrap();
    fixture.fetch(None).run().unwrap();
    fixture.assert_complete();
}

#[test]
fn a_wheel_from_elsewhere_needs_no_python() {
    let fixture = Fixture::new();
    fixture.fetch(Some("tiny.whl")).run().unwrap();
    fixture.assert_complete();
}

#[test]
fn two_fetches_at_once_download_once() {
    let fixture = Fixture::new();
    fixture.python(COPY_WHEEL);
    std::thread::scope(|scope| {
        let fetches: Vec<_> = (0..4).map(|_| scope.spawn(|| fixture.fetch(None).run())).collect();
        for fetch in fetches {
            join_scoped(fetch, "a fetch").unwrap();
        }
    });
    assert_eq!(fixture.num_calls(), 1);
    fixture.assert_complete();
}

#[test]
fn another_wheel_is_refused_with_both_hashes() {
    let fixture = Fixture::new();
    std::fs::write(fixture.path("other.whl"), "abc").unwrap();
    let error = fixture.error(Some("other.whl"));
    let found = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert!(error.contains(found) && error.contains(fixture.plugin.wheel.sha256), "{error}");
    assert!(error.contains("other.whl"), "{error}");
    // The wheel from pip is checked as well, and is removed.
    fixture.python(r#"printf abc > "$dest/tiny.whl""#);
    assert!(fixture.error(None).contains(found));
    assert_eq!(fixture.cached_names(), ["lock"]);
}

#[test]
fn a_wheel_without_the_file_is_named() {
    let fixture = Fixture::with_member("package/other.so");
    let error = fixture.error(Some("tiny.whl"));
    assert!(error.starts_with("the wheel ") && error.ends_with("tiny.whl has no package/plugin.so"), "{error}");
    assert_eq!(fixture.cached_names(), ["lock"]);
}

#[test]
fn pinned_bytes_that_are_no_wheel_are_an_error() {
    let mut fixture = Fixture::new();
    std::fs::write(fixture.path("tiny.whl"), "abc").unwrap();
    let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let wheel = Wheel { sha256, ..fixture.plugin.wheel };
    fixture.plugin = Box::leak(Box::new(Plugin { wheel, ..*fixture.plugin }));
    let error = fixture.error(Some("tiny.whl"));
    assert!(error.starts_with("the wheel ") && error.contains("tiny.whl cannot be unpacked: "), "{error}");
}

#[test]
fn a_missing_wheel_is_named() {
    let error = Fixture::new().error(Some("gone.whl"));
    assert!(error.starts_with("the wheel ") && error.contains("gone.whl cannot be read: No such file"), "{error}");
}

#[test]
fn no_python_no_pip_and_an_offline_pip_say_what_to_do() {
    let fixture = Fixture::new();
    let cases = [
        (None, "cannot be run", "install python3 and pip"),
        (Some("echo \"$0: No module named pip\" >&2; exit 1"), "has no pip", "install pip"),
        (
            Some("for i in 1 2 3 4 5 6 7; do echo warning $i >&2; done; echo ERROR: no network >&2; exit 1"),
            "pip did not download xla-cpu-pjrt==0.0.1 (exit status: 1):\n    warning 3\n",
            "\n    ERROR: no network\n",
        ),
        (Some("exit 1"), "(pip wrote nothing)", "exit status: 1"),
        (Some("exit 0"), "pip downloaded no tiny.whl", "elsewhere"),
    ];
    for (script, first, second) in cases {
        if let Some(script) = script {
            fixture.python(script);
        }
        let error = fixture.error(None);
        assert!(error.contains(first) && error.contains(second), "{script:?}: {error}");
        assert!(error.contains("download tiny.whl elsewhere and pass --wheel <path>"), "{error}");
        assert_eq!(fixture.cached_names(), ["lock"]);
    }
}

#[test]
fn a_cache_that_cannot_be_made_is_named() {
    let fixture = Fixture::new();
    std::fs::write(fixture.path("cache"), "a file").unwrap();
    let error = fixture.error(Some("tiny.whl"));
    assert!(error.starts_with("cannot use ") && error.contains("/cache: "), "{error}");
}

#[test]
fn other_machines_are_refused() {
    assert!(check_machine("linux", "x86_64").is_ok());
    for (os, arch) in [("linux", "aarch64"), ("macos", "x86_64")] {
        let error = check_machine(os, arch).unwrap_err().to_string();
        let expected = format!("this machine is {arch} {os}, but plugins can be fetched only for x86_64 linux; ");
        assert!(error.starts_with(&expected), "{error}");
    }
}

#[test]
fn the_list_is_aligned_and_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_path_buf();
    std::fs::create_dir(root.join("lib")).unwrap();
    std::fs::write(root.join("lib/xla_cpu_pjrt.so"), vec![0; 1_500_000]).unwrap();
    let variables = [("TPU_LIBRARY_PATH", "/no/such/file".into())].into_iter().collect();
    let table = list::table(&Surroundings { variables, executable: None, root: root.clone() });
    let lines: Vec<&str> = table.lines().collect();
    let column = lines[0].find("FOUND").unwrap();
    let found: Vec<&str> = lines[1..].iter().map(|line| &line[column..]).collect();
    assert_eq!(found[0], format!("{} (in a system folder)", Path::new(&root).join("lib/xla_cpu_pjrt.so").display()));
    assert!(found[1].starts_with("TPU_LIBRARY_PATH is \"/no/such/file\""), "{table}");
    let num_libraries = found.len() - 3;
    assert_eq!(found[2..], vec!["not found; text-generation-launcher plugin fetch cuda13"; 1 + num_libraries]);
    for (line, parts) in lines[1..].iter().zip([
        ["cpu ", "xla-cpu-pjrt ", " 0.0.1 ", " 1.5 MB "],
        ["tpu ", "libtpu ", " 0.0.51 ", " 204.8 MB wheel "],
        ["cuda13 ", "jax-cuda13-pjrt ", " 0.12.0.1 ", " 134.9 MB wheel "],
    ]) {
        assert!(parts.iter().all(|part| line.contains(part)), "{line}");
    }
}
