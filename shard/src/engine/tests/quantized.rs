//! The effects of `--quantize`: the demo model reads text that it was not trained on, in its own type and in smaller
//! ones.

use devices::plugins::testing::plugin_path;
use devices::{Device, Quantize};
use proto::SamplingParams;

use super::ranks::Engines;
use super::{Rig, args, report, reporting};

/// The token ids of text made by `demo/train/held_out.py`, one document per line.
const HELD_OUT: &str = include_str!("held_out.txt");
/// The number of tokens at the start of a document that are read before anything is compared.
const START: usize = 8;
/// The number of documents read through XLA, which needs a launch for each prefix.
const NUM_THROUGH_XLA: usize = 2;

/// The results of reading some texts.
pub(super) struct Reading {
    /// The best token after every second prefix.
    best: Vec<u32>,
    perplexity: f64,
    weights_bytes: u64,
}

impl Reading {
    /// Checks that at least `min_share` of the best tokens are those of `own`, and that the perplexity differs by at
    /// most `max_change`.
    pub(super) fn check_near(&self, own: &Self, (min_share, max_change): (f64, f64), what: &str) {
        let num_same = own.best.iter().zip(&self.best).filter(|(own, other)| own == other).count();
        let share = num_same as f64 / own.best.len() as f64;
        let change = self.perplexity / own.perplexity - 1.0;
        let perplexities = format!("perplexity {:.4} instead of {:.4}", self.perplexity, own.perplexity);
        println!("{what}: {share:.4} of the best tokens are the same, {perplexities}");
        assert!(share >= min_share, "{what}: {share} of the best tokens are the same");
        assert!(change.abs() <= max_change, "{what}: {perplexities}");
    }
}

fn rig(device: Device, quantize: Option<Quantize>) -> Rig {
    let mut args = args("demo", device);
    args.model.quantize = quantize;
    Rig::warm_for(Engines::load(&[args]).unwrap(), 1)
}

pub(super) fn read(rig: &mut Rig) -> Reading {
    read_first(rig, usize::MAX)
}

/// Reads the first `num_documents` documents.
fn read_first(rig: &mut Rig, num_documents: usize) -> Reading {
    let (mut best, mut logprobs) = (Vec::new(), Vec::new());
    for line in HELD_OUT.lines().take(num_documents) {
        let text: Vec<u32> = line.split(' ').map(|id| id.parse().expect("the file holds numbers")).collect();
        for len in (START..text.len()).step_by(2) {
            best.push(rig.start(0, &text[..len], SamplingParams::greedy()).token_id);
            rig.release(0);
        }
        let chunk = reporting(rig.chunk(0, &text, Some(SamplingParams::greedy()), true), 0, None);
        let reply = rig.step(vec![chunk]);
        rig.release(0);
        logprobs.extend(report(&reply, 0).logprobs[START - 1..].iter().map(|logprob| f64::from(*logprob)));
    }
    let perplexity = (-logprobs.iter().sum::<f64>() / logprobs.len() as f64).exp();
    Reading { best, perplexity, weights_bytes: rig.engine.info().weights_bytes }
}

#[test]
fn smaller_weights_say_nearly_the_same() {
    let own = read(&mut rig(Device::CPU, None));
    let types = [(Quantize::Int8, (0.98, 0.01), 0.7), (Quantize::Int4, (0.93, 0.05), 0.5)];
    for (quantize, near, max_memory) in types {
        let small = read(&mut rig(Device::CPU, Some(quantize)));
        small.check_near(&own, near, &quantize.to_string());
        let memory = small.weights_bytes as f64 / own.weights_bytes as f64;
        assert!(memory < max_memory, "{quantize}: {memory} of the memory");
    }
}

#[test]
fn programs_of_smaller_weights_say_nearly_the_same() {
    if plugin_path(Device::XLA_CPU).is_none() {
        return;
    }
    let read = |device, quantize| read_first(&mut rig(device, quantize), NUM_THROUGH_XLA);
    let own = read(Device::CPU, None);
    let fp8 = read(Device::XLA_CPU, Some(Quantize::Fp8));
    fp8.check_near(&own, (0.93, 0.02), "fp8 through XLA");
    assert!(fp8.weights_bytes as f64 / (own.weights_bytes as f64) < 0.7, "{} bytes of fp8", fp8.weights_bytes);
    for (quantize, near, max_memory) in [(Quantize::Int8, (0.97, 0.01), 0.7), (Quantize::Int4, (0.93, 0.05), 0.5)] {
        let [cpu, small] = [Device::CPU, Device::XLA_CPU].map(|device| read(device, Some(quantize)));
        small.check_near(&own, near, &format!("{quantize} through XLA"));
        // If the processor multiplies bf16, the CPU backend's attention rounds to bf16. XLA's order of sums depends on
        // the processor too. Some activations are therefore rounded to another integer, and tokens may differ.
        small.check_near(&cpu, (0.97, 0.003), &format!("{quantize} through XLA beside the CPU's"));
        let memory = small.weights_bytes as f64 / own.weights_bytes as f64;
        assert!(memory < max_memory, "{quantize}: {memory} of the memory");
    }
}

#[test]
fn other_devices_refuse_it() {
    let refused = [
        (
            Device::MOCK,
            Quantize::Int8,
            "--quantize is int8, which is for --device cpu, xla-cpu, tpu and cuda; the device is mock",
        ),
        (Device::CPU, Quantize::Fp8, "--quantize is fp8, which is for --device xla-cpu and tpu; the device is cpu"),
        (
            Device::MOCK,
            Quantize::Int4,
            "--quantize is int4, which is for --device cpu, xla-cpu and tpu; the device is mock",
        ),
    ];
    for (device, quantize, expected) in refused {
        let mut args = args("demo", device);
        args.model.quantize = Some(quantize);
        let Err(error) = Engines::load(&[args]) else { panic!("{device} took {quantize}") };
        assert_eq!(error.to_string(), expected);
    }
}
