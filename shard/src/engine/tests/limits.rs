//! The limits that the warm-up chooses, and the wishes that it refuses.
//!
//! The error of a refused wish must name the setting to change.

use devices::{Device, Quantize};
use proto::{ShardError, Warmup, shard_error::Kind};

use super::super::check;
use super::{args, fixture, load};

fn warmup(warmup: &Warmup) -> Result<proto::WarmupReply, (Kind, String)> {
    let mut engine = load(&args(fixture("tiny-llama-tied").to_str().unwrap(), Device::CPU), &mut |_, _, _| ()).unwrap();
    let mut progress = Vec::new();
    let reply = engine.warmup(warmup, &mut |phase, done, total| progress.push((phase.to_owned(), done, total)));
    if reply.is_ok() {
        assert_eq!(progress.last(), Some(&("warm up".to_owned(), 5, 5)));
        assert!(engine.warmup(warmup, &mut |_, _, _| ()).is_err());
    }
    reply.map_err(|error| (ShardError::from(&error).kind(), error.to_string()))
}

#[test]
fn defaults_follow_the_model() {
    let reply = warmup(&Warmup::default()).unwrap();
    let sizes = reply.sizes.unwrap();
    assert_eq!((sizes.num_slots, sizes.max_total_tokens, sizes.max_batch_prefill_tokens), (64, 128, 4096));
    assert_eq!(sizes.num_blocks, 64 * 128 / 16);
    // Two layers of keys and values with four heads of sixteen f32.
    assert_eq!(reply.kv_cache_bytes, 64 * 128 * 2 * 2 * 4 * 16 * 4);
}

#[test]
fn wishes_are_met() {
    let asked = Warmup {
        max_total_tokens: Some(10),
        max_batch_prefill_tokens: Some(7),
        max_batch_total_tokens: Some(100),
        max_batch_size: Some(3),
        ..Warmup::default()
    };
    let sizes = warmup(&asked).unwrap().sizes.unwrap();
    assert_eq!(
        (sizes.num_slots, sizes.max_total_tokens, sizes.max_batch_prefill_tokens, sizes.num_blocks),
        (3, 10, 7, 7)
    );
}

#[test]
fn a_small_cache_shortens_rows_that_have_no_length_of_their_own() {
    let reply = warmup(&Warmup { max_batch_total_tokens: Some(64), ..Warmup::default() }).unwrap();
    let sizes = reply.sizes.unwrap();
    assert_eq!((sizes.max_total_tokens, sizes.num_blocks), (64, 4));
}

#[test]
fn impossible_limits_are_found_before_weights_are_read() {
    let mut args = args(fixture("tiny-llama-tied").to_str().unwrap(), Device::CPU);
    let tokens = |max_total_tokens| Warmup { max_total_tokens: Some(max_total_tokens), ..Warmup::default() };
    let bytes = |bytes| Warmup { kv_cache_bytes: Some(bytes), ..Warmup::default() };
    for good in [Warmup::default(), tokens(128), bytes(1 << 20)] {
        assert!(check(&args, &good).is_ok(), "{good:?}");
    }
    for (wishes, sentence) in [
        (tokens(129), "max_total_tokens is 129, but the model takes at most 128"),
        (bytes(999 << 40), "--kv-cache-memory is 1098.41 TB, but "),
        (bytes(16), "raise --kv-cache-memory or lower --max-total-tokens"),
        (Warmup { max_batch_total_tokens: Some(u32::MAX), ..Warmup::default() }, "lower --max-batch-total-tokens"),
    ] {
        let message = check(&args, &wishes).unwrap_err().to_string();
        assert!(message.contains(sentence), "{message}");
        assert!(!message.contains("0000 bytes"), "{message}");
    }
    args.model.quantize = Some(Quantize::Fp8);
    insta::assert_snapshot!(
        check(&args, &Warmup::default()).unwrap_err(),
        @"--quantize is fp8, which is for --device xla-cpu and tpu; the device is cpu"
    );
}

/// The window has 13 tokens, and a block has 16.
#[test]
fn a_cache_need_not_hold_more_than_a_window_and_a_block() {
    let args = args(fixture("families/mistral-window").to_str().unwrap(), Device::CPU);
    let wishes = |max_batch_total_tokens| Warmup {
        max_total_tokens: Some(100),
        max_batch_total_tokens: Some(max_batch_total_tokens),
        ..Warmup::default()
    };
    let message = check(&args, &wishes(28)).unwrap_err().to_string();
    let sentence =
        "the KV cache would hold 28 tokens, but one sequence of 100 (max_total_tokens) needs 29; raise --max-batch";
    assert!(message.starts_with(sentence), "{message}");
    assert!(check(&args, &wishes(29)).is_ok());
    let mut engine = load(&args, &mut |_, _, _| ()).unwrap();
    let sizes = engine.warmup(&wishes(29), &mut |_, _, _| ()).unwrap().sizes.unwrap();
    assert_eq!((sizes.max_total_tokens, sizes.num_blocks), (100, 2));
}

#[test]
fn errors_of_impossible_limits_name_the_flag() {
    let (kind, message) = warmup(&Warmup { max_total_tokens: Some(129), ..Warmup::default() }).unwrap_err();
    assert_eq!(kind, Kind::Model);
    insta::assert_snapshot!(
        message,
        @"max_total_tokens is 129, but the model takes at most 128 (max_position_embeddings); lower --max-total-tokens"
    );

    let both = Warmup { max_total_tokens: Some(128), max_batch_total_tokens: Some(100), ..Warmup::default() };
    let (kind, message) = warmup(&both).unwrap_err();
    assert_eq!(kind, Kind::OutOfMemory);
    assert!(message.contains("raise --max-batch-total-tokens"), "{message}");

    let (kind, message) = warmup(&Warmup { max_batch_total_tokens: Some(u32::MAX), ..Warmup::default() }).unwrap_err();
    assert_eq!(kind, Kind::OutOfMemory);
    assert!(message.contains("lower --max-batch-total-tokens"), "{message}");

    let (kind, message) = warmup(&Warmup { max_batch_size: Some(u32::MAX), ..Warmup::default() }).unwrap_err();
    assert_eq!(kind, Kind::OutOfMemory);
    assert!(message.contains("lower --max-batch-size"), "{message}");

    let (kind, message) = warmup(&Warmup { max_batch_size: Some(0), ..Warmup::default() }).unwrap_err();
    assert_eq!(kind, Kind::Protocol);
    insta::assert_snapshot!(message, @"`max_batch_size` is 0, but must be at least 1");
}
