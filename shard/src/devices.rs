//! Which device computes when nobody says.
//!
//! Door: [`choose`]: a TPU if its chips and its plugin are here, else an NVIDIA GPU with its plugin, else the CPU. It looks at
//! files only; no plugin is opened.

use std::fs;
use std::path::{Path, PathBuf};

use crate::args::Device;
use crate::plugins::{PluginKind, Surroundings, find};

const PCI_DEVICES: &str = "sys/bus/pci/devices";
const PCI_VENDOR_GOOGLE: &str = "0x1ae0";
/// PCI device numbers of TPU chips, as in libtpu's users.
const TPU_CHIPS: [(&str, &str); 7] = [
    ("0x0027", "v3"),
    ("0x005e", "v4"),
    ("0x0062", "v5p"),
    ("0x0063", "v5e"),
    ("0x006f", "v6e"),
    ("0x0076", "tpu7x"),
    ("0x0083", "tpu8i"),
];
/// A folder with an entry per GPU that the driver drives, and the node of the first one, which containers have.
const NVIDIA_PLACES: [&str; 2] = ["proc/driver/nvidia/gpus", "dev/nvidia0"];

/// A device, and why it was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Never [`Device::Auto`].
    pub device: Device,
    /// One line for the log.
    pub reason: String,
}

/// The device that `asked` stands for on this machine.
pub fn choose(asked: Device, plugin_path: Option<&Path>, surroundings: &Surroundings) -> Choice {
    if asked != Device::Auto {
        return Choice { device: asked, reason: "asked for".to_owned() };
    }
    let candidates = [
        (Device::Tpu, PluginKind::Tpu, tpu_chips(&surroundings.root)),
        (Device::Cuda, PluginKind::Cuda13, nvidia_gpu(&surroundings.root)),
    ];
    let mut passed_over = Vec::new();
    for (device, plugin, hardware) in candidates {
        match hardware.map(|hardware| (hardware, find(plugin, plugin_path, surroundings))) {
            Some((hardware, Ok(found))) => {
                return Choice {
                    device,
                    reason: format!("{hardware}, plugin {} ({})", found.path.display(), found.source),
                };
            }
            Some((hardware, Err(_))) => passed_over.push(format!(
                "{hardware}, but no plugin: run `text-generation-launcher plugin fetch {plugin}` to use it"
            )),
            None => {}
        }
    }
    let reason = if passed_over.is_empty() { "no TPU, no NVIDIA GPU".to_owned() } else { passed_over.join("; ") };
    Choice { device: Device::Cpu, reason }
}

/// How many TPU chips of which kind are on the bus.
fn tpu_chips(root: &Path) -> Option<String> {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let devices = fs::read_dir(root.join(PCI_DEVICES)).ok()?.flatten().map(|entry| entry.path());
    let ours = devices.filter(|device| read(device.join("vendor")) == PCI_VENDOR_GOOGLE);
    let kind = |device: PathBuf| {
        let number = read(device.join("device"));
        TPU_CHIPS.iter().find(|(known, _)| *known == number).map(|(_, kind)| *kind)
    };
    let kinds: Vec<&str> = ours.filter_map(kind).collect();
    let first = kinds.first()?;
    Some(format!("{} TPU {first} chip(s)", kinds.len()))
}

fn nvidia_gpu(root: &Path) -> Option<String> {
    NVIDIA_PLACES.iter().any(|place| root.join(place).exists()).then(|| "an NVIDIA GPU".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new(files: &[(&str, &str)]) -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            for (path, text) in files {
                let path = machine.0.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            machine
        }

        fn choose(&self, asked: Device) -> (Device, String) {
            let surroundings =
                Surroundings { variables: Default::default(), executable: None, root: self.0.path().to_path_buf() };
            let Choice { device, reason } = choose(asked, None, &surroundings);
            (device, reason.replace(self.0.path().to_str().unwrap(), ""))
        }
    }

    const TPU: [(&str, &str); 4] = [
        ("sys/bus/pci/devices/0000:00:04.0/vendor", "0x1ae0\n"),
        ("sys/bus/pci/devices/0000:00:04.0/device", "0x0063\n"),
        ("sys/bus/pci/devices/0000:00:05.0/vendor", "0x8086\n"),
        ("sys/bus/pci/devices/0000:00:05.0/device", "0x0063\n"),
    ];

    #[test]
    fn a_machine_without_either_computes_on_its_cpu() {
        let machine = Machine::new(&[]);
        assert_eq!(machine.choose(Device::Auto), (Device::Cpu, "no TPU, no NVIDIA GPU".to_owned()));
        assert_eq!(machine.choose(Device::Tpu), (Device::Tpu, "asked for".to_owned()));
    }

    #[test]
    fn a_tpu_needs_its_plugin() {
        let machine = Machine::new(&TPU);
        let (device, reason) = machine.choose(Device::Auto);
        assert_eq!(device, Device::Cpu);
        assert_eq!(
            reason,
            "1 TPU v5e chip(s), but no plugin: run `text-generation-launcher plugin fetch tpu` to use it"
        );
        let machine = Machine::new(&[&TPU[..], &[("usr/lib/libtpu.so", "")]].concat());
        let (device, reason) = machine.choose(Device::Auto);
        assert_eq!(device, Device::Tpu, "{reason}");
        assert!(reason.starts_with("1 TPU v5e chip(s), plugin /usr/lib/libtpu.so"), "{reason}");
    }

    #[test]
    fn a_gpu_comes_after_a_tpu() {
        let gpu = [("dev/nvidia0", ""), ("usr/lib/xla_cuda_plugin.so", "")];
        assert_eq!(Machine::new(&gpu).choose(Device::Auto).0, Device::Cuda);
        let both = [&TPU[..], &gpu, &[("usr/lib/libtpu.so", "")]].concat();
        assert_eq!(Machine::new(&both).choose(Device::Auto).0, Device::Tpu);
        let without_libtpu = [&TPU[..], &gpu].concat();
        assert_eq!(Machine::new(&without_libtpu).choose(Device::Auto).0, Device::Cuda);
    }
}
