//! Checks that a device supports the numbers of processes and the types of weights that a user asks for.

use crate::{Device, Quantize, Ranks, listed};

/// The error for numbers that a device does not support.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RanksError {
    /// Several devices per process, on a device that supports one.
    #[error(
        "`devices_per_shard` is {devices_per_shard}, but a shard on --device {device} has one device; use --num-shard \
         instead"
    )]
    DevicesPerShard {
        /// The device.
        device: Device,
        /// The number of devices per process.
        devices_per_shard: u32,
    },
    /// Several processes, on a device that supports one.
    #[error(
        "`num_shard` is {num_shard}, but --device {device} runs a model in one process; use --devices-per-shard instead"
    )]
    NumShard {
        /// The device.
        device: Device,
        /// The number of processes.
        num_shard: u32,
    },
}

/// The error for a type that a device does not support.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "--quantize is {quantize}, which is for --device {}; the device is {device}",
    listed(|device| device.quantizations.contains(quantize))
)]
pub struct NoQuantizeError {
    /// The type.
    pub quantize: Quantize,
    /// The device.
    pub device: Device,
}

impl Device {
    /// Refuses numbers of shards, and of devices in each, with which the device cannot share a model.
    ///
    /// # Errors
    /// When a number is not supported. The error names it and the flag to use instead.
    pub fn check_ranks(self, num_shard: u32, devices_per_shard: u32) -> Result<(), RanksError> {
        match self.ranks {
            Ranks::OnePerProcess if devices_per_shard > 1 => {
                Err(RanksError::DevicesPerShard { device: self, devices_per_shard })
            }
            Ranks::OneProcess if num_shard > 1 => Err(RanksError::NumShard { device: self, num_shard }),
            Ranks::OnePerProcess | Ranks::OneProcess | Ranks::Slice | Ranks::Any => Ok(()),
        }
    }

    /// Refuses a type of weights that the device does not support.
    ///
    /// # Errors
    /// When the device does not support the type. The error lists the devices that do.
    pub fn check_quantize(self, quantize: Quantize) -> Result<(), NoQuantizeError> {
        match self.quantizations.contains(&quantize) {
            true => Ok(()),
            false => Err(NoQuantizeError { quantize, device: self }),
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
        let expected = "`devices_per_shard` is 2, but a shard on --device cpu has one device; use --num-shard instead";
        assert_eq!((none, one_device.as_deref()), (None, Some(expected)));
        let [one_process, none] = refused(Device::XLA_CPU).map(|error| error.map(|error| error.to_string()));
        let expected =
            "`num_shard` is 2, but --device xla-cpu runs a model in one process; use --devices-per-shard instead";
        assert_eq!((one_process.as_deref(), none), (Some(expected), None));
        for device in [Device::TPU, Device::MOCK] {
            assert_eq!(refused(device), [None, None]);
        }
    }

    #[test]
    fn the_devices_that_have_a_type_are_named() {
        let refused = |device: Device, quantize| device.check_quantize(quantize).map_err(|error| error.to_string());
        assert_eq!(refused(Device::CPU, Quantize::Int4), Ok(()));
        let expected = "--quantize is fp8, which is for --device xla-cpu and tpu; the device is cpu";
        assert_eq!(refused(Device::CPU, Quantize::Fp8), Err(expected.to_owned()));
        let expected = "--quantize is int4, which is for --device cpu, xla-cpu and tpu; the device is cuda";
        assert_eq!(refused(Device::CUDA, Quantize::Int4), Err(expected.to_owned()));
    }
}
