//! The files of other packages that a plugin needs: which they are, and the check that the plugin will find them.

use std::path::{Path, PathBuf};

use super::surroundings::XLA_FLAGS;
use super::{FoundPlugin, Plugin, PluginError, Source, Surroundings, Wheel, search};

/// The files that a plugin needs beside its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Libraries {
    /// The packages that contain them.
    pub packages: &'static [Package],
    /// The folders in which the plugin looks for libraries before the loader looks in the system's, relative to the
    /// plugin's folder.
    pub folders: &'static [&'static str],
    /// The libraries that come with the driver.
    pub driver: Driver,
    /// The file that the plugin's compiler reads.
    pub data: DataFile,
}

/// A Python package with libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Package {
    /// The name.
    pub name: &'static str,
    /// The pinned version.
    pub version: &'static str,
    /// The pinned wheel.
    pub wheel: Wheel,
    /// The paths in the wheel of the files that are needed. Below site-packages and below the plugin's own folder the
    /// paths are the same.
    pub files: &'static [&'static str],
    /// The file names of the libraries that the plugin itself opens.
    pub opened: &'static [&'static str],
    /// True if the plugin opens the libraries only when a process uses several devices.
    pub is_for_several_devices: bool,
}

/// The driver of the plugin's devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Driver {
    /// The file names of the driver's libraries that the plugin opens.
    pub opened: &'static [&'static str],
    /// The name of the driver.
    pub name: &'static str,
    /// The remedy for a missing driver.
    pub remedy: &'static str,
}

/// A file that is no library, and the folders in which the plugin's compiler looks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataFile {
    /// The path of the file below each of the folders.
    pub path: &'static str,
    /// The folders that are searched before those near the plugin, relative to the root.
    pub system_folders: &'static [&'static str],
    /// The folders that are searched last, relative to the plugin's folder.
    pub folders: &'static [&'static str],
    /// The flag in the environment variable `XLA_FLAGS` that names a folder to search first, with the equals sign.
    pub flag: &'static str,
}

/// A file that was not found or not loaded, and the package that contains it.
struct Missing {
    package: &'static str,
    text: String,
}

impl Plugin {
    /// Checks that the plugin in `found` will find the files that it needs in a process that uses `num_devices` devices
    /// of the plugin.
    ///
    /// `load` loads a library, which is a path, or a file name for the loader to find. Libraries stay loaded.
    /// Only loading them shows whether the libraries that they need themselves are found.
    ///
    /// # Errors
    /// [`PluginError::Libraries`], which names every library that cannot be loaded, and the data file if it is missing.
    pub fn check_libraries(
        &self,
        found: &FoundPlugin,
        num_devices: usize,
        surroundings: &Surroundings,
        mut load: impl FnMut(&Path) -> Result<(), String>,
    ) -> Result<(), PluginError> {
        let Some(libraries) = self.libraries else { return Ok(()) };
        let folder = found.path.parent().unwrap_or(Path::new("/"));
        let is_needed = |package: &&Package| num_devices > 1 || !package.is_for_several_devices;
        let mut missing = Vec::new();
        let driver = libraries.driver;
        let opened = libraries.packages.iter().filter(is_needed).map(|package| (package.name, package.opened));
        for (package, opened) in opened.chain([(driver.name, driver.opened)]) {
            for file_name in opened {
                let path = libraries.find(folder, file_name).unwrap_or_else(|| PathBuf::from(file_name));
                if let Err(reason) = load(&path) {
                    missing.push(Missing { package, text: format!("{file_name} of {package} ({reason})") });
                }
            }
        }
        missing.extend(libraries.missing_data(folder, surroundings));
        if missing.is_empty() {
            return Ok(());
        }
        Err(PluginError::Libraries {
            name: self.name,
            path: found.path.clone(),
            remedies: self.remedies(&driver, &missing, found.source),
            missing: missing.into_iter().map(|missing| missing.text).collect(),
        })
    }

    fn remedies(&self, driver: &Driver, missing: &[Missing], source: Source) -> Vec<String> {
        let mut packages: Vec<&str> = missing.iter().map(|missing| missing.package).collect();
        packages.dedup();
        let is_driver = packages.contains(&driver.name);
        packages.retain(|package| *package != driver.name);
        let mut remedies = Vec::new();
        if !packages.is_empty() {
            let leave = match source {
                Source::Flag | Source::Variable(_) => format!(", and start without {}", search::name(source)),
                Source::Executable => ", and remove the plugin next to the executable".to_owned(),
                Source::Cache | Source::SitePackages | Source::System => String::new(),
            };
            remedies.push(format!(
                "run `text-generation-launcher plugin fetch {}`{leave}, or install {} where this plugin looks",
                self.name,
                packages.join(", ")
            ));
        }
        remedies.extend(is_driver.then(|| driver.remedy.to_owned()));
        remedies
    }
}

impl Libraries {
    /// Returns the path of a library in the first of the plugin's folders that has it.
    fn find(&self, plugin_folder: &Path, file_name: &str) -> Option<PathBuf> {
        let paths = self.folders.iter().map(|folder| plugin_folder.join(folder).join(file_name));
        paths.into_iter().find(|path| path.is_file())
    }

    /// Returns the data file if the compiler will not find it. The compiler takes the first folder in which the file's
    /// folder exists.
    fn missing_data(&self, plugin_folder: &Path, surroundings: &Surroundings) -> Option<Missing> {
        let DataFile { path, system_folders, folders, flag } = self.data;
        let flags = surroundings.variable(XLA_FLAGS).and_then(Path::to_str).unwrap_or_default();
        let named = flags.split_whitespace().filter_map(|word| word.strip_prefix(flag)).map(PathBuf::from);
        let system = system_folders.iter().map(|folder| surroundings.root.join(folder));
        let own = folders.iter().map(|folder| plugin_folder.join(folder));
        let candidates: Vec<PathBuf> = named.chain(system).chain(own).map(|folder| folder.join(path)).collect();
        let taken = candidates.iter().find(|candidate| candidate.parent().is_some_and(Path::is_dir));
        if taken.is_some_and(|taken| taken.is_file()) {
            return None;
        }
        let has_file = |package: &&Package| package.files.iter().any(|file| Path::new(file).ends_with(path));
        let package = self.packages.iter().find(has_file).map_or("", |package| package.name);
        let looked_at: Vec<String> = match taken {
            Some(taken) => vec![taken.display().to_string()],
            None => candidates.iter().map(|candidate| candidate.display().to_string()).collect(),
        };
        let file_name = Path::new(path).file_name().unwrap_or_default().display();
        Some(Missing { package, text: format!("{file_name} of {package} (looked for {})", looked_at.join(", ")) })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Device;

    const LIBRARIES: [&str; 7] = [
        "cu13/lib/libcudart.so.13",
        "cu13/lib/libcublas.so.13",
        "cu13/lib/libcublasLt.so.13",
        "cu13/lib/libnvJitLink.so.13",
        "cudnn/lib/libcudnn.so.9",
        "nccl/lib/libnccl.so.2",
        "cu13/nvvm/libdevice/libdevice.10.bc",
    ];

    /// A machine whose driver is on the loader's path, with a plugin in a Python environment.
    struct Machine {
        root: tempfile::TempDir,
        flags: &'static str,
        system_libraries: BTreeSet<&'static str>,
    }

    impl Machine {
        fn new(files: &[&str]) -> Self {
            let machine =
                Self { root: tempfile::tempdir().unwrap(), flags: "", system_libraries: ["libcuda.so.1"].into() };
            for file in files {
                machine.write(&format!("site-packages/nvidia/{file}"));
            }
            machine.write("site-packages/jax_plugins/xla_cuda13/xla_cuda_plugin.so");
            machine
        }

        fn write(&self, file: &str) {
            let path = self.root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }

        fn check(&self, num_devices: usize, source: Source) -> Result<(), String> {
            let root = self.root.path().to_path_buf();
            let path = root.join("site-packages/jax_plugins/xla_cuda13/xla_cuda_plugin.so");
            let variables = [(XLA_FLAGS, self.flags.replace("ROOT", root.to_str().unwrap()).into())].into();
            let surroundings = Surroundings { variables, executable: None, root };
            let load = |path: &Path| match path.to_str() {
                Some(name) if self.system_libraries.contains(name) || path.is_file() => Ok(()),
                _ => Err("no such file".to_owned()),
            };
            let plugin = Device::CUDA.plugin().unwrap();
            plugin
                .check_libraries(&FoundPlugin { path, source }, num_devices, &surroundings, load)
                .map_err(|error| error.to_string())
        }
    }

    #[test]
    fn a_python_environment_with_all_packages_is_complete() {
        assert_eq!(Machine::new(&LIBRARIES).check(2, Source::Flag), Ok(()));
    }

    #[test]
    fn each_missing_file_is_named_with_its_package_and_a_remedy() {
        let packages = ["cuda-runtime", "cublas", "cublas", "nvjitlink", "cudnn-cu13", "nccl-cu13", "nvvm"];
        for (index, package) in packages.iter().enumerate() {
            let mut files = LIBRARIES.to_vec();
            let file_name = files.remove(index).rsplit('/').next().unwrap();
            let error = Machine::new(&files).check(2, Source::Flag).unwrap_err();
            assert!(error.contains(&format!("xla_cuda_plugin.so lacks {file_name} of nvidia-{package} (")), "{error}");
            let remedy = format!(
                "; run `text-generation-launcher plugin fetch cuda13`, and start without --plugin-path, or install \
                 nvidia-{package} where this plugin looks"
            );
            assert!(error.ends_with(&remedy), "{error}");
        }
    }

    #[test]
    fn one_device_needs_no_nccl() {
        let machine = Machine::new(&[&LIBRARIES[..5], &LIBRARIES[6..]].concat());
        assert_eq!(machine.check(1, Source::SitePackages), Ok(()));
        let error = machine.check(2, Source::SitePackages).unwrap_err();
        assert!(error.contains("lacks libnccl.so.2 of nvidia-nccl-cu13 (no such file); run"), "{error}");
    }

    #[test]
    fn the_driver_has_a_remedy_of_its_own() {
        let mut machine = Machine::new(&LIBRARIES);
        machine.system_libraries.clear();
        let error = machine.check(1, Source::Cache).unwrap_err();
        let expected = "lacks libcuda.so.1 of NVIDIA's driver (no such file); install NVIDIA's driver 580 or newer";
        assert!(error.contains(expected) && !error.contains("plugin fetch"), "{error}");
    }

    #[test]
    fn libraries_of_the_system_count() {
        let mut machine = Machine::new(&[]);
        let names = LIBRARIES[..6].iter().map(|path| path.rsplit('/').next().unwrap());
        machine.system_libraries.extend(names);
        assert!(machine.check(2, Source::System).unwrap_err().contains("lacks libdevice.10.bc of nvidia-nvvm (looked"));
        machine.write("usr/local/cuda/nvvm/libdevice/libdevice.10.bc");
        assert_eq!(machine.check(2, Source::System), Ok(()));
    }

    #[test]
    fn the_first_folder_for_libdevice_decides() {
        let mut machine = Machine::new(&LIBRARIES);
        machine.write("opt/cuda/nvvm/libdevice/readme");
        let error = machine.check(1, Source::Cache).unwrap_err();
        assert!(
            error.contains("(looked for ") && error.contains("/opt/cuda/nvvm/libdevice/libdevice.10.bc);"),
            "{error}"
        );
        machine.write("mine/nvvm/libdevice/libdevice.10.bc");
        machine.flags = "--xla_dump_to=/tmp --xla_gpu_cuda_data_dir=ROOT/mine";
        assert_eq!(machine.check(1, Source::Cache), Ok(()));
    }
}
