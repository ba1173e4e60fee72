//! Checks that a device supports the number of shards, the number of devices per shard, the type of quantized weights
//! and the form of attention that a user asks for.

use crate::{DecodeAttention, Device, Quantize, Ranks, listed};

/// The error for a number of shards, or of devices per shard, that a device does not support.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RanksError {
    /// Several devices per shard, on a device that supports only one.
    #[error(
        "`devices_per_shard` is {devices_per_shard}, but a shard on --device {device} has one device; use --num-shard \
         instead"
    )]
    DevicesPerShard {
        /// The device.
        device: Device,
        /// The number of devices per shard.
        devices_per_shard: u32,
    },
    /// Several shards (processes), on a device that supports only one.
    #[error(
        "`num_shard` is {num_shard}, but --device {device} runs a model in one process; use --devices-per-shard instead"
    )]
    NumShard {
        /// The device.
        device: Device,
        /// The number of shards.
        num_shard: u32,
    },
}

/// The error for a type of quantized weights that a device does not support.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "--quantize is {quantize}, which is for --device {}; the device is {device}",
    listed(|device| device.quantizations.contains(quantize))
)]
pub struct NoQuantizeError {
    /// The value of `--quantize`.
    pub quantize: Quantize,
    /// The device.
    pub device: Device,
}

/// The error for a form of attention that a device does not support.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("--attention is {attention}, which is for --device {}; on {device} only loop is allowed", listed(has_mosaic))]
pub struct NoAttentionError {
    /// The value of `--attention`.
    pub attention: DecodeAttention,
    /// The device.
    pub device: Device,
}

fn has_mosaic(device: Device) -> bool {
    device.platform().is_some_and(|platform| platform.has_mosaic)
}

impl Device {
    /// Checks that the device supports this form of attention.
    ///
    /// # Errors
    /// When it does not. The error names the devices that do.
    pub fn check_attention(self, attention: DecodeAttention) -> Result<(), NoAttentionError> {
        match attention {
            DecodeAttention::Mosaic if !has_mosaic(self) => Err(NoAttentionError { attention, device: self }),
            DecodeAttention::Loop | DecodeAttention::Mosaic => Ok(()),
        }
    }

    /// Checks that a model can be divided among `num_shard` shards with `devices_per_shard` devices each.
    ///
    /// # Errors
    /// When the device does not support one of the numbers. The error names this number and the flag to use instead.
    pub fn check_ranks(self, num_shard: u32, devices_per_shard: u32) -> Result<(), RanksError> {
        match self.ranks {
            Ranks::OnePerProcess if devices_per_shard > 1 => {
                Err(RanksError::DevicesPerShard { device: self, devices_per_shard })
            }
            Ranks::OneProcess if num_shard > 1 => Err(RanksError::NumShard { device: self, num_shard }),
            Ranks::OnePerProcess | Ranks::OneProcess | Ranks::Slice | Ranks::Any => Ok(()),
        }
    }

    /// Checks that the device supports weights that are quantized to this type.
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

    #[test]
    fn the_devices_that_have_a_kernel_are_named() {
        let refused = |device: Device, attention| device.check_attention(attention).map_err(|error| error.to_string());
        for device in crate::TABLE {
            assert_eq!(refused(*device, DecodeAttention::Loop), Ok(()));
        }
        assert_eq!(refused(Device::TPU, DecodeAttention::Mosaic), Ok(()));
        let expected = "--attention is mosaic, which is for --device tpu; on xla-cpu only loop is allowed";
        assert_eq!(refused(Device::XLA_CPU, DecodeAttention::Mosaic), Err(expected.to_owned()));
    }
}
