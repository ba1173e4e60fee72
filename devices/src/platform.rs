//! The differences between the devices that plugins drive, as data.

use std::fmt;

use clap::ValueEnum;

use crate::plugins::Plugin;

/// The usual value of [`PlatformSpec::chunk_bytes`]: small enough that such a chunk fits into the fast memory (128 MiB)
/// of a TPU v5e or v6e beside other data.
pub(crate) const CHUNK_BYTES: usize = 16 << 20;

/// Limits XLA's log to warnings and errors. Without this variable, XLA logs every program that it compiles.
pub(crate) const QUIET: ChildVariable =
    ChildVariable { name: "TF_CPP_MIN_LOG_LEVEL", value: "1", reason: "warnings and errors only" };

/// The data of a device that a plugin drives.
#[derive(Debug)]
pub struct PlatformSpec {
    /// The plugin.
    pub plugin: Plugin,
    /// Names and values of the options for creating the plugin's client.
    pub client_options: &'static [(&'static str, ClientOption)],
    /// Names and values of the flags for the plugin's compiler.
    pub compiler_flags: &'static [(&'static str, CompilerFlag)],
    /// The smallest number of rows of a program that decodes. Each larger number is twice the one before it.
    pub min_decode_rows: usize,
    /// How the queries of decoding rows are multiplied with the keys of several KV heads.
    pub decode_heads: HeadForm,
    /// The chunks that an iteration of the attention loop of decoding rows reads.
    pub decode_loop: DecodeLoop,
    /// True if the plugin's compiler takes Mosaic kernels.
    pub has_mosaic: bool,
    /// The maximum number of bytes of keys, or of values, that one iteration of the attention loop gathers, so that
    /// they stay in fast memory. An iteration gathers at least one block.
    pub chunk_bytes: usize,
    /// The number of elements in a row of the device's vectors. In memory, the last dimension of an array is padded to
    /// a multiple of it. The KV cache is then kept row by row, because the compiler would lay out narrow caches
    /// otherwise, and copy them in every step. 1: arrays have no padding.
    pub lanes: usize,
    /// Lengths of context, ascending, for which there are decoding programs that read a fixed number of tokens of every
    /// row. Rows with longer contexts need a program whose loop depends on the contexts ([`DecodeLoop`]); on a GPU the
    /// host then waits for the device in each iteration. Empty: only that program is compiled.
    pub fixed_contexts: &'static [usize],
    /// The kinds of device that differ from the others of the platform.
    pub kinds: &'static [DeviceKind],
    /// The type in which the KV cache stores keys and values.
    pub kv_cache: KvCacheForm,
    /// The environment variables that the plugin's process needs.
    pub variables: &'static [ChildVariable],
}

/// The differences of one kind of device from the others of its platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceKind {
    /// The name that the plugin gives the kind, such as `TPU v5 lite`.
    pub name: &'static str,
    /// Replaces [`PlatformSpec::chunk_bytes`] for this kind.
    pub chunk_bytes: usize,
    /// True if the memory that the plugin reports for a device belongs to all devices with the same coordinates.
    pub shares_memory: bool,
}

/// The value of a client option.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ClientOption {
    /// True or false.
    Bool(bool),
    /// A number.
    Float(f32),
    /// The number of devices that the process wants.
    NumDevices,
    /// The indices of the first devices of the machine, one for each rank of the process.
    FirstDevices,
}

impl PlatformSpec {
    /// Returns the entry of `kinds` with this name. For any other name, returns the values that the platform's devices
    /// usually have.
    pub fn kind(&self, name: &str) -> DeviceKind {
        let usual = DeviceKind { name: "", chunk_bytes: self.chunk_bytes, shares_memory: false };
        self.kinds.iter().copied().find(|kind| kind.name == name).unwrap_or(usual)
    }
}

/// The value of a compiler flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompilerFlag {
    /// True or false.
    Bool(bool),
    /// A number.
    Number(i64),
    /// A name.
    Name(&'static str),
}

/// How queries are multiplied with the keys of several KV heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeadForm {
    /// One product per KV head: the fewest operations.
    Split,
    /// One product for all KV heads, with queries that are zero outside the lanes of their own head. This takes more
    /// operations, but keys and values are read in the layout of the cache.
    Wide,
}

/// The chunks of contexts that an iteration of the attention loop of decoding rows reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DecodeLoop {
    /// The next chunk of every row. The longest context determines the number of iterations.
    EveryRow,
    /// Chunks of a list that contains all chunks of all rows. The sum of the contexts determines the number of
    /// iterations.
    List {
        /// The number of chunks that each of the first iterations reads.
        many: usize,
        /// The number of chunks that each of the last iterations reads, so that they read little after the end of the
        /// list.
        few: usize,
    },
}

/// How rows that decode attend to their contexts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, ValueEnum)]
#[value(rename_all = "lower")]
pub enum DecodeAttention {
    /// A loop over chunks of the contexts ([`DecodeLoop`]).
    #[default]
    Loop,
    /// A Mosaic kernel, in which each row reads its own context, where there is a kernel for the sizes of the model;
    /// else the loop.
    Mosaic,
}

impl fmt::Display for DecodeAttention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// The type in which the KV cache of a program stores keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvCacheForm {
    /// The type of the weights before quantization.
    OfWeights,
    /// IEEE single precision.
    F32,
}

/// An environment variable that a process needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChildVariable {
    /// The name.
    pub name: &'static str,
    /// The value to set, if the user has not set the variable.
    pub value: &'static str,
    /// The reason why the process needs the variable.
    pub reason: &'static str,
}
