//! Help texts that depend on the table of devices.

use crate::choice::hardware;
use crate::{Hardware, Quantize, listed};

/// The help of `--device`.
pub fn device_help() -> String {
    let names: Vec<String> =
        hardware().map(|(_, Hardware { article, name, .. })| format!("{article} {name}")).collect();
    format!(
        "Device that runs the model; `auto` takes {} if it and its plugin are present, else the CPU",
        names.join(" or ")
    )
}

/// The help of `--quantize`.
pub fn quantize_help() -> String {
    let without_int4 = listed(|device| !device.quantizations.contains(&Quantize::Int4));
    let with_fp8 = listed(|device| device.quantizations.contains(&Quantize::Fp8));
    format!(
        "Quantize linear layers while loading: int8 (8-bit integers, one scale per output); int4 (4-bit integers, also one \
         factor per 32 inputs; the output head is int8; not on {without_int4}); fp8 (8-bit floats, one scale per \
         output; only on {with_fp8}) [default: none]"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_what_auto_takes() {
        let expected = "`auto` takes a TPU or an NVIDIA GPU if it and its plugin are present, else the CPU";
        assert_eq!(device_help(), format!("Device that runs the model; {expected}"));
    }

    #[test]
    fn help_names_the_devices_of_a_type() {
        let help = quantize_help();
        for part in ["int8 (8-bit", "int8; not on cuda); fp8", "only on xla-cpu and tpu)"] {
            assert!(help.contains(part), "{part:?} is not in {help:?}");
        }
    }
}
