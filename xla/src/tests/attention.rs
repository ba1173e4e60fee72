//! Tests of attention over the paged KV cache: rows that decode and rows that read prompts, every head form, and
//! several chunks of context.
//!
//! Blocks that belong to no row, and the ends of blocks after a row's context, contain NaN and infinity, which must not
//! reach an output.

use backend::{BLOCK_SIZE, Batch, ModelGraphs};
use devices::{DecodeAttention, DecodeLoop, HeadForm};
use kernels::attention::KvType;
use model::graph::{AttentionSpec, Slopes, StateSpec, ValuesIn, Window};
use proptest::prelude::*;

use super::case::layout;
use super::kernel::kernel_output;
use super::*;
use crate::platform::Platform;
use crate::program::{ProgramForm, ProgramKey, Programs};
use crate::stablehlo::{QUERY_TILE, Sizes};

/// Heads of one layer.
#[derive(Debug, Clone, Copy)]
struct Heads {
    kv_heads: usize,
    /// Query heads per KV head.
    group: usize,
    head_dim: usize,
    value_dim: usize,
    /// True if a value is the first numbers of its key.
    is_latent: bool,
}

/// The bounds of attention: a window limits the keys that a query sees, and a soft cap limits the scores. Sinks limit
/// the sum of the weights. Slopes lower the scores of distant keys.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    window: Option<Window>,
    soft_cap: Option<f32>,
    has_sinks: bool,
    has_slopes: bool,
}

/// The numbers of tokens of each row before the step, and in it.
type Lens = Vec<(usize, usize)>;

fn heads() -> impl Strategy<Value = Heads> {
    let dims = prop::sample::select(vec![[4_usize; 2], [8; 2], [20; 2], [24, 16], [4, 12]]);
    (1..4usize, 1..4usize, dims, any::<bool>()).prop_map(|(kv_heads, group, [head_dim, value_dim], is_latent)| Heads {
        kv_heads,
        group,
        head_dim,
        value_dim,
        is_latent: is_latent && value_dim <= head_dim,
    })
}

/// Returns a strategy for bounds. About half of the cases have no window, and about half have no soft cap. Windows are
/// shorter and longer than a block and than a chunk.
fn bounds() -> impl Strategy<Value = Bounds> {
    let num_keys = || prop_oneof![1..20usize, 20..700usize];
    let window = prop_oneof![num_keys().prop_map(Window::Sliding), num_keys().prop_map(Window::Chunked)];
    let all = (prop::option::of(window), prop::option::of(0.5..4.0_f32), any::<bool>(), any::<bool>());
    all.prop_map(|(window, soft_cap, has_sinks, has_slopes)| Bounds { window, soft_cap, has_sinks, has_slopes })
}

fn forms() -> impl Strategy<Value = HeadForm> {
    prop::sample::select(vec![HeadForm::Split, HeadForm::Wide])
}

/// The form of the loop over the contexts of decoding rows.
#[derive(Debug, Clone, Copy)]
enum Reading {
    EveryRow,
    Fixed,
    List,
}

impl Reading {
    fn set(self, sizes: &mut Sizes) {
        match self {
            Self::EveryRow => {}
            Self::Fixed => sizes.context = Some(sizes.blocks_per_row * BLOCK_SIZE),
            Self::List => sizes.decode_loop = DecodeLoop::List { many: 4, few: 2 },
        }
    }
}

/// Returns a case of rows with the lengths `lens`, in a program for `bucket`.
fn case((heads, bounds): (Heads, Bounds), lens: &Lens, bucket: [usize; 2], numbers: &mut Numbers) -> Case {
    let Heads { kv_heads, group, head_dim, value_dim, is_latent } = heads;
    let mut graph = Graph::default();
    let q = tokens(&mut graph, 0, &[kv_heads * group, head_dim]);
    let k = tokens(&mut graph, 1, &[kv_heads, head_dim]);
    let Bounds { window, soft_cap, has_sinks, has_slopes } = bounds;
    let has_sinks = has_sinks && !is_latent;
    let [keys, values] = [("keys", head_dim), ("values", value_dim)]
        .map(|(name, dim)| StateSpec::of_tokens(name, &[kv_heads, dim], window.map(Window::num_keys)));
    let keys = graph.state(&keys);
    let values = if is_latent { ValuesIn::Keys { value_dim } } else { graph.state(&values).into() };
    let slopes = has_slopes.then(|| Slopes { num_heads: kv_heads * group, last_exponent: 8.0 });
    let spec = AttentionSpec { keys, values, scale: 0.5, window, soft_cap, slopes };
    let attended = if is_latent {
        graph.latent_attention([q, k], spec)
    } else {
        let v = tokens(&mut graph, 2, &[kv_heads, value_dim]);
        let sinks = has_sinks.then(|| graph.argument(3, Shape::fixed(&[kv_heads * group]), DType::F32));
        graph.paged_attention([q, k, v], sinks, spec)
    };
    let attended = attended.unwrap();
    let graph = graph.finish(&[attended]);
    let num_blocks = 3 + lens.iter().map(|(before, now)| (before + now).div_ceil(BLOCK_SIZE)).sum::<usize>();
    let longest = lens.iter().map(|(before, now)| before + now).max().unwrap();
    let mut blocks = numbers.permutation(num_blocks).into_iter().map(|block| block as u32);
    let mut batch = Batch::default();
    for (slot, (before, now)) in lens.iter().enumerate() {
        let table: Vec<u32> = blocks.by_ref().take((before + now).div_ceil(BLOCK_SIZE)).collect();
        batch.push_row(slot, *before, &vec![0; *now], &table);
    }
    let num_tokens: usize = lens.iter().map(|(_, now)| now).sum();
    let mut case = Case::new(graph, batch, bucket, layout(lens.len(), num_blocks, longest.max(32)));
    let array =
        |[heads, dim]: [usize; 2]| floats(&[num_tokens, heads, dim], numbers.short_floats(num_tokens * heads * dim));
    case.arguments = [[kv_heads * group, head_dim], [kv_heads, head_dim], [kv_heads, value_dim]].map(array).to_vec();
    case.arguments.truncate(if is_latent { 2 } else { 3 });
    if has_sinks {
        case.arguments.push(floats(&[kv_heads * group], numbers.floats(kv_heads * group, 12.0)));
    }
    case.caches = vec![[head_dim, value_dim].map(|dim| cache(&case, ([kv_heads, dim], window), lens, numbers))];
    if is_latent {
        case.caches[0][1].clear();
    }
    case
}

/// Returns the keys, or the values, of a cache: finite numbers for the rows' tokens before the step, NaN and infinity
/// elsewhere. Blocks before the window of a row's first token contain NaN and infinity too, because they may belong to
/// another row.
fn cache(
    case: &Case,
    ([kv_heads, dim], window): ([usize; 2], Option<Window>),
    lens: &Lens,
    numbers: &mut Numbers,
) -> Vec<f32> {
    let len = case.layout.num_blocks * kv_heads * BLOCK_SIZE * dim;
    let mut cache: Vec<f32> = (0..len).map(|_| numbers.one_of(&[f32::NAN, f32::INFINITY])).collect();
    for (row, (before, _)) in case.batch.rows.iter().zip(lens) {
        let table = case.batch.block_table(row);
        let first_read = window.map_or(0, |window| window.first_key(*before));
        let positions = first_read / BLOCK_SIZE * BLOCK_SIZE..*before;
        for (position, head) in positions.flat_map(|position| (0..kv_heads).map(move |head| (position, head))) {
            let block = table[position / BLOCK_SIZE] as usize * kv_heads + head;
            let vector = block * BLOCK_SIZE + position % BLOCK_SIZE;
            cache[vector * dim..][..dim].copy_from_slice(&numbers.short_floats(dim));
        }
    }
    cache
}

/// Returns the tolerance for products, exponentials and sums in another order, of numbers up to 2. If the cache has
/// 16-bit floats, the attention weights are also rounded, and the wide form rounds its output, both to at least 8
/// binary digits.
fn tolerance(kv_dtype: DType) -> Tolerance {
    let absolute = if kv_dtype == DType::F32 { 2e-5 } else { 3e-2 };
    Tolerance::Close { relative: 0.0, absolute }
}

proptest! {
    #![proptest_config(cases(10))]

    #[test]
    fn decoding_rows_attend_to_their_contexts(
        heads in (heads(), bounds()),
        form in forms(),
        lens in prop::collection::vec(prop_oneof![0..40usize, 500..1200usize], 1..5),
        kv_dtype in prop::sample::select(vec![DType::F32, DType::F32, DType::Float(FloatType::Bf16)]),
        chunk_bytes in prop::sample::select(vec![16_usize << 20, 1 << 16, 1 << 12]),
        reading in prop::sample::select(vec![Reading::EveryRow, Reading::Fixed, Reading::List]),
        seed in any::<u64>(),
    ) {
        let lens: Lens = lens.into_iter().map(|before| (before, 1)).collect();
        let mut case = case(heads, &lens, [lens.len() + 2, 1], &mut Numbers::new(seed));
        (case.sizes.decode_heads, case.sizes.chunk_bytes, case.kv_dtype) = (form, chunk_bytes, kv_dtype);
        reading.set(&mut case.sizes);
        case.check(&[tolerance(kv_dtype)]);
    }
}

proptest! {
    #![proptest_config(cases(16))]

    /// The operands of the kernel are computed on XLA-CPU, and the kernel's text is carried out.
    #[test]
    fn the_kernel_agrees_with_the_cpu(
        (kv_heads, group) in (1..4usize, 1..4usize),
        dims in prop::sample::select(vec![[64_usize; 2], [128; 2], [128, 64]]),
        bounds in bounds(),
        lens in prop::collection::vec(prop_oneof![0..40usize, 500..600usize], 1..4),
        kv_dtype in prop::sample::select(vec![DType::F32, DType::Float(FloatType::Bf16)]),
        seed in any::<u64>(),
    ) {
        let lens: Lens = lens.into_iter().map(|before| (before, 1)).collect();
        let heads = Heads { kv_heads, group, head_dim: dims[0], value_dim: dims[1], is_latent: false };
        let bounds = Bounds { has_slopes: false, ..bounds };
        let mut numbers = Numbers::new(seed);
        let mut case = case((heads, bounds), &lens, [lens.len() + 2, 1], &mut numbers);
        // Scores of larger queries would be large, so that one key has all the weight.
        case.arguments[0] = floats(&case.arguments[0].dims.clone(), numbers.floats(lens.len() * kv_heads * group * dims[0], 0.5));
        (case.sizes.decode_attention, case.kv_dtype) = (DecodeAttention::Mosaic, kv_dtype);
        if let Some(mut output) = kernel_output(&case) {
            let expected = &case.on_cpu().outputs[0];
            let padding = output.split_off(expected.dims.iter().product());
            prop_assert!(padding.iter().all(|value| *value == 0.0));
            compare::arrays(&floats(&expected.dims, output), expected, &tolerance(kv_dtype), "the kernel");
        }
    }
}

proptest! {
    #![proptest_config(cases(8))]

    #[test]
    fn prompts_attend_to_their_contexts(
        heads in (heads(), bounds()),
        tokens_per_row in prop::sample::select(vec![32, QUERY_TILE, 2 * QUERY_TILE]),
        lens in prop::collection::vec((prop_oneof![Just(0..1usize), Just(0..700)], 0.0..1.0f32), 1..4),
        kv_dtype in prop::sample::select(vec![DType::F32, DType::F32, DType::Float(FloatType::Bf16)]),
        chunk_bytes in prop::sample::select(vec![16_usize << 20, 1 << 12]),
        seed in any::<u64>(),
    ) {
        let mut numbers = Numbers::new(seed);
        let now = |share: f32| 1 + (share * tokens_per_row as f32) as usize % tokens_per_row;
        let lens: Lens = lens.into_iter().map(|(before, share)| (numbers.below(before.end), now(share))).collect();
        let mut case = case(heads, &lens, [lens.len().next_power_of_two(), tokens_per_row], &mut numbers);
        (case.sizes.chunk_bytes, case.kv_dtype) = (chunk_bytes, kv_dtype);
        case.check(&[tolerance(kv_dtype)]);
    }
}

/// The blocks and the arguments of one row change no bit of another row.
#[test]
fn nothing_of_a_row_gets_into_another() {
    let heads = Heads { kv_heads: 2, group: 2, head_dim: 8, value_dim: 8, is_latent: false };
    let decodes =
        [HeadForm::Split, HeadForm::Wide].map(|form| (form, [4, 1], vec![(600, 1), (20, 1), (3, 1), (333, 1)]));
    let prompts = (HeadForm::Split, [4, 32], vec![(600, 32), (20, 9), (0, 3), (333, 30)]);
    let all = decodes.into_iter().chain([prompts]);
    let readings = [Reading::EveryRow, Reading::Fixed, Reading::List];
    let settings = readings.into_iter().flat_map(|reading| {
        [None, Some(Window::Sliding(30)), Some(Window::Chunked(30))].map(|window| (window, reading))
    });
    let settings: Vec<_> = settings.collect();
    for ((form, bucket, lens), setting) in
        all.flat_map(|one| settings.iter().map(move |setting| (one.clone(), setting)))
    {
        let (window, reading) = *setting;
        let bounds = Bounds { window, soft_cap: None, has_sinks: window.is_some(), has_slopes: false };
        let mut case = case((heads, bounds), &lens, bucket, &mut Numbers::new(9));
        case.sizes.decode_heads = form;
        reading.set(&mut case.sizes);
        let Some(clean) = case.on_xla() else {
            return;
        };
        let num_tokens = lens[0].1;
        let mut numbers = Numbers::new(10);
        let mut spoil = |values: &mut [f32]| {
            values.fill_with(|| numbers.one_of(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]));
        };
        for argument in &mut case.arguments[..3] {
            let width: usize = argument.dims[1..].iter().product();
            let Elements::F32(values) = &mut argument.elements else { panic!("queries, keys and values are floats") };
            spoil(&mut values[..num_tokens * width]);
        }
        for block in case.batch.block_table(&case.batch.rows[0]) {
            let size = heads.kv_heads * BLOCK_SIZE * heads.head_dim;
            case.caches[0].iter_mut().for_each(|cache| spoil(&mut cache[*block as usize * size..][..size]));
        }
        let spoilt = case.on_xla().unwrap();
        let others: Vec<usize> = (num_tokens..clean.outputs[0].dims[0]).collect();
        let [clean, spoilt] = [&clean, &spoilt].map(|outcome| outcome.outputs[0].rows(&others));
        let Elements::F32(values) = &clean.elements else { panic!("attention gives floats") };
        assert!(values.iter().all(|value| value.is_finite()));
        assert_eq!(clean, spoilt, "{form:?}");
    }
}

/// The second layer attends to the keys and values of the first with queries of its own, and a shorter window.
#[test]
fn a_layer_reads_the_state_of_another() {
    let (lens, mut numbers) = (vec![(20, 5), (3, 1)], Numbers::new(4));
    let heads = Heads { kv_heads: 2, group: 2, head_dim: 8, value_dim: 4, is_latent: false };
    let bounds = Bounds { window: None, soft_cap: None, has_sinks: false, has_slopes: false };
    let mut case = case((heads, bounds), &lens, [2, 32], &mut numbers);
    let mut graph = Graph::clone(&case.graph);
    let second = tokens(&mut graph, 3, &[4, 8]);
    let node = graph.node(graph.outputs()[0]).clone();
    let Op::PagedAttention(spec) = &node.op else { panic!("the case is a layer of attention") };
    let narrower = AttentionSpec { window: Some(Window::Sliding(7)), ..*spec };
    let outputs = [graph.outputs()[0], graph.shared_attention(second, narrower).unwrap()];
    case.graph = graph.finish(&outputs);
    case.arguments.push(floats(&[6, 4, 8], numbers.short_floats(6 * 4 * 8)));
    case.check(&[tolerance(DType::F32), tolerance(DType::F32)]);

    let mut logits = Graph::default();
    let hidden = rows(&mut logits, 0, &[4], DType::F32);
    let graphs = ModelGraphs { decoder: case.graph.clone(), logits: logits.finish(&[hidden]) };
    let form = Platform::new(devices::Device::XLA_CPU, &devices::xla_cpu::PLATFORM).form;
    let form = ProgramForm { kv_dtype: Some(DType::F32), ..form };
    let bytes_per_token = 2 * (8 + 4) * 4;
    assert_eq!(cpu::state_bytes(&graphs, KvType::F32).per_token, bytes_per_token);
    assert_eq!(form.state_bytes(&graphs).per_token, bytes_per_token);
    let programs = Programs::new(&graphs, case.layout, 1, form);
    let allocated = programs.all_states()[programs.states(ProgramKey::Clear)].iter().map(|state| state.name.as_str());
    assert_eq!(allocated.collect::<Vec<_>>(), ["keys", "values"]);
}

/// Layers with slopes keep the loop where others call the kernel.
#[test]
fn the_kernel_serves_layers_without_slopes() {
    let heads = Heads { kv_heads: 2, group: 2, head_dim: 64, value_dim: 64, is_latent: false };
    for has_slopes in [false, true] {
        let bounds = Bounds { window: None, soft_cap: None, has_sinks: false, has_slopes };
        let mut case = case((heads, bounds), &vec![(20, 1), (3, 1)], [4, 1], &mut Numbers::new(3));
        case.sizes.decode_attention = DecodeAttention::Mosaic;
        assert_eq!(case.program(0).text.contains("tpu_custom_call"), !has_slopes);
        if has_slopes {
            case.check(&[tolerance(DType::F32)]);
        }
    }
}
