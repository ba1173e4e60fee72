//! A safe wrapper of the PJRT C API, which runs programs on TPUs, on GPUs and on the CPU through XLA. The plugin that
//! drives the device is opened at run time.
//!
//! Entry points: [`Plugin::open`], [`Client::new`], [`Client::compile`], [`Client::upload`],
//! [`LoadedExecutable::execute`], [`Buffer::to_host`]. To compile without a device: [`Topology::new`],
//! [`Topology::compile`].
//!
//! The values are `Send + Sync`. An object of the plugin keeps alive the objects that it needs, so objects may be
//! dropped in any order. Plugins may be older or newer than the header on which this crate is based (API 0.104): most
//! functions return [`Error::Missing`] if the plugin lacks the C function that they need. The library knows no model
//! and reads no environment variables itself. It asks the plugin to wait for asynchronous work only in functions named
//! `wait`.
//!
//! ```no_run
//! use pjrt::{Argument, Client, CompileOptions, ElementType, ExecuteOptions, HostSlice, Plugin};
//!
//! # fn main() -> Result<(), pjrt::Error> {
//! let plugin = Plugin::open("xla_cpu_pjrt.so".as_ref())?;
//! let client = Client::new(&plugin, &[])?;
//! let text = "func.func @main(%x: tensor<2xui8>) -> tensor<2xui8> {
//!   %0 = stablehlo.add %x, %x : tensor<2xui8> return %0 : tensor<2xui8> }";
//! let program = client.compile(text.as_bytes(), &CompileOptions::default())?;
//! let device = &program.addressable_devices()[0];
//! let x = client.upload(HostSlice::new(ElementType::U8, &[2], &[1, 2])?, device)?;
//! let execution = program.execute(vec![vec![Argument::Donate(x)]], &ExecuteOptions::default())?;
//! assert_eq!(execution.outputs[0][0].to_host()?.wait()?, [2, 4]);
//! # Ok(())
//! # }
//! ```

mod api;
mod buffer;
mod client;
mod compile_options;
mod device;
mod download;
mod element_type;
mod error;
mod event;
mod executable;
mod execute;
mod extension;
mod ffi;
mod handle;
mod layout;
mod memory_stats;
mod named_value;
mod plugin;
mod program;
mod serialized;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod topology;
mod upload;

pub use buffer::Buffer;
pub use client::Client;
pub use compile_options::{CompileOptions, EffortLevel, OptionValue};
pub use device::{Device, DeviceDescription, MemoryStats};
pub use download::Download;
pub use element_type::{ElementType, Shape};
pub use error::{Code, Error};
pub use event::Event;
pub use executable::{Executable, LoadedExecutable};
pub use execute::{Argument, ExecuteOptions, Execution};
pub use extension::ExtensionKind;
pub use layout::Layout;
pub use memory_stats::CompiledMemoryStats;
pub use named_value::Value;
pub use plugin::{Plugin, load_library};
pub use topology::Topology;
pub use upload::HostSlice;
