//! Checks the dependencies between crates, and rules about the code inside them. For example, the router must not
//! depend on the shard, and the scheduler must be a value.

use std::process::Command;

use crate::tree::{CRATES, SourceFile, read, root, rust_files};

/// For each crate, the other crates of this workspace that it may use, apart from tests and build scripts.
const MAY_USE: [(&str, &[&str]); 30] = [
    ("proto", &[]),
    ("test-support", &[]),
    ("build-id", &[]),
    ("machine", &[]),
    ("liveness", &[]),
    ("model-files", &[]),
    ("telemetry", &[]),
    ("endpoint", &["proto"]),
    ("sockets", &["endpoint"]),
    ("shard-client", &["proto", "endpoint", "liveness", "sockets"]),
    ("fake-shard", &["proto", "endpoint", "liveness", "sockets"]),
    ("zmtp", &[]),
    ("collectives", &["liveness"]),
    ("numbers", &[]),
    ("kernels", &["numbers"]),
    ("pjrt", &[]),
    ("devices", &[]),
    ("model", &["proto", "model-files", "numbers"]),
    ("backend", &["proto", "machine", "model", "collectives", "numbers"]),
    ("cpu", &["proto", "model", "backend", "kernels", "numbers"]),
    ("xla", &["proto", "model", "backend", "numbers", "collectives", "devices", "pjrt"]),
    (
        "shard",
        &[
            "proto",
            "build-id",
            "liveness",
            "model-files",
            "telemetry",
            "endpoint",
            "collectives",
            "numbers",
            "kernels",
            "pjrt",
            "devices",
            "model",
            "backend",
            "cpu",
            "xla",
        ],
    ),
    ("scheduler", &["proto"]),
    (
        "router",
        &[
            "proto",
            "build-id",
            "machine",
            "liveness",
            "model-files",
            "telemetry",
            "endpoint",
            "sockets",
            "shard-client",
            "zmtp",
            "scheduler",
        ],
    ),
    (
        "launcher",
        &["proto", "build-id", "liveness", "model-files", "telemetry", "endpoint", "devices", "router", "shard"],
    ),
    ("text-generation-bench", &[]),
    ("integration-tests", &["proto", "test-support", "checkpoints"]),
    ("checkpoints", &[]),
    ("matrix", &[]),
    ("xtask", &["matrix"]),
];

#[test]
fn crates_use_only_what_they_may() {
    for (name, may_use) in MAY_USE {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["tree", "--offline", "--edges", "normal", "--depth", "1", "--prefix", "none", "--format", "{p}"]);
        let tree = test_support::output(cargo.args(["--package", name]).current_dir(root()));
        assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
        let tree = String::from_utf8(tree.stdout).expect("cargo tree is text");
        let used = tree.lines().skip(1).filter_map(|line| line.split(' ').next());
        let ours: Vec<&str> = used.filter(|used| MAY_USE.iter().any(|(ours, _)| ours == used)).collect();
        for used in ours {
            assert!(may_use.contains(&used), "{name} uses {used}");
        }
    }
}

/// Returns the lines of code that contain one of the words. Tests and comments are left out.
fn lines_that_use(files: &[SourceFile], words: &[&str]) -> Vec<String> {
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let uses = |line: &&str| words.iter().any(|word| line.contains(word));
    let mut found = Vec::new();
    for file in files.iter().filter(|file| !file.is_test()) {
        let lines = file.product().lines().filter(is_code).filter(uses);
        found.extend(lines.map(|line| format!("{}: {line}", file.path.display())));
    }
    found
}

/// The scheduler's manifest has no async crate. Clocks, locks, threads and sockets are in the standard library, so this
/// test looks for them in the code.
#[test]
fn the_scheduler_is_a_value() {
    let words = ["Instant::now", "SystemTime", "Mutex", "std::thread", "std::net", "std::os"];
    assert_eq!(lines_that_use(&rust_files("scheduler/src"), &words), Vec::<String>::new());
}

#[test]
fn errors_become_http_in_one_file() {
    let files: Vec<_> = rust_files("router/src").into_iter().filter(|file| !file.path.ends_with("error.rs")).collect();
    let words = [
        "StatusCode::BAD",
        "StatusCode::UNPROCESSABLE",
        "StatusCode::TOO_MANY",
        "StatusCode::INTERNAL",
        "StatusCode::FAILED_DEPENDENCY",
        "StatusCode::SERVICE_UNAVAILABLE",
    ];
    let found = lines_that_use(&files, &words);
    assert_eq!(found, Vec::<String>::new());
}

/// The folders of crates that may have unsafe code. Of `model` it is one file.
const MAY_BE_UNSAFE: [&str; 4] = ["collectives", "kernels", "model", "pjrt"];

#[test]
fn unsafe_code_has_its_rooms() {
    let unsafe_block = ["unsafe", " {"].concat();
    for folder in CRATES.iter().filter(|folder| !MAY_BE_UNSAFE.contains(folder)) {
        assert_eq!(lines_that_use(&rust_files(folder), &[&unsafe_block]), Vec::<String>::new());
    }
    let model: Vec<_> =
        rust_files("model").into_iter().filter(|file| !file.path.ends_with("weights/mmap.rs")).collect();
    assert_eq!(lines_that_use(&model, &[&unsafe_block]), Vec::<String>::new());
    for name in ["router/src/lib.rs", "launcher/src/main.rs", "bench/src/main.rs"] {
        assert!(read(name).contains("#![forbid(unsafe_code)]"), "{name} does not forbid unsafe code");
    }
}
