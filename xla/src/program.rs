//! The programs that a model is compiled to, with their arguments and results.
//!
//! Entry points: [`ProgramKey`], which names a program and its sizes, and [`Programs::print`], which writes its text. A
//! step runs programs of several kinds. So the number of programs to compile is the sum of the numbers of sizes of each
//! kind, not their product:
//!
//! * lay_out_tables takes embedding tables, and returns them row by row. It runs once, and only if a device would
//!   otherwise store tables column by column.
//! * clear takes no arguments, and returns the states, all zero.
//! * decoder takes the states (donated), the packed step and the weights. It returns the states, the last hidden states
//!   `[rows, hidden]` and the sampler's columns. If rows have several tokens, it also returns all hidden states
//!   `[tokens, hidden]`.
//! * cached tokens takes the history (donated), and indices and ids `[2, CACHED_TOKENS]`. It returns the history.
//! * sampler takes the history (donated), the last hidden states, the columns, the arrays of [`TokenInput`] if it reads
//!   them, and the weights. It returns the history, and per row a token, the bits of its logprob and, if it reports
//!   them, top tokens and the bits of their logprobs.
//! * targets, for prompt tokens whose log-probabilities are reported, takes hidden states `[tokens, hidden]`,
//!   `[3, TARGETS]` with indices, ids and numbers of top tokens, and the weights. It returns per target the bits of its
//!   logprob, top tokens and the bits of their logprobs.

use std::collections::HashMap;
use std::ops::Range;

use backend::{ModelGraphs, StateLayout};
use devices::{DecodeAttention, DecodeLoop, HeadForm};
use model::graph::{
    AttentionSpec, DType, Dim, Extent, Graph, GraphError, Op, StateBytes, StateSpec, TOKEN_HISTORY, Value, WeightSpec,
};
use model::sampling::{BatchSampler, TargetReport, target_graph};

use super::bucket::Buckets;
use super::hlo::Assumed;
use super::stablehlo::{
    Combine, Emitter, ExpertPlan, Heads, Layout, Lowering, Parameter, Plan, Rounds, RowInputs, SampledInputs, Sizes,
    Tensor, Type, module, pack_bits, state_type,
};
use super::step_input::{StepShape, sampled_columns};
use super::token_input::{TokenInput, TokenSizes};
use super::weights;
use crate::error::XlaError;

/// The maximum number of prompt tokens whose log-probabilities one launch computes.
pub(super) const TARGETS: usize = 64;
/// The maximum number of cached tokens that one launch writes to the history.
pub(super) const CACHED_TOKENS: usize = 512;
/// The maximum number of top tokens that a row can report, ties included.
pub(super) const TOP_TOKENS: usize = 16;

/// The length of a decoding row's context, in tokens, that is assumed where the bytes that a program reads are counted.
pub(crate) const REFERENCE_CONTEXT: usize = 1024;
/// The contexts that are assumed for rows of different lengths: one long row among short ones.
const MIXED_CONTEXTS: [usize; 2] = [4096, 256];

/// A program of a model, by its kind and sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum ProgramKey {
    LayOutTables,
    Clear,
    Decoder {
        rows: usize,
        tokens_per_row: usize,
        /// The longest context that the program can read, if its attention reads a fixed number of tokens of every row;
        /// `None` if the number depends on the contexts.
        context: Option<usize>,
    },
    CachedTokens,
    Sampler {
        rows: usize,
        sampler: BatchSampler,
    },
    Targets {
        tokens: usize,
    },
}

/// A program as text.
#[derive(Debug, Clone, Default)]
pub struct Program {
    pub name: String,
    pub(super) text: String,
    /// The weights whose arrays are the program's last arguments, in order. A weight has one array or several.
    pub(super) weights: Vec<WeightSpec>,
    /// Bytes of the donated arguments: results take over their memory.
    pub(super) donated_bytes: u64,
    /// Statistics for rows with contexts of [`REFERENCE_CONTEXT`] tokens.
    pub(super) reference: Reference,
    /// Statistics of a program that decodes, for rows of different lengths ([`MIXED_CONTEXTS`]).
    pub(super) mixed_reference: Option<Reference>,
}

/// Statistics of a program, calculated for rows with certain lengths of context.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Reference {
    /// Assumptions for counting the bytes that the compiled program reads. Loops that count up are those of attention,
    /// with the largest number of iterations of any layer; loops that count down are those over tiles of experts.
    /// Kernels are those of attention, whose bytes are compared with contexts of [`REFERENCE_CONTEXT`] tokens.
    pub(super) assumed: Assumed,
    /// The bytes that count as the minimum that the program must read: weights without embedding tables and without
    /// experts that no token chooses and, for decoding programs, the keys and values of the rows' contexts, once for
    /// each layer that attends to them, and the states that a slot has once. 0 for programs that neither decode nor
    /// sample.
    pub(super) minimum_bytes: u64,
}

impl Program {
    /// Returns an error of the plugin as an error of this program.
    pub(super) fn failed(&self, source: pjrt::Error) -> XlaError {
        XlaError::Program { program: self.name.clone(), source }
    }
}

/// The settings of programs that depend on the kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProgramForm {
    /// The smallest number of rows of a program that decodes.
    pub(super) min_decode_rows: usize,
    /// How queries of decoding rows are multiplied with the keys of several KV heads.
    pub(super) decode_heads: HeadForm,
    /// The chunks that an iteration of the attention loop of decoding rows reads.
    pub(super) decode_loop: DecodeLoop,
    /// How rows that decode attend to their contexts.
    pub(super) decode_attention: DecodeAttention,
    /// The maximum number of bytes of keys, or of values, that the attention loop gathers at a time. Chunks that cannot
    /// be halved may be larger.
    pub(super) chunk_bytes: usize,
    /// The number of elements to whose multiple the last dimension of an array is padded in memory. If it is not 1, the
    /// KV cache has a fixed layout.
    pub(super) lanes: usize,
    /// Lengths of context, ascending, for which there are decoding programs that read a fixed number of tokens of every
    /// row. [`Buckets`](super::bucket::Buckets) shortens or drops those that are longer than a row can be.
    pub(super) fixed_contexts: &'static [usize],
    /// The type of keys and values; `None` means the type of the weights before quantization.
    pub(super) kv_dtype: Option<DType>,
}

/// The programs of a model.
#[derive(Debug, Clone)]
pub(super) struct Programs {
    graphs: ModelGraphs,
    layout: StateLayout,
    num_devices: usize,
    form: ProgramForm,
    blocks_per_row: usize,
    kv_dtype: DType,
    /// The states of the model, in the order of the decoder's arguments.
    states: Vec<StateSpec>,
    /// The embedding tables that programs take row by row, although it is not the device's default.
    tables: Vec<WeightSpec>,
    hidden_size: usize,
    vocab_size: usize,
}

/// The arguments of a program, which are added one by one.
#[derive(Default)]
struct Signature {
    parameters: Vec<Parameter>,
    /// The weights whose arrays are the last parameters, in order.
    weights: Vec<WeightSpec>,
}

impl Programs {
    /// Returns the programs of `graphs` with states of `layout`. `num_devices` devices run each program together.
    pub(super) fn new(graphs: &ModelGraphs, layout: StateLayout, num_devices: usize, form: ProgramForm) -> Self {
        let hidden = graphs.decoder.node(graphs.decoder.outputs()[0]);
        let logits = graphs.logits.node(graphs.logits.outputs()[0]);
        Self {
            graphs: graphs.clone(),
            layout,
            num_devices,
            form,
            blocks_per_row: super::bucket::blocks_per_row(layout.max_total_tokens),
            kv_dtype: form.kv_dtype(graphs),
            states: graphs.states().into_iter().cloned().collect(),
            tables: form.tables(&graphs.decoder),
            hidden_size: hidden.shape.fixed_len(),
            vocab_size: logits.shape.fixed_len(),
        }
    }

    /// Returns every program that a server can need.
    pub(super) fn keys(&self, buckets: &Buckets) -> Vec<ProgramKey> {
        let tables = if self.tables.is_empty() { None } else { Some(ProgramKey::LayOutTables) };
        tables.into_iter().chain(buckets.programs()).collect()
    }

    /// Returns the tables that are the results of [`ProgramKey::LayOutTables`], in order.
    pub(super) fn tables(&self) -> &[WeightSpec] {
        &self.tables
    }

    /// Returns the states of the model, in the order in which a decoder takes and returns them.
    pub(super) fn all_states(&self) -> &[StateSpec] {
        &self.states
    }

    /// Returns the range in [`Programs::all_states`] of the states that are the first results of a program and, except
    /// for [`ProgramKey::Clear`], its first arguments.
    pub(super) fn states(&self, key: ProgramKey) -> Range<usize> {
        let is_history = |state: &StateSpec| state.name == TOKEN_HISTORY;
        match key {
            ProgramKey::Clear | ProgramKey::Decoder { .. } => 0..self.states.len(),
            ProgramKey::CachedTokens | ProgramKey::Sampler { .. } => {
                let index = self.states.iter().position(is_history).expect("a model has a token history");
                index..index + 1
            }
            ProgramKey::LayOutTables | ProgramKey::Targets { .. } => 0..0,
        }
    }

    fn state_type(&self, state: &StateSpec) -> Type {
        state_type(state, self.layout, self.kv_dtype)
    }

    /// Returns the layout of a state's array.
    fn state_layout(&self, state: &StateSpec) -> Layout {
        let is_fixed = self.form.lanes > 1 && state.extent == Extent::Token;
        if is_fixed { Layout::RowMajor } else { Layout::Default }
    }

    /// Returns the layout of a weight's first array, as decoders and samplers take it.
    fn weight_layout(&self, spec: &WeightSpec) -> Layout {
        let is_table = self.tables.iter().any(|table| table.name == spec.name);
        if is_table { Layout::RowMajor } else { Layout::Default }
    }

    /// Returns the sizes of a decoder's launch.
    pub(super) fn step_shape(&self, rows: usize, tokens_per_row: usize) -> StepShape {
        StepShape { rows, tokens_per_row, blocks_per_row: self.blocks_per_row }
    }

    /// Returns the sizes of the states.
    pub(super) fn layout(&self) -> StateLayout {
        self.layout
    }

    /// Returns the sizes of the arrays of [`TokenInput`] for a sampler's launch of `rows` rows.
    pub(super) fn token_sizes(&self, rows: usize) -> TokenSizes {
        TokenSizes { rows, vocab_size: self.vocab_size }
    }

    /// Returns a program as text.
    ///
    /// # Errors
    /// When the graph of a sampler, or of targets, cannot be built.
    pub(super) fn print(&self, key: ProgramKey) -> Result<Program, GraphError> {
        match key {
            ProgramKey::LayOutTables => Ok(self.print_lay_out_tables(key)),
            ProgramKey::Clear => Ok(self.print_clear(key)),
            ProgramKey::Decoder { rows, tokens_per_row, context } => {
                Ok(self.print_decoder(key, Sizes { context, ..self.sizes(rows, tokens_per_row) }))
            }
            ProgramKey::CachedTokens => Ok(self.print_cached_tokens(key)),
            ProgramKey::Sampler { rows, sampler } => self.print_sampler(key, rows, sampler),
            ProgramKey::Targets { tokens } => self.print_targets(key, tokens),
        }
    }

    fn print_lay_out_tables(&self, key: ProgramKey) -> Program {
        let mut signature = Signature::default();
        let tables = signature.weights(self.tables.iter(), |_| Layout::Default);
        let tables: Vec<Tensor> = self.tables.iter().map(|spec| tables[&spec.name].clone()).collect();
        self.finish(key, signature, Emitter::default(), &tables)
    }

    fn print_clear(&self, key: ProgramKey) -> Program {
        let mut emitter = Emitter::default();
        let zeros = self.states[self.states(key)].iter().map(|state| emitter.splat(0.0, self.state_type(state)));
        let zeros: Vec<Tensor> = zeros.collect();
        self.finish(key, Signature::default(), emitter, &zeros)
    }

    fn print_decoder(&self, key: ProgramKey, sizes: Sizes) -> Program {
        let shape = self.step_shape(sizes.rows, sizes.tokens_per_row);
        let mut signature = Signature::default();
        let states = self.donated(&mut signature, key);
        let packed = signature.kept(Type::new([shape.len()], DType::I32));
        let weights = signature.weights(self.graphs.decoder.weights(), |spec| self.weight_layout(spec));
        let mut emitter = Emitter::default();
        let (inputs, columns) = RowInputs::unpack(&mut emitter, &packed, shape);
        let rows = Some(inputs.clone());
        let mut lowering = Lowering { emitter, sizes, weights, rows, sampled: None, states };
        let hidden = lowering.lower(&self.graphs.decoder, &[]).remove(0); // [tokens, hidden]
        let last = inputs.last_tokens(&mut lowering.emitter, &hidden, &sizes); // [rows, hidden]
        let Lowering { emitter, mut states, .. } = lowering;
        let mut results = self.given_back(&mut states, key);
        results.extend([last, columns]);
        if sizes.tokens_per_row > 1 {
            results.push(hidden);
        }
        self.finish(key, signature, emitter, &results)
    }

    fn print_cached_tokens(&self, key: ProgramKey) -> Program {
        let mut signature = Signature::default();
        let history = self.donated(&mut signature, key).remove(TOKEN_HISTORY).expect("the program has the history");
        let packed = signature.kept(Type::new([2, CACHED_TOKENS], DType::I32));
        let mut emitter = Emitter::default();
        let [places, ids] = [0, 1].map(|row| emitter.row(&packed, row)); // [cached_tokens]
        let history = emitter.scatter_rows(&history, &places, &ids, Combine::Replace);
        self.finish(key, signature, emitter, &[history])
    }

    fn print_sampler(&self, key: ProgramKey, rows: usize, sampler: BatchSampler) -> Result<Program, GraphError> {
        let mut signature = Signature::default();
        let states = self.donated(&mut signature, key);
        let hidden = signature.kept(Type::new([rows, self.hidden_size], DType::F32)); // [rows, hidden]
        let columns = signature.kept(Type::new([sampled_columns().count(), rows], DType::I32));
        let token_inputs: &[TokenInput] = if sampler.reads_token_inputs() { &TokenInput::ALL } else { &[] };
        let sizes = self.token_sizes(rows);
        let token_inputs = token_inputs.iter().map(|input| signature.kept(Type::new(input.dims(sizes), DType::I32)));
        let token_inputs = token_inputs.collect();
        let weights = signature.weights(self.graphs.logits.weights(), |spec| self.weight_layout(spec));
        let sizes = self.sizes(rows, 1);
        let mut emitter = Emitter::default();
        let sampled = Some(SampledInputs::unpack(&mut emitter, &columns, token_inputs));
        let mut lowering = Lowering { emitter, sizes, weights, rows: None, sampled, states };
        let logits = lowering.lower(&self.graphs.logits, &[hidden]); // [rows, vocab]
        let outputs = lowering.lower(&*sampler.graph(self.vocab_size)?, &logits);
        let Lowering { mut emitter, mut states, .. } = lowering;
        let report = report(&mut emitter, &outputs); // [rows, ..]
        let mut results = self.given_back(&mut states, key);
        results.push(report);
        Ok(self.finish(key, signature, emitter, &results))
    }

    fn print_targets(&self, key: ProgramKey, tokens: usize) -> Result<Program, GraphError> {
        let mut signature = Signature::default();
        let hidden = signature.kept(Type::new([tokens, self.hidden_size], DType::F32)); // [tokens, hidden]
        let targets = signature.kept(Type::new([3, TARGETS], DType::I32));
        let weights = signature.weights(self.graphs.logits.weights(), |spec| self.weight_layout(spec));
        let sizes = self.sizes(TARGETS, 1);
        let mut emitter = Emitter::default();
        let [indices, ids, top_n] = [0, 1, 2].map(|row| emitter.row(&targets, row)); // [targets]
        let hidden = emitter.gather_rows(&hidden, &indices); // [targets, hidden]
        let mut lowering = Lowering { emitter, sizes, weights, rows: None, sampled: None, states: HashMap::new() };
        let logits = lowering.lower(&self.graphs.logits, &[hidden]).remove(0); // [targets, vocab]
        let graph = target_graph(self.vocab_size, TargetReport::TopTokens)?;
        let outputs = lowering.lower(&graph, &[logits, ids, top_n]);
        let mut emitter = lowering.emitter;
        let report = report(&mut emitter, &outputs); // [targets, ..]
        Ok(self.finish(key, signature, emitter, &[report]))
    }

    /// Adds the states of a program as its first arguments, and returns them by name.
    fn donated(&self, signature: &mut Signature, key: ProgramKey) -> HashMap<String, Tensor> {
        let states = self.states[self.states(key)].iter().enumerate();
        let donated = |(index, state): (usize, &StateSpec)| {
            let (ty, layout) = (self.state_type(state), self.state_layout(state));
            (state.name.clone(), signature.add(Parameter { layout, ..Parameter::donated(ty, index) }))
        };
        states.map(donated).collect()
    }

    /// Returns the first results of a program: its states after the step.
    fn given_back(&self, states: &mut HashMap<String, Tensor>, key: ProgramKey) -> Vec<Tensor> {
        self.states[self.states(key)].iter().filter_map(|state| states.remove(&state.name)).collect()
    }

    fn finish(&self, key: ProgramKey, signature: Signature, emitter: Emitter, results: &[Tensor]) -> Program {
        let Signature { parameters, weights } = signature;
        let donated = parameters.iter().filter(|parameter| parameter.donated_to.is_some());
        let donated_bytes = donated.map(|parameter| parameter.ty.size_bytes()).sum();
        let layouts: Vec<Layout> = match key {
            ProgramKey::LayOutTables => vec![Layout::RowMajor; self.tables.len()],
            _ => self.states[self.states(key)].iter().map(|state| self.state_layout(state)).collect(),
        };
        let text = module(&key.to_string(), self.num_devices, &parameters, emitter, (results, &layouts));
        let (reference, mixed_reference) = self.references(key);
        Program { name: key.to_string(), text, weights, donated_bytes, reference, mixed_reference }
    }

    /// Returns the statistics of a program for rows of equal lengths and, if it decodes, of different lengths.
    fn references(&self, key: ProgramKey) -> (Reference, Option<Reference>) {
        match key {
            ProgramKey::Decoder { rows, tokens_per_row: 1, context } => {
                let [long, short] = MIXED_CONTEXTS.map(|context| context.min(self.layout.max_total_tokens));
                let mixed: Vec<usize> = std::iter::once(long).chain(std::iter::repeat(short)).take(rows).collect();
                let sizes = Sizes { context, ..self.sizes(rows, 1) };
                let equal = self.decode_reference(&sizes, &vec![REFERENCE_CONTEXT; rows]);
                (equal, Some(self.decode_reference(&sizes, &mixed)))
            }
            ProgramKey::Sampler { .. } => {
                (Reference { minimum_bytes: read_weights_bytes(&self.graphs.logits), ..Reference::default() }, None)
            }
            ProgramKey::Decoder { rows, tokens_per_row, .. } => {
                let (trips_down, _) = expert_work(&self.graphs.decoder, rows * tokens_per_row);
                (Reference { assumed: Assumed { trips_down, ..Assumed::ONCE }, minimum_bytes: 0 }, None)
            }
            ProgramKey::LayOutTables | ProgramKey::Clear | ProgramKey::CachedTokens | ProgramKey::Targets { .. } => {
                (Reference::default(), None)
            }
        }
    }

    /// Returns the statistics of a program that decodes, for rows with these lengths of context.
    fn decode_reference(&self, sizes: &Sizes, contexts: &[usize]) -> Reference {
        let StateBytes { per_token, per_slot, per_position: _ } = self.form.state_bytes(&self.graphs);
        // Layers that attend to the cache of another read it again.
        let shared = shared_states(&self.graphs.decoder);
        let per_token = per_token + self.form.bytes_of(&self.graphs, shared).per_token;
        let num_tokens: usize = contexts.iter().sum();
        let state_bytes = num_tokens as u64 * per_token + contexts.len() as u64 * per_slot;
        let rounds = attention_layers(&self.graphs.decoder, self.kv_dtype)
            .map(|(heads, spec)| Plan::new(heads, sizes, &spec).decode_rounds(contexts));
        let rounds = rounds.max().unwrap_or(Rounds { full: 1, rest: 0 });
        let (expert_tiles, idle_bytes) = expert_work(&self.graphs.decoder, contexts.len());
        let assumed = Assumed {
            trips_up: rounds.full as u64,
            trips_rest: rounds.rest as u64,
            trips_down: expert_tiles,
            kernel_share: [num_tokens as u64, (contexts.len() * REFERENCE_CONTEXT) as u64],
        };
        let minimum_bytes = read_weights_bytes(&self.graphs.decoder) - idle_bytes + state_bytes;
        Reference { assumed, minimum_bytes }
    }

    fn sizes(&self, rows: usize, tokens_per_row: usize) -> Sizes {
        let StateLayout { num_slots, max_total_tokens, .. } = self.layout;
        Sizes {
            rows,
            tokens_per_row,
            blocks_per_row: self.blocks_per_row,
            num_slots,
            max_total_tokens,
            top_tokens: TOP_TOKENS,
            num_devices: self.num_devices,
            decode_heads: self.form.decode_heads,
            decode_loop: self.form.decode_loop,
            decode_attention: self.form.decode_attention,
            chunk_bytes: self.form.chunk_bytes,
            context: None,
        }
    }
}

impl ProgramForm {
    /// Returns the bytes that one rank keeps between steps, with the padding of the KV cache.
    pub(super) fn state_bytes(&self, graphs: &ModelGraphs) -> StateBytes {
        self.bytes_of(graphs, graphs.states())
    }

    /// Returns the bytes of `states`, with the padding of the KV cache.
    fn bytes_of<'a>(&self, graphs: &ModelGraphs, states: impl IntoIterator<Item = &'a StateSpec>) -> StateBytes {
        let element_bytes = self.kv_dtype(graphs).size_bytes();
        let padded = |state: &StateSpec| match state.extent {
            Extent::Token => {
                StateSpec { shape: vec![state.num_elements().next_multiple_of(self.lanes)], ..state.clone() }
            }
            Extent::Slot | Extent::Position => state.clone(),
        };
        let states: Vec<StateSpec> = states.into_iter().map(padded).collect();
        StateBytes::of(&states, |vector_len| vector_len as u64 * element_bytes)
    }

    /// Returns the embedding tables whose rows do not fill whole vectors. For their types, a TPU's default is to store
    /// them column by column, and each program that looks up rows would first copy the whole table.
    fn tables(&self, decoder: &Graph) -> Vec<WeightSpec> {
        let is_padded = |spec: &&WeightSpec| spec.local_shape().last().is_some_and(|width| width % self.lanes != 0);
        let mut tables: Vec<WeightSpec> = Vec::new();
        for spec in decoder.weights().filter(|spec| is_table(decoder, &spec.name)).filter(is_padded) {
            if tables.iter().all(|known| known.name != spec.name) {
                tables.push(spec.clone());
            }
        }
        tables
    }

    /// Returns the type of keys and values.
    pub(super) fn kv_dtype(&self, graphs: &ModelGraphs) -> DType {
        let weights = || graphs.decoder.weights().next().map_or(DType::F32, |spec| DType::Float(spec.dtype));
        self.kv_dtype.unwrap_or_else(weights)
    }
}

impl Signature {
    fn kept(&mut self, ty: Type) -> Tensor {
        self.add(Parameter::kept(ty))
    }

    fn add(&mut self, parameter: Parameter) -> Tensor {
        let ty = parameter.ty.clone();
        self.parameters.push(parameter);
        Emitter::argument(self.parameters.len() - 1, ty)
    }

    /// Adds the arrays of weights as arguments, and returns the weights by name. `layout` returns the layout of a
    /// weight's first array.
    fn weights<'a>(
        &mut self,
        specs: impl Iterator<Item = &'a WeightSpec>,
        layout: impl Fn(&WeightSpec) -> Layout,
    ) -> HashMap<String, Tensor> {
        self.weights = specs.cloned().collect();
        let specs = self.weights.clone();
        let tensor = |spec: WeightSpec| {
            let layouts = std::iter::once(layout(&spec)).chain(std::iter::repeat(Layout::Default));
            let arrays = weights::arrays(&spec).into_iter().zip(layouts);
            let arrays = arrays.map(|((_, ty), layout)| self.add(Parameter { layout, ..Parameter::kept(ty) }));
            (spec.name, Tensor::weight(arrays))
        };
        specs.into_iter().map(tensor).collect()
    }
}

impl std::fmt::Display for ProgramKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::LayOutTables => f.write_str("lay_out_tables"),
            Self::Clear => f.write_str("clear"),
            Self::Decoder { rows, tokens_per_row: 1, context: None } => write!(f, "decode_{rows}"),
            Self::Decoder { rows, tokens_per_row: 1, context: Some(tokens) } => write!(f, "decode_{rows}_of_{tokens}"),
            Self::Decoder { rows, tokens_per_row, context: _ } => write!(f, "prefill_{rows}x{tokens_per_row}"),
            Self::CachedTokens => f.write_str("cached_tokens"),
            Self::Sampler { rows, sampler } => write!(f, "sample_{rows}_{}", sampler.name()),
            Self::Targets { tokens } => write!(f, "prompt_logprobs_{tokens}"),
        }
    }
}

/// Packs outputs, `[rows]` or `[rows, n]` each, as columns of one array `[rows, ..]` i32.
fn report(emitter: &mut Emitter, outputs: &[Tensor]) -> Tensor {
    let columns: Vec<Tensor> = outputs.iter().map(|output| emitter.as_matrix(output)).collect(); // [rows, n]
    pack_bits(emitter, &columns) // [rows, ..]
}

/// Returns the bytes of all weights except embedding tables, of which only some rows are read.
fn read_weights_bytes(graph: &Graph) -> u64 {
    graph.weights().filter(|spec| !is_table(graph, &spec.name)).map(WeightSpec::local_bytes).sum()
}

/// True if `graph` looks up rows of the weight `name`.
fn is_table(graph: &Graph, name: &str) -> bool {
    graph.nodes().iter().any(|node| {
        let table = node.operands.first().map(|table| &graph.node(*table).op);
        matches!((&node.op, table), (Op::Embedding, Some(Op::Weight(spec))) if spec.name == name)
    })
}

/// Returns, for a decoder's launch with `num_tokens` tokens, the number of tiles of a layer of experts and the bytes
/// of all experts that no token chooses, if all experts are chosen equally often.
fn expert_work(decoder: &Graph, num_tokens: usize) -> (u64, u64) {
    let local_bytes = |matrix: &Value| match &decoder.node(*matrix).op {
        Op::Weight(spec) => Some(spec.local_bytes()),
        _ => None,
    };
    let (mut tiles, mut idle_bytes) = (0.0_f64, 0.0_f64);
    for node in decoder.nodes() {
        let (Op::Experts(spec), [_, mixture, matrices @ ..]) = (&node.op, node.operands.as_slice()) else { continue };
        let num_experts = decoder.node(*mixture).shape.fixed_len();
        let Some(Dim::Fixed(num_here)) = decoder.node(matrices[0]).shape.dims().first() else { continue };
        let work = ExpertPlan::new(num_tokens, num_experts, *num_here, spec.num_chosen).expected();
        let bytes: u64 = matrices.iter().filter_map(local_bytes).sum();
        tiles = tiles.max(work.tiles);
        idle_bytes += bytes as f64 * (1.0 - work.experts.round() / *num_here as f64);
    }
    (tiles.round() as u64, idle_bytes as u64)
}

/// Returns the states of keys and values to which layers attend that do not write them, once for each of these layers.
fn shared_states(decoder: &Graph) -> impl Iterator<Item = &StateSpec> {
    let specs = decoder.nodes().iter().filter_map(|node| match &node.op {
        Op::SharedAttention(spec) => Some(spec),
        _ => None,
    });
    specs.flat_map(AttentionSpec::states).map(|id| decoder.state_spec(id))
}

/// Returns the heads and the settings of each attention layer of a decoder.
fn attention_layers(decoder: &Graph, dtype: DType) -> impl Iterator<Item = (Heads, AttentionSpec)> + '_ {
    decoder.nodes().iter().filter_map(move |node| {
        let (Op::PagedAttention(spec) | Op::SharedAttention(spec)) = node.op else { return None };
        let keys = &decoder.state_spec(spec.keys).shape;
        let [kv_heads, head_dim] = [keys[0], keys[1]];
        let value_dim = node.shape.last_size().unwrap_or(head_dim);
        let heads = node.shape.fixed_len() / value_dim;
        Some((Heads { heads, head_dim, kv_heads, value_dim, dtype }, spec))
    })
}
