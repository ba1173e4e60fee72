//! Tests that errors of a launch are found before anything is loaded, and tests of the environment that children
//! inherit.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;

use integration_tests::{Finished, Server, ServerBuilder};
use rustix::process::Signal;

use crate::failures::last_error;

/// Runs a launch that must exit with status 2 before it starts a process, and returns its error.
fn refusal(server: ServerBuilder) -> String {
    let finished: Finished = server.spawn().wait();
    assert_eq!(finished.status.code(), Some(2), "{finished:?}");
    let has_child = finished.log.iter().any(|line| line.contains(r#""process":"#));
    assert!(!has_child, "a process was started: {:?}", finished.log);
    let error = last_error(&finished.log);
    assert_eq!(finished.log.iter().filter(|line| line.contains("ERROR")).count(), 1, "{:?}", finished.log);
    error
}

fn demo() -> ServerBuilder {
    Server::builder("demo", "cpu")
}

fn fixture() -> PathBuf {
    checkpoints::folder("tiny-llama-tied")
}

#[test]
fn files_that_flags_name_are_read_before_anything_starts() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &[u8]| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (nowhere, broken) = ("/no/such/file".to_owned(), path("broken.json", b"{"));
    let keys = path("keys", b"\xef\xbb\xbffirst\nsecond key\n");
    for (flag, value, sentence) in [
        ("--api-key-file", &nowhere, "`api_key_file` /no/such/file: No such file"),
        ("--api-key-file", &keys, "/keys, line 2: an API key must consist of visible ASCII characters"),
        ("--chat-template", &nowhere, "`chat_template` /no/such/file cannot be read: No such file"),
        ("--tokenizer-config-path", &nowhere, "`tokenizer_config_path` /no/such/file cannot be read: No such file"),
        ("--tokenizer-config-path", &broken, "`tokenizer_config_path` "),
        (
            "--uds",
            &nowhere,
            "cannot listen on /no/such/file: No such file or directory (os error 2); --uds sets the path",
        ),
    ] {
        let error = refusal(demo().flag(flag, value));
        assert!(error.contains(sentence), "{flag} {value}: {error}");
        assert_eq!(error.matches("No such file").count(), usize::from(*value == nowhere), "{error}");
    }
}

#[test]
fn limits_that_cannot_be_met_are_found_before_weights_are_read() {
    for (flag, value, sentence) in [
        ("--max-total-tokens", "100000", "max_total_tokens is 100000, but the model takes at most 1024"),
        ("--kv-cache-memory", "999TiB", "--kv-cache-memory is 1098.41 TB, but "),
        ("--max-batch-total-tokens", "4000000000", "lower --max-batch-total-tokens"),
        ("--threads", "100000", "--threads is 100000, but this process may use at most "),
        ("--quantize", "fp8", "--quantize is fp8, which is for --device xla-cpu and tpu"),
    ] {
        let error = refusal(demo().flag(flag, value));
        assert!(error.contains(sentence), "{flag} {value}: {error}");
    }
}

#[test]
fn events_that_cannot_be_published_are_named_before_anything_starts() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let events = |rest: &str| format!(r#"{{"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:*"{rest}}}"#);
    let replays = events(&format!(r#", "replay_endpoint": "tcp://{address}""#));
    let error = refusal(demo().flag("--kv-events-config", &replays));
    let expected =
        format!("`replay_endpoint` of `kv_events_config`: cannot listen on {address}: Address already in use");
    assert!(error.contains(&expected), "{error}");
    for (flag, value, sentence) in [
        ("--prefix-caching", "false", "but `prefix_caching` is false"),
        ("--api-key", "one,two", "set `prefix_caching_by_key` to false"),
    ] {
        let error = refusal(demo().flag("--kv-events-config", events("")).flag(flag, value));
        assert!(error.contains(sentence), "{flag} {value}: {error}");
    }
}

#[test]
fn a_model_without_what_it_needs_is_named_before_anything_starts() {
    let tokenizers: [(Option<&[u8]>, &str); 4] = [
        (None, " has no tokenizer.json"),
        (Some(b""), "tokenizer.json is not a tokenizer"),
        (Some(b"{\"version\": \"1.0\""), "tokenizer.json is not a tokenizer"),
        (Some(b"{\"model\": {\"type\": \"Crystal\"}}"), "tokenizer.json is not a tokenizer"),
    ];
    for (tokenizer, sentence) in tokenizers {
        let directory = tempfile::tempdir().unwrap();
        for name in ["config.json", "model.safetensors"] {
            fs::copy(fixture().join(name), directory.path().join(name)).unwrap();
        }
        if let Some(text) = tokenizer {
            fs::write(directory.path().join("tokenizer.json"), text).unwrap();
        }
        let error = refusal(Server::builder(directory.path().to_str().unwrap(), "cpu"));
        assert!(error.contains(sentence) && error.contains(directory.path().to_str().unwrap()), "{error}");
    }
    let error = refusal(Server::builder("models/y.safetensors", "cpu").env("HF_ENDPOINT", "http://127.0.0.1:1"));
    assert!(error.contains("is the name of a file that does not exist; pass the directory"), "{error}");
}

#[test]
fn an_architecture_that_is_not_supported_is_told_once_and_in_short() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("config.json"), r#"{"architectures":["MysteryForCausalLM"]}"#).unwrap();
    fs::write(directory.path().join("model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
    let error = refusal(Server::builder(directory.path().to_str().unwrap(), "cpu").flag("--num-shard", 2));
    assert!(error.contains("MysteryForCausalLM is not supported") && error.len() < 150, "{error}");
}

#[test]
fn a_taken_port_says_which_flag_chooses_another() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let error = refusal(demo().flag("--hostname", "127.0.0.1").flag("--port", port));
    assert!(error.contains("choose another port with --port"), "{error}");
    assert_eq!(error.matches("in use").count(), 1, "{error}");
}

#[test]
fn children_inherit_no_secrets() {
    let secrets = [("HF_TOKEN", "hf_1"), ("HUGGING_FACE_HUB_TOKEN", "hf_2"), ("HF_API_TOKEN", "hf_3")];
    let server = secrets.iter().fold(Server::mock(), |server, (name, value)| server.env(name, value));
    let server = server.env("API_KEY", "sesame").env("NGROK_AUTHTOKEN", "tunnel").start();
    let environment = |subcommand| {
        let environment = fs::read(format!("/proc/{}/environ", server.child(subcommand))).unwrap();
        String::from_utf8(environment).unwrap()
    };
    for (subcommand, has_key) in [("shard", false), ("router", true)] {
        let environment = environment(subcommand);
        let found: Vec<&str> =
            ["hf_1", "hf_2", "hf_3", "tunnel"].into_iter().filter(|s| environment.contains(s)).collect();
        assert!(found.is_empty(), "{subcommand} has {found:?}");
        assert_eq!(environment.contains("sesame"), has_key, "{subcommand}");
    }
    server.signal(Signal::TERM);
    assert_eq!(server.wait().status.code(), Some(0));
}
