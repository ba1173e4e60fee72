//! Floats as checkpoints store them: little-endian bytes of three types, which can be read as numbers of any of these
//! types.
//!
//! Entry points: [`FloatType`], [`read`], [`convert`], [`are_finite`]. A value that the new type cannot represent is
//! rounded to the nearest one. A conversion to the same type keeps all bits.

use std::borrow::Cow;
use std::fmt;

use half::{bf16, f16};

/// The number of bytes that are converted at a time: a multiple of the size of every float type, small enough to limit
/// the memory of the intermediate f32 values.
const PIECE_BYTES: usize = 64 << 10;

/// A type of floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FloatType {
    /// Single precision.
    F32,
    /// Bfloat16: the upper 16 bits of single precision.
    Bf16,
    /// IEEE half precision.
    F16,
}

impl FloatType {
    /// The size of one float, in bytes.
    pub fn size_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// Returns the nearest float of this type, in single precision.
    pub fn round(self, value: f32) -> f32 {
        match self {
            Self::F32 => value,
            Self::Bf16 => bf16::from_f32(value).to_f32(),
            Self::F16 => f16::from_f32(value).to_f32(),
        }
    }

    /// Hugging Face's name of the type.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
        }
    }
}

impl fmt::Display for FloatType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A type of numbers to which stored floats can be converted.
pub trait Float: Copy + Send + Sync {
    /// Returns the number nearest to `value`.
    fn of_f32(value: f32) -> Self;
    /// Returns the number nearest to `value`.
    fn of_bf16(value: bf16) -> Self;
    /// Returns the number nearest to `value`.
    fn of_f16(value: f16) -> Self;
}

/// True if every float of type `stored` in `bytes` is finite.
pub fn are_finite(bytes: &[u8], stored: FloatType) -> bool {
    let has_halves = |exponent: u16| {
        let is_other = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]) & exponent == exponent;
        bytes.chunks_exact(2).fold(false, |found, bytes| found | is_other(bytes))
    };
    match stored {
        FloatType::F32 => {
            let exponent = 0x7f80_0000;
            let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            !bytes.chunks_exact(4).fold(false, |found, bytes| found | (word(bytes) & exponent == exponent))
        }
        FloatType::Bf16 => !has_halves(0x7f80),
        FloatType::F16 => !has_halves(0x7c00),
    }
}

/// Appends the floats of type `stored` in `bytes` to `floats`. Trailing bytes that are not a whole float are ignored.
pub fn read<T: Float>(bytes: &[u8], stored: FloatType, floats: &mut Vec<T>) {
    let pair = |bytes: &[u8]| [bytes[0], bytes[1]];
    match stored {
        FloatType::F32 => {
            let word = |bytes: &[u8]| [bytes[0], bytes[1], bytes[2], bytes[3]];
            floats.extend(bytes.chunks_exact(4).map(|bytes| T::of_f32(f32::from_le_bytes(word(bytes)))));
        }
        FloatType::Bf16 => {
            floats.extend(bytes.chunks_exact(2).map(|bytes| T::of_bf16(bf16::from_le_bytes(pair(bytes)))));
        }
        FloatType::F16 => {
            floats.extend(bytes.chunks_exact(2).map(|bytes| T::of_f16(f16::from_le_bytes(pair(bytes)))));
        }
    }
}

/// Converts little-endian floats of the type `from` to the type `to`. Borrows the bytes if the types are equal.
pub fn convert(bytes: &[u8], from: FloatType, to: FloatType) -> Cow<'_, [u8]> {
    if from == to {
        return Cow::Borrowed(bytes);
    }
    let mut converted = Vec::with_capacity(bytes.len() / from.size_bytes() * to.size_bytes());
    let mut values: Vec<f32> = Vec::new();
    for piece in bytes.chunks(PIECE_BYTES) {
        values.clear();
        read(piece, from, &mut values);
        match to {
            FloatType::F32 => converted.extend(values.iter().flat_map(|value| value.to_le_bytes())),
            FloatType::Bf16 => converted.extend(values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes())),
            FloatType::F16 => converted.extend(values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes())),
        }
    }
    Cow::Owned(converted)
}

impl Float for f32 {
    fn of_f32(value: f32) -> Self {
        value
    }

    fn of_bf16(value: bf16) -> Self {
        value.to_f32()
    }

    fn of_f16(value: f16) -> Self {
        value.to_f32()
    }
}

impl Float for bf16 {
    fn of_f32(value: f32) -> Self {
        Self::from_f32(value)
    }

    fn of_bf16(value: bf16) -> Self {
        value
    }

    fn of_f16(value: f16) -> Self {
        Self::from_f32(value.to_f32())
    }
}

impl Float for f16 {
    fn of_f32(value: f32) -> Self {
        Self::from_f32(value)
    }

    fn of_bf16(value: bf16) -> Self {
        Self::from_f32(value.to_f32())
    }

    fn of_f16(value: f16) -> Self {
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_read_as_every_other() {
        let values = [1.0_f32, -2.5, 0.123_456_7, f32::INFINITY];
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let (mut singles, mut short, mut half) = (Vec::<f32>::new(), Vec::<bf16>::new(), Vec::<f16>::new());
        read(&bytes, FloatType::F32, &mut singles);
        read(&bytes, FloatType::F32, &mut short);
        read(&bytes, FloatType::F32, &mut half);
        assert_eq!(singles, values);
        assert_eq!(short, values.map(bf16::from_f32));
        assert_eq!(half, values.map(f16::from_f32));
        let bytes: Vec<u8> = short.iter().flat_map(|value| value.to_le_bytes()).collect();
        let (mut same, mut half) = (Vec::<bf16>::new(), Vec::<f16>::new());
        read(&bytes, FloatType::Bf16, &mut same);
        read(&bytes[..7], FloatType::Bf16, &mut half);
        assert_eq!(same, short);
        assert_eq!(half, [1.0, -2.5, 0.123_456_7].map(|value| f16::from_f32(bf16::from_f32(value).to_f32())));
    }

    #[test]
    fn floats_are_converted_to_the_nearest() {
        let values = [1.0_f32, -2.5, 0.123_456_7];
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let short = convert(&bytes, FloatType::F32, FloatType::Bf16);
        let expected: Vec<u8> = values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect();
        assert_eq!(*short, expected);
        let back = convert(&short, FloatType::Bf16, FloatType::F16);
        let expected: Vec<u8> =
            values.iter().flat_map(|value| f16::from_f32(bf16::from_f32(*value).to_f32()).to_le_bytes()).collect();
        assert_eq!(*back, expected);
        assert!(matches!(convert(&bytes, FloatType::F32, FloatType::F32), Cow::Borrowed(_)));
    }

    #[test]
    fn nan_and_infinity_are_found() {
        let bits = |value: f32, stored| match stored {
            FloatType::F32 => value.to_le_bytes().to_vec(),
            FloatType::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
            FloatType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        };
        for stored in [FloatType::F32, FloatType::Bf16, FloatType::F16] {
            let mut bytes: Vec<u8> = (0..99).flat_map(|i| bits(i as f32 * 600.0 - 3e4, stored)).collect();
            assert!(are_finite(&bytes, stored), "{stored:?}");
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let size = bytes.len() / 99;
                let kept = bytes[70 * size..71 * size].to_vec();
                bytes[70 * size..71 * size].copy_from_slice(&bits(value, stored));
                assert!(!are_finite(&bytes, stored), "{stored:?} {value}");
                bytes[70 * size..71 * size].copy_from_slice(&kept);
            }
        }
    }
}
