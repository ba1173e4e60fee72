//! The decode kernel: attention of one query per row and head to the paged cache.
//!
//! Entry point: [`module`]. The contexts of all rows are one sequence of chunks. A row has as many chunks as its
//! context needs, at least one. A cursor runs ahead of the computation and fetches chunks into a ring of slots, across
//! the ends of rows. A chunk is fetched block by block, because a row's blocks are anywhere in the cache. The softmax
//! is a running one (Milakov and Gimelshein, 2018): each chunk corrects the sums of those before it. Blocks after the
//! end of a context are not fetched; what a slot contains there, be it infinity or NaN, changes no output.

use backend::BLOCK_SIZE;
use devices::HeadForm;

use super::emitter::{Binary, Comparison, Emitter, Grid, Reduction, Window};
use super::kernel::{DecodeKernel, LANES};
use super::shorthand::Place;
use super::value::{Element, Space, Type, Value};

/// The name of the kernel.
pub(super) const NAME: &str = "decode_attention";
/// The score of a key that a query does not see. It is finite, so that the difference of two such scores is not NaN.
const UNSEEN: f32 = -0.7 * f32::MAX;
/// The numbers of the cursor, by index: the row and the chunk to fetch next, the slot to fetch it into, and the slot to
/// compute with next.
pub(super) const FETCHED_ROW: usize = 0;
pub(super) const FETCHED_CHUNK: usize = 1;
pub(super) const FETCHED_SLOT: usize = 2;
pub(super) const COMPUTED_SLOT: usize = 3;
const CURSOR_LEN: usize = 4;

/// The arguments of the kernel.
pub(super) struct Arrays {
    /// `[rows]` i32
    pub(super) lens: Value,
    pub(super) tables: Value,
    /// `[rows_per_step, groups, queries, head_dim]`
    pub(super) queries: Value,
    /// Keys and values, each `[num_blocks, BLOCK_SIZE, width]`.
    pub(super) caches: [Value; 2],
    /// `[groups, queries, LANES]` f32
    pub(super) sinks: Option<Value>,
    /// `[rows_per_step, groups, queries, value_dim]` f32
    pub(super) output: Value,
    pub(super) scratch: Scratch,
}

/// The memory that the kernel keeps between the steps of its grid.
pub(super) struct Scratch {
    /// The chunks of keys and of values, each `[num_slots, chunk_blocks, BLOCK_SIZE, width]`.
    pub(super) slots: [Value; 2],
    /// The semaphores of the slots of keys and of values, each `[num_slots]`.
    pub(super) fetched: [Value; 2],
    /// The largest score of each query, `[groups, queries, LANES]` f32.
    pub(super) largest: Value,
    /// The sum of the weights of each query, `[groups, queries, LANES]` f32.
    pub(super) sum: Value,
    /// The sum of the weighted values of each query, `[groups, queries, width]` f32.
    pub(super) weighted: Value,
    /// `[CURSOR_LEN]` i32
    pub(super) cursor: Value,
    /// The block tables of two rows, `[2, n, LANES]` i32, and their semaphores; `None` if all tables are in scalar
    /// memory.
    pub(super) tables: Option<[Value; 2]>,
}

/// One row while its chunks are read, as integers.
pub(super) struct Row {
    pub(super) index: Value,
    pub(super) len: Value,
    /// The index in the block table of the first block that the query sees.
    pub(super) first_block: Value,
    /// The index in the block table after the last block.
    pub(super) end_block: Value,
}

/// One chunk of a row, as integers.
pub(super) struct Chunk {
    /// The index in the block table of the first block.
    pub(super) first_block: Value,
    pub(super) num_blocks: Value,
    pub(super) slot: Value,
}

/// The kernel under construction.
pub(super) struct Decoder<'a> {
    pub(super) kernel: &'a DecodeKernel,
    pub(super) emitter: Emitter,
    pub(super) arrays: Arrays,
}

/// Returns the text of `kernel`.
pub(crate) fn module(kernel: &DecodeKernel) -> String {
    let scratch = scratch_types(kernel);
    let rows = kernel.rows_per_step();
    let mut own = [kernel.operands(), vec![kernel.result()]].concat();
    let num_scalars = own.iter().take_while(|ty| ty.space() == Some(Space::Smem)).count();
    let windows = own[num_scalars..].iter_mut().map(|ty| {
        // The sinks are the only operand in vector memory that is not cut into rows.
        let moves = ty.dims().len() == 4;
        if moves {
            *ty = ty.with_dims([&[rows], &ty.dims()[1..]].concat());
        }
        (ty.space() == Some(Space::Vmem)).then(|| Window { bounds: ty.dims().to_vec(), moves })
    });
    let windows = windows.collect();
    let grid = Grid { steps: kernel.rows / rows, num_scalars, windows, num_scratch: scratch.len() };
    let types = [own, scratch].concat();
    let mut emitter = Emitter::default();
    let arguments = emitter.begin_kernel(&types);
    let mut decoder = Decoder { kernel, emitter, arrays: Arrays::new(kernel, &arguments[1..]) };
    decoder.write(&arguments[0]);
    let mut emitter = decoder.emitter;
    emitter.end_kernel(NAME, &arguments, &grid);
    emitter.finish()
}

/// Returns the types of the scratch memory, in the order of [`Arrays::new`].
fn scratch_types(kernel: &DecodeKernel) -> Vec<Type> {
    let DecodeKernel { kv_heads, head_dim, value_dim, num_slots, chunk_blocks, element, .. } = *kernel;
    let [groups, queries] = kernel.groups();
    let slot = |dim: usize| Type::array([num_slots, chunk_blocks, BLOCK_SIZE, kv_heads * dim], element, Space::Vmem);
    let semaphores = |len: usize| Type::array([len], Element::Semaphore, Space::Semaphores);
    let state = |lanes: usize| Type::array([groups, queries, lanes], Element::F32, Space::Vmem);
    let mut types = vec![slot(head_dim), slot(value_dim), semaphores(num_slots), semaphores(num_slots)];
    types.extend([state(LANES), state(LANES), state(kernel.group_lanes()[1])]);
    types.push(Type::array([CURSOR_LEN], Element::I32, Space::Smem));
    if let [_, vectors, lanes] = *kernel.table_dims() {
        types.extend([Type::array([2, vectors, lanes], Element::I32, Space::Smem), semaphores(2)]);
    }
    types
}

impl Arrays {
    /// Takes the arguments after the index of the call: the operands, the result, and the scratch memory.
    fn new(kernel: &DecodeKernel, arguments: &[Value]) -> Self {
        let mut arguments = arguments.iter().cloned();
        let mut next = || arguments.next().expect("the kernel has these arguments");
        Self {
            lens: next(),
            tables: next(),
            queries: next(),
            caches: [next(), next()],
            sinks: kernel.has_sinks.then(&mut next),
            output: next(),
            scratch: Scratch {
                slots: [next(), next()],
                fetched: [next(), next()],
                largest: next(),
                sum: next(),
                weighted: next(),
                cursor: next(),
                tables: (!kernel.has_scalar_tables()).then(|| [next(), next()]),
            },
        }
    }
}

impl Decoder<'_> {
    /// Writes the body of the kernel for the step `step` of the grid.
    fn write(&mut self, step: &Value) {
        let zero = self.integer(0);
        let is_first = self.emitter.compare(Comparison::Equal, step, &zero);
        self.when(&is_first, Self::begin);
        let rows = self.kernel.rows_per_step();
        let first_row = self.times(step, rows);
        let end = self.integer(rows);
        self.repeat(&zero, &end, |decoder, offset| {
            let index = decoder.binary(Binary::Add, &first_row, offset);
            decoder.attend_to_row(&index, offset);
        });
    }

    /// Sets the cursor to the first chunk of the first row, and starts to fetch chunks into all slots but one.
    fn begin(&mut self) {
        let zero = self.integer(0);
        for number in 0..CURSOR_LEN {
            self.set_cursor(number, &zero);
        }
        self.start_table(&zero);
        let num_fetched = self.integer(self.kernel.num_slots - 1);
        self.repeat(&zero, &num_fetched, |decoder, _| decoder.fetch_next());
    }

    /// Computes the output of the row `index`, the one at `offset` of this step of the grid.
    fn attend_to_row(&mut self, index: &Value, offset: &Value) {
        let row = self.row(index);
        let groups = self.kernel.groups()[0];
        let [key_lanes, value_lanes] = self.kernel.group_lanes();
        let queries: Vec<Value> = (0..groups).map(|group| self.queries(offset, group)).collect();
        (0..groups).for_each(|group| self.start_softmax(group));
        let zero = self.integer(0);
        let num_chunks = self.num_chunks(&row);
        self.repeat(&zero, &num_chunks, |decoder, chunk| {
            decoder.fetch_next();
            let chunk = decoder.take(&row, chunk);
            decoder.wait(&chunk, 0);
            let scores: Vec<Value> = (0..groups)
                .map(|group| {
                    let keys = decoder.lanes_of_chunk(0, &chunk, [group * key_lanes, key_lanes]);
                    decoder.scores(&queries[group], &keys, &row, &chunk)
                })
                .collect();
            decoder.wait(&chunk, 1);
            decoder.zero_after_end(&row, &chunk);
            for (group, scores) in scores.iter().enumerate() {
                let values = decoder.lanes_of_chunk(1, &chunk, [group * value_lanes, value_lanes]);
                decoder.add_chunk(group, scores, &values);
            }
        });
        for group in 0..groups {
            self.store_output(offset, group);
        }
    }

    /// Sets the state of a group to that before the first chunk. A sink counts as the first score.
    fn start_softmax(&mut self, group: usize) {
        let Scratch { largest, sum, weighted, .. } = &self.arrays.scratch;
        let [largest, sum, weighted] = [largest, sum, weighted].map(Value::clone);
        let sinks = self.arrays.sinks.clone();
        let splat = |decoder: &mut Self, value: f32, array: &Value| decoder.emitter.splat(value, &array.dims()[1..]);
        let [first, first_sum] = match sinks {
            Some(sinks) => [self.load_state(&sinks, group), splat(self, 1.0, &sum)],
            None => [splat(self, UNSEEN, &largest), splat(self, 0.0, &sum)],
        };
        let none = splat(self, 0.0, &weighted);
        for (start, array) in [(first, largest), (first_sum, sum), (none, weighted)] {
            self.store_state(&start, &array, group);
        }
    }

    /// Returns the queries of a group, `[queries, lanes]`. Wide queries are zero outside of the lanes of their KV head.
    fn queries(&mut self, offset: &Value, group: usize) -> Value {
        let DecodeKernel { head_dim, kv_heads, element, form, .. } = *self.kernel;
        let num_queries = self.kernel.groups()[1];
        let array = self.arrays.queries.clone();
        let queries = self.load(&array, &[Place::At(offset), Place::Fixed(group)], &[num_queries, head_dim]);
        if form == HeadForm::Split || kv_heads == 1 {
            return queries;
        }
        let queries = self.emitter.convert(&queries, Element::F32);
        let queries = self.emitter.copies(&queries, kv_heads); // [queries, lanes]
        let queries = self.keep_own_head(&queries, head_dim);
        self.emitter.convert(&queries, element)
    }

    /// Returns x `[heads, kv_heads * dim]` f32 with zeros outside of the lanes of each head's KV head.
    fn keep_own_head(&mut self, x: &Value, dim: usize) -> Value {
        let per_kv_head = self.kernel.heads / self.kernel.kv_heads;
        let [head, lane] = [0, 1].map(|dim| self.emitter.iota(x.dims(), dim));
        let [kv_head, lane_head] = [(head, per_kv_head), (lane, dim)].map(|(index, len)| {
            let len = self.splat(len, x.dims());
            self.binary(Binary::Divide, &index, &len)
        });
        let is_own = self.emitter.compare(Comparison::Equal, &kv_head, &lane_head);
        let none = self.emitter.splat(0.0, x.dims());
        self.emitter.select(&is_own, x, &none)
    }

    /// Returns the scores of the keys of a chunk, `[queries, keys]` f32.
    fn scores(&mut self, queries: &Value, keys: &Value, row: &Row, chunk: &Chunk) -> Value {
        let scores = self.emitter.matmul(queries, keys, true); // [queries, keys]
        let dims = scores.dims().to_vec();
        let scores = self.capped(scores);
        let first = self.times(&chunk.first_block, BLOCK_SIZE);
        let first = self.emitter.broadcast(&first, &dims);
        let position = self.emitter.iota(&dims, 1);
        let position = self.binary(Binary::Add, &position, &first);
        let len = self.emitter.broadcast(&row.len, &dims);
        let mut is_seen = self.emitter.compare(Comparison::Less, &position, &len);
        if let Some(start) = self.first_key(&row.len) {
            let start = self.emitter.broadcast(&start, &dims);
            let is_in_window = self.emitter.compare(Comparison::GreaterOrEqual, &position, &start);
            is_seen = self.binary(Binary::And, &is_seen, &is_in_window);
        }
        let unseen = self.emitter.splat(UNSEEN, &dims);
        self.emitter.select(&is_seen, &scores, &unseen) // [queries, keys]
    }

    /// Returns tanh(scores / cap) · cap, or the scores themselves without a soft cap.
    fn capped(&mut self, scores: Value) -> Value {
        let Some(cap) = self.kernel.soft_cap else { return scores };
        let [inverse, cap] = [1.0 / cap, cap].map(|factor| self.emitter.splat(factor, scores.dims()));
        let scores = self.binary(Binary::Multiply, &scores, &inverse);
        let scores = self.emitter.tanh(&scores);
        self.binary(Binary::Multiply, &scores, &cap)
    }

    /// Adds the values of a chunk `[keys, lanes]`, weighted by their scores `[queries, keys]`, to the state of a group.
    fn add_chunk(&mut self, group: usize, scores: &Value, values: &Value) {
        let scratch = &self.arrays.scratch;
        let [largest_array, sum_array, weighted_array] =
            [&scratch.largest, &scratch.sum, &scratch.weighted].map(Value::clone);
        let num_queries = scores.dims()[0];
        let largest = self.load_state(&largest_array, group); // [queries, LANES]
        let chunk_largest = self.emitter.reduce_lanes(Reduction::Max, scores); // [queries, 1]
        let chunk_largest = self.emitter.broadcast(&chunk_largest, &[num_queries, LANES]);
        let new_largest = self.binary(Binary::Max, &largest, &chunk_largest); // [queries, LANES]
        self.store_state(&new_largest, &largest_array, group);
        let difference = self.binary(Binary::Subtract, &largest, &new_largest);
        let correction = self.emitter.exp(&difference); // [queries, LANES]
        let shift = self.emitter.columns(&new_largest, 0, 1); // [queries, 1]
        let shift = self.emitter.broadcast(&shift, scores.dims());
        let shifted = self.binary(Binary::Subtract, scores, &shift);
        let weights = self.emitter.exp(&shifted); // [queries, keys]
        let chunk_sum = self.emitter.reduce_lanes(Reduction::Sum, &weights); // [queries, 1]
        let chunk_sum = self.emitter.broadcast(&chunk_sum, &[num_queries, LANES]);
        let sum = self.load_state(&sum_array, group);
        let sum = self.binary(Binary::Multiply, &sum, &correction);
        let sum = self.binary(Binary::Add, &sum, &chunk_sum);
        self.store_state(&sum, &sum_array, group);
        let weights = self.emitter.convert(&weights, self.kernel.element);
        let chunk_weighted = self.emitter.matmul(&weights, values, false); // [queries, lanes]
        let correction = self.emitter.columns(&correction, 0, 1);
        let correction = self.emitter.broadcast(&correction, chunk_weighted.dims());
        let weighted = self.load_state(&weighted_array, group);
        let weighted = self.binary(Binary::Multiply, &weighted, &correction);
        let weighted = self.binary(Binary::Add, &weighted, &chunk_weighted);
        self.store_state(&weighted, &weighted_array, group);
    }

    /// Divides the weighted values of a group by the sum of the weights, and stores the output of the row at `offset`.
    fn store_output(&mut self, offset: &Value, group: usize) {
        let DecodeKernel { kv_heads, value_dim, form, .. } = *self.kernel;
        let [weighted, sum] = [&self.arrays.scratch.weighted, &self.arrays.scratch.sum].map(Value::clone);
        let [weighted, sum] = [weighted, sum].map(|array| self.load_state(&array, group));
        let sum = self.emitter.columns(&sum, 0, 1); // [queries, 1]
        let sum = self.emitter.broadcast(&sum, weighted.dims());
        let mut output = self.binary(Binary::Divide, &weighted, &sum); // [queries, lanes]
        if form == HeadForm::Wide && kv_heads > 1 {
            let own = self.keep_own_head(&output, value_dim);
            output = self.emitter.columns(&own, 0, value_dim);
            for head in 1..kv_heads {
                let part = self.emitter.columns(&own, head * value_dim, value_dim);
                output = self.binary(Binary::Add, &output, &part);
            }
        }
        let array = self.arrays.output.clone();
        self.store(&output, &array, &[Place::At(offset), Place::Fixed(group)]);
    }

    /// Replaces the values of a chunk after the end of the row's context by zeros: infinity times a weight of zero is
    /// NaN.
    fn zero_after_end(&mut self, row: &Row, chunk: &Chunk) {
        let block_size = self.integer(BLOCK_SIZE);
        let last = self.binary(Binary::Divide, &row.len, &block_size);
        // The first block that contains a position after the end, relative to the chunk.
        let first = self.binary(Binary::Subtract, &last, &chunk.first_block);
        let zero = self.integer(0);
        let first = self.binary(Binary::Max, &first, &zero);
        let end = self.integer(self.kernel.chunk_blocks);
        self.repeat(&first, &end, |decoder, block| {
            let array = decoder.arrays.scratch.slots[1].clone();
            let place = [Place::At(&chunk.slot), Place::At(block)];
            let values = decoder.load(&array, &place, &array.dims()[2..]); // [BLOCK_SIZE, width]
            let values = decoder.emitter.convert(&values, Element::F32);
            let index = decoder.binary(Binary::Add, &chunk.first_block, block);
            let first = decoder.times(&index, BLOCK_SIZE);
            let num_own = decoder.binary(Binary::Subtract, &row.len, &first);
            let num_own = decoder.emitter.broadcast(&num_own, values.dims());
            let offset = decoder.emitter.iota(values.dims(), 0);
            let is_own = decoder.emitter.compare(Comparison::Less, &offset, &num_own);
            let none = decoder.emitter.splat(0.0, values.dims());
            let values = decoder.emitter.select(&is_own, &values, &none);
            let values = decoder.emitter.convert(&values, decoder.kernel.element);
            decoder.store(&values, &array, &place);
        });
    }
}
