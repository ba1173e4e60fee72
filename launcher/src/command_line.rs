//! Parses arguments and environment variables into [`Args`], and reports errors in them.
//!
//! Entry point: [`parse`]. Unlike clap alone, it takes an empty variable as not set, except those of [`NEVER_EMPTY`];
//! it gives an alias of a flag a variable too, names the variable in an error about its value, and suggests only names
//! that are similar or that stand for a flag of another server.

use std::ffi::{OsStr, OsString};

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command, CommandFactory, Error, FromArgMatches};

use crate::args::Args;
use crate::foreign::SAME;

/// Flags of other servers, each with the flag of this server that comes nearest to it.
const ELSEWHERE: [(&str, &str); 5] = [
    ("--batch-size", "--max-batch-prefill-tokens"),
    ("--ctx-size", "--max-total-tokens"),
    ("--parallel", "--max-batch-size"),
    ("--tokenizer-config", "--tokenizer-config-path"),
    ("--tp-size", "--num-shard"),
];

/// Flags of a launch that `-h` shows; `--help` shows all.
const NEEDED_MOST: [&str; 15] = [
    "model-id",
    "revision",
    "dtype",
    "quantize",
    "device",
    "num-shard",
    "hostname",
    "port",
    "api-key-file",
    "max-concurrent-requests",
    "max-input-tokens",
    "max-total-tokens",
    "max-batch-size",
    "kv-cache-memory",
    "log-level",
];
/// Variables that are refused when they are empty. Without their values everybody may call, web pages of every origin
/// may call, or the hosts of a slice share no secret.
const NEVER_EMPTY: [&str; 4] = ["API_KEY", "API_KEY_FILE", "CORS_ALLOW_ORIGIN", "SLICE_SECRET_FILE"];

/// The flags that the help of `health` shows. `health` accepts all HTTP flags of a launch.
const OF_HEALTH: [&str; 5] = ["pid", "hostname", "port", "uds", "tls-certfile"];

/// Parses the arguments, of which the first is the program's name, and the environment variables of the flags.
///
/// # Errors
/// When an argument or a variable is invalid. The text of the help or the version, if it was requested, is also
/// returned as an error.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Args, Error> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let mut command = with_last_values(with_names_of_vllm(with_variables(with_short_help(Args::command()))));
    if arguments.get(1).is_some_and(|word| command.find_subcommand(word).is_some()) {
        // A launch's flags have the same variables as the subcommand's own flags, so the launch's flags must not read
        // them here.
        command = command.mut_args(|arg| arg.env(Resettable::Reset));
    }
    let matches = command.try_get_matches_from_mut(&arguments);
    let args = matches
        .and_then(|mut matches| Args::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command)));
    args.map_err(|error| {
        // Only after `build` do the flags of all subcommands have the text that errors contain.
        command.build();
        name_variables(with_near_suggestion(error), &command, &arguments)
    })
}

/// Returns the command with a `-h` that shows only the flags that are needed most, and with a help of `health` that
/// shows only the flags of `health`.
fn with_short_help(command: Command) -> Command {
    let is_one_of = |names: &[&str], arg: &Arg| arg.get_long().is_none_or(|long| names.contains(&long));
    let short = |arg: Arg| if is_one_of(&NEEDED_MOST, &arg) { arg } else { arg.hide_short_help(true) };
    let of_health = |arg: Arg| if is_one_of(&OF_HEALTH, &arg) { arg } else { arg.hide(true) };
    let command = command.mut_args(short).mut_subcommand("plan", |plan| plan.mut_args(short));
    command.mut_subcommand("health", |health| health.mut_args(of_health))
}

/// Returns the command in which flags have vLLM's names too. Only variables with our own names are read, so this must
/// come after [`with_variables`].
fn with_names_of_vllm(command: Command) -> Command {
    let named = |arg: Arg| {
        let theirs = SAME.iter().find(|(ours, _)| arg.get_long() == Some(ours));
        theirs.map_or(arg.clone(), |(_, theirs)| arg.alias(*theirs))
    };
    command.mut_args(named).mut_subcommand("plan", |plan| plan.mut_args(named))
}

/// Returns the command in which the last value of a flag wins, so that a user can append flags to a given command. A
/// flag that takes a list keeps all values.
fn with_last_values(command: Command) -> Command {
    let last = |arg: Arg| match arg.get_action() {
        ArgAction::Set | ArgAction::SetTrue | ArgAction::SetFalse => {
            let id = arg.get_id().clone();
            arg.overrides_with(id)
        }
        _ => arg,
    };
    command.mut_args(last).mut_subcommand("plan", |plan| plan.mut_args(last))
}

/// Returns the command and its subcommands. Each flag reads its own variable or, if that is not set, the variable of an
/// alias that is set.
fn with_variables(command: Command) -> Command {
    command.mut_args(with_variable).mut_subcommands(with_variables)
}

fn with_variable(arg: Arg) -> Arg {
    let is_set = |name: &OsStr| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let arg = if arg.get_action().takes_values() { arg.allow_negative_numbers(true) } else { arg };
    let Some(own) = arg.get_env().map(OsStr::to_owned).filter(|own| !is_set(own)) else { return arg };
    let aliases = arg.get_all_aliases().unwrap_or_default();
    let mut twins = aliases.iter().map(|alias| alias.to_uppercase().replace('-', "_"));
    match twins.find(|twin| is_set(OsStr::new(twin))) {
        // clap needs names that live as long as the process.
        Some(twin) => arg.env(&*twin.leak()),
        // The variable is set but empty, as `${NAME:-}` in a compose file makes it.
        None if std::env::var_os(&own).is_some() && !NEVER_EMPTY.iter().any(|name| own == *name) => {
            arg.env(Resettable::Reset)
        }
        None => arg,
    }
}

/// Returns the error without suggestions that differ too much from the user's input, and with suggestions for the flags
/// of other servers.
fn with_near_suggestion(mut error: Error) -> Error {
    for (wrong, suggested) in [
        (ContextKind::InvalidArg, ContextKind::SuggestedArg),
        (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand),
        (ContextKind::InvalidValue, ContextKind::SuggestedValue),
    ] {
        let Some(ContextValue::String(wrong)) = error.get(wrong).cloned() else { continue };
        let near = match error.get(suggested) {
            Some(ContextValue::String(name)) => Some(name).filter(|name| is_near(&wrong, name)).cloned(),
            Some(ContextValue::Strings(names)) => names.iter().find(|name| is_near(&wrong, name)).cloned(),
            _ => None,
        };
        let known = ELSEWHERE.iter().find(|(elsewhere, _)| *elsewhere == wrong).map(|(_, here)| (*here).to_owned());
        match known.filter(|_| error.kind() == ErrorKind::UnknownArgument).or(near) {
            Some(name) => error.insert(suggested, ContextValue::String(name)),
            None => error.remove(suggested),
        };
    }
    error
}

/// True if a person may have typed `wrong` and meant `meant`.
fn is_near(wrong: &str, meant: &str) -> bool {
    let max_distance = (wrong.trim_start_matches('-').len() / 3).max(1);
    strsim::osa_distance(wrong, meant) <= max_distance
}

/// Returns the error in which each flag whose value came from an environment variable is replaced by that variable.
fn name_variables(error: Error, command: &Command, arguments: &[OsString]) -> Error {
    let text = error.render().to_string();
    let mut named = text.clone();
    for arg in all_args(command) {
        let is_set = |variable: &&OsStr| std::env::var_os(variable).is_some();
        if let Some(variable) = arg.get_env().filter(is_set).filter(|_| !is_given(arg, arguments)) {
            let variable = format!("the environment variable {}", variable.display());
            named = named.replace(&format!("'{arg}'"), &variable);
        }
    }
    if named == text {
        return error;
    }
    Error::raw(error.kind(), named.strip_prefix("error: ").unwrap_or(&named))
}

fn all_args(command: &Command) -> Vec<&Arg> {
    command.get_arguments().chain(command.get_subcommands().flat_map(all_args)).collect()
}

/// True if one of the arguments is this flag.
fn is_given(arg: &Arg, arguments: &[OsString]) -> bool {
    let longs = arg.get_long().into_iter().chain(arg.get_all_aliases().unwrap_or_default());
    let longs: Vec<String> = longs.map(|long| format!("--{long}")).collect();
    let shorts: Vec<String> =
        arg.get_short_and_visible_aliases().unwrap_or_default().iter().map(|c| format!("-{c}")).collect();
    arguments.iter().map(|word| word.to_string_lossy()).any(|word| {
        longs.iter().any(|long| word.split('=').next() == Some(long))
            || shorts.iter().any(|short| word.starts_with(short))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(words: &[&str]) -> String {
        let words = ["text-generation-launcher"].iter().chain(words).map(OsString::from);
        parse(words).unwrap_err().to_string()
    }

    #[test]
    fn only_what_looks_alike_is_suggested() {
        for (words, suggestion) in [
            (&["--prot", "1"][..], Some("'--port'")),
            (&["--modle-id=x"], Some("'--model-id'")),
            (&["--ctx-size", "1"], Some("'--max-total-tokens'")),
            (&["--tp-size=2"], Some("'--num-shard'")),
            (&["plam"], Some("'plan'")),
            (&["--rope-scalings", "x"], Some("'--rope-scaling'")),
            (&["--flash-attention"], None),
            (&["--share-origin", "x"], None),
            (&["chat"], None),
            (&["list"], None),
            (&["--device", "npu7"], None),
        ] {
            let text = error(words);
            let tip = text.lines().find(|line| line.contains("tip:") || line.contains("similar"));
            match suggestion {
                Some(name) => assert!(tip.is_some_and(|tip| tip.contains(name)), "{words:?}: {text}"),
                None => assert_eq!(tip, None, "{words:?}: {text}"),
            }
        }
    }

    #[test]
    fn help_is_short_or_whole_and_speaks_of_flags() {
        let [short, long, plan, health] =
            [&["-h"][..], &["--help"], &["plan", "--help"], &["health", "--help"]].map(error);
        assert!(short.lines().count() <= 80, "{} lines", short.lines().count());
        for flag in ["--model-id", "--port", "--num-shard", "--help shows all"] {
            assert!(short.contains(flag) && long.contains(flag.split(' ').next().unwrap()), "{flag}");
        }
        assert!(!short.contains("--waiting-served-ratio") && long.contains("--waiting-served-ratio"));
        for heading in ["Model:", "Hugging Face Hub:", "Processes:", "HTTP:", "Limits of requests:", "Log:"] {
            assert!(long.contains(&format!("\n{heading}\n")), "{heading}");
        }
        for help in [&short, &long, &plan, &health] {
            assert!(!help.contains("::") && !help.contains("](") && !help.contains("[`"), "{help}");
        }
        assert!(health.contains("--uds") && health.contains("--pid"), "{health}");
        assert!(!health.contains("--payload-limit") && !health.contains("--cors-allow-origin"), "{health}");
    }

    #[test]
    fn names_of_others_lead_to_flags_that_exist() {
        let command = Args::command();
        for (_, here) in ELSEWHERE {
            let is_it = |arg: &Arg| arg.get_long().is_some_and(|long| here == format!("--{long}"));
            assert!(command.get_arguments().any(is_it), "{here}");
        }
    }

    #[test]
    fn the_last_value_of_a_flag_wins() {
        let words = ["hilo", "--max-total-tokens=8000", "--api-key=a", "--max-total-tokens", "512", "--api-key", "b"];
        let args = parse(words.map(OsString::from)).unwrap().launch;
        assert_eq!(args.limits.max_total_tokens, Some(512));
        assert_eq!(args.http.api_key.len(), 2);
    }

    #[test]
    fn a_negative_number_is_a_value() {
        let text = error(&["--max-total-tokens", "-1"]);
        assert!(text.contains("'-1' for '--max-total-tokens <MAX_TOTAL_TOKENS>'"), "{text}");
    }
}
