//! `plugin fetch`: gets the pinned wheel from pip or from a file, and puts its shared library into the cache.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

use devices::plugins::{Plugin, Surroundings, cache_folder};

use super::cache::LockedFolder;
use super::error::FetchError;
use super::notice::{megabytes, say};
use super::pip;
use super::wheel::CheckedWheel;

/// The input of one fetch.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) plugin: &'static Plugin,
    /// The folder of all fetched plugins.
    pub(crate) cache: PathBuf,
    /// The path of a wheel that was downloaded elsewhere; `None` to download the wheel with pip.
    pub(crate) wheel: Option<PathBuf>,
    /// The Python interpreter that runs pip.
    pub(crate) python: OsString,
}

impl Fetch {
    /// Returns the fetch that the arguments ask for, with this machine's cache folder and `python3`.
    ///
    /// # Errors
    /// [`FetchError::Machine`] when the wheels are not for this kind of machine, [`FetchError::NoCache`] when there is
    /// no cache folder.
    pub(crate) fn of_process(
        plugin: &'static Plugin,
        wheel: Option<&Path>,
        surroundings: &Surroundings,
    ) -> Result<Self, FetchError> {
        check_machine(std::env::consts::OS, std::env::consts::ARCH)?;
        Ok(Self {
            plugin,
            cache: cache_folder(surroundings).ok_or(FetchError::NoCache)?,
            wheel: wheel.map(Path::to_path_buf),
            python: "python3".into(),
        })
    }

    /// Puts the plugin into the cache unless it is already there. A wheel from a file is checked in any case.
    ///
    /// # Errors
    /// The first failure. The cache then contains no new plugin that counts as complete.
    pub(crate) fn run(&self) -> Result<(), FetchError> {
        let start = Instant::now();
        let given = self.wheel.as_deref().map(|path| self.check(path)).transpose()?;
        let folder = LockedFolder::lock(&self.cache, self.plugin)?;
        let path = folder.plugin_path();
        if folder.is_complete() {
            say(format_args!("{} {} is already there: {}", self.plugin.package, self.plugin.version, path.display()));
            return Ok(());
        }
        if let Some(note) = self.plugin.licence_note {
            say(format_args!("note: {note}"));
        }
        let num_bytes = match &given {
            Some(wheel) => self.install(wheel, &folder)?,
            None => {
                let downloads = folder.download_folder()?;
                let wheel = self.download(downloads.path())?;
                self.install(&self.check(&wheel)?, &folder)?
            }
        };
        let seconds = start.elapsed().as_secs_f64();
        say(format_args!("done: {} ({}) in {seconds:.1} s", path.display(), megabytes(num_bytes)));
        Ok(())
    }

    fn download(&self, folder: &Path) -> Result<PathBuf, FetchError> {
        let Plugin { package, version, wheel, .. } = self.plugin;
        say(format_args!("downloading {package} {version}, {}, with pip", megabytes(wheel.size_bytes)));
        pip::download(&self.python, self.plugin, folder)
    }

    fn check(&self, wheel: &Path) -> Result<CheckedWheel, FetchError> {
        say(format_args!("checking the sha256 of {}", wheel.display()));
        CheckedWheel::open(wheel, self.plugin)
    }

    fn install(&self, wheel: &CheckedWheel, folder: &LockedFolder) -> Result<u64, FetchError> {
        say(format_args!("extracting {}", self.plugin.file_name));
        let mut file = folder.new_plugin()?;
        let num_bytes = wheel.unpack(&mut file)?;
        file.place()?;
        folder.stamp()?;
        Ok(num_bytes)
    }
}

/// Checks that this kind of machine can run the machine code in the pinned wheels.
pub(crate) fn check_machine(os: &str, arch: &str) -> Result<(), FetchError> {
    match (os, arch) {
        ("linux", "x86_64") => Ok(()),
        (os, arch) => Err(FetchError::Machine { os: os.into(), arch: arch.into() }),
    }
}
