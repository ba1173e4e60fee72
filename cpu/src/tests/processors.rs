//! Compares processors with those of transformers, on the cases of `integration-tests/fixtures/make_processors.py`.
//!
//! Transformers lacks frequency and presence penalty; the cases compare them with OpenAI's formula. Scores are compared
//! as log-probabilities, because a constant added to all scores changes no choice.

use kernels::attention::KvType;
use model::sampling::TokenMask;
use proto::LogitBias;
use serde_json::Value;

use super::*;

/// Both sides compute in f32: scores differ by up to 30, and a softmax is taken two or three times.
const TOLERANCE: f64 = 2e-5;

/// The data that all cases share.
struct Row {
    vocab_size: usize,
    eos_token_ids: Arc<[i32]>,
    prompt: Vec<i32>,
    generated: Vec<i32>,
}

fn tokens(value: &Value) -> Vec<i32> {
    value.as_array().unwrap().iter().map(|token| token.as_i64().unwrap() as i32).collect()
}

fn params(parameters: &Value) -> SamplingParams {
    let mut params = sampling();
    for (name, value) in parameters.as_object().unwrap() {
        if name == "allowed_tokens" {
            continue;
        }
        if name == "logit_bias" {
            let bias = |(token, bias): (&String, &Value)| LogitBias {
                token_id: token.parse().unwrap(),
                bias: bias.as_f64().unwrap() as f32,
            };
            params.logit_bias = value.as_object().unwrap().iter().map(bias).collect();
            continue;
        }
        let number = value.as_f64().unwrap();
        match name.as_str() {
            "repetition_penalty" => params.repetition_penalty = number as f32,
            "frequency_penalty" => params.frequency_penalty = number as f32,
            "presence_penalty" => params.presence_penalty = number as f32,
            "min_new_tokens" => params.min_new_tokens = number as u32,
            "temperature" => params.temperature = number as f32,
            "top_k" => params.top_k = number as u32,
            "top_p" => params.top_p = number as f32,
            "min_p" => params.min_p = number as f32,
            "typical_p" => params.typical_p = number as f32,
            other => panic!("a case names {other}"),
        }
    }
    params
}

fn mask(parameters: &Value, row: &Row) -> Option<TokenMask> {
    let allowed = tokens(parameters.get("allowed_tokens")?);
    let mut bytes = vec![0; TokenMask::num_bytes(row.vocab_size)];
    allowed.iter().for_each(|token| bytes[*token as usize / 8] |= 1 << (token % 8));
    Some(TokenMask::new(&bytes, row.vocab_size))
}

/// Returns the log-probabilities that our sampler reports for all tokens; minus infinity for those that it does not
/// report.
fn logprobs(row: &Row, scores: &[f32], (params, mask): (SamplingParams, Option<TokenMask>)) -> Vec<f64> {
    let Row { vocab_size, eos_token_ids, prompt, generated } = row;
    let params = SamplingParams { top_n_tokens: *vocab_size as u32, ..params };
    let layout = StateLayout { num_slots: 1, num_blocks: 1, max_total_tokens: 16, max_batch_prefill_tokens: 16 };
    let state = State::allocate(&Graph::default(), KvType::F32, layout).unwrap();
    let mut samplers = Samplers::new(*vocab_size);
    let graph = if mask.is_some() { samplers.masked_graph(&params) } else { samplers.graph(&params) }.unwrap();
    let mut batch = Batch::default();
    let row = batch.push_row(0, 0, &[prompt.as_slice(), generated].concat(), &[0]);
    let eos_token_ids = Arc::clone(eos_token_ids);
    batch.push_sampled(
        row,
        prompt.len(),
        &RowSampler { params: Arc::new(params), graph: graph.clone(), eos_token_ids },
    );
    if let Some(mask) = mask {
        batch.mask_sampled(mask, graph.clone());
    }
    state.history.current_tokens(&batch);
    let arguments = [host::shaped(scores.to_vec(), (1, *vocab_size)).unwrap()];
    let membership = Membership::alone();
    let step = Step {
        batch: &batch,
        state: &state,
        membership: &membership,
        pulse: &backend::Pulse::default(),
        sampled: 0,
        arguments: &arguments,
    };
    let token = sampled_token(&executor::run(&graph, &[], &step).unwrap()).unwrap();
    let mut logprobs = vec![f64::NEG_INFINITY; *vocab_size];
    token.top_tokens.iter().for_each(|(id, logprob)| logprobs[*id as usize] = f64::from(*logprob));
    logprobs
}

#[test]
fn processors_do_what_those_of_transformers_do() {
    let path = checkpoints::tracked("processors.json");
    let recorded: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let row = Row {
        vocab_size: recorded["vocab_size"].as_u64().unwrap() as usize,
        eos_token_ids: tokens(&recorded["eos_token_ids"]).into(),
        prompt: tokens(&recorded["prompt"]),
        generated: tokens(&recorded["generated"]),
    };
    let cases = recorded["cases"].as_array().unwrap();
    assert!(cases.len() > 20, "{} cases", cases.len());
    for case in cases {
        let scores: Vec<f32> = case["scores"].as_array().unwrap().iter().map(|s| s.as_f64().unwrap() as f32).collect();
        let expected = case["expected"].as_array().unwrap().iter();
        let expected: Vec<f64> = expected.map(|score| score.as_f64().unwrap_or(f64::NEG_INFINITY)).collect();
        let log_sum = expected.iter().map(|score| score.exp()).sum::<f64>().ln();
        let actual = logprobs(&row, &scores, (params(&case["parameters"]), mask(&case["parameters"], &row)));
        for (token, (actual, expected)) in actual.into_iter().zip(expected).enumerate() {
            let expected = expected - log_sum;
            let agrees = actual == expected || (actual - expected).abs() <= TOLERANCE;
            assert!(agrees, "{}: token {token}: {actual} instead of {expected}", case["name"]);
        }
    }
}
