//! The smaller types that weights can be converted to, by their names in `--quantize`.

use std::fmt;

use clap::ValueEnum;

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

impl fmt::Display for Quantize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}
