//! The table of the steps of CI and their units. To add a step or a unit:
//! 1. Add a row to [`STEPS`]: the name, the lane, the command line and its units. A unit is the smallest part that can
//!    run alone, such as one client or one module of tests.
//! 2. Make the unit `core` if every run must take it, else `drawn`. `of` names the paths whose change makes every run
//!    take it, and `near` those whose change makes a draw more likely.
//! 3. State its time in seconds on two cores of a Zen 4. `.ci/run` prints the times of a run.

/// A lane of steps that run one after the other. Two lanes run at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Formatting, compiling, and tests that keep both cores busy.
    Main,
    /// Steps that often wait: for packages, for other programs. They begin when the tests are built.
    Beside,
}

/// A step: a command line that takes the names of units.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) lane: Lane,
    /// A command line for a shell in the root of the repository. `UNITS` stands for the names of units, `MODULES` for
    /// these names with `::` after each.
    pub(crate) line: &'static str,
    /// True if the command line uses what `build` makes.
    pub(crate) needs_build: bool,
    pub(crate) units: &'static [Unit],
}

impl Step {
    /// The rank of the first unit. Units that only `--full` takes have steps of their own.
    pub(crate) fn rank(&self) -> Rank {
        self.units[0].rank
    }
}

/// A part of a step that can run alone.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) name: &'static str,
    /// The time on two cores of a Zen 4, beside the other lane.
    pub(crate) seconds: u64,
    pub(crate) rank: Rank,
    /// Runs take the unit if the change touches a path with one of these prefixes, or with an end after `*`.
    pub(crate) of: &'static [&'static str],
    /// A draw is more likely if the change touches a path with one of these prefixes.
    pub(crate) near: &'static [&'static str],
}

/// The rank of a unit among those that a run may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rank {
    /// Every run takes it.
    Core,
    /// Runs draw it.
    Drawn,
    /// Only changes of its own files and `--full` take it.
    Full,
}

const fn core(name: &'static str, seconds: u64) -> Unit {
    Unit { name, seconds, rank: Rank::Core, of: &[], near: &[] }
}

const fn drawn(name: &'static str, seconds: u64) -> Unit {
    Unit { name, seconds, rank: Rank::Drawn, of: &[], near: &[] }
}

const fn full(name: &'static str, seconds: u64, of: &'static [&'static str]) -> Unit {
    Unit { name, seconds, rank: Rank::Full, of, near: &[] }
}

impl Unit {
    const fn of(self, of: &'static [&'static str]) -> Self {
        Self { of, ..self }
    }

    const fn near(self, near: &'static [&'static str]) -> Self {
        Self { near, ..self }
    }
}

/// The name of the step that builds the tests and the executable.
pub(crate) const BUILD: &str = "build";
/// The name of the step that computes the cells of the matrix.
pub(crate) const LIBRARIES: &str = "libraries";

/// Files from which the images are built, apart from the sources of the product.
const IMAGE: &[&str] =
    &["Dockerfile", ".dockerignore", "docker/", ".cargo/", "Cargo", "integration-tests/docker.sh", "*/Cargo.toml"];
const API: &[&str] = &["router/src/api", "router/src/routes", "router/src/generation"];
const TEXT: &[&str] = &["router/src/text", "router/src/grammar"];
const DEVICE: &[&str] = &["model/src", "xla/src", "pjrt/src", "devices/src", "backend/src", "shard/src"];
const SHARDS: &[&str] = &["collectives", "cpu/src", "backend/src", "shard/src", "shard-client/src", "proto"];

/// All steps, in the order of each lane.
pub(crate) const STEPS: &[Step] = &[
    Step {
        name: "format",
        lane: Lane::Main,
        line: "cargo fmt --all --check && cargo fmt --check --manifest-path bench/peers/candle_transformers/Cargo.toml",
        needs_build: false,
        units: &[core("all", 5)],
    },
    Step {
        name: "clippy",
        lane: Lane::Main,
        line: "cargo clippy --workspace --all-targets --locked -- -D warnings",
        needs_build: false,
        units: &[core("all", 200)],
    },
    Step {
        name: BUILD,
        lane: Lane::Main,
        line: "cargo test --workspace --locked --no-run && cargo build --workspace --locked --bin text-generation-launcher --tests",
        needs_build: false,
        units: &[core("all", 580)],
    },
    Step {
        name: "plugins",
        lane: Lane::Main,
        line: "\"$HILO_TEST_EXECUTABLE\" plugin fetch cpu && \"$HILO_TEST_EXECUTABLE\" plugin fetch tpu",
        needs_build: true,
        units: &[core("all", 10)],
    },
    Step {
        name: LIBRARIES,
        lane: Lane::Main,
        line: "cargo test --workspace --locked --lib --bins",
        needs_build: true,
        units: &[core("all", 350)],
    },
    Step {
        name: "crates",
        lane: Lane::Main,
        line: "cargo test --workspace --locked --test all --test processes --test cpu --test tpu --test memory --test server --test tidy && cargo test --workspace --locked --doc",
        needs_build: true,
        units: &[core("all", 12)],
    },
    Step {
        name: "it",
        lane: Lane::Main,
        line: "cargo test --workspace --locked --test it -- MODULES",
        needs_build: true,
        units: &[
            core("ahead", 10).near(&["xla/src", "launcher/src/tpu"]),
            core("builds", 6),
            core("chat", 4),
            core("concurrency", 4),
            core("dashboard", 2),
            core("endpoints", 4),
            core("failures", 4),
            core("faults", 6),
            core("first_process", 2),
            core("generate", 6),
            core("health", 3),
            core("hosts", 20),
            core("hub", 5),
            core("hub_faults", 5),
            core("hub_gguf", 3),
            core("invariance", 6),
            core("kv_cache", 4),
            core("lifecycle", 8),
            core("links", 10),
            core("liveness", 30),
            core("logs", 5),
            core("plans", 4),
            core("plugins", 4),
            core("preflight", 4),
            core("probe", 3),
            core("programs", 8),
            core("ranks", 4),
            core("row_failures", 2),
            core("start", 4),
            core("stops", 20),
            core("streaming", 4),
            core("structured_output", 4),
            core("threads", 2),
            core("traces", 2),
            core("validation", 4),
            core("windows", 2),
        ],
    },
    Step {
        name: "attacks",
        lane: Lane::Main,
        line: "cargo test --workspace --locked --test attacks",
        needs_build: true,
        units: &[core("all", 45)],
    },
    Step {
        name: "fuzz",
        lane: Lane::Main,
        line: "cargo test --workspace --locked --test fuzz",
        needs_build: true,
        units: &[core("all", 30)],
    },
    Step {
        name: "histories",
        lane: Lane::Main,
        line: "HILO_HISTORIES=100000 cargo test --workspace --locked --lib -- tests::histories",
        needs_build: true,
        units: &[drawn("all", 60).of(&["scheduler"])],
    },
    Step {
        name: "two-shards",
        lane: Lane::Main,
        line: "HILO_TEST_NUM_SHARD=2 cargo test --workspace --locked --test it -- MODULES",
        needs_build: true,
        units: &[
            drawn("chat", 4).near(SHARDS),
            drawn("concurrency", 5).near(SHARDS),
            drawn("failures", 4).near(SHARDS),
            core("generate", 2),
            drawn("invariance", 6).near(SHARDS),
            drawn("kv_cache", 5).near(SHARDS),
            drawn("lifecycle", 8).near(SHARDS),
            core("ranks", 2),
            drawn("row_failures", 3).near(SHARDS),
            drawn("streaming", 5).near(SHARDS),
            drawn("structured_output", 5).near(SHARDS),
            drawn("threads", 3).near(SHARDS),
            drawn("windows", 3).near(SHARDS),
        ],
    },
    Step {
        name: "fuzz-two-shards",
        lane: Lane::Main,
        line: "HILO_TEST_NUM_SHARD=2 cargo test --workspace --locked --test fuzz",
        needs_build: true,
        units: &[drawn("all", 30).near(SHARDS)],
    },
    Step {
        name: "xla-cpu",
        lane: Lane::Main,
        line: "HILO_TEST_DEVICE=xla-cpu cargo test --workspace --locked --test it -- MODULES",
        needs_build: true,
        units: &[
            drawn("chat", 10).near(DEVICE),
            drawn("concurrency", 15).near(DEVICE),
            drawn("failures", 10).near(DEVICE),
            drawn("faults", 20).near(DEVICE),
            core("generate", 40),
            drawn("health", 6).near(DEVICE),
            drawn("invariance", 20).near(DEVICE),
            drawn("kv_cache", 15).near(DEVICE),
            drawn("lifecycle", 20).near(DEVICE),
            core("programs", 70),
            drawn("ranks", 10).near(DEVICE),
            drawn("row_failures", 6).near(DEVICE),
            drawn("streaming", 10).near(DEVICE),
            drawn("structured_output", 10).near(DEVICE),
            drawn("threads", 5).near(DEVICE),
            drawn("windows", 10).near(DEVICE),
        ],
    },
    Step {
        name: "release",
        lane: Lane::Main,
        line: "HILO_TEST_EXECUTABLE=$(bash integration-tests/release.sh) cargo test --workspace --locked --test it --test fuzz --test attacks",
        needs_build: true,
        units: &[full("all", 400, IMAGE)],
    },
    Step {
        name: "published-shapes",
        lane: Lane::Main,
        line: "HILO_TEST_SHAPE= cargo test --workspace --locked --test it -- ahead::decode_programs_of_published",
        needs_build: true,
        units: &[full("all", 800, &[])],
    },
    Step {
        name: "supply-chain",
        lane: Lane::Beside,
        line: "bash integration-tests/supply_chain/run.sh",
        needs_build: false,
        units: &[core("all", 5)],
    },
    Step {
        name: "clients",
        lane: Lane::Beside,
        line: "bash integration-tests/clients/run.sh UNITS",
        needs_build: true,
        units: &[
            core("anthropic", 8),
            core("huggingface_hub", 8),
            core("openai", 8),
            core("text_generation", 4),
            drawn("browser_sdk", 10).near(API),
            drawn("docs", 10).of(&["router/src/routes/docs"]).near(API),
            drawn("instructor", 15).near(TEXT),
            drawn("json_schema", 20).of(&["router/src/grammar"]),
            drawn("langchain", 10).near(API),
            drawn("litellm", 30).near(API),
            drawn("llm", 8).near(API),
            drawn("lm_eval", 60).near(API),
            drawn("playground", 20).of(&["router/src/routes/playground"]).near(API),
            drawn("responses", 10).near(API),
            drawn("tools", 10).near(TEXT),
        ],
    },
    Step {
        name: "openapi",
        lane: Lane::Beside,
        line: "bash integration-tests/openapi/run.sh 60 --seed 1",
        needs_build: true,
        units: &[drawn("all", 80).near(API)],
    },
    Step {
        name: "gateways",
        lane: Lane::Beside,
        line: "bash integration-tests/gateways/run.sh UNITS",
        needs_build: true,
        units: &[
            drawn("routers", 60).near(API),
            drawn("prefixes", 20).of(&["integration-tests/gateways"]).near(&["scheduler"]),
            drawn("picker", 60).near(&["router/src/kv_events", "router/src/metrics", "zmtp"]),
        ],
    },
    Step {
        name: "kv-events",
        lane: Lane::Beside,
        line: "bash integration-tests/kv_events/run.sh UNITS",
        needs_build: true,
        units: &[
            drawn("zmq", 20).of(&["router/src/kv_events", "zmtp"]).near(&["scheduler"]),
            drawn("dynamo", 30).of(&["router/src/kv_events", "zmtp"]).near(&["scheduler"]),
        ],
    },
    Step {
        name: "kubernetes",
        lane: Lane::Beside,
        line: "bash integration-tests/kubernetes/run.sh UNITS",
        needs_build: true,
        units: &[
            drawn("manifests", 8).of(&["deploy/kubernetes"]),
            drawn("pods", 22).of(&["deploy/kubernetes"]).near(&["launcher/src"]),
        ],
    },
    Step {
        name: "templates",
        lane: Lane::Beside,
        line: "bash integration-tests/chat_templates/run.sh",
        needs_build: true,
        units: &[drawn("all", 40).of(&["router/src/text/chat_template"])],
    },
    Step {
        name: "images",
        lane: Lane::Beside,
        line: "bash integration-tests/docker.sh",
        needs_build: false,
        units: &[full("all", 700, IMAGE)],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root;

    #[test]
    fn every_module_of_black_box_tests_is_a_unit() {
        let main = std::fs::read_to_string(root().join("integration-tests/tests/it/main.rs")).unwrap();
        let modules = main.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
        let it = STEPS.iter().find(|step| step.name == "it").unwrap();
        let units: Vec<_> = it.units.iter().map(|unit| unit.name).collect();
        assert_eq!(units, modules.collect::<Vec<_>>());
    }

    /// The step must select the whole workspace, because other selections build dependencies with other features.
    #[test]
    fn every_test_in_a_folder_of_tests_is_named() {
        for entry in std::fs::read_dir(root()).unwrap() {
            let tests = std::fs::read_dir(entry.unwrap().path().join("tests"));
            for test in tests.into_iter().flatten().map(|test| test.unwrap().path()) {
                if test.is_dir() && !test.join("main.rs").exists() {
                    continue;
                }
                let test = test.file_name().unwrap().to_str().unwrap();
                let argument = format!("--test {}", test.trim_end_matches(".rs"));
                assert!(STEPS.iter().any(|step| step.line.contains(&argument)), "no step has {argument}");
            }
        }
    }

    #[test]
    fn every_client_is_a_unit() {
        let folder = std::fs::read_dir(root().join("integration-tests/clients")).unwrap();
        let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut clients: Vec<_> = names.filter_map(|name| Some(name.strip_suffix("_client.py")?.to_owned())).collect();
        clients.sort();
        let step = STEPS.iter().find(|step| step.name == "clients").unwrap();
        let mut units: Vec<_> = step.units.iter().map(|unit| unit.name).collect();
        units.sort_unstable();
        assert_eq!(units, clients);
    }

    #[test]
    fn paths_that_units_name_exist() {
        for unit in STEPS.iter().flat_map(|step| step.units) {
            for prefix in unit.of.iter().chain(unit.near).filter(|prefix| !prefix.starts_with('*')) {
                let path = root().join(prefix);
                let folder = path.parent().unwrap();
                let mut entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
                let is_there = entries
                    .any(|entry| entry.to_str().unwrap().starts_with(path.to_str().unwrap().trim_end_matches('/')));
                assert!(is_there, "{prefix}");
            }
        }
    }

    #[test]
    fn units_of_a_step_have_different_names() {
        for step in STEPS {
            let mut names: Vec<_> = step.units.iter().map(|unit| unit.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), step.units.len(), "{}", step.name);
        }
    }
}
