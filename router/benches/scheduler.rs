//! A step of the scheduler, a lookup in the prefix cache, and the block allocator.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::Criterion;
use router::bench::{KvPoolBench, SchedulerBench};

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    for num_rows in [32, 256] {
        // Answers so long that hardly anybody ends, and such that five of 256 rows end and five are admitted in a step.
        for (name, max_new_tokens) in [("decode", 4096), ("decode and admit", 50)] {
            let mut bench = SchedulerBench::new(num_rows, 64, max_new_tokens, Instant::now);
            criterion.bench_function(&format!("step of {num_rows} rows, {name}"), |bencher| {
                bencher.iter_custom(|num_steps| (0..num_steps).map(|_| bench.step()).sum::<Duration>());
            });
        }
    }
    let mut pool = KvPoolBench::new(65_536, 4096);
    assert_eq!(pool.lookup(), 256);
    criterion.bench_function("prefix lookup of 4096 tokens", |bencher| bencher.iter(|| black_box(&pool).lookup()));
    criterion.bench_function("16 blocks taken and given back", |bencher| {
        bencher.iter(|| pool.open_and_close(black_box(16)));
    });
    criterion.final_summary();
}
