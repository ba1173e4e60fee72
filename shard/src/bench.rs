//! What `benches/` reach of this crate's private rooms. No interface: it follows the rooms.

pub use crate::backend::candle::SamplerRun;
