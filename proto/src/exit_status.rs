//! The exit statuses of the launcher, the router and the shards. If a child failed, the launcher usually exits with the
//! status of the child that failed first; `docs/exit-codes.md` has the details.
//!
//! | status | cause | remedy |
//! |---|---|---|
//! | 0 | the process was asked to end | |
//! | 1 | something else failed; a peer is gone | the log |
//! | 2 | invalid arguments, model files, limits or addresses | another configuration or machine |
//! | 3 | the device is missing or cannot be opened, or no plugin drives it | another machine, or `plugin fetch` |
//! | 17 | a device process (shard) failed | a restart may help |

/// Something other than the configuration or a device failed.
pub const FAILURE: u8 = 1;
/// Arguments, model files, limits or addresses are invalid.
pub const CONFIGURATION: u8 = 2;
/// The device is missing or cannot be opened, or no plugin drives it.
pub const NO_DEVICE: u8 = 3;
/// A device process (shard) failed. `torch_xla` uses the same number.
pub const DEVICE: u8 = 17;
