//! The numbers of processes, and of devices in each, that may share a model.

/// The numbers of processes and devices that a device supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ranks {
    /// Any number of processes with one device each.
    OnePerProcess,
    /// One process with any number of devices. Several processes would have no way to find each other.
    OneProcess,
    /// As many as the chips of this host allow. The launcher plans the slice that they form.
    Slice,
    /// Any number of processes with any number of devices.
    Any,
}
