//! Help texts that depend on the table of devices.

use crate::choice::hardware;
use crate::{Hardware, Quantize, listed};

/// The help of `--device`.
pub fn device_help() -> String {
    let names: Vec<String> =
        hardware().map(|(_, Hardware { article, name, .. })| format!("{article} {name}")).collect();
    format!("Device that computes; `auto` takes {} if it is here with its plugin, else the CPU", names.join(" or "))
}

/// The help of `--quantize`.
pub fn quantize_help() -> String {
    let without_int4 = listed(|device| !device.quantizations.contains(&Quantize::Int4));
    let with_fp8 = listed(|device| device.quantizations.contains(&Quantize::Fp8));
    format!(
        "Smaller type that the weights of linear layers become while they are loaded: int8 is an integer of 8 bits per \
         weight with a scale per output; int4, not on {without_int4}, one of 4 bits with a factor per 32 inputs too, but \
         for the head, which stays int8; fp8, on {with_fp8}, a float of 8 bits with a scale per output [default: none]"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_what_auto_takes() {
        let expected = "`auto` takes a TPU or an NVIDIA GPU if it is here with its plugin, else the CPU";
        assert_eq!(device_help(), format!("Device that computes; {expected}"));
    }

    #[test]
    fn help_names_the_devices_of_a_type() {
        let help = quantize_help();
        for part in
            ["per weight with a scale", "int4, not on cuda, one of", "too, but for the", "fp8, on xla-cpu and tpu, a"]
        {
            assert!(help.contains(part), "{part:?} is not in {help:?}");
        }
    }
}
