//! The graphs of samplers. A device that runs rows one by one has a graph for each combination of processors, choice
//! and report in use; a device that runs batches has four graphs.
//!
//! Entry points: [`Samplers`] for a device that runs each row's own graph, [`BatchSampler`] for a device that compiles
//! graphs ahead of time.

use std::collections::HashMap;
use std::sync::Arc;

use proto::SamplingParams;

use super::choice::{self, Choice};
use super::{Demand, PROCESSORS};
use crate::graph::{DType, Dim, Graph, GraphError, Shape};

/// The graphs with which rows sample. Each graph is built when it is first requested.
#[derive(Debug)]
pub struct Samplers {
    vocab_size: usize,
    graphs: HashMap<Variant, Arc<Graph>>,
}

/// The processors, choice and report of a sampler's graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Variant {
    /// For each of [`PROCESSORS`], true if it is part of the graph.
    processors: [bool; PROCESSORS.len()],
    choice: Choice,
    reports_top_tokens: bool,
}

/// A sampler for a batch whose rows sample differently. Each sampler can also do everything that the previous ones can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BatchSampler {
    /// Greedy rows without processors and without the report of top tokens.
    Greedy,
    /// As `Greedy`, and rows that sample at random, with the processors that apply only to them, such as temperature.
    Drawing,
    /// As `Drawing`, with penalties, the minimum number of new tokens, and the report of top tokens.
    Penalising,
    /// All processors, including those that read arrays of tokens. Only steps with this sampler send such arrays.
    Everything,
}

impl BatchSampler {
    /// All samplers, the least first.
    pub const ALL: [Self; 4] = [Self::Greedy, Self::Drawing, Self::Penalising, Self::Everything];

    /// Returns the least sampler that can sample a row with `params` in a step without a mask.
    pub fn of(params: &SamplingParams) -> Self {
        let choice = if params.is_greedy { Self::Greedy } else { Self::Drawing };
        let report = if params.top_n_tokens > 0 { Self::Penalising } else { Self::Greedy };
        let row = Demand { params, is_masked: false };
        let processors = PROCESSORS.iter().filter(|processor| processor.is_on(&row));
        processors.map(|processor| processor.least).fold(choice.max(report), Self::max)
    }

    /// True if the sampler has the processors that read arrays of tokens.
    pub fn reads_token_inputs(self) -> bool {
        self == Self::Everything
    }

    /// The name of the sampler within the names of programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Greedy => "greedy",
            Self::Drawing => "drawing",
            Self::Penalising => "penalising",
            Self::Everything => "everything",
        }
    }

    /// Returns the sampler's graph, with the arguments and outputs of [`Samplers::graph`], and with top tokens from
    /// `Penalising` on.
    pub fn graph(self, vocab_size: usize) -> Result<Arc<Graph>, GraphError> {
        let processors = PROCESSORS.each_ref().map(|processor| processor.least <= self);
        let choice = if self == Self::Greedy { Choice::Best } else { Choice::EachItsOwn };
        build(vocab_size, Variant { processors, choice, reports_top_tokens: self >= Self::Penalising })
    }
}

impl Samplers {
    /// Returns samplers for a vocabulary of `vocab_size` tokens. No graph is built yet.
    pub fn new(vocab_size: usize) -> Self {
        Self { vocab_size, graphs: HashMap::new() }
    }

    /// Returns the graph with only the processors that `params` need: logits `[rows, vocab]` (argument 0) → token
    /// `[rows]`, logprob `[rows]`, and, if top tokens are requested, their ids and logprobs, both `[rows, top_tokens]`.
    pub fn graph(&mut self, params: &SamplingParams) -> Result<Arc<Graph>, GraphError> {
        self.graph_of(&Demand { params, is_masked: false })
    }

    /// As [`Samplers::graph`], for steps with a mask.
    pub fn masked_graph(&mut self, params: &SamplingParams) -> Result<Arc<Graph>, GraphError> {
        self.graph_of(&Demand { params, is_masked: true })
    }

    fn graph_of(&mut self, row: &Demand<'_>) -> Result<Arc<Graph>, GraphError> {
        let params = row.params;
        let variant = Variant {
            processors: PROCESSORS.each_ref().map(|processor| processor.is_on(row)),
            choice: if params.is_greedy { Choice::Best } else { Choice::Drawn },
            reports_top_tokens: params.top_n_tokens > 0,
        };
        if let Some(graph) = self.graphs.get(&variant) {
            return Ok(Arc::clone(graph));
        }
        let graph = build(self.vocab_size, variant)?;
        self.graphs.insert(variant, Arc::clone(&graph));
        Ok(graph)
    }
}

fn build(vocab_size: usize, variant: Variant) -> Result<Arc<Graph>, GraphError> {
    let mut graph = Graph::default();
    let mut scores = graph.argument(0, Shape::new([Dim::Rows, Dim::Fixed(vocab_size)]), DType::F32); // [rows, vocab]
    for (processor, is_on) in PROCESSORS.iter().zip(variant.processors) {
        if is_on {
            scores = (processor.apply)(&mut graph, scores)?; // [rows, vocab]
        }
    }
    let logprobs = graph.log_softmax(scores)?; // [rows, vocab]
    let token = choice::choose(&mut graph, variant.choice, [scores, logprobs])?; // [rows]
    let token = graph.append_token(token)?; // [rows]
    let logprob = graph.gather_columns(logprobs, token)?; // [rows]
    let mut outputs = vec![token, logprob];
    if variant.reports_top_tokens {
        outputs.extend(choice::wanted_top_tokens(&mut graph, logprobs)?); // [rows, top_tokens]
    }
    Ok(graph.finish(&outputs))
}
