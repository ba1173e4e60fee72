//! Groups of sixteen keys, or values, of a head, interleaved in the order in which products read them.
//!
//! Keys and values are interleaved once, when they are written, because a row that decodes reads them again for every
//! token. The layout is `[dimensions / N][16 keys][N]` for keys and `[16 / N][dimensions][N]` for values; N is
//! [`KvElement::NEIGHBOURS`]. So with N = 1, sixteen consecutive numbers are one dimension of all keys, or sixteen
//! dimensions of one value. With N = 2, two such sequences are interleaved number by number. Dimensions are padded to
//! an even number.

use super::element::KvElement;
use crate::isa::LANES;

/// The number of keys, or values, of a group.
pub(super) const GROUP_SIZE: usize = LANES;

/// Returns the number of dimensions in memory of a key, or value, of `head_dim` dimensions: the next even number.
pub(super) const fn padded_dim(head_dim: usize) -> usize {
    head_dim.next_multiple_of(2)
}

/// Returns the numbers of a key in its group, in the order of dimensions.
pub(super) fn numbers_of_key<E: KvElement>(
    group: &mut [E::Stored],
    key: usize,
) -> impl Iterator<Item = &mut E::Stored> {
    let first = key * E::NEIGHBOURS;
    group.chunks_exact_mut(GROUP_SIZE * E::NEIGHBOURS).flat_map(move |line| &mut line[first..first + E::NEIGHBOURS])
}

/// Returns the numbers of a value in its group, in the order of dimensions.
pub(super) fn numbers_of_value<E: KvElement>(
    group: &mut [E::Stored],
    value: usize,
) -> impl Iterator<Item = &mut E::Stored> {
    let row_len = group.len() / GROUP_SIZE * E::NEIGHBOURS;
    let row = &mut group[value / E::NEIGHBOURS * row_len..][..row_len];
    row.iter_mut().skip(value % E::NEIGHBOURS).step_by(E::NEIGHBOURS)
}

/// Copies the first numbers of a group of keys into a group of values, as many as its values have.
pub(super) fn keys_to_values<E: KvElement>(keys: &[E::Stored], values: &mut [E::Stored]) {
    let row_len = values.len() / GROUP_SIZE * E::NEIGHBOURS;
    for (idx, line) in keys.chunks_exact(GROUP_SIZE * E::NEIGHBOURS).take(row_len / E::NEIGHBOURS.pow(2)).enumerate() {
        for (key, numbers) in line.chunks_exact(E::NEIGHBOURS).enumerate() {
            let first = key / E::NEIGHBOURS * row_len + idx * E::NEIGHBOURS.pow(2) + key % E::NEIGHBOURS;
            for (neighbour, number) in numbers.iter().enumerate() {
                values[first + neighbour * E::NEIGHBOURS] = *number;
            }
        }
    }
}

/// Copies keys into a group with at least as many dimensions. The other dimensions become zero.
pub(super) fn copy_keys<E: KvElement>(group: &[E::Stored], to: &mut [E::Stored]) {
    let (to, rest) = to.split_at_mut(group.len());
    to.copy_from_slice(group);
    rest.fill(E::Stored::default());
}

/// Copies values into a group with at least as many dimensions. The other dimensions become zero.
pub(super) fn copy_values<E: KvElement>(group: &[E::Stored], to: &mut [E::Stored]) {
    let num_rows = GROUP_SIZE / E::NEIGHBOURS;
    let to_len = to.len() / num_rows;
    for (row, to) in group.chunks_exact(group.len() / num_rows).zip(to.chunks_exact_mut(to_len)) {
        copy_keys::<E>(row, to);
    }
}
