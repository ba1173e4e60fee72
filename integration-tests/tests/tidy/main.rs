//! The rules of the tree that a machine can check: sizes, first lines, English, doors, documents, dependencies between
//! crates, and the waits and skips of tests.

mod documents;
mod doors;
mod edges;
mod english;
mod sizes;
mod skips;
mod tree;
mod waits;
