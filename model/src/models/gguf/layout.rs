//! The forms of layers whose tensors llama.cpp's converter splits, joins or sorts.
//!
//! Entry points: [`projections`], [`expert_names`], [`query_key_norm`]. Each takes the form that a Hugging Face
//! checkpoint has, and returns the form in a GGUF file. For other checkpoints, it returns the form unchanged.

use crate::layers::{ExpertNames, QueryKeyNorm, WeightScope};
use crate::models::decoder::Projections;

/// Returns the form of projections in `scope`. The converter puts all queries of a fused tensor first, then all keys.
/// With `output`, the name of the projection of attention's output, it has fused tensors that were apart.
pub(in crate::models) fn projections(
    projections: Projections,
    scope: &WeightScope,
    output: Option<&'static str>,
) -> Projections {
    match (projections, output) {
        (Projections::Separate, Some(output)) => Projections::Fused { qkv: "qkv_proj", output },
        (projections, _) => unsorted(projections, scope),
    }
}

fn unsorted(projections: Projections, scope: &WeightScope) -> Projections {
    match projections {
        Projections::FusedByHead { qkv, output } if scope.is_gguf() => Projections::Fused { qkv, output },
        other => other,
    }
}

/// Returns the names of experts in `scope`. The converter makes one tensor of the matrices of all experts, and two of
/// gate and up, except where both are the rows of one tensor. If `is_each`, each matrix of each expert is a tensor, as
/// in files of early 2024.
pub(in crate::models) fn expert_names(names: ExpertNames, scope: &WeightScope, is_each: bool) -> ExpertNames {
    match names {
        _ if is_each => ExpertNames::Each(["gate_proj", "up_proj", "down_proj"]),
        ExpertNames::Joined if scope.is_gguf() => ExpertNames::Apart { has_biases: true },
        ExpertNames::Each(_) | ExpertNames::Halves if scope.is_gguf() => ExpertNames::Apart { has_biases: false },
        other => other,
    }
}

/// Returns the form of the norms of queries and keys in `scope`. The converter makes one tensor of those of all heads.
pub(in crate::models) fn query_key_norm(norm: QueryKeyNorm, scope: &WeightScope) -> QueryKeyNorm {
    match norm {
        QueryKeyNorm::Stacked(form) if scope.is_gguf() => QueryKeyNorm::EachHead(form),
        other => other,
    }
}
