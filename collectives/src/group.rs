//! One rank's membership in a group, and the operations that all ranks run together.

#![expect(unsafe_code, reason = "knows when staging may be read and written")]

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::operation::check_lengths;
use crate::region::{CHUNK_LEN, MAX_RANKS, NUM_BUFFERS, Region};
use crate::rendezvous::Rendezvous;
use crate::staging::{self, Place};
use crate::{CollectiveError, Operation, Turn};

/// The minimum length, in values, of a chunk that is added up in parts, if there are more than two ranks. For a shorter
/// chunk, the second meeting takes longer than reading the chunks of all ranks (measured with four ranks).
const MIN_DIVIDED_LEN: usize = 8 << 10;

/// The alignment of a part, in values. 32 values are 128 bytes, so no two parts of a chunk share a cache line.
const PART_ALIGNMENT: usize = 32;

/// One rank's membership in the group of all ranks of a host.
///
/// All ranks run the same operations in the same order, with the same lengths. An operation that fails leaves its
/// results unspecified and aborts the group. A rank that leaves, by dropping its membership, aborts the group too.
/// Operations that all ranks have completed are not affected.
#[derive(Debug)]
pub struct Group {
    rendezvous: Rendezvous,
    /// The number of operations that this rank has begun.
    num_operations: u64,
    /// The index of the buffer for the next chunk.
    buffer: usize,
}

impl Group {
    /// Joins the group as `rank` of `num_ranks` ranks, without waiting for the others.
    ///
    /// `path` is an existing file in memory, the same for all ranks: a memfd (`/proc/self/fd/N`) or a file on tmpfs. It
    /// must be empty before the group uses it, and it serves one group only. The file takes about half a MiB per rank.
    ///
    /// `deadline` limits each single wait for the other ranks. After the deadline the operation fails.
    ///
    /// # Errors
    /// When `num_ranks` is 0 or above [`MAX_RANKS`], when `rank` is not below it, when the file cannot be opened, grown
    /// or mapped, and when the file has other contents, is of another version, belongs to a group of another size, or
    /// already has this rank.
    pub fn open(path: &Path, rank: usize, num_ranks: usize, deadline: Duration) -> Result<Self, CollectiveError> {
        if !(1..=MAX_RANKS).contains(&num_ranks) {
            return Err(CollectiveError::WorldSize { num_ranks });
        }
        if rank >= num_ranks {
            return Err(CollectiveError::Rank { rank, num_ranks });
        }
        let region = Arc::new(Region::open(path, rank, num_ranks)?);
        Ok(Self { rendezvous: Rendezvous::new(region, rank, deadline), num_operations: 0, buffer: 0 })
    }

    /// The index of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.rendezvous.rank()
    }

    /// The number of ranks.
    pub fn num_ranks(&self) -> usize {
        self.rendezvous.region().num_ranks()
    }

    /// Sets the deadline of all later waits of this rank.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.rendezvous.set_deadline(deadline);
    }

    /// Replaces each value by the sum of that value on all ranks, added in f32 from rank 0 to the last.
    ///
    /// Every rank gets the same bits, even of NaNs. The sum of one element does not depend on other elements. An
    /// all-reduce without values is a barrier.
    ///
    /// # Errors
    /// [`CollectiveError::OutOfStep`], [`CollectiveError::Deadline`], [`CollectiveError::Aborted`],
    /// [`CollectiveError::Wait`].
    pub fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        let result = self.reduce(values);
        self.abort_if_failed(result)
    }

    /// Concatenates the parts of all ranks in each row: `part` is `[num_rows, n]`, `gathered` is
    /// `[num_rows, num_ranks * n]`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce), and [`CollectiveError::Lengths`] when the lengths contradict each other.
    pub fn all_gather(&mut self, part: &[f32], num_rows: usize, gathered: &mut [f32]) -> Result<(), CollectiveError> {
        let result = self.gather(part, num_rows, gathered);
        self.abort_if_failed(result)
    }

    /// Waits until fewer than `max_at_once` ranks have a turn, and takes a turn. Ranks take turns in order of arrival.
    /// All ranks must pass the same limit; 0 counts as 1. While this rank waits, it calls `waiting` a few times a
    /// second.
    ///
    /// # Errors
    /// [`CollectiveError::Deadline`] when no turn has ended within the deadline; the error names the ranks that have
    /// one. [`CollectiveError::Aborted`], [`CollectiveError::Wait`].
    pub fn take_turn(&mut self, max_at_once: usize, waiting: &mut dyn FnMut()) -> Result<Turn, CollectiveError> {
        let rendezvous = &self.rendezvous;
        let result = Turn::take(rendezvous.region(), rendezvous.rank(), max_at_once, rendezvous.deadline(), waiting);
        self.abort_if_failed(result)
    }

    /// Aborts the group: all present and later waits of all ranks end with [`CollectiveError::Aborted`], which names
    /// the first rank that aborted it.
    pub fn abort(&self) {
        self.rendezvous.abort();
    }

    fn abort_if_failed<T>(&self, result: Result<T, CollectiveError>) -> Result<T, CollectiveError> {
        result.inspect_err(|_| self.abort())
    }

    fn reduce(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        let operation = Operation::AllReduce { num_values: values.len() };
        self.begin(operation)?;
        if self.num_ranks() == 1 {
            return Ok(());
        }
        for (index, range) in chunk_ranges(values.len()).enumerate() {
            let chunk = &mut values[range];
            self.stage(chunk);
            self.rendezvous.meet(operation)?;
            if index == 0 {
                self.compare(operation)?;
            }
            if self.num_ranks() > 2 && chunk.len() >= MIN_DIVIDED_LEN {
                self.sum_in_parts(operation, chunk)?;
            } else {
                let place = Place { buffer: self.buffer, offset: 0 };
                // SAFETY: all ranks have staged this chunk, because they have met. They do not write to this buffer
                // again before the meeting for the next chunk, to which this rank comes only after this read.
                unsafe { staging::sum(self.rendezvous.region(), place, chunk) };
            }
            self.next_buffer();
        }
        Ok(())
    }

    /// Adds up a chunk in parts: each rank adds up one part and reads the sums of the other parts. So a rank reads less
    /// than two chunks in all, instead of one from each rank.
    fn sum_in_parts(&mut self, operation: Operation, chunk: &mut [f32]) -> Result<(), CollectiveError> {
        let (rank, num_ranks, buffer) = (self.rank(), self.num_ranks(), self.buffer);
        let own = part_range(chunk.len(), num_ranks, rank);
        let place = Place { buffer, offset: own.start };
        // SAFETY: all ranks have staged this chunk. Until the next meeting only this rank reads this part of any rank's
        // staging, and only this rank writes the part, in its own staging and after reading.
        unsafe {
            staging::sum(self.rendezvous.region(), place, &mut chunk[own.clone()]);
            staging::write(self.rendezvous.region(), rank, place, &chunk[own]);
        }
        self.rendezvous.meet(operation)?;
        for other in (0..num_ranks).filter(|other| *other != rank) {
            let range = part_range(chunk.len(), num_ranks, other);
            let place = Place { buffer, offset: range.start };
            // SAFETY: the other rank has written its part, because the ranks have met. It does not write to this buffer
            // again before it meets this rank for the next chunk.
            unsafe { staging::read(self.rendezvous.region(), other, place, &mut chunk[range]) };
        }
        Ok(())
    }

    fn gather(&mut self, part: &[f32], num_rows: usize, gathered: &mut [f32]) -> Result<(), CollectiveError> {
        let num_ranks = self.num_ranks();
        check_lengths(part.len(), num_rows, num_ranks, gathered.len())?;
        let operation = Operation::AllGather { num_rows, num_values: part.len() };
        self.begin(operation)?;
        if num_ranks == 1 {
            gathered.copy_from_slice(part);
            return Ok(());
        }
        let row_len = part.len().checked_div(num_rows).unwrap_or(0);
        for (index, range) in chunk_ranges(part.len()).enumerate() {
            self.stage(&part[range.clone()]);
            self.rendezvous.meet(operation)?;
            if index == 0 {
                self.compare(operation)?;
            }
            for rank in 0..num_ranks {
                self.place_in_rows(rank, range.clone(), row_len, gathered);
            }
            self.next_buffer();
        }
        Ok(())
    }

    /// Copies the values `range` of one rank's part from the rank's staging buffer into the rows of `gathered`.
    fn place_in_rows(&self, rank: usize, range: Range<usize>, row_len: usize, gathered: &mut [f32]) {
        let mut position = range.start;
        while position < range.end {
            let (row, column) = (position / row_len, position % row_len);
            let len = (row_len - column).min(range.end - position);
            let start = (row * self.num_ranks() + rank) * row_len + column;
            let place = Place { buffer: self.buffer, offset: position - range.start };
            // SAFETY: all ranks have staged this chunk, because they have met, and none writes to its buffer before the
            // next meeting.
            unsafe { staging::read(self.rendezvous.region(), rank, place, &mut gathered[start..start + len]) };
            position += len;
        }
    }

    /// Announces an operation, which the other ranks compare with their own operation after the first meeting.
    fn begin(&mut self, operation: Operation) -> Result<(), CollectiveError> {
        self.rendezvous.check_alive()?;
        self.num_operations += 1;
        let words = &self.rendezvous.region().ranks()[self.rank()];
        words.announcements.0[self.announcement()].write(self.num_operations, operation);
        Ok(())
    }

    /// Compares the announced operations of all ranks with `operation`. All ranks must have arrived at its first
    /// meeting.
    fn compare(&self, operation: Operation) -> Result<(), CollectiveError> {
        for (other_rank, words) in self.rendezvous.region().ranks().iter().enumerate() {
            let (other_ordinal, other_operation) = words.announcements.0[self.announcement()].read();
            if (other_ordinal, other_operation) != (self.num_operations, operation) {
                let (rank, ordinal) = (self.rank(), self.num_operations);
                return Err(CollectiveError::OutOfStep {
                    rank,
                    ordinal,
                    operation,
                    other_rank,
                    other_ordinal,
                    other_operation,
                });
            }
        }
        Ok(())
    }

    fn announcement(&self) -> usize {
        (self.num_operations % 2) as usize
    }

    fn stage(&self, chunk: &[f32]) {
        let place = Place { buffer: self.buffer, offset: 0 };
        // SAFETY: this buffer was last used two chunks ago. Every rank had finished with that chunk when it came to the
        // first meeting of the chunk in between, and this rank has been at that meeting.
        unsafe { staging::write(self.rendezvous.region(), self.rank(), place, chunk) };
    }

    fn next_buffer(&mut self) {
        self.buffer = (self.buffer + 1) % NUM_BUFFERS;
    }
}

#[cfg(test)]
impl Group {
    pub(crate) fn region(&self) -> &Region {
        self.rendezvous.region()
    }

    /// Continues as if this rank had been at `num_meetings` meetings.
    pub(crate) fn start_at_meeting(&mut self, num_meetings: u32) {
        self.rendezvous.start_at(num_meetings);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.abort();
    }
}

/// The ranges of the chunks of a message. There is at least one, so that ranks meet for an empty message too.
fn chunk_ranges(len: usize) -> impl Iterator<Item = Range<usize>> {
    let num_chunks = len.div_ceil(CHUNK_LEN).max(1);
    (0..num_chunks).map(move |index| index * CHUNK_LEN..((index + 1) * CHUNK_LEN).min(len))
}

/// The range of a chunk that one rank adds up. The parts cover the chunk, and the last parts may be empty.
fn part_range(len: usize, num_ranks: usize, rank: usize) -> Range<usize> {
    let part_len = len.div_ceil(num_ranks).next_multiple_of(PART_ALIGNMENT);
    (rank * part_len).min(len)..((rank + 1) * part_len).min(len)
}
