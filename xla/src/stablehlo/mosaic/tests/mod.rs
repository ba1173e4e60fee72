//! Tests of kernels: their text is carried out by an interpreter, and compiled with libtpu.
//!
//! A [`Case`] has the sizes of a kernel, and a step. Whatever the kernel must not use is spoilt: keys and values after
//! the end of a context are NaN or infinite, entries of block tables that no key is read from are no blocks, and floats
//! that were not written are NaN.

mod compiled;
mod interpreter;
mod memory;
mod mutations;
mod text;

use backend::BLOCK_SIZE;
use cpu::oracle;
use devices::HeadForm;
use half::bf16;
use model::graph::Window;
use proptest::prelude::*;
use proptest::test_runner::Config;

use self::memory::{Array, Elements, Fault};
use self::text::Operation;
use super::decode;
use super::kernel::{DecodeKernel, DecodeSizes, LANES};
use super::value::{Element, Type};
use crate::tests::numbers::Numbers;

/// An entry of a block table that is not read.
const NO_BLOCK: i32 = i32::MAX;

/// A step of decoding rows.
#[derive(Debug)]
struct Case {
    kernel: DecodeKernel,
    /// The lengths of the contexts; 0 for padding.
    lens: Vec<usize>,
    /// `[rows, blocks_per_row]`
    tables: Vec<Vec<i32>>,
    /// `[rows, heads, head_dim]`
    queries: Vec<f32>,
    /// Keys and values, `[num_blocks, BLOCK_SIZE, width]`.
    caches: [Vec<f32>; 2],
    /// `[heads]`; empty without sinks.
    sinks: Vec<f32>,
}

impl Case {
    /// Returns a case with random tables and numbers. `kernel.rows`, `blocks_per_row` and `num_blocks` are replaced, so
    /// that the kernel has a row for each of `lens` and room for its context.
    fn new(kernel: DecodeKernel, lens: &[usize], numbers: &mut Numbers) -> Self {
        let num_blocks = |len: &usize| len.div_ceil(BLOCK_SIZE);
        let blocks_per_row = 2 + lens.iter().map(num_blocks).max().unwrap();
        let total = kernel.chunk_blocks + lens.iter().map(num_blocks).sum::<usize>();
        let kernel = DecodeKernel { rows: lens.len(), blocks_per_row, num_blocks: total, ..kernel };
        let DecodeKernel { heads, kv_heads, head_dim, value_dim, element, .. } = kernel;
        let mut blocks = numbers.permutation(total).into_iter().map(|block| block as i32);
        let mut caches = [head_dim, value_dim].map(|dim| {
            let len = total * BLOCK_SIZE * kv_heads * dim;
            (0..len).map(|_| numbers.one_of(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY])).collect::<Vec<f32>>()
        });
        let table = |len: &usize| {
            let own: Vec<i32> = blocks.by_ref().take(num_blocks(len)).collect();
            let first = kernel.first_position(*len);
            for (cache, dim) in caches.iter_mut().zip([head_dim, value_dim]) {
                for position in first / BLOCK_SIZE * BLOCK_SIZE..*len {
                    let row = own[position / BLOCK_SIZE] as usize * BLOCK_SIZE + position % BLOCK_SIZE;
                    let width = kv_heads * dim;
                    cache[row * width..][..width].copy_from_slice(&numbers.short_floats(width));
                }
            }
            let mut table = vec![NO_BLOCK; blocks_per_row];
            table[first / BLOCK_SIZE..own.len()].copy_from_slice(&own[first / BLOCK_SIZE..]);
            table
        };
        let tables = lens.iter().map(table).collect();
        let mut queries = numbers.floats(lens.len() * heads * head_dim, 0.3);
        if element == Element::Bf16 {
            queries.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32());
        }
        // Some are larger than every score, others smaller.
        let sinks = numbers.floats(if kernel.has_sinks { heads } else { 0 }, 12.0);
        Self { kernel, lens: lens.to_vec(), tables, queries, caches, sinks }
    }

    /// Returns the operands of the kernel, and the spoilt array for its result.
    fn operands(&self) -> Vec<Array> {
        let types = self.kernel.operands();
        let lens = Elements::Integers(self.lens.iter().map(|len| *len as i32).collect());
        let row_len = types[1].dims().iter().product::<usize>() / self.kernel.rows;
        let pad = |table: &Vec<i32>| [table.as_slice(), &vec![NO_BLOCK; row_len - table.len()]].concat();
        let tables = Elements::Integers(self.tables.iter().flat_map(pad).collect());
        let [keys, values] = self.caches.clone().map(Elements::Floats);
        let sinks = self.sinks.iter().flat_map(|sink| [*sink; LANES]).collect();
        let operands = [lens, tables, Elements::Floats(self.queries.clone()), keys, values, Elements::Floats(sinks)];
        let array = |(elements, ty)| Array { elements, ..Array::spoilt(ty) };
        let operands = operands.into_iter().zip(&types).map(array);
        operands.chain([Array::spoilt(&self.kernel.result())]).collect()
    }

    /// Returns the output of the plain form of attention, `[rows, heads, value_dim]`.
    fn expected(&self) -> Vec<f32> {
        let DecodeKernel { heads, kv_heads, head_dim, value_dim, soft_cap, .. } = self.kernel;
        let mut output = Vec::new();
        for (row, len) in self.lens.iter().enumerate() {
            let positions = self.kernel.first_position(*len)..*len;
            for head in 0..heads {
                let kv_head = head / (heads / kv_heads);
                let vector = |cache: usize, position: usize, dim: usize| {
                    let block = self.tables[row][position / BLOCK_SIZE] as usize;
                    let start = (block * BLOCK_SIZE + position % BLOCK_SIZE) * kv_heads * dim + kv_head * dim;
                    &self.caches[cache][start..start + dim]
                };
                let query = &self.queries[(row * heads + head) * head_dim..][..head_dim];
                let score = |position: usize| {
                    let products = query.iter().zip(vector(0, position, head_dim));
                    let score: f64 = products.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    soft_cap.map(f64::from).map_or(score, |cap| (score / cap).tanh() * cap)
                };
                let weights: Vec<f64> = positions.clone().map(|position| score(position).exp()).collect();
                let sink = self.sinks.get(head).map_or(0.0, |sink| f64::from(*sink).exp());
                let total = sink + weights.iter().sum::<f64>();
                let mut sums = vec![0.0; value_dim];
                for (position, weight) in positions.clone().zip(weights) {
                    let values = vector(1, position, value_dim);
                    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight / total * f64::from(*value));
                }
                output.extend(sums.into_iter().map(|value| value as f32));
            }
        }
        output
    }

    /// Runs `module`, and compares its result with the plain form.
    fn check(&self, module: &Operation) -> Result<(), Fault> {
        let actual = interpreter::run(module, &self.operands())?;
        // Products, exponentials and sums in another order; weights of a bf16 cache are rounded to 8 binary digits.
        let tolerance = if self.kernel.element == Element::F32 { 2e-5 } else { 2e-2 };
        let expected = self.expected();
        assert_eq!(actual.len(), expected.len());
        let is_close = |(actual, expected): (&f32, &f32)| (actual - expected).abs() <= tolerance;
        match actual.iter().zip(&expected).position(|pair| !is_close(pair)) {
            Some(index) => Err(format!("output {index} is {} and not {}", actual[index], expected[index])),
            None => Ok(()),
        }
    }

    fn module(&self) -> Operation {
        text::parse(&decode::module(&self.kernel))
    }
}

impl DecodeKernel {
    /// Returns the first position that the query of a context of `len` tokens sees.
    fn first_position(&self, len: usize) -> usize {
        self.window.filter(|_| len > 0).map_or(0, |window| window.first_key(len - 1))
    }
}

/// Returns the result of a kernel, given as text. `operands` are its operands.
pub(crate) fn carry_out(text: &str, operands: &[oracle::Array]) -> Vec<f32> {
    let module = text::parse(text);
    let arguments = &module.blocks[0].operations[0].blocks[0].arguments[1..];
    let array = |(operand, (_, ty)): (&oracle::Array, &(usize, Type))| {
        let elements = match &operand.elements {
            oracle::Elements::F32(values) => Elements::Floats(values.clone()),
            oracle::Elements::I32(values) => Elements::Integers(values.clone()),
            other => panic!("{other:?} are no operand"),
        };
        Array { dims: operand.dims.clone(), elements, element: ty.element() }
    };
    let mut operands: Vec<Array> = operands.iter().zip(arguments).map(array).collect();
    let (_, window) = &arguments[operands.len()];
    let rows = operands[0].dims[0];
    operands.push(Array::spoilt(&window.with_dims([&[rows], &window.dims()[1..]].concat())));
    interpreter::run(&module, &operands).unwrap()
}

/// Sizes of a model, the limits of a kernel, and how its cases are cut into chunks.
#[derive(Debug, Clone)]
struct Sizes {
    kv_heads: usize,
    per_kv_head: usize,
    dims: [usize; 2],
    is_wide: bool,
    element: Element,
    chunk_blocks: usize,
    num_slots: usize,
    /// The window, the soft cap, and true if there are sinks.
    bounds: (Option<Window>, Option<f32>, bool),
    has_scalar_tables: bool,
    max_window_bytes: usize,
}

fn sizes() -> impl Strategy<Value = Sizes> {
    let dims = prop::sample::select(vec![[64_usize; 2], [128; 2], [256; 2], [128, 64], [64, 128]]);
    let heads = (1..4usize, 1..5usize, dims, any::<bool>());
    let element = prop::sample::select(vec![Element::F32, Element::F32, Element::Bf16]);
    let num_keys = || prop_oneof![1..20usize, 20..200usize];
    let window = prop_oneof![num_keys().prop_map(Window::Sliding), num_keys().prop_map(Window::Chunked)];
    let window = prop::option::of(window);
    let bounds = (window, prop::option::of(0.5..4.0_f32), any::<bool>());
    let limits = (any::<bool>(), prop::sample::select(vec![1_usize, 40_000, 2 << 20]));
    (heads, element, 1..5usize, 2..5usize, bounds, limits).prop_map(
        |(heads, element, chunk_blocks, num_slots, bounds, limits)| {
            let (kv_heads, per_kv_head, dims, is_wide) = heads;
            let (has_scalar_tables, max_window_bytes) = limits;
            Sizes {
                kv_heads,
                per_kv_head,
                dims,
                is_wide,
                element,
                chunk_blocks,
                num_slots,
                bounds,
                has_scalar_tables,
                max_window_bytes,
            }
        },
    )
}

impl Sizes {
    /// Returns a kernel for one row, see [`Case::new`].
    fn kernel(&self) -> DecodeKernel {
        let (window, soft_cap, has_sinks) = self.bounds;
        let [head_dim, value_dim] = self.dims;
        let kernel = DecodeKernel::new(&DecodeSizes {
            rows: 1,
            heads: self.kv_heads * self.per_kv_head,
            kv_heads: self.kv_heads,
            head_dim,
            value_dim,
            num_blocks: 1,
            blocks_per_row: 1,
            window,
            soft_cap,
            has_sinks,
            element: self.element,
        });
        let kernel = kernel.unwrap();
        let is_whole = self.dims.iter().all(|dim| dim.is_multiple_of(LANES));
        let form = if self.is_wide || !is_whole { kernel.form } else { HeadForm::Split };
        let form = if self.is_wide && self.kv_heads > 1 { HeadForm::Wide } else { form };
        DecodeKernel {
            chunk_blocks: self.chunk_blocks,
            num_slots: self.num_slots,
            form,
            max_table_bytes: if self.has_scalar_tables { usize::MAX } else { 0 },
            max_window_bytes: self.max_window_bytes,
            ..kernel
        }
    }
}

proptest! {
    #![proptest_config(Config { cases: 128, failure_persistence: None, max_shrink_iters: 64, ..Config::default() })]

    #[test]
    fn rows_attend_to_their_contexts(
        sizes in sizes(),
        lens in prop::collection::vec(prop_oneof![Just(0), 1..40usize, 40..300usize], 1..7),
        seed in any::<u64>(),
    ) {
        let case = Case::new(sizes.kernel(), &lens, &mut Numbers::new(seed));
        case.check(&case.module()).map_err(TestCaseError::fail)?;
    }
}
