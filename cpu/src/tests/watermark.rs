//! Tests that a reader who knows the green tokens finds a watermark, and finds none in other texts.

use kernels::attention::KvType;

use super::*;

const NUM_TOKENS: usize = 300;
const LEN: usize = 400;
const GAMMA: f32 = 0.25;

/// Returns `LEN` successive tokens, drawn from scores that depend on the token before.
fn text(params: SamplingParams) -> Vec<i32> {
    let layout = StateLayout { num_slots: 1, num_blocks: 1, max_total_tokens: 512, max_batch_prefill_tokens: 512 };
    let state = State::allocate(&Graph::default(), KvType::F32, layout).unwrap();
    let graph = Samplers::new(NUM_TOKENS).graph(&params).unwrap();
    let sampler = RowSampler { params: Arc::new(params), graph: graph.clone(), eos_token_ids: Arc::default() };
    let membership = Membership::alone();
    let mut tokens = vec![7];
    for position in 0..LEN {
        let last = tokens[position];
        let mut batch = Batch::default();
        let row = batch.push_row(0, position, &[last], &[0]);
        batch.push_sampled(row, 1, &sampler);
        state.history.current_tokens(&batch);
        let score = |token| 4.0 * threefry::uniform([11, last.cast_unsigned()], [token, 0]);
        let arguments = [host::shaped((0..NUM_TOKENS as u32).map(score).collect(), (1, NUM_TOKENS)).unwrap()];
        let step = Step {
            batch: &batch,
            state: &state,
            membership: &membership,
            pulse: &backend::Pulse::default(),
            sampled: 0,
            arguments: &arguments,
        };
        let token = sampled_token(&executor::run(&graph, &[], &step).unwrap()).unwrap();
        tokens.push(token.token_id as i32);
    }
    tokens
}

/// Returns how many standard deviations the share of green tokens is above γ: z in equation 3 of Kirchenbauer et al.
fn z_score(tokens: &[i32]) -> f32 {
    let is_green = |pair: &&[i32]| {
        let seed = pair[0].cast_unsigned().wrapping_mul(15_485_863);
        threefry::uniform([seed, 0], [pair[1].cast_unsigned(), 1]) < GAMMA
    };
    let num_green = tokens.windows(2).filter(is_green).count() as f32;
    let len = (tokens.len() - 1) as f32;
    (num_green - GAMMA * len) / (len * GAMMA * (1.0 - GAMMA)).sqrt()
}

#[test]
fn a_watermark_is_found_where_there_is_one() {
    let marked = |watermark_delta, is_greedy| {
        let params = SamplingParams { watermark_gamma: GAMMA, watermark_delta, seed: 3, ..sampling() };
        z_score(&text(SamplingParams { is_greedy, ..params }))
    };
    for is_greedy in [false, true] {
        let z = marked(2.0, is_greedy);
        assert!(z > 8.0, "{z}");
    }
    // Without a watermark tokens are green by chance only.
    let z = marked(0.0, false);
    assert!(z.abs() < 4.0, "{z}");
    let z = marked(-2.0, false);
    assert!(z < -4.0, "{z}");
}

#[test]
fn a_share_of_each_vocabulary_is_green() {
    for last in [0_u32, 1, 7, 50_256, 128_000] {
        let seed = last.wrapping_mul(15_485_863);
        let num_green = (0..50_000).filter(|token| threefry::uniform([seed, 0], [*token, 1]) < GAMMA).count();
        // The tolerance is four standard deviations of a binomial distribution.
        assert!((num_green as f32 - 12_500.0).abs() < 4.0 * 96.8, "{last}: {num_green}");
    }
}
