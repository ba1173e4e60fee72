//! All-reduce and all-gather between ranks of several hosts, over one socket for each pair of ranks.
//!
//! Entry points: [`Mesh::new`]; [`Mesh::inherited`], for sockets that the parent process has connected. Values are
//! added in the same order as by [`Group`](crate::Group), so a model's sums have the same bits on one host and on
//! several.
//!
//! ```text
//!  short chunk    rank 0 ── own values ──▶ every rank         each adds up all values, from rank 0 to the last
//!  long chunk     rank 0 ── part i ──▶ rank i │ adds up │ ── sums of part i ──▶ every rank
//! ```
//!
//! A long chunk is added up in parts if there are more than two ranks: then a rank sends less than two chunks, instead
//! of one to each other rank. All sockets of an exchange are read and written at the same time, so no rank waits for
//! room in a buffer that another rank will not empty.

mod message;
mod peer;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use liveness::AwakeTime;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use self::message::{Header, Stage};
use self::peer::{Incoming, Peer};
use crate::{CollectiveError, MAX_RANKS, Operation};

/// The number of values in a chunk. Longer messages are cut. A rank keeps three chunks in memory for each other rank.
pub const MESH_CHUNK_LEN: usize = 256 << 10;

/// The minimum length, in values, of a chunk that is added up in parts, if there are more than two ranks. A shorter
/// chunk is sent whole to every rank, because a second exchange would take longer.
const MIN_DIVIDED_LEN: usize = 8 << 10;

/// The time for which a waiting rank yields its core between two looks at the sockets, before it sleeps. It is longer
/// than the round trip of a local network.
const YIELD: Duration = Duration::from_micros(200);

/// The interval at which a sleeping rank checks if a rank that has already sent its values has ended the group.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// One rank's connections to all other ranks.
///
/// All ranks run the same operations in the same order, with the same lengths. An operation that fails leaves its
/// results unspecified and ends the group: every later operation of this rank fails, and this rank tells the others. A
/// rank that leaves, by dropping its connections, ends the group too. Operations that all ranks have completed are not
/// affected.
#[derive(Debug)]
pub struct Mesh {
    rank: usize,
    /// The connections by rank; `None` at this rank.
    peers: Vec<Option<Peer>>,
    deadline: Duration,
    /// The number of operations that this rank has begun.
    num_operations: u64,
    /// The rank that has ended the group, if one has.
    aborted_by: Option<usize>,
    /// The sums of a chunk; the buffer is reused.
    sums: Vec<f32>,
}

impl Mesh {
    /// Joins the group as `rank`. `sockets` are connected stream sockets, one for each rank in order, and `None` at
    /// this rank. `deadline` limits each single wait for the other ranks.
    ///
    /// # Errors
    /// When there are no ranks or more than [`MAX_RANKS`], when a socket is missing or `rank` has one, and when a
    /// socket cannot be used.
    pub fn new(rank: usize, sockets: Vec<Option<OwnedFd>>, deadline: Duration) -> Result<Self, CollectiveError> {
        let num_ranks = sockets.len();
        if !(1..=MAX_RANKS).contains(&num_ranks) {
            return Err(CollectiveError::WorldSize { num_ranks });
        }
        if rank >= num_ranks {
            return Err(CollectiveError::Rank { rank, num_ranks });
        }
        if let Some(odd) = (0..num_ranks).find(|other| sockets[*other].is_some() != (*other != rank)) {
            return Err(CollectiveError::Sockets { rank, other_rank: odd });
        }
        let peers = sockets.into_iter().enumerate().map(|(other_rank, socket)| {
            let failed = |errno: Errno| CollectiveError::Socket { rank, other_rank, source: errno.into() };
            socket.map(Peer::new).transpose().map_err(failed)
        });
        let peers = peers.collect::<Result<_, _>>()?;
        Ok(Self { rank, peers, deadline, num_operations: 0, aborted_by: None, sums: Vec::new() })
    }

    /// Joins the group with sockets that this process inherited under these numbers; see [`Mesh::new`].
    ///
    /// # Errors
    /// As for [`Mesh::new`], and when a number is not an open file descriptor above those of the standard streams.
    pub fn inherited(rank: usize, sockets: &[Option<RawFd>], deadline: Duration) -> Result<Self, CollectiveError> {
        let own = |(other_rank, number): (usize, &Option<RawFd>)| {
            let Some(number) = *number else { return Ok(None) };
            let is_open = number > 2 && std::path::Path::new(&format!("/proc/self/fd/{number}")).exists();
            let source = || std::io::Error::from(Errno::BADF);
            if !is_open {
                return Err(CollectiveError::Socket { rank, other_rank, source: source() });
            }
            #[expect(unsafe_code, reason = "takes over a file descriptor that the parent process has passed on")]
            // SAFETY: the descriptor is open. The parent process opened it for this use only, so nothing else in this
            // process owns it.
            Ok(Some(unsafe { OwnedFd::from_raw_fd(number) }))
        };
        let sockets = sockets.iter().enumerate().map(own).collect::<Result<_, _>>()?;
        Self::new(rank, sockets, deadline)
    }

    /// The index of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn num_ranks(&self) -> usize {
        self.peers.len()
    }

    /// Sets the deadline of all later waits of this rank.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// Replaces each value by the sum of that value on all ranks; see [`Group::all_reduce`](crate::Group::all_reduce).
    ///
    /// # Errors
    /// [`CollectiveError::OutOfStep`], [`CollectiveError::Deadline`], [`CollectiveError::Aborted`],
    /// [`CollectiveError::Wait`].
    pub fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        let result = self.reduce(values);
        self.abort_if_failed(result)
    }

    /// Concatenates the parts of all ranks in each row; see [`Group::all_gather`](crate::Group::all_gather).
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce), and [`CollectiveError::Lengths`] when the lengths contradict each other.
    pub fn all_gather(&mut self, part: &[f32], num_rows: usize, gathered: &mut [f32]) -> Result<(), CollectiveError> {
        let result = self.gather(part, num_rows, gathered);
        self.abort_if_failed(result)
    }

    /// Ends the group: all later operations of this rank fail, and the other ranks are told that this rank has ended
    /// it.
    pub fn abort(&mut self) {
        self.end(self.rank);
    }

    fn abort_if_failed(&mut self, result: Result<(), CollectiveError>) -> Result<(), CollectiveError> {
        match &result {
            Ok(()) => {}
            Err(CollectiveError::Aborted { rank }) => self.end(*rank),
            Err(_) => self.abort(),
        }
        result
    }

    /// Tells the other ranks that `rank` has ended the group, unless they have been told before.
    fn end(&mut self, rank: usize) {
        if self.aborted_by.is_none() {
            self.aborted_by = Some(rank);
            self.peers.iter_mut().flatten().for_each(|peer| peer.abort(rank));
        }
    }

    fn reduce(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        let operation = Operation::AllReduce { num_values: values.len() };
        let ordinal = self.begin()?;
        let header = |stage| Header::Values { ordinal, operation, stage };
        for range in chunk_ranges(values.len()) {
            let chunk = &mut values[range];
            if self.num_ranks() > 2 && chunk.len() >= MIN_DIVIDED_LEN {
                self.sum_in_parts(&header, chunk)?;
            } else {
                let num_values = chunk.len();
                self.exchange(header(Stage::Own), |_| chunk, |_| num_values)?;
                self.sum(chunk);
                chunk.copy_from_slice(&self.sums);
            }
        }
        Ok(())
    }

    /// Adds up a chunk in parts: each rank adds up one part and sends the sums to the other ranks.
    fn sum_in_parts(&mut self, header: &dyn Fn(Stage) -> Header, chunk: &mut [f32]) -> Result<(), CollectiveError> {
        let (num_values, num_ranks) = (chunk.len(), self.num_ranks());
        let part = |rank| part_range(num_values, num_ranks, rank);
        let own = part(self.rank);
        self.exchange(header(Stage::Own), |rank| &chunk[part(rank)], |_| own.len())?;
        self.sum(&chunk[own.clone()]);
        chunk[own.clone()].copy_from_slice(&self.sums);
        self.exchange(header(Stage::Sums), |_| &chunk[own.clone()], |rank| part(rank).len())?;
        for (rank, peer) in self.peers.iter().enumerate() {
            let Some(peer) = peer else { continue };
            chunk[part(rank)].copy_from_slice(peer.values());
        }
        Ok(())
    }

    /// Adds up this rank's values and those that the other ranks have sent, from rank 0 to the last, into `sums`.
    fn sum(&mut self, own: &[f32]) {
        self.sums.clear();
        for (rank, peer) in self.peers.iter().enumerate() {
            let values = peer.as_ref().map_or(own, Peer::values);
            match rank {
                0 => self.sums.extend_from_slice(values),
                _ => add(&mut self.sums, values),
            }
        }
    }

    fn gather(&mut self, part: &[f32], num_rows: usize, gathered: &mut [f32]) -> Result<(), CollectiveError> {
        let num_ranks = self.num_ranks();
        crate::operation::check_lengths(part.len(), num_rows, num_ranks, gathered.len())?;
        let operation = Operation::AllGather { num_rows, num_values: part.len() };
        let ordinal = self.begin()?;
        let row_len = part.len().checked_div(num_rows).unwrap_or(0);
        for range in chunk_ranges(part.len()) {
            let own = &part[range.clone()];
            self.exchange(Header::Values { ordinal, operation, stage: Stage::Own }, |_| own, |_| own.len())?;
            for (rank, peer) in self.peers.iter().enumerate() {
                let values = peer.as_ref().map_or(own, Peer::values);
                for (position, value) in range.clone().zip(values) {
                    let (row, column) = (position / row_len, position % row_len);
                    gathered[(row * num_ranks + rank) * row_len + column] = *value;
                }
            }
        }
        Ok(())
    }

    /// Begins an operation, and returns its ordinal.
    fn begin(&mut self) -> Result<u64, CollectiveError> {
        match self.aborted_by {
            Some(rank) => Err(CollectiveError::Aborted { rank }),
            None => {
                self.num_operations += 1;
                Ok(self.num_operations)
            }
        }
    }

    /// Sends `outgoing(rank)` to every other rank, and receives `num_expected(rank)` values from each.
    fn exchange<'a>(
        &mut self,
        header: Header,
        outgoing: impl Fn(usize) -> &'a [f32],
        num_expected: impl Fn(usize) -> usize,
    ) -> Result<(), CollectiveError> {
        for (rank, peer) in self.peers.iter_mut().enumerate() {
            if let Some(peer) = peer {
                peer.begin(header, outgoing(rank), num_expected(rank));
            }
        }
        let mut waited = AwakeTime::start(Instant::now());
        loop {
            for rank in 0..self.peers.len() {
                self.advance(rank, header)?;
            }
            let is_done = |peer: &Peer| peer.has_sent() && peer.has_received();
            if self.peers.iter().flatten().all(is_done) {
                return Ok(());
            }
            let waited = waited.look(Instant::now());
            if waited >= self.deadline {
                return Err(self.overdue(header));
            }
            if waited < YIELD {
                std::thread::yield_now();
            } else {
                self.sleep((self.deadline - waited).min(LOOK_INTERVAL))?;
                let received = self.peers.iter().flatten().filter(|peer| peer.has_received());
                if let Some(rank) = received.filter_map(Peer::abort_after_message).next() {
                    return Err(CollectiveError::Aborted { rank });
                }
            }
        }
    }

    /// Sends to one rank and receives from it as much as is possible without waiting.
    fn advance(&mut self, rank: usize, header: Header) -> Result<(), CollectiveError> {
        let Some(peer) = &mut self.peers[rank] else { return Ok(()) };
        // A connection that can no longer be written to may still have the reason to read.
        let sent = peer.send();
        match peer.receive() {
            Incoming::Complete | Incoming::Partial if sent.is_ok() => Ok(()),
            Incoming::Complete | Incoming::Partial | Incoming::Closed | Incoming::Other(None) => {
                Err(CollectiveError::Aborted { rank })
            }
            Incoming::Failed(errno) => Err(CollectiveError::Lost { rank, source: errno.into() }),
            Incoming::Other(Some(Header::Abort { rank })) => Err(CollectiveError::Aborted { rank }),
            Incoming::Other(Some(other)) => Err(self.out_of_step(header, rank, other)),
        }
    }

    /// Sleeps until a socket is ready, at most for `limit`.
    fn sleep(&self, limit: Duration) -> Result<(), CollectiveError> {
        let wanted = |peer: &Peer| match (peer.has_sent(), peer.has_received()) {
            (true, true) => PollFlags::empty(),
            (true, false) => PollFlags::IN,
            (false, true) => PollFlags::OUT,
            (false, false) => PollFlags::IN | PollFlags::OUT,
        };
        let waiting = self.peers.iter().flatten().map(|peer| (peer, wanted(peer)));
        let waiting = waiting.filter(|(_, wanted)| !wanted.is_empty());
        let mut sockets: Vec<PollFd<'_>> = waiting.map(|(peer, wanted)| PollFd::new(peer, wanted)).collect();
        match rustix::event::poll(&mut sockets, Timespec::try_from(limit).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(CollectiveError::Wait { source: errno.into() }),
        }
    }

    fn overdue(&self, header: Header) -> CollectiveError {
        let is_missing =
            |peer: &Option<Peer>| peer.as_ref().is_some_and(|peer| !(peer.has_sent() && peer.has_received()));
        let missing = (0..self.num_ranks()).filter(|rank| is_missing(&self.peers[*rank])).collect();
        let operation = operation(header);
        CollectiveError::Deadline { operation, missing, after: self.deadline }
    }

    fn out_of_step(&self, own: Header, other_rank: usize, other: Header) -> CollectiveError {
        let ordinal = |header| if let Header::Values { ordinal, .. } = header { ordinal } else { 0 };
        CollectiveError::OutOfStep {
            rank: self.rank,
            ordinal: ordinal(own),
            operation: operation(own),
            other_rank,
            other_ordinal: ordinal(other),
            other_operation: operation(other),
        }
    }
}

fn operation(header: Header) -> Operation {
    match header {
        Header::Values { operation, .. } => operation,
        Header::Abort { .. } => Operation::Unknown { kind: 0 },
    }
}

/// Adds values to sums.
// Not inlined, so that every rank runs the same instructions: the order of the operands decides which of two NaNs an
// addition returns.
#[inline(never)]
fn add(sums: &mut [f32], values: &[f32]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

/// The ranges of the chunks of a message. There is at least one, so that ranks exchange an empty message too.
fn chunk_ranges(len: usize) -> impl Iterator<Item = Range<usize>> {
    let num_chunks = len.div_ceil(MESH_CHUNK_LEN).max(1);
    (0..num_chunks).map(move |index| index * MESH_CHUNK_LEN..((index + 1) * MESH_CHUNK_LEN).min(len))
}

/// The range of a chunk that one rank adds up. The parts cover the chunk, and the last parts may be empty.
fn part_range(len: usize, num_ranks: usize, rank: usize) -> Range<usize> {
    let part_len = len.div_ceil(num_ranks);
    (rank * part_len).min(len)..((rank + 1) * part_len).min(len)
}
