//! Benchmarks of the conversion of text to tokens and back, with the demo model's byte-level tokenizer. Throughput is
//! in tokens per second.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use model_files::ModelFiles;
use router::{Detokenizer, Tokenizer};

const ENGLISH: &str = "Once upon a time there was a little girl who lived near the forest with her old grandmother. ";
const OTHERS: &str = "naïve café, 漢字かな交じり文, Привет мир, 👩‍👩‍👧 🦜🦜. ";

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let tokenizer = Tokenizer::load(&ModelFiles::Demo).expect("the demo model has a tokenizer");
    for (name, text) in [("English", ENGLISH.repeat(8)), ("many bytes per character", OTHERS.repeat(8))] {
        let token_ids = tokenizer.tokenize(&text).expect("the vocabulary has all bytes");
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Elements(token_ids.len() as u64));
        group.bench_function("tokenize", |bencher| bencher.iter(|| tokenizer.tokenize(black_box(&text))));
        group.bench_function("detokenize one by one", |bencher| {
            bencher.iter(|| detokenize(&tokenizer, black_box(&token_ids)));
        });
        group.finish();
    }
    criterion.final_summary();
}

/// Detokenizes one token after the other, as for a streamed answer to an empty prompt. Returns the number of bytes of
/// text.
fn detokenize(tokenizer: &Tokenizer, token_ids: &[u32]) -> usize {
    let mut detokenizer = Detokenizer::new(tokenizer, &[]).expect("an empty prompt can be detokenized");
    let push = |&id: &u32| detokenizer.push(tokenizer, id).expect("every token has bytes").len();
    token_ids.iter().map(push).sum()
}
