//! Kernels for the cores of a TPU, as text that libtpu compiles together with the program that calls them.
//!
//! Entry points: [`DecodeKernel`], the sizes of the kernel of decode attention, and [`attend`], which calls it from a
//! program. Mosaic is the part of libtpu that compiles kernels. `value` and `emitter` know its syntax, `decode`,
//! `fetch` and `shorthand` write the kernel, and `call` writes the custom call. `docs/tpu-attention.md` describes the
//! kernel. The tests carry out the text, because no machine without a TPU can run the compiled kernel.

mod call;
mod decode;
mod emitter;
mod fetch;
mod kernel;
mod shorthand;
#[cfg(test)]
mod tests;
mod value;

pub(super) use call::attend;
pub(super) use kernel::DecodeKernel;
#[cfg(test)]
pub(crate) use tests::carry_out;
