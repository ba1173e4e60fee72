//! What TGI's dialect takes over from the model's own defaults (`--generation-config model`). OpenAI's does it in `openai/sampling.rs`.

use proto::SamplingDefaults;

use super::GenerateParameters;

impl GenerateParameters {
    /// Takes over what the model's defaults say of everything that the client does not.
    pub(crate) fn or_defaults(mut self, defaults: &SamplingDefaults) -> Self {
        self.repetition_penalty = self.repetition_penalty.or(defaults.repetition_penalty);
        if defaults.draws && self.do_sample != Some(false) {
            self.temperature = self.temperature.or(defaults.temperature);
            self.top_k = self.top_k.or(defaults.top_k.and_then(|k| i32::try_from(k).ok()).filter(|k| *k > 0));
            self.top_p = self.top_p.or(defaults.top_p);
            self.min_p = self.min_p.or(defaults.min_p);
            self.typical_p = self.typical_p.or(defaults.typical_p);
            self.do_sample = Some(true);
        }
        self
    }
}
