//! An amount of memory: a size, or a share of the available memory.
//!
//! As text it is `8GiB`, `8GB`, `512MiB`, a number of bytes, or `60%`, for example.

use std::fmt;
use std::str::FromStr;

/// The names of units, in lower case, and their sizes in bytes.
const UNITS: [(&str, u64); 9] = [
    ("", 1),
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

/// An amount of memory, as the user gives it in a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemorySize {
    /// A size in bytes.
    Bytes(u64),
    /// A share from 1 to 100 percent. For the KV cache it is a share of the memory that the weights leave free; for the
    /// router it is a share of the memory of the machine or the container.
    Percent(u32),
}

/// The error for text that is neither a size nor a share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither a size, such as 8GiB, 512MiB or a number of bytes, nor a share from 1% to 100%")]
pub struct MemorySizeError(String);

impl FromStr for MemorySize {
    type Err = MemorySizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text.trim()).ok_or_else(|| MemorySizeError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<MemorySize> {
    if let Some(percent) = text.strip_suffix('%') {
        let percent = percent.trim().parse().ok()?;
        return (1..=100).contains(&percent).then_some(MemorySize::Percent(percent));
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim().to_ascii_lowercase();
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let bytes = match number.parse::<u64>() {
        Ok(number) => number.checked_mul(*factor)?,
        // An `f64` is precise enough for sizes with a fraction, such as 1.5 GiB.
        Err(_) => (number.parse::<f64>().ok()? * *factor as f64) as u64,
    };
    (bytes > 0).then_some(MemorySize::Bytes(bytes))
}

impl fmt::Display for MemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_shares() {
        let cases = [
            ("8GiB", MemorySize::Bytes(8 << 30)),
            ("1.5 gib", MemorySize::Bytes(3 << 29)),
            ("512MiB", MemorySize::Bytes(512 << 20)),
            ("2GB", MemorySize::Bytes(2_000_000_000)),
            ("4096", MemorySize::Bytes(4096)),
            ("60%", MemorySize::Percent(60)),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse(), Ok(expected));
            assert_eq!(expected.to_string().parse(), Ok(expected));
        }
        for text in ["", "0", "0%", "101%", "-1", "8 parsecs", "GiB", "99999999999999TiB", "1e3"] {
            assert!(text.parse::<MemorySize>().is_err(), "{text}");
        }
    }
}
