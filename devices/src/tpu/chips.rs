//! The TPU chips of a machine: the table of their PCI device ids, and the code that detects them.
//!
//! Entry point: [`find`] reads the bus and looks for device nodes below a root directory, but opens no device.

use std::fs;
use std::path::{Path, PathBuf};

const PCI_DEVICES: &str = "sys/bus/pci/devices";
const PCI_VENDOR_GOOGLE: &str = "0x1ae0";

/// For each PCI device id, the generation of the chip, and the driver that creates the chip's device node.
const TABLE: [(&str, Generation, Driver); 8] = [
    ("0x0027", Generation::V2OrV3, Driver::Accel),
    ("0x005e", Generation::V4, Driver::Accel),
    ("0x0062", Generation::V5p, Driver::Vfio),
    ("0x0063", Generation::V5e, Driver::Vfio),
    ("0x006f", Generation::V6e, Driver::Vfio),
    ("0x0076", Generation::Tpu7x, Driver::Vfio),
    ("0x0083", Generation::Tpu8i, Driver::Vfio),
    ("0x007c", Generation::Tpu8t, Driver::Vfio),
];

/// A generation of TPUs, as far as the PCI device id identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// v2 or v3, which have the same PCI device id.
    V2OrV3,
    /// The generation before v5e and v5p.
    V4,
    /// Also called v5 lite.
    V5e,
    /// Released in 2023; its chips form a three-dimensional torus.
    V5p,
    /// Also called v6 lite.
    V6e,
    /// The generation whose chips have two chiplets, each of which is a device.
    Tpu7x,
    /// The variant of the eighth generation for inference.
    Tpu8i,
    /// The variant of the eighth generation for training.
    Tpu8t,
}

/// The kernel driver of a chip, which determines the name of the chip's device node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Driver {
    /// `/dev/accel<n>`.
    Accel,
    /// `/dev/vfio/<iommu group>`.
    Vfio,
}

/// A chip with a device node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chip {
    /// The generation.
    pub generation: Generation,
    /// The address on the PCI bus, such as `0000:00:05.0`.
    pub pci_address: String,
    /// The number of the chip's IOMMU group, if it has one. VFIO gives a process access to whole groups only.
    pub iommu_group: Option<u32>,
    /// The path of the device node, such as `/dev/vfio/3`. The root directory that [`find`] searched is not part of it.
    pub node: PathBuf,
}

/// The chips that [`find`] found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chips {
    /// The chips with a device node, in the order of their PCI addresses, which is the order of libtpu's local indices.
    pub usable: Vec<Chip>,
    /// The generations and addresses of PCI functions without a device node of their own: chips that the container was
    /// not given, or further functions of a chip.
    pub without_node: Vec<(Generation, String)>,
}

/// A PCI function of a TPU.
struct Function {
    pci_address: String,
    generation: Generation,
    driver: Driver,
    folder: PathBuf,
}

impl Generation {
    /// The usual name of the generation.
    pub fn name(self) -> &'static str {
        match self {
            Self::V2OrV3 => "v2 or v3",
            Self::V4 => "v4",
            Self::V5e => "v5e",
            Self::V5p => "v5p",
            Self::V6e => "v6e",
            Self::Tpu7x => "tpu7x",
            Self::Tpu8i => "tpu8i",
            Self::Tpu8t => "tpu8t",
        }
    }
}

/// Finds the TPU chips below the root directory `root`.
///
/// Only PCI functions with a device node of their own count as chips, because a chip may have several functions on the
/// bus, and a container sees the whole bus but has only the nodes of its own chips.
pub fn find(root: &Path) -> Chips {
    let mut chips = Chips::default();
    for (index, function) in functions(root).into_iter().enumerate() {
        let iommu_group = iommu_group(&function.folder);
        let node = match function.driver {
            Driver::Vfio => iommu_group.map(|group| format!("dev/vfio/{group}")),
            Driver::Accel => Some(format!("dev/{}", accel_name(&function.folder, index))),
        };
        let is_new = |node: &String| chips.usable.iter().all(|chip| chip.node != Path::new("/").join(node));
        match node.filter(|node| root.join(node).exists()).filter(is_new) {
            Some(node) => chips.usable.push(Chip {
                generation: function.generation,
                pci_address: function.pci_address,
                iommu_group,
                node: Path::new("/").join(node),
            }),
            None => chips.without_node.push((function.generation, function.pci_address)),
        }
    }
    chips
}

fn functions(root: &Path) -> Vec<Function> {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let Ok(entries) = fs::read_dir(root.join(PCI_DEVICES)) else { return Vec::new() };
    let mut functions: Vec<Function> = entries
        .flatten()
        .filter(|entry| read(entry.path().join("vendor")) == PCI_VENDOR_GOOGLE)
        .filter_map(|entry| {
            let number = read(entry.path().join("device"));
            let (_, generation, driver) = *TABLE.iter().find(|(known, _, _)| *known == number)?;
            let pci_address = entry.file_name().to_string_lossy().into_owned();
            Some(Function { pci_address, generation, driver, folder: entry.path() })
        })
        .collect();
    functions.sort_by(|a, b| a.pci_address.cmp(&b.pci_address));
    functions
}

fn iommu_group(folder: &Path) -> Option<u32> {
    fs::read_link(folder.join("iommu_group")).ok()?.file_name()?.to_str()?.parse().ok()
}

/// Returns the name of a chip's device node: the name in sysfs, else `accel<index>`, where `index` is the position of
/// the chip's function on the bus.
fn accel_name(folder: &Path, index: usize) -> String {
    let entries = fs::read_dir(folder.join("accel")).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.find(|name| name.starts_with("accel")).unwrap_or_else(|| format!("accel{index}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn function(&self, address: &str, device: &str, group: Option<u32>) {
            let folder = format!("{PCI_DEVICES}/{address}");
            self.write(&format!("{folder}/vendor"), "0x1ae0\n");
            self.write(&format!("{folder}/device"), &format!("{device}\n"));
            if let Some(group) = group {
                let target = format!("../../../kernel/iommu_groups/{group}");
                symlink(target, self.0.path().join(folder).join("iommu_group")).unwrap();
            }
        }

        fn nodes(&self) -> Vec<(String, String)> {
            let chips = find(self.0.path()).usable;
            chips.into_iter().map(|chip| (chip.pci_address, chip.node.display().to_string())).collect()
        }
    }

    fn pair(address: &str, node: &str) -> (String, String) {
        (address.to_owned(), node.to_owned())
    }

    #[test]
    fn chips_come_in_the_order_of_their_addresses() {
        let machine = Machine::new();
        machine.function("0000:00:06.0", "0x006f", Some(0));
        machine.function("0000:00:05.0", "0x006f", Some(12));
        machine.write("dev/vfio/0", "");
        machine.write("dev/vfio/12", "");
        assert_eq!(machine.nodes(), [pair("0000:00:05.0", "/dev/vfio/12"), pair("0000:00:06.0", "/dev/vfio/0")]);
        let chip = find(machine.0.path()).usable.remove(0);
        assert_eq!((chip.generation, chip.iommu_group), (Generation::V6e, Some(12)));
    }

    #[test]
    fn functions_without_a_node_of_their_own_do_not_count() {
        let machine = Machine::new();
        machine.function("0000:00:04.0", "0x0076", Some(1));
        machine.function("0000:00:04.1", "0x0076", Some(1));
        machine.function("0000:00:05.0", "0x0076", Some(2));
        machine.function("0000:00:06.0", "0x0076", None);
        machine.write("dev/vfio/1", "");
        assert_eq!(machine.nodes(), [pair("0000:00:04.0", "/dev/vfio/1")]);
        assert_eq!(find(machine.0.path()).without_node.len(), 3);
    }

    #[test]
    fn older_chips_have_accel_nodes() {
        let machine = Machine::new();
        machine.function("0000:00:04.0", "0x005e", Some(1));
        machine.function("0000:00:05.0", "0x005e", Some(2));
        machine.write(&format!("{PCI_DEVICES}/0000:00:05.0/accel/accel3/dev"), "");
        machine.write("dev/accel0", "");
        machine.write("dev/accel3", "");
        assert_eq!(machine.nodes(), [pair("0000:00:04.0", "/dev/accel0"), pair("0000:00:05.0", "/dev/accel3")]);
    }

    #[test]
    fn other_vendors_and_an_empty_machine_have_none() {
        let machine = Machine::new();
        assert_eq!(find(machine.0.path()), Chips::default());
        machine.function("0000:00:04.0", "0x9999", Some(1));
        assert_eq!(find(machine.0.path()), Chips::default());
    }
}
