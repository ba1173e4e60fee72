//! The smaller types that weights can be converted to, by their names in `--quantize`.

use std::fmt;

use clap::ValueEnum;

/// A type that weights are converted to while they are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum Quantize {
    /// Integers from -127 to 127, with a scale per output.
    Int8,
    /// 4-bit integers, with a factor per group of 32 inputs and a scale per output. The output head gets [`Self::Int8`]
    /// instead, because its errors directly affect the choice of a token.
    Int4,
    /// 8-bit floats (E4M3), with a scale per output.
    Fp8,
}

impl fmt::Display for Quantize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}
