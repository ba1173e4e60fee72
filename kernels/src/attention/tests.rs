//! Tests of paged attention for every type of cache: the output agrees with f64, and the output of a token depends only
//! on its own context.

use half::{bf16, f16};
use proptest::prelude::*;

use super::cache::Stored;
use super::*;
use crate::testing::numbers;

const NUM_BLOCKS: usize = 64;
const KV_TYPES: [KvType; 4] = [KvType::F32, KvType::F16, KvType::Bf16, KvType::Int8];

/// The contexts of some rows in scattered blocks, with the queries of all their tokens.
struct Scene {
    isa: Isa,
    shape: AttentionShape,
    /// The number of tokens in the context of each row.
    context_lens: Vec<usize>,
    block_tables: Vec<Vec<u32>>,
    /// One per row, `[context, num_heads, head_dim]`.
    q: Vec<Vec<f32>>,
    /// One pair per row, `[context, num_kv_heads, head_dim]` and `[context, num_kv_heads, value_dim]`.
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
    /// One per head, or `None`.
    sinks: Option<Vec<f32>>,
    slopes: Option<Vec<f32>>,
    cache: KvCache,
    /// True if the cache stores only keys, and `v` is not read.
    is_latent: bool,
}

impl Scene {
    fn new(shape: AttentionShape, (isa, kv_type): (Isa, KvType), context_lens: &[usize]) -> Self {
        // 37 and 64 have no common factor, so no block is taken twice, and their order is scattered.
        let mut blocks = (0..NUM_BLOCKS).map(|block| (block * 37 % NUM_BLOCKS) as u32);
        let block_tables =
            context_lens.iter().map(|len| blocks.by_ref().take(len.div_ceil(shape.block_size)).collect());
        let block_tables: Vec<Vec<u32>> = block_tables.collect();
        let fill = |width: usize, seed: usize| {
            let lens = context_lens.iter().enumerate();
            lens.map(|(row, len)| numbers(len * width, (seed + 10 * row) as u64)).collect::<Vec<_>>()
        };
        let (q, k, v) = (fill(shape.q_width(), 1), fill(shape.key_width(), 2), fill(shape.value_width(), 3));
        let AttentionShape { num_kv_heads, block_size, head_dim, value_dim, .. } = shape;
        let cache = KvCache::zeros(kv_type, [NUM_BLOCKS, num_kv_heads, block_size], [head_dim, value_dim]);
        let (context_lens, cache) = (context_lens.to_vec(), unwritten(cache.expect("there is memory")));
        Self { isa, shape, context_lens, block_tables, q, k, v, sinks: None, slopes: None, cache, is_latent: false }
    }

    /// Returns a scene whose values are the first numbers of its keys.
    fn latent(shape: AttentionShape, (isa, kv_type): (Isa, KvType), context_lens: &[usize]) -> Self {
        let AttentionShape { num_kv_heads, block_size, head_dim, value_dim, .. } = shape;
        let cache = KvCache::latent(kv_type, [NUM_BLOCKS, num_kv_heads, block_size], [head_dim, value_dim]);
        let cache = unwritten(cache.expect("there is memory"));
        Self { cache, is_latent: true, ..Self::new(shape, (isa, kv_type), context_lens) }
    }

    /// Returns the same scene, with sinks if `has_sinks` and slopes if `has_slopes`. Some sinks are smaller than all
    /// scores, some are larger.
    fn with(mut self, [has_sinks, has_slopes]: [bool; 2]) -> Self {
        let slopes = || (0..self.shape.num_heads).map(|head| 0.5_f32.powi(head as i32)).collect();
        self.slopes = has_slopes.then(slopes);
        self.sinks = has_sinks.then(|| numbers(self.shape.num_heads, 9).iter().map(|number| 20.0 * number).collect());
        self
    }

    /// Runs one step with `tokens[row]` more tokens of each row, after the `done[row]` tokens of earlier steps. Returns
    /// its output.
    fn step(&mut self, done: &[usize], tokens: &[usize]) -> Vec<f32> {
        let mut rows = Vec::new();
        let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
        let shape = &self.shape;
        let (q_width, key_width, value_width) = (shape.q_width(), shape.key_width(), shape.value_width());
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
            k.extend_from_slice(&self.k[row][start * key_width..end * key_width]);
            v.extend_from_slice(&self.v[row][start * value_width..end * value_width]);
        }
        write_kv(&self.shape, &rows, [&k, &v], &mut self.cache);
        let mut out = vec![f32::NAN; first_token * self.shape.out_width()];
        let heads = HeadScores { sinks: self.sinks.as_deref(), slopes: self.slopes.as_deref() };
        Attention { isa: self.isa, shape: &self.shape, rows: &rows, q: &q[..], heads, cache: &self.cache }
            .compute(&mut out);
        out
    }

    fn whole(&mut self) -> Vec<f32> {
        let (done, tokens) = (vec![0; self.context_lens.len()], self.context_lens.clone());
        self.step(&done, &tokens)
    }

    /// Rounds the scaled queries to bf16, as products of bf16 pairs do.
    fn round_queries(&mut self) {
        let scale = self.shape.scale;
        self.q.iter_mut().flatten().for_each(|q| *q = bf16::from_f32(*q * scale).to_f32() / scale);
    }

    /// Returns the output of every row, one row after the other. It is computed in f64 from keys and values as a cache
    /// of `kv_type` stores them.
    fn exact(&self, kv_type: KvType) -> Vec<f64> {
        let rows = 0..self.context_lens.len();
        let exact_row = |row: usize| {
            let AttentionShape { head_dim, value_dim, .. } = self.shape;
            let (v, dim) = if self.is_latent { (&self.k, head_dim) } else { (&self.v, value_dim) };
            let kv = [(&self.k, head_dim), (v, dim)];
            let kv = kv.map(|(kv, dim)| kv[row].chunks(dim).map(|head| kept(kv_type, head)).collect());
            (0..self.context_lens[row]).flat_map(move |token| self.exact_token(&self.q[row], &kv, token))
        };
        rows.flat_map(exact_row).collect()
    }

    /// Returns the output of one token. Keys are `[context, num_kv_heads][head_dim]`, values `[context,
    /// num_kv_heads][value_dim]`.
    fn exact_token(&self, q: &[f32], [k, v]: &[Vec<Vec<f64>>; 2], token: usize) -> Vec<f64> {
        let AttentionShape { num_heads, num_kv_heads, head_dim, value_dim, block_size: _, scale, window, soft_cap } =
            self.shape;
        let mut out = Vec::new();
        for head in 0..num_heads {
            let kv_head = head / (num_heads / num_kv_heads);
            let q = &q[(token * num_heads + head) * head_dim..][..head_dim];
            let first = match window {
                None => 0,
                Some(Window::Sliding(num_keys)) => (token + 1).saturating_sub(num_keys),
                Some(Window::Chunked(num_keys)) => token - token % num_keys,
            };
            let capped = |score: f64| soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh());
            let slope = self.slopes.as_ref().map_or(0.0, |slopes| f64::from(slopes[head]));
            let bias = |key: usize| slope * (key as f64 - token as f64);
            let weights: Vec<f64> = (first..=token)
                .map(|key| q.iter().zip(&k[key * num_kv_heads + kv_head]).map(|(q, k)| f64::from(*q) * k).sum::<f64>())
                .zip(first..)
                .map(|(product, key)| (capped(product * f64::from(scale)) + bias(key)).exp())
                .collect();
            let sink = self.sinks.as_ref().map_or(0.0, |sinks| f64::from(sinks[head]).exp());
            let sum: f64 = weights.iter().sum::<f64>() + sink;
            let mut gathered = vec![0.0; value_dim];
            for (key, weight) in (first..).zip(&weights) {
                let v = &v[key * num_kv_heads + kv_head];
                gathered.iter_mut().zip(v).for_each(|(to, v)| *to += weight / sum * v);
            }
            out.extend(gathered);
        }
        out
    }
}

/// Returns `cache` with NaN for all keys and values.
fn unwritten(mut cache: KvCache) -> KvCache {
    // With all bits set but the sign, an f16 and a bf16 are NaN.
    match &mut cache.0 {
        TypedCache::F32(cache) => cache.each(|stored| stored.numbers.fill(f32::NAN)),
        TypedCache::F16(cache) => cache.each(|stored| stored.numbers.fill(0x7fff)),
        TypedCache::Bf16(cache) => cache.each(|stored| stored.numbers.fill(0x7fff)),
        TypedCache::Int8(cache) => cache.each(|stored| stored.scales.fill(f32::NAN)),
    }
    cache
}

impl<E: KvElement> KeysAndValues<E> {
    fn each(&mut self, change: impl Fn(&mut Stored<E>)) {
        std::iter::once(&mut self.k).chain(&mut self.v).for_each(change);
    }
}

/// Returns a vector as a cache of `kv_type` stores it.
fn kept(kv_type: KvType, numbers: &[f32]) -> Vec<f64> {
    let largest = numbers.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
    let kept = |number: f32| match kv_type {
        KvType::F32 => f64::from(number),
        KvType::F16 => f16::from_f32(number).to_f64(),
        KvType::Bf16 => bf16::from_f32(number).to_f64(),
        KvType::Int8 if largest == 0.0 => 0.0,
        KvType::Int8 => f64::from((number * (127.0 / largest)).round_ties_even()) * f64::from(largest / 127.0),
    };
    numbers.iter().map(|number| kept(*number)).collect()
}

/// Returns the output of a token that attends only to its own value.
fn written_and_read(kv_type: KvType, value: &[f32]) -> Vec<f32> {
    let shape = shape(1, 1, value.len());
    let row = AttentionRow { first_token: 0, num_tokens: 1, context_len: 1, block_table: &[0] };
    let mut cache = KvCache::zeros(kv_type, [1, 1, shape.block_size], [value.len(); 2]).expect("there is memory");
    let zeros = vec![0.0; value.len()];
    write_kv(&shape, &[row], [&zeros, value], &mut cache);
    let mut out = zeros.clone();
    paged_attention(&shape, &[row], (&zeros, HeadScores::default()), &cache, &mut out);
    out
}

/// Returns half the distance of adjacent numbers of the type, as a share of the largest number of a vector.
fn half_unit(kv_type: KvType) -> f64 {
    match kv_type {
        KvType::F32 => 0.0,
        KvType::F16 => 2.0_f64.powi(-11),
        KvType::Bf16 => 2.0_f64.powi(-8),
        KvType::Int8 => 0.5 / 127.0,
    }
}

/// Returns every instruction set with every type of cache.
fn isas_and_types() -> impl Iterator<Item = (Isa, KvType)> {
    Isa::available().into_iter().flat_map(|isa| KV_TYPES.map(|kv_type| (isa, kv_type)))
}

/// True if queries and attention weights are rounded to bf16 too.
fn has_bf16_products(isa: Isa, kv_type: KvType) -> bool {
    isa.rounds_to_bf16() && matches!(kv_type, KvType::Bf16 | KvType::Int8)
}

/// Returns the largest error from rounding weights to bf16, as a share of the largest value. Weights are at most 1, and
/// half a unit there is 2^-9. For int8 they are multiplied by the scale factors of the values, and half a unit just
/// above a power of two is 2^-8.
fn weight_error(kv_type: KvType) -> f64 {
    2.0_f64.powi(if kv_type == KvType::Int8 { -8 } else { -9 })
}

fn shape(num_heads: usize, num_kv_heads: usize, head_dim: usize) -> AttentionShape {
    // The scale is larger than usual, to make the weights differ much.
    let scale = 2.0 / (head_dim as f32).sqrt();
    let (value_dim, block_size) = (head_dim, 16);
    AttentionShape { num_heads, num_kv_heads, head_dim, value_dim, block_size, scale, window: None, soft_cap: None }
}

fn check_against_f64(shape: AttentionShape, context_lens: &[usize]) {
    check_with(shape, context_lens, [false; 2]);
}

fn check_with(shape: AttentionShape, context_lens: &[usize], added: [bool; 2]) {
    check_scenes(shape, |types| Scene::new(shape, types, context_lens).with(added));
}

fn check_latent(shape: AttentionShape, context_lens: &[usize]) {
    check_scenes(shape, |types| Scene::latent(shape, types, context_lens));
}

/// Checks the scenes for every instruction set and type of cache.
fn check_scenes(shape: AttentionShape, scene: impl Fn((Isa, KvType)) -> Scene) {
    // A capped score is at most the cap. Its rounding error (2^-24 of tanh, and of the product) grows with the cap.
    let tolerance = 2e-6 + f64::from(shape.soft_cap.unwrap_or(0.0)) * 2.0_f64.powi(-22);
    for kv_type in KV_TYPES {
        // The exact outputs without and with rounded queries. Each is computed once, because f64 takes longer than all
        // instruction sets together.
        let mut exact = [None, None];
        for isa in Isa::available() {
            let rounds = has_bf16_products(isa, kv_type);
            let tolerance = if rounds { tolerance + weight_error(kv_type) } else { tolerance };
            let exact = exact[usize::from(rounds)].get_or_insert_with(|| {
                let mut scene = scene((isa, kv_type));
                if rounds {
                    scene.round_queries();
                }
                scene.exact(kv_type)
            });
            let mut scene = scene((isa, kv_type));
            for (idx, (value, exact)) in scene.whole().iter().zip(exact.iter()).enumerate() {
                let error = (f64::from(*value) - exact).abs();
                let what = format!("{isa} {kv_type} {shape:?} {:?}", scene.context_lens);
                assert!(error <= tolerance, "{what}: value {idx} is {value}, not {exact}");
            }
        }
    }
}

/// Returns a strategy for windows, shorter and longer than a chunk, or none.
fn any_window() -> impl Strategy<Value = Option<Window>> {
    let num_keys = prop_oneof![1_usize..15, 1_usize..150];
    let window = (num_keys, any::<bool>()).prop_map(|(num_keys, is_chunked)| {
        if is_chunked { Window::Chunked(num_keys) } else { Window::Sliding(num_keys) }
    });
    proptest::option::of(window)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn any_shape_agrees_with_f64(
        group_size in 1_usize..6,
        num_kv_heads in 1_usize..4,
        head_dim in 1_usize..100,
        value_dim in proptest::option::of(1_usize..100),
        block_size in prop_oneof![Just(16), Just(32)],
        context_lens in proptest::collection::vec(prop_oneof![1_usize..20, 1_usize..200], 1..4),
        window in any_window(),
        soft_cap in proptest::option::of(0.5_f32..30.0),
        [has_sinks, has_slopes] in any::<[bool; 2]>(),
    ) {
        let plain = shape(group_size * num_kv_heads, num_kv_heads, head_dim);
        let value_dim = value_dim.unwrap_or(head_dim);
        let shape = AttentionShape { value_dim, block_size, window, soft_cap, ..plain };
        check_with(shape, &context_lens, [has_sinks, has_slopes]);
    }

    #[test]
    fn the_cut_of_a_prompt_does_not_change_a_bit(cuts in proptest::collection::vec(1_usize..60, 1..12), group_size in 1_usize..5, head_dim in prop_oneof![Just(48), Just(64)], window in any_window()) {
        let context_len: usize = cuts.iter().sum();
        let shape = AttentionShape { window, soft_cap: window.map(|_| 3.0), ..shape(2 * group_size, 2, head_dim) };
        for (isa, kv_type) in isas_and_types() {
            let added = [group_size % 2 == 0, group_size % 3 == 0];
            let whole = Scene::new(shape, (isa, kv_type), &[context_len]).with(added).whole();
            let mut scene = Scene::new(shape, (isa, kv_type), &[context_len]).with(added);
            let mut done = 0;
            for tokens in &cuts {
                let out = scene.step(&[done], &[*tokens]);
                prop_assert_eq!(&out[..], &whole[done * shape.q_width()..(done + tokens) * shape.q_width()]);
                done += tokens;
            }
        }
    }

    #[test]
    fn numbers_are_rounded_to_the_nearest(numbers in proptest::collection::vec(-1e4_f32..1e4, 1..40)) {
        let largest = numbers.iter().fold(0.0_f64, |largest, number| largest.max(f64::from(number.abs())));
        for kv_type in KV_TYPES {
            for (kept, number) in written_and_read(kv_type, &numbers).into_iter().zip(&numbers) {
                // The scale factor of integers is rounded too.
                let mut most = largest * half_unit(kv_type) * (1.0 + 1e-4);
                if kv_type == KvType::Int8 && has_bf16_products(isa::active(), kv_type) {
                    most += largest * weight_error(kv_type);
                }
                let error = (f64::from(kept) - f64::from(*number)).abs();
                prop_assert!(error <= most, "{}: {} is kept as {}", kv_type, number, kept);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn values_in_keys_agree_with_f64(
        group_size in 1_usize..10,
        num_kv_heads in 1_usize..3,
        (head_dim, share) in (1_usize..100, 0.0_f64..1.0),
        context_lens in proptest::collection::vec(prop_oneof![1_usize..20, 1_usize..200], 1..4),
        window in any_window(),
    ) {
        let value_dim = 1 + (share * head_dim as f64) as usize;
        let plain = shape(group_size * num_kv_heads, num_kv_heads, head_dim);
        check_latent(AttentionShape { value_dim, window, ..plain }, &context_lens);
    }
}

/// The sizes of DeepSeek V3 on eight ranks.
#[test]
fn latent_values_have_the_same_bits_however_a_prompt_is_cut() {
    let shape = AttentionShape { value_dim: 512, ..shape(16, 1, 576) };
    check_latent(shape, &[70]);
    for (isa, kv_type) in isas_and_types() {
        let whole = Scene::latent(shape, (isa, kv_type), &[150]).whole();
        let mut scene = Scene::latent(shape, (isa, kv_type), &[150]);
        let mut done = 0;
        for tokens in [70, 1, 1, 60, 18] {
            let out = scene.step(&[done], &[tokens]);
            let width = shape.out_width();
            assert_eq!(out, whole[done * width..(done + tokens) * width], "{isa} {kv_type}");
            done += tokens;
        }
    }
}

#[test]
fn usual_head_sizes_agree_with_f64() {
    for head_dim in [64, 80, 96, 128, 256] {
        check_against_f64(shape(4, 2, head_dim), &[150, 70]);
    }
}

#[test]
fn values_wider_and_narrower_than_keys_agree_with_f64() {
    for (head_dim, value_dim) in [(24, 16), (16, 24), (192, 128), (64, 80), (7, 64)] {
        check_against_f64(AttentionShape { value_dim, ..shape(4, 2, head_dim) }, &[150, 70]);
    }
}

/// A sink that is far larger than all scores takes all the weight.
#[test]
fn sinks_have_weights_and_no_values() {
    for (window, kv_dim) in
        [(None, 64), (Some(Window::Sliding(128)), 64), (Some(Window::Chunked(90)), 64), (Some(Window::Sliding(7)), 20)]
    {
        check_with(AttentionShape { window, ..shape(8, 2, kv_dim) }, &[150, 300, 1], [true, false]);
    }
    for (isa, kv_type) in isas_and_types() {
        let mut scene = Scene::new(shape(2, 1, 64), (isa, kv_type), &[70]);
        scene.sinks = Some(vec![1e4, -1e4]);
        let plain = Scene::new(shape(2, 1, 64), (isa, kv_type), &[70]).whole();
        for (token, plain) in scene.whole().chunks(128).zip(plain.chunks(128)) {
            assert!(token[..64].iter().all(|value| *value == 0.0), "{isa} {kv_type}");
            assert_eq!(token[64..], plain[64..], "{isa} {kv_type}");
        }
    }
}

#[test]
fn windows_longer_and_shorter_than_a_chunk_agree_with_f64() {
    for num_keys in [1, 7, 63, 64, 65, 130] {
        for window in [Window::Sliding(num_keys), Window::Chunked(num_keys)] {
            check_against_f64(AttentionShape { window: Some(window), ..shape(4, 2, 32) }, &[300, 70]);
        }
    }
}

#[test]
fn smaller_types_are_as_near_as_their_rounding() {
    let shape = shape(4, 2, 64);
    for (isa, kv_type) in isas_and_types() {
        let mut scene = Scene::new(shape, (isa, kv_type), &[150, 70]);
        // All numbers are at most 1. The error of a score is at most half a unit per dimension. It changes a weight,
        // and the sum of weights, by at most the factor e^error each. The rounding of the values adds half a unit.
        let score_error = half_unit(kv_type) * f64::from(shape.scale) * shape.head_dim as f64;
        let most = (2.0 * score_error).exp_m1() + half_unit(kv_type) + 2e-6;
        for (value, exact) in scene.whole().iter().zip(scene.exact(KvType::F32)) {
            assert!((f64::from(*value) - exact).abs() <= most, "{isa} {kv_type}: {value} instead of {exact}");
        }
    }
}

#[test]
fn a_row_is_the_same_alone_and_among_others() {
    let shape = shape(6, 2, 64);
    let context_lens = [100, 1, 65, 64, 200, 17];
    for (isa, kv_type) in isas_and_types() {
        let together = Scene::new(shape, (isa, kv_type), &context_lens).whole();
        let mut scene = Scene::new(shape, (isa, kv_type), &context_lens);
        let mut start = 0;
        for (row, len) in context_lens.into_iter().enumerate() {
            let mut tokens = [0; 6];
            tokens[row] = len;
            let alone = scene.step(&[0; 6], &tokens);
            assert_eq!(alone, together[start..start + alone.len()], "{isa} {kv_type}: row {row}");
            start += alone.len();
        }
    }
}

#[test]
fn decode_rows_ride_along_with_a_prompt() {
    let shape = shape(4, 4, 32);
    let context_lens = [90, 130];
    for (isa, kv_type) in isas_and_types() {
        let whole = Scene::new(shape, (isa, kv_type), &context_lens).whole();
        let mut scene = Scene::new(shape, (isa, kv_type), &context_lens);
        scene.step(&[0, 0], &[89, 0]);
        let out = scene.step(&[89, 0], &[1, 130]);
        assert_eq!(out, whole[89 * shape.q_width()..], "{isa} {kv_type}");
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    for (isa, kv_type) in isas_and_types() {
        // With more threads than key heads, threads share the query heads of a key head.
        for (shape, lens) in [(shape(8, 2, 64), &[150, 90][..]), (shape(20, 1, 64), &[150])] {
            let [one, two, many] = [1, 2, 7].map(|num_threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(num_threads).build().unwrap();
                pool.install(|| {
                    let mut scene = Scene::new(shape, (isa, kv_type), lens).with([true; 2]);
                    let before: Vec<usize> = lens.iter().map(|len| len - 1).collect();
                    [scene.step(&vec![0; lens.len()], &before), scene.step(&before, &vec![1; lens.len()])]
                })
            });
            assert!(one == two && one == many, "{isa} {kv_type} {shape:?}");
        }
    }
}

#[test]
fn fused_instruction_sets_agree_bit_for_bit() {
    let shape = shape(6, 2, 72);
    for kv_type in KV_TYPES {
        let is_fused = |isa: &Isa| *isa != Isa::Portable && !has_bf16_products(*isa, kv_type);
        let fused = Isa::available().into_iter().filter(is_fused);
        let results: Vec<Vec<f32>> = fused.map(|isa| Scene::new(shape, (isa, kv_type), &[150]).whole()).collect();
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{kv_type}");
    }
}

#[test]
fn a_bad_key_spoils_the_queries_that_attend_to_it() {
    for ((isa, kv_type), (head_dim, num_tokens, bad_token)) in
        isas_and_types().flat_map(|isa_and_type| [(isa_and_type, (20, 30, 17)), (isa_and_type, (64, 200, 70))])
    {
        let shape = shape(2, 1, head_dim);
        for bad in [f32::NAN, f32::INFINITY] {
            let mut scene = Scene::new(shape, (isa, kv_type), &[num_tokens]);
            let sound = scene.whole();
            scene.v[0][bad_token * shape.value_width() + 3] = bad;
            scene.k[0][bad_token * shape.key_width() + 3] = bad;
            let out = scene.whole();
            let (before, after) = out.split_at(bad_token * shape.q_width());
            assert_eq!(before, &sound[..before.len()], "{isa} {kv_type} {bad}");
            let is_seen = |token: &[f32]| token.iter().any(|value| !value.is_finite());
            assert!(after.chunks(shape.q_width()).all(is_seen), "{isa} {kv_type} {bad}");
        }
    }
}

#[test]
fn a_bad_key_before_the_window_spoils_no_query() {
    let (sliding, chunked) = (Window::Sliding(9), Window::Chunked(9));
    // The bad token is in the same chunk as the window, or in the previous chunk.
    for (window, num_tokens, bad_token) in [(sliding, 30, 17), (sliding, 70, 3), (chunked, 30, 26), (chunked, 70, 3)] {
        let shape = AttentionShape { window: Some(window), ..shape(2, 1, 20) };
        for (isa, kv_type) in isas_and_types() {
            let mut scene = Scene::new(shape, (isa, kv_type), &[num_tokens]);
            let mut last_token = |bad: f32| {
                for kv in [&mut scene.k, &mut scene.v] {
                    kv[0][bad_token * shape.key_width() + 3] = bad;
                }
                scene.step(&[0], &[num_tokens - 1]);
                scene.step(&[num_tokens - 1], &[1])
            };
            let sound = last_token(0.5);
            assert!(sound.iter().all(|value| value.is_finite()), "{isa} {kv_type}");
            for bad in [f32::NAN, f32::INFINITY] {
                assert_eq!(last_token(bad), sound, "{isa} {kv_type} {bad} {num_tokens}");
            }
        }
    }
}

#[test]
fn halves_out_of_range_become_the_largest() {
    let kept = written_and_read(KvType::F16, &[7e4, -1e30, 3.0, 65504.0]);
    assert_eq!(kept, [65504.0, -65504.0, 3.0, 65504.0]);
}

#[test]
fn a_cache_takes_what_its_vectors_take() {
    for (kv_type, bytes) in [(KvType::F32, 400), (KvType::F16, 200), (KvType::Bf16, 200), (KvType::Int8, 104)] {
        assert_eq!(kv_type.bytes_per_vector(100), bytes, "{kv_type}");
        assert_eq!(KvCache::zeros(kv_type, [1, 3, 16], [100, 100]).unwrap().size_bytes(), 2 * 48 * bytes, "{kv_type}");
    }
}

#[test]
#[should_panic(expected = "a context of 17 tokens has only 1 blocks")]
fn a_short_block_table_panics() {
    let row = AttentionRow { first_token: 0, num_tokens: 1, context_len: 17, block_table: &[0] };
    let mut cache = KvCache::zeros(KvType::F32, [1, 1, 16], [4, 4]).unwrap();
    write_kv(&shape(1, 1, 4), &[row], [&[0.0; 4], &[0.0; 4]], &mut cache);
}
