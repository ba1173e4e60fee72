//! How many processes, and devices in each, may share a model.

use crate::Device;

/// The numbers that a device takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ranks {
    /// Any number of processes, each of which is one device.
    OnePerProcess,
    /// One process with any number of devices: what several would need to find each other is not there.
    OneProcess,
    /// As many as the chips of this host allow: the launcher plans the slice that they make up.
    Slice,
    /// Any number of processes with any number of devices.
    Any,
}

/// Numbers that a device does not take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RanksError {
    /// Several devices in a process that is one.
    #[error(
        "`devices_per_shard` is {devices_per_shard}, but a shard on --device {device} is one device; use --num-shard"
    )]
    DevicesPerShard {
        /// The device.
        device: Device,
        /// The number.
        devices_per_shard: u32,
    },
    /// Several processes that do not find each other.
    #[error(
        "`num_shard` is {num_shard}, but --device {device} shares a model inside one process; use --devices-per-shard"
    )]
    NumShard {
        /// The device.
        device: Device,
        /// The number.
        num_shard: u32,
    },
}

impl Device {
    /// Refuses numbers of shards, and of devices in each, that cannot share a model.
    ///
    /// # Errors
    /// The number that is wrong, and the flag for the other one.
    pub fn check_ranks(self, num_shard: u32, devices_per_shard: u32) -> Result<(), RanksError> {
        match self.ranks {
            Ranks::OnePerProcess if devices_per_shard > 1 => {
                Err(RanksError::DevicesPerShard { device: self, devices_per_shard })
            }
            Ranks::OneProcess if num_shard > 1 => Err(RanksError::NumShard { device: self, num_shard }),
            Ranks::OnePerProcess | Ranks::OneProcess | Ranks::Slice | Ranks::Any => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_flag_is_named() {
        let refused = |device: Device| [(2, 1), (1, 2)].map(|(shards, each)| device.check_ranks(shards, each).err());
        let [none, one_device] = refused(Device::CPU).map(|error| error.map(|error| error.to_string()));
        let expected = "`devices_per_shard` is 2, but a shard on --device cpu is one device; use --num-shard";
        assert_eq!((none, one_device.as_deref()), (None, Some(expected)));
        let [one_process, none] = refused(Device::XLA_CPU).map(|error| error.map(|error| error.to_string()));
        let expected =
            "`num_shard` is 2, but --device xla-cpu shares a model inside one process; use --devices-per-shard";
        assert_eq!((one_process.as_deref(), none), (Some(expected), None));
        for device in [Device::TPU, Device::MOCK] {
            assert_eq!(refused(device), [None, None]);
        }
    }
}
