//! The numbers of ranks that can share the heads of attention.
//!
//! Entry point: [`check_heads`]. Every rank has the same number of whole attention heads. The queries of a rank attend
//! only to the keys and values of their own groups, so the rank has the KV heads of those groups. If there are fewer KV
//! heads than ranks, each rank has a copy of one KV head.

/// The error of a number of ranks that cannot share a model's attention heads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{heads}: --num-shard may be {legal}; with --devices-per-shard, the product of both must be one of these")]
pub struct HeadsError {
    /// The numbers of heads that rule out the number of ranks, with their keys in config.json: the attention heads, and
    /// the KV heads too if the attention heads alone would allow it.
    heads: String,
    legal: String,
}

/// Checks that `num_ranks` ranks can share the heads: the number of attention heads must be a multiple of `num_ranks`,
/// and the number of KV heads must be a multiple or a divisor of it.
///
/// # Errors
/// When the ranks cannot share the heads. The message lists the possible numbers of ranks.
pub(crate) fn check_heads(
    num_attention_heads: usize,
    num_key_value_heads: usize,
    num_ranks: usize,
) -> Result<(), HeadsError> {
    let divides = |num_ranks: &usize| num_attention_heads.is_multiple_of(*num_ranks);
    let is_legal = |num_ranks: &usize| {
        let kv_divides =
            num_key_value_heads.is_multiple_of(*num_ranks) || num_ranks.is_multiple_of(num_key_value_heads);
        divides(num_ranks) && kv_divides
    };
    // One rank is always legal. If the two numbers of heads do not fit each other, the attention operation reports it.
    if is_legal(&num_ranks) {
        return Ok(());
    }
    let mut heads = format!("num_attention_heads is {num_attention_heads}");
    if divides(&num_ranks) {
        heads += &format!(" and num_key_value_heads is {num_key_value_heads}");
    }
    let legal: Vec<String> =
        (1..=num_attention_heads).filter(is_legal).map(|num_ranks| num_ranks.to_string()).collect();
    Err(HeadsError { heads, legal: legal.join(", ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(heads: usize, kv_heads: usize, num_ranks: usize) -> String {
        check_heads(heads, kv_heads, num_ranks).unwrap_err().to_string()
    }

    #[test]
    fn heads_divide_and_few_kv_heads_are_copied() {
        for (heads, kv_heads, ranks) in
            [(32, 8, 8), (32, 8, 16), (32, 8, 32), (8, 1, 8), (9, 3, 3), (12, 4, 2), (1, 1, 1)]
        {
            assert_eq!(check_heads(heads, kv_heads, ranks), Ok(()), "{heads} {kv_heads} {ranks}");
        }
    }

    #[test]
    fn impossible_numbers_list_the_possible() {
        insta::assert_snapshot!(
            message(9, 9, 2),
            @"num_attention_heads is 9: --num-shard may be 1, 3, 9; with --devices-per-shard, the product of both must be one of these"
        );
        insta::assert_snapshot!(
            message(8, 2, 16),
            @"num_attention_heads is 8: --num-shard may be 1, 2, 4, 8; with --devices-per-shard, the product of both must be one of these"
        );
        insta::assert_snapshot!(
            message(12, 4, 6),
            @"num_attention_heads is 12 and num_key_value_heads is 4: --num-shard may be 1, 2, 4, 12; with --devices-per-shard, the product of both must be one of these"
        );
    }
}
