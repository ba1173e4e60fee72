//! What `benches/` reach of this crate's private rooms. No interface: it follows the rooms.

use model_files::ModelFiles;

use crate::text::{Detokenizer, Tokenizer};

pub use scheduler::bench::{KvPoolBench, SchedulerBench};

/// The demo model's tokenizer, and texts in its tokens.
#[derive(Debug)]
pub struct Text {
    tokenizer: Tokenizer,
}

impl Text {
    /// Loads the tokenizer.
    ///
    /// # Panics
    /// Never: it is part of the executable.
    pub fn demo() -> Self {
        Self { tokenizer: Tokenizer::load(&ModelFiles::Demo).expect("the demo model has a tokenizer") }
    }

    /// Token ids of a text.
    ///
    /// # Panics
    /// Never: the vocabulary has all bytes.
    pub fn tokenize(&self, text: &str) -> Vec<u32> {
        self.tokenizer.tokenize(text).expect("the vocabulary has all bytes")
    }

    /// Detokenizes one token after the other behind an empty prompt, as a stream does. Bytes of text.
    ///
    /// # Panics
    /// Never: every token has bytes.
    pub fn detokenize(&self, token_ids: &[u32]) -> usize {
        let mut detokenizer = Detokenizer::new(&self.tokenizer, &[]).expect("no token has no text");
        let push = |&id: &u32| detokenizer.push(&self.tokenizer, id).expect("every token has bytes").len();
        token_ids.iter().map(push).sum()
    }
}
