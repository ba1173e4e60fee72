//! The keys and values that a layer keeps, in one of several types.
//!
//! Doors: [`KvCache`], [`KvType`]. A vector of `head_dim` numbers has a place; those of a block's head are neighbours. Factors
//! of vectors lie apart in the same order: the sixteen of a block's head usually fill one line of the processor's caches.

use std::io;

use half::{bf16, f16};

use super::AttentionShape;
use super::element::KvElement;
use crate::lines::Lines;

/// A type of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvType {
    /// Single precision: nothing is rounded.
    F32,
    /// IEEE half precision; numbers out of its range become the largest there are.
    F16,
    /// The upper half of single precision.
    Bf16,
    /// Integers from -127 to 127 with an f32 factor per token and head.
    Int8,
}

impl std::fmt::Display for KvType {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        })
    }
}

/// Keys and values of one layer, each `[num_blocks, num_kv_heads, block_size, head_dim]`: the keys that a head reads one after
/// the other are neighbours in memory. (With heads inside tokens they are often 4096 bytes apart, and fall into the same
/// few sets of the first-level cache.)
#[derive(Debug)]
pub struct KvCache(pub(super) TypedCache);

/// A cache by its type.
#[derive(Debug)]
pub(super) enum TypedCache {
    F32(KeysAndValues<f32>),
    F16(KeysAndValues<f16>),
    Bf16(KeysAndValues<bf16>),
    Int8(KeysAndValues<i8>),
}

/// Keys and values of one type.
#[derive(Debug)]
pub(super) struct KeysAndValues<E: KvElement> {
    pub(super) k: Stored<E>,
    pub(super) v: Stored<E>,
}

/// Vectors by place.
#[derive(Debug)]
pub(super) struct Stored<E: KvElement> {
    /// `[places, head_dim]`
    pub(super) numbers: Lines<E::Stored>,
    /// `[places]`, or none where vectors have no factors.
    pub(super) scales: Lines<f32>,
}

impl KvType {
    /// Bytes that the keys, or the values, of one token and head take.
    pub fn bytes_per_vector(self, head_dim: usize) -> usize {
        match self {
            Self::F32 => bytes_per_vector::<f32>(head_dim),
            Self::F16 => bytes_per_vector::<f16>(head_dim),
            Self::Bf16 => bytes_per_vector::<bf16>(head_dim),
            Self::Int8 => bytes_per_vector::<i8>(head_dim),
        }
    }
}

impl KvCache {
    /// A cache of zeros with `num_places` vectors of keys and as many of values. The system gives its memory page by page,
    /// large ones where it can, when it is first touched.
    ///
    /// # Errors
    /// When the system refuses the memory.
    pub fn zeros(kv_type: KvType, num_places: usize, head_dim: usize) -> io::Result<Self> {
        Ok(Self(match kv_type {
            KvType::F32 => TypedCache::F32(KeysAndValues::zeros(num_places, head_dim)?),
            KvType::F16 => TypedCache::F16(KeysAndValues::zeros(num_places, head_dim)?),
            KvType::Bf16 => TypedCache::Bf16(KeysAndValues::zeros(num_places, head_dim)?),
            KvType::Int8 => TypedCache::Int8(KeysAndValues::zeros(num_places, head_dim)?),
        }))
    }

    /// A cache that is filled already, in single precision.
    ///
    /// # Errors
    /// When the system refuses the memory.
    pub fn of_f32([k, v]: [Vec<f32>; 2]) -> io::Result<Self> {
        assert_eq!(k.len(), v.len(), "the cache holds {} numbers of keys but {} of values", k.len(), v.len());
        let mut cache = KeysAndValues::zeros(k.len(), 1)?;
        cache.k.numbers.copy_from_slice(&k);
        cache.v.numbers.copy_from_slice(&v);
        Ok(Self(TypedCache::F32(cache)))
    }

    /// Keys and values where they are kept in single precision.
    pub fn as_f32(&self) -> Option<[&[f32]; 2]> {
        match &self.0 {
            TypedCache::F32(KeysAndValues { k, v }) => Some([&k.numbers, &v.numbers]),
            TypedCache::F16(_) | TypedCache::Bf16(_) | TypedCache::Int8(_) => None,
        }
    }

    /// Memory it takes.
    pub fn size_bytes(&self) -> usize {
        match &self.0 {
            TypedCache::F32(cache) => cache.size_bytes(),
            TypedCache::F16(cache) => cache.size_bytes(),
            TypedCache::Bf16(cache) => cache.size_bytes(),
            TypedCache::Int8(cache) => cache.size_bytes(),
        }
    }
}

impl<E: KvElement> KeysAndValues<E> {
    fn zeros(num_places: usize, head_dim: usize) -> io::Result<Self> {
        Ok(Self { k: Stored::zeros(num_places, head_dim)?, v: Stored::zeros(num_places, head_dim)? })
    }

    fn size_bytes(&self) -> usize {
        self.k.size_bytes() + self.v.size_bytes()
    }

    /// Refuses a cache that is not made of blocks of this shape.
    pub(super) fn check(&self, shape: &AttentionShape) {
        let Self { k, v } = self;
        let (len, head_dim) = (k.numbers.len(), shape.head_dim);
        assert_eq!(len, v.numbers.len(), "the cache holds {len} numbers of keys but {} of values", v.numbers.len());
        assert_eq!(len % (shape.block_size * shape.kv_width()), 0, "a cache of {len} numbers is not whole blocks");
        let num_scales = if E::HAS_SCALES { len / head_dim } else { 0 };
        assert_eq!(k.scales.len(), num_scales, "a cache of {} vectors has {num_scales} factors", len / head_dim);
    }
}

impl<E: KvElement> Stored<E> {
    fn zeros(num_places: usize, head_dim: usize) -> io::Result<Self> {
        let num_scales = if E::HAS_SCALES { num_places } else { 0 };
        Ok(Self { numbers: Lines::try_zeros(num_places * head_dim)?, scales: Lines::try_zeros(num_scales)? })
    }

    fn size_bytes(&self) -> usize {
        size_of_val(&self.numbers[..]) + size_of_val(&self.scales[..])
    }

    /// Rounds a vector of numbers to the place where it belongs.
    pub(super) fn write(&mut self, place: usize, vector: &[f32]) {
        let scale = E::round(vector, &mut self.numbers[place * vector.len()..][..vector.len()]);
        if E::HAS_SCALES {
            self.scales[place] = scale;
        }
    }
}

fn bytes_per_vector<E: KvElement>(head_dim: usize) -> usize {
    head_dim * size_of::<E::Stored>() + if E::HAS_SCALES { size_of::<f32>() } else { 0 }
}
