//! Checks before a model is loaded on the CPU that the host has room for its weights.
//!
//! Entry point: [`check`]. If the weights do not fit, the error says how much is lacking, and which flag makes them
//! fit.

use backend::Membership;
use devices::Quantize;
use numbers::FloatType;

use super::EngineError;
use super::error::size;
use super::load::Description;
use crate::args::{Dtype, ModelArgs};

/// A function that describes the same model with other arguments.
pub(super) type Describe<'a> = dyn Fn(&ModelArgs) -> Result<Description, EngineError> + 'a;

/// A flag that makes weights smaller, and the bytes that they take with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remedy {
    pub(crate) flag: &'static str,
    pub(crate) bytes: u64,
}

/// Checks that the weights of all ranks of this host fit into its memory.
///
/// # Errors [`EngineError::WeightsMemory`] when they do not; when a weight is missing or malformed, the memory cannot
/// be read, or another rank does not join in time.
pub(super) fn check(
    membership: &Membership,
    model: &ModelArgs,
    description: &Description,
    describe: &Describe<'_>,
) -> Result<(), EngineError> {
    let bytes_of = |Description { checkpoint, graphs, .. }: &Description| -> Result<u64, EngineError> {
        let of_rank = cpu::weights_bytes(graphs, checkpoint, membership.rank())?;
        Ok(of_rank.saturating_mul(membership.num_on_host() as u64))
    };
    let available_bytes = membership.available_bytes()?;
    let needed_bytes = bytes_of(description)?;
    if needed_bytes <= available_bytes {
        return Ok(());
    }
    let mut remedies = Vec::new();
    for (flag, smaller) in smaller(model, description.dtype) {
        remedies.push(Remedy { flag, bytes: bytes_of(&describe(&smaller)?)? });
    }
    Err(EngineError::WeightsMemory { needed_bytes, available_bytes, advice: advice(&remedies, available_bytes) })
}

/// Returns the flags that make weights smaller than `model` does, the most precise first, with the arguments that they
/// give.
fn smaller(model: &ModelArgs, dtype: FloatType) -> Vec<(&'static str, ModelArgs)> {
    let quantized = |quantize| ModelArgs { quantize: Some(quantize), ..model.clone() };
    let mut smaller = Vec::new();
    if model.quantize.is_none() {
        if dtype == FloatType::F32 {
            smaller.push(("--dtype bfloat16", ModelArgs { dtype: Some(Dtype::Bfloat16), ..model.clone() }));
        }
        smaller.push(("--quantize int8", quantized(Quantize::Int8)));
    }
    if model.quantize != Some(Quantize::Int4) {
        smaller.push(("--quantize int4", quantized(Quantize::Int4)));
    }
    smaller
}

/// Returns the part of a sentence that says what to do: the first remedy that suffices, with room for a KV cache, or,
/// if none does, what the smallest needs.
fn advice(remedies: &[Remedy], available_bytes: u64) -> String {
    let room = available_bytes / 16 * 15;
    if let Some(Remedy { flag, bytes }) = remedies.iter().find(|remedy| remedy.bytes <= room) {
        return format!("with {flag} they need {} and fit", size(*bytes));
    }
    let rest = "choose a smaller model, a host with more memory, or several hosts (docs/hosts.md)";
    match remedies.iter().min_by_key(|remedy| remedy.bytes) {
        Some(Remedy { flag, bytes }) => format!("even with {flag} they need {}: {rest}", size(*bytes)),
        None => rest.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    #[test]
    fn the_most_precise_flag_that_suffices_is_named() {
        let remedies = [("--quantize int8", 9 * GB), ("--quantize int4", 5 * GB)];
        let remedies = remedies.map(|(flag, bytes)| Remedy { flag, bytes });
        insta::assert_snapshot!(advice(&remedies, 10 * GB), @"with --quantize int8 they need 9.00 GB and fit");
        insta::assert_snapshot!(advice(&remedies, 9 * GB), @"with --quantize int4 they need 5.00 GB and fit");
        insta::assert_snapshot!(advice(&remedies, 6 * GB), @"with --quantize int4 they need 5.00 GB and fit");
        insta::assert_snapshot!(
            advice(&remedies, GB),
            @"even with --quantize int4 they need 5.00 GB: choose a smaller model, a host with more memory, or several \
             hosts (docs/hosts.md)"
        );
    }
}
