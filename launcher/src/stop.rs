//! The waits of a stop, from the end of `--shutdown-timeout` to the exit. `docs/limits.md` has their sum, and the tests
//! below compare it with that page and with the manifests of `deploy/`.

use std::time::Duration;

use devices::Device;

/// The maximum time that the router gets after the shutdown timeout to end: a second more than it needs.
pub(crate) const ROUTER_MARGIN: Duration = router::STOP_MARGIN.saturating_add(Duration::from_secs(1));
/// The maximum time from SIGTERM to the end of a child that is killed. After it, the child gets SIGKILL.
pub(crate) const TERM_DEADLINE: Duration = Duration::from_millis(500);
/// The maximum time that a shard gets to free hardware, once the router has ended.
const FREE_DEADLINE: Duration = Duration::from_secs(10);
/// The maximum time that a shard without hardware gets to end. It may be in a step of many seconds, which nobody needs
/// any more.
const LEAVE_DEADLINE: Duration = Duration::from_millis(500);

/// Returns the maximum time that a shard gets to end, once the router has ended.
pub(crate) fn shard_deadline(device: Device) -> Duration {
    if device.hardware.is_some() { FREE_DEADLINE } else { LEAVE_DEADLINE }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use clap::Parser;

    use super::*;
    use crate::args::Args;

    /// Returns the maximum time from the end of `--shutdown-timeout` to the exit.
    fn margin(device: Device) -> Duration {
        router::STOP_MARGIN + shard_deadline(device) + TERM_DEADLINE
    }

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
    }

    fn read(path: &str) -> String {
        fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Returns the numbers that follow `name` in `text`.
    fn numbers(text: &str, name: &str) -> Vec<f64> {
        let ends = |text: &str| text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        text.split(name).skip(1).filter_map(|rest| rest[..ends(rest)].parse().ok()).collect()
    }

    /// The default of `--shutdown-timeout`, in seconds.
    fn default_timeout() -> f64 {
        Args::parse_from(["text-generation-launcher"]).launch.shutdown_timeout as f64
    }

    /// Returns the folder `root` and all folders below it.
    fn folders(root: PathBuf) -> Vec<PathBuf> {
        let entries = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path());
        let below: Vec<PathBuf> = entries.filter(|path| path.is_dir()).flat_map(folders).collect();
        std::iter::once(root).chain(below).collect()
    }

    #[test]
    fn the_page_of_limits_adds_up_the_waits_of_a_stop() {
        let page = read("docs/limits.md");
        let section = page.split("\n## ").find(|section| section.starts_with("How long a stop takes")).unwrap();
        let rows: Vec<Vec<&str>> = section
            .lines()
            .filter(|line| line.starts_with("| ") && line.contains(" s |"))
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        let (sum, waits) = rows.split_last().unwrap();
        let seconds = |text: &str| text.trim_end_matches(" s").parse::<f64>().unwrap();
        for (column, device) in [(2, Device::CPU), (3, Device::TPU)] {
            let total: f64 = waits.iter().map(|row| seconds(row[column])).sum();
            assert_eq!(total, default_timeout() + margin(device).as_secs_f64(), "{device}: {rows:?}");
            assert_eq!(total, seconds(sum[column]), "{device}: {rows:?}");
        }
    }

    #[test]
    fn a_stop_ends_soon_after_the_shutdown_timeout() {
        for (device, seconds) in [(Device::CPU, 5), (Device::XLA_CPU, 5), (Device::TPU, 15), (Device::CUDA, 15)] {
            assert!(margin(device) <= Duration::from_secs(seconds), "{device}: {:?}", margin(device));
        }
    }

    #[test]
    fn manifests_leave_time_for_a_stop() {
        let mut num_checked = 0;
        for folder in folders(root().join("deploy/kubernetes")) {
            let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
            let is_yaml = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "yaml");
            let text: String = files.filter(is_yaml).map(|path| fs::read_to_string(path).unwrap()).collect();
            for grace in numbers(&text, "terminationGracePeriodSeconds: ") {
                let [mut timeouts, more] =
                    ["SHUTDOWN_TIMEOUT=", "--shutdown-timeout="].map(|name| numbers(&text, name));
                timeouts.extend(more);
                let before = numbers(&text.replace(['\n', ' '], ""), "preStop:sleep:seconds:");
                let device = if folder.to_string_lossy().contains("tpu") { Device::TPU } else { Device::CPU };
                let sum = before[0] + timeouts[0] + margin(device).as_secs_f64();
                assert!(grace >= sum, "{}: {grace} s, but a stop may take {sum} s", folder.display());
                num_checked += 1;
            }
        }
        assert_eq!(num_checked, 5, "cpu, tpu, their slices and kserve");
    }

    #[test]
    fn compose_leaves_time_for_a_stop() {
        let grace = numbers(&read("compose.yaml"), "stop_grace_period: ")[0];
        let docker = numbers(&read("docs/docker.md"), "docker stop --time ")[0];
        let sum = default_timeout() + margin(Device::TPU).as_secs_f64();
        assert!(grace >= sum && docker >= sum, "{grace} s and {docker} s, but a stop may take {sum} s");
    }
}
