//! The token history: the tokens of rows, by slot and position.
//!
//! Entry point: [`TokenHistory`]. A row reads from it the token that it sampled in its previous step, and penalties
//! read all of its tokens. Several threads write at once, each only to the slots of its own rows.

use std::ops::Range;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::batch::{Batch, BatchRow, CachedTokens, SAMPLED_TOKEN};

/// Token ids `[num_slots, max_total_tokens]`.
#[derive(Debug)]
pub struct TokenHistory {
    max_total_tokens: usize,
    // The threads of a step are synchronised between the code that writes an entry and the code that reads it, so
    // relaxed loads and stores suffice.
    tokens: Vec<AtomicI32>,
}

impl TokenHistory {
    /// Returns a history in which every entry is 0.
    pub fn new(num_slots: usize, max_total_tokens: usize) -> Self {
        let tokens = std::iter::repeat_with(AtomicI32::default).take(num_slots * max_total_tokens).collect();
        Self { max_total_tokens, tokens }
    }

    /// Stores the cached tokens and the given tokens of every row. Returns the tokens of the batch, `[tokens]`, with
    /// the ids of sampled tokens in place of [`SAMPLED_TOKEN`].
    pub fn current_tokens(&self, batch: &Batch) -> Vec<i32> {
        let mut tokens = batch.token_ids.clone();
        for CachedTokens { slot, token_ids } in &batch.cached_tokens {
            let entries = self.row(*slot, 0..token_ids.len());
            entries.iter().zip(token_ids).for_each(|(entry, token)| entry.store(*token, Ordering::Relaxed));
        }
        for row in &batch.rows {
            let positions = row.context_len - row.num_tokens..row.context_len;
            for (token, entry) in tokens[row.first_token..].iter_mut().zip(self.row(row.slot, positions)) {
                if *token == SAMPLED_TOKEN {
                    *token = entry.load(Ordering::Relaxed);
                } else {
                    entry.store(*token, Ordering::Relaxed);
                }
            }
        }
        tokens // [tokens]
    }

    /// Stores the token that follows the context of `row`. At the end of the history the token is dropped, because no
    /// step reads it.
    pub fn append(&self, row: &BatchRow, token: i32) {
        if row.context_len < self.max_total_tokens {
            self.row(row.slot, row.context_len..row.context_len + 1)[0].store(token, Ordering::Relaxed);
        }
    }

    /// Returns the tokens of `slot` at `positions`.
    pub fn tokens(&self, slot: usize, positions: Range<usize>) -> impl Iterator<Item = i32> {
        self.row(slot, positions).iter().map(|entry| entry.load(Ordering::Relaxed))
    }

    fn row(&self, slot: usize, positions: Range<usize>) -> &[AtomicI32] {
        &self.tokens[slot * self.max_total_tokens..][positions]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampled_tokens_are_read_back() {
        let history = TokenHistory::new(2, 4);
        let mut batch = Batch::default();
        batch.push_row(1, 0, &[10, 11], &[]);
        assert_eq!(history.current_tokens(&batch), [10, 11]);
        history.append(&batch.rows[0], 12);
        let mut batch = Batch::default();
        batch.push_row(0, 0, &[7], &[]);
        batch.push_row(1, 2, &[SAMPLED_TOKEN], &[]);
        assert_eq!(history.current_tokens(&batch), [7, 12]);
        assert_eq!(history.tokens(1, 0..3).collect::<Vec<_>>(), [10, 11, 12]);
    }

    #[test]
    fn a_full_row_takes_no_token() {
        let history = TokenHistory::new(2, 2);
        let mut batch = Batch::default();
        batch.push_row(0, 0, &[1, 2], &[]);
        history.current_tokens(&batch);
        history.append(&batch.rows[0], 3);
        assert_eq!(history.tokens(1, 0..2).collect::<Vec<_>>(), [0, 0]);
    }
}
