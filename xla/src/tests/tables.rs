//! Tests of embedding tables that programs take in row-major layout, so that a lookup does not copy the table.

use std::path::Path;
use std::sync::Arc;

use backend::{Backend, Batch, LocalRanks, Membership, ModelGraphs, RowSampler, StateLayout, StepOutput};
use devices::plugins::testing::{plugin_path, with_libtpu};
use devices::xla_cpu;
use model::sampling::BatchSampler;
use pjrt::Value;
use pjrt::testing::control;
use proto::SamplingParams;

use super::fake::{backend, checkpoint, slice, tpu_platform};
use super::text::model;
use super::*;
use crate::ahead::AheadOfTime;
use crate::platform::Platform;
use crate::weights::Source;
use crate::{XlaBackend, XlaOptions};

const LAYOUT: StateLayout =
    StateLayout { num_slots: 2, num_blocks: 4, max_total_tokens: 32, max_batch_prefill_tokens: 32 };

/// Returns the graphs of a model whose decoder only looks up the rows of a table.
fn lookup(vocab_size: usize, hidden_size: usize) -> ModelGraphs {
    let mut graph = Graph::default();
    let given = graph.input(Input::TokenIds);
    let ids = graph.current_tokens(given).unwrap();
    let spec = weight("table", &[vocab_size, hidden_size], FloatType::Bf16);
    let table = graph.weight(&spec);
    let x = graph.embedding(table, ids).unwrap();
    let decoder = graph.finish(&[x]);
    let mut logits = Graph::default();
    let hidden = rows(&mut logits, 0, &[hidden_size], DType::F32);
    let table = logits.weight(&spec);
    let output = logits.linear(hidden, table, None).unwrap();
    ModelGraphs { decoder, logits: logits.finish(&[output]) }
}

#[test]
fn tables_are_laid_out_once_and_before_the_states() {
    control().set_slice(slice("TPU v5 lite", &[0; 2]));
    let mut backend = backend(tpu_platform(), LocalRanks { first: 0, num_local: 2, num_ranks: 2 }, None).unwrap();
    for expected in [&["lay_out_tables", "clear"][..], &["clear"]] {
        control().clear_executions();
        backend.allocate(LAYOUT, &[0, 1], &mut |_, _, _| ()).unwrap();
        let programs: Vec<String> = control().executions().into_iter().map(|seen| seen.program).collect();
        assert_eq!(programs, expected);
    }
}

/// XLA-CPU's default is to store tables row by row, so the program changes nothing there.
#[test]
fn a_model_with_such_tables_computes_the_same() {
    if plugin_path(devices::Device::XLA_CPU).is_none() {
        return;
    }
    let run = |lanes: usize| -> StepOutput {
        let mut platform = Platform::new(devices::Device::XLA_CPU, &xla_cpu::PLATFORM);
        platform.form.lanes = lanes;
        let (graphs, directory) = (model(), tempfile::tempdir().unwrap());
        let checkpoint = checkpoint(&graphs, directory.path(), FloatType::Bf16);
        let client = platform.open(None).unwrap();
        let ranks = LocalRanks { first: 0, num_local: 1, num_ranks: 1 };
        let options = XlaOptions { ranks, membership: Membership::alone(), plugin_path: None, program_cache: None };
        let source = Source { graphs: &graphs, checkpoint: &checkpoint };
        let mut backend = XlaBackend::on_client(platform, client, options, source, &mut |_, _| ()).unwrap();
        backend.allocate(LAYOUT, &[0], &mut |_, _, _| ()).unwrap();
        let params = Arc::new(SamplingParams::greedy());
        let graph = BatchSampler::of(&params).graph(10).unwrap();
        let mut batch = Batch::default();
        let row = batch.push_row(0, 0, &[1, 2, 3], &[0]);
        batch.push_sampled(row, 3, &RowSampler { params, graph, eos_token_ids: Arc::default() });
        let step = backend.launch(&batch).unwrap();
        pollster::block_on(step).unwrap()
    };
    let [plain, by_rows] = [run(1), run(128)];
    assert_eq!(plain.tokens, by_rows.tokens);
}

/// Without the fixed layout, each step copies the whole table.
#[test]
fn rows_of_wide_tables_are_looked_up_in_place() {
    with_libtpu(module_path!(), "rows_of_wide_tables_are_looked_up_in_place", |path: &Path| {
        for topology in ["v5e:1x1", "v6e:1x1"] {
            let options = [("chips_per_host_bounds", Value::I64List(vec![1, 1, 1])), ("num_slices", Value::I64(1))];
            let ahead = AheadOfTime::open(tpu_platform(), Some(path), topology, &options).unwrap();
            for width in [576, 960, 2048, 2880] {
                let mut programs = ahead.programs(&lookup(1 << 16, width), LAYOUT).unwrap();
                programs.retain(|program| program.name == "decode_2");
                let figures = ahead.compile(&programs, None, &mut |_, _, _| ()).unwrap();
                let read = figures[0].cost.unwrap().read_bytes;
                assert!(read < 1 << 20, "{topology}: {read} bytes of a table with rows of {width} elements");
            }
        }
    });
}
