//! The effects of `--kv-cache-dtype`: the memory of a token, and differences of log-probabilities within the rounding.
//!
//! The recorded logits are from keys and values in f32.

use devices::Device;
use proto::{SamplingParams, Warmup};

use super::independence::{bits, prompt, sampling, shared_and_resumed, steps_among_others};
use super::quantized::read;
use super::ranks::Engines;
use super::references::{Reference, check_logits, token_ids};
use super::{FIXTURES, Rig, args, fixture};
use crate::args::KvCacheDtype;
use crate::engine::load;

const SMALL: [KvCacheDtype; 3] = [KvCacheDtype::F16, KvCacheDtype::Bf16, KvCacheDtype::Int8];

/// Returns the bytes of a token's keys and values in a tiny Llama: three layers with two KV heads of eight numbers.
fn bytes_per_token(kv_cache_dtype: KvCacheDtype) -> u64 {
    let head = match kv_cache_dtype {
        KvCacheDtype::F32 => 8 * 4,
        KvCacheDtype::F16 | KvCacheDtype::Bf16 => 8 * 2,
        KvCacheDtype::Int8 => 8 + 4,
        KvCacheDtype::Auto => panic!("it is one of the others"),
    };
    3 * 2 * 2 * head
}

/// Returns the bytes and the blocks of a cache after warm-up.
fn warmed(name: &str, kv_cache_dtype: KvCacheDtype, warmup: &Warmup) -> (u64, u32) {
    let mut args = args(fixture(name).to_str().unwrap(), Device::CPU);
    args.model.kv_cache_dtype = kv_cache_dtype;
    let reply = Engines::load(&[args]).unwrap().warmup(warmup).unwrap();
    (reply.kv_cache_bytes, reply.sizes.unwrap().num_blocks)
}

#[test]
fn a_token_takes_the_bytes_of_its_type() {
    let num_tokens = 64;
    let warmup = Warmup { max_batch_total_tokens: Some(num_tokens), ..Warmup::default() };
    let own = [
        ("tiny-llama-gqa-untied", KvCacheDtype::F32),
        ("tiny-llama-bf16", KvCacheDtype::Bf16),
        ("tiny-llama-f16", KvCacheDtype::F16),
    ];
    for (name, own) in own {
        let expected = |kv_cache_dtype| (u64::from(num_tokens) * bytes_per_token(kv_cache_dtype), num_tokens / 16);
        assert_eq!(warmed(name, KvCacheDtype::Auto, &warmup), expected(own), "{name}");
        for kv_cache_dtype in [KvCacheDtype::F32].into_iter().chain(SMALL) {
            let warmed = warmed(name, kv_cache_dtype, &warmup);
            assert_eq!(warmed, expected(kv_cache_dtype), "{name}, {kv_cache_dtype}");
        }
    }
}

#[test]
fn smaller_types_keep_more_tokens_in_the_same_memory() {
    let kv_cache_bytes = 1 << 20;
    let warmup = Warmup { kv_cache_bytes: Some(kv_cache_bytes), ..Warmup::default() };
    for kv_cache_dtype in [KvCacheDtype::F32].into_iter().chain(SMALL) {
        let block_bytes = 16 * bytes_per_token(kv_cache_dtype);
        let num_blocks = kv_cache_bytes / block_bytes;
        let warmed = warmed(FIXTURES[0], kv_cache_dtype, &warmup);
        assert_eq!(warmed, (num_blocks * block_bytes, num_blocks as u32), "{kv_cache_dtype}");
    }
}

#[test]
fn smaller_types_are_near_those_of_transformers() {
    // Tolerances as a share of the largest logit. The rounding error of a number is at most 2^-11 of the number in f16,
    // and 2^-8 in bf16. In int8 it is at most 1/254 of the largest number of the head, which is more for most
    // numbers. Three layers of random weights may increase the error sixfold, and twelvefold in int8.
    let tolerances = [(KvCacheDtype::F16, 3e-3), (KvCacheDtype::Bf16, 2.4e-2), (KvCacheDtype::Int8, 5e-2)];
    for (kv_cache_dtype, tolerance) in tolerances {
        for name in ["tiny-llama-gqa-untied", "tiny-llama3-rope", "tiny-llama-tied"] {
            let mut rig = Rig::fixture_with(name, kv_cache_dtype);
            let what = format!("{name}, {kv_cache_dtype}");
            for prompt in &Reference::read(name).prompts {
                let token_ids = token_ids(&prompt["prompt"]);
                check_logits(&mut rig, &token_ids, &prompt["last_logits"], (tolerance, &what));
            }
        }
    }
}

#[test]
fn each_type_is_another_computation() {
    let kinds = [KvCacheDtype::F32].into_iter().chain(SMALL);
    let logprobs: Vec<u32> = kinds
        .map(|kind| Rig::fixture_with(FIXTURES[0], kind).start(0, &prompt(40, 1), SamplingParams::greedy()))
        .map(|token| token.logprob.to_bits())
        .collect();
    for (index, logprob) in logprobs.iter().enumerate() {
        assert!(!logprobs[..index].contains(logprob), "{logprobs:?}");
    }
}

#[test]
fn texts_of_the_demo_model_are_read_nearly_the_same() {
    let rig = |kind| {
        let mut args = args("demo", Device::CPU);
        args.model.kv_cache_dtype = kind;
        Rig::warm(Engines::load(&[args]).unwrap())
    };
    let own = read(&mut rig(KvCacheDtype::F32));
    for kind in [KvCacheDtype::Bf16, KvCacheDtype::Int8] {
        read(&mut rig(kind)).check_near(&own, (0.98, 0.01), &kind.to_string());
    }
}

#[test]
fn rows_do_not_see_each_other() {
    for kind in SMALL {
        let mut rig = Rig::fixture_with(FIXTURES[0], kind);
        let [alone, together] = steps_among_others(&mut rig);
        assert_eq!(bits(&together), bits(&alone), "{kind}");
        let [alone, shared, read_again] = shared_and_resumed(&mut rig, &sampling(7));
        assert_eq!(bits(&shared), bits(&alone), "{kind}");
        assert_eq!(bits(&read_again), bits(&alone), "{kind}");
    }
}

#[test]
fn ranks_must_agree() {
    let hash = |kind| {
        let mut args = args(fixture(FIXTURES[0]).to_str().unwrap(), Device::CPU);
        args.model.kv_cache_dtype = kind;
        load(&args, &mut |_, _, _| ()).unwrap().config_hash
    };
    assert_eq!(hash(KvCacheDtype::Int8), hash(KvCacheDtype::Int8));
    assert_ne!(hash(KvCacheDtype::Int8), hash(KvCacheDtype::Bf16));
}

#[test]
fn other_devices_refuse_it() {
    let mut args = args("demo", Device::MOCK);
    args.model.kv_cache_dtype = KvCacheDtype::Int8;
    let Err(error) = Engines::load(&[args]) else { panic!("the mock took it") };
    insta::assert_snapshot!(
        error,
        @"--kv-cache-dtype is int8, which is for --device cpu; on mock only auto is allowed"
    );
}
