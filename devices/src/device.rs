//! A device: a row of the table, and the value of `--device`.

use std::fmt;
use std::ops::Deref;
use std::sync::LazyLock;

use clap::ValueEnum;
use clap::builder::PossibleValue;

use crate::plugins::Plugin;
use crate::{BackendKind, ChildVariable, DeviceSpec, PlatformSpec, TABLE};

/// A device: a reference to its constant data. Two devices are equal if their names are equal.
#[derive(Clone, Copy)]
pub struct Device(&'static DeviceSpec);

/// The value of `--device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The best device of this machine, which [`choose`](crate::choose) finds.
    Auto,
    /// The named device.
    Device(Device),
}

impl Device {
    pub(crate) const fn new(spec: &'static DeviceSpec) -> Self {
        Self(spec)
    }

    /// The data of the device.
    pub(crate) const fn spec(self) -> &'static DeviceSpec {
        self.0
    }

    /// Returns the device that `topology` names, if a plugin drives it and it computes in host memory, as `xla-cpu`
    /// does. `None` for the name of a TPU slice.
    pub fn attached(topology: &str) -> Option<(Self, &'static PlatformSpec)> {
        let device = TABLE.iter().find(|device| device.name == topology && device.uses_host_memory)?;
        Some((*device, device.platform()?))
    }

    /// The data of the plugin that drives the device, and of the plugin's clients and programs. `None` if no plugin
    /// drives the device.
    pub fn platform(self) -> Option<&'static PlatformSpec> {
        match self.backend {
            BackendKind::Plugin(platform) => Some(platform),
            BackendKind::Cpu | BackendKind::Mock => None,
        }
    }

    /// The environment variables that processes which use the device need.
    pub fn variables(self) -> &'static [ChildVariable] {
        self.platform().map_or(&[], |platform| platform.variables)
    }

    /// The plugin that drives the device, if one does.
    pub fn plugin(self) -> Option<&'static Plugin> {
        self.platform().map(|platform| &platform.plugin)
    }
}

/// Returns the names of the devices for which `is_wanted` returns true, as in `cpu, xla-cpu and tpu`. Hidden devices
/// are left out.
pub fn listed(is_wanted: impl Fn(Device) -> bool) -> String {
    let wanted = TABLE.iter().filter(|device| !device.is_hidden && is_wanted(**device));
    let names: Vec<&str> = wanted.map(|device| device.0.name).collect();
    match names.split_last() {
        Some((last, first @ [_, ..])) => format!("{} and {last}", first.join(", ")),
        Some((last, [])) => (*last).to_owned(),
        None => String::new(),
    }
}

impl Deref for Device {
    type Target = DeviceSpec;

    fn deref(&self) -> &DeviceSpec {
        self.0
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl ValueEnum for Asked {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: LazyLock<Vec<Asked>> =
            LazyLock::new(|| std::iter::once(Asked::Auto).chain(TABLE.iter().copied().map(Asked::Device)).collect());
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            Self::Auto => PossibleValue::new("auto").help("The best device of this machine"),
            Self::Device(device) => {
                let DeviceSpec { name, aliases, help, is_hidden, .. } = *device.0;
                PossibleValue::new(name).aliases(aliases.iter().copied()).help(help).hide(is_hidden)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_rows_have_a_name_in_common() {
        let names: Vec<&str> =
            TABLE.iter().flat_map(|device| device.0.aliases.iter().copied().chain([device.0.name])).collect();
        for (index, name) in names.iter().enumerate() {
            assert!(!names[..index].contains(name) && *name != "auto", "{name}");
        }
    }

    #[test]
    fn the_flag_takes_every_row() {
        for device in TABLE {
            assert_eq!(Asked::from_str(device.name, false), Ok(Asked::Device(*device)));
        }
        assert_eq!(Asked::from_str("auto", false), Ok(Asked::Auto));
        assert_eq!(Asked::from_str("gpu", false), Ok(Asked::Device(Device::CUDA)));
    }

    #[test]
    fn lists_read_as_sentences() {
        let wanted = |devices: &[Device]| listed(|device| devices.contains(&device));
        assert_eq!(wanted(&[Device::TPU, Device::CPU, Device::XLA_CPU]), "cpu, xla-cpu and tpu");
        assert_eq!(wanted(&[Device::CUDA, Device::TPU]), "tpu and cuda");
        assert_eq!(wanted(&[Device::CPU]), "cpu");
        assert_eq!(wanted(&[Device::MOCK]), "");
    }

    #[test]
    fn programs_for_a_processor_are_compiled_where_it_is() {
        let names =
            ["cpu", "xla-cpu", "tpu", "cuda", "v5e:2x4"].map(|name| Device::attached(name).map(|(device, _)| device));
        assert_eq!(names, [None, Some(Device::XLA_CPU), None, None, None]);
    }
}
