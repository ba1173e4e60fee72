//! Tests of the plugin search: which file is found first, and the error when there is none. A temporary folder stands
//! in for a machine's root directory.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use tempfile::TempDir;

use super::*;
use crate::Device;

/// Names and values of environment variables.
type Variables<'a> = &'a [(&'static str, &'a str)];

/// A machine whose root directory is a temporary folder.
struct Machine {
    folder: TempDir,
    surroundings: Surroundings,
}

impl Machine {
    /// Creates a machine with these files, all empty, and with environment variables whose values are empty, or paths
    /// below its root. `HOME` is `home`.
    fn new(files: &[&str], variables: Variables<'_>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_path_buf();
        for file in files {
            let path = root.join(file);
            // The modes do not depend on the umask of the tests.
            DirBuilder::new().recursive(true).mode(0o755).create(path.parent().unwrap()).unwrap();
            File::options().create_new(true).write(true).mode(0o644).open(path).unwrap();
        }
        let value = |value: &str| if value.is_empty() { OsString::new() } else { root.join(value).into() };
        let home = ("HOME", root.join("home").into());
        let variables = variables.iter().map(|(name, text)| (*name, value(text))).chain([home]).collect();
        let surroundings = Surroundings { variables, executable: Some(root.join("opt/hilo/launcher")), root };
        Self { folder, surroundings }
    }

    /// The result of `find`: the path relative to the machine's root and its source, or the error.
    fn find(&self, device: Device, given: Option<&str>) -> Result<(String, String), String> {
        let given = given.map(|path| self.folder.path().join(path));
        let found =
            find(device.plugin().unwrap(), given.as_deref(), &self.surroundings).map_err(|error| error.to_string())?;
        let path = found.path.strip_prefix(self.folder.path()).unwrap().display().to_string();
        Ok((path, found.source.to_string()))
    }
}

#[test]
fn every_plugin_is_pinned() {
    for plugin in all() {
        let Plugin { file_name, package, version, wheel, path_in_wheel, .. } = plugin;
        assert!(path_in_wheel.ends_with(&format!("/{file_name}")), "{path_in_wheel}");
        check_wheel(package, version, wheel);
        for Package { name, version, wheel, .. } in plugin.library_packages() {
            check_wheel(name, version, wheel);
        }
        let hashes: BTreeSet<&str> = plugin.wheels().map(|wheel| wheel.sha256).collect();
        assert_eq!(hashes.len(), plugin.wheels().count(), "two wheels of {} have the same hash", plugin.name);
    }
}

fn check_wheel(package: &str, version: &str, wheel: &Wheel) {
    let prefix = format!("{}-{version}-", package.replace('-', "_"));
    let stem = wheel.file_name.strip_suffix(".whl").unwrap();
    let tags: Vec<&str> = stem.rsplit('-').take(2).collect();
    assert!(stem.starts_with(&prefix), "{stem}");
    assert!(tags[0].split('.').any(|tag| tag == wheel.platform) && tags[1] == wheel.abi, "{stem}");
    let is_digit = |digit: char| matches!(digit, '0'..='9' | 'a'..='f');
    assert!(wheel.sha256.len() == 64 && wheel.sha256.chars().all(is_digit), "{}", wheel.sha256);
    assert!(wheel.size_bytes > 0, "{stem}");
}

#[test]
fn no_two_plugins_have_a_name_in_common() {
    for plugin in all() {
        assert_eq!(all().filter(|other| other.name == plugin.name).count(), 1, "{}", plugin.name);
        assert_eq!(<&Plugin>::from_str(plugin.name, false), Ok(plugin));
    }
}

/// `places` is in the order of the search. Each place must take precedence over those after it.
#[test]
fn places_are_looked_at_in_order() {
    let places = [
        ("opt/hilo/libtpu.so", "next to the executable"),
        ("home/.cache/hilo/plugins/libtpu-0.0.51/libtpu.so", "in the cache"),
        ("venv/lib/python3.12/site-packages/libtpu/libtpu.so", "in Python's site-packages"),
        ("usr/lib/python3/dist-packages/libtpu/libtpu.so", "in Python's site-packages"),
        ("usr/local/lib/python3.11/site-packages/libtpu/libtpu.so", "in Python's site-packages"),
        ("usr/local/lib/python3.11/dist-packages/libtpu/libtpu.so", "in Python's site-packages"),
        ("home/.local/lib/python3.10/site-packages/libtpu/libtpu.so", "in Python's site-packages"),
        ("lib/libtpu.so", "in a system folder"),
        ("usr/lib/libtpu.so", "in a system folder"),
        ("usr/local/lib/libtpu.so", "in a system folder"),
        ("usr/lib/x86_64-linux-gnu/libtpu.so", "in a system folder"),
    ];
    for first in 0..places.len() {
        let files: Vec<&str> = places[first..].iter().map(|(file, _)| *file).collect();
        let machine = Machine::new(&files, &[("VIRTUAL_ENV", "venv")]);
        let (file, source) = places[first];
        assert_eq!(machine.find(Device::TPU, None), Ok((file.into(), source.into())));
    }
}

#[test]
fn a_plugin_that_the_user_names_comes_first() {
    let files = ["a/libtpu.so", "b/tpu.so", "c/libtpu.so", "lib/libtpu.so"];
    let own = ("TPU_LIBRARY_PATH", "b/tpu.so");
    let general = (PLUGIN_PATH_VARIABLE, "c");
    let cases: [(Option<&str>, Variables<'_>, &str, &str); 7] = [
        (Some("a/libtpu.so"), &[own, general], "a/libtpu.so", "given by --plugin-path"),
        (Some("a"), &[own, general], "a/libtpu.so", "given by --plugin-path"),
        (None, &[own, general], "b/tpu.so", "given by TPU_LIBRARY_PATH"),
        (None, &[("TPU_LIBRARY_PATH", "a"), general], "a/libtpu.so", "given by TPU_LIBRARY_PATH"),
        (None, &[general], "c/libtpu.so", "given by PJRT_PLUGIN_LIBRARY_PATH"),
        (None, &[("TPU_LIBRARY_PATH", ""), general], "c/libtpu.so", "given by PJRT_PLUGIN_LIBRARY_PATH"),
        (None, &[("TPU_LIBRARY_PATH", ""), (PLUGIN_PATH_VARIABLE, "")], "lib/libtpu.so", "in a system folder"),
    ];
    for (given, variables, file, source) in cases {
        let found = Machine::new(&files, variables).find(Device::TPU, given);
        assert_eq!(found, Ok((file.into(), source.into())), "{given:?} {variables:?}");
    }
}

#[test]
fn a_wrong_plugin_of_the_user_is_never_passed_over() {
    let files = ["lib/libtpu.so", "lib/xla_cpu_pjrt.so", "c/other.so"];
    let machine = |variables| Machine::new(&files, variables);
    let check = |found: Result<(String, String), String>, name: &str, value: &str| {
        let error = found.unwrap_err();
        assert!(error.starts_with(&format!("{name} is ")) && error.contains(value), "{error}");
    };
    check(machine(&[]).find(Device::XLA_CPU, Some("no/such.so")), "--plugin-path", "no/such.so\"");
    check(machine(&[]).find(Device::XLA_CPU, Some("c")), "--plugin-path", "contains xla_cpu_pjrt.so");
    check(machine(&[("TPU_LIBRARY_PATH", "gone")]).find(Device::TPU, None), "TPU_LIBRARY_PATH", "gone\"");
    check(machine(&[(PLUGIN_PATH_VARIABLE, "c")]).find(Device::CUDA, None), PLUGIN_PATH_VARIABLE, "/c\"");
    // The TPU's own variable does not affect other plugins.
    let found = machine(&[("TPU_LIBRARY_PATH", "gone")]).find(Device::XLA_CPU, None);
    assert_eq!(found, Ok(("lib/xla_cpu_pjrt.so".into(), "in a system folder".into())));
}

#[test]
fn the_newest_python_wins_by_number() {
    let plugin = |version| format!("venv/lib/{version}/site-packages/libtpu/libtpu.so");
    let files = ["python3.9", "python3.12", "python3.11", "python2.7"].map(plugin);
    let machine = Machine::new(&files.each_ref().map(String::as_str), &[("VIRTUAL_ENV", "venv")]);
    assert_eq!(machine.find(Device::TPU, None).unwrap().0, plugin("python3.12"));
}

#[test]
fn nothing_found_names_every_place_and_the_command() {
    let error = Machine::new(&[], &[("VIRTUAL_ENV", "venv")]).find(Device::XLA_CPU, None).unwrap_err();
    for part in [
        "/opt/hilo/xla_cpu_pjrt.so",
        "/home/.cache/hilo/plugins/xla-cpu-pjrt-0.0.1/xla_cpu_pjrt.so",
        "/venv/lib/python3*/site-packages/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",
        "/usr/lib/python3/dist-packages/xla_plugins/",
        "/usr/local/lib/python3*/site-packages/xla_plugins/",
        "/usr/local/lib/python3*/dist-packages/xla_plugins/",
        "/home/.local/lib/python3*/site-packages/xla_plugins/",
        "/lib/xla_cpu_pjrt.so",
        "/usr/lib/x86_64-linux-gnu/xla_cpu_pjrt.so",
        "`text-generation-launcher plugin fetch cpu`",
        "--plugin-path",
    ] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

#[test]
fn a_folder_in_place_of_the_file_is_not_a_plugin() {
    let machine = Machine::new(&["lib/libtpu.so/readme", "usr/lib/libtpu.so"], &[]);
    assert_eq!(machine.find(Device::TPU, None).unwrap().0, "usr/lib/libtpu.so");
}

#[test]
fn the_cache_follows_xdg_and_then_home() {
    let cases: [(Variables<'_>, Option<&str>); 6] = [
        (&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")], Some("/x/hilo/plugins")),
        (&[("XDG_CACHE_HOME", ""), ("HOME", "/h")], Some("/h/.cache/hilo/plugins")),
        (&[("XDG_CACHE_HOME", "relative"), ("HOME", "/h")], Some("/h/.cache/hilo/plugins")),
        (&[("HOME", "/h")], Some("/h/.cache/hilo/plugins")),
        (&[("HOME", "")], None),
        (&[], None),
    ];
    for (variables, folder) in cases {
        let variables = variables.iter().map(|(name, value)| (*name, value.into())).collect();
        let surroundings = Surroundings { variables, executable: None, root: "/".into() };
        assert_eq!(cache_folder(&surroundings).as_deref(), folder.map(Path::new), "{surroundings:?}");
    }
}

#[test]
fn a_plugin_in_the_cache_that_another_user_can_write_or_replace_is_not_used() {
    let file = format!("home/.cache/hilo/plugins/{}/libtpu.so", Device::TPU.plugin().unwrap().versioned_name());
    for place in [file.as_str(), Path::new(&file).parent().unwrap().to_str().unwrap(), "home/.cache/hilo/plugins"] {
        let machine = Machine::new(&[&file], &[]);
        assert_eq!(machine.find(Device::TPU, None), Ok((file.clone(), "in the cache".to_owned())));
        let path = machine.folder.path().join(place);
        std::fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        let error = machine.find(Device::TPU, None).unwrap_err();
        let expected = format!("{} has mode 0777: other users can write it; plugins are code", path.display());
        assert!(error.starts_with("the tpu plugin in the cache is not used: ") && error.contains(&expected), "{error}");
        assert_eq!(machine.find(Device::TPU, Some(&file)).unwrap().1, "given by --plugin-path", "the user trusts it");
    }
}

/// The path of the GPUs' plugin in its wheel.
const CUDA: &str = "jax_plugins/xla_cuda13/xla_cuda_plugin.so";

#[test]
fn a_plugin_with_libraries_is_looked_for_in_its_folders_first() {
    let version = Device::CUDA.plugin().unwrap().versioned_name();
    let cache = format!("home/.cache/hilo/plugins/{version}");
    let places = [
        (format!("opt/hilo/{CUDA}"), "next to the executable"),
        ("opt/hilo/xla_cuda_plugin.so".to_owned(), "next to the executable"),
        (format!("{cache}/{CUDA}"), "in the cache"),
        (format!("{cache}/xla_cuda_plugin.so"), "in the cache"),
        (format!("venv/lib/python3.12/site-packages/{CUDA}"), "in Python's site-packages"),
        ("usr/lib/xla_cuda_plugin.so".to_owned(), "in a system folder"),
    ];
    for first in 0..places.len() {
        let files: Vec<&str> = places[first..].iter().map(|(file, _)| file.as_str()).collect();
        let machine = Machine::new(&files, &[("VIRTUAL_ENV", "venv")]);
        let (file, source) = places[first].clone();
        assert_eq!(machine.find(Device::CUDA, None), Ok((file, source.into())));
    }
}

/// Joins paths and resolves `..` without looking at the disk.
fn joined(folder: &Path, path: &str) -> PathBuf {
    path.split('/').fold(folder.to_path_buf(), |mut path, part| {
        if part == ".." {
            assert!(path.pop(), "{part}")
        } else {
            path.push(part)
        }
        path
    })
}

/// Every library that the plugin opens, and its data file, must be where the plugin looks once the wheels' files are
/// below one folder.
#[test]
fn pinned_files_are_where_the_plugin_looks() {
    let plugin = Device::CUDA.plugin().unwrap();
    let libraries = plugin.libraries.unwrap();
    let folder = Path::new(plugin.path_in_wheel).parent().unwrap();
    let inside = |folders: &[&str], file: &str| -> Vec<PathBuf> {
        let deep = |path: &&&str| path.split('/').filter(|part| *part == "..").count() <= folder.iter().count();
        folders.iter().filter(deep).map(|path| joined(folder, path).join(file)).collect()
    };
    for package in libraries.packages {
        for opened in package.opened {
            let places = inside(libraries.folders, opened);
            let is_place = |file: &&str| places.contains(&PathBuf::from(file));
            assert_eq!(package.files.iter().filter(|file| is_place(file)).count(), 1, "{opened}: {places:?}");
        }
    }
    let places = inside(libraries.data.folders, libraries.data.path);
    let mut files = libraries.packages.iter().flat_map(|package| package.files);
    assert!(files.any(|file| places.contains(&PathBuf::from(file))), "{places:?}");
}
