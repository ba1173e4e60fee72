//! The devices by name, as `--device` takes them.

use clap::ValueEnum;

/// A kind of device that computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum Device {
    /// The best one of this machine.
    Auto,
    /// This machine's processor, by kernels of our own.
    Cpu,
    /// This machine's processor, through XLA.
    #[value(name = "xla-cpu")]
    XlaCpu,
    /// Google's TPU.
    Tpu,
    /// NVIDIA's GPU.
    #[value(alias = "gpu")]
    Cuda,
    /// Arithmetic over token ids instead of a model, for tests.
    #[value(hide = true)]
    Mock,
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}
