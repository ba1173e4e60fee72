//! Paged attention against f64, and the promise that a token's output depends on its own context alone.

use proptest::prelude::*;

use super::*;
use crate::numbers::numbers;

const NUM_BLOCKS: usize = 64;

/// A context of some rows in scattered blocks, with the queries of every one of its tokens.
struct Scene {
    shape: AttentionShape,
    /// Of every row: tokens in its context.
    context_lens: Vec<usize>,
    block_tables: Vec<Vec<u32>>,
    /// Of every row: `[context, num_heads, head_dim]`.
    q: Vec<Vec<f32>>,
    /// Of every row: `[context, num_kv_heads, head_dim]`.
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
    k_cache: Vec<f32>,
    v_cache: Vec<f32>,
}

impl Scene {
    fn new(shape: AttentionShape, context_lens: &[usize]) -> Self {
        // 37 and 64 have no common factor, so every block is taken once, in scattered order.
        let mut blocks = (0..NUM_BLOCKS).map(|block| (block * 37 % NUM_BLOCKS) as u32);
        let block_tables =
            context_lens.iter().map(|len| blocks.by_ref().take(len.div_ceil(shape.block_size)).collect());
        let block_tables: Vec<Vec<u32>> = block_tables.collect();
        let fill = |width: usize, seed: usize| {
            let lens = context_lens.iter().enumerate();
            lens.map(|(row, len)| numbers(len * width, (seed + 10 * row) as u64)).collect::<Vec<_>>()
        };
        let (q, k, v) = (fill(shape.q_width(), 1), fill(shape.kv_width(), 2), fill(shape.kv_width(), 3));
        // What is not written must not matter.
        let cache = vec![f32::NAN; NUM_BLOCKS * shape.block_size * shape.kv_width()];
        let context_lens = context_lens.to_vec();
        Self { shape, context_lens, block_tables, q, k, v, k_cache: cache.clone(), v_cache: cache }
    }

    /// One step with `tokens[row]` more tokens of each row after the `done[row]` tokens of earlier steps.
    fn step(&mut self, isa: Isa, done: &[usize], tokens: &[usize]) -> Vec<f32> {
        let mut rows = Vec::new();
        let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
        let (q_width, kv_width) = (self.shape.q_width(), self.shape.kv_width());
        let mut first_token = 0;
        for row in 0..tokens.len() {
            let (start, end) = (done[row], done[row] + tokens[row]);
            rows.push(AttentionRow {
                first_token,
                num_tokens: tokens[row],
                context_len: end,
                block_table: &self.block_tables[row],
            });
            first_token += tokens[row];
            q.extend_from_slice(&self.q[row][start * q_width..end * q_width]);
            k.extend_from_slice(&self.k[row][start * kv_width..end * kv_width]);
            v.extend_from_slice(&self.v[row][start * kv_width..end * kv_width]);
        }
        write_kv(&self.shape, &rows, &k, &mut self.k_cache);
        write_kv(&self.shape, &rows, &v, &mut self.v_cache);
        let mut out = vec![f32::NAN; q.len()];
        let cache = KvCache { k: &self.k_cache, v: &self.v_cache };
        Attention { isa, shape: &self.shape, rows: &rows, q: &q, cache }.compute(&mut out);
        out
    }

    fn whole(&mut self, isa: Isa) -> Vec<f32> {
        let (done, tokens) = (vec![0; self.context_lens.len()], self.context_lens.clone());
        self.step(isa, &done, &tokens)
    }

    /// Every row's output, one row after the other, in f64.
    fn exact(&self) -> Vec<f64> {
        let rows = 0..self.context_lens.len();
        rows.flat_map(|row| (0..self.context_lens[row]).flat_map(move |token| self.exact_token(row, token))).collect()
    }

    fn exact_token(&self, row: usize, token: usize) -> Vec<f64> {
        let AttentionShape { num_heads, num_kv_heads, head_dim, block_size: _, scale, window, soft_cap } = self.shape;
        let head_of = |values: &[f32], start: usize| -> Vec<f64> {
            values[start * head_dim..(start + 1) * head_dim].iter().map(|value| f64::from(*value)).collect()
        };
        let mut out = Vec::new();
        for head in 0..num_heads {
            let kv_head = head / (num_heads / num_kv_heads);
            let q = head_of(&self.q[row], token * num_heads + head);
            let first = window.map_or(0, |window| (token + 1).saturating_sub(window));
            let capped = |score: f64| soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh());
            let weights: Vec<f64> = (first..=token)
                .map(|key| head_of(&self.k[row], key * num_kv_heads + kv_head))
                .map(|k| capped(q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() * f64::from(scale)).exp())
                .collect();
            let sum: f64 = weights.iter().sum();
            let mut gathered = vec![0.0; head_dim];
            for (key, weight) in (first..).zip(&weights) {
                let v = head_of(&self.v[row], key * num_kv_heads + kv_head);
                gathered.iter_mut().zip(v).for_each(|(to, v)| *to += weight / sum * v);
            }
            out.extend(gathered);
        }
        out
    }
}

fn shape(num_heads: usize, num_kv_heads: usize, head_dim: usize) -> AttentionShape {
    // Larger than usual, so that the weights differ much.
    let scale = 2.0 / (head_dim as f32).sqrt();
    AttentionShape { num_heads, num_kv_heads, head_dim, block_size: 16, scale, window: None, soft_cap: None }
}

fn check_against_f64(isa: Isa, shape: AttentionShape, context_lens: &[usize]) {
    let mut scene = Scene::new(shape, context_lens);
    let out = scene.whole(isa);
    // A capped score is as large as the cap: its rounding (2^-24 of tanh, and of the product) grows with it.
    let tolerance = 2e-6 + f64::from(shape.soft_cap.unwrap_or(0.0)) * 2.0_f64.powi(-22);
    for (idx, (value, exact)) in out.iter().zip(scene.exact()).enumerate() {
        let error = (f64::from(*value) - exact).abs();
        assert!(error <= tolerance, "{isa} {shape:?} {context_lens:?}: value {idx} is {value}, not {exact}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn any_shape_agrees_with_f64(
        group_size in 1_usize..6,
        num_kv_heads in 1_usize..4,
        head_dim in 1_usize..100,
        block_size in 1_usize..20,
        context_lens in proptest::collection::vec(1_usize..20, 1..4),
        window in proptest::option::of(1_usize..15),
        soft_cap in proptest::option::of(0.5_f32..30.0),
    ) {
        let plain = shape(group_size * num_kv_heads, num_kv_heads, head_dim);
        let shape = AttentionShape { block_size, window, soft_cap, ..plain };
        for isa in Isa::available() {
            check_against_f64(isa, shape, &context_lens);
        }
    }

    #[test]
    fn the_cut_of_a_prompt_does_not_change_a_bit(cuts in proptest::collection::vec(1_usize..60, 1..12), group_size in 1_usize..5, window in proptest::option::of(1_usize..150)) {
        let context_len: usize = cuts.iter().sum();
        let shape = AttentionShape { window, soft_cap: window.map(|_| 3.0), ..shape(2 * group_size, 2, 48) };
        for isa in Isa::available() {
            let whole = Scene::new(shape, &[context_len]).whole(isa);
            let mut scene = Scene::new(shape, &[context_len]);
            let mut done = 0;
            for tokens in &cuts {
                let out = scene.step(isa, &[done], &[*tokens]);
                prop_assert_eq!(&out[..], &whole[done * shape.q_width()..(done + tokens) * shape.q_width()]);
                done += tokens;
            }
        }
    }
}

#[test]
fn usual_head_sizes_agree_with_f64() {
    for isa in Isa::available() {
        for head_dim in [64, 80, 96, 128, 256] {
            check_against_f64(isa, shape(4, 2, head_dim), &[150, 70]);
        }
    }
}

#[test]
fn windows_longer_and_shorter_than_a_chunk_agree_with_f64() {
    for (isa, window) in Isa::available().into_iter().flat_map(|isa| [1, 7, 63, 64, 65, 130].map(|len| (isa, len))) {
        check_against_f64(isa, AttentionShape { window: Some(window), ..shape(4, 2, 32) }, &[300, 70]);
    }
}

#[test]
fn a_row_is_the_same_alone_and_among_others() {
    let shape = shape(6, 2, 64);
    let context_lens = [100, 1, 65, 64, 200, 17];
    for isa in Isa::available() {
        let together = Scene::new(shape, &context_lens).whole(isa);
        let mut scene = Scene::new(shape, &context_lens);
        let mut start = 0;
        for (row, len) in context_lens.into_iter().enumerate() {
            let mut tokens = [0; 6];
            tokens[row] = len;
            let alone = scene.step(isa, &[0; 6], &tokens);
            assert_eq!(alone, together[start..start + alone.len()], "{isa}: row {row}");
            start += alone.len();
        }
    }
}

#[test]
fn decode_rows_ride_along_with_a_prompt() {
    let shape = shape(4, 4, 32);
    let context_lens = [90, 130];
    for isa in Isa::available() {
        let whole = Scene::new(shape, &context_lens).whole(isa);
        let mut scene = Scene::new(shape, &context_lens);
        scene.step(isa, &[0, 0], &[89, 0]);
        let out = scene.step(isa, &[89, 0], &[1, 130]);
        assert_eq!(out, whole[89 * shape.q_width()..], "{isa}");
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let shape = shape(8, 2, 64);
    for isa in Isa::available() {
        let [one, two] = [1, 2].map(|num_threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(num_threads).build().unwrap();
            pool.install(|| Scene::new(shape, &[150, 90]).whole(isa))
        });
        assert!(one == two, "{isa}");
    }
}

#[test]
fn fused_instruction_sets_agree_bit_for_bit() {
    let shape = shape(6, 2, 72);
    let fused = Isa::available().into_iter().filter(|isa| *isa != Isa::Portable);
    let results: Vec<Vec<f32>> = fused.map(|isa| Scene::new(shape, &[150]).whole(isa)).collect();
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
#[should_panic(expected = "a context of 17 tokens in 1 blocks")]
fn a_short_block_table_panics() {
    let row = AttentionRow { first_token: 0, num_tokens: 1, context_len: 17, block_table: &[0] };
    write_kv(&shape(1, 1, 4), &[row], &[0.0; 4], &mut [0.0; 64]);
}
