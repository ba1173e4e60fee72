//! Models and samplers as data, and the weights that they read. Nothing here knows a device.
//!
//! Doors: [`models`] builds the graphs of a model from its config.json, [`sampling`] those of samplers, [`weights`] reads
//! checkpoints. A [`graph`] is a list of operations; `layers` are the parts that models have in common.

mod fingerprint;
pub mod graph;
mod layers;
pub mod models;
pub mod sampling;
pub mod weights;

pub use fingerprint::Fingerprint;
