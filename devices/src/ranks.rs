//! The numbers of shards (processes), and of devices per shard, that may share a model.

/// The numbers of processes, and of devices per process, that a kind of device supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ranks {
    /// Any number of processes with one device each.
    OnePerProcess,
    /// One process with any number of devices. Several processes would have no way to find each other.
    OneProcess,
    /// Numbers that the chips of this host allow. The launcher plans the TPU slice that the processes form.
    Slice,
    /// Any number of processes with any number of devices.
    Any,
}
