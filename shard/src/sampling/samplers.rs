//! The graphs that samplers are: one per set of processors for rows that run alone, three for batches.
//!
//! Doors: [`Samplers`] for a device that runs each row's own graph, [`BatchSampler`] for one that compiles graphs ahead.

use std::collections::HashMap;
use std::sync::Arc;

use proto::SamplingParams;

use super::PROCESSORS;
use super::choice::{self, Choice};
use crate::graph::{DType, Dim, Graph, GraphError, Shape};

/// The graphs that rows sample with, built when first asked for.
#[derive(Debug)]
pub(crate) struct Samplers {
    vocab_size: usize,
    graphs: HashMap<Variant, Arc<Graph>>,
}

/// What a sampler does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Variant {
    /// Which of [`PROCESSORS`] run.
    processors: [bool; PROCESSORS.len()],
    choice: Choice,
    reports_top_tokens: bool,
}

/// What a batch whose rows sample differently can do; the later can do what the earlier can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum BatchSampler {
    /// Greedy rows without penalties.
    Greedy,
    /// Every choice of a token, without penalties.
    Drawing,
    /// All processors, and top tokens.
    Everything,
}

impl BatchSampler {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Greedy, Self::Drawing, Self::Everything];

    /// The least that can do what `params` ask for.
    pub(crate) fn of(params: &SamplingParams) -> Self {
        let is_penalised = PROCESSORS.iter().any(|processor| processor.is_penalty && !(processor.is_off)(params));
        match () {
            () if is_penalised || params.top_n_tokens > 0 => Self::Everything,
            () if params.is_greedy => Self::Greedy,
            () => Self::Drawing,
        }
    }

    /// Its name in those of programs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Greedy => "greedy",
            Self::Drawing => "drawing",
            Self::Everything => "everything",
        }
    }

    /// Its graph, with the arguments and outputs of [`Samplers::graph`].
    pub(crate) fn graph(self, vocab_size: usize) -> Result<Arc<Graph>, GraphError> {
        let processors = PROCESSORS.each_ref().map(|processor| match self {
            Self::Greedy => false,
            Self::Drawing => !processor.is_penalty,
            Self::Everything => true,
        });
        let choice = if self == Self::Greedy { Choice::Best } else { Choice::EachItsOwn };
        build(vocab_size, Variant { processors, choice, reports_top_tokens: self == Self::Everything })
    }
}

impl Samplers {
    /// Samplers for a vocabulary.
    pub(crate) fn new(vocab_size: usize) -> Self {
        Self { vocab_size, graphs: HashMap::new() }
    }

    /// The graph that does what `params` ask for and nothing else: logits `[rows, vocab]` (argument 0) → token `[rows]`,
    /// logprob `[rows]`, and, where top tokens are asked for, their ids and logprobs, both `[rows, top_tokens]`.
    pub(crate) fn graph(&mut self, params: &SamplingParams) -> Result<Arc<Graph>, GraphError> {
        let variant = Variant {
            processors: std::array::from_fn(|i| {
                let processor = &PROCESSORS[i];
                !(processor.is_off)(params) && (processor.is_penalty || !params.is_greedy)
            }),
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
        outputs.extend(choice::top_tokens(&mut graph, logprobs)?);
    }
    Ok(graph.finish(&outputs))
}
