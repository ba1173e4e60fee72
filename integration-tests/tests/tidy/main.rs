//! The rules of the tree that a machine can check: sizes, first lines, English, doors, documents, and dependencies
//! between crates.

mod documents;
mod doors;
mod edges;
mod english;
mod sizes;
mod tree;
