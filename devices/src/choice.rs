//! The choice of a device when the user names none, and what a named device lacks on this machine.
//!
//! Entry points: [`choose`], which for `auto` returns the first device of the table whose hardware and plugin are here,
//! else the CPU; [`missing`] says why a device cannot be used.

use std::path::Path;

use crate::plugins::{FoundPlugin, Plugin, PluginError, Surroundings, find};
use crate::{Asked, Device, Hardware, Presence, TABLE};

/// The chosen device, and the reason for the choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The device.
    pub device: Device,
    /// The reason, as one line for the log.
    pub reason: String,
}

/// Returns the device that `asked` names, or for [`Asked::Auto`] the first device of the table whose hardware and
/// plugin this machine has, else the CPU.
pub fn choose(asked: Asked, plugin_path: Option<&Path>, surroundings: &Surroundings) -> Choice {
    if let Asked::Device(device) = asked {
        return Choice { device, reason: "asked for".to_owned() };
    }
    let mut passed_over = Vec::new();
    for (device, hardware) in hardware() {
        let found = match (hardware.find)(&surroundings.root) {
            Presence::Here(found) => found,
            Presence::Closed(reason) => {
                passed_over.push(reason);
                continue;
            }
            Presence::Absent => continue,
        };
        let Some(plugin) = device.plugin() else { return Choice { device, reason: found } };
        match find_complete(plugin, plugin_path, surroundings) {
            Ok(plugin) => {
                let reason = format!("{found}, plugin {} ({})", plugin.path.display(), plugin.source);
                return Choice { device, reason };
            }
            Err(error @ (PluginError::Libraries { .. } | PluginError::Untrusted { .. })) => {
                passed_over.push(format!("{found}, but {error}"))
            }
            Err(PluginError::Named { .. } | PluginError::NotFound { .. }) => passed_over.push(format!(
                "{found}, but its plugin is missing: run `text-generation-launcher plugin fetch {}` to use it",
                plugin.name
            )),
        }
    }
    if passed_over.is_empty() {
        passed_over =
            vec![hardware().map(|(_, hardware)| format!("no {}", hardware.name)).collect::<Vec<_>>().join(", ")];
    }
    Choice { device: Device::CPU, reason: passed_over.join("; ") }
}

/// Returns the reason why `device` cannot be used on this machine: its hardware is missing or cannot be opened, or else
/// its plugin or a data file of the plugin is not found. `None` if nothing is missing.
pub fn missing(device: Device, plugin_path: Option<&Path>, surroundings: &Surroundings) -> Option<String> {
    if let Some(hardware) = &device.hardware {
        match (hardware.find)(&surroundings.root) {
            Presence::Here(_) => {}
            Presence::Closed(reason) => return Some(reason),
            Presence::Absent => return Some(hardware.absence.to_owned()),
        }
    }
    find_complete(device.plugin()?, plugin_path, surroundings).err().map(|error| error.to_string())
}

/// Finds a plugin, and checks that its data file is here. Its libraries are not checked, because that means loading
/// them, which only the process does that uses them.
fn find_complete(
    plugin: &Plugin,
    plugin_path: Option<&Path>,
    surroundings: &Surroundings,
) -> Result<FoundPlugin, PluginError> {
    let found = find(plugin, plugin_path, surroundings)?;
    plugin.check_libraries(&found, 1, surroundings, |_| Ok(()))?;
    Ok(found)
}

/// Returns the devices that need special hardware, each with this hardware, in the order of the table.
pub(crate) fn hardware() -> impl Iterator<Item = (Device, &'static Hardware)> {
    TABLE.iter().filter_map(|device| Some((*device, device.spec().hardware.as_ref()?)))
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

        fn choose(&self, asked: Asked) -> (Device, String) {
            let surroundings =
                Surroundings { variables: Default::default(), executable: None, root: self.0.path().to_path_buf() };
            let Choice { device, reason } = super::choose(asked, None, &surroundings);
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
        assert_eq!(machine.choose(Asked::Auto), (Device::CPU, "no TPU, no NVIDIA GPU".to_owned()));
        assert_eq!(machine.choose(Asked::Device(Device::TPU)), (Device::TPU, "asked for".to_owned()));
    }

    #[test]
    fn a_tpu_needs_its_plugin() {
        let machine = Machine::new(&TPU);
        let (device, reason) = machine.choose(Asked::Auto);
        assert_eq!(device, Device::CPU);
        insta::assert_snapshot!(
            reason,
            @"1 TPU v4 chip(s), but its plugin is missing: run `text-generation-launcher plugin fetch tpu` to use it"
        );
        let machine = Machine::new(&[&TPU[..], &[("usr/lib/libtpu.so", "")]].concat());
        let (device, reason) = machine.choose(Asked::Auto);
        assert_eq!(device, Device::TPU, "{reason}");
        assert!(reason.starts_with("1 TPU v4 chip(s), plugin /usr/lib/libtpu.so"), "{reason}");
    }

    #[test]
    fn missing_parts_of_a_device_are_named() {
        let missing = |files: &[(&str, &str)], device| {
            let machine = Machine::new(files);
            let root = machine.0.path().to_path_buf();
            super::missing(device, None, &Surroundings { variables: Default::default(), executable: None, root })
        };
        assert_eq!(missing(&[], Device::CPU), None);
        insta::assert_snapshot!(missing(&[], Device::TPU).unwrap(), @"no TPU chip on the bus");
        assert_eq!(missing(&[], Device::CUDA).unwrap(), "no NVIDIA GPU");
        insta::assert_snapshot!(
            missing(&TPU[..2], Device::TPU).unwrap(),
            @"1 TPU v4 chip(s) on the bus (the first is 0000:00:04.0), but no device node: give the container /dev/vfio or /dev/accel*"
        );
        assert!(missing(&TPU, Device::TPU).unwrap().contains("plugin fetch tpu"), "{:?}", missing(&TPU, Device::TPU));
        assert_eq!(missing(&[&TPU[..], &[("usr/lib/libtpu.so", "")]].concat(), Device::TPU), None);
        assert!(missing(&[], Device::XLA_CPU).unwrap().contains("plugin fetch cpu"));
    }

    #[test]
    fn a_chip_without_a_node_is_not_taken() {
        let (device, reason) = Machine::new(&TPU[..2]).choose(Asked::Auto);
        assert_eq!(device, Device::CPU);
        insta::assert_snapshot!(
            reason,
            @"1 TPU v4 chip(s) on the bus (the first is 0000:00:04.0), but no device node: give the container /dev/vfio or /dev/accel*"
        );
    }

    #[test]
    fn a_gpu_comes_after_a_tpu() {
        let libdevice = ("usr/local/cuda/nvvm/libdevice/libdevice.10.bc", "");
        let gpu = [("dev/nvidia0", ""), ("usr/lib/xla_cuda_plugin.so", ""), libdevice];
        assert_eq!(Machine::new(&gpu).choose(Asked::Auto).0, Device::CUDA);
        let both = [&TPU[..], &gpu, &[("usr/lib/libtpu.so", "")]].concat();
        assert_eq!(Machine::new(&both).choose(Asked::Auto).0, Device::TPU);
        let without_libtpu = [&TPU[..], &gpu].concat();
        assert_eq!(Machine::new(&without_libtpu).choose(Asked::Auto).0, Device::CUDA);
    }

    #[test]
    fn a_gpu_whose_plugin_lacks_a_file_is_not_taken() {
        let machine = Machine::new(&[("dev/nvidia0", ""), ("usr/lib/xla_cuda_plugin.so", "")]);
        let (device, reason) = machine.choose(Asked::Auto);
        assert_eq!(device, Device::CPU);
        let expected = "an NVIDIA GPU, but the cuda13 plugin /usr/lib/xla_cuda_plugin.so lacks libdevice.10.bc of ";
        assert!(reason.starts_with(expected), "{reason}");
    }
}
