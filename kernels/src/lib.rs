//! CPU kernels for the hot operations of a language model. Activations are slices of f32.
//!
//! Entry points: [`linear`], [`attention`], [`rms_norm`], [`layer_norm`], [`rotary`], [`activation`], [`softmax`],
//! [`memory`] and [`arithmetic`], which measure the hardware's limits, and [`isa`], which chooses the instruction set
//! once per process. Most operations are written once over sixteen lanes (`isa::simd`); `isa` has one file per
//! instruction set. Most large operations are split over the threads of the current rayon pool; small ones stay on the
//! calling thread.
//!
//! A row's result does not depend on the other rows of the batch, on how its prompt is cut into chunks, or on the
//! number of threads: its bits stay the same. AVX2 and AVX-512 agree bit for bit. AMX and AVX-512 BF16 agree with them
//! too, except for weights in bf16 and for keys and values in bf16 or int8. Mismatched lengths are programming errors,
//! so a function panics with a message that has the sizes. The crate knows no model. Outside of tests, it reads no
//! environment variables and does no I/O.

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
