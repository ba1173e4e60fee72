//! The keys and values that a layer stores, in one of several number types.
//!
//! Entry points: [`KvCache`], [`KvType`]. A vector is a key or a value, and its place is its index in the cache. The
//! places of one head in one block are consecutive, and sixteen of them form a group (`groups`). The scale factors of
//! vectors are stored separately, in the same order: the sixteen factors of a group fill one cache line.

use std::io;

use half::{bf16, f16};

use super::AttentionShape;
use super::element::KvElement;
use super::groups::{GROUP_SIZE, numbers_of_key, numbers_of_value, padded_dim};
use crate::lines::Lines;

/// The number type of a cache's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvType {
    /// Single precision: nothing is rounded.
    F32,
    /// IEEE half precision. Finite numbers are clamped to the range of the type.
    F16,
    /// Bfloat16: the upper 16 bits of single precision.
    Bf16,
    /// Int8 values from -127 to 127, with an f32 scale factor per token and head.
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

/// The keys `[num_blocks, num_kv_heads, block_size, head_dim]` and values `[.., value_dim]` of one layer.
///
/// Keys that a head reads one after another are adjacent in memory. If instead each token stored all its heads
/// together, the keys of a head would often be 4096 bytes apart and map to the same few sets of the first-level cache.
#[derive(Debug)]
pub struct KvCache(pub(super) TypedCache);

/// The keys and values of a cache, in one of the number types.
#[derive(Debug)]
pub(super) enum TypedCache {
    F32(KeysAndValues<f32>),
    F16(KeysAndValues<f16>),
    Bf16(KeysAndValues<bf16>),
    Int8(KeysAndValues<i8>),
}

/// The keys and values of a cache, of one number type.
#[derive(Debug)]
pub(super) struct KeysAndValues<E: KvElement> {
    /// `[num_blocks, num_kv_heads, block_size]`
    places: [usize; 3],
    /// The number of dimensions of a key, and of a value.
    dims: [usize; 2],
    pub(super) k: Stored<E>,
    /// `None` if values are the first numbers of the keys.
    pub(super) v: Option<Stored<E>>,
}

/// The keys, or the values, of a cache in the order of their places.
#[derive(Debug)]
pub(super) struct Stored<E: KvElement> {
    /// The groups, `[places / 16]`.
    pub(super) numbers: Lines<E::Stored>,
    /// The scale factors, `[places]`; empty for types without factors.
    pub(super) scales: Lines<f32>,
}

impl KvType {
    /// Returns the number of bytes that a key, or a value, of `dim` numbers takes, its scale factor included.
    pub fn bytes_per_vector(self, dim: usize) -> usize {
        match self {
            Self::F32 => bytes_per_vector::<f32>(dim),
            Self::F16 => bytes_per_vector::<f16>(dim),
            Self::Bf16 => bytes_per_vector::<bf16>(dim),
            Self::Int8 => bytes_per_vector::<i8>(dim),
        }
    }
}

impl KvCache {
    /// Allocates a cache of zeros with places `[num_blocks, num_kv_heads, block_size]`, for keys and values of `dims`
    /// numbers. The system provides each page of memory when it is first touched, and uses huge pages if it can.
    ///
    /// # Errors
    /// When the system refuses the memory.
    ///
    /// # Panics
    /// When the block size is not a multiple of 16.
    pub fn zeros(kv_type: KvType, places: [usize; 3], dims: [usize; 2]) -> io::Result<Self> {
        Self::with_values(kv_type, places, dims, true)
    }

    /// As [`KvCache::zeros`], for values that are the first numbers of their keys: the cache stores only keys.
    ///
    /// # Errors
    /// When the system refuses the memory.
    ///
    /// # Panics
    /// When the block size is not a multiple of 16, or values have more numbers than keys.
    pub fn latent(kv_type: KvType, places: [usize; 3], dims: [usize; 2]) -> io::Result<Self> {
        let [head_dim, value_dim] = dims;
        assert!(value_dim <= head_dim, "a value of {value_dim} numbers is no part of a key of {head_dim}");
        Self::with_values(kv_type, places, dims, false)
    }

    fn with_values(kv_type: KvType, places: [usize; 3], dims: [usize; 2], has_values: bool) -> io::Result<Self> {
        Ok(Self(match kv_type {
            KvType::F32 => TypedCache::F32(KeysAndValues::zeros(places, dims, has_values)?),
            KvType::F16 => TypedCache::F16(KeysAndValues::zeros(places, dims, has_values)?),
            KvType::Bf16 => TypedCache::Bf16(KeysAndValues::zeros(places, dims, has_values)?),
            KvType::Int8 => TypedCache::Int8(KeysAndValues::zeros(places, dims, has_values)?),
        }))
    }

    /// Fills a cache in single precision with keys and values of the cache's shape. `v` is empty if the cache stores
    /// only keys.
    ///
    /// # Panics
    /// When `k` or `v` has another length than the cache, or the cache is not in single precision.
    pub fn set_f32(&mut self, [k, v]: [&[f32]; 2]) {
        let TypedCache::F32(cache) = &mut self.0 else { panic!("the cache is not in single precision") };
        let [head_dim, value_dim] = cache.dims;
        let num_places = cache.num_places();
        let num_values = if cache.v.is_some() { num_places } else { 0 };
        let lens = [num_places * head_dim, num_values * value_dim];
        assert_eq!([k.len(), v.len()], lens, "numbers of keys, and of values");
        k.chunks_exact(head_dim).enumerate().for_each(|(place, k)| cache.k.write_key(place, k));
        if let Some(stored) = &mut cache.v {
            v.chunks_exact(value_dim).enumerate().for_each(|(place, v)| stored.write_value(place, v));
        }
    }

    /// Returns the keys and values of a cache in single precision, in the cache's shape; `None` for other types. There
    /// are no values if the cache stores only keys.
    pub fn to_f32(&self) -> Option<[Vec<f32>; 2]> {
        let TypedCache::F32(KeysAndValues { places: _, dims, k, v }) = &self.0 else {
            return None;
        };
        let [head_dim, value_dim] = *dims;
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for group in k.numbers.chunks_exact(GROUP_SIZE * padded_dim(head_dim)) {
            let mut group = group.to_vec();
            for idx in 0..GROUP_SIZE {
                keys.extend(numbers_of_key::<f32>(&mut group, idx).take(head_dim).map(|number| *number));
            }
        }
        let groups = v.iter().flat_map(|v| v.numbers.chunks_exact(GROUP_SIZE * padded_dim(value_dim)));
        for group in groups {
            let mut group = group.to_vec();
            for idx in 0..GROUP_SIZE {
                values.extend(numbers_of_value::<f32>(&mut group, idx).take(value_dim).map(|number| *number));
            }
        }
        Some([keys, values])
    }

    /// The memory of the cache, in bytes.
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
    fn zeros(places: [usize; 3], dims: [usize; 2], has_values: bool) -> io::Result<Self> {
        let block_size = places[2];
        assert!(block_size.is_multiple_of(GROUP_SIZE), "the block size {block_size} is not a multiple of {GROUP_SIZE}");
        let num_places = places.iter().product();
        let [head_dim, value_dim] = dims;
        let k = Stored::zeros(num_places, head_dim)?;
        let v = if has_values { Some(Stored::zeros(num_places, value_dim)?) } else { None };
        Ok(Self { places, dims, k, v })
    }

    fn num_places(&self) -> usize {
        self.places.iter().product()
    }

    fn size_bytes(&self) -> usize {
        self.k.size_bytes() + self.v.as_ref().map_or(0, Stored::size_bytes)
    }

    /// Panics if the cache was not allocated for `shape`.
    pub(super) fn check(&self, shape: &AttentionShape) {
        let ([_, num_kv_heads, block_size], [head_dim, value_dim]) = (self.places, self.dims);
        let wanted = [shape.num_kv_heads, shape.block_size, shape.head_dim, shape.value_dim];
        let found = [num_kv_heads, block_size, head_dim, value_dim];
        assert_eq!(found, wanted, "key heads, block size and dimensions of the cache");
    }
}

impl<E: KvElement> Stored<E> {
    fn zeros(num_places: usize, dim: usize) -> io::Result<Self> {
        let num_scales = if E::HAS_SCALES { num_places } else { 0 };
        Ok(Self { numbers: Lines::try_zeros(num_places * padded_dim(dim))?, scales: Lines::try_zeros(num_scales)? })
    }

    fn size_bytes(&self) -> usize {
        size_of_val(&self.numbers[..]) + size_of_val(&self.scales[..])
    }

    /// Rounds a key and stores it at its place.
    pub(super) fn write_key(&mut self, place: usize, key: &[f32]) {
        let mut to = numbers_of_key::<E>(self.group_mut(place, key.len()), place % GROUP_SIZE);
        let scale = E::round(key, to.by_ref());
        to.for_each(|padding| *padding = E::Stored::default());
        self.set_scale(place, scale);
    }

    /// Rounds a value and stores it at its place.
    pub(super) fn write_value(&mut self, place: usize, value: &[f32]) {
        let scale = E::round(value, numbers_of_value::<E>(self.group_mut(place, value.len()), place % GROUP_SIZE));
        self.set_scale(place, scale);
    }

    fn set_scale(&mut self, place: usize, scale: f32) {
        if E::HAS_SCALES {
            self.scales[place] = scale;
        }
    }

    /// Returns the group that contains a place.
    fn group_mut(&mut self, place: usize, dim: usize) -> &mut [E::Stored] {
        let dim = padded_dim(dim);
        &mut self.numbers[place / GROUP_SIZE * GROUP_SIZE * dim..][..GROUP_SIZE * dim]
    }
}

fn bytes_per_vector<E: KvElement>(dim: usize) -> usize {
    padded_dim(dim) * size_of::<E::Stored>() + if E::HAS_SCALES { size_of::<f32>() } else { 0 }
}
