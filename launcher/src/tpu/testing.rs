//! Machines for tests. A machine is a folder that looks like the root directory of a machine with TPU chips.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use devices::tpu::{Chip, find};

/// A temporary folder with the files of `/sys` and `/dev` that describe TPU chips.
#[derive(Debug)]
pub(crate) struct Machine(tempfile::TempDir);

impl Machine {
    /// Creates a machine with `num_chips` chips, all with the PCI device id `device`, in IOMMU groups 0, 1, and so on.
    pub(crate) fn new(device: &str, num_chips: u32) -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        for chip in 0..num_chips {
            let folder = format!("sys/bus/pci/devices/0000:00:{:02x}.0", chip + 4);
            machine.write(&format!("{folder}/vendor"), "0x1ae0\n");
            machine.write(&format!("{folder}/device"), &format!("{device}\n"));
            let group = format!("../../../../kernel/iommu_groups/{chip}");
            symlink(group, machine.root().join(folder).join("iommu_group")).unwrap();
            machine.write(&format!("dev/vfio/{chip}"), "");
            machine.write(&format!("dev/accel{chip}"), "");
        }
        machine
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn chips(&self) -> Vec<Chip> {
        find(self.root()).usable
    }
}
