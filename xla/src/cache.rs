//! Compiled programs on disk, which later starts load instead of compiling them again.
//!
//! Entry points: [`key`], [`ProgramCache::entry`], [`Entry::lock_and_load`]. The key of an entry is a hash of what the
//! executable depends on: the version and size of the plugin, devices, program text, flags, and options, which include
//! the device of each rank. If several processes want the same entry, one of them compiles the program while the others
//! wait. If an entry is unusable, a warning is logged and the program is compiled again; if the cache cannot be
//! written, only a warning is logged. The same holds if another user can write the folder or an entry
//! (`devices/src/ownership.rs`).

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use devices::ownership::{self, Code};
use pjrt::{Client, CompileOptions, Device, DeviceDescription, Executable, Plugin, Topology};
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use super::program::Program;

/// The first bytes of each entry. A new format must change them, so that old entries are unreadable.
const MAGIC: &[u8] = b"hilo program 1\n";
/// Environment variables that change the output of compilers.
const FLAG_VARIABLES: [&str; 2] = ["XLA_FLAGS", "LIBTPU_INIT_ARGS"];
/// A flag in these variables that names the devices. It is left out of the key, because the target contains the
/// devices.
const DEVICE_FLAG: &str = "--deepsea_chip_config_name=";
/// The extension of the mark of an entry that is being loaded.
const MARK: &str = "loading";
/// An entry is not loaded while it has marks of this number of dead processes.
const MAX_DEATHS: usize = 2;
/// The mode of the file that an entry's lock is on: only this user may use it.
const LOCK_MODE: u32 = 0o600;
const CPU_INFO: &str = "/proc/cpuinfo";

/// A folder of compiled programs. If `folder` is `None`, no programs are stored.
#[derive(Debug, Clone)]
pub(super) struct ProgramCache {
    folder: Option<PathBuf>,
    is_warned: Arc<Once>,
}

/// The devices and the compiler that executables are made for, as text that is hashed into their keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target(String);

/// The location of one program in the cache.
#[derive(Debug)]
pub(super) struct Entry {
    path: Option<PathBuf>,
    /// Makes sure that an unusable folder is reported once, not for each program.
    is_warned: Arc<Once>,
}

/// The content of an entry, or the right to write it.
#[derive(Debug)]
pub(super) enum Cached<T> {
    Found(T),
    Missing(EntryGuard),
}

/// A file beside an entry while a process loads the entry. If the process dies meanwhile, the file stays. It keeps
/// later starts from loading the entry ([`LoadMark::set`]), which could end them too.
#[derive(Debug)]
struct LoadMark {
    /// `None` if the file cannot be created and locked.
    file: Option<(PathBuf, File)>,
}

/// The exclusive right to write an entry; other processes that want the entry wait until the guard is dropped. Without
/// a usable folder the guard has no path and no lock, and nothing is stored.
#[derive(Debug)]
pub(super) struct EntryGuard {
    path: Option<PathBuf>,
    _lock: Option<File>,
}

impl Target {
    /// Returns the target of a client's devices.
    pub(super) fn of_client(client: &Client) -> Self {
        let devices: Vec<Device> = client.devices();
        let descriptions: Vec<DeviceDescription> = devices.iter().map(|device| device.description().clone()).collect();
        Self::new(client.plugin(), [client.platform_name(), client.platform_version()], &descriptions)
    }

    /// Returns the target of a topology's devices, which need not be on this machine. It equals a client's target for
    /// the same devices and plugin.
    ///
    /// # Errors
    /// When the plugin does not report the platform or the devices.
    pub(super) fn of_topology(plugin: &Plugin, topology: &Topology) -> Result<Self, pjrt::Error> {
        let [name, version] = [topology.platform_name()?, topology.platform_version()?];
        Ok(Self::new(plugin, [&name, &version], &topology.device_descriptions()?))
    }

    fn new(plugin: &Plugin, [platform, version]: [&str; 2], devices: &[DeviceDescription]) -> Self {
        let size = fs::metadata(plugin.path()).map_or(0, |file| file.len());
        let mut text = format!("{platform} {version} {:?} {size}\n", plugin.api_version());
        text += &device_lines(devices);
        for name in FLAG_VARIABLES {
            text += &format!("{name}={}\n", compiler_flags(&std::env::var(name).unwrap_or_default()));
        }
        if platform == "cpu" {
            // Executables for the CPU contain machine code for the processor on which they were compiled.
            let info = fs::read_to_string(CPU_INFO).unwrap_or_default();
            let line = |name: &str| info.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
            text += &format!("{}\n{}\n", line("model name"), line("flags"));
        }
        Self(text)
    }
}

/// Returns one line per device, in ascending order of device ids. Plugins list devices by process, and the processes of
/// a slice may be numbered differently at each start.
fn device_lines(devices: &[DeviceDescription]) -> String {
    let mut devices: Vec<&DeviceDescription> = devices.iter().collect();
    devices.sort_by_key(|device| device.id);
    devices.iter().map(|device| format!("{} {} {:?}\n", device.id, device.kind, device.coords())).collect()
}

impl ProgramCache {
    /// Returns a cache in `folder`, which is made when an entry is first looked for.
    pub(super) fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, is_warned: Arc::new(Once::new()) }
    }

    /// Returns the entry of the program `name` whose [`key`] is `key`.
    pub(super) fn entry(&self, name: &str, key: &str) -> Entry {
        let path = self.folder.as_ref().map(|folder| folder.join(format!("{name}-{key}.executable")));
        Entry { path, is_warned: Arc::clone(&self.is_warned) }
    }
}

impl Entry {
    /// Reads the entry with `load`. If that fails, locks the entry, waiting for another process that may be writing it,
    /// and reads it again. If the entry is still missing or unusable, the result contains the right to write it.
    pub(super) fn lock_and_load<T>(self, load: impl Fn(&[u8]) -> Result<T, pjrt::Error>) -> Cached<T> {
        let uncached = || Cached::Missing(EntryGuard { path: None, _lock: None });
        let Some(path) = self.path else { return uncached() };
        find(&path, load).unwrap_or_else(|error| {
            let warn = || tracing::warn!(path = %path.display(), %error, "compiled programs are not cached");
            self.is_warned.call_once(warn);
            uncached()
        })
    }
}

impl LoadMark {
    /// Marks the entry at `path` as being loaded by this process.
    ///
    /// # Errors
    /// When a process died while it loaded the entry. An entry that was written again since then is loaded once more,
    /// because the process may have been killed for another reason. After the second death, the entry is not loaded
    /// until marks are removed. Also when the times of the files cannot be read.
    fn set(path: &Path) -> io::Result<Self> {
        let written = fs::metadata(path)?.modified()?;
        let mut num_dead = 0;
        for mark in marks_of(path)?.iter().filter(|mark| is_of_dead_process(mark)) {
            num_dead += 1;
            if num_dead == MAX_DEATHS || fs::metadata(mark)?.modified()? >= written {
                let message = format!("a process ended while loading this file; remove {} to retry", mark.display());
                return Err(io::Error::other(message));
            }
        }
        Ok(Self { file: locked_mark(path).ok() })
    }
}

impl Drop for LoadMark {
    fn drop(&mut self) {
        if let Some((path, _)) = &self.file
            && let Err(error) = fs::remove_file(path)
        {
            tracing::warn!(path = %path.display(), %error, "the mark of a program that is being loaded cannot be removed");
        }
    }
}

impl EntryGuard {
    /// Stores `executable` for later starts.
    pub(super) fn store(self, executable: &Executable) {
        let Some(path) = &self.path else {
            return;
        };
        let stored = executable.serialize().map_err(io::Error::other).and_then(|bytes| write(path, &bytes));
        if let Err(error) = stored {
            tracing::warn!(path = %path.display(), %error, "a compiled program was not cached");
        }
    }
}

/// Returns the key of `program`, compiled with `options` for `target`: a hash that changes if any of the three changes.
pub(super) fn key(target: &Target, program: &Program, options: &CompileOptions) -> String {
    let mut hash = Sha256::new();
    for part in [target.0.as_bytes(), program.text.as_bytes(), &options.encode()] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex(&hash.finalize())[..32].to_owned()
}

/// Finds the entry at `path`, or gets the right to write it, as [`Entry::lock_and_load`] does.
///
/// # Errors
/// When the folder cannot be made or the entry cannot be locked, or when another user can write the folder.
fn find<T>(path: &Path, load: impl Fn(&[u8]) -> Result<T, pjrt::Error>) -> io::Result<Cached<T>> {
    ownership::make_folder(Code::Programs, folder_of(path))?;
    if let Ok(loaded) = load_from(path, &load) {
        return Ok(Cached::Found(loaded));
    }
    let lock = lock(path)?;
    // The previous holder of the lock may have written the entry.
    match load_from(path, &load) {
        Ok(loaded) => return Ok(Cached::Found(loaded)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "a cached program is unusable and is compiled again");
        }
    }
    Ok(Cached::Missing(EntryGuard { path: Some(path.to_path_buf()), _lock: Some(lock) }))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

fn load_from<T>(path: &Path, load: &impl Fn(&[u8]) -> Result<T, pjrt::Error>) -> io::Result<T> {
    let bytes = read(path)?;
    let _mark = LoadMark::set(path)?;
    load(&bytes).map_err(io::Error::other)
}

/// Returns the marks of the processes that load, or died loading, the entry at `path`.
fn marks_of(path: &Path) -> io::Result<Vec<PathBuf>> {
    let folder = fs::read_dir(folder_of(path))?;
    let stem = path.file_stem().unwrap_or_default().as_encoded_bytes();
    let is_mark = |name: &[u8]| {
        let rest = name.strip_prefix(stem).and_then(|rest| rest.strip_prefix(b"."));
        rest.is_some_and(|rest| rest.ends_with(MARK.as_bytes()))
    };
    let names = folder.flatten().map(|entry| entry.path());
    Ok(names.filter(|name| is_mark(name.file_name().unwrap_or_default().as_encoded_bytes())).collect())
}

/// True if no living process has the mark: a living process holds its lock, and removes the mark before it releases the
/// lock.
fn is_of_dead_process(mark: &Path) -> bool {
    File::open(mark).is_ok_and(|file| file.try_lock_shared().is_ok()) && mark.exists()
}

/// Creates a mark of the entry at `path`, which is locked before it gets its name. The name is random, because
/// processes in several containers may have the same id.
fn locked_mark(path: &Path) -> io::Result<(PathBuf, File)> {
    let file = new_file(path)?;
    file.as_file().try_lock()?;
    let mark = file.path().with_extension(MARK);
    let file = file.persist(&mark)?;
    Ok((mark, file))
}

/// Creates a file in the folder of the entry at `path`, which only this user may use. The name is new and random, so
/// that no link that is already there is followed. The file is removed when it is dropped before it gets another name.
fn new_file(path: &Path) -> io::Result<NamedTempFile> {
    let mut prefix = path.file_stem().unwrap_or_default().to_owned();
    prefix.push(".");
    tempfile::Builder::new().prefix(&prefix).suffix(".tmp").tempfile_in(folder_of(path))
}

/// Returns the content of an entry after checking who can write it, and its checksum.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    ownership::check(Code::Programs, path, &file.metadata()?)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| invalid("it has another format"))?;
    let (checksum, content) = rest.split_at_checked(32).ok_or_else(|| invalid("it is incomplete"))?;
    if checksum != checksum_of(path, content) {
        return Err(invalid("its checksum is wrong"));
    }
    Ok(content.to_vec())
}

/// The checksum of an entry. It covers the file name too, so a renamed entry is invalid.
fn checksum_of(path: &Path, content: &[u8]) -> Vec<u8> {
    let name = path.file_name().unwrap_or_default();
    Sha256::new().chain_update(name.as_encoded_bytes()).chain_update(content).finalize().to_vec()
}

/// Writes an entry to a temporary file in the same folder and renames it.
fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = new_file(path)?;
    file.write_all(MAGIC)?;
    file.write_all(&checksum_of(path, content))?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

fn lock(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let lock = options.create(true).truncate(false).write(true).mode(LOCK_MODE).open(path.with_extension("lock"))?;
    lock.lock()?;
    Ok(lock)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn compiler_flags(flags: &str) -> String {
    let flags = flags.split_whitespace().filter(|flag| !flag.starts_with(DEVICE_FLAG));
    flags.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::Platform;
    use devices::Device as Name;
    use devices::plugins::testing::plugin_path;

    #[test]
    fn a_topology_and_a_client_of_it_are_one_target() {
        if plugin_path(Name::XLA_CPU).is_none() {
            return;
        }
        let client = Platform::new(Name::XLA_CPU, &devices::xla_cpu::PLATFORM).open(None).unwrap();
        let topology = client.topology().unwrap();
        assert_eq!(Target::of_topology(client.plugin(), &topology).unwrap(), Target::of_client(&client));
    }

    #[test]
    fn targets_do_not_depend_on_the_order_of_devices() {
        let device = |id: i64, process_index| DeviceDescription {
            id,
            process_index,
            kind: "TPU v5 lite".to_owned(),
            debug_string: String::new(),
            attributes: vec![("coords".to_owned(), pjrt::Value::I64List(vec![id % 4, id / 4, 0]))],
        };
        // A slice of two hosts, each with 2 × 2 chips: in the order of processes, the devices 0, 1, 4 and 5 come first.
        let by_process = [0, 1, 4, 5, 2, 3, 6, 7].map(|id| device(id, i64::from([2, 3, 6, 7].contains(&id))));
        let by_id = [0, 1, 2, 3, 4, 5, 6, 7].map(|id| device(id, id));
        assert_eq!(device_lines(&by_process), device_lines(&by_id));
        assert_ne!(device_lines(&by_id), device_lines(&by_id[1..]));
    }

    #[test]
    fn entries_are_whole_or_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("entry.executable");
        write(&path, b"content").unwrap();
        assert_eq!(read(&path).unwrap(), b"content");
        let whole = fs::read(&path).unwrap();
        for broken in [&whole[..whole.len() - 1], &whole[..5], b""] {
            fs::write(&path, broken).unwrap();
            assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }

    /// The environment variable that tells the child process of a test the folder of the entry to load.
    const CHILD: &str = "HILO_TEST_ENTRY_FOLDER";

    /// Loads the entry of a test and returns its content; `None` if it has to be compiled.
    fn load_entry(folder: &Path, load: impl Fn(&[u8]) -> Vec<u8>) -> Option<Vec<u8>> {
        let entry = ProgramCache::new(Some(folder.to_path_buf())).entry("p", "key");
        match entry.lock_and_load(|bytes| Ok(load(bytes))) {
            Cached::Found(content) => Some(content),
            Cached::Missing(_) => None,
        }
    }

    #[test]
    fn an_entry_that_ended_a_process_is_not_loaded_again() {
        if let Some(folder) = std::env::var_os(CHILD) {
            load_entry(Path::new(&folder), |_| std::process::abort());
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p-key.executable");
        write(&path, b"content").unwrap();
        assert_eq!(load_entry(folder.path(), <[u8]>::to_vec), Some(b"content".to_vec()));
        assert_eq!(marks_of(&path).unwrap(), Vec::<PathBuf>::new(), "a load that succeeds leaves no mark");
        // A process that lives does not disturb the others.
        let other = LoadMark::set(&path).unwrap();
        assert_eq!(load_entry(folder.path(), <[u8]>::to_vec), Some(b"content".to_vec()));
        drop(other);
        let die_while_loading = || {
            let name = "cache::tests::an_entry_that_ended_a_process_is_not_loaded_again";
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            let child = child.args([name, "--exact"]).env(CHILD, folder.path());
            assert!(!test_support::output(child).status.success());
        };
        // The times of files are coarse, so a new entry gets a time of its own.
        let write_again = |seconds| {
            write(&path, b"again").unwrap();
            let time = SystemTime::now() + Duration::from_secs(seconds);
            File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        };
        die_while_loading();
        assert_eq!(marks_of(&path).unwrap().len(), 1);
        assert_eq!(load_entry(folder.path(), |_| panic!("the entry is loaded again")), None);
        write_again(10);
        assert_eq!(load_entry(folder.path(), <[u8]>::to_vec), Some(b"again".to_vec()));
        die_while_loading();
        write_again(20);
        assert_eq!(load_entry(folder.path(), |_| panic!("the entry is loaded after two deaths")), None);
        for mark in marks_of(&path).unwrap() {
            fs::remove_file(mark).unwrap();
        }
        assert_eq!(load_entry(folder.path(), <[u8]>::to_vec), Some(b"again".to_vec()));
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn only_this_user_may_use_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("programs");
        let path = folder.join("p-key.executable");
        let Ok(Cached::Missing(guard)) = find(&path, |_| Ok(())) else { panic!("an entry in an empty folder") };
        write(&path, b"content").unwrap();
        let mark = LoadMark::set(&path).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let files = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
        let mut modes: Vec<(String, u32)> =
            files.map(|path| (path.extension().unwrap().display().to_string(), mode(&path))).collect();
        modes.sort();
        let private = ["executable", "loading", "lock"].map(|extension| (extension.to_owned(), 0o600));
        assert_eq!((modes.as_slice(), mode(&folder)), (private.as_slice(), 0o700));
        drop((guard, mark));
    }

    #[test]
    fn a_folder_that_others_can_write_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p-key.executable");
        write(&path, b"content").unwrap();
        for mode in [0o777, 0o770, 0o1777] {
            set_mode(folder.path(), mode);
            let found = find(&path, |_| -> Result<(), _> { panic!("an entry is loaded with mode {mode:o}") });
            let error = found.unwrap_err().to_string();
            assert!(error.contains(&format!("has mode {mode:04o}: other users can write it")), "{error}");
            let names = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
            assert_eq!(names.collect::<Vec<_>>(), std::slice::from_ref(&path), "a file is written with mode {mode:o}");
        }
        set_mode(folder.path(), 0o755);
        assert!(matches!(find(&path, |_| Ok(())), Ok(Cached::Found(()))));
    }

    #[test]
    fn an_entry_that_others_can_write_is_compiled_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p-key.executable");
        write(&path, b"content").unwrap();
        set_mode(&path, 0o660);
        assert_eq!(load_entry(folder.path(), |_| panic!("a file is loaded that others can write")), None);
        write(&path, b"again").unwrap();
        assert_eq!(load_entry(folder.path(), <[u8]>::to_vec), Some(b"again".to_vec()));
        if std::os::unix::fs::chown(&path, Some(54_321), None).is_ok() {
            assert_eq!(load_entry(folder.path(), |_| panic!("a file of another user is loaded")), None);
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains("belongs to user 54321"), "{error}");
        }
    }

    #[test]
    fn everything_that_matters_changes_the_key() {
        let program = |text: &str| Program { name: "p".to_owned(), text: text.to_owned(), ..Program::default() };
        let options = CompileOptions::partitioned(&[0, 1]);
        let target = Target("target".to_owned());
        let known = key(&target, &program("text"), &options);
        assert_eq!(known, key(&target, &program("text"), &options));
        assert_ne!(known, key(&Target("other".to_owned()), &program("text"), &options));
        assert_ne!(known, key(&target, &program("other"), &options));
        // Fewer devices, other devices, and the same devices with other ranks.
        for ids in [vec![0], vec![0, 2], vec![1, 0]] {
            assert_ne!(known, key(&target, &program("text"), &CompileOptions::partitioned(&ids)), "{ids:?}");
        }
    }
}
