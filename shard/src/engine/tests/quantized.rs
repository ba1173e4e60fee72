//! What `--quantize` changes: text that the demo model was not trained on, read by the model in its own type and in the smaller one.

use proto::SamplingParams;

use super::ranks::Engines;
use super::{Rig, args};
use crate::args::{Device, Quantize};

/// Made by `demo/train/held_out.py`, a document a line.
const HELD_OUT: &str = include_str!("held_out.txt");
/// Tokens of a document that nothing is compared behind.
const START: usize = 8;

/// What a model makes of some texts.
struct Reading {
    /// The best token after each of their prefixes.
    best: Vec<u32>,
    perplexity: f64,
    weights_bytes: u64,
}

fn rig(quantize: Option<Quantize>) -> Rig {
    let mut args = args("demo", Device::Cpu);
    args.model.quantize = quantize;
    Rig::warm(Engines::load(&[args]).unwrap())
}

fn read(rig: &mut Rig) -> Reading {
    let (mut best, mut logprobs) = (Vec::new(), Vec::new());
    for line in HELD_OUT.lines() {
        let text: Vec<u32> = line.split(' ').map(|id| id.parse().expect("the file holds numbers")).collect();
        for len in START..text.len() {
            best.push(rig.start(0, &text[..len], SamplingParams::greedy()).token_id);
            rig.release(0);
        }
        let params = SamplingParams { wants_prompt_logprobs: true, ..SamplingParams::greedy() };
        let chunk = rig.chunk(0, &text, Some(params), true);
        let reply = rig.prefill(vec![chunk], vec![]);
        rig.release(0);
        logprobs.extend(reply.prompt_logprobs[0].logprobs[START..].iter().map(|logprob| f64::from(*logprob)));
    }
    let perplexity = (-logprobs.iter().sum::<f64>() / logprobs.len() as f64).exp();
    Reading { best, perplexity, weights_bytes: rig.engine.info().weights_bytes }
}

/// The share of the best tokens that are the same, of the perplexity, and of the memory.
fn compare(quantize: Quantize) -> [f64; 3] {
    let own = read(&mut rig(None));
    let small = read(&mut rig(Some(quantize)));
    let num_same = own.best.iter().zip(&small.best).filter(|(own, small)| own == small).count();
    let shares = [
        num_same as f64 / own.best.len() as f64,
        small.perplexity / own.perplexity,
        small.weights_bytes as f64 / own.weights_bytes as f64,
    ];
    println!("{quantize}: best tokens, perplexity, memory {shares:?}; perplexity was {}", own.perplexity);
    shares
}

#[test]
fn int8_says_nearly_the_same() {
    let [best, perplexity, memory] = compare(Quantize::Int8);
    assert!(best >= 0.98 && (0.98..=1.02).contains(&perplexity), "{best} {perplexity}");
    assert!(memory < 0.7, "{memory}");
}

#[test]
fn int4_says_nearly_the_same() {
    let [best, perplexity, memory] = compare(Quantize::Int4);
    assert!(best >= 0.93 && (0.95..=1.05).contains(&perplexity), "{best} {perplexity}");
    assert!(memory < 0.5, "{memory}");
}

#[test]
fn other_devices_refuse_it() {
    let mut args = args("demo", Device::Mock);
    args.model.quantize = Some(Quantize::Int8);
    let Err(error) = Engines::load(&[args]) else { panic!("the mock took it") };
    assert_eq!(error.to_string(), "--quantize is int8, which is for --device cpu; the device is mock");
}
