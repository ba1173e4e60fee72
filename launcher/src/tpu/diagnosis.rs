//! Finds reasons why a shard cannot open its chips, before the shard starts: missing rights, a chip in use, or a lock
//! that another process holds.
//!
//! Entry point: [`check`]. libtpu reports these problems minutes later, in other words, or not at all.
//! The check removes no file, because a file may belong to another user.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use devices::tpu::{Chip, Generation};
use rustix::fs::{Access, OFlags};
use rustix::process::{Flock, FlockOffsetType, FlockType};

/// The file on which libtpu holds a POSIX lock while its process may use chips. The file remains when the lock is
/// released.
const LOCK_FILE: &str = "tmp/libtpu_lockfile";
/// The limit on locked memory of TPU pods on GKE. A lower limit causes a warning.
const MEMLOCK_BYTES: u64 = 64 << 30;
/// The setting of transparent huge pages, such as `always [madvise] never`.
const HUGE_PAGES: &str = "sys/kernel/mm/transparent_hugepage/enabled";
/// The maximum number of characters of a command line in a message.
const MAX_COMMAND_CHARS: usize = 100;

/// The input of a check: the chips that a launch opens, and the state of the machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inspection<'a> {
    /// The root of the file system: `/`, or the directory of `plan --sysfs-root`, or a test's.
    pub(crate) root: &'a Path,
    pub(crate) chips: &'a [&'a Chip],
    /// True if libtpu will take its lock.
    pub(crate) takes_lock: bool,
    /// The bytes that a process may lock in memory; `None` if unlimited.
    pub(crate) memlock_bytes: Option<u64>,
}

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Diagnosis {
    /// Problems that keep a shard from starting.
    pub(crate) errors: Vec<String>,
    pub(crate) warnings: Vec<String>,
}

/// A process that has a file of a TPU open.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Holder {
    pid: u32,
    command: String,
    file: PathBuf,
}

/// Finds all problems that prevent a launch from using its chips, and those that deserve a warning.
pub(crate) fn check(inspection: &Inspection<'_>) -> Diagnosis {
    let mut diagnosis = Diagnosis::default();
    let (holders, num_hidden) = holders(inspection.root);
    for chip in inspection.chips {
        let node = chip.node.as_path();
        let path = below(inspection.root, node);
        let mut held = holders.iter().filter(|holder| holder.file == node).peekable();
        if held.peek().is_some() {
            diagnosis.errors.extend(held.map(|Holder { pid, command, .. }| {
                format!("{} is in use by process {pid} ({command}): end that process first", node.display())
            }));
        } else if let Err(error) = rustix::fs::access(&path, Access::READ_OK | Access::WRITE_OK) {
            diagnosis.errors.push(format!(
                "{} cannot be opened ({error}): this user needs the right to read and write it",
                node.display()
            ));
        } else if is_busy(node, &path) {
            diagnosis.errors.push(format!(
                "{0} is in use, but by none of the processes that this user sees ({num_hidden} are hidden): \
                 `sudo lsof -w {0}` names it",
                node.display()
            ));
        }
    }
    if inspection.takes_lock {
        diagnosis.errors.extend(lock(inspection.root, &holders));
    }
    diagnosis.warnings.extend(memlock(inspection));
    diagnosis.warnings.extend(huge_pages(inspection));
    diagnosis
}

/// The processes that have TPU nodes or the lock file open, and the number of processes that this user may not inspect.
fn holders(root: &Path) -> (Vec<Holder>, usize) {
    let mut holders = Vec::new();
    let mut num_hidden = 0;
    for process in fs::read_dir(root.join("proc")).into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(files) = fs::read_dir(process.path().join("fd")) else {
            num_hidden += 1;
            continue;
        };
        let mut files: Vec<PathBuf> = files.flatten().filter_map(|file| fs::read_link(file.path()).ok()).collect();
        files.retain(|file| is_tpu_file(file));
        files.sort();
        files.dedup();
        let command = if files.is_empty() { String::new() } else { command(&process.path()) };
        holders.extend(files.into_iter().map(|file| Holder { pid, command: command.clone(), file }));
    }
    holders.sort_by_key(|holder| holder.pid);
    (holders, num_hidden)
}

fn is_tpu_file(file: &Path) -> bool {
    let is_accel = file.to_str().is_some_and(|file| file.starts_with("/dev/accel"));
    is_accel || file.starts_with("/dev/vfio") || file == Path::new("/").join(LOCK_FILE)
}

/// Returns the command line of a process, shortened to [`MAX_COMMAND_CHARS`].
fn command(process: &Path) -> String {
    let line = fs::read(process.join("cmdline")).unwrap_or_default();
    let words: Vec<_> = line.split(|byte| *byte == 0).filter(|word| !word.is_empty()).collect();
    let text = String::from_utf8_lossy(&words.join(&b' ')).into_owned();
    if text.is_empty() { "no command line".to_owned() } else { text.chars().take(MAX_COMMAND_CHARS).collect() }
}

/// True if another process has the chip's VFIO group open. A group can be opened only once, and the check has no other
/// effect than opening it for a moment.
fn is_busy(node: &Path, path: &Path) -> bool {
    let flags = (OFlags::NONBLOCK | OFlags::CLOEXEC).bits();
    let open = || OpenOptions::new().read(true).write(true).custom_flags(flags.cast_signed()).open(path);
    node.starts_with("/dev/vfio") && open().is_err_and(|error| error.kind() == std::io::ErrorKind::ResourceBusy)
}

/// Returns the reason why libtpu cannot take its lock; `None` if it can. A lock file that exists is no problem if no
/// process holds the lock and this user may open the file.
fn lock(root: &Path, holders: &[Holder]) -> Option<String> {
    let place = Path::new("/").join(LOCK_FILE);
    let path = root.join(LOCK_FILE);
    let owner = fs::symlink_metadata(&path).ok()?.uid();
    // The file is opened with the same flags as in libtpu, because in a sticky folder the kernel may refuse another
    // user's file whatever its mode.
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).custom_flags(flags).open(&path);
    let pid = file.as_ref().ok().and_then(lock_holder);
    let holder = |pid: &u32| holders.iter().find(|holder| holder.pid == *pid).map(|holder| holder.command.as_str());
    let open_by = holders.iter().find(|holder| holder.file == place);
    match (file, pid, open_by) {
        (Ok(_), Some(pid), _) => Some(format!(
            "process {pid} ({}) holds the lock {} and uses TPU chips of this host: end that process first",
            holder(&pid).unwrap_or("another user's, or in another container"),
            place.display()
        )),
        (Ok(_), None, _) => None,
        (Err(error), _, Some(Holder { pid, command, .. })) => Some(format!(
            "{} cannot be opened ({error}): process {pid} ({command}) has it open and may use TPU chips of this host",
            place.display()
        )),
        (Err(error), _, None) => Some(format!(
            "{0} cannot be opened ({error}), which libtpu needs: it belongs to user {owner}, and no process that this user \
             sees has it open; if no TPU process runs, `sudo rm {0}`",
            place.display()
        )),
    }
}

/// Returns the id of the process that holds a lock on the file; 0 if that process is in another container; `None` if
/// there is no lock.
fn lock_holder(file: &File) -> Option<u32> {
    let whole = Flock { start: 0, length: 0, pid: None, typ: FlockType::WriteLock, offset_type: FlockOffsetType::Set };
    let held = rustix::process::fcntl_getlk(file, &whole).ok()??;
    Some(held.pid.map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs()))
}

fn memlock(inspection: &Inspection<'_>) -> Option<String> {
    let limit = inspection.memlock_bytes.filter(|limit| *limit < MEMLOCK_BYTES)?;
    inspection.chips.iter().any(|chip| chip.node.starts_with("/dev/vfio")).then(|| {
        format!(
            "a process may lock only {} MiB of memory, and libtpu may need more: run `ulimit -l unlimited` first, or \
             pass --ulimit memlock=-1 to the container",
            limit >> 20
        )
    })
}

/// Warns if the kernel gives no huge pages unasked: libtpu's start and end then take much longer on v5e and newer chips
/// (JAX has the same warning).
fn huge_pages(inspection: &Inspection<'_>) -> Option<String> {
    let is_new = |chip: &&Chip| !matches!(chip.generation, Generation::V2OrV3 | Generation::V4);
    let setting = fs::read_to_string(inspection.root.join(HUGE_PAGES)).ok()?;
    (inspection.chips.iter().any(is_new) && !setting.contains("[always]")).then(|| {
        format!(
            "transparent huge pages are not always used, so libtpu starts and ends slowly: run `echo always | sudo tee \
             /{HUGE_PAGES}` on the host"
        )
    })
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::{Command, Stdio};

    use super::*;
    use crate::tpu::testing::Machine;

    fn check_all(machine: &Machine, takes_lock: bool) -> Diagnosis {
        let chips = machine.chips();
        let chips: Vec<&Chip> = chips.iter().collect();
        check(&Inspection { root: machine.root(), chips: &chips, takes_lock, memlock_bytes: None })
    }

    fn process(machine: &Machine, pid: u32, command: &str, file: &str) {
        machine.write(&format!("proc/{pid}/cmdline"), command);
        fs::create_dir_all(machine.root().join(format!("proc/{pid}/fd"))).unwrap();
        symlink(file, machine.root().join(format!("proc/{pid}/fd/9"))).unwrap();
    }

    #[test]
    fn a_free_machine_has_nothing_to_say() {
        let machine = Machine::new("0x006f", 2);
        process(&machine, 7, "bash\0", "/dev/null");
        machine.write(LOCK_FILE, "");
        assert_eq!(check_all(&machine, true), Diagnosis::default());
    }

    #[test]
    fn the_holder_of_a_chip_is_named() {
        let machine = Machine::new("0x006f", 2);
        process(&machine, 4711, "python3\0train.py\0", "/dev/vfio/1");
        process(&machine, 12, "other\0", "/dev/vfio/7");
        let errors = check_all(&machine, false).errors;
        insta::assert_snapshot!(
            errors.join("\n"),
            @"/dev/vfio/1 is in use by process 4711 (python3 train.py): end that process first"
        );
    }

    #[test]
    fn a_node_without_rights_is_named() {
        let machine = Machine::new("0x005e", 1);
        fs::remove_file(machine.root().join("dev/accel0")).unwrap();
        let chips: Vec<Chip> = Machine::new("0x005e", 1).chips();
        let chips: Vec<&Chip> = chips.iter().collect();
        let inspection = Inspection { root: machine.root(), chips: &chips, takes_lock: false, memlock_bytes: None };
        let errors = check(&inspection).errors;
        insta::assert_snapshot!(
            errors.join("\n"),
            @"/dev/accel0 cannot be opened (No such file or directory (os error 2)): this user needs the right to read and write it"
        );
        machine.write("dev/accel0", "");
        fs::set_permissions(machine.root().join("dev/accel0"), fs::Permissions::from_mode(0o000)).unwrap();
        let errors = check(&inspection).errors;
        // The superuser may open any file.
        assert!(rustix::process::geteuid().is_root() || errors[0].contains("Permission denied"), "{errors:?}");
    }

    #[test]
    fn a_lock_that_cannot_be_opened_names_the_file_and_its_owner() {
        let machine = Machine::new("0x006f", 1);
        // There is a folder in place of the file, because even the superuser cannot open a folder for writing.
        fs::create_dir_all(machine.root().join(LOCK_FILE)).unwrap();
        let errors = check_all(&machine, true).errors;
        assert!(
            errors[0].contains("`sudo rm /tmp/libtpu_lockfile`") && errors[0].contains("belongs to user"),
            "{errors:?}"
        );
        assert_eq!(check_all(&machine, false).errors, Vec::<String>::new());
        process(&machine, 99, "server\0", "/tmp/libtpu_lockfile");
        let errors = check_all(&machine, true).errors;
        assert!(errors[0].contains("process 99 (server) has it open"), "{errors:?}");
    }

    #[test]
    fn little_lockable_memory_is_a_warning() {
        let (new, old) = (Machine::new("0x0063", 1), Machine::new("0x005e", 1));
        let warnings = |machine: &Machine, memlock_bytes| {
            let chips = machine.chips();
            let chips: Vec<&Chip> = chips.iter().collect();
            check(&Inspection { root: machine.root(), chips: &chips, takes_lock: false, memlock_bytes }).warnings
        };
        assert!(warnings(&new, Some(8 << 20))[0].contains("8 MiB"));
        assert_eq!(warnings(&new, None), Vec::<String>::new());
        assert_eq!(warnings(&old, Some(8 << 20)), Vec::<String>::new());
    }

    #[test]
    fn huge_pages_that_must_be_asked_for_are_a_warning() {
        for (device, setting, num_warnings) in [
            ("0x0063", "always [madvise] never\n", 1),
            ("0x0063", "always madvise [never]\n", 1),
            ("0x0063", "[always] madvise never\n", 0),
            ("0x005e", "always [madvise] never\n", 0),
        ] {
            let machine = Machine::new(device, 1);
            machine.write(HUGE_PAGES, setting);
            let warnings = check_all(&machine, false).warnings;
            assert_eq!(warnings.len(), num_warnings, "{device} {setting}: {warnings:?}");
            assert!(
                warnings.iter().all(|warning| warning.contains("echo always | sudo tee /sys/kernel")),
                "{warnings:?}"
            );
        }
    }

    /// Holds a lock on the file that `HILO_TEST_LOCK_FILE` names until stdin ends. Another test starts this one as a
    /// child process; in a normal test run this test does nothing.
    #[test]
    fn holds_a_lock_for_another_test() {
        let Some(path) = std::env::var_os("HILO_TEST_LOCK_FILE") else { return };
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        println!("locked");
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    }

    #[test]
    fn the_holder_of_the_lock_is_named() {
        use std::io::{BufRead, BufReader};
        let machine = Machine::new("0x006f", 1);
        machine.write(LOCK_FILE, "");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tpu::diagnosis::tests::holds_a_lock_for_another_test", "--nocapture"])
            .env("HILO_TEST_LOCK_FILE", machine.root().join(LOCK_FILE))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(test_support::watched("the lock of the child", || lines.any(|line| line.unwrap().ends_with("locked"))));
        let errors = check_all(&machine, true).errors;
        drop(child.stdin.take());
        assert!(test_support::exit_status(&mut child, "the holder of the lock").success());
        assert!(errors[0].starts_with(&format!("process {} (", child.id())), "{errors:?}");
        assert_eq!(check_all(&machine, true).errors, Vec::<String>::new());
    }
}
