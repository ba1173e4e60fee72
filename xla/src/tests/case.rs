//! A graph with all its inputs, computed by the CPU backend and by a program on XLA-CPU.
//!
//! Entry points: [`Case::new`], fields to fill, then [`Case::check`]. A step's tokens are ragged for the CPU backend
//! and padded for the program. A case is written without padding. The padding of arguments contains numbers that must
//! not reach an output.

use std::collections::HashMap;
use std::sync::Arc;

use backend::{BLOCK_SIZE, StateLayout};
use backend::{Batch, RowSampler};
use cpu::oracle::{Array, Elements, Oracle};
use devices::{DecodeAttention, DecodeLoop, HeadForm};
use model::graph::{DType, Dim, Graph, Op, Quantization, Shape, StateId, TOKEN_HISTORY, Value, WeightPart, WeightSpec};
use model::weights::Checkpoint;
use model_files::ModelFiles;
use numbers::FloatType;
use proto::SamplingParams;
use safetensors::tensor::TensorView;

use super::compare::{self, Tolerance};
use super::rig::{self, Upload, float_bytes};
use crate::bucket::blocks_per_row;
use crate::stablehlo::{Emitter, Lowering, Parameter, RowInputs, SampledInputs, Sizes, Tensor, module, state_type};
use crate::step_input::{StepShape, pack, set_rank};
use crate::token_input::{TokenInput, TokenSizes};

/// The number of top tokens that a row can report in these programs.
pub(super) const TOP_TOKENS: usize = 16;

/// A graph, its inputs and the sizes of its program.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) graph: Arc<Graph>,
    pub(super) batch: Batch,
    pub(super) layout: StateLayout,
    pub(super) sizes: Sizes,
    /// The arguments of the graph: `[tokens, ..]` or `[rows, ..]` without padding, or of a fixed shape.
    pub(super) arguments: Vec<Array>,
    pub(super) weights: Vec<(WeightSpec, Vec<f32>)>,
    /// Keys and values of each layer, `[num_blocks, kv_heads, block_size, dim]`. There are no values if they are in the
    /// keys.
    pub(super) caches: Vec<[Vec<f32>; 2]>,
    /// The states of slots, each `[num_slots, ..]`.
    pub(super) slots: Vec<Vec<f32>>,
    /// The type of the device's keys and values.
    pub(super) kv_dtype: DType,
    /// `[num_slots, max_total_tokens]`
    pub(super) history: Vec<i32>,
    /// True if the CPU backend computes all `[rows]` at once, as for prompt log-probabilities, and not row by row.
    pub(super) runs_rows_together: bool,
}

/// The outputs and the states after a step, without padding.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
    pub(super) outputs: Vec<Array>,
    pub(super) caches: Vec<[Vec<f32>; 2]>,
    pub(super) slots: Vec<Vec<f32>>,
    pub(super) history: Vec<i32>,
}

/// The number and the size of the heads of one layer's keys or values.
#[derive(Debug, Clone, Copy)]
struct KvHeads {
    id: StateId,
    kv_heads: usize,
    dim: usize,
}

/// The program of a case, with its arguments.
pub(super) struct Program {
    pub(super) text: String,
    pub(super) uploads: Vec<Upload>,
    num_donated: usize,
}

/// Returns a batch of `num_rows` rows that read one token each and sample.
pub(super) fn plain_batch(graph: &Arc<Graph>, num_rows: usize) -> Batch {
    let mut batch = Batch::default();
    for slot in 0..num_rows {
        let row = batch.push_row(slot, 0, &[0], &[0]);
        batch.push_sampled(row, 1, &greedy(graph));
    }
    batch
}

/// Returns the sampler of a row that samples with `graph`.
pub(super) fn greedy(graph: &Arc<Graph>) -> RowSampler {
    RowSampler { params: Arc::new(SamplingParams::greedy()), graph: Arc::clone(graph), eos_token_ids: Arc::default() }
}

/// Returns the layout of a state for `num_slots` rows of at most `max_total_tokens` tokens.
pub(super) fn layout(num_slots: usize, num_blocks: usize, max_total_tokens: usize) -> StateLayout {
    StateLayout { num_slots, num_blocks, max_total_tokens, max_batch_prefill_tokens: max_total_tokens }
}

impl Case {
    /// Returns a case of `batch` in a program for `rows` rows of `tokens_per_row` tokens, with a state of zeros.
    pub(super) fn new(
        graph: Arc<Graph>,
        batch: Batch,
        [rows, tokens_per_row]: [usize; 2],
        layout: StateLayout,
    ) -> Self {
        let StateLayout { num_slots, num_blocks, max_total_tokens, .. } = layout;
        let sizes = Sizes {
            rows,
            tokens_per_row,
            blocks_per_row: blocks_per_row(max_total_tokens),
            num_slots,
            max_total_tokens,
            top_tokens: TOP_TOKENS,
            num_devices: 1,
            decode_heads: HeadForm::Split,
            decode_loop: DecodeLoop::EveryRow,
            context: None,
            decode_attention: DecodeAttention::Loop,
            chunk_bytes: 16 << 20,
        };
        let cache = |KvHeads { kv_heads, dim, .. }: &KvHeads| vec![0.0; num_blocks * BLOCK_SIZE * kv_heads * dim];
        let pair = |heads: Vec<KvHeads>| [0, 1].map(|index| heads.get(index).map(cache).unwrap_or_default());
        let caches = kv_heads(&graph).into_iter().map(pair).collect();
        let slot_len = |id: StateId| num_slots * graph.state_spec(id).num_elements();
        let slots = slot_states(&graph).into_iter().map(|id| vec![0.0; slot_len(id)]).collect();
        let history = vec![0; num_slots * max_total_tokens];
        Self {
            graph,
            batch,
            layout,
            sizes,
            arguments: Vec::new(),
            weights: Vec::new(),
            caches,
            slots,
            kv_dtype: DType::F32,
            history,
            runs_rows_together: false,
        }
    }

    /// Returns a case of `num_rows` rows of one token without state, with two rows of padding after them.
    pub(super) fn plain(graph: Arc<Graph>, num_rows: usize, arguments: Vec<Array>) -> Self {
        let batch = plain_batch(&graph, num_rows);
        let case = Self::new(graph, batch, [num_rows + 2, 1], layout(num_rows, 1, BLOCK_SIZE));
        Self { arguments, ..case }
    }

    /// Returns the same case without rows of padding.
    pub(super) fn unpadded(mut self) -> Self {
        self.sizes.rows = self.batch.rows.len();
        self
    }

    /// Compares the outputs of both backends, each output with its tolerance, and compares the states after the step
    /// exactly.
    pub(super) fn check(&self, tolerances: &[Tolerance]) {
        let expected = self.on_cpu();
        let Some(actual) = self.on_xla() else {
            return;
        };
        self.compare(&actual, &expected, tolerances);
    }

    /// Compares the outcome on the device with that of the oracle, the CPU backend.
    pub(super) fn compare(&self, actual: &Outcome, expected: &Outcome, tolerances: &[Tolerance]) {
        assert_eq!(tolerances.len(), expected.outputs.len(), "a tolerance for each output");
        for (index, tolerance) in tolerances.iter().enumerate() {
            let what = format!("output {index} of\n{}", self.graph);
            compare::arrays(&actual.outputs[index], &expected.outputs[index], tolerance, &what);
        }
        for (actual, expected) in actual.caches.iter().flatten().zip(expected.caches.iter().flatten()) {
            compare::floats(actual, expected, &Tolerance::Exact, "keys or values");
        }
        for (actual, expected) in actual.slots.iter().zip(&expected.slots) {
            compare::floats(actual, expected, &Tolerance::Exact, "a state of slots");
        }
        assert_eq!(actual.history, expected.history, "token history");
    }

    /// Returns the outcome of the CPU backend.
    pub(super) fn on_cpu(&self) -> Outcome {
        let directory = tempfile::tempdir().unwrap();
        let checkpoint = (!self.weights.is_empty()).then(|| checkpoint(&self.weights, directory.path()));
        let oracle = Oracle::new(&self.graph, checkpoint.as_ref(), self.layout);
        let layers = kv_heads(&self.graph);
        layers.iter().zip(&self.caches).for_each(|(heads, [k, v])| oracle.set_cache(heads[0].id, [k, v]));
        let slot_states = slot_states(&self.graph);
        slot_states.iter().zip(&self.slots).for_each(|(id, numbers)| oracle.set_slots(*id, numbers));
        oracle.set_history(&self.history);
        let has_rows = self.graph.nodes().iter().any(|node| node.shape.dims().contains(&Dim::Rows));
        let outputs = if has_rows && !self.runs_rows_together {
            let rows = oracle.run_rows(&self.batch, &self.arguments);
            let stack = |(index, output): (usize, &Value)| {
                let has_top_tokens = self.graph.node(*output).shape.dims().contains(&Dim::TopTokens);
                stack(rows.iter().map(|row| if has_top_tokens { filled(&row[index]) } else { row[index].clone() }))
            };
            self.graph.outputs().iter().enumerate().map(stack).collect()
        } else {
            oracle.run(&self.batch, &self.arguments)
        };
        let caches = layers.iter().map(|heads| oracle.cache(heads[0].id)).collect();
        let slots = slot_states.into_iter().map(|id| oracle.slots(id)).collect();
        Outcome { outputs, caches, slots, history: oracle.history() }
    }

    /// Returns the outcome of the program on XLA-CPU, or `None` if this machine lacks the plugin.
    pub(super) fn on_xla(&self) -> Option<Outcome> {
        let rig = rig::rig()?;
        let Program { text, num_donated, .. } = self.program(0);
        let uploads: Vec<Vec<Upload>> = (0..self.sizes.num_devices).map(|rank| self.program(rank).uploads).collect();
        let results = rig.run(&text, &uploads, num_donated);
        let mut outcomes = results.into_iter().map(|results| self.outcome(results, num_donated));
        let first = outcomes.next()?;
        // All ranks of a model have the same outcome.
        outcomes.for_each(|other| assert_eq!(other, first));
        Some(first)
    }

    /// Returns the outcome from the results of one device, without padding.
    fn outcome(&self, mut results: Vec<Array>, num_donated: usize) -> Outcome {
        let outputs = results.split_off(num_donated);
        let Elements::I32(history) = results.pop().unwrap().elements else { panic!("the history has tokens") };
        let layers = kv_heads(&self.graph);
        let slots = results.split_off(layers.iter().map(Vec::len).sum());
        let slots = slots.into_iter().map(|slots| match slots.elements {
            Elements::F32(numbers) => numbers,
            other => panic!("slots keep floats, not {other:?}"),
        });
        let slots = slots.collect();
        let mut results = results.into_iter().map(|result| result.elements);
        let mut cache = |heads: &KvHeads| match results.next() {
            Some(Elements::F32(values)) => swap_heads(&values, *heads, Swap::FromDevice),
            other => panic!("keys and values are floats, not {other:?}"),
        };
        let mut pair = |heads: Vec<KvHeads>| [0, 1].map(|index| heads.get(index).map(&mut cache).unwrap_or_default());
        let caches = layers.into_iter().map(&mut pair).collect();
        let shapes = self.graph.outputs().iter().map(|output| &self.graph.node(*output).shape);
        let outputs = outputs.iter().zip(shapes).map(|(output, shape)| match self.places(shape) {
            Some((places, _)) => output.rows(&places),
            None => output.clone(),
        });
        Outcome { outputs: outputs.collect(), caches, slots, history }
    }

    /// Returns the program, with the arguments of the device `rank`.
    pub(super) fn program(&self, rank: usize) -> Program {
        let Sizes { rows, tokens_per_row, blocks_per_row, .. } = self.sizes;
        let shape = StepShape { rows, tokens_per_row, blocks_per_row };
        let mut uploads = Vec::new();
        let mut add = |upload: Upload| {
            uploads.push(upload);
            Emitter::argument(uploads.len() - 1, uploads[uploads.len() - 1].ty.clone())
        };
        let mut names: Vec<String> = Vec::new();
        let mut states = HashMap::new();
        for (pair, heads) in self.caches.iter().zip(kv_heads(&self.graph)) {
            for (heads, values) in heads.into_iter().zip(pair) {
                let spec = self.graph.state_spec(heads.id);
                let ty = state_type(spec, self.layout, self.kv_dtype);
                let cache = Upload::floats(&swap_heads(values, heads, Swap::ToDevice), ty);
                states.insert(spec.name.clone(), add(cache));
                names.push(spec.name.clone());
            }
        }
        for (id, numbers) in slot_states(&self.graph).into_iter().zip(&self.slots) {
            let spec = self.graph.state_spec(id);
            let slots = Upload::floats(numbers, state_type(spec, self.layout, self.kv_dtype));
            states.insert(spec.name.clone(), add(slots));
            names.push(spec.name.clone());
        }
        let history =
            add(Upload::of(&Array { dims: vec![self.history.len()], elements: Elements::I32(self.history.clone()) }));
        states.insert(TOKEN_HISTORY.to_owned(), history);
        names.push(TOKEN_HISTORY.to_owned());
        let num_donated = names.len();
        let order: Vec<usize> = (0..self.batch.rows.len()).collect();
        let mut packed = pack(&self.batch, &order, shape);
        set_rank(&mut packed, shape, rank);
        let packed = add(Upload::of(&Array { dims: vec![packed.len()], elements: Elements::I32(packed) }));
        let token_sizes = TokenSizes { rows, vocab_size: masked_vocab(&self.graph) };
        let token_inputs = TokenInput::ALL.map(|input| {
            let numbers = input.pack(&self.batch, &order, token_sizes).unwrap_or_else(|| input.neutral(token_sizes));
            add(Upload::of(&Array { dims: input.dims(token_sizes).to_vec(), elements: Elements::I32(numbers) }))
        });
        let arguments = self.arguments.iter().enumerate();
        let arguments: Vec<Tensor> =
            arguments.map(|(index, array)| add(Upload::of(&self.padded(index, array)))).collect();
        let weights: HashMap<String, Tensor> = self
            .weights
            .iter()
            .map(|(spec, values)| {
                let arrays = Upload::weight(spec, &part(spec, values, rank));
                (spec.name.clone(), Tensor::weight(arrays.into_iter().map(&mut add)))
            })
            .collect();
        let mut emitter = Emitter::default();
        let (inputs, columns) = RowInputs::unpack(&mut emitter, &packed, shape);
        let token_inputs = token_inputs.to_vec();
        let sampled = Some(SampledInputs::unpack(&mut emitter, &columns, token_inputs));
        let (sizes, rows) = (self.sizes, Some(inputs));
        let mut lowering = Lowering { emitter, sizes, weights, rows, sampled, states };
        let outputs = lowering.lower(&self.graph, &arguments);
        let Lowering { emitter, states, .. } = lowering;
        let results: Vec<Tensor> = names.iter().map(|name| states[name].clone()).chain(outputs).collect();
        let parameter = |(index, upload): (usize, &Upload)| {
            let ty = upload.ty.clone();
            if index < num_donated { Parameter::donated(ty, index) } else { Parameter::kept(ty) }
        };
        let parameters: Vec<Parameter> = uploads.iter().enumerate().map(parameter).collect();
        Program {
            text: module("case", self.sizes.num_devices, &parameters, emitter, (&results, &[])),
            uploads,
            num_donated,
        }
    }

    /// Returns an argument with the padding that the device gets.
    fn padded(&self, index: usize, array: &Array) -> Array {
        let is_it = |op: &Op| matches!(op, Op::Argument(known) if *known == index);
        let node = self.graph.nodes().iter().find(|node| is_it(&node.op)).expect("the graph has the argument");
        match self.places(&node.shape) {
            Some((places, len)) => spread(array, &places, len),
            None => array.clone(),
        }
    }

    /// Returns the indices of the batch's tokens, or sampling rows, in a value on the device, and the value's length
    /// there; `None` if `shape` begins with neither tokens nor rows.
    fn places(&self, shape: &Shape) -> Option<(Vec<usize>, usize)> {
        let Sizes { rows, tokens_per_row, .. } = self.sizes;
        let tokens = |(place, row): (usize, &backend::BatchRow)| {
            let start = place * tokens_per_row;
            start..start + row.num_tokens
        };
        match shape.dims().first() {
            Some(Dim::Tokens) => {
                Some((self.batch.rows.iter().enumerate().flat_map(tokens).collect(), rows * tokens_per_row))
            }
            Some(Dim::Rows) => Some((self.batch.sampled.iter().map(|sampled| sampled.row).collect(), rows)),
            Some(Dim::Fixed(_) | Dim::TopTokens) | None => None,
        }
    }
}

/// The direction of a conversion between the two layouts of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Swap {
    /// From `[num_blocks, kv_heads, block_size, dim]` to `[num_blocks, block_size, kv_heads * dim]`.
    ToDevice,
    FromDevice,
}

fn swap_heads(values: &[f32], heads: KvHeads, swap: Swap) -> Vec<f32> {
    let KvHeads { kv_heads, dim, id: _ } = heads;
    let mut swapped = vec![0.0; values.len()];
    let vectors = values.len() / dim;
    for vector in 0..vectors {
        let (block, inside) = (vector / (kv_heads * BLOCK_SIZE), vector % (kv_heads * BLOCK_SIZE));
        let (head, offset) = (inside / BLOCK_SIZE, inside % BLOCK_SIZE);
        let on_device = block * kv_heads * BLOCK_SIZE + offset * kv_heads + head;
        let (from, to) = if swap == Swap::ToDevice { (vector, on_device) } else { (on_device, vector) };
        swapped[to * dim..][..dim].copy_from_slice(&values[from * dim..][..dim]);
    }
    swapped
}

/// Returns the size of the vocabulary of the graph's masks, or 1 if the graph has no masks.
fn masked_vocab(graph: &Graph) -> usize {
    let vocab_size = |op: &Op| if let Op::IsAllowed { vocab_size } = op { Some(*vocab_size) } else { None };
    graph.nodes().iter().find_map(|node| vocab_size(&node.op)).unwrap_or(1)
}

/// Returns the keys and, if they have a state of their own, the values of attention layers, each pair once.
fn kv_heads(graph: &Graph) -> Vec<Vec<KvHeads>> {
    let mut pairs: Vec<Vec<StateId>> = Vec::new();
    for node in graph.nodes() {
        if let Op::PagedAttention(spec) = &node.op
            && !pairs.iter().any(|pair| pair[0] == spec.keys)
        {
            pairs.push(spec.states().collect());
        }
    }
    let heads = |id: StateId| {
        let [kv_heads, dim] = *graph.state_spec(id).shape else { panic!("keys are [kv_heads, head_dim]") };
        KvHeads { id, kv_heads, dim }
    };
    pairs.into_iter().map(|pair| pair.into_iter().map(heads).collect()).collect()
}

/// Returns the states of slots, each once.
fn slot_states(graph: &Graph) -> Vec<StateId> {
    let mut ids = Vec::new();
    for node in graph.nodes() {
        if let Op::RunningSum(id) = node.op
            && !ids.contains(&id)
        {
            ids.push(id);
        }
    }
    ids
}

/// Returns the part of a weight that one rank has.
fn part(spec: &WeightSpec, values: &[f32], rank: usize) -> Vec<f32> {
    let WeightPart { dim, start, len, padding } = spec.part(rank);
    let Some(size) = spec.shape.get(dim) else { return values.to_vec() };
    let width: usize = spec.shape[dim + 1..].iter().product();
    let own = |block: &[f32]| [&block[start * width..][..len * width], &vec![0.0; padding * width]].concat();
    values.chunks_exact(size * width).flat_map(own).collect()
}

/// Returns `len` rows, with the rows of `array` at the indices `places`. The other rows contain NaN, the largest
/// integers or true, which must not reach a result.
fn spread(array: &Array, places: &[usize], len: usize) -> Array {
    fn place<T: Copy>(elements: &[T], places: &[usize], [width, len]: [usize; 2], spoiler: T) -> Vec<T> {
        let mut spread = vec![spoiler; width * len];
        for (row, place) in elements.chunks_exact(width).zip(places) {
            spread[place * width..][..width].copy_from_slice(row);
        }
        spread
    }
    let sizes = [array.dims[1..].iter().product(), len];
    let elements = match &array.elements {
        Elements::F32(elements) => Elements::F32(place(elements, places, sizes, f32::NAN)),
        Elements::I32(elements) => Elements::I32(place(elements, places, sizes, i32::MAX)),
        Elements::U32(elements) => Elements::U32(place(elements, places, sizes, u32::MAX)),
        Elements::Bool(elements) => Elements::Bool(place(elements, places, sizes, true)),
    };
    Array { dims: [&[len], &array.dims[1..]].concat(), elements }
}

/// Joins the results of single rows to one array.
fn stack(mut rows: impl Iterator<Item = Array>) -> Array {
    let mut stacked = rows.next().expect("a case has rows");
    if stacked.dims.is_empty() {
        // A scalar is the same for all rows.
        return stacked;
    }
    for row in rows {
        stacked.dims[0] += row.dims[0];
        match (&mut stacked.elements, row.elements) {
            (Elements::F32(all), Elements::F32(more)) => all.extend(more),
            (Elements::I32(all), Elements::I32(more)) => all.extend(more),
            (Elements::U32(all), Elements::U32(more)) => all.extend(more),
            (Elements::Bool(all), Elements::Bool(more)) => all.extend(more),
            (all, more) => panic!("{all:?} and {more:?} are of different types"),
        }
    }
    stacked
}

/// Returns top tokens `[1, n]`, cut or filled with -1 to [`TOP_TOKENS`] as on a device. Other results do not change.
fn filled(row: &Array) -> Array {
    let Elements::I32(ids) = &row.elements else {
        assert_eq!(row.dims, [1, TOP_TOKENS], "the shape of values that accompany top tokens");
        return row.clone();
    };
    let filled = ids.iter().copied().chain(std::iter::repeat(-1)).take(TOP_TOKENS);
    Array { dims: vec![1, TOP_TOKENS], elements: Elements::I32(filled.collect()) }
}

/// Writes `weights` to `directory` and opens them as a checkpoint.
fn checkpoint(weights: &[(WeightSpec, Vec<f32>)], directory: &std::path::Path) -> Checkpoint {
    let bytes: Vec<Vec<u8>> = weights.iter().map(|(spec, values)| float_bytes(values, spec.dtype)).collect();
    let views = weights.iter().zip(&bytes).map(|((spec, _), bytes)| {
        let dtype = match spec.dtype {
            FloatType::F16 => safetensors::Dtype::F16,
            FloatType::Bf16 => safetensors::Dtype::BF16,
            FloatType::F32 => safetensors::Dtype::F32,
        };
        (spec.name.as_str(), TensorView::new(dtype, spec.shape.clone(), bytes).unwrap())
    });
    std::fs::write(directory.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    Checkpoint::open(&ModelFiles::open(directory.to_str().unwrap()).unwrap(), Quantization::None).unwrap()
}
