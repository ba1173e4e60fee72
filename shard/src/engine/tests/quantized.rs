//! What `--quantize` changes: the demo model on text that it made, read by the model in its own type and in the smaller one.

use proto::SamplingParams;

use super::ranks::Engines;
use super::{Rig, args, ids};
use crate::args::{Device, Quantize};

const NUM_TEXTS: u64 = 4;
const TEXT_LEN: usize = 100;
/// Tokens that each text begins with, whatever they say.
const START: [u32; 3] = [5, 90, 200];

/// What a model makes of some texts.
pub(super) struct Reading {
    /// The best token after each of their prefixes.
    best: Vec<u32>,
    perplexity: f64,
    weights_bytes: u64,
}

impl Reading {
    /// Nearly the same best tokens and the same perplexity as another's.
    pub(super) fn check_near(&self, own: &Self, what: &str) {
        let num_same = own.best.iter().zip(&self.best).filter(|(own, other)| own == other).count();
        let share = num_same as f64 / own.best.len() as f64;
        let ratio = self.perplexity / own.perplexity;
        let perplexities = format!("perplexity {} instead of {}", self.perplexity, own.perplexity);
        let is_near = share >= 0.98 && (0.98..=1.02).contains(&ratio);
        assert!(is_near, "{what}: {share} of the best tokens are the same, {perplexities}");
    }
}

fn rig(quantize: Option<Quantize>) -> Rig {
    let mut args = args("demo", Device::Cpu);
    args.model.quantize = quantize;
    Rig::warm(Engines::load(&[args]).unwrap())
}

/// Drawn by the model.
pub(super) fn texts(rig: &mut Rig) -> Vec<Vec<u32>> {
    let drawn = |seed| SamplingParams { is_greedy: false, temperature: 1.0, seed, ..SamplingParams::greedy() };
    let made = (0..NUM_TEXTS).map(|seed| ids(&rig.generate(0, &START, drawn(seed), TEXT_LEN)));
    made.map(|made| [&START[..], &made].concat()).collect()
}

pub(super) fn read(rig: &mut Rig, texts: &[Vec<u32>]) -> Reading {
    let (mut best, mut logprobs) = (Vec::new(), Vec::new());
    for text in texts {
        for len in START.len()..text.len() {
            best.push(rig.start(0, &text[..len], SamplingParams::greedy()).token_id);
            rig.release(0);
        }
        let params = SamplingParams { wants_prompt_logprobs: true, ..SamplingParams::greedy() };
        let chunk = rig.chunk(0, text, Some(params), true);
        let reply = rig.prefill(vec![chunk], vec![]);
        rig.release(0);
        logprobs.extend(reply.prompt_logprobs[0].logprobs[START.len()..].iter().map(|logprob| f64::from(*logprob)));
    }
    let perplexity = (-logprobs.iter().sum::<f64>() / logprobs.len() as f64).exp();
    Reading { best, perplexity, weights_bytes: rig.engine.info().weights_bytes }
}

#[test]
fn int8_says_nearly_the_same() {
    let mut own = rig(None);
    let texts = texts(&mut own);
    let own = read(&mut own, &texts);
    let int8 = read(&mut rig(Some(Quantize::Int8)), &texts);
    int8.check_near(&own, "int8");
    assert!(
        int8.weights_bytes * 10 < own.weights_bytes * 7,
        "{} instead of {} bytes",
        int8.weights_bytes,
        own.weights_bytes
    );
}

#[test]
fn other_devices_refuse_it() {
    let mut args = args("demo", Device::Mock);
    args.model.quantize = Some(Quantize::Int8);
    let Err(error) = Engines::load(&[args]) else { panic!("the mock took it") };
    assert_eq!(error.to_string(), "--quantize is int8, which is for --device cpu; the device is mock");
}
