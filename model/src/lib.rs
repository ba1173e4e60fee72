//! Models and samplers as graphs, which are data, and the weights that they read. No code here depends on a device.
//!
//! Entry points: [`models`] builds the graphs of a model from its config.json, [`sampling`] builds those of samplers,
//! [`weights`] reads checkpoints. A [`graph`] is a list of operations; `layers` are the building blocks that models
//! share.

mod fingerprint;
pub mod graph;
mod layers;
pub mod models;
pub mod sampling;
pub mod weights;

pub use fingerprint::Fingerprint;
