//! The differences between devices behind plugins, as data. Their programs are the same text in all other respects.

use crate::ChildVariable;
use crate::plugins::Plugin;

/// Fits beside everything else in the fast memory of a TPU v5e or v6e, 128 MiB.
pub(crate) const CHUNK_BYTES: usize = 16 << 20;

/// XLA logs every program that it compiles unless it is told not to.
pub(crate) const QUIET: ChildVariable =
    ChildVariable { name: "TF_CPP_MIN_LOG_LEVEL", value: "1", reason: "warnings and errors only" };

/// A device that a plugin drives.
#[derive(Debug)]
pub struct PlatformSpec {
    /// The plugin.
    pub plugin: Plugin,
    /// The options of its client.
    pub client_options: &'static [(&'static str, ClientOption)],
    /// Flags of its compiler.
    pub compiler_flags: &'static [(&'static str, CompilerFlag)],
    /// How decoding queries meet the keys of several KV heads.
    pub decode_heads: HeadForm,
    /// Most bytes of keys, or values, that the attention loop gathers at a time: what stays in fast memory.
    pub chunk_bytes: usize,
    /// The type of keys and values.
    pub kv_cache: KvCacheForm,
    /// Variables that the plugin needs in the environment of its process.
    pub variables: &'static [ChildVariable],
}

/// Value of an option of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientOption {
    /// Yes or no.
    Bool(bool),
    /// As many as the process has ranks.
    NumDevices,
}

/// Value of a compiler flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompilerFlag {
    /// Yes or no.
    Bool(bool),
    /// A name.
    Name(&'static str),
}

/// How queries meet the keys of several KV heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeadForm {
    /// One product per KV head: the fewest operations.
    Split,
    /// One product for all KV heads, with queries that are zero outside the lanes of their own head: more operations, but
    /// keys and values are read as they lie in the cache.
    Wide,
}

/// Type of keys and values in programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvCacheForm {
    /// The type of the weights.
    OfWeights,
    /// IEEE single precision.
    F32,
}
