//! Sixteen keys, or values, of a head side by side, as products want them.
//!
//! They are put there when they are written, once, and not each time they are read: a row that makes tokens reads all of them for each.
//! A line of keys has a dimension of each, a line of values sixteen dimensions of one; of types with two neighbours it has two such, number
//! by number: keys `[dimensions / N][16 keys][N]`, values `[16 / N][dimensions][N]`. Dimensions are padded to an even number.

use super::element::KvElement;
use crate::isa::LANES;

/// Keys, or values, of a group.
pub(super) const GROUP_SIZE: usize = LANES;

/// Dimensions of a vector in memory.
pub(super) const fn padded_dim(head_dim: usize) -> usize {
    head_dim.next_multiple_of(2)
}

/// Where the numbers of a key belong in its group.
pub(super) fn numbers_of_key<E: KvElement>(
    group: &mut [E::Stored],
    key: usize,
) -> impl Iterator<Item = &mut E::Stored> {
    let first = key * E::NEIGHBOURS;
    group.chunks_exact_mut(GROUP_SIZE * E::NEIGHBOURS).flat_map(move |line| &mut line[first..first + E::NEIGHBOURS])
}

/// Where the numbers of a value belong in its group.
pub(super) fn numbers_of_value<E: KvElement>(
    group: &mut [E::Stored],
    value: usize,
) -> impl Iterator<Item = &mut E::Stored> {
    let row_len = group.len() / GROUP_SIZE * E::NEIGHBOURS;
    let row = &mut group[value / E::NEIGHBOURS * row_len..][..row_len];
    row.iter_mut().skip(value % E::NEIGHBOURS).step_by(E::NEIGHBOURS)
}

/// Copies keys into a group of more dimensions: what is not copied is zero.
pub(super) fn copy_keys<E: KvElement>(group: &[E::Stored], to: &mut [E::Stored]) {
    let (to, rest) = to.split_at_mut(group.len());
    to.copy_from_slice(group);
    rest.fill(E::Stored::default());
}

/// Copies values into a group of as many dimensions or more.
pub(super) fn copy_values<E: KvElement>(group: &[E::Stored], to: &mut [E::Stored]) {
    let num_rows = GROUP_SIZE / E::NEIGHBOURS;
    let to_len = to.len() / num_rows;
    for (row, to) in group.chunks_exact(group.len() / num_rows).zip(to.chunks_exact_mut(to_len)) {
        copy_keys::<E>(row, to);
    }
}
