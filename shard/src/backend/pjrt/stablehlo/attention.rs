//! Attention over the paged KV cache, in plain StableHLO.
//!
//! Doors: [`cache_type`], [`write`], [`attend`]. Keys and values of a layer are each `[num_blocks, block_size, kv_heads * head_dim]`. A loop
//! reads the contexts in chunks, as often as the longest one needs, with a running softmax (Milakov and Gimelshein, 2018): a
//! gathered chunk is small enough to stay in fast memory, so that the cache is read once, and no program is bound to a length
//! of context. Prompts are cut into tiles of queries, each of which reads up to its own last position. `docs/tpu-attention.md`
//! has the forms that were compared.

use super::emitter::{DotDims, Emitter, Reduction};
use super::history::context_lens;
use super::lower::{RowInputs, Sizes};
use super::tensor::{Tensor, Type};
use crate::backend::BLOCK_SIZE;
use crate::graph::DType;

/// Blocks of each row in a chunk, at most: while rows decode, and while they read prompts.
const DECODE_CHUNK_BLOCKS: usize = 16;
pub(in crate::backend::pjrt) const MAX_CHUNK_BLOCKS: usize = 32;
/// Queries of a prompt that read the context together.
pub(in crate::backend::pjrt) const QUERY_TILE: usize = 256;
/// Scores of a chunk: what stays in fast memory beside the chunk.
const MAX_SCORE_BYTES: usize = 16 << 20;

/// How queries meet the keys of several KV heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::backend::pjrt) enum HeadForm {
    /// One product per KV head: the fewest operations.
    Split,
    /// One product for all KV heads with queries that are zero outside of their own head's lanes: more operations, but keys and
    /// values are read as they lie in the cache.
    Wide,
}

/// Sizes of the loops.
#[derive(Debug, Clone, Copy)]
struct Plan {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Queries of one row that are together.
    tile: usize,
    num_tiles: usize,
    /// Tiles that read their contexts side by side.
    group: usize,
    chunk_blocks: usize,
    form: HeadForm,
}

/// Tiles with what they need to know of their rows.
#[derive(Debug, Clone)]
struct Tiles {
    /// `[tiles, tile, heads, head_dim]`, scaled, type of the cache.
    q: Tensor,
    /// `[tiles, tile]` i32
    positions: Tensor,
    /// `[tiles, blocks_per_row]` i32
    block_tables: Tensor,
    /// Keys that a tile reads, `[tiles]` i32.
    ends: Tensor,
}

/// What each round of the loop over chunks reads.
struct Queries {
    /// `[group, kv_heads, queries, head_dim]`, or wide: `[group, queries, kv_heads * head_dim]`.
    q: Tensor,
    /// Position of each query, as q without its last dimension.
    positions: Tensor,
    /// `[group]` i32
    ends: Tensor,
}

/// Type of the keys, or the values, of one layer.
pub(in crate::backend::pjrt) fn cache_type(num_blocks: usize, width: usize, dtype: DType) -> Type {
    Type::new([num_blocks, BLOCK_SIZE, width], dtype)
}

/// The caches with the step's k and v `[tokens, kv_heads, head_dim]` in them.
pub(super) fn write(
    emitter: &mut Emitter,
    caches: &[Tensor; 2],
    [k, v]: [&Tensor; 2],
    rows: &RowInputs,
    sizes: &Sizes,
) -> [Tensor; 2] {
    let place = places(emitter, &caches[0], rows, sizes); // [tokens, 2]
    let mut write = |cache: &Tensor, x: &Tensor| {
        let x = emitter.reshape(x, &[x.dims()[0], cache.dims()[2]]); // [tokens, width]
        let x = emitter.convert(&x, cache.dtype()); // [tokens, width]
        emitter.scatter_rows(cache, &place, &x, false)
    };
    [write(&caches[0], k), write(&caches[1], v)]
}

/// Block and offset of each token, `[tokens, 2]` i32; a block behind the end for padding.
fn places(emitter: &mut Emitter, cache: &Tensor, rows: &RowInputs, sizes: &Sizes) -> Tensor {
    let num_tokens = rows.positions.dims()[0];
    let size = emitter.splat(BLOCK_SIZE as f64, rows.positions.ty.clone()); // [tokens]
    let index = emitter.elementwise("divide", &[&rows.positions, &size]); // [tokens]
    let offset = emitter.elementwise("remainder", &[&rows.positions, &size]); // [tokens]
    let row = emitter.iota(0, Type::new([sizes.rows, sizes.tokens_per_row], DType::I32)); // [rows, tokens_per_row]
    let row = emitter.reshape(&row, &[num_tokens]); // [tokens]
    let stride = emitter.splat(sizes.blocks_per_row as f64, row.ty.clone()); // [tokens]
    let entry = emitter.elementwise("multiply", &[&row, &stride]); // [tokens]
    let entry = emitter.elementwise("add", &[&entry, &index]); // [tokens]
    let tables = emitter.reshape(&rows.block_tables, &[sizes.rows * sizes.blocks_per_row]); // [rows * blocks_per_row]
    let block = emitter.gather_rows(&tables, &entry); // [tokens]
    let block = super::history::or_nowhere(emitter, &rows.is_token, &block, cache); // [tokens]
    let block = emitter.reshape(&block, &[num_tokens, 1]); // [tokens, 1]
    let offset = emitter.reshape(&offset, &[num_tokens, 1]); // [tokens, 1]
    emitter.concatenate(&[&block, &offset], 1) // [tokens, 2]
}

/// q `[tokens, heads, head_dim]` attends to the contexts of its rows → `[tokens, heads, head_dim]`, f32.
pub(super) fn attend(
    emitter: &mut Emitter,
    q: &Tensor,
    caches: &[Tensor; 2],
    (rows, sizes): (&RowInputs, &Sizes),
    scale: f32,
) -> Tensor {
    let plan = Plan::new(q, &caches[0], sizes);
    let factor = emitter.splat(f64::from(scale), q.ty.clone()); // [tokens, heads, head_dim]
    let scaled = emitter.elementwise("multiply", &[q, &factor]); // [tokens, heads, head_dim]
    let scaled = emitter.convert(&scaled, caches[0].dtype()); // [tokens, heads, head_dim]
    let tiles = tiles(emitter, &scaled, rows, sizes, &plan);
    if plan.group == plan.num_tiles {
        let output = attend_group(emitter, &tiles, caches, &plan); // [tiles, tile, heads, head_dim]
        return emitter.reshape(&output, q.dims()); // [tokens, heads, head_dim]
    }
    let zero = emitter.scalar(0.0, DType::I32); // []
    let end = emitter.scalar(plan.num_tiles as f64, DType::I32); // []
    let step = emitter.scalar(plan.group as f64, DType::I32); // []
    let output = emitter.splat(0.0, Type::new(tiles.q.dims(), DType::F32)); // [tiles, tile, heads, head_dim]
    let mut done = emitter.repeat(
        &[zero.clone(), output],
        |emitter, values| emitter.compare("LT", &values[0], &end),
        |emitter, values| {
            let [first, output] = [&values[0], &values[1]];
            let group = tiles.from(emitter, first, plan.group);
            let attended = attend_group(emitter, &group, caches, &plan); // [group, tile, heads, head_dim]
            let output = emitter.dynamic_update_slice(output, &attended, &[first, &zero, &zero, &zero]);
            let next = emitter.elementwise("add", &[first, &step]); // []
            vec![next, output]
        },
    );
    let output = done.remove(1); // [tiles, tile, heads, head_dim]
    emitter.reshape(&output, q.dims()) // [tokens, heads, head_dim]
}

/// Keys that each round of the loop of a decoding program reads of a row, for keys `[.., width]` of `dtype`.
pub(in crate::backend::pjrt) fn decode_chunk_tokens(sizes: &Sizes, width: usize, dtype: DType) -> usize {
    let row_bytes = BLOCK_SIZE * width * dtype.size_bytes() as usize;
    let most = DECODE_CHUNK_BLOCKS.min(sizes.blocks_per_row);
    BLOCK_SIZE * chunk_blocks(most, |blocks| sizes.rows * blocks * row_bytes > sizes.chunk_bytes)
}

/// `most` blocks, halved while they are too large.
fn chunk_blocks(most: usize, is_too_large: impl Fn(usize) -> bool) -> usize {
    let mut blocks = most;
    while blocks > 1 && is_too_large(blocks) {
        blocks /= 2;
    }
    blocks
}

impl Plan {
    fn new(q: &Tensor, cache: &Tensor, sizes: &Sizes) -> Self {
        let [heads, head_dim] = [q.dims()[1], q.dims()[2]];
        let width = cache.dims()[2];
        let kv_heads = width / head_dim;
        let tile = sizes.tokens_per_row.min(QUERY_TILE);
        let num_tiles = sizes.rows * sizes.tokens_per_row / tile;
        let is_decode = sizes.tokens_per_row == 1;
        let form = if is_decode && kv_heads > 1 { sizes.decode_heads } else { HeadForm::Split };
        let group = if is_decode { num_tiles } else { (QUERY_TILE / tile).min(num_tiles) };
        let most = if is_decode { DECODE_CHUNK_BLOCKS } else { MAX_CHUNK_BLOCKS };
        let block_bytes = BLOCK_SIZE * width * cache.dtype().size_bytes() as usize;
        let score_bytes = tile * heads * BLOCK_SIZE * DType::F32.size_bytes() as usize;
        let is_too_large = |blocks: usize| {
            group * blocks * block_bytes > sizes.chunk_bytes || group * blocks * score_bytes > MAX_SCORE_BYTES
        };
        let chunk_blocks = chunk_blocks(most.min(sizes.blocks_per_row), is_too_large);
        Self { heads, kv_heads, head_dim, tile, num_tiles, group, chunk_blocks, form }
    }
}

impl Tiles {
    /// `len` tiles from `first` on.
    fn from(&self, emitter: &mut Emitter, first: &Tensor, len: usize) -> Self {
        let zero = emitter.scalar(0.0, DType::I32);
        let mut slice = |x: &Tensor| {
            let mut sizes = x.dims().to_vec();
            sizes[0] = len;
            let starts: Vec<&Tensor> =
                std::iter::once(first).chain(std::iter::repeat(&zero)).take(sizes.len()).collect();
            emitter.dynamic_slice(x, &starts, &sizes)
        };
        Self {
            q: slice(&self.q),
            positions: slice(&self.positions),
            block_tables: slice(&self.block_tables),
            ends: slice(&self.ends),
        }
    }
}

/// Cuts the rows' queries into tiles.
fn tiles(emitter: &mut Emitter, q: &Tensor, rows: &RowInputs, sizes: &Sizes, plan: &Plan) -> Tiles {
    let Plan { heads, head_dim, tile, num_tiles, .. } = *plan;
    let per_row = num_tiles / sizes.rows;
    let q = emitter.reshape(q, &[num_tiles, tile, heads, head_dim]); // [tiles, tile, heads, head_dim]
    let positions = emitter.reshape(&rows.positions, &[num_tiles, tile]); // [tiles, tile]
    let tables = [sizes.rows, per_row, sizes.blocks_per_row];
    let block_tables = emitter.broadcast(&rows.block_tables, &[0, 2], &tables); // [rows, tiles / rows, blocks_per_row]
    let block_tables = emitter.reshape(&block_tables, &[num_tiles, sizes.blocks_per_row]); // [tiles, blocks_per_row]
    let lens = context_lens(emitter, rows); // [rows]
    let lens = emitter.broadcast(&lens, &[0], &[sizes.rows, per_row]); // [rows, tiles / rows]
    let lens = emitter.reshape(&lens, &[num_tiles]); // [tiles]
    let [first, last] = [0, tile - 1].map(|query| {
        let position = emitter.slice(&positions, 1, query..query + 1); // [tiles, 1]
        emitter.reshape(&position, &[num_tiles]) // [tiles]
    });
    let one = emitter.splat(1.0, lens.ty.clone()); // [tiles]
    let end = emitter.elementwise("add", &[&last, &one]); // [tiles]
    let end = emitter.elementwise("minimum", &[&end, &lens]); // [tiles]
    // Padding reads one key: of anything, but no time.
    let has_tokens = emitter.compare("LT", &first, &lens); // [tiles]
    let ends = emitter.select(&has_tokens, &end, &one); // [tiles]
    Tiles { q, positions, block_tables, ends }
}

/// Tiles that read their contexts side by side → `[group, tile, heads, head_dim]`, f32.
fn attend_group(emitter: &mut Emitter, tiles: &Tiles, caches: &[Tensor; 2], plan: &Plan) -> Tensor {
    let queries = queries(emitter, tiles, plan);
    let mut state_dims = queries.q.dims().to_vec();
    let width = state_dims.pop().expect("queries have a width"); // [group, (kv_heads,) queries]
    let longest = emitter.reduce(Reduction::Max, &tiles.ends, &[0]); // []
    let step = emitter.scalar((plan.chunk_blocks * BLOCK_SIZE) as f64, DType::I32); // []
    let state_type = Type::new(state_dims.clone(), DType::F32);
    let output_type = Type::new([state_dims, vec![width]].concat(), DType::F32);
    let start = [
        emitter.scalar(0.0, DType::I32),
        emitter.splat(f64::NEG_INFINITY, state_type.clone()),
        emitter.splat(0.0, state_type),
        emitter.splat(0.0, output_type),
    ];
    let done = emitter.repeat(
        &start,
        |emitter, values| emitter.compare("LT", &values[0], &longest),
        |emitter, values| {
            let (position, state) = (&values[0], &values[1..]);
            let chunks = [0, 1].map(|index| chunk(emitter, &caches[index], &tiles.block_tables, position, plan));
            let state = attend_to_chunk(emitter, &queries, &chunks, (position, state), plan);
            let next = emitter.elementwise("add", &[position, &step]); // []
            [vec![next], state].concat()
        },
    );
    let [sum, output] = [&done[2], &done[3]];
    let dims: Vec<usize> = (0..sum.dims().len()).collect();
    let sum = emitter.broadcast(sum, &dims, output.dims());
    let output = emitter.elementwise("divide", &[output, &sum]);
    gather_heads(emitter, &output, caches[0].dtype(), plan) // [group, tile, heads, head_dim]
}

/// Keys or values of the tiles from `position` on, `[group, chunk, width]`.
fn chunk(emitter: &mut Emitter, cache: &Tensor, tables: &Tensor, position: &Tensor, plan: &Plan) -> Tensor {
    let group = tables.dims()[0];
    let zero = emitter.scalar(0.0, DType::I32); // []
    let size = emitter.scalar(BLOCK_SIZE as f64, DType::I32); // []
    let first = emitter.elementwise("divide", &[position, &size]); // []
    let blocks = emitter.dynamic_slice(tables, &[&zero, &first], &[group, plan.chunk_blocks]); // [group, blocks]
    let gathered = emitter.gather_rows(cache, &blocks); // [group, blocks, block_size, width]
    emitter.reshape(&gathered, &[group, plan.chunk_blocks * BLOCK_SIZE, cache.dims()[2]]) // [group, chunk, width]
}

/// Queries in the shape that the form asks for.
fn queries(emitter: &mut Emitter, tiles: &Tiles, plan: &Plan) -> Queries {
    let Plan { heads, kv_heads, head_dim, tile, form, .. } = *plan;
    let group = tiles.q.dims()[0];
    let ends = tiles.ends.clone();
    match form {
        HeadForm::Split => {
            let per_kv_head = heads / kv_heads;
            let q = emitter.reshape(&tiles.q, &[group, tile, kv_heads, per_kv_head, head_dim]);
            let q = emitter.transpose(&q, &[0, 2, 1, 3, 4]); // [group, kv_heads, tile, heads / kv_heads, head_dim]
            let q = emitter.reshape(&q, &[group, kv_heads, tile * per_kv_head, head_dim]);
            let shape = [group, kv_heads, tile, per_kv_head];
            let positions = emitter.broadcast(&tiles.positions, &[0, 2], &shape);
            let positions = emitter.reshape(&positions, &[group, kv_heads, tile * per_kv_head]);
            Queries { q, positions, ends }
        }
        HeadForm::Wide => {
            let q = emitter.reshape(&tiles.q, &[group, tile * heads, head_dim]); // [group, queries, head_dim]
            let copies = lane_copies(emitter, plan, q.dtype()); // [head_dim, width]
            let dtype = q.dtype();
            let q = emitter.dot(&q, &copies, DotDims { batch: [&[], &[]], contract: [&[2], &[0]] });
            let q = own_lanes(emitter, &q, plan); // [group, queries, width]
            let q = emitter.convert(&q, dtype); // [group, queries, width]
            let positions = emitter.broadcast(&tiles.positions, &[0, 1], &[group, tile, heads]);
            let positions = emitter.reshape(&positions, &[group, tile * heads]); // [group, queries]
            Queries { q, positions, ends }
        }
    }
}

/// One round of the running softmax: the largest score, the sum and the output `[group, (kv_heads,) queries (, width)]`.
fn attend_to_chunk(
    emitter: &mut Emitter,
    queries: &Queries,
    [k, v]: &[Tensor; 2],
    (position, state): (&Tensor, &[Tensor]),
    plan: &Plan,
) -> Vec<Tensor> {
    let [largest, sum, output] = [&state[0], &state[1], &state[2]];
    let query_dims: Vec<usize> = (0..largest.dims().len()).collect();
    let last = query_dims.len();
    let v = without_strangers(emitter, v, position, &queries.ends);
    let heads = [k.dims()[0], k.dims()[1], plan.kv_heads, plan.head_dim];
    let (k, v, scores_dims, output_dims) = match plan.form {
        HeadForm::Split => {
            let scores_dims = DotDims { batch: [&[0, 1], &[0, 2]], contract: [&[3], &[3]] };
            let output_dims = DotDims { batch: [&[0, 1], &[0, 2]], contract: [&[3], &[1]] };
            (emitter.reshape(k, &heads), emitter.reshape(&v, &heads), scores_dims, output_dims)
        }
        HeadForm::Wide => {
            let scores_dims = DotDims { batch: [&[0], &[0]], contract: [&[2], &[2]] };
            let output_dims = DotDims { batch: [&[0], &[0]], contract: [&[2], &[1]] };
            (k.clone(), v, scores_dims, output_dims)
        }
    };
    let scores = emitter.dot(&queries.q, &k, scores_dims); // [.., queries, chunk]
    let keys = emitter.iota(last, Type::new(scores.dims(), DType::I32)); // [.., queries, chunk]
    let first = emitter.broadcast(position, &[], scores.dims()); // [.., queries, chunk]
    let keys = emitter.elementwise("add", &[&keys, &first]); // [.., queries, chunk]
    let positions = emitter.broadcast(&queries.positions, &query_dims, scores.dims()); // [.., queries, chunk]
    let is_seen = emitter.compare("LE", &keys, &positions); // [.., queries, chunk]
    let never = emitter.splat(f64::NEG_INFINITY, scores.ty.clone()); // [.., queries, chunk]
    let scores = emitter.select(&is_seen, &scores, &never); // [.., queries, chunk]
    // The first chunk has the first key, which every query sees: from then on the largest score is finite.
    let chunk_largest = emitter.reduce(Reduction::Max, &scores, &[last]); // [.., queries]
    let new_largest = emitter.elementwise("maximum", &[largest, &chunk_largest]); // [.., queries]
    let difference = emitter.elementwise("subtract", &[largest, &new_largest]); // [.., queries]
    let correction = emitter.elementwise("exponential", &[&difference]); // [.., queries]
    let subtracted = emitter.broadcast(&new_largest, &query_dims, scores.dims()); // [.., queries, chunk]
    let shifted = emitter.elementwise("subtract", &[&scores, &subtracted]); // [.., queries, chunk]
    let weights = emitter.elementwise("exponential", &[&shifted]); // [.., queries, chunk]
    let chunk_sum = emitter.reduce(Reduction::Sum, &weights, &[last]); // [.., queries]
    let sum = emitter.elementwise("multiply", &[sum, &correction]); // [.., queries]
    let sum = emitter.elementwise("add", &[&sum, &chunk_sum]); // [.., queries]
    let weights = emitter.convert(&weights, v.dtype()); // [.., queries, chunk]
    let attended = emitter.dot(&weights, &v, output_dims); // [.., queries, width]
    let correction = emitter.broadcast(&correction, &query_dims, output.dims()); // [.., queries, width]
    let output = emitter.elementwise("multiply", &[output, &correction]); // [.., queries, width]
    let output = emitter.elementwise("add", &[&output, &attended]); // [.., queries, width]
    vec![new_largest, sum, output]
}

/// Values `[group, chunk, width]` with zeros behind what each tile reads: what lies there may be another row's infinity, which
/// a weight of zero would not take away.
fn without_strangers(emitter: &mut Emitter, v: &Tensor, position: &Tensor, ends: &Tensor) -> Tensor {
    let ty = Type::new(v.dims(), DType::I32);
    let key = emitter.iota(1, ty); // [group, chunk, width]
    let first = emitter.broadcast(position, &[], v.dims()); // [group, chunk, width]
    let key = emitter.elementwise("add", &[&key, &first]); // [group, chunk, width]
    let ends = emitter.broadcast(ends, &[0], v.dims()); // [group, chunk, width]
    let is_own = emitter.compare("LT", &key, &ends); // [group, chunk, width]
    let none = emitter.splat(0.0, v.ty.clone()); // [group, chunk, width]
    emitter.select(&is_own, v, &none) // [group, chunk, width]
}

/// From the loop's output to `[group, tile, heads, head_dim]`.
fn gather_heads(emitter: &mut Emitter, output: &Tensor, dtype: DType, plan: &Plan) -> Tensor {
    let Plan { heads, kv_heads, head_dim, tile, form, .. } = *plan;
    let group = output.dims()[0];
    match form {
        HeadForm::Split => {
            let output = emitter.reshape(output, &[group, kv_heads, tile, heads / kv_heads, head_dim]);
            let output = emitter.transpose(&output, &[0, 2, 1, 3, 4]); // [group, tile, kv_heads, heads / kv_heads, head_dim]
            emitter.reshape(&output, &[group, tile, heads, head_dim])
        }
        HeadForm::Wide => {
            let output = own_lanes(emitter, output, plan); // [group, queries, width]
            let output = emitter.convert(&output, dtype); // [group, queries, width]
            let copies = lane_copies(emitter, plan, dtype); // [head_dim, width]
            let output = emitter.dot(&output, &copies, DotDims { batch: [&[], &[]], contract: [&[2], &[1]] });
            emitter.reshape(&output, &[group, tile, heads, head_dim])
        }
    }
}

/// The matrix `[head_dim, width]` that copies a head to the lanes of every KV head: products with it are exact.
fn lane_copies(emitter: &mut Emitter, plan: &Plan, dtype: DType) -> Tensor {
    let ty = Type::new([plan.head_dim, plan.kv_heads * plan.head_dim], DType::I32);
    let dim = emitter.iota(0, ty.clone()); // [head_dim, width]
    let lane = emitter.iota(1, ty.clone()); // [head_dim, width]
    let size = emitter.splat(plan.head_dim as f64, ty); // [head_dim, width]
    let lane = emitter.elementwise("remainder", &[&lane, &size]); // [head_dim, width]
    let is_same = emitter.compare("EQ", &dim, &lane); // [head_dim, width]
    emitter.convert(&is_same, dtype) // [head_dim, width]
}

/// x `[group, queries, width]` with zeros outside the lanes of each query's KV head. Queries are `[tile, heads]`.
fn own_lanes(emitter: &mut Emitter, x: &Tensor, plan: &Plan) -> Tensor {
    let ty = Type::new(x.dims(), DType::I32);
    let constant = |emitter: &mut Emitter, value: usize| emitter.splat(value as f64, ty.clone());
    let query = emitter.iota(1, ty.clone()); // [group, queries, width]
    let heads = constant(emitter, plan.heads); // [group, queries, width]
    let head = emitter.elementwise("remainder", &[&query, &heads]); // [group, queries, width]
    let per_kv_head = constant(emitter, plan.heads / plan.kv_heads); // [group, queries, width]
    let kv_head = emitter.elementwise("divide", &[&head, &per_kv_head]); // [group, queries, width]
    let lane = emitter.iota(2, ty.clone()); // [group, queries, width]
    let head_dim = constant(emitter, plan.head_dim); // [group, queries, width]
    let lane_head = emitter.elementwise("divide", &[&lane, &head_dim]); // [group, queries, width]
    let is_own = emitter.compare("EQ", &lane_head, &kv_head); // [group, queries, width]
    let none = emitter.splat(0.0, x.ty.clone()); // [group, queries, width]
    emitter.select(&is_own, x, &none) // [group, queries, width]
}
