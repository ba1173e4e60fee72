//! Attention over the paged KV cache, in plain StableHLO or with the kernel of `mosaic`.
//!
//! Entry point: [`attend`]. `kv_cache` has the arrays of keys and values. A loop reads the contexts in chunks, with a
//! running softmax (Milakov and Gimelshein, 2018). `attention_plan` has the sizes of the loop. The contexts determine
//! the number of iterations, unless the program is for a fixed length of context. Chunks are small, so that the
//! compiler can keep a gathered chunk in fast memory. Prompts are cut into tiles of queries. A tile needs the keys up
//! to its last position and, with a window, from the first block that its first query sees. `docs/tpu-attention.md`
//! compares this design with others.

use backend::BLOCK_SIZE;
use devices::HeadForm;
use model::graph::{AttentionSpec, DType, Slopes, Window};

use super::attention_plan::{Heads, Plan};
use super::chunk_list;
use super::emitter::{DotDims, Emitter, Reduction};
use super::history::context_lens;
use super::inputs::{RowInputs, Sizes};
use super::kv_cache::Cache;
use super::mosaic::{self, DecodeKernel};
use super::tensor::{Tensor, Type};

/// The rows of a step, and the sizes of its program.
#[derive(Clone, Copy)]
pub(super) struct Batch<'a> {
    pub(super) rows: &'a RowInputs,
    pub(super) sizes: &'a Sizes,
}

/// Tiles of queries, with the data of their rows.
#[derive(Debug, Clone)]
pub(super) struct Tiles {
    /// `[tiles, tile, heads, head_dim]`, scaled, in the type of the cache.
    q: Tensor,
    /// `[tiles, tile]` i32
    positions: Tensor,
    /// `[tiles, blocks_per_row]` i32
    pub(super) block_tables: Tensor,
    /// The position of the first key that each tile reads, a multiple of the block size, `[tiles]` i32; `None` without
    /// a window, when all tiles read from position 0 on.
    pub(super) starts: Option<Tensor>,
    /// The position after the last key that each tile needs, `[tiles]` i32.
    pub(super) ends: Tensor,
    /// The sink of each head, `[heads]`.
    pub(super) sinks: Option<Tensor>,
    /// The slope of each head's distances, `[heads]`.
    slopes: Option<Tensor>,
}

/// The queries of a group of tiles, in the shape that the head form requires.
pub(super) struct Queries {
    /// `[group, kv_heads, queries, head_dim]` in the split form, `[group, queries, kv_heads * head_dim]` in the wide
    /// form.
    pub(super) q: Tensor,
    /// The position of each query, in the shape of q without its last dimension.
    pub(super) positions: Tensor,
    /// The slope of each query's distances, in the shape of the positions without the group.
    pub(super) slopes: Option<Tensor>,
}

/// One chunk of the contexts of a group of tiles.
pub(super) struct Chunk {
    /// `[group, chunk, kv_heads * head_dim]`
    pub(super) keys: Tensor,
    /// `[group, chunk, kv_heads * value_dim]`
    pub(super) values: Tensor,
    /// The position of the first key, i32: `[group]`, or `[]` if it is the same for the whole group.
    pub(super) first_key: Tensor,
}

/// Computes the attention of q `[tokens, heads, head_dim]` to the contexts of its rows, with `sinks` `[heads]` if there
/// are any, `[tokens, heads, value_dim]`, f32.
pub(super) fn attend(
    emitter: &mut Emitter,
    (q, sinks): (&Tensor, Option<&Tensor>),
    cache: &Cache,
    batch: Batch<'_>,
    spec: &AttentionSpec,
) -> Tensor {
    let [heads, head_dim] = [q.dims()[1], q.dims()[2]];
    let [kv_heads, value_dim] = cache.heads(head_dim);
    let dims = Heads { heads, head_dim, kv_heads, value_dim, dtype: cache.dtype() };
    let plan = Plan::new(dims, batch.sizes, spec);
    let output_dims = [q.dims()[0], plan.heads, plan.value_dim];
    let factor = emitter.splat(f64::from(spec.scale), q.ty.clone()); // [tokens, heads, head_dim]
    let scaled = emitter.elementwise("multiply", &[q, &factor]); // [tokens, heads, head_dim]
    let scaled = emitter.convert(&scaled, cache.dtype()); // [tokens, heads, head_dim]
    if let Some(values) = cache.values.array()
        && let caches = [&cache.keys, values]
        && let Some(kernel) = DecodeKernel::of((&scaled, sinks), caches, batch.sizes, spec)
    {
        return mosaic::attend(emitter, &kernel, (&scaled, sinks), caches, batch); // [tokens, heads, value_dim]
    }
    let slopes = spec.slopes.map(|slopes| own_slopes(emitter, &slopes, &batch.rows.rank, heads)); // [heads]
    let tiles = Tiles { sinks: sinks.cloned(), slopes, ..tiles(emitter, &scaled, batch, &plan) };
    if let Some(counts) = plan.num_items {
        let output = chunk_list::attend(emitter, &tiles, cache, &plan, counts);
        let output = gather_heads(emitter, &output, cache.dtype(), &plan); // [tiles, tile, heads, value_dim]
        return emitter.reshape(&output, &output_dims); // [tokens, heads, value_dim]
    }
    if plan.group == plan.num_tiles {
        let output = attend_group(emitter, &tiles, cache, &plan); // [tiles, tile, heads, value_dim]
        return emitter.reshape(&output, &output_dims); // [tokens, heads, value_dim]
    }
    let zero = emitter.scalar(0.0, DType::I32); // []
    let end = emitter.scalar(plan.num_tiles as f64, DType::I32); // []
    let step = emitter.scalar(plan.group as f64, DType::I32); // []
    let tiled = [plan.num_tiles, plan.tile, plan.heads, plan.value_dim];
    let output = emitter.splat(0.0, Type::new(tiled, DType::F32)); // [tiles, tile, heads, value_dim]
    let mut done = emitter.repeat(
        &[zero.clone(), output],
        |emitter, values| emitter.compare("LT", &values[0], &end),
        |emitter, values| {
            let [first, output] = [&values[0], &values[1]];
            let group = tiles.from(emitter, first, plan.group);
            let attended = attend_group(emitter, &group, cache, &plan); // [group, tile, heads, value_dim]
            let output = emitter.dynamic_update_slice(output, &attended, &[first, &zero, &zero, &zero]);
            let next = emitter.elementwise("add", &[first, &step]); // []
            vec![next, output]
        },
    );
    let output = done.remove(1); // [tiles, tile, heads, value_dim]
    emitter.reshape(&output, &output_dims) // [tokens, heads, value_dim]
}

/// Returns the slopes of the heads that device `rank` `[]` has, `[heads]`.
fn own_slopes(emitter: &mut Emitter, slopes: &Slopes, rank: &Tensor, heads: usize) -> Tensor {
    let all = emitter.vector(&slopes.of_rank(0, slopes.num_heads)); // [heads of all devices]
    let size = emitter.scalar(heads as f64, DType::I32); // []
    let first = emitter.elementwise("multiply", &[rank, &size]); // []
    emitter.dynamic_slice(&all, &[&first], &[heads]) // [heads]
}

impl Tiles {
    /// Returns `len` tiles from `first` on.
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
            starts: self.starts.as_ref().map(&mut slice),
            ends: slice(&self.ends),
            sinks: self.sinks.clone(),
            slopes: self.slopes.clone(),
        }
    }
}

/// Cuts the rows' queries into tiles, without sinks and slopes.
fn tiles(emitter: &mut Emitter, q: &Tensor, Batch { rows, sizes }: Batch<'_>, plan: &Plan) -> Tiles {
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
    // A tile of padding needs at most one key, so that it does not prolong the loop. The key may be anything.
    let has_tokens = emitter.compare("LT", &first, &lens); // [tiles]
    let of_padding = emitter.splat(if plan.num_items.is_some() { 0.0 } else { 1.0 }, lens.ty.clone()); // [tiles]
    let ends = emitter.select(&has_tokens, &end, &of_padding); // [tiles]
    let starts = plan.window.map(|window| starts(emitter, &first, &has_tokens, window)); // [tiles]
    Tiles { q, positions, block_tables, starts, ends, sinks: None, slopes: None }
}

/// Returns the position of the first key of the block in which the window of each tile's first query begins, `[tiles]`;
/// 0 for padding. `first` contains the positions of the first queries.
fn starts(emitter: &mut Emitter, first: &Tensor, has_tokens: &Tensor, window: Window) -> Tensor {
    let zero = emitter.splat(0.0, first.ty.clone()); // [tiles]
    let start = first_keys(emitter, first, window); // [tiles]
    let start = emitter.elementwise("maximum", &[&start, &zero]); // [tiles]
    let start = emitter.select(has_tokens, &start, &zero); // [tiles]
    let size = emitter.splat(BLOCK_SIZE as f64, first.ty.clone()); // [tiles]
    let offset = emitter.elementwise("remainder", &[&start, &size]); // [tiles]
    emitter.elementwise("subtract", &[&start, &offset]) // [tiles]
}

/// Returns the position of the first key that the query at each of `positions` sees, or a negative number in place of
/// 0, in the shape of the positions.
fn first_keys(emitter: &mut Emitter, positions: &Tensor, window: Window) -> Tensor {
    let before = match window {
        Window::Sliding(num_keys) => emitter.splat(num_keys as f64 - 1.0, positions.ty.clone()),
        Window::Chunked(num_keys) => {
            let num_keys = emitter.splat(num_keys as f64, positions.ty.clone());
            emitter.elementwise("remainder", &[positions, &num_keys])
        }
    };
    emitter.elementwise("subtract", &[positions, &before])
}

/// Computes the attention of a group of tiles, `[group, tile, heads, value_dim]`, f32.
fn attend_group(emitter: &mut Emitter, tiles: &Tiles, cache: &Cache, plan: &Plan) -> Tensor {
    let queries = queries(emitter, tiles, plan);
    let longest = match (plan.reach, &tiles.starts) {
        (Some(reach), _) => emitter.scalar(reach as f64, DType::I32), // []
        (None, Some(starts)) => {
            let lens = emitter.elementwise("subtract", &[&tiles.ends, starts]); // [group]
            emitter.reduce(Reduction::Max, &lens, &[0]) // []
        }
        (None, None) => emitter.reduce(Reduction::Max, &tiles.ends, &[0]), // []
    };
    let step = emitter.scalar((plan.chunk_blocks * BLOCK_SIZE) as f64, DType::I32); // []
    let zero = emitter.scalar(0.0, DType::I32); // []
    let state = start(emitter, queries.positions.dims(), tiles.sinks.as_ref(), (plan, plan.unseen()));
    let start = [vec![zero], state].concat();
    let attend = |emitter: &mut Emitter, values: &[Tensor]| {
        let (position, state) = (&values[0], &values[1..]);
        let blocks = blocks(emitter, tiles, position, plan); // [group, blocks]
        let [keys, values] = cache.read(emitter, &blocks);
        let first_key = match &tiles.starts {
            Some(starts) => {
                let position = emitter.broadcast(position, &[], starts.dims()); // [group]
                emitter.elementwise("add", &[&position, starts]) // [group]
            }
            None => position.clone(),
        };
        let values = zero_after_end(emitter, &values, &first_key, &tiles.ends);
        let chunk = Chunk { keys, values, first_key };
        let state = attend_to_chunk(emitter, &queries, &chunk, state, plan);
        let next = emitter.elementwise("add", &[position, &step]); // []
        [vec![next], state].concat()
    };
    let done = if plan.reach == Some(plan.chunk_blocks * BLOCK_SIZE) {
        attend(emitter, &start)
    } else {
        emitter.repeat(&start, |emitter, values| emitter.compare("LT", &values[0], &longest), attend)
    };
    let [sum, output] = [&done[2], &done[3]];
    let dims: Vec<usize> = (0..sum.dims().len()).collect();
    let sum = emitter.broadcast(sum, &dims, output.dims());
    let output = emitter.elementwise("divide", &[output, &sum]);
    gather_heads(emitter, &output, cache.dtype(), plan) // [group, tile, heads, value_dim]
}

/// Returns the blocks of one chunk of each tile, `[group, blocks]`. The chunk begins at `position`, relative to the
/// tile's start.
fn blocks(emitter: &mut Emitter, tiles: &Tiles, position: &Tensor, plan: &Plan) -> Tensor {
    let tables = &tiles.block_tables;
    let [group, per_row] = [tables.dims()[0], tables.dims()[1]];
    let size = emitter.scalar(BLOCK_SIZE as f64, DType::I32); // []
    let first = emitter.elementwise("divide", &[position, &size]); // []
    let Some(starts) = &tiles.starts else {
        let zero = emitter.scalar(0.0, DType::I32); // []
        return emitter.dynamic_slice(tables, &[&zero, &first], &[group, plan.chunk_blocks]); // [group, blocks]
    };
    let dims = [group, plan.chunk_blocks];
    let size = emitter.splat(BLOCK_SIZE as f64, starts.ty.clone()); // [group]
    let start = emitter.elementwise("divide", &[starts, &size]); // [group]
    let start = emitter.broadcast(&start, &[0], &dims); // [group, blocks]
    let first = emitter.broadcast(&first, &[], &dims); // [group, blocks]
    let block = emitter.iota(1, Type::new(dims, DType::I32)); // [group, blocks]
    let block = emitter.elementwise("add", &[&block, &first]); // [group, blocks]
    let block = emitter.elementwise("add", &[&block, &start]); // [group, blocks]
    // After the end of its block table a tile reads the last block again. No query sees these keys.
    let last = emitter.splat(per_row as f64 - 1.0, block.ty.clone()); // [group, blocks]
    let block = emitter.elementwise("minimum", &[&block, &last]); // [group, blocks]
    let tile = emitter.iota(0, block.ty.clone()); // [group, blocks]
    let stride = emitter.splat(per_row as f64, block.ty.clone()); // [group, blocks]
    let entry = emitter.elementwise("multiply", &[&tile, &stride]); // [group, blocks]
    let entry = emitter.elementwise("add", &[&entry, &block]); // [group, blocks]
    let tables = emitter.reshape(tables, &[group * per_row]); // [group * blocks_per_row]
    emitter.gather_rows(&tables, &entry) // [group, blocks]
}

/// Returns the queries of `tiles` in the shape that the head form requires.
pub(super) fn queries(emitter: &mut Emitter, tiles: &Tiles, plan: &Plan) -> Queries {
    let Plan { heads, kv_heads, head_dim, tile, form, .. } = *plan;
    let group = tiles.q.dims()[0];
    match form {
        HeadForm::Split => {
            let per_kv_head = heads / kv_heads;
            let q = emitter.reshape(&tiles.q, &[group, tile, kv_heads, per_kv_head, head_dim]);
            let q = emitter.transpose(&q, &[0, 2, 1, 3, 4]); // [group, kv_heads, tile, heads / kv_heads, head_dim]
            let q = emitter.reshape(&q, &[group, kv_heads, tile * per_kv_head, head_dim]);
            let shape = [group, kv_heads, tile, per_kv_head];
            let positions = emitter.broadcast(&tiles.positions, &[0, 2], &shape);
            let positions = emitter.reshape(&positions, &[group, kv_heads, tile * per_kv_head]);
            let slopes = tiles.slopes.as_ref().map(|slopes| {
                let slopes = emitter.reshape(slopes, &[kv_heads, per_kv_head]); // [kv_heads, heads / kv_heads]
                let slopes = emitter.broadcast(&slopes, &[0, 2], &[kv_heads, tile, per_kv_head]);
                emitter.reshape(&slopes, &[kv_heads, tile * per_kv_head]) // [kv_heads, queries]
            });
            Queries { q, positions, slopes }
        }
        HeadForm::Wide => {
            let q = emitter.reshape(&tiles.q, &[group, tile * heads, head_dim]); // [group, queries, head_dim]
            let copies = lane_copies(emitter, (plan.kv_heads, head_dim), q.dtype()); // [head_dim, width]
            let dtype = q.dtype();
            let q = emitter.dot(&q, &copies, DotDims { batch: [&[], &[]], contract: [&[2], &[0]] });
            let q = keep_own_head(emitter, &q, head_dim, plan); // [group, queries, width]
            let q = emitter.convert(&q, dtype); // [group, queries, width]
            let positions = emitter.broadcast(&tiles.positions, &[0, 1], &[group, tile, heads]);
            let positions = emitter.reshape(&positions, &[group, tile * heads]); // [group, queries]
            let slopes = tiles.slopes.as_ref().map(|slopes| {
                let slopes = emitter.broadcast(slopes, &[1], &[tile, heads]); // [tile, heads]
                emitter.reshape(&slopes, &[tile * heads]) // [queries]
            });
            Queries { q, positions, slopes }
        }
    }
}

/// Returns a running softmax before the first key: the largest score and the sum so far, both with the sizes
/// `query_dims`, which are `[group, (kv_heads,) queries]`, and the output, `[group, (kv_heads,) queries, width]`. With
/// sinks, the sink of a query counts as its first score; otherwise the largest score is `lowest`.
pub(super) fn start(
    emitter: &mut Emitter,
    query_dims: &[usize],
    sinks: Option<&Tensor>,
    (plan, lowest): (&Plan, f64),
) -> Vec<Tensor> {
    let ty = Type::new(query_dims, DType::F32);
    let output_type = Type::new([query_dims, &[plan.output_width()]].concat(), DType::F32);
    let Some(sinks) = sinks else {
        let [largest, sum] = [lowest, 0.0].map(|number| emitter.splat(number, ty.clone()));
        return vec![largest, sum, emitter.splat(0.0, output_type)];
    };
    let Plan { heads, kv_heads, tile, form, .. } = *plan;
    let group = query_dims[0];
    let sinks = emitter.convert(sinks, DType::F32); // [heads]
    let largest = match form {
        HeadForm::Split => {
            let per_kv_head = heads / kv_heads;
            let sinks = emitter.reshape(&sinks, &[kv_heads, per_kv_head]); // [kv_heads, heads / kv_heads]
            // [group, kv_heads, tile, heads / kv_heads]
            emitter.broadcast(&sinks, &[1, 3], &[group, kv_heads, tile, per_kv_head])
        }
        HeadForm::Wide => emitter.broadcast(&sinks, &[2], &[group, tile, heads]), // [group, tile, heads]
    };
    let largest = emitter.reshape(&largest, query_dims); // [group, (kv_heads,) queries]
    vec![largest, emitter.splat(1.0, ty), emitter.splat(0.0, output_type)]
}

/// Adds a chunk to a running softmax. Returns the largest score and the sum so far, `[group, (kv_heads,) queries]`, and
/// the output, `[group, (kv_heads,) queries, width]`.
pub(super) fn attend_to_chunk(
    emitter: &mut Emitter,
    queries: &Queries,
    Chunk { keys: k, values: v, first_key }: &Chunk,
    state: &[Tensor],
    plan: &Plan,
) -> Vec<Tensor> {
    let [largest, sum, output] = [&state[0], &state[1], &state[2]];
    let query_dims: Vec<usize> = (0..largest.dims().len()).collect();
    let last = query_dims.len();
    let heads = |dim| [k.dims()[0], k.dims()[1], plan.kv_heads, dim];
    let (k, v, scores_dims, output_dims) = match plan.form {
        HeadForm::Split => {
            let scores_dims = DotDims { batch: [&[0, 1], &[0, 2]], contract: [&[3], &[3]] };
            let output_dims = DotDims { batch: [&[0, 1], &[0, 2]], contract: [&[3], &[1]] };
            let k = emitter.reshape(k, &heads(plan.head_dim)); // [group, chunk, kv_heads, head_dim]
            let v = emitter.reshape(v, &heads(plan.value_dim)); // [group, chunk, kv_heads, value_dim]
            (k, v, scores_dims, output_dims)
        }
        HeadForm::Wide => {
            let scores_dims = DotDims { batch: [&[0], &[0]], contract: [&[2], &[2]] };
            let output_dims = DotDims { batch: [&[0], &[0]], contract: [&[2], &[1]] };
            (k.clone(), v.clone(), scores_dims, output_dims)
        }
    };
    let scores = emitter.dot(&queries.q, &k, scores_dims); // [.., queries, chunk]
    let scores = capped(emitter, scores, plan); // [.., queries, chunk]
    let scores = with_distances(emitter, scores, queries, first_key); // [.., queries, chunk]
    let is_seen = is_seen(emitter, queries, first_key, (&scores.ty, plan)); // [.., queries, chunk]
    let never = emitter.splat(plan.unseen(), scores.ty.clone()); // [.., queries, chunk]
    let scores = emitter.select(&is_seen, &scores, &never); // [.., queries, chunk]
    // Without a window every query sees the first key of the first chunk (in a list, of each of its row's chunks), so
    // the largest score is finite from then on. With a window a query may see no key of the chunk. Then the scores are
    // those of unseen keys, which are finite, and zeros replace the weights.
    let chunk_largest = emitter.reduce(Reduction::Max, &scores, &[last]); // [.., queries]
    let new_largest = emitter.elementwise("maximum", &[largest, &chunk_largest]); // [.., queries]
    let difference = emitter.elementwise("subtract", &[largest, &new_largest]); // [.., queries]
    let correction = emitter.elementwise("exponential", &[&difference]); // [.., queries]
    let subtracted = emitter.broadcast(&new_largest, &query_dims, scores.dims()); // [.., queries, chunk]
    let shifted = emitter.elementwise("subtract", &[&scores, &subtracted]); // [.., queries, chunk]
    let mut weights = emitter.elementwise("exponential", &[&shifted]); // [.., queries, chunk]
    if plan.window.is_some() {
        let none = emitter.splat(0.0, weights.ty.clone()); // [.., queries, chunk]
        weights = emitter.select(&is_seen, &weights, &none); // [.., queries, chunk]
    }
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

/// Returns tanh(scores / cap) · cap, or the scores themselves without a soft cap.
fn capped(emitter: &mut Emitter, scores: Tensor, plan: &Plan) -> Tensor {
    let Some(cap) = plan.soft_cap else { return scores };
    let cap = emitter.splat(f64::from(cap), scores.ty.clone()); // [.., queries, chunk]
    let scores = emitter.elementwise("divide", &[&scores, &cap]); // [.., queries, chunk]
    let scores = emitter.elementwise("tanh", &[&scores]); // [.., queries, chunk]
    emitter.elementwise("multiply", &[&scores, &cap]) // [.., queries, chunk]
}

/// Returns the scores plus the slope of each query times the distance from its position to the key's; the scores
/// themselves without slopes.
fn with_distances(emitter: &mut Emitter, scores: Tensor, queries: &Queries, first_key: &Tensor) -> Tensor {
    let Some(slopes) = &queries.slopes else { return scores };
    let last = scores.dims().len() - 1;
    let [keys, positions] = places_of_scores(emitter, queries, first_key, &scores.ty); // [.., queries, chunk]
    let distances = emitter.elementwise("subtract", &[&keys, &positions]); // [.., queries, chunk]
    let distances = emitter.convert(&distances, DType::F32); // [.., queries, chunk]
    let slopes = emitter.broadcast(slopes, &(1..last).collect::<Vec<_>>(), scores.dims()); // [.., queries, chunk]
    let biases = emitter.elementwise("multiply", &[&slopes, &distances]); // [.., queries, chunk]
    emitter.elementwise("add", &[&scores, &biases]) // [.., queries, chunk]
}

/// Returns the position of each score's key and that of its query, both i32 in the shape of the scores, whose type is
/// `ty`. The chunk begins at `first_key`, `[]` or `[group]`.
fn places_of_scores(emitter: &mut Emitter, queries: &Queries, first_key: &Tensor, ty: &Type) -> [Tensor; 2] {
    let last = ty.dims.len() - 1;
    let query_dims: Vec<usize> = (0..last).collect();
    let keys = emitter.iota(last, Type::new(ty.dims.clone(), DType::I32)); // [.., queries, chunk]
    let first = emitter.broadcast(first_key, &query_dims[..first_key.dims().len()], &ty.dims); // [.., queries, chunk]
    let keys = emitter.elementwise("add", &[&keys, &first]); // [.., queries, chunk]
    [keys, emitter.broadcast(&queries.positions, &query_dims, &ty.dims)]
}

/// Returns bools in the shape of the scores, whose type is `ty`: true if the query attends to the key. The chunk begins
/// at `first_key`, `[]` or `[group]`.
fn is_seen(emitter: &mut Emitter, queries: &Queries, first_key: &Tensor, (ty, plan): (&Type, &Plan)) -> Tensor {
    let [keys, positions] = places_of_scores(emitter, queries, first_key, ty); // [.., queries, chunk]
    let is_not_after = emitter.compare("LE", &keys, &positions); // [.., queries, chunk]
    let Some(window) = plan.window else { return is_not_after };
    let first_seen = first_keys(emitter, &queries.positions, window); // [.., queries]
    let query_dims: Vec<usize> = (0..first_seen.dims().len()).collect();
    let first_seen = emitter.broadcast(&first_seen, &query_dims, &ty.dims); // [.., queries, chunk]
    let is_in_window = emitter.compare("GE", &keys, &first_seen); // [.., queries, chunk]
    emitter.elementwise("and", &[&is_not_after, &is_in_window]) // [.., queries, chunk]
}

/// Returns values `[group, chunk, width]` with zeros at and after the position `ends` of each tile. The cache may
/// contain another row's infinity there, and infinity times a weight of zero is NaN.
pub(super) fn zero_after_end(emitter: &mut Emitter, v: &Tensor, first_key: &Tensor, ends: &Tensor) -> Tensor {
    let ty = Type::new(v.dims(), DType::I32);
    let key = emitter.iota(1, ty); // [group, chunk, width]
    let first = emitter.broadcast(first_key, &[0][..first_key.dims().len()], v.dims()); // [group, chunk, width]
    let key = emitter.elementwise("add", &[&key, &first]); // [group, chunk, width]
    let ends = emitter.broadcast(ends, &[0], v.dims()); // [group, chunk, width]
    let is_own = emitter.compare("LT", &key, &ends); // [group, chunk, width]
    let none = emitter.splat(0.0, v.ty.clone()); // [group, chunk, width]
    emitter.select(&is_own, v, &none) // [group, chunk, width]
}

/// Converts the loop's output to `[group, tile, heads, value_dim]`.
fn gather_heads(emitter: &mut Emitter, output: &Tensor, dtype: DType, plan: &Plan) -> Tensor {
    let Plan { heads, kv_heads, value_dim, tile, form, .. } = *plan;
    let group = output.dims()[0];
    match form {
        HeadForm::Split => {
            let output = emitter.reshape(output, &[group, kv_heads, tile, heads / kv_heads, value_dim]);
            // [group, tile, kv_heads, heads / kv_heads, value_dim]
            let output = emitter.transpose(&output, &[0, 2, 1, 3, 4]);
            emitter.reshape(&output, &[group, tile, heads, value_dim])
        }
        HeadForm::Wide => {
            let output = keep_own_head(emitter, output, value_dim, plan); // [group, queries, width]
            let output = emitter.convert(&output, dtype); // [group, queries, width]
            let copies = lane_copies(emitter, (kv_heads, value_dim), dtype); // [value_dim, width]
            let output = emitter.dot(&output, &copies, DotDims { batch: [&[], &[]], contract: [&[2], &[1]] });
            emitter.reshape(&output, &[group, tile, heads, value_dim])
        }
    }
}

/// Returns the matrix `[dim, width]` that copies a head of `dim` lanes to the lanes of every KV head. Products with it
/// are exact.
fn lane_copies(emitter: &mut Emitter, (kv_heads, dim): (usize, usize), dtype: DType) -> Tensor {
    let ty = Type::new([dim, kv_heads * dim], DType::I32);
    let own = emitter.iota(0, ty.clone()); // [dim, width]
    let lane = emitter.iota(1, ty.clone()); // [dim, width]
    let size = emitter.splat(dim as f64, ty); // [dim, width]
    let lane = emitter.elementwise("remainder", &[&lane, &size]); // [dim, width]
    let is_same = emitter.compare("EQ", &own, &lane); // [dim, width]
    emitter.convert(&is_same, dtype) // [dim, width]
}

/// Returns x `[group, queries, width]` with zeros outside of the `dim` lanes of each query's KV head. The queries are
/// `[tile, heads]`, flattened.
fn keep_own_head(emitter: &mut Emitter, x: &Tensor, dim: usize, plan: &Plan) -> Tensor {
    let ty = Type::new(x.dims(), DType::I32);
    let constant = |emitter: &mut Emitter, value: usize| emitter.splat(value as f64, ty.clone());
    let query = emitter.iota(1, ty.clone()); // [group, queries, width]
    let heads = constant(emitter, plan.heads); // [group, queries, width]
    let head = emitter.elementwise("remainder", &[&query, &heads]); // [group, queries, width]
    let per_kv_head = constant(emitter, plan.heads / plan.kv_heads); // [group, queries, width]
    let kv_head = emitter.elementwise("divide", &[&head, &per_kv_head]); // [group, queries, width]
    let lane = emitter.iota(2, ty.clone()); // [group, queries, width]
    let dim = constant(emitter, dim); // [group, queries, width]
    let lane_head = emitter.elementwise("divide", &[&lane, &dim]); // [group, queries, width]
    let is_own = emitter.compare("EQ", &lane_head, &kv_head); // [group, queries, width]
    let none = emitter.splat(0.0, x.ty.clone()); // [group, queries, width]
    emitter.select(&is_own, x, &none) // [group, queries, width]
}
