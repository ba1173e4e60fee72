//! The memory that the ranks share: its layout, and how a file is mapped. The size of the memory depends only on the
//! number of ranks.
//!
//! Zeros are the state before the first operation, so a new file needs no initialisation for which ranks could race.
//! The first rank sets the first word, which identifies the file, and every rank checks it.

#![expect(unsafe_code, reason = "views mapped memory as atomics")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::CollectiveError;
use crate::operation::Announcement;

/// The maximum number of ranks in a group.
pub const MAX_RANKS: usize = 64;

/// The number of values in a staging buffer. Longer messages are split into chunks. Buffers of 128 KiB to 1 MiB are
/// equally fast in the benchmark; two buffers of 256 KiB fit into the second-level cache of most processors.
pub const CHUNK_LEN: usize = 64 << 10;

/// The number of staging buffers of one rank.
pub(crate) const NUM_BUFFERS: usize = 2;

const MAGIC: u32 = u32::from_be_bytes(*b"HILO");
const VERSION: u16 = 1;
const PAGE_BYTES: usize = 4096;
const BUFFER_BYTES: usize = CHUNK_LEN * size_of::<f32>();

/// A value that shares neither its cache line, nor the adjacent line that is prefetched with it, with another value.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Apart<T>(pub(crate) T);

/// The words that all ranks write: identity, counters, the abort, and the turns.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Header {
    /// Magic, version and number of ranks; 0 before the first rank has opened the file.
    identity: Apart<AtomicU64>,
    /// Twice the number of arrivals of all ranks. Bit 0 is set if the group is aborted. Wraps around.
    pub(crate) arrivals: Apart<AtomicU32>,
    /// The number of ranks that sleep until `arrivals` changes.
    pub(crate) sleepers: Apart<AtomicU32>,
    /// One more than the rank that aborted the group first; 0 if the group is not aborted.
    pub(crate) aborted_by: Apart<AtomicU32>,
    pub(crate) turns: Apart<Turns>,
}

/// The counters of turns. A rank draws the next ticket, and its turn begins when enough of the turns before it have
/// ended. Both counters wrap around.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Turns {
    pub(crate) num_drawn: AtomicU32,
    pub(crate) num_ended: AtomicU32,
}

/// The state of one rank. Only that rank writes it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RankWords {
    pub(crate) announcements: Apart<[Announcement; 2]>,
    /// The number of meetings to which this rank has come. Wraps around.
    pub(crate) num_meetings: Apart<AtomicU32>,
    /// The number of turns that this rank holds.
    pub(crate) num_turns: AtomicU32,
    joined: AtomicU32,
}

/// The mapped file.
#[derive(Debug)]
pub(crate) struct Region {
    mapping: MmapRaw,
    num_ranks: usize,
}

const _: () = assert!(size_of::<Header>() <= PAGE_BYTES);

impl Region {
    /// Opens the file as `rank`, grows it and maps it.
    pub(crate) fn open(path: &Path, rank: usize, num_ranks: usize) -> Result<Self, CollectiveError> {
        let failed = |source| CollectiveError::File { path: path.into(), source };
        let file = File::options().read(true).write(true).open(path).map_err(failed)?;
        // The identity is checked before the file grows, so that a file of another program stays unchanged, unless it
        // begins with zeros or is shorter than the identity.
        check_identity(path, stored_identity(&file).map_err(failed)?, num_ranks)?;
        grow(&file, size_bytes(num_ranks)).map_err(failed)?;
        let mapping = MmapOptions::new().len(size_bytes(num_ranks)).populate().map_raw(&file).map_err(failed)?;
        let region = Self { mapping, num_ranks };
        let set = |word: &AtomicU64| word.compare_exchange(0, identity(num_ranks), Ordering::AcqRel, Ordering::Acquire);
        check_identity(path, set(&region.header().identity.0).unwrap_or_else(|found| found), num_ranks)?;
        if region.ranks()[rank].joined.swap(1, Ordering::AcqRel) != 0 {
            return Err(CollectiveError::RankTaken { rank, path: path.into() });
        }
        Ok(region)
    }

    pub(crate) fn num_ranks(&self) -> usize {
        self.num_ranks
    }

    pub(crate) fn header(&self) -> &Header {
        // SAFETY: the mapping starts on a page, is at least a page long and lives as long as `self`. A header consists
        // of atomics: all bits are valid, and other processes may change them at any time.
        unsafe { &*self.mapping.as_ptr().cast::<Header>() }
    }

    /// The words of all ranks.
    pub(crate) fn ranks(&self) -> &[RankWords] {
        // SAFETY: from its second page on the mapping contains `num_ranks` of these structs (see `staging_offset`), and
        // it lives as long as `self`. They are aligned, because a page is, and they consist of atomics, as in `header`.
        unsafe {
            let first = self.mapping.as_ptr().add(PAGE_BYTES).cast::<RankWords>();
            std::slice::from_raw_parts(first, self.num_ranks)
        }
    }

    /// A pointer to the first of the `CHUNK_LEN` values of one staging buffer.
    ///
    /// # Panics
    /// When the rank or the buffer does not exist.
    pub(crate) fn buffer(&self, rank: usize, buffer: usize) -> *mut f32 {
        assert!(rank < self.num_ranks && buffer < NUM_BUFFERS, "rank {rank}, buffer {buffer} of {}", self.num_ranks);
        let offset = staging_offset(self.num_ranks) + (rank * NUM_BUFFERS + buffer) * BUFFER_BYTES;
        // SAFETY: `size_bytes` counts this buffer, so the offset is inside the mapping.
        unsafe { self.mapping.as_mut_ptr().add(offset).cast() }
    }
}

fn staging_offset(num_ranks: usize) -> usize {
    PAGE_BYTES + (num_ranks * size_of::<RankWords>()).next_multiple_of(PAGE_BYTES)
}

fn size_bytes(num_ranks: usize) -> usize {
    staging_offset(num_ranks) + num_ranks * NUM_BUFFERS * BUFFER_BYTES
}

fn identity(num_ranks: usize) -> u64 {
    u64::from(MAGIC) << 32 | u64::from(VERSION) << 16 | num_ranks as u64
}

/// Returns the identity that the file contains, or 0 if it has none yet.
fn stored_identity(file: &File) -> std::io::Result<u64> {
    let mut word = [0; size_of::<u64>()];
    match file.read_exact_at(&mut word, 0) {
        Ok(()) => Ok(u64::from_ne_bytes(word)),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(0),
        Err(error) => Err(error),
    }
}

fn check_identity(path: &Path, found: u64, num_ranks: usize) -> Result<(), CollectiveError> {
    let (magic, version, found_size) = ((found >> 32) as u32, (found >> 16) as u16, usize::from(found as u16));
    if found == 0 || found == identity(num_ranks) {
        Ok(())
    } else if magic != MAGIC {
        Err(CollectiveError::NotAGroup { path: path.into() })
    } else if version != VERSION {
        Err(CollectiveError::OtherVersion { path: path.into(), found: version, version: VERSION })
    } else {
        Err(CollectiveError::OtherWorldSize { path: path.into(), found: found_size, num_ranks })
    }
}

/// Makes the file at least `size_bytes` long and allocates its memory. Unlike `set_len` this never shrinks a file that
/// another rank has grown, and a full tmpfs is an error here instead of a SIGBUS later.
fn grow(file: &File, size_bytes: usize) -> Result<(), std::io::Error> {
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size_bytes as u64) {
            Err(Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}
