//! The exit statuses of the launcher, the router and the shards. The launcher exits with the status of the child that
//! failed first.
//!
//! | status | cause | remedy |
//! |---|---|---|
//! | 0 | the process was asked to end | |
//! | 1 | something else failed; a peer is gone | the log |
//! | 2 | invalid arguments, model files, limits or addresses | another configuration |
//! | 3 | the machine has no such device, or no plugin drives it | another machine, or `plugin fetch` |
//! | 17 | a device process failed | a restart may |

/// Something other than the configuration or a device failed.
pub const FAILURE: u8 = 1;
/// Arguments, model files, limits or addresses are invalid.
pub const CONFIGURATION: u8 = 2;
/// This machine has no such device, or no plugin drives it.
pub const NO_DEVICE: u8 = 3;
/// A device process failed. `torch_xla` uses the same number.
pub const DEVICE: u8 = 17;
