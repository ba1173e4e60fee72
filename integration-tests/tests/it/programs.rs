//! Tests of compiled programs and their cache, on XLA-CPU: a program is compiled only once, and a damaged cache never
//! prevents a server from serving.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use integration_tests::{Client, Finished, Server, ServerBuilder, executable, is_plugin_there};
use serde_json::{Value, json};
use tempfile::TempDir;
use test_support::{join_scoped, output};

/// Two servers that started at the same time with one empty cache, and the resulting cache.
struct ColdStart {
    cache: PathBuf,
    finished: [Finished; 2],
}

/// A log line about a program. `is_new` is true if the program was compiled, and false if it came from the cache.
struct Line {
    program: String,
    is_new: bool,
}

/// True if the plugin that these tests need is on this machine; without it they are skipped.
fn is_testable() -> bool {
    is_plugin_there("cpu")
}

/// Returns the builder of a server with few programs, which uses this program cache.
fn small(cache: &Path) -> ServerBuilder {
    Server::builder("demo", "xla-cpu")
        .flag("--hostname", "127.0.0.1")
        .flag("--max-batch-size", 2)
        .flag("--max-total-tokens", 64)
        .flag("--max-batch-prefill-tokens", 64)
        .flag("--program-cache", cache.display())
}

/// Returns the cold start that all tests share. The first call makes it.
fn cold_start() -> &'static ColdStart {
    static COLD_START: OnceLock<ColdStart> = OnceLock::new();
    COLD_START.get_or_init(|| {
        // A static is never dropped, so a temporary folder would never be removed. Instead the next run clears this
        // folder.
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cold-programs");
        let _ = fs::remove_dir_all(&cache);
        let finished = std::thread::scope(|scope| {
            let start = || serve_and_stop(small(&cache).start());
            [scope.spawn(start), scope.spawn(start)].map(|thread| join_scoped(thread, "a server that compiles"))
        });
        ColdStart { cache, finished }
    })
}

/// Returns a copy of the cache after the cold start.
fn warm_cache() -> TempDir {
    let cache = tempfile::tempdir().expect("a temporary directory");
    for entry in entries(&cold_start().cache) {
        let name = entry.file_name().expect("an entry is a file");
        fs::copy(&entry, cache.path().join(name)).expect("entries can be copied");
    }
    cache
}

fn entries(cache: &Path) -> Vec<PathBuf> {
    let listing = fs::read_dir(cache).expect("the cache is a folder");
    let paths = listing.map(|entry| entry.expect("the cache can be listed").path());
    let mut entries: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "executable")).collect();
    entries.sort();
    entries
}

/// Serves one request, stops the server, and checks that metrics and log count the same number of compiled programs.
fn serve_and_stop(server: Server) -> Finished {
    let client = server.client();
    assert!(!client.generate("Once upon a time", 5).is_empty());
    let [warmup, serving] = num_compiled(&client);
    let finished = server.stop();
    assert_eq!(finished.status.code(), Some(0), "{:#?}", finished.log);
    assert_eq!([warmup, serving], [num_new(&finished) as f64, 0.0]);
    finished
}

/// Returns the numbers of programs that were compiled during warm-up and while serving.
fn num_compiled(client: &Client) -> [f64; 2] {
    let metrics = client.metrics();
    ["warmup", "serving"].map(|phase| metrics.value(&format!("hilo_programs_compiled_total{{phase=\"{phase}\"}}")))
}

fn log_lines(finished: &Finished) -> impl Iterator<Item = Value> {
    finished.log.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok())
}

/// Returns the log lines about programs, in the order of the log.
fn programs(finished: &Finished) -> Vec<Line> {
    let lines = log_lines(finished).filter(|line| line["message"] == "program");
    let line = |line: Value| Line {
        program: line["program"].as_str().expect("it has a name").to_owned(),
        is_new: match line["from"].as_str() {
            Some("compiler") => true,
            Some("cache") => false,
            other => panic!("a program from {other:?}"),
        },
    };
    lines.map(line).collect()
}

fn num_new(finished: &Finished) -> usize {
    programs(finished).iter().filter(|line| line.is_new).count()
}

/// Returns the messages of all warnings in the log.
fn warnings(finished: &Finished) -> Vec<String> {
    let lines = log_lines(finished).filter(|line| line["level"] == "WARN");
    lines.map(|line| line["message"].as_str().expect("log lines have a message").to_owned()).collect()
}

#[test]
fn two_starts_at_once_compile_each_program_once() {
    if !is_testable() {
        return;
    }
    let ColdStart { cache, finished } = cold_start();
    let mut new = Vec::new();
    for finished in finished {
        assert_eq!(warnings(finished), [""; 0]);
        new.extend(programs(finished).into_iter().filter(|line| line.is_new).map(|line| line.program));
    }
    let names: BTreeSet<String> = programs(&finished[0]).into_iter().map(|line| line.program).collect();
    assert!(names.len() > 5, "{names:?}");
    assert_eq!(new.len(), names.len(), "compiled: {new:?}");
    assert_eq!(new.into_iter().collect::<BTreeSet<_>>(), names);
    assert_eq!(entries(cache).len(), names.len());
}

#[test]
fn a_start_from_a_warm_cache_compiles_nothing() {
    if !is_testable() {
        return;
    }
    let cache = warm_cache();
    let finished = serve_and_stop(small(cache.path()).start());
    assert_eq!(num_new(&finished), 0);
    assert_eq!(programs(&finished).len(), entries(cache.path()).len());
}

#[test]
fn a_damaged_entry_is_a_warning_and_is_compiled_anew() {
    if !is_testable() {
        return;
    }
    let cache = warm_cache();
    let entries = entries(cache.path());
    let [flipped, cut, empty, mixed_up] = [&entries[0], &entries[1], &entries[2], &entries[3]];
    let mut bytes = fs::read(flipped).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 8].iter_mut().for_each(|byte| *byte = !*byte);
    fs::write(flipped, bytes).unwrap();
    let bytes = fs::read(cut).unwrap();
    fs::write(cut, &bytes[..bytes.len() / 2]).unwrap();
    fs::write(empty, "").unwrap();
    fs::copy(&entries[4], mixed_up).unwrap();

    let finished = serve_and_stop(small(cache.path()).start());
    assert_eq!(num_new(&finished), 4);
    let warnings = warnings(&finished);
    assert_eq!(warnings.len(), 4, "{warnings:#?}");
    assert!(warnings.iter().all(|text| text.contains("is compiled again")), "{warnings:#?}");
    assert_eq!(num_new(&serve_and_stop(small(cache.path()).start())), 0, "the cache was not mended");
}

#[test]
fn a_cache_that_cannot_be_written_is_a_warning() {
    if !is_testable() {
        return;
    }
    // The path is below a file, because not even root can create a folder there.
    let file = tempfile::NamedTempFile::new().unwrap();
    let finished = serve_and_stop(small(&file.path().join("programs")).start());
    assert_eq!(num_new(&finished), programs(&finished).len());
    let warnings = warnings(&finished);
    assert!(!warnings.is_empty() && warnings.iter().all(|text| text.contains("not cached")), "{warnings:#?}");
    assert_eq!(fs::read(file.path()).unwrap(), b"");
}

#[test]
fn a_cache_that_others_can_write_is_not_used() {
    if !is_testable() {
        return;
    }
    let cache = warm_cache();
    let list = || fs::read_dir(cache.path()).unwrap().map(|entry| entry.unwrap().path()).collect::<BTreeSet<_>>();
    let before = list();
    fs::set_permissions(cache.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let finished = serve_and_stop(small(cache.path()).start());
    assert_eq!(num_new(&finished), programs(&finished).len(), "a program was loaded that others can write");
    assert_eq!(warnings(&finished), ["compiled programs are not cached"]);
    let reason = log_lines(&finished).find(|line| line["level"] == "WARN").expect("a warning")["error"].to_string();
    assert!(reason.contains("has mode 0777: other users can write it") && reason.contains("chmod go-w"), "{reason}");
    assert_eq!(list(), before);
}

/// Returns the body of one of many different requests: with short prompts of different lengths, several kinds of
/// samplers, and with and without details.
fn mixed_body(number: usize) -> Value {
    let inputs = "a ".repeat(number * 2 % 29).trim_end().to_owned() + ".";
    let mut parameters = json!({"max_new_tokens": 1 + number % 3});
    let variants = [
        json!({}),
        json!({"do_sample": true, "seed": 3}),
        json!({"temperature": 0.7, "top_k": 5, "top_p": 0.9, "typical_p": 0.9, "min_p": 0.01}),
        json!({"repetition_penalty": 1.2, "presence_penalty": 0.5, "min_new_tokens": 1}),
        json!({"details": true, "top_n_tokens": 5}),
        json!({"details": true, "decoder_input_details": true}),
        json!({"details": true, "decoder_input_details": true, "top_n_tokens": 1, "do_sample": true, "frequency_penalty": 0.5}),
    ];
    for (name, value) in variants[number % variants.len()].as_object().expect("variants are objects") {
        parameters[name] = value.clone();
    }
    json!({"inputs": inputs, "parameters": parameters})
}

fn post_all(client: &Client, numbers: impl Iterator<Item = usize>) {
    for number in numbers {
        let body = mixed_body(number);
        let response = client.post("/generate", &body);
        assert_eq!(response.status, 200, "{body}: {}", response.text);
    }
}

#[test]
fn nothing_is_compiled_while_serving() {
    if !is_testable() {
        return;
    }
    let cache = warm_cache();
    let server = small(cache.path()).start();
    let client = server.client();
    post_all(&client, 0..30);
    // The requests of two clients at a time share steps, whose sizes differ from those of one row.
    std::thread::scope(|scope| {
        for start in [0, 15] {
            let client = &client;
            scope.spawn(move || post_all(client, start..start + 15));
        }
    });
    assert_eq!(num_compiled(&client), [0.0, 0.0]);
    let finished = server.stop();
    assert_eq!(warnings(&finished), [""; 0]);
    assert_eq!(num_new(&finished), 0);
    assert_eq!(programs(&finished).len(), entries(cache.path()).len());
}

#[test]
fn plugins_are_quiet_unless_the_user_says_otherwise() {
    if !is_testable() {
        return;
    }
    let variable = |server: &Server| {
        let environment = fs::read(format!("/proc/{}/environ", server.child("shard"))).unwrap();
        let variables = String::from_utf8(environment).unwrap();
        let value = variables.split('\0').find_map(|variable| variable.strip_prefix("TF_CPP_MIN_LOG_LEVEL="));
        value.map(str::to_owned)
    };
    let cache = warm_cache();
    let server = small(cache.path()).start();
    assert_eq!(variable(&server).as_deref(), Some("1"));
    let finished = serve_and_stop(server);
    // Anything that the plugin writes to stderr would be a warning.
    assert_eq!(warnings(&finished), [""; 0]);
    let server = small(cache.path()).env("TF_CPP_MIN_LOG_LEVEL", 0).start();
    assert_eq!(variable(&server).as_deref(), Some("0"));
}

#[test]
fn a_server_uses_the_programs_of_compile() {
    if !is_testable() {
        return;
    }
    let cache = tempfile::tempdir().expect("a temporary directory");
    let mut compile = Command::new(executable());
    compile.args(["compile", "--model-id", "demo", "--topology", "xla-cpu", "--output"]).arg(cache.path());
    compile.args(["--max-batch-size", "2", "--max-total-tokens", "64", "--max-batch-prefill-tokens", "64"]);
    let output = output(&mut compile);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let finished = serve_and_stop(small(cache.path()).start());
    assert_eq!(num_new(&finished), 0);
    assert_eq!(programs(&finished).len(), entries(cache.path()).len());
}
