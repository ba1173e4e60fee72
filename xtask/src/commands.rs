//! The table of commands.

use std::process::Command;

use crate::root;

/// A command line with a name.
struct Row {
    name: &'static str,
    about: &'static str,
    /// A command line for a shell in the root of the repository. Arguments of the command follow it.
    line: &'static str,
}

const fn row(name: &'static str, about: &'static str, line: &'static str) -> Row {
    Row { name, about, line }
}

/// Commands in the order of the list: tests, checks against other programs, benches, generators.
const ROWS: &[Row] = &[
    row("test", "all tests in Rust, without network, device or Python [FILTER]", "cargo test --workspace"),
    row("lint", "clippy, with warnings as errors", "cargo clippy --workspace --all-targets -- -D warnings"),
    row("fmt", "formats all Rust files [--check]", "cargo fmt --all"),
    row("tidy", "the rules of the tree", "cargo test -p integration-tests --test tidy"),
    row(
        "plugin",
        "the plugin of XLA-CPU; enables the tests that are skipped without it",
        "cargo run -- plugin fetch cpu",
    ),
    row(
        "family",
        "all forms of the checkpoints whose names contain PART, on all devices",
        "family() { HILO_TEST_FAMILY=$1 HILO_REQUIRE_PLUGINS=1 cargo test --workspace --lib -- engine::tests::families engine::tests::gguf; }; family",
    ),
    row(
        "it",
        "black-box tests [FILTER]; HILO_TEST_DEVICE=xla-cpu chooses a device",
        "cargo test -p integration-tests --test it --",
    ),
    row(
        "histories",
        "a hundred thousand histories of the scheduler",
        "HILO_HISTORIES=100000 cargo test --workspace --lib -- tests::histories",
    ),
    row(
        "attacks",
        "attacks beside four streams [WORD] [--measure]",
        "cargo test -p integration-tests --test attacks --",
    ),
    row(
        "fuzz",
        "random requests [--seconds 1800] [--seed 7] [--shards 2]",
        "cargo test -p integration-tests --test fuzz --",
    ),
    row(
        "isa",
        "the kernels' tests; fails if the machine lacks AVX-512 or AMX",
        "HILO_REQUIRE_ISA=avx512,amx cargo test -p kernels",
    ),
    row(
        "sanitize",
        "the kernels' tests under the address sanitizer, ten to fifteen minutes",
        "bash kernels/sanitize.sh",
    ),
    row("clients", "Python clients, and pages in a browser [NAME ...]", "bash integration-tests/clients/run.sh"),
    row(
        "openapi",
        "requests that the OpenAPI document allows, and others [SECONDS]",
        "bash integration-tests/openapi/run.sh",
    ),
    row("gateways", "routers of others, and Envoy with a picker [NAME ...]", "bash integration-tests/gateways/run.sh"),
    row(
        "kv-events",
        "KV cache events with other people's programs [NAME ...]",
        "bash integration-tests/kv_events/run.sh",
    ),
    row(
        "kubernetes",
        "the manifests of deploy/kubernetes, without a cluster [NAME ...]",
        "bash integration-tests/kubernetes/run.sh",
    ),
    row(
        "templates",
        "chat templates of many models, compared with transformers",
        "bash integration-tests/chat_templates/run.sh",
    ),
    row(
        "supply-chain",
        "licences, versions, sources and advisories of other people's crates",
        "bash integration-tests/supply_chain/run.sh",
    ),
    row("images", "builds the images from source and tries them", "bash integration-tests/docker.sh"),
    row("bench", "load over HTTP: bench/README.md", "cargo run --release -p text-generation-bench --"),
    row("guard", "kernels beside those of a commit, in turns [COMMIT]", "python3 bench/guard.py"),
    row("bench-kernels", "CPU kernels beside the machine's memory bandwidth", "cargo bench -p kernels"),
    row("bench-collectives", "all-reduce between processes, 4 KiB to 16 MiB", "cargo bench -p collectives"),
    row("bench-pjrt", "a launch of a large decoder on eight devices", "cargo bench -p pjrt --features testing"),
    row("bench-scheduler", "steps by rows, a prompt that is in the prefix cache", "cargo bench -p scheduler"),
    row("bench-router", "tokenize, detokenize", "cargo bench -p router"),
    row("bench-sampler", "samplers on the CPU, by vocabulary", "cargo bench -p cpu --features oracle"),
    row("bench-overhead", "the server beside the model alone: bench/README.md", "bash bench/overhead.sh all"),
    row(
        "snapshots",
        "rewrites the snapshots in tests whose results changed; read the difference before you commit it",
        "{ cargo insta --version > /dev/null 2>&1 || cargo install --locked cargo-insta; } && cargo insta test --workspace --lib --bins --accept",
    ),
];

/// Returns the list of commands for people.
pub(crate) fn list() -> String {
    let width = ROWS.iter().map(|row| row.name.len()).max().unwrap_or_default();
    let line = |name: &str, about: &str| format!("  {name:width$}  {about}\n");
    let mut list = String::from("cargo xtask NAME [ARGUMENT ...]\n\n");
    list += &line("ci", "checks that must pass before a change lands: `cargo xtask ci --help`");
    ROWS.iter().for_each(|row| list += &line(row.name, row.about));
    list
}

/// Runs the command `name` with more arguments.
///
/// # Errors
/// When there is no such command, it cannot be started or it fails.
pub(crate) fn run(name: &str, arguments: &[String]) -> Result<(), String> {
    let row = ROWS.iter().find(|row| row.name == name);
    let row = row.ok_or_else(|| format!("there is no command {name}\n\n{}", list()))?;
    let script = format!("{} \"$@\"", row.line);
    let mut shell = Command::new("bash");
    shell.args(["-c", &script, name]).args(arguments).current_dir(root());
    let status = shell.status().map_err(|error| format!("{name}: bash cannot be started: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name} failed: {status}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_in_the_table_exist() {
        for row in ROWS {
            let script = row.line.split(' ').find(|word| word.ends_with(".sh") || word.ends_with(".py"));
            assert!(script.is_none_or(|script| root().join(script).exists()), "{}: {}", row.name, row.line);
        }
    }
}
