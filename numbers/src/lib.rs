//! The number formats of weights: the floats that checkpoints store, and the formats to which weights are quantized.
//!
//! Entry points: [`FloatType`] with [`floats`], which reads floats of one type as numbers of another; [`Rounding`] with
//! [`int8`], [`int4`] and [`fp8`], which define how each format rounds; and [`mxfp4`] and [`blocks`], formats of
//! checkpoints. Weights are quantized by these rules for every device, so they are the same numbers on all devices. The
//! crate starts no threads and uses no instruction set directly. The rules of integers, of MXFP4 and of blocks are
//! inlined into their callers, so that they are compiled for the instruction set of the caller.

pub mod blocks;
pub mod floats;
pub mod fp8;
pub mod int4;
pub mod int8;
pub mod mxfp4;
mod rounding;

pub use floats::FloatType;
pub use rounding::{LEAST_MAGNITUDE, Rounding};
