//! Tests that sampling with legal parameters always returns a token: with parameters up to the ends of their ranges,
//! subnormal numbers, all processors together, masks, and logits that are far apart.

use kernels::attention::KvType;
use model::sampling::TokenMask;
use proptest::collection::vec;
use proptest::prelude::*;
use proto::LogitBias;

use super::*;

const NUM_TOKENS: usize = 70;
const END_TOKENS: [i32; 2] = [2, 5];

/// Numbers from 0 to `end`, uniform over their bit patterns, so small ones are as likely as large ones.
fn bits_up_to(end: f32) -> impl Strategy<Value = f32> {
    (0..=end.to_bits()).prop_map(f32::from_bits)
}

fn positive_up_to(end: f32) -> impl Strategy<Value = f32> {
    (1..=end.to_bits()).prop_map(f32::from_bits)
}

fn logit() -> impl Strategy<Value = f32> {
    let wild = (bits_up_to(1e30), any::<bool>()).prop_map(|(size, is_negative)| if is_negative { -size } else { size });
    prop_oneof![6 => -30.0..30.0f32, 2 => wild, 1 => Just(1.5), 1 => Just(NEVER)]
}

prop_compose! {
    fn penalties()(
        repetition_penalty in prop_oneof![Just(1.0), Just(0.01), Just(100.0), 0.01..100.0f32],
        frequency_penalty in prop_oneof![Just(0.0), -2.0..=2.0f32],
        presence_penalty in prop_oneof![Just(0.0), -2.0..=2.0f32],
        min_new_tokens in 0..6u32,
        logit_bias in prop_oneof![Just(Vec::new()), vec((0..NUM_TOKENS as u32, prop_oneof![Just(-100.0), Just(100.0), -100.0..100.0f32]), 0..9)],
        watermark in (bits_up_to(1.0), prop_oneof![Just(0.0), -100.0..=100.0f32]),
    ) -> SamplingParams {
        let mut logit_bias: Vec<LogitBias> =
            logit_bias.into_iter().map(|(token_id, bias)| LogitBias { token_id, bias }).collect();
        logit_bias.sort_by_key(|bias| bias.token_id);
        logit_bias.dedup_by_key(|bias| bias.token_id);
        let (watermark_gamma, watermark_delta) = watermark;
        SamplingParams {
            repetition_penalty, frequency_penalty, presence_penalty, min_new_tokens, logit_bias, watermark_gamma,
            watermark_delta, ..SamplingParams::greedy()
        }
    }
}

prop_compose! {
    fn params()(
        penalties in penalties(),
        temperature in prop_oneof![Just(1.0), positive_up_to(f32::MAX), 0.01..2.0f32],
        top_k in prop_oneof![Just(0), 1..NUM_TOKENS as u32, any::<u32>()],
        top_p in prop_oneof![Just(1.0), positive_up_to(1.0)],
        min_p in prop_oneof![Just(0.0), bits_up_to(1.0)],
        typical_p in prop_oneof![Just(1.0), positive_up_to(1.0)],
        seed in any::<u64>(),
        is_greedy in any::<bool>(),
    ) -> SamplingParams {
        let top_n_tokens = NUM_TOKENS as u32;
        SamplingParams { temperature, top_k, top_p, min_p, typical_p, seed, is_greedy, top_n_tokens, ..penalties }
    }
}

/// Samples for a row that has read `prompt` and generated `generated`.
fn sample_masked(
    logits: Vec<f32>,
    [prompt, generated]: [&[i32]; 2],
    params: SamplingParams,
    mask: Option<TokenMask>,
) -> SampledToken {
    let layout = StateLayout { num_slots: 1, num_blocks: 1, max_total_tokens: 64, max_batch_prefill_tokens: 64 };
    let state = State::allocate(&Graph::default(), KvType::F32, layout).unwrap();
    let mut samplers = Samplers::new(NUM_TOKENS);
    let graph = if mask.is_some() { samplers.masked_graph(&params) } else { samplers.graph(&params) }.unwrap();
    let mut batch = Batch::default();
    let row = batch.push_row(0, 0, &[prompt, generated].concat(), &[0]);
    let eos_token_ids = Arc::new(END_TOKENS);
    batch.push_sampled(
        row,
        prompt.len(),
        &RowSampler { params: Arc::new(params), graph: graph.clone(), eos_token_ids },
    );
    if let Some(mask) = mask {
        batch.mask_sampled(mask, graph.clone());
    }
    state.history.current_tokens(&batch);
    let arguments = [host::shaped(logits, (1, NUM_TOKENS)).unwrap()];
    let membership = Membership::alone();
    let step = Step {
        batch: &batch,
        state: &state,
        membership: &membership,
        pulse: &backend::Pulse::default(),
        sampled: 0,
        arguments: &arguments,
    };
    sampled_token(&executor::run(&graph, &[], &step).unwrap()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn legal_parameters_make_a_possible_token(
        params in params(),
        logits in vec(logit(), NUM_TOKENS),
        // One token that does not end the sequence is always possible.
        possible in 6..NUM_TOKENS,
        prompt in vec(0..NUM_TOKENS as i32, 1..20),
        generated in vec(0..NUM_TOKENS as i32, 0..20),
        allowed in prop_oneof![Just(None), Just(Some(Vec::new())), vec(0..NUM_TOKENS, 0..5).prop_map(Some)],
    ) {
        prop_assert_eq!(params.check(), Ok(()));
        let mut logits = logits;
        if logits[possible] == NEVER {
            logits[possible] = -3.0;
        }
        let mask = allowed.map(|mut allowed| {
            allowed.push(possible);
            let mut bytes = vec![0; TokenMask::num_bytes(NUM_TOKENS)];
            allowed.iter().for_each(|token| bytes[token / 8] |= 1 << (token % 8));
            TokenMask::new(&bytes, NUM_TOKENS)
        });
        let token = sample_masked(logits.clone(), [&prompt, &generated], params.clone(), mask.clone());
        prop_assert!(token.logprob.is_finite() && token.logprob <= 1e-5, "{}", token.logprob);
        let is_possible = |token: u32| {
            logits[token as usize] > NEVER && mask.as_ref().is_none_or(|mask| mask.has(token as usize))
        };
        prop_assert!(is_possible(token.token_id), "token {} is not possible", token.token_id);
        prop_assert!(token.top_tokens.iter().any(|(id, logprob)| (*id, *logprob) == (token.token_id, token.logprob)));
        for (id, logprob) in token.top_tokens {
            prop_assert!(is_possible(id) && logprob.is_finite(), "top token {} has {}", id, logprob);
        }
    }
}

/// Samplers with neutral parameters report the bits of a plain log-softmax. The temperature processor is such a case:
/// it shifts scores by the best one only if the temperature is not 1.
#[test]
fn neutral_parameters_change_no_bit() {
    let logits: Vec<f32> = (0..NUM_TOKENS).map(|i| (i as f32 * 0.37).sin() * 9.0).collect();
    let mut expected = logits.clone();
    kernels::softmax::log_softmax(&mut expected);
    let run = |graph: &Arc<Graph>, params: SamplingParams| {
        let state = State::allocate(
            &Graph::default(),
            KvType::F32,
            StateLayout { num_slots: 1, num_blocks: 1, max_total_tokens: 64, max_batch_prefill_tokens: 64 },
        );
        let state = state.unwrap();
        let mut batch = Batch::default();
        let row = batch.push_row(0, 0, &[1, 2, 3], &[0]);
        let sampler =
            RowSampler { params: Arc::new(params), graph: graph.clone(), eos_token_ids: Arc::new(END_TOKENS) };
        batch.push_sampled(row, 3, &sampler);
        state.history.current_tokens(&batch);
        let arguments = [host::shaped(logits.clone(), (1, NUM_TOKENS)).unwrap()];
        let membership = Membership::alone();
        let step = Step {
            batch: &batch,
            state: &state,
            membership: &membership,
            pulse: &backend::Pulse::default(),
            sampled: 0,
            arguments: &arguments,
        };
        sampled_token(&executor::run(graph, &[], &step).unwrap()).unwrap()
    };
    let params = SamplingParams { top_n_tokens: NUM_TOKENS as u32, ..SamplingParams::greedy() };
    for sampler in [BatchSampler::Penalising, BatchSampler::Everything] {
        let graph = sampler.graph(NUM_TOKENS).unwrap();
        for is_greedy in [true, false] {
            let token = run(&graph, SamplingParams { is_greedy, ..params.clone() });
            assert_eq!(token.top_tokens.len(), NUM_TOKENS);
            for (id, logprob) in token.top_tokens {
                assert_eq!(logprob.to_bits(), expected[id as usize].to_bits(), "{sampler:?}, {is_greedy}, token {id}");
            }
        }
    }
}
