//! Text to tokens and back, with the demo model's byte-level tokenizer. Throughput is in tokens.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use router::bench::Text;

const ENGLISH: &str = "Once upon a time there was a little girl who lived near the forest with her old grandmother. ";
const OTHERS: &str = "naïve café, 漢字かな交じり文, Привет мир, 👩‍👩‍👧 🦜🦜. ";

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let tokenizer = Text::demo();
    for (name, text) in [("English", ENGLISH.repeat(8)), ("many bytes per character", OTHERS.repeat(8))] {
        let token_ids = tokenizer.tokenize(&text);
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Elements(token_ids.len() as u64));
        group.bench_function("tokenize", |bencher| bencher.iter(|| tokenizer.tokenize(black_box(&text))));
        group.bench_function("detokenize one by one", |bencher| {
            bencher.iter(|| tokenizer.detokenize(black_box(&token_ids)));
        });
        group.finish();
    }
    criterion.final_summary();
}
