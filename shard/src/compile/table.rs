//! The model's sizes and the compiler's statistics for each program, formatted as a plain-text table.
//!
//! Entry point: [`print`].

use backend::BLOCK_SIZE;
use xla::ProgramFigures;

use super::{Plan, PlanArgs};

const COLUMNS: usize = 12;
const HEADINGS: [&str; COLUMNS] = [
    "PROGRAM",
    "SECONDS",
    "GFLOP",
    "ACCESSED",
    "READ",
    "/ MINIMUM",
    "MIXED",
    "MCYCLES",
    "TEMP",
    "IN PLACE",
    "CODE",
    "COLLECTIVES",
];
const MIB: f64 = (1 << 20) as f64;

/// Returns the text: the model's sizes on one device, then a table with a line for each program.
pub(super) fn print(plan: &Plan, args: &PlanArgs, figures: &[ProgramFigures]) -> String {
    let Plan { ahead, graphs, layout, types } = plan;
    let cache_tokens = layout.num_blocks * BLOCK_SIZE;
    let cache_bytes = cache_tokens as u64 * ahead.state_bytes(graphs).per_token;
    let mut text = format!(
        "{} as {types} on {} ({} × {}): per device {} weights, {} KV cache of {cache_tokens} tokens, {} memory\n\n",
        args.model_id,
        args.topology,
        ahead.num_devices(),
        ahead.device_kind(),
        mebibytes(graphs.weights_bytes() as f64),
        mebibytes(cache_bytes as f64),
        mebibytes(ahead.memory_bytes() as f64),
    );
    let rows: Vec<[String; COLUMNS]> =
        std::iter::once(HEADINGS.map(str::to_owned)).chain(figures.iter().map(row)).collect();
    for row in &rows {
        let widths: [usize; COLUMNS] =
            std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default());
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn row(figures: &ProgramFigures) -> [String; COLUMNS] {
    let ProgramFigures { name, seconds, cost } = figures;
    let mut cells: [String; COLUMNS] = std::array::from_fn(|_| "-".to_owned());
    cells[..2].clone_from_slice(&[name.clone(), format!("{seconds:.1}")]);
    let Some(cost) = cost else {
        "cached".clone_into(&mut cells[2]);
        return cells;
    };
    let ratio = |[read, minimum]: [u64; 2]| (minimum > 0).then(|| format!("{:.3}", read as f64 / minimum as f64));
    let missing = || "-".to_owned();
    cells[2..].clone_from_slice(&[
        format!("{:.1}", cost.flops / 1e9),
        mebibytes(cost.accessed_bytes),
        mebibytes(cost.read_bytes as f64),
        ratio([cost.read_bytes, cost.minimum_bytes]).unwrap_or_else(missing),
        cost.mixed_bytes.and_then(ratio).unwrap_or_else(missing),
        format!("{:.2}", cost.cycles as f64 / 1e6),
        mebibytes(cost.temp_bytes as f64),
        mebibytes(cost.alias_bytes as f64),
        mebibytes(cost.code_bytes as f64),
        cost.collectives.total().to_string(),
    ]);
    cells
}

fn mebibytes(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / MIB)
}
