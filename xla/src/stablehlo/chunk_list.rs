//! Attention of decoding rows as a loop over a list of chunks: the chunks of the first row, then those of the second,
//! and so on.
//!
//! Entry point: [`attend`]. Each iteration reads the next few chunks of the list, of whichever rows they are, computes
//! the softmax of each chunk alone and merges the results into the states of their rows. So the sum of the lengths of
//! the contexts, and not the longest one, determines the number of iterations. When few chunks are left, a second loop
//! reads fewer of them at a time, because an iteration also reads what it drops after the end of the list.

use model::graph::DType;

use super::attention::{Chunk, Queries, Tiles, attend_to_chunk, queries, start, zero_after_end};
use super::attention_plan::{ItemCounts, Plan};
use super::emitter::{Combine, Emitter, Reduction};
use super::kv_cache::Cache;
use super::tensor::{Tensor, Type};
use backend::BLOCK_SIZE;

/// The list, computed before the loop. Layers with the same window and the same size of chunks have the same list, so
/// the compiler can compute it once for all of them.
struct List {
    /// The number of chunks, `[]` i32.
    len: Tensor,
    /// For each possible chunk, the columns of [`Items`], `[columns, max_len]` i32.
    columns: Tensor,
}

/// A few chunks of the list.
struct Items {
    /// The row of each chunk, `[items]` i32. After the end of the list this is the number of rows, an index that no row
    /// has.
    rows: Tensor,
    /// The number of the chunk in its row, `[items]` i32.
    chunks: Tensor,
    /// The position of each chunk's first key, `[items]` i32.
    first_keys: Tensor,
    /// The position after the last key of each chunk's row, `[items]` i32.
    ends: Tensor,
}

/// Computes the attention of rows that have one query each, `[rows, (kv_heads,) queries, width]`, f32: zeros for rows
/// without keys.
pub(super) fn attend(emitter: &mut Emitter, tiles: &Tiles, cache: &Cache, plan: &Plan, counts: ItemCounts) -> Tensor {
    let queries = queries(emitter, tiles, plan);
    let list = list(emitter, tiles, plan, counts.many);
    // The largest score of a row without chunks so far is finite, so that its difference to itself is zero.
    let lowest = f64::from(f32::MIN);
    let zero = emitter.scalar(0.0, DType::I32); // []
    let state = start(emitter, queries.positions.dims(), tiles.sinks.as_ref(), (plan, lowest));
    let mut state = [vec![zero], state].concat();
    // An iteration takes the next `num_items` chunks. The first value is the index of the first of them, `[]`.
    let advance = |emitter: &mut Emitter, values: &[Tensor], num_items: usize| {
        let items = items(emitter, &list, &values[0], num_items);
        let attended = attend_to_items(emitter, (tiles, &queries), cache, &items, plan);
        let state = merge(emitter, &values[1..], &attended, &items.rows);
        let step = emitter.scalar(num_items as f64, DType::I32); // []
        let next = emitter.elementwise("add", &[&values[0], &step]); // []
        [vec![next], state].concat()
    };
    let rest = emitter.scalar(counts.most_of_rest() as f64, DType::I32); // []
    let end = emitter.elementwise("subtract", &[&list.len, &rest]); // []
    state = emitter.repeat(
        &state,
        |emitter, values| emitter.compare("LT", &values[0], &end),
        |emitter, values| advance(emitter, values, counts.many),
    );
    if counts.few < counts.many {
        // `hlo::loops` knows the second loop by its condition, in which the index comes last.
        state = emitter.repeat(
            &state,
            |emitter, values| emitter.compare("GT", &list.len, &values[0]),
            |emitter, values| advance(emitter, values, counts.few),
        );
    }
    let [sum, output] = [&state[2], &state[3]];
    let zero = emitter.splat(0.0, sum.ty.clone()); // [rows, (kv_heads,) queries]
    let one = emitter.splat(1.0, sum.ty.clone()); // [rows, (kv_heads,) queries]
    let is_empty = emitter.compare("EQ", sum, &zero); // [rows, (kv_heads,) queries]
    let sum = emitter.select(&is_empty, &one, sum); // [rows, (kv_heads,) queries]
    let dims: Vec<usize> = (0..sum.dims().len()).collect();
    let sum = emitter.broadcast(&sum, &dims, output.dims()); // [rows, (kv_heads,) queries, width]
    emitter.elementwise("divide", &[output, &sum]) // [rows, (kv_heads,) queries, width]
}

/// Returns the list of the chunks of all rows. Its columns are long enough for full block tables; their length is a
/// multiple of `most_items`.
fn list(emitter: &mut Emitter, tiles: &Tiles, plan: &Plan, most_items: usize) -> List {
    let num_rows = tiles.ends.dims()[0];
    let lens = match &tiles.starts {
        Some(starts) => emitter.elementwise("subtract", &[&tiles.ends, starts]), // [rows]
        None => tiles.ends.clone(),
    };
    let chunk = plan.chunk_blocks * BLOCK_SIZE;
    let before = emitter.splat(chunk as f64 - 1.0, lens.ty.clone()); // [rows]
    let size = emitter.splat(chunk as f64, lens.ty.clone()); // [rows]
    let counts = emitter.elementwise("add", &[&lens, &before]); // [rows]
    let counts = emitter.elementwise("divide", &[&counts, &size]); // [rows]
    let square = Type::new([num_rows, num_rows], DType::I32);
    let [row, other] = [0, 1].map(|dim| emitter.iota(dim, square.clone())); // [rows, rows]
    let is_not_after = emitter.compare("LE", &other, &row); // [rows, rows]
    let of_other = emitter.broadcast(&counts, &[1], &square.dims); // [rows, rows]
    let none = emitter.splat(0.0, square); // [rows, rows]
    let until = emitter.select(&is_not_after, &of_other, &none); // [rows, rows]
    let row_ends = emitter.reduce(Reduction::Sum, &until, &[1]); // [rows]
    let row_firsts = emitter.elementwise("subtract", &[&row_ends, &counts]); // [rows]
    let len = emitter.reduce(Reduction::Sum, &counts, &[0]); // []
    let max_len = num_rows * tiles.block_tables.dims()[1].div_ceil(plan.chunk_blocks);
    let max_len = max_len.next_multiple_of(most_items);
    let index = emitter.iota(0, Type::new([max_len], DType::I32)); // [max_len]
    let matrix = [max_len, num_rows];
    let row_ends = emitter.broadcast(&row_ends, &[1], &matrix); // [max_len, rows]
    let indices = emitter.broadcast(&index, &[0], &matrix); // [max_len, rows]
    let is_before = emitter.compare("LE", &row_ends, &indices); // [max_len, rows]
    let is_before = emitter.convert(&is_before, DType::I32); // [max_len, rows]
    let rows = emitter.reduce(Reduction::Sum, &is_before, &[1]); // [max_len]
    let firsts = emitter.gather_rows(&row_firsts, &rows); // [max_len]
    let chunks = emitter.elementwise("subtract", &[&index, &firsts]); // [max_len]
    let size = emitter.splat(chunk as f64, chunks.ty.clone()); // [max_len]
    let mut first_keys = emitter.elementwise("multiply", &[&chunks, &size]); // [max_len]
    if let Some(starts) = &tiles.starts {
        let starts = emitter.gather_rows(starts, &rows); // [max_len]
        first_keys = emitter.elementwise("add", &[&first_keys, &starts]); // [max_len]
    }
    let ends = emitter.gather_rows(&tiles.ends, &rows); // [max_len]
    let columns = [&rows, &chunks, &first_keys, &ends].map(|column| emitter.reshape(column, &[1, max_len]));
    let columns = emitter.concatenate(&columns.each_ref(), 0); // [columns, max_len]
    List { len, columns }
}

/// Returns the `num_items` chunks of the list from the index `first` on.
fn items(emitter: &mut Emitter, list: &List, first: &Tensor, num_items: usize) -> Items {
    let zero = emitter.scalar(0.0, DType::I32); // []
    let columns = emitter.dynamic_slice(&list.columns, &[&zero, first], &[4, num_items]); // [columns, items]
    let [rows, chunks, first_keys, ends] = [0, 1, 2, 3].map(|column| emitter.row(&columns, column)); // [items]
    Items { rows, chunks, first_keys, ends }
}

/// Computes the softmax of each chunk alone. Returns the largest scores and their sums, `[items, (kv_heads,) queries]`,
/// and the outputs, `[items, (kv_heads,) queries, width]`.
fn attend_to_items(
    emitter: &mut Emitter,
    (tiles, queries): (&Tiles, &Queries),
    cache: &Cache,
    items: &Items,
    plan: &Plan,
) -> Vec<Tensor> {
    let first_key = items.first_keys.clone(); // [items]
    let blocks = match &tiles.starts {
        Some(_) => blocks_from(emitter, &tiles.block_tables, items, plan), // [items, blocks]
        None => blocks_of_chunks(emitter, &tiles.block_tables, items, plan), // [items, blocks]
    };
    let [keys, values] = cache.read(emitter, &blocks); // [items, chunk, width]
    let values = zero_after_end(emitter, &values, &first_key, &items.ends); // [items, chunk, width]
    let q = emitter.gather_rows(&queries.q, &items.rows); // [items, (kv_heads,) queries, head_dim]
    let positions = emitter.gather_rows(&queries.positions, &items.rows); // [items, (kv_heads,) queries]
    // The sinks are in the states with which the results are merged.
    let start = start(emitter, positions.dims(), None, (plan, plan.unseen()));
    attend_to_chunk(
        emitter,
        &Queries { q, positions, slopes: queries.slopes.clone() },
        &Chunk { keys, values, first_key },
        &start,
        plan,
    )
}

/// Returns the blocks of each chunk, `[items, blocks]`, for rows that are read from their start: whole parts of their
/// block tables.
fn blocks_of_chunks(emitter: &mut Emitter, tables: &Tensor, items: &Items, plan: &Plan) -> Tensor {
    let [num_rows, per_row] = [tables.dims()[0], tables.dims()[1] / plan.chunk_blocks];
    let tables = emitter.reshape(tables, &[num_rows * per_row, plan.chunk_blocks]); // [chunks, blocks]
    let stride = emitter.splat(per_row as f64, items.rows.ty.clone()); // [items]
    let entry = emitter.elementwise("multiply", &[&items.rows, &stride]); // [items]
    let entry = emitter.elementwise("add", &[&entry, &items.chunks]); // [items]
    emitter.gather_rows(&tables, &entry) // [items, blocks]
}

/// Returns the blocks of each chunk, `[items, blocks]`, for rows that may be read from a later block than their first.
/// After the end of its block table a row reads the last block again. No query sees these keys.
fn blocks_from(emitter: &mut Emitter, tables: &Tensor, items: &Items, plan: &Plan) -> Tensor {
    let per_row = tables.dims()[1];
    let dims = [items.rows.dims()[0], plan.chunk_blocks];
    let size = emitter.splat(BLOCK_SIZE as f64, items.first_keys.ty.clone()); // [items]
    let first = emitter.elementwise("divide", &[&items.first_keys, &size]); // [items]
    let first = emitter.broadcast(&first, &[0], &dims); // [items, blocks]
    let block = emitter.iota(1, Type::new(dims, DType::I32)); // [items, blocks]
    let block = emitter.elementwise("add", &[&block, &first]); // [items, blocks]
    let last = emitter.splat(per_row as f64 - 1.0, block.ty.clone()); // [items, blocks]
    let block = emitter.elementwise("minimum", &[&block, &last]); // [items, blocks]
    let row = emitter.broadcast(&items.rows, &[0], &dims); // [items, blocks]
    let stride = emitter.splat(per_row as f64, block.ty.clone()); // [items, blocks]
    let entry = emitter.elementwise("multiply", &[&row, &stride]); // [items, blocks]
    let entry = emitter.elementwise("add", &[&entry, &block]); // [items, blocks]
    let tables = emitter.reshape(tables, &[tables.dims()[0] * per_row]); // [rows * blocks_per_row]
    emitter.gather_rows(&tables, &entry) // [items, blocks]
}

/// Returns the rows' largest scores, sums and outputs after the results of some chunks were added. Results after the
/// end of the list are dropped.
fn merge(emitter: &mut Emitter, state: &[Tensor], attended: &[Tensor], rows: &Tensor) -> Vec<Tensor> {
    let largest = emitter.scatter_rows(&state[0], rows, &attended[0], Combine::Max); // [rows, (kv_heads,) queries]
    let kept = emitter.elementwise("subtract", &[&state[0], &largest]); // [rows, (kv_heads,) queries]
    let kept = emitter.elementwise("exponential", &[&kept]); // [rows, (kv_heads,) queries]
    let of_items = emitter.gather_rows(&largest, rows); // [items, (kv_heads,) queries]
    let added = emitter.elementwise("subtract", &[&attended[0], &of_items]); // [items, (kv_heads,) queries]
    let added = emitter.elementwise("exponential", &[&added]); // [items, (kv_heads,) queries]
    let dims: Vec<usize> = (0..kept.dims().len()).collect();
    let mut sum = |index: usize| {
        let [kept, added] = [(&kept, &state[index]), (&added, &attended[index])].map(|(factor, x)| {
            let factor = emitter.broadcast(factor, &dims, x.dims());
            emitter.elementwise("multiply", &[x, &factor])
        });
        emitter.scatter_rows(&kept, rows, &added, Combine::Add)
    };
    let [sum, output] = [sum(1), sum(2)];
    vec![largest, sum, output]
}
