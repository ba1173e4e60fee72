//! Splits operations that compute each row independently into tasks for threads.
//!
//! Entry point: [`rows_per_task`]. A rayon iterator over a single chunk stays on the calling thread, so small problems
//! wake no other thread.

/// The number of values below which waking other threads costs more than it saves.
const MIN_PARALLEL_VALUES: usize = 1 << 15;
/// The number of tasks per thread. There are several, so that a thread that starts late can leave tasks to the others.
const TASKS_PER_THREAD: usize = 4;

/// Returns the number of rows per task, at least 1.
pub(crate) fn rows_per_task(num_rows: usize, row_len: usize) -> usize {
    let is_small = num_rows * row_len < MIN_PARALLEL_VALUES;
    let num_tasks = if is_small { 1 } else { rayon::current_num_threads() * TASKS_PER_THREAD };
    num_rows.div_ceil(num_tasks).max(1)
}
