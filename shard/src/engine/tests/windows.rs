//! Blocks before the window of a row: another row may overwrite them, and the row's tokens keep the same bits.

use devices::Device;
use devices::plugins::testing::plugin_path;
use proto::{Opening, Row, RowFailure, Sample, SampledToken, SamplingParams};

use super::corrupted::rewrite;
use super::independence::{bits, prompt, sampling};
use super::ranks::Engines;
use super::slots::schedule;
use super::{Rig, args, fixture, tokens};

/// The token whose keys and values are not finite.
const BAD: usize = 100;
const VOCAB_SIZE: usize = 128;
/// The bytes of numbers in bf16, the type of the fixture.
const ONE: [u8; 2] = [0x80, 0x3f];
const LARGEST: [u8; 2] = [0x7f, 0x7f];
const NUM_SLOTS: u32 = 3;

/// Returns a rig with a window of 13 tokens in all layers. The first norm makes the last feature of an embedding
/// infinite unless the feature is zero, as for all tokens except [`BAD`].
fn windowed(device: Device) -> Rig {
    let directory = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("families/mistral-window").join(file), directory.path().join(file)).unwrap();
    }
    rewrite(directory.path(), |parts| {
        let [start, end] = parts.offsets("model.embed_tokens.weight");
        let row_bytes = (end - start) / VOCAB_SIZE;
        for (token, row) in parts.data[start..end].chunks_mut(row_bytes).enumerate() {
            let last = if token == BAD { ONE } else { [0; 2] };
            row[row_bytes - 2..].copy_from_slice(&last);
        }
        let [_, end] = parts.offsets("model.layers.0.input_layernorm.weight");
        parts.data[end - 2..end].copy_from_slice(&LARGEST);
    });
    let args = args(directory.path().to_str().unwrap(), device);
    Rig::warm_for(Engines::load(&[args]).unwrap(), NUM_SLOTS)
}

/// Returns a prompt in the vocabulary of this model.
fn short_prompt(len: usize, salt: u32) -> Vec<u32> {
    prompt(len, salt).into_iter().map(|token| token % VOCAB_SIZE as u32).collect()
}

/// Returns the tokens of a row. If `is_spoiled`, another row overwrites the first two blocks after the row has read 48
/// tokens.
fn generate(rig: &mut Rig, is_spoiled: bool) -> Vec<SampledToken> {
    let ids: Vec<u32> = (0..70).map(|i| 3 + i * 7 % 90).collect();
    let sampling = SamplingParams { seed: 5, temperature: 1.1, ..SamplingParams::greedy() };
    let first = rig.chunk(1, &ids[..48], Some(sampling), false);
    rig.step(vec![first]);
    if is_spoiled {
        let bad = Row {
            slot: 2,
            token_ids: vec![BAD as u32; 32],
            new_blocks: rig.tables[1][..2].to_vec(),
            opening: Some(Box::new(Opening { sampling: Some(SamplingParams::greedy()), ..Opening::default() })),
            token: Some(Sample::default()),
            ..Row::default()
        };
        assert_eq!(rig.step(vec![bad]).rows[0].failure(), RowFailure::NotFinite);
        rig.release(2);
    }
    let rest = rig.chunk(1, &ids[48..], None, true);
    let mut tokens = tokens(&rig.step(vec![rest]));
    tokens.extend((1..8).map(|_| rig.next(1)));
    rig.release(1);
    tokens
}

fn check(rig: &mut Rig) {
    assert_eq!(rig.engine.info().window, Some(13));
    let [sound, spoiled] = [false, true].map(|is_spoiled| generate(rig, is_spoiled));
    assert!(sound.iter().all(|token| token.logprob.is_finite()), "{sound:?}");
    assert_eq!(bits(&spoiled), bits(&sound));
}

#[test]
fn blocks_before_the_window_are_not_read() {
    check(&mut windowed(Device::CPU));
}

#[test]
fn xla_does_not_read_blocks_before_the_window() {
    if plugin_path(Device::XLA_CPU).is_some() {
        check(&mut windowed(Device::XLA_CPU));
    }
}

/// Runs sequences of six and seven blocks, two of them equal, in caches of 4, 7 and 64 blocks.
#[test]
fn sequences_longer_than_the_cache_make_the_tokens_that_they_make_in_a_large_one() {
    let mut rig = Rig::fixture("families/mistral-window");
    let prompts: Vec<Vec<u32>> = [(45, 6), (70, 2), (45, 6)].map(|(len, salt)| short_prompt(len, salt)).to_vec();
    let expected: Vec<_> = prompts.iter().map(|prompt| rig.generate(0, prompt, sampling(7), 40)).collect();
    for num_blocks in [4, 7, 64] {
        let (made, _) = schedule(&mut rig.engine, num_blocks, &prompts, 40);
        for (made, expected) in made.iter().zip(&expected) {
            assert_eq!(bits(made), bits(expected), "{num_blocks} blocks");
        }
    }
}

/// If one layer reads all tokens, a row keeps all its blocks.
#[test]
fn a_model_that_mixes_windows_with_full_layers_has_none() {
    let rig = Rig::fixture("families/gemma3");
    assert_eq!(rig.engine.info().window, None);
}
