//! The rules of the tree that a machine can check: kinds and sizes of files, first lines, English, doors, documents,
//! dependencies between crates, advisories about other people's, and the waits and skips of tests.

mod advisories;
mod documents;
mod doors;
mod edges;
mod english;
mod features;
mod files;
mod sizes;
mod skips;
mod tree;
mod waits;
