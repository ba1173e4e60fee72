//! Google's TPU. Its chips stand in `chips.rs`.
//!
//! Door: [`find`], the chips of this machine.

mod chips;

pub use chips::{Chip, Chips, Generation, find};
