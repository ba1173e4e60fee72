//! The rules of the tree that a machine can check: sizes, first lines, doors, the map, and who depends on whom.

mod documents;
mod doors;
mod edges;
mod sizes;
mod tree;
