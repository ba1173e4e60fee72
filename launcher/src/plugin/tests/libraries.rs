//! Tests of fetches of a plugin with libraries. The wheels are tiny, but have the names and files of the pinned ones.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use devices::Device;
use devices::plugins::{FoundPlugin, Libraries, Package, Plugin, PluginError, Surroundings, Wheel, find};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::super::fetch::Fetch;
use super::super::list;
use super::write_script;

/// A machine with a folder of wheels, and the GPU's plugin with the hashes of these wheels.
struct Machine {
    folder: TempDir,
    plugin: &'static Plugin,
}

impl Machine {
    fn new() -> Self {
        Self::without("")
    }

    /// Creates a machine in whose wheels the file `left_out` is missing.
    fn without(left_out: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("wheels")).unwrap();
        let pinned = Device::CUDA.plugin().unwrap();
        let make = |wheel: &Wheel, files: &[&str]| {
            let path = folder.path().join("wheels").join(wheel.file_name);
            let mut zip = ZipWriter::new(File::create(&path).unwrap());
            for file in files.iter().chain(&["nvidia/include/header.h"]).filter(|file| **file != left_out) {
                zip.start_file(*file, SimpleFileOptions::default()).unwrap();
                zip.write_all(file.as_bytes()).unwrap();
            }
            zip.finish().unwrap();
            let hash = Sha256::digest(fs::read(&path).unwrap());
            let sha256: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            Wheel { sha256: sha256.leak(), ..*wheel }
        };
        let libraries = pinned.libraries.unwrap();
        let packages: Vec<Package> = libraries
            .packages
            .iter()
            .map(|package| Package { wheel: make(&package.wheel, package.files), ..*package })
            .collect();
        let plugin = Plugin {
            wheel: make(&pinned.wheel, &[pinned.path_in_wheel]),
            libraries: Some(Libraries { packages: packages.leak(), ..libraries }),
            ..*pinned
        };
        Self { folder, plugin: Box::leak(Box::new(plugin)) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn wheel(&self, package: &str) -> PathBuf {
        let own = (self.plugin.package == package).then_some(&self.plugin.wheel);
        let others = self.plugin.library_packages().iter().filter(|other| other.name == package);
        let wheel = own.into_iter().chain(others.map(|package| &package.wheel)).next().unwrap();
        self.path("wheels").join(wheel.file_name)
    }

    fn surroundings(&self) -> Surroundings {
        let variables = [("XDG_CACHE_HOME", self.path("cache").into())].into_iter().collect();
        Surroundings { variables, executable: None, root: self.folder.path().to_path_buf() }
    }

    /// Returns a fetch from these files and folders, or through the script `python` if there are none.
    fn fetch(&self, wheels: &[PathBuf]) -> Fetch {
        Fetch {
            plugin: self.plugin,
            cache: self.path("cache/hilo/plugins"),
            wheels: wheels.to_vec(),
            python: self.path("python").into(),
        }
    }

    fn error(&self, wheels: &[PathBuf]) -> String {
        self.fetch(wheels).run().unwrap_err().to_string()
    }

    fn find(&self) -> Result<FoundPlugin, PluginError> {
        find(self.plugin, None, &self.surroundings())
    }

    fn cached(&self, name: &str) -> PathBuf {
        self.path("cache/hilo/plugins").join(self.plugin.versioned_name()).join(name)
    }

    fn write_cached(&self, name: &str) {
        fs::create_dir_all(self.cached(name).parent().unwrap()).unwrap();
        fs::write(self.cached(name), "old").unwrap();
    }

    /// The result of the check for `num_devices` devices, and the names of the libraries that were loaded. Only files
    /// can be loaded, and the driver.
    fn check(&self, num_devices: usize) -> (Result<(), String>, BTreeSet<String>) {
        let mut loaded = BTreeSet::new();
        let load = |path: &Path| match path.is_file() || path == Path::new("libcuda.so.1") {
            true => {
                loaded.insert(path.file_name().unwrap().to_str().unwrap().to_owned());
                Ok(())
            }
            false => Err(format!("{}: no such file", path.display())),
        };
        let found = self.find().unwrap();
        let checked = self.plugin.check_libraries(&found, num_devices, &self.surroundings(), load);
        (checked.map_err(|error| error.to_string()), loaded)
    }

    /// Asserts that the cache has the pinned files of all wheels in their folders, the lock and the hashes, and nothing
    /// else.
    fn assert_complete(&self) {
        let files = self.plugin.library_packages().iter().flat_map(|package| package.files.iter().copied());
        let mut expected: BTreeSet<PathBuf> = files.chain([self.plugin.path_in_wheel]).map(PathBuf::from).collect();
        for file in &expected {
            assert_eq!(fs::read_to_string(self.cached("").join(file)).unwrap(), file.to_str().unwrap());
        }
        expected.extend(["lock".into(), "xla_cuda_plugin.so.sha256".into()]);
        assert_eq!(files_below(&self.cached(""), Path::new("")), expected);
        assert_eq!(self.find().unwrap().path, self.cached(self.plugin.path_in_wheel));
    }
}

fn files_below(root: &Path, folder: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(root.join(folder)).unwrap().map(|entry| folder.join(entry.unwrap().file_name()));
    entries
        .flat_map(|path| if root.join(&path).is_dir() { files_below(root, &path) } else { BTreeSet::from([path]) })
        .collect()
}

#[test]
fn every_name_that_the_plugin_opens_resolves_after_a_fetch() {
    let machine = Machine::new();
    machine.fetch(&[machine.path("wheels")]).run().unwrap();
    machine.assert_complete();
    let one = ["libcublas.so.13", "libcublasLt.so.13", "libcuda.so.1", "libcudart.so.13", "libcudnn.so.9"];
    let mut expected: BTreeSet<String> = one.into_iter().chain(["libnvJitLink.so.13"]).map(str::to_owned).collect();
    assert_eq!(machine.check(1), (Ok(()), expected.clone()));
    expected.insert("libnccl.so.2".to_owned());
    assert_eq!(machine.check(2), (Ok(()), expected));
}

#[test]
fn a_plugin_without_its_folders_is_found_and_its_libraries_are_missed() {
    let machine = Machine::new();
    machine.write_cached("xla_cuda_plugin.so");
    let (checked, loaded) = machine.check(1);
    let error = checked.unwrap_err();
    assert_eq!(loaded, BTreeSet::from(["libcuda.so.1".to_owned()]));
    for part in [
        "libcublas.so.13 of nvidia-cublas (libcublas.so.13: no such file)",
        "libcudnn.so.9 of nvidia-cudnn-cu13 (",
        "libdevice.10.bc of nvidia-nvvm (looked for ",
        "run `text-generation-launcher plugin fetch cuda13`, or install nvidia-cuda-runtime, nvidia-cublas, ",
    ] {
        assert!(error.contains(part), "{part:?} is not in {error}");
    }
    assert!(!error.contains("nccl"), "{error}");
    // The fetch replaces it.
    machine.fetch(&[machine.path("wheels")]).run().unwrap();
    machine.assert_complete();
}

#[test]
fn pip_gets_one_wheel_after_the_other() {
    let machine = Machine::new();
    let wheels = machine.path("wheels").display().to_string();
    let one_at_a_time = r#"[ -z "$(ls "$dest")" ] || exit 9"#;
    let copy = format!(
        r#"{one_at_a_time}; for word; do :; done; name=$(echo "${{word%%==*}}" | tr - _); cp '{wheels}/'"$name"-* "$dest""#
    );
    write_script(machine.folder.path(), &copy);
    machine.fetch(&[]).run().unwrap();
    machine.assert_complete();
    let calls = fs::read_to_string(machine.path("calls")).unwrap();
    assert_eq!(calls.lines().count(), machine.plugin.wheels().count(), "{calls}");
    assert!(calls.lines().next_back().unwrap().ends_with(" jax-cuda13-pjrt==0.12.0.1"), "{calls}");
}

#[test]
fn a_fetch_that_ends_early_leaves_no_plugin_that_counts() {
    let machine = Machine::new();
    let wheels = machine.path("wheels").display().to_string();
    let copy =
        format!(r#"for word; do :; done; name=$(echo "${{word%%==*}}" | tr - _); cp '{wheels}/'"$name"-* "$dest""#);
    // The download of NCCL fails, when all other libraries are placed.
    write_script(machine.folder.path(), &format!(r#"case "$*" in *nccl*) exit 1;; esac; {copy}"#));
    machine.write_cached("nvidia/cu13/lib/libcublas.so.13");
    machine.write_cached("nvidia/cu13/lib/libnvrtc-builtins.so.12.9");
    machine.write_cached("nvidia/cu13/lib/libcublasLt.so.13.partial");
    machine.write_cached(machine.plugin.path_in_wheel);
    let error = machine.error(&[]);
    assert!(error.contains("pip did not download nvidia-nccl-cu13==2.32.3"), "{error}");
    assert!(machine.find().is_err(), "{:?}", machine.find());
    write_script(machine.folder.path(), &copy);
    machine.fetch(&[]).run().unwrap();
    machine.assert_complete();
}

#[test]
fn a_library_that_is_gone_is_fetched_again() {
    let machine = Machine::new();
    machine.fetch(&[machine.path("wheels")]).run().unwrap();
    fs::remove_file(machine.cached("nvidia/cudnn/lib/libcudnn_graph.so.9")).unwrap();
    machine.fetch(&[machine.path("wheels")]).run().unwrap();
    machine.assert_complete();
}

#[test]
fn wheels_may_be_named_one_by_one_and_renamed() {
    let machine = Machine::new();
    let renamed = machine.path("blas.whl");
    fs::rename(machine.wheel("nvidia-cublas"), &renamed).unwrap();
    let mut wheels = vec![renamed];
    let others = machine.plugin.wheels().map(|wheel| machine.path("wheels").join(wheel.file_name));
    wheels.extend(others.filter(|path| path.exists()));
    machine.fetch(&wheels).run().unwrap();
    machine.assert_complete();
}

#[test]
fn wheels_that_are_missing_or_others_are_named() {
    let machine = Machine::new();
    let error = machine.error(&[machine.wheel("nvidia-cublas"), machine.wheel("nvidia-nvvm")]);
    assert!(error.starts_with("--wheel does not name all wheels; still needed: jax_cuda13_pjrt-0.12.0.1-"), "{error}");
    assert!(error.contains(", nvidia_cudnn_cu13-9.") && !error.contains("nvidia_cublas"), "{error}");
    let other = machine.path("other.whl");
    fs::write(&other, "abc").unwrap();
    let error = machine.error(&[other]);
    let found = "is ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad, which no pinned wheel has";
    assert!(error.contains("other.whl ") && error.contains(found) && error.contains("nvidia_nvvm-13."), "{error}");
    fs::write(machine.wheel("nvidia-nvvm"), "abc").unwrap();
    let error = machine.error(&[machine.path("wheels")]);
    assert!(error.contains("but the pinned wheel nvidia_nvvm-13.") && error.contains("ba7816bf"), "{error}");
    let error = machine.error(&[machine.path("cache")]);
    assert!(error.contains("cache cannot be read: "), "{error}");
    fs::create_dir(machine.path("empty")).unwrap();
    let error = machine.error(&[machine.path("empty")]);
    assert!(error.contains("empty has none of the pinned wheels jax_cuda13_pjrt-"), "{error}");
    assert!(machine.find().is_err());
}

#[test]
fn a_wheel_that_lacks_a_library_is_named() {
    let machine = Machine::without("nvidia/cu13/lib/libcublasLt.so.13");
    let error = machine.error(&[machine.path("wheels")]);
    assert!(
        error.contains("nvidia_cublas-13.") && error.ends_with("has no nvidia/cu13/lib/libcublasLt.so.13"),
        "{error}"
    );
    assert!(machine.find().is_err());
}

#[test]
fn the_list_has_every_library() {
    let machine = Machine::new();
    let lines = |machine: &Machine| -> Vec<String> {
        let table = list::table(&machine.surroundings());
        table
            .lines()
            .filter(|line| line.contains("jax-cuda13") || line.contains("nvidia-"))
            .map(str::to_owned)
            .collect()
    };
    let not_found = lines(&machine);
    assert_eq!(not_found.len(), machine.plugin.wheels().count(), "{not_found:?}");
    let is_not_found = |line: &String| line.contains(" MB wheel ") && line.contains("  not found; text-gen");
    assert!(not_found.iter().all(is_not_found), "{not_found:?}");
    machine.write_cached("xla_cuda_plugin.so");
    let flat = lines(&machine);
    assert!(flat[0].ends_with("(in the cache)"), "{flat:?}");
    assert!(flat[1..].iter().all(|line| line.contains("  not beside the plugin; text-gen")), "{flat:?}");
    machine.fetch(&[machine.path("wheels")]).run().unwrap();
    let complete = lines(&machine);
    let folder = machine.cached("nvidia/cu13/lib").display().to_string();
    assert!(complete[1].contains("  0.0 MB  ") && complete[1].contains(&folder), "{complete:?}");
    assert!(complete[1..].iter().all(|line| line.ends_with(" (beside the plugin)")), "{complete:?}");
}
