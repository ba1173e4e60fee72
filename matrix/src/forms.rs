//! The table of forms in which checkpoints are computed.

/// A form in which tests compute checkpoints.
#[derive(Debug)]
pub struct Form {
    /// The name in commands and lists.
    pub name: &'static str,
    /// A description for people.
    pub about: &'static str,
    /// The folder below `integration-tests/fixtures` with the checkpoints.
    pub folder: &'static str,
    /// The checkpoints that every run computes in this form.
    pub core: Core,
    /// The time of a checkpoint in milliseconds, on one core of a Zen 4.
    pub millis: u64,
}

/// The checkpoints of a form that every run computes.
#[derive(Debug, Clone, Copy)]
pub enum Core {
    /// All of them.
    All,
    /// Those with these names.
    Only(&'static [&'static str]),
}

/// All forms.
pub const FORMS: [Form; 7] = [
    Form { name: "cpu", about: "f32 on the CPU", folder: "families", core: Core::All, millis: 20 },
    Form { name: "bf16", about: "bfloat16 on the CPU", folder: "families", core: Core::All, millis: 20 },
    Form { name: "int8", about: "int8 weights on the CPU", folder: "families", core: Core::All, millis: 20 },
    Form { name: "two-ranks", about: "two ranks of the CPU", folder: "families", core: Core::All, millis: 20 },
    Form { name: "gguf", about: "GGUF files on the CPU", folder: "gguf-families", core: Core::All, millis: 20 },
    Form {
        name: "xla",
        about: "one device of XLA-CPU",
        folder: "families",
        core: Core::Only(&[
            "afmoe",
            "apertus",
            "biogpt-unscaled",
            "deepseek-v2",
            "deepseek-v3-one-group",
            "ernie4-5-moe",
            "exaone-moe-listed",
            "gemma2",
            "gemma4",
            "glm4-moe",
            "gpt-neox",
            "gpt-oss",
            "llama4-composite-fp8-experts",
            "llama4-dense-layers",
            "mistral4-moe",
            "mpt-six-heads",
            "nemotron",
            "olmo",
            "phi3-long",
            "qwen2-moe",
            "qwen3-moe",
            "qwen3-vl-moe",
            "youtu",
        ]),
        millis: 1500,
    },
    Form {
        name: "xla-two-devices",
        about: "two devices of XLA-CPU",
        folder: "families",
        core: Core::Only(&[
            "afmoe-listed",
            "bloom",
            "deepseek-v3",
            "gemma3",
            "gemma3-composite",
            "gemma4-moe",
            "gpt-oss-mxfp4",
            "llama4-composite",
            "mixtral",
            "youtu-no-rank",
        ]),
        millis: 2000,
    },
];

/// Returns the form with this name.
///
/// # Panics
/// When no form has this name.
pub fn form(name: &str) -> &'static Form {
    let names: Vec<_> = FORMS.iter().map(|form| form.name).collect();
    FORMS.iter().find(|form| form.name == name).unwrap_or_else(|| panic!("no form {name}; forms are {names:?}"))
}

impl Form {
    /// True if every run computes this checkpoint in this form.
    pub fn is_core(&self, checkpoint: &str) -> bool {
        match self.core {
            Core::All => true,
            Core::Only(names) => names.contains(&checkpoint),
        }
    }
}
