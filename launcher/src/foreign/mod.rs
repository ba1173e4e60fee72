//! Flags of other servers that this server accepts but does not implement: those of text-generation-inference's
//! launcher (`tgi`) and of vLLM (`vllm`). For each flag that is given, the server logs what happens, or refuses to
//! start.
//!
//! Entry point: [`ForeignArgs`]. Each flag has one row in the table of its server. Setting the flag's environment
//! variable, if it has one, counts as giving the flag. [`SAME`] has flags of vLLM that this server implements under
//! other names.

mod row;
mod tgi;
mod vllm;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use row::{Row, Verdict};
pub(crate) use vllm::SAME;

/// The flags of the table that were given, except those whose value asks for the default behaviour.
#[derive(Debug, Clone, Default)]
pub(crate) struct ForeignArgs(Vec<Given>);

/// A flag that was given, with true if it came from its environment variable.
#[derive(Debug, Clone, Copy)]
struct Given {
    row: &'static Row,
    is_variable: bool,
}

impl ForeignArgs {
    /// The reasons not to start: one sentence for each flag that must not be ignored.
    pub(crate) fn refusals(&self) -> Vec<String> {
        self.sentences(Verdict::Refused)
    }

    /// The warnings: one sentence for each flag that has no effect although the user may miss it.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.sentences(Verdict::Missing)
    }

    /// The notes: one sentence for each flag that is not needed here.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.sentences(Verdict::Harmless)
    }

    fn sentences(&self, verdict: Verdict) -> Vec<String> {
        self.0.iter().filter(|given| given.row.verdict == verdict).map(Given::sentence).collect()
    }
}

/// Returns the rows of all tables.
fn rows() -> impl Iterator<Item = &'static Row> {
    tgi::TABLE.iter().chain(&vllm::TABLE)
}

impl Given {
    /// Returns the sentence about a flag. It never contains the flag's value, because some values are secrets.
    fn sentence(&self) -> String {
        let Row { flag, verdict, reason, .. } = self.row;
        let name = match (self.is_variable, self.row.variable()) {
            (true, Some(variable)) => format!("the environment variable {variable}"),
            _ => format!("--{flag}"),
        };
        match verdict {
            Verdict::Harmless => format!("{name} changes nothing: {reason}"),
            Verdict::Missing => format!("{name} has no effect: {reason}"),
            Verdict::Refused => format!("{name} is not supported: {reason}"),
        }
    }
}

impl clap::Args for ForeignArgs {
    fn augment_args(command: Command) -> Command {
        command.args(rows().map(Row::arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for ForeignArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |row: &'static Row| {
            let is_variable = match matches.value_source(row.flag)? {
                ValueSource::EnvVariable => true,
                ValueSource::CommandLine => false,
                _ => return None,
            };
            let mut values = matches.get_many::<String>(row.flag)?;
            values.any(|value| !row.asks_for_nothing(value)).then_some(Given { row, is_variable })
        };
        Ok(Self(rows().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Row {
    /// Returns the flag for clap. Its value is optional, because some flags of TGI have a value and some do not.
    fn arg(&self) -> Arg {
        let arg = Arg::new(self.flag).long(self.flag).hide(true).hide_env_values(true);
        let arg = arg.action(ArgAction::Append).num_args(0..=1).default_missing_value("true");
        let arg = if let Some(short) = self.short { arg.short(short) } else { arg };
        match self.variable() {
            // clap needs names that live as long as the process.
            Some(variable) => arg.env(&*variable.leak()),
            None => arg,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::args::Args;

    /// All flags of the launcher of text-generation-inference 3.3.
    const FLAGS: &[&str] = &[
        "api-key",
        "cors-allow-origin",
        "cuda-graphs",
        "cuda-memory-fraction",
        "disable-custom-kernels",
        "disable-grammar-support",
        "dtype",
        "enable-prefill-logprobs",
        "env",
        "graceful-termination-timeout",
        "hostname",
        "huggingface-hub-cache",
        "json-output",
        "kv-cache-dtype",
        "lora-adapters",
        "master-addr",
        "master-port",
        "max-batch-prefill-tokens",
        "max-batch-size",
        "max-batch-total-tokens",
        "max-best-of",
        "max-client-batch-size",
        "max-concurrent-requests",
        "max-input-length",
        "max-input-tokens",
        "max-stop-sequences",
        "max-top-n-tokens",
        "max-total-tokens",
        "max-waiting-tokens",
        "model-id",
        "ngrok",
        "ngrok-authtoken",
        "ngrok-edge",
        "num-shard",
        "otlp-endpoint",
        "otlp-service-name",
        "payload-limit",
        "port",
        "prometheus-port",
        "quantize",
        "revision",
        "rope-factor",
        "rope-scaling",
        "shard-uds-path",
        "sharded",
        "speculate",
        "tokenizer-config-path",
        "trust-remote-code",
        "usage-stats",
        "validation-workers",
        "waiting-served-ratio",
        "watermark-delta",
        "watermark-gamma",
        "weights-cache-override",
    ];

    fn given(flags: &[&str]) -> ForeignArgs {
        Args::try_parse_from(["text-generation-launcher"].iter().chain(flags)).unwrap().launch.foreign
    }

    #[test]
    fn every_flag_of_tgi_is_known() {
        let command = Args::command();
        let names = command.get_arguments().flat_map(|arg| arg.get_long_and_visible_aliases().unwrap_or_default());
        let known: BTreeSet<&str> = names.collect();
        let unknown: Vec<&&str> = FLAGS.iter().filter(|flag| !known.contains(**flag)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        let strange: Vec<&str> = tgi::TABLE.iter().map(|row| row.flag).filter(|flag| !FLAGS.contains(flag)).collect();
        assert!(strange.is_empty(), "{strange:?}");
    }

    /// Flags that deployments of vLLM often have.
    #[test]
    fn common_flags_of_vllm_are_taken_or_refused_with_a_reason() {
        let flags = ["--model", "demo", "--host", "127.0.0.1", "--max-model-len", "512", "--max-num-seqs=8"];
        let args = Args::try_parse_from(["text-generation-launcher"].iter().chain(&flags));
        assert!(args.is_err(), "only `command_line` adds vLLM's names");
        let words =
            ["text-generation-launcher"].iter().chain(&flags).chain(&["--enable-prefix-caching", "--dtype=auto"]);
        let args = crate::command_line::parse(words.map(std::ffi::OsString::from)).unwrap().launch;
        assert_eq!((args.model.model_id.as_str(), args.http.hostname.as_str()), ("demo", "127.0.0.1"));
        assert_eq!((args.limits.max_total_tokens, args.batching.max_batch_size), (Some(512), Some(8)));
        assert!(args.batching.prefix_caching && args.foreign.0.is_empty());
        let refused = given(&["--gpu-memory-utilization", "0.9", "--block-size=16", "--tool-call-parser", "hermes"]);
        assert_eq!((refused.refusals().len(), refused.notes().len()), (1, 1));
        assert!(refused.refusals()[0].contains("--kv-cache-memory"));
    }

    #[test]
    fn flags_that_would_change_answers_are_refused_with_advice() {
        let refusals = given(&["--rope-scaling", "dynamic", "--rope-factor=2.0", "--lora-adapters", "a,b"]).refusals();
        assert_eq!(refusals.len(), 3, "{refusals:?}");
        assert!(refusals.iter().any(|text| text.starts_with("--rope-scaling is not supported: ")), "{refusals:?}");
        assert!(refusals.iter().any(|text| text.contains("merge")), "{refusals:?}");
    }

    #[test]
    fn the_rest_is_taken_with_and_without_values() {
        let flags = ["-e", "--trust-remote-code", "--cuda-graphs", "1,2", "--usage-stats=off", "--speculate", "2"];
        let given = given(&flags);
        assert_eq!(given.refusals(), [""; 0]);
        assert_eq!(given.0.len(), 4, "{given:?}");
        assert_eq!(given.warnings().len(), 1, "{given:?}");
    }

    #[test]
    fn values_that_ask_for_nothing_are_nothing() {
        for flags in [
            &["--trust-remote-code", "false"][..],
            &["--speculate", "0"],
            &["--cuda-memory-fraction=1.0"],
            &["--lora-adapters="],
            &["--ngrok=False"],
        ] {
            assert!(given(flags).0.is_empty(), "{flags:?}");
        }
        assert_eq!(given(&["--cuda-memory-fraction=0.8"]).refusals().len(), 1);
    }

    #[test]
    fn secrets_are_not_repeated() {
        let given = given(&["--ngrok-authtoken", "2abcSECRET"]);
        assert!(!format!("{given:?}{:?}", given.notes()).contains("SECRET"), "{given:?}");
    }

    #[test]
    fn the_documentation_has_every_row() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/compatibility.md");
        let document = std::fs::read_to_string(path).unwrap();
        for row in rows() {
            let line = format!("| `--{}` | {} | {} |", row.flag, row.verdict, row.reason);
            assert!(document.lines().any(|found| found == line), "docs/compatibility.md lacks:\n{line}");
        }
    }
}
