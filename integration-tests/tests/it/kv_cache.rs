//! Tests of `--kv-cache-dtype`: the server gives the same answer to a question with a smaller type, and refuses
//! unsupported types with a clear message.

use std::process::Command;

use integration_tests::{Finished, Server, executable};
use serde_json::Value;
use test_support::output;

const PROMPT: &str = "<|user|>What is 3 + 4?<|assistant|>";

/// Returns a field of the only log line with this message.
fn field(finished: &Finished, message: &str, field: &str) -> String {
    let lines = finished.log.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let values: Vec<String> = lines
        .filter(|line| line["message"] == message)
        .map(|line| line[field].as_str().expect("the field is text").to_owned())
        .collect();
    let [value] = &values[..] else { panic!("{field} of {message:?} is {values:?}") };
    value.clone()
}

/// Returns the answer of a server with this type of KV cache, and the type that its shard logs.
fn answer(kv_cache_dtype: &str) -> (String, String) {
    let server = Server::builder("demo", "cpu").flag("--kv-cache-dtype", kv_cache_dtype).start();
    let text = server.client().generate(PROMPT, 20);
    let finished = server.stop();
    assert_eq!(finished.status.code(), Some(0), "{:#?}", finished.log);
    (text, field(&finished, "cpu kernels", "kv_cache_dtype"))
}

#[test]
fn eight_bits_are_enough_for_a_sum() {
    let (text, kept) = answer("f32");
    assert_eq!((text.as_str(), kept.as_str()), ("3 + 4 is 7.", "f32"));
    assert_eq!(answer("int8"), (text, "int8".to_owned()));
}

#[test]
fn the_environment_names_it_too() {
    let server = Server::builder("demo", "cpu").env("KV_CACHE_DTYPE", "bf16").start();
    assert_eq!(server.client().generate(PROMPT, 20), "3 + 4 is 7.");
    assert_eq!(field(&server.stop(), "cpu kernels", "kv_cache_dtype"), "bf16");
}

#[test]
fn an_unknown_cache_type_is_refused_with_the_allowed_ones() {
    let output = output(Command::new(executable()).args(["--kv-cache-dtype", "fp8_e4m3fn"]));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = String::from_utf8(output.stderr).expect("errors are text");
    let sentence = "allowed are auto, f32, f16, bf16 and int8, which takes about as little memory as fp8";
    assert!(text.contains("fp8_e4m3fn") && text.contains(sentence), "{text}");
}

#[test]
fn other_devices_refuse_it() {
    let finished = Server::mock().flag("--kv-cache-dtype", "int8").spawn().wait();
    assert_eq!(finished.status.code(), Some(2), "{finished:?}");
    let sentence = "--kv-cache-dtype is int8, which is for --device cpu; on mock only auto is allowed";
    assert!(finished.log.join("\n").contains(sentence), "{:?}", finished.log);
}
