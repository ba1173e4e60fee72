//! The layout of the KV cache in programs that libtpu compiles. The test needs libtpu, but no TPU.

use std::path::Path;

use devices::plugins::testing::with_libtpu;
use pjrt::Value;

use super::fake::tpu_platform;
use super::text::model_with;
use crate::ahead::AheadOfTime;
use backend::StateLayout;

/// Keys and values that are together larger than any fast memory, so that no program copies them there.
const LAYOUT: StateLayout =
    StateLayout { num_slots: 8, num_blocks: 1 << 17, max_total_tokens: 2048, max_batch_prefill_tokens: 32 };

/// Without a fixed layout, libtpu lays out a cache whose width is no multiple of 128 with its blocks as the fastest
/// dimension, and each step copies the whole cache.
#[test]
fn narrow_caches_are_read_once() {
    with_libtpu(module_path!(), "narrow_caches_are_read_once", |path: &Path| {
        for topology in ["v5e:1x1", "v6e:1x1"] {
            let options = [("chips_per_host_bounds", Value::I64List(vec![1, 1, 1])), ("num_slices", Value::I64(1))];
            let ahead = AheadOfTime::open(tpu_platform(), Some(path), topology, &options).unwrap();
            for width in [32, 64, 96, 192, 320, 512] {
                let mut programs = ahead.programs(&model_with(width), LAYOUT).unwrap();
                programs.retain(|program| program.name == "decode_8");
                let figures = ahead.compile(&programs, None, &mut |_, _, _| ()).unwrap();
                let cost = figures[0].cost.unwrap();
                let ratio = cost.read_bytes as f64 / cost.minimum_bytes as f64;
                assert!((0.9..1.1).contains(&ratio), "{topology}, {width}: {ratio}, {cost:?}");
                let tokens = (LAYOUT.num_blocks * backend::BLOCK_SIZE) as u64;
                let planned = tokens * ahead.state_bytes(&model_with(width)).per_token;
                // The token history is updated in place too.
                let others = cost.alias_bytes as f64 - planned as f64;
                assert!((0.0..1e6).contains(&others), "{topology}, {width}: {} of {planned} bytes", cost.alias_bytes);
            }
        }
    });
}
