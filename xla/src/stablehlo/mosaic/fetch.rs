//! How the decode kernel fetches chunks: the cursor, the ring of slots, and the waits.
//!
//! Entry points: [`Decoder::fetch_next`], [`Decoder::wait`]. One semaphore per slot counts the bytes of a chunk's keys,
//! and one those of its values. A new chunk is fetched into a slot after the kernel has computed with the chunk before
//! it.

use backend::BLOCK_SIZE;
use model::graph::Window;

use super::decode::{COMPUTED_SLOT, Chunk, Decoder, FETCHED_CHUNK, FETCHED_ROW, FETCHED_SLOT, Row};
use super::emitter::{Binary, Comparison};
use super::kernel::LANES;
use super::value::Value;

impl Decoder<'_> {
    /// Starts to fetch the chunk at the cursor, and moves the cursor to the next chunk. After the last chunk of the
    /// last row this is a no-op.
    pub(super) fn fetch_next(&mut self) {
        let index = self.cursor(FETCHED_ROW);
        let rows = self.integer(self.kernel.rows);
        let is_row = self.emitter.compare(Comparison::Less, &index, &rows);
        self.when(&is_row, |decoder| {
            let [chunk, slot] = [FETCHED_CHUNK, FETCHED_SLOT].map(|number| decoder.cursor(number));
            decoder.enter_row(&index, &chunk);
            let row = decoder.row(&index);
            let next_slot = decoder.next_slot(&slot);
            let first = decoder.chunk(&row, &chunk, slot);
            decoder.start(&row, &first);
            let [zero, one] = [0, 1].map(|number| decoder.integer(number));
            let next_chunk = decoder.binary(Binary::Add, &chunk, &one);
            let next_row = decoder.binary(Binary::Add, &index, &one);
            let num_chunks = decoder.num_chunks(&row);
            let stays = decoder.emitter.compare(Comparison::Less, &next_chunk, &num_chunks);
            let next_row = decoder.emitter.select(&stays, &index, &next_row);
            let next_chunk = decoder.emitter.select(&stays, &next_chunk, &zero);
            decoder.set_cursor(FETCHED_ROW, &next_row);
            decoder.set_cursor(FETCHED_CHUNK, &next_chunk);
            decoder.set_cursor(FETCHED_SLOT, &next_slot);
        });
    }

    /// Before the first chunk of a row: waits for the row's block table, and starts to fetch that of the next row. If
    /// all tables are in scalar memory, this is a no-op.
    fn enter_row(&mut self, index: &Value, chunk: &Value) {
        if self.kernel.has_scalar_tables() {
            return;
        }
        let zero = self.integer(0);
        let is_first = self.emitter.compare(Comparison::Equal, chunk, &zero);
        self.when(&is_first, |decoder| {
            let [source, target, semaphore] = decoder.table_copy(index);
            decoder.emitter.wait_for_copy(&source, &target, &semaphore);
            let one = decoder.integer(1);
            let next = decoder.binary(Binary::Add, index, &one);
            let rows = decoder.integer(decoder.kernel.rows);
            let is_row = decoder.emitter.compare(Comparison::Less, &next, &rows);
            decoder.when(&is_row, |decoder| decoder.start_table(&next));
        });
    }

    /// Starts to fetch the block table of the row `index`, if tables are not in scalar memory.
    pub(super) fn start_table(&mut self, index: &Value) {
        if !self.kernel.has_scalar_tables() {
            let [source, target, semaphore] = self.table_copy(index);
            self.emitter.start_copy(&source, &target, &semaphore);
        }
    }

    /// Returns source, target and semaphore of the copy of a row's block table.
    fn table_copy(&mut self, index: &Value) -> [Value; 3] {
        let [fetched, semaphores] = self.arrays.scratch.tables.clone().expect("tables are not in scalar memory");
        let source = self.arrays.tables.clone();
        let place = self.table_slot(index);
        let zero = self.integer(0);
        let dims = [&[1], &source.dims()[1..]].concat();
        let source = self.emitter.part(&source, &[index, &zero, &zero], &dims, 1);
        let target = self.emitter.part(&fetched, &[&place, &zero, &zero], &dims, 1);
        [source, target, self.semaphore(&semaphores, &place)]
    }

    fn table_slot(&mut self, index: &Value) -> Value {
        let two = self.integer(2);
        self.binary(Binary::Remainder, index, &two)
    }

    /// Returns the block of the cache at `entry` of the row's block table.
    fn block(&mut self, row: &Row, entry: &Value) -> Value {
        let Some([fetched, _]) = self.arrays.scratch.tables.clone() else {
            let tables = self.arrays.tables.clone();
            let first = self.times(&row.index, self.kernel.blocks_per_row);
            let entry = self.binary(Binary::Add, &first, entry);
            let entry = self.emitter.as_index(&entry);
            return self.emitter.load_scalar(&tables, &[&entry]);
        };
        let lanes = self.integer(LANES);
        let place = self.table_slot(&row.index);
        let [vector, lane] = [Binary::Divide, Binary::Remainder].map(|op| self.binary(op, entry, &lanes));
        let [place, vector, lane] = [place, vector, lane].map(|x| self.emitter.as_index(&x));
        self.emitter.load_scalar(&fetched, &[&place, &vector, &lane])
    }

    /// Starts to fetch the blocks of a chunk.
    fn start(&mut self, row: &Row, chunk: &Chunk) {
        let zero = self.integer(0);
        self.repeat(&zero, &chunk.num_blocks, |decoder, offset| {
            let entry = decoder.binary(Binary::Add, &chunk.first_block, offset);
            let block = decoder.block(row, &entry);
            for index in 0..2 {
                let [source, target, semaphore] = decoder.block_copy(index, &block, (&chunk.slot, offset));
                decoder.emitter.start_copy(&source, &target, &semaphore);
            }
        });
    }

    /// Waits for the keys of a chunk (index 0) or its values (index 1).
    pub(super) fn wait(&mut self, chunk: &Chunk, index: usize) {
        let all = self.integer(self.kernel.chunk_blocks);
        let is_whole = self.emitter.compare(Comparison::Equal, &chunk.num_blocks, &all);
        let zero = self.integer(0);
        // One wait for all bytes of a whole chunk. Source and target of a wait only say how many bytes to wait for.
        let then = |decoder: &mut Self| {
            let [cache, slots] = decoder.cache_and_slots(index);
            let dims = [&[decoder.kernel.chunk_blocks], &cache.dims()[1..]].concat();
            let source = decoder.emitter.part(&cache, &[&zero, &zero, &zero], &dims, 0);
            let dims = [&[1], dims.as_slice()].concat();
            let target = decoder.emitter.part(&slots, &[&chunk.slot, &zero, &zero, &zero], &dims, 1);
            let semaphore = decoder.fetched(index, &chunk.slot);
            decoder.emitter.wait_for_copy(&source, &target, &semaphore);
        };
        let otherwise = |decoder: &mut Self| {
            decoder.repeat(&zero, &chunk.num_blocks, |decoder, offset| {
                let [source, target, semaphore] = decoder.block_copy(index, &zero, (&chunk.slot, offset));
                decoder.emitter.wait_for_copy(&source, &target, &semaphore);
            });
        };
        self.branch(&is_whole, then, otherwise);
    }

    /// Returns source, target and semaphore of the copy of a block's keys (index 0) or values (index 1).
    fn block_copy(&mut self, index: usize, block: &Value, (slot, offset): (&Value, &Value)) -> [Value; 3] {
        let [cache, slots] = self.cache_and_slots(index);
        let width = cache.dims()[2];
        let zero = self.integer(0);
        let source = self.emitter.part(&cache, &[block, &zero, &zero], &[1, BLOCK_SIZE, width], 1);
        let target = self.emitter.part(&slots, &[slot, offset, &zero, &zero], &[1, 1, BLOCK_SIZE, width], 2);
        [source, target, self.fetched(index, slot)]
    }

    fn cache_and_slots(&self, index: usize) -> [Value; 2] {
        [&self.arrays.caches, &self.arrays.scratch.slots].map(|arrays| arrays[index].clone())
    }

    /// Returns the semaphore of the keys (index 0) or the values (index 1) of a slot.
    fn fetched(&mut self, index: usize, slot: &Value) -> Value {
        let semaphores = self.arrays.scratch.fetched[index].clone();
        self.semaphore(&semaphores, slot)
    }

    fn semaphore(&mut self, semaphores: &Value, index: &Value) -> Value {
        self.emitter.part(semaphores, &[index], &[1], 1)
    }

    /// Returns the row `index`.
    pub(super) fn row(&mut self, index: &Value) -> Row {
        let lens = self.arrays.lens.clone();
        let place = self.emitter.as_index(index);
        let len = self.emitter.load_scalar(&lens, &[&place]);
        let block_size = self.integer(BLOCK_SIZE);
        let first_block = match self.first_key(&len) {
            Some(first) => {
                let zero = self.integer(0);
                let first = self.binary(Binary::Max, &first, &zero);
                self.binary(Binary::Divide, &first, &block_size)
            }
            None => self.integer(0),
        };
        let end_block = self.quotient_rounded_up(&len, BLOCK_SIZE);
        Row { index: index.clone(), len, first_block, end_block }
    }

    /// Returns the position of the first key that the query of a context of `len` tokens sees, or a negative number in
    /// place of 0; `None` without a window.
    pub(super) fn first_key(&mut self, len: &Value) -> Option<Value> {
        match self.kernel.window? {
            Window::Sliding(num_keys) => {
                let num_keys = self.integer(num_keys);
                Some(self.binary(Binary::Subtract, len, &num_keys))
            }
            Window::Chunked(num_keys) => {
                let [one, num_keys] = [1, num_keys].map(|number| self.integer(number));
                let position = self.binary(Binary::Subtract, len, &one);
                let offset = self.binary(Binary::Remainder, &position, &num_keys);
                Some(self.binary(Binary::Subtract, &position, &offset))
            }
        }
    }

    /// Returns the number of chunks of a row, at least 1.
    pub(super) fn num_chunks(&mut self, row: &Row) -> Value {
        let num_blocks = self.binary(Binary::Subtract, &row.end_block, &row.first_block);
        let num_chunks = self.quotient_rounded_up(&num_blocks, self.kernel.chunk_blocks);
        let one = self.integer(1);
        self.binary(Binary::Max, &num_chunks, &one)
    }

    /// Returns the chunk number `chunk` of a row, in the slot `slot`.
    pub(super) fn chunk(&mut self, row: &Row, chunk: &Value, slot: Value) -> Chunk {
        let first_block = self.times(chunk, self.kernel.chunk_blocks);
        let first_block = self.binary(Binary::Add, &row.first_block, &first_block);
        let left = self.binary(Binary::Subtract, &row.end_block, &first_block);
        let most = self.integer(self.kernel.chunk_blocks);
        let num_blocks = self.binary(Binary::Min, &left, &most);
        Chunk { first_block, num_blocks, slot }
    }

    /// Returns the slot after `slot` in the ring.
    pub(super) fn next_slot(&mut self, slot: &Value) -> Value {
        let [one, num_slots] = [1, self.kernel.num_slots].map(|number| self.integer(number));
        let next = self.binary(Binary::Add, slot, &one);
        self.binary(Binary::Remainder, &next, &num_slots)
    }

    /// Returns the next chunk of `row` to compute with, and moves the cursor to the slot after it.
    pub(super) fn take(&mut self, row: &Row, chunk: &Value) -> Chunk {
        let slot = self.cursor(COMPUTED_SLOT);
        let next = self.next_slot(&slot);
        self.set_cursor(COMPUTED_SLOT, &next);
        self.chunk(row, chunk, slot)
    }

    /// Returns a number of the cursor.
    fn cursor(&mut self, number: usize) -> Value {
        let cursor = self.arrays.scratch.cursor.clone();
        let index = self.emitter.index(number);
        self.emitter.load_scalar(&cursor, &[&index])
    }

    /// Sets a number of the cursor.
    pub(super) fn set_cursor(&mut self, number: usize, value: &Value) {
        let cursor = self.arrays.scratch.cursor.clone();
        let index = self.emitter.index(number);
        self.emitter.store_scalar(value, &cursor, &[&index]);
    }

    fn quotient_rounded_up(&mut self, x: &Value, divisor: usize) -> Value {
        let [divisor, less] = [divisor, divisor - 1].map(|number| self.integer(number));
        let sum = self.binary(Binary::Add, x, &less);
        self.binary(Binary::Divide, &sum, &divisor)
    }
}
