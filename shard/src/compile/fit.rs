//! `fit`: reports whether a model fits on a TPU slice, and if it does not, what to change.
//!
//! Entry point: [`run`]. The largest program of each kind is compiled to find out how much scratch memory it needs; no
//! program is stored.

use std::fmt::Write as _;

use backend::{BLOCK_SIZE, StateLayout};
use xla::ProgramFigures;

use super::{CompileError, Plan, PlanArgs};

const MIB: f64 = (1 << 20) as f64;

/// The result of `fit`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FitReport {
    /// The report as plain text.
    pub text: String,
    /// True if weights, states and programs fit into the memory of a device.
    pub fits: bool,
}

/// The bytes used on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sizes {
    memory: u64,
    weights: u64,
    cache: u64,
    history: u64,
    scratch: u64,
    code: u64,
    kv_per_token: u64,
}

/// Plans, compiles the largest programs, and returns the report.
///
/// # Errors
/// As [`super::run`], such as weights that exceed the memory of a device. If only the sum of weights, states and
/// programs is too large, the report says so instead.
pub fn run(args: &PlanArgs, progress: &mut (dyn FnMut(&str, u64, u64) + Send)) -> Result<FitReport, CompileError> {
    let plan = Plan::new(args)?;
    let programs = plan.programs()?;
    let kinds = ["prefill_", "decode_", "sample_"];
    let mut names = Vec::new();
    let mut counts = Vec::new();
    for kind in kinds {
        let of_kind = programs.iter().filter(|program| program.name.starts_with(kind));
        counts.push(of_kind.clone().count());
        names.extend(of_kind.map(|program| program.name.clone()).next());
    }
    let figures = plan.compile(None, &names, progress)?;
    Ok(report(&plan, args, &figures, &counts))
}

fn report(plan: &Plan, args: &PlanArgs, figures: &[ProgramFigures], counts: &[usize]) -> FitReport {
    let StateLayout { num_slots, num_blocks, max_total_tokens, max_batch_prefill_tokens } = plan.layout;
    let cache_tokens = num_blocks * BLOCK_SIZE;
    let costs = || figures.iter().filter_map(|figures| Some((&figures.name, figures.cost?)));
    let largest = costs().max_by_key(|(_, cost)| cost.temp_bytes);
    let state_bytes = plan.ahead.state_bytes(&plan.graphs);
    let kv_per_token = state_bytes.per_token;
    let sizes = Sizes {
        memory: plan.ahead.memory_bytes(),
        weights: plan.graphs.weights_bytes(),
        cache: cache_tokens as u64 * kv_per_token,
        history: state_bytes.of_slots(num_slots, max_total_tokens),
        scratch: largest.map_or(0, |(_, cost)| cost.temp_bytes),
        code: costs().zip(counts).map(|((_, cost), count)| cost.code_bytes * *count as u64).sum(),
        kv_per_token,
    };
    let mut text = format!(
        "{} as {} on {} ({} × {}), {num_slots} sequences of {max_total_tokens} tokens, {max_batch_prefill_tokens} prompt tokens a step\n\n",
        args.model_id,
        plan.types,
        args.topology,
        plan.ahead.num_devices(),
        plan.ahead.device_kind(),
    );
    let left = sizes.memory as f64 - sizes.needed() as f64;
    let rows = [
        ("memory of a device", sizes.memory as f64, String::new()),
        ("weights", sizes.weights as f64, String::new()),
        ("KV cache", sizes.cache as f64, format!("{num_blocks} blocks, {cache_tokens} tokens")),
        ("token history", sizes.history as f64, String::new()),
        ("largest scratch", sizes.scratch as f64, largest.map_or_else(String::new, |(name, _)| name.clone())),
        ("programs, about", sizes.code as f64, format!("{} programs", counts.iter().sum::<usize>())),
        ("left", left, String::new()),
    ];
    for (name, bytes, note) in rows {
        let line = format!("{name:<18} {:>10.1} MiB  {note}", bytes / MIB);
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let fits = left >= 0.0;
    let _ = writeln!(text, "\n{}", if fits { "fits".to_owned() } else { advice(&sizes, max_total_tokens) });
    FitReport { text, fits }
}

/// Returns a sentence that says what to change.
fn advice(sizes: &Sizes, max_total_tokens: usize) -> String {
    let missing = sizes.needed() - sizes.memory;
    let excess = format!("does not fit: {:.1} MiB too much", missing as f64 / MIB);
    let spare_cache = sizes.cache.saturating_sub(max_total_tokens as u64 * sizes.kv_per_token);
    if missing <= spare_cache {
        let tokens = (sizes.cache - missing) / sizes.kv_per_token / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
        return format!("{excess}; pass --max-batch-total-tokens {tokens} or less");
    }
    if missing <= spare_cache + sizes.scratch / 2 {
        return format!("{excess}; lower --max-batch-prefill-tokens, because scratch memory grows with it");
    }
    format!("{excess}; choose a slice with more chips, or lower --max-total-tokens")
}

impl Sizes {
    fn needed(&self) -> u64 {
        self.weights + self.cache + self.history + self.scratch + self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_what_helps() {
        let sizes = Sizes {
            memory: 1000 << 20,
            weights: 400 << 20,
            cache: 600 << 20,
            history: 0,
            scratch: 100 << 20,
            code: 0,
            kv_per_token: 1 << 10,
        };
        let one = advice(&sizes, 1024);
        insta::assert_snapshot!(one, @"does not fit: 100.0 MiB too much; pass --max-batch-total-tokens 512000 or less");
        let two = advice(&Sizes { cache: 1 << 20, weights: 940 << 20, ..sizes }, 1024);
        insta::assert_snapshot!(
            two,
            @"does not fit: 41.0 MiB too much; lower --max-batch-prefill-tokens, because scratch memory grows with it"
        );
        let three = advice(&Sizes { weights: 2000 << 20, ..sizes }, 1024);
        assert!(three.ends_with("choose a slice with more chips, or lower --max-total-tokens"), "{three}");
    }
}
