//! Which device computes when nobody says.
//!
//! Doors: [`tpu::find`]; [`choose`]: a TPU if its chips and its plugin are here, else an NVIDIA GPU with its plugin, else
//! the CPU; [`missing`]: what a device lacks. They look at files only; no plugin is opened.

mod device;
pub mod plugins;
pub mod tpu;

use std::path::Path;

pub use device::Device;
use plugins::{PluginKind, Surroundings, find};

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
    passed_over.extend(closed_tpu(&surroundings.root));
    let reason = if passed_over.is_empty() { "no TPU, no NVIDIA GPU".to_owned() } else { passed_over.join("; ") };
    Choice { device: Device::Cpu, reason }
}

/// What `device` needs and this machine does not have, in words: the hardware, or else the plugin.
pub fn missing(device: Device, plugin_path: Option<&Path>, surroundings: &Surroundings) -> Option<String> {
    let root = &surroundings.root;
    let (plugin, hardware, absence) = match device {
        Device::Auto | Device::Cpu | Device::Mock => return None,
        Device::XlaCpu => (PluginKind::Cpu, Some(String::new()), None),
        Device::Tpu => {
            (PluginKind::Tpu, tpu_chips(root), closed_tpu(root).or(Some("no TPU chip on the bus".to_owned())))
        }
        Device::Cuda => (PluginKind::Cuda13, nvidia_gpu(root), Some("no NVIDIA GPU".to_owned())),
    };
    match hardware {
        None => absence,
        Some(_) => find(plugin, plugin_path, surroundings).err().map(|error| error.to_string()),
    }
}

/// TPU chips that are on the bus, none of which can be opened.
fn closed_tpu(root: &Path) -> Option<String> {
    let chips = tpu::find(root);
    let (generation, address) = chips.without_node.first().filter(|_| chips.usable.is_empty())?;
    Some(format!(
        "{} TPU {} chip(s) on the bus (the first is {address}), but no device node: give the container /dev/vfio or /dev/accel*",
        chips.without_node.len(),
        generation.name(),
    ))
}

/// How many TPU chips of which kind can be opened.
fn tpu_chips(root: &Path) -> Option<String> {
    let chips = tpu::find(root).usable;
    let first = chips.first()?.generation.name();
    Some(format!("{} TPU {first} chip(s)", chips.len()))
}

fn nvidia_gpu(root: &Path) -> Option<String> {
    NVIDIA_PLACES.iter().any(|place| root.join(place).exists()).then(|| "an NVIDIA GPU".to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

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

    const TPU: [(&str, &str); 5] = [
        ("sys/bus/pci/devices/0000:00:04.0/vendor", "0x1ae0\n"),
        ("sys/bus/pci/devices/0000:00:04.0/device", "0x005e\n"),
        ("dev/accel0", ""),
        ("sys/bus/pci/devices/0000:00:05.0/vendor", "0x8086\n"),
        ("sys/bus/pci/devices/0000:00:05.0/device", "0x005e\n"),
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
            "1 TPU v4 chip(s), but no plugin: run `text-generation-launcher plugin fetch tpu` to use it"
        );
        let machine = Machine::new(&[&TPU[..], &[("usr/lib/libtpu.so", "")]].concat());
        let (device, reason) = machine.choose(Device::Auto);
        assert_eq!(device, Device::Tpu, "{reason}");
        assert!(reason.starts_with("1 TPU v4 chip(s), plugin /usr/lib/libtpu.so"), "{reason}");
    }

    #[test]
    fn what_is_missing_is_named() {
        let missing = |files: &[(&str, &str)], device| {
            let machine = Machine::new(files);
            let root = machine.0.path().to_path_buf();
            super::missing(device, None, &Surroundings { variables: Default::default(), executable: None, root })
        };
        assert_eq!(missing(&[], Device::Cpu), None);
        assert_eq!(missing(&[], Device::Tpu).unwrap(), "no TPU chip on the bus");
        assert_eq!(missing(&[], Device::Cuda).unwrap(), "no NVIDIA GPU");
        assert!(
            missing(&TPU[..2], Device::Tpu).unwrap().starts_with("1 TPU v4 chip(s) on the bus (the first is 0000:")
        );
        assert!(missing(&TPU, Device::Tpu).unwrap().contains("plugin fetch tpu"), "{:?}", missing(&TPU, Device::Tpu));
        assert_eq!(missing(&[&TPU[..], &[("usr/lib/libtpu.so", "")]].concat(), Device::Tpu), None);
        assert!(missing(&[], Device::XlaCpu).unwrap().contains("plugin fetch cpu"));
    }

    #[test]
    fn a_chip_without_a_node_is_not_taken() {
        let (device, reason) = Machine::new(&TPU[..2]).choose(Device::Auto);
        assert_eq!(device, Device::Cpu);
        assert!(reason.contains("but no device node: give the container /dev/vfio"), "{reason}");
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
