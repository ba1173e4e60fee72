//! Token embedding, and the output layer that may share its table.
//!
//! Entry point: [`Embedding`]. Ranks split the vocabulary.

use super::{Linear, WeightScope};
use crate::graph::{Graph, GraphError, Partition, Value, WeightSpec};

/// A table of vectors, one per token of the vocabulary (or one per position).
#[derive(Debug, Clone)]
pub(crate) struct Embedding {
    table: WeightSpec,
}

impl Embedding {
    /// Returns the embedding with the table `weight` of `scope`.
    pub(crate) fn new(scope: &WeightScope, vocab_size: usize, hidden_size: usize) -> Self {
        Self { table: scope.weight("weight", &[vocab_size, hidden_size], Partition::Vocab) }
    }

    /// ids `[tokens]` → `[tokens, hidden]`
    pub(crate) fn apply(&self, graph: &mut Graph, tokens: Value) -> Result<Value, GraphError> {
        let table = graph.weight(&self.table); // [vocab, hidden]
        let embedded = graph.embedding(table, tokens)?; // [tokens, hidden]
        if self.table.num_ranks == 1 { Ok(embedded) } else { graph.all_reduce(embedded) } // [tokens, hidden]
    }

    /// Returns the output layer of a model with tied word embeddings, which shares the embedding's table.
    pub(crate) fn tied_head(&self) -> Linear {
        Linear::vocab(self.table.clone())
    }
}
