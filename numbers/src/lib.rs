//! Number formats of weights: the floats that checkpoints store, and what floats are rounded to.
//!
//! Doors: [`FloatType`] with [`floats`], which reads floats of one type as numbers of another; [`Rounding`] with
//! [`int8`], [`int4`] and [`fp8`], the one definition of each rule. Kernels and programs round as these rules say, so
//! all devices have the same numbers. The crate spreads no work and knows no instruction set: what is called per number
//! is inlined into its caller.

pub mod floats;
pub mod fp8;
pub mod int4;
pub mod int8;
mod rounding;

pub use floats::FloatType;
pub use rounding::{LEAST_MAGNITUDE, Rounding};
