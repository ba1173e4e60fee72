//! `plugin fetch`: gets the pinned wheels from pip or from files, and puts the plugin and its libraries into the cache.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

use devices::plugins::{Package, Plugin, Surroundings, Wheel, cache_folder};

use super::cache::{DownloadFolder, LockedFolder};
use super::error::FetchError;
use super::notice::{megabytes, say};
use super::pip;
use super::wheel::CheckedWheel;

/// A wheel to fetch: its package and version, and the needed files, each with its path in the plugin's own folder.
#[derive(Debug)]
struct Part {
    package: (&'static str, &'static str),
    wheel: &'static Wheel,
    files: Vec<(&'static str, &'static Path)>,
}

/// The input of one fetch.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) plugin: &'static Plugin,
    /// The folder of all fetched plugins.
    pub(crate) cache: PathBuf,
    /// The paths of wheels that were downloaded elsewhere, and of folders with wheels; empty to download with pip.
    pub(crate) wheels: Vec<PathBuf>,
    /// The Python interpreter that runs pip.
    pub(crate) python: OsString,
}

impl Fetch {
    /// Returns the fetch that the arguments ask for, with this user's folder of fetched plugins and `python3`.
    ///
    /// # Errors
    /// [`FetchError::Machine`] when the wheels are not for this kind of machine, [`FetchError::NoCache`] when there is
    /// no cache folder.
    pub(crate) fn of_process(
        plugin: &'static Plugin,
        wheels: &[PathBuf],
        surroundings: &Surroundings,
    ) -> Result<Self, FetchError> {
        check_machine(std::env::consts::OS, std::env::consts::ARCH)?;
        Ok(Self {
            plugin,
            cache: cache_folder(surroundings).ok_or(FetchError::NoCache)?,
            wheels: wheels.to_vec(),
            python: "python3".into(),
        })
    }

    /// Puts the plugin and its libraries into the cache unless they are already there. Wheels from files are checked in
    /// any case.
    ///
    /// # Errors
    /// The first failure.
    pub(crate) fn run(&self) -> Result<(), FetchError> {
        let start = Instant::now();
        let given = self.given()?;
        let folder = LockedFolder::lock(&self.cache, self.plugin)?;
        let path = folder.plugin_path();
        if folder.is_complete() {
            say(format_args!("{} {} is already there: {}", self.plugin.package, self.plugin.version, path.display()));
            return Ok(());
        }
        if let Some(note) = self.plugin.licence_note {
            say(format_args!("note: {note}"));
        }
        folder.clear()?;
        let mut num_bytes = 0;
        let downloads = if given.is_empty() { Some(folder.download_folder()?) } else { None };
        for part in self.parts() {
            num_bytes += match &downloads {
                Some(downloads) => self.download(&part, downloads, &folder)?,
                None => {
                    let wheel = given.iter().find(|wheel| wheel.is(part.wheel));
                    install(&part, wheel.ok_or_else(|| self.missing(&given))?, &folder)?
                }
            };
        }
        folder.stamp()?;
        let seconds = start.elapsed().as_secs_f64();
        say(format_args!("done: {} ({}) in {seconds:.1} s", path.display(), megabytes(num_bytes)));
        Ok(())
    }

    /// Returns the wheels to fetch. The plugin's own is the last, because its file makes the others visible.
    fn parts(&self) -> Vec<Part> {
        let of_package = |package: &'static Package| Part {
            package: (package.name, package.version),
            wheel: &package.wheel,
            files: package.files.iter().map(|file| (*file, Path::new(*file))).collect(),
        };
        let own = Part {
            package: (self.plugin.package, self.plugin.version),
            wheel: &self.plugin.wheel,
            files: vec![(self.plugin.path_in_wheel, self.plugin.cached_path())],
        };
        self.plugin.library_packages().iter().map(of_package).chain([own]).collect()
    }

    /// Opens and checks the wheels that were downloaded elsewhere.
    fn given(&self) -> Result<Vec<CheckedWheel>, FetchError> {
        let pinned: Vec<&'static Wheel> = self.plugin.wheels().collect();
        let mut given = Vec::new();
        for path in &self.wheels {
            if !path.is_dir() {
                given.push(CheckedWheel::open(path, &pinned)?);
                continue;
            }
            let paths = pinned.iter().map(|wheel| path.join(wheel.file_name));
            let here: Vec<PathBuf> = paths.filter(|path| path.exists()).collect();
            if here.is_empty() {
                return Err(FetchError::NoWheels { path: path.clone(), wheels: self.wheel_names() });
            }
            for path in here {
                given.push(CheckedWheel::open(&path, &pinned)?);
            }
        }
        let is_complete = pinned.iter().all(|wheel| given.iter().any(|given| given.is(wheel)));
        if given.is_empty() || is_complete { Ok(given) } else { Err(self.missing(&given)) }
    }

    fn missing(&self, given: &[CheckedWheel]) -> FetchError {
        let missing = self.plugin.wheels().filter(|wheel| !given.iter().any(|given| given.is(wheel)));
        FetchError::MoreWheels { wheels: missing.map(|wheel| wheel.file_name).collect() }
    }

    /// The file names of all pinned wheels.
    fn wheel_names(&self) -> Vec<&'static str> {
        self.plugin.wheels().map(|wheel| wheel.file_name).collect()
    }

    /// Downloads a wheel, installs it and removes it.
    fn download(&self, part: &Part, downloads: &DownloadFolder, folder: &LockedFolder) -> Result<u64, FetchError> {
        let (package, version) = part.package;
        say(format_args!("downloading {package} {version}, {}, with pip", megabytes(part.wheel.size_bytes)));
        let path = pip::download(&self.python, part.package, part.wheel, downloads.path(), self.wheel_names())?;
        let num_bytes = install(part, &CheckedWheel::open(&path, &[part.wheel])?, folder)?;
        downloads.remove(&path);
        Ok(num_bytes)
    }
}

/// Puts the files of a wheel into the plugin's folder and returns their size in bytes.
fn install(part: &Part, wheel: &CheckedWheel, folder: &LockedFolder) -> Result<u64, FetchError> {
    let mut num_bytes = 0;
    for (member, destination) in &part.files {
        say(format_args!("extracting {}", destination.file_name().unwrap_or_default().display()));
        let mut file = folder.new_file(destination)?;
        num_bytes += wheel.unpack(member, &mut file)?;
        file.place()?;
    }
    Ok(num_bytes)
}

/// Checks that this kind of machine can run the machine code in the pinned wheels.
pub(crate) fn check_machine(os: &str, arch: &str) -> Result<(), FetchError> {
    match (os, arch) {
        ("linux", "x86_64") => Ok(()),
        (os, arch) => Err(FetchError::Machine { os: os.into(), arch: arch.into() }),
    }
}
