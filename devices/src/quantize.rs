//! The smaller types that weights can be converted to, by their names in `--quantize`.

use std::fmt;

use clap::ValueEnum;

use crate::{Device, listed};

/// A type that weights are converted to while they are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum Quantize {
    /// Integers from -127 to 127 with a scale per output.
    Int8,
    /// Integers of four bits with a factor per group of inputs and a scale per output; the head has eight, because its
    /// errors choose the token.
    Int4,
    /// Floats of a byte, E4M3, with a scale per output.
    Fp8,
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

impl fmt::Display for Quantize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
