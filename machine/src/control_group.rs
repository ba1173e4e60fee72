//! The limits that control groups (cgroups) set for the memory of this process.
//!
//! Entry point: [`memory_limits`]. systemd, Slurm and container engines put processes into groups. Groups form
//! hierarchies, and the limits of all groups from a process's own up to the root of its hierarchy apply. There are two
//! versions of hierarchies, and a machine may have both. `/proc/self/cgroup` names the groups of the process.
//! `/proc/self/mountinfo` says in which folder a hierarchy is mounted, and which of its groups is the root of that
//! folder. A process in a container often sees only its own group, as the root.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::{fs, str};

/// A version of control groups: how the kernel's tables name its hierarchy, and the files of a group.
struct Version {
    file_system: &'static str,
    /// The controller of memory. It names the hierarchy in version 1; version 2 has one hierarchy without a name.
    controller: &'static str,
    /// The limits of a group. A limit of `max` is none.
    limits: &'static [&'static str],
    /// The memory that the group uses, with its caches of files.
    usage: &'static str,
    /// The line of `memory.stat` with the bytes of files that were not read for a while.
    inactive_files: &'static str,
}

const VERSIONS: [Version; 2] = [
    Version {
        file_system: "cgroup2",
        controller: "",
        // Above `memory.high` a process is not killed, but slowed down until it hardly runs.
        limits: &["memory.max", "memory.high"],
        usage: "memory.current",
        inactive_files: "inactive_file",
    },
    Version {
        file_system: "cgroup",
        controller: "memory",
        limits: &["memory.limit_in_bytes"],
        usage: "memory.usage_in_bytes",
        inactive_files: "total_inactive_file",
    },
];

/// The limit of a group, and the memory that its processes use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemoryLimit {
    pub(super) limit_bytes: u64,
    /// The used bytes that the kernel cannot simply drop. Files that were not read for a while are left out: a group
    /// that has read a large file would otherwise seem to be full.
    pub(super) used_bytes: u64,
}

/// A folder in which the groups of a hierarchy appear as folders.
#[derive(Debug)]
struct Mount {
    /// The group that is this folder.
    root: PathBuf,
    folder: PathBuf,
}

impl MemoryLimit {
    /// Returns the bytes that the limit leaves.
    pub(super) fn left_bytes(self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes)
    }
}

/// Returns the limits of this process's groups and of all visible groups above them. The file system of the machine is
/// below the folder `root`. Without control groups there are no limits.
pub(super) fn memory_limits(root: &Path) -> Vec<MemoryLimit> {
    let read = |path| String::from_utf8_lossy(&fs::read(root.join(path)).unwrap_or_default()).into_owned();
    let (groups, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
    let mut limits = Vec::new();
    for version in VERSIONS {
        let Some(group) = version.group(&groups) else { continue };
        let folders = version.folders(&mounts, Path::new(group));
        limits.extend(folders.iter().filter_map(|folder| version.limit(&below(root, folder))));
    }
    limits
}

impl Version {
    /// Returns the path of this process's group in the table `/proc/self/cgroup`, whose lines are
    /// `number:controllers:path`.
    fn group<'a>(&self, table: &'a str) -> Option<&'a str> {
        table.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            controllers.split(',').any(|name| name == self.controller).then_some(path)
        })
    }

    /// Returns the folders of `group` and of the groups above it, as far as a mount of `table`
    /// (`/proc/self/mountinfo`) shows them. If no mount shows the group, as in some containers, the root of the first
    /// mount is most likely the container's own group.
    fn folders(&self, table: &str, group: &Path) -> Vec<PathBuf> {
        let mounts: Vec<Mount> = table.lines().filter_map(|line| self.mount(line)).collect();
        let shown = mounts.iter().find_map(|mount| Some((mount, mount.relative(group)?)));
        let Some((mount, relative)) = shown.or_else(|| Some((mounts.first()?, Path::new("")))) else {
            return Vec::new();
        };
        relative.ancestors().map(|part| mount.folder.join(part)).collect()
    }

    /// Returns the mount in a line of `/proc/self/mountinfo` if it shows this hierarchy. The fields are (proc(5)): id,
    /// parent, device, root, folder, options, further options, `-`, type of the file system, source, options of the
    /// file system.
    fn mount(&self, line: &str) -> Option<Mount> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut fields = file_system.split(' ');
        let (kind, options) = (fields.next()?, fields.nth(1)?);
        let is_ours = self.controller.is_empty() || options.split(',').any(|option| option == self.controller);
        let mut fields = mount.split(' ').skip(3);
        (kind == self.file_system && is_ours).then_some(())?;
        Some(Mount { root: unescaped(fields.next()?), folder: unescaped(fields.next()?) })
    }

    /// Returns the limit of the group in `folder`; `None` if it has none.
    fn limit(&self, folder: &Path) -> Option<MemoryLimit> {
        let limits = self.limits.iter().filter_map(|name| number(&folder.join(name)));
        let limit_bytes = limits.min()?;
        let statistics = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let inactive = statistics.lines().find_map(|line| line.strip_prefix(self.inactive_files)?.trim().parse().ok());
        let used_bytes = number(&folder.join(self.usage)).unwrap_or(0).saturating_sub(inactive.unwrap_or(0));
        Some(MemoryLimit { limit_bytes, used_bytes })
    }
}

impl Mount {
    /// Returns the path of `group` relative to this mount's root; `None` if the mount does not show the group.
    fn relative<'a>(&self, group: &'a Path) -> Option<&'a Path> {
        let relative = group.strip_prefix(&self.root).ok()?;
        relative.components().all(|part| matches!(part, Component::Normal(_))).then_some(relative)
    }
}

/// Returns the number in a file, or `None` if the file is missing or contains something else, such as `max`.
fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Returns the absolute `path` below another root folder.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Replaces the escapes of a path in `/proc/self/mountinfo`, such as `\040` for a space.
fn unescaped(field: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = tail.get(..3).filter(|_| *first == b'\\').and_then(|digits| str::from_utf8(digits).ok());
        match escaped.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsStr::from_bytes(&bytes))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::{available_below, total_below};

    const MIB: u64 = 1 << 20;
    /// The memory of a made machine: 16 GiB, of which 12 GiB are available.
    const MEMINFO: &str = "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\n";
    const V2_MOUNT: &str = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1_MOUNTS: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    const V1_GROUPS: &str = "9:name=systemd:/\n4:memory:/slurm/job\n2:cpu,cpuacct:/other\n0::/user.slice\n";

    /// Makes the file tree of a machine: the two tables of a process, and files of groups, with their contents.
    fn machine(groups: &str, mounts: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let tables = [("proc/meminfo", MEMINFO), ("proc/self/cgroup", groups), ("proc/self/mountinfo", mounts)];
        for (path, content) in tables.iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    /// Returns the total and the available memory of a process, in MiB.
    fn memory(groups: &str, mounts: &str, files: &[(&str, &str)]) -> [u64; 2] {
        let root = machine(groups, mounts, files);
        [total_below(root.path()).unwrap() / MIB, available_below(root.path()).unwrap() / MIB]
    }

    #[test]
    fn the_least_limit_of_a_group_and_those_above_it_applies() {
        let group = "0::/system.slice/hilo.service\n";
        let of = |files: &[(&str, &str)]| memory(group, V2_MOUNT, files);
        assert_eq!(of(&[]), [16_384, 12_288], "no limits");
        let own = [
            ("sys/fs/cgroup/system.slice/hilo.service/memory.max", "4294967296\n"),
            ("sys/fs/cgroup/system.slice/hilo.service/memory.current", "1073741824\n"),
            ("sys/fs/cgroup/system.slice/memory.max", "max\n"),
        ];
        assert_eq!(of(&own), [4096, 3072], "its own limit");
        let [max, current, _] = own;
        let above = [
            ("sys/fs/cgroup/system.slice/memory.max", "2147483648"),
            ("sys/fs/cgroup/system.slice/memory.current", "0"),
        ];
        assert_eq!(of(&[max, current, above[0], above[1]]), [2048, 2048], "the limit of the slice is less");
        let full = ("sys/fs/cgroup/system.slice/memory.current", "2000000000");
        assert_eq!(of(&[max, current, above[0], full]), [2048, 140], "other services of the slice use its memory");
        let over = ("sys/fs/cgroup/system.slice/memory.current", "3000000000");
        assert_eq!(of(&[max, current, above[0], over]), [2048, 0]);
        let root = ("sys/fs/cgroup/memory.max", "1073741824");
        assert_eq!(of(&[max, current, root]), [1024, 1024], "the root of a container has a limit");
        let high = ("sys/fs/cgroup/system.slice/hilo.service/memory.high", "3221225472");
        assert_eq!(of(&[max, current, high]), [3072, 2048], "above memory.high, processes are slowed down");
        let more_than_the_machine = ("sys/fs/cgroup/system.slice/hilo.service/memory.max", "109951162777600");
        assert_eq!(of(&[more_than_the_machine]), [16_384, 12_288]);
        let other = ("sys/fs/cgroup/system.slice/other.service/memory.max", "1048576");
        assert_eq!(of(&[max, current, other]), [4096, 3072], "another group");
    }

    #[test]
    fn files_that_were_not_read_for_a_while_use_no_memory() {
        let files = [
            ("sys/fs/cgroup/a/memory.max", "4294967296"),
            ("sys/fs/cgroup/a/memory.current", "4294967296"),
            ("sys/fs/cgroup/a/memory.stat", "anon 5\nfile 3\ninactive_anon 7\ninactive_file 3221225472\nslab 1\n"),
        ];
        assert_eq!(memory("0::/a\n", V2_MOUNT, &files), [4096, 3072]);
        let files = [
            ("sys/fs/cgroup/memory/slurm/job/memory.limit_in_bytes", "4294967296"),
            ("sys/fs/cgroup/memory/slurm/job/memory.usage_in_bytes", "4294967296"),
            ("sys/fs/cgroup/memory/slurm/job/memory.stat", "inactive_file 1\ntotal_inactive_file 3221225472\n"),
        ];
        assert_eq!(memory(V1_GROUPS, V1_MOUNTS, &files), [4096, 3072]);
    }

    #[test]
    fn both_versions_apply() {
        let none = "9223372036854771712\n";
        let of_job = ("sys/fs/cgroup/memory/slurm/job/memory.limit_in_bytes", "4294967296\n");
        let files = [of_job, ("sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", none)];
        assert_eq!(memory(V1_GROUPS, V1_MOUNTS, &files), [4096, 4096]);
        let used = ("sys/fs/cgroup/memory/slurm/job/memory.usage_in_bytes", "1073741824\n");
        let less = ("sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "1073741824");
        assert_eq!(memory(V1_GROUPS, V1_MOUNTS, &[of_job, used]), [4096, 3072]);
        assert_eq!(memory(V1_GROUPS, V1_MOUNTS, &[of_job, used, less]), [1024, 1024]);
        let of_version_2 = ("sys/fs/cgroup/unified/user.slice/memory.max", "2147483648");
        assert_eq!(memory(V1_GROUPS, V1_MOUNTS, &[of_job, of_version_2]), [2048, 2048]);
        let of_processors = ("sys/fs/cgroup/cpu,cpuacct/other/memory.limit_in_bytes", "1048576");
        assert_eq!(memory(V1_GROUPS, V1_MOUNTS, &[of_processors]), [16_384, 12_288]);
    }

    /// Container engines mount the container's group, and `/proc/self/cgroup` has a path of the machine, of the
    /// container, or one that leads out of the visible part.
    #[test]
    fn a_group_is_found_where_it_is_mounted() {
        let limit = [("sys/fs/cgroup/memory.max", "1073741824"), ("sys/fs/cgroup/job/memory.max", "536870912")];
        let mount = |root: &str| V2_MOUNT.replace("0:28 / ", &format!("0:28 {root} "));
        assert_eq!(memory("0::/docker/1f\n", &mount("/docker/1f"), &limit)[0], 1024);
        assert_eq!(memory("0::/docker/1f/job\n", &mount("/docker/1f"), &limit)[0], 512);
        assert_eq!(memory("0::/\n", &mount("/"), &limit)[0], 1024);
        assert_eq!(memory("0::/\n", &mount("/../../.."), &limit)[0], 1024);
        assert_eq!(memory("0::/../job\n", &mount("/"), &limit)[0], 1024);
        assert_eq!(memory("0::/docker/1f2/job\n", &mount("/docker/1f"), &limit)[0], 1024, "a name with that beginning");
        let second = format!("{}{}", mount("/other").replace("/sys/fs/cgroup", "/mnt"), mount("/"));
        assert_eq!(memory("0::/job\n", &second, &limit)[0], 512, "the mount that shows the group counts");
    }

    #[test]
    fn names_with_special_characters_are_found() {
        let mounts = "31 23 0:28 / /sys/fs/my\\040groups rw - cgroup2 cgroup2 rw\n";
        let files = [("sys/fs/my groups/app-a\\x2db.scope/memory.max", "1073741824")];
        assert_eq!(memory("0::/app-a\\x2db.scope\n", mounts, &files)[0], 1024);
        let nested = "31 23 0:28 /app-a\\134x2db.scope /sys/fs/my\\040groups rw - cgroup2 cgroup2 rw\n";
        let files = [("sys/fs/my groups/memory.max", "1073741824")];
        assert_eq!(memory("0::/app-a\\x2db.scope\n", nested, &files)[0], 1024);
        let plain = ["/a\\", "/a\\04", "/a\\049", "/a\\777"];
        assert_eq!(plain.map(unescaped), plain.map(PathBuf::from));
    }

    #[test]
    fn tables_that_say_nothing_are_no_limits() {
        for (groups, mounts) in [("", ""), ("0::/a\n", ""), ("", V2_MOUNT), ("0\n::\n", "- \n31 - cgroup2\n")] {
            assert_eq!(memory(groups, mounts, &[("sys/fs/cgroup/a/memory.max", "1")]), [16_384, 12_288]);
        }
    }

    /// Two groups of this machine, one in the other, which are removed when dropped.
    struct RealGroups {
        outer: PathBuf,
        inner: PathBuf,
    }

    impl RealGroups {
        /// Makes two groups with these limits of memory, in bytes.
        ///
        /// # Errors
        /// When this machine, or this user's rights, do not allow it.
        fn make(outer_bytes: u64, inner_bytes: u64) -> std::io::Result<Self> {
            let is_v2 = fs::exists("/sys/fs/cgroup/cgroup.subtree_control")?;
            let root = if is_v2 { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/memory" };
            let outer = Path::new(root).join(format!("hilo-test-{}", std::process::id()));
            let groups = Self { inner: outer.join("inner"), outer };
            fs::create_dir(&groups.outer)?;
            if is_v2 {
                fs::write(groups.outer.join("cgroup.subtree_control"), "+memory")?;
            }
            fs::create_dir(&groups.inner)?;
            let file = if is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
            fs::write(groups.outer.join(file), outer_bytes.to_string())?;
            fs::write(groups.inner.join(file), inner_bytes.to_string())?;
            Ok(groups)
        }
    }

    impl Drop for RealGroups {
        fn drop(&mut self) {
            for folder in [&self.inner, &self.outer] {
                let _ = fs::remove_dir(folder);
            }
        }
    }

    /// The environment variable that tells the child process of a test that it is in the groups.
    const CHILD: &str = "HILO_TEST_IN_GROUP";
    const OUTER_BYTES: u64 = 512 * MIB;

    #[test]
    fn a_process_sees_the_limit_of_the_group_above_its_own() {
        if std::env::var_os(CHILD).is_some() {
            assert_eq!(crate::total_bytes().unwrap(), OUTER_BYTES);
            assert!((1..OUTER_BYTES).contains(&crate::available_bytes().unwrap()));
        } else {
            run_again_in_groups("control_group::tests::a_process_sees_the_limit_of_the_group_above_its_own");
        }
    }

    /// Runs a test in a child process whose control group has a limit, below a group that has a smaller one.
    fn run_again_in_groups(test: &str) {
        let groups = match RealGroups::make(OUTER_BYTES, 2 * OUTER_BYTES) {
            Ok(groups) => groups,
            Err(error) => return test_support::skipped(&format!("no control group can be made: {error}")),
        };
        let mut child = Command::new("/bin/sh");
        child.args(["-c", r#"echo $$ > "$0" && exec "$@""#]).arg(groups.inner.join("cgroup.procs"));
        child.arg(std::env::current_exe().unwrap());
        child.args([test, "--exact"]);
        let output = test_support::output(child.env(CHILD, "1"));
        assert!(output.status.success(), "{output:?}");
    }
}
