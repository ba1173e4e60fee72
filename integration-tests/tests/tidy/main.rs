//! The rules of the tree that a machine can check: kinds and sizes of files, first lines, English, doors, documents,
//! dependencies between crates, and advisories about other people's.

mod advisories;
mod documents;
mod doors;
mod edges;
mod english;
mod files;
mod sizes;
mod tree;
