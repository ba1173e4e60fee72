//! This backend as the oracle for tests of other backends: it runs any graph on states that the test fills and reads.
//!
//! Entry points: [`Oracle`], and [`Array`], a tensor that is independent of backends.

use std::collections::HashMap;
use std::sync::Arc;

use backend::Batch;
use backend::{Membership, Pulse, StateLayout};
use candle_core::{DType, Tensor};
use kernels::attention::KvType;
use model::graph::{Graph, StateId};
use model::weights::Checkpoint;

use super::executor::Program;
use super::host::{self, View};
use super::loader;
use super::state::State;
use super::step::Step;

/// The elements of an array in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub enum Elements {
    F32(Vec<f32>),
    I32(Vec<i32>),
    U32(Vec<u32>),
    Bool(Vec<bool>),
}

/// A tensor on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    pub dims: Vec<usize>,
    pub elements: Elements,
}

/// A graph with its weights and its state.
#[derive(Debug)]
pub struct Oracle {
    program: Program,
    state: State,
    layout: StateLayout,
}

impl Oracle {
    /// Returns the oracle of `graph`, whose weights are in `checkpoint` if it has any. All states are zero at first.
    pub fn new(graph: &Arc<Graph>, checkpoint: Option<&Checkpoint>, layout: StateLayout) -> Self {
        let weights = match checkpoint {
            Some(checkpoint) => loader::load(&[graph], (checkpoint, &Membership::alone()), &mut |_, _| ())
                .expect("the checkpoint has every weight"),
            None => HashMap::new(),
        };
        let state = State::allocate(graph, KvType::F32, layout).expect("a small state");
        Self { program: Program::new(graph, &weights), state, layout }
    }

    /// Sets the cache of the state `keys`: `kv` contains the keys `[num_blocks, kv_heads, block_size, head_dim]` and
    /// the values, in the same layout.
    pub fn set_cache(&self, keys: StateId, kv: [&[f32]; 2]) {
        self.state.cache(keys).set_f32(kv);
    }

    /// Returns the keys and values in the cache of the state `keys`, in the layout of [`set_cache`](Self::set_cache).
    pub fn cache(&self, keys: StateId) -> [Vec<f32>; 2] {
        self.state.cache(keys).to_f32().expect("a cache of floats")
    }

    /// Sets the state `state` of all slots, `[num_slots, ..]`.
    pub fn set_slots(&self, state: StateId, numbers: &[f32]) {
        let mut slots = self.state.slots(state);
        let slot_len = numbers.len() / self.layout.num_slots;
        let each = numbers.chunks_exact(slot_len).enumerate();
        each.for_each(|(slot, numbers)| slots.of_slot(slot).copy_from_slice(numbers));
    }

    /// Returns the state `state` of all slots, `[num_slots, ..]`.
    pub fn slots(&self, state: StateId) -> Vec<f32> {
        let mut slots = self.state.slots(state);
        (0..self.layout.num_slots).flat_map(|slot| slots.of_slot(slot).to_vec()).collect()
    }

    /// Sets the token history `[num_slots, max_total_tokens]`.
    pub fn set_history(&self, tokens: &[i32]) {
        let mut batch = Batch::default();
        for (slot, tokens) in tokens.chunks_exact(self.layout.max_total_tokens).enumerate() {
            batch.push_row(slot, 0, tokens, &[]);
        }
        self.state.history.current_tokens(&batch);
    }

    /// Returns the token history.
    pub fn history(&self) -> Vec<i32> {
        let StateLayout { num_slots, max_total_tokens, .. } = self.layout;
        (0..num_slots).flat_map(|slot| self.state.history.tokens(slot, 0..max_total_tokens)).collect()
    }

    /// Runs the graph as a model: over all tokens or rows at once.
    pub fn run(&self, batch: &Batch, arguments: &[Array]) -> Vec<Array> {
        self.state.begin(batch);
        self.run_step(batch, 0, arguments)
    }

    /// Runs the graph as a sampler, once for each sampled row. The first dimension of every argument has one entry per
    /// sampled row. Returns the outputs of each run.
    pub fn run_rows(&self, batch: &Batch, arguments: &[Array]) -> Vec<Vec<Array>> {
        let run = |sampled: usize| {
            let arguments: Vec<Array> = arguments.iter().map(|argument| argument.rows(&[sampled])).collect();
            self.run_step(batch, sampled, &arguments)
        };
        (0..batch.sampled.len()).map(run).collect()
    }

    fn run_step(&self, batch: &Batch, sampled: usize, arguments: &[Array]) -> Vec<Array> {
        let arguments: Vec<Tensor> = arguments.iter().map(Array::tensor).collect();
        let membership = Membership::alone();
        let step = Step {
            batch,
            state: &self.state,
            membership: &membership,
            pulse: &Pulse::default(),
            sampled,
            arguments: &arguments,
        };
        let outputs = self.program.run(&step).expect("operations fit their operands");
        outputs.iter().map(Array::of).collect()
    }
}

impl Array {
    /// Returns the rows at `places`: all elements with these indices in the first dimension.
    pub fn rows(&self, places: &[usize]) -> Self {
        fn pick<T: Copy>(elements: &[T], width: usize, places: &[usize]) -> Vec<T> {
            places.iter().flat_map(|place| elements[place * width..][..width].iter().copied()).collect()
        }
        let width = self.dims[1..].iter().product();
        let elements = match &self.elements {
            Elements::F32(elements) => Elements::F32(pick(elements, width, places)),
            Elements::I32(elements) => Elements::I32(pick(elements, width, places)),
            Elements::U32(elements) => Elements::U32(pick(elements, width, places)),
            Elements::Bool(elements) => Elements::Bool(pick(elements, width, places)),
        };
        Self { dims: [&[places.len()], &self.dims[1..]].concat(), elements }
    }

    fn tensor(&self) -> Tensor {
        let dims = self.dims.as_slice();
        match self.elements.clone() {
            Elements::F32(elements) => host::shaped(elements, dims),
            Elements::I32(elements) => host::shaped(elements, dims),
            Elements::U32(elements) => host::shaped(elements, dims),
            Elements::Bool(elements) => host::shaped(elements.into_iter().map(u8::from).collect(), dims),
        }
        .expect("as many elements as the dimensions say")
    }

    fn of(tensor: &Tensor) -> Self {
        let view = View::new(tensor).expect("results are contiguous");
        let elements = match tensor.dtype() {
            DType::F32 => Elements::F32(view.f32().to_vec()),
            DType::I32 => Elements::I32(view.i32().to_vec()),
            DType::U32 => Elements::U32(view.u32().to_vec()),
            DType::U8 => Elements::Bool(view.bool().iter().map(|truth| *truth != 0).collect()),
            other => panic!("no operation returns {other:?}"),
        };
        Self { dims: tensor.dims().to_vec(), elements }
    }
}
