//! CPU kernels for the hot operations of a language model, on slices of f32.
//!
//! Doors: [`linear`], [`attention`], [`rms_norm`], [`layer_norm`], [`rotary`], [`activation`], [`softmax`], [`memory`]
//! and [`arithmetic`] for what bounds them all, and [`isa`], which chooses the instruction set once per process. Each
//! operation is written once over sixteen lanes (`isa::simd`); `isa` has one file per instruction set. Work is spread
//! over the current rayon pool; small problems stay on the calling thread.
//!
//! A row's result is bit-identical whatever shares the batch, however a prompt is cut, and whatever the number of
//! threads; AVX2 and AVX-512 agree bit for bit, and AMX and AVX-512 BF16 with them but for weights in bf16, and keys
//! and values in bf16 and int8. Lengths that do not fit each other are programming errors and panic with the sizes. It
//! knows no model, reads no environment and does no I/O.

pub mod activation;
pub mod arithmetic;
pub mod attention;
pub mod isa;
pub mod layer_norm;
pub mod linear;
mod lines;
#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod machine_code;
pub mod memory;
pub mod rms_norm;
pub mod rotary;
mod rows;
mod scratch;
pub mod softmax;
#[cfg(test)]
mod testing;
mod vector_tile;
