//! The host's work for a decode step of 64 rows on eight devices, with the arrays of Llama-3.1-8B, on the fake plugin,
//! whose devices compute nothing. The matrices are narrow, because their size changes nothing on the host.
//!
//! ```text
//! cargo bench -p xla --features testing
//! ```

use std::sync::Arc;

use backend::{BLOCK_SIZE, Backend, Batch, ModelGraphs, RowSampler, SAMPLED_TOKEN, StateLayout};
use criterion::{Criterion, criterion_group, criterion_main};
use model::graph::Quantization;
use model::models::{self, Config};
use model::sampling::BatchSampler;
use model::weights::Checkpoint;
use model_files::ModelFiles;
use numbers::FloatType;
use pjrt::testing::{Slice, SliceDevice, control};
use proto::SamplingParams;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

const NUM_DEVICES: usize = 8;
const NUM_ROWS: usize = 64;
const CONTEXT: usize = 1024;
const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 128, "intermediate_size": 128,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 16, "vocab_size": 1024,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": false}"#;

fn graphs() -> ModelGraphs {
    let config = Config::parse(CONFIG.as_bytes()).expect("a configuration");
    ModelGraphs::of(&models::build(&config, FloatType::Bf16, NUM_DEVICES).expect("a model")).expect("graphs")
}

/// Writes a checkpoint of zeros for `graphs` into `directory`, and opens it.
fn checkpoint(graphs: &ModelGraphs, directory: &std::path::Path) -> Checkpoint {
    let specs = graphs.weights();
    let zeros = |len: usize| vec![0_u8; len];
    let bytes: Vec<Vec<u8>> = specs.iter().map(|spec| zeros(2 * spec.shape.iter().product::<usize>())).collect();
    let view = |(spec, bytes): (&&model::graph::WeightSpec, _)| {
        (spec.name.clone(), TensorView::new(Dtype::BF16, spec.shape.clone(), bytes).expect("a tensor"))
    };
    let views: Vec<_> = specs.iter().zip(bytes.iter().map(Vec::as_slice)).map(view).collect();
    let file = safetensors::serialize(views, None).expect("a file");
    std::fs::write(directory.join("model.safetensors"), file).expect("the file is written");
    let files = ModelFiles::open(directory.to_str().expect("a path")).expect("a model");
    Checkpoint::open(&files, Quantization::None).expect("a checkpoint")
}

/// Returns a step that decodes one token in each row.
fn batch(sampler: &RowSampler) -> Batch {
    let mut batch = Batch::default();
    let blocks: Vec<u32> = (0..(CONTEXT / BLOCK_SIZE) as u32).collect();
    for slot in 0..NUM_ROWS {
        let row = batch.push_row(slot, CONTEXT - 1, &[SAMPLED_TOKEN], &blocks);
        batch.push_sampled(row, 100, sampler);
    }
    batch
}

fn host_work(criterion: &mut Criterion) {
    let device = |id| SliceDevice {
        id,
        process_index: 0,
        kind: "TPU v5 lite".to_owned(),
        coords: [i64::from(id), 0, 0],
        bytes_limit: Some(1 << 34),
    };
    let devices = (0..NUM_DEVICES as i32).map(device).collect();
    control().set_slice(Slice { platform: "tpu".to_owned(), devices, ..Slice::default() });
    let (graphs, directory) = (graphs(), tempfile::tempdir().expect("a directory"));
    let checkpoint = checkpoint(&graphs, directory.path());
    let mut backend = xla::testing::backend(&graphs, &checkpoint, NUM_DEVICES).expect("a backend");
    let layout =
        StateLayout { num_slots: NUM_ROWS, num_blocks: 128, max_total_tokens: 4096, max_batch_prefill_tokens: 32 };
    let assignment: Vec<i64> = (0..NUM_DEVICES as i64).collect();
    backend.allocate(layout, &assignment, &mut |_, _, _| ()).expect("states");
    let params = Arc::new(SamplingParams::greedy());
    let graph = BatchSampler::of(&params).graph(1024).expect("a sampler");
    let sampler = RowSampler { params, graph, eos_token_ids: Arc::default() };
    criterion.bench_function("decode_64", |bencher| {
        bencher.iter(|| {
            let step = backend.launch(&batch(&sampler)).expect("a launch");
            control().clear_executions();
            pollster::block_on(step).expect("results").tokens.len()
        });
    });
}

criterion_group!(benches, host_work);
criterion_main!(benches);
