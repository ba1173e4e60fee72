//! Tests that a model that is split over several ranks gives the same text as on one rank. On the CPU the ranks are
//! processes; with a plugin they are devices of one process. `faults.rs` tests the failure of a shard.

use integration_tests::{Server, is_plugin_there};

const PROMPTS: [&str; 3] = ["Once upon a time", "<|user|>What is 3 + 4?<|assistant|>", "Lily has a"];

fn texts(server: &Server) -> Vec<String> {
    PROMPTS.iter().map(|prompt| server.client().generate(prompt, 40)).collect()
}

fn whole() -> Vec<String> {
    texts(&Server::builder("demo", "cpu").start())
}

#[test]
fn processes_on_the_cpu_say_what_one_says() {
    let expected = whole();
    // The model has 6 query heads. With 6 ranks each rank has one of them, and 3 ranks share a KV head.
    for num_shard in [2, 6] {
        let server = Server::builder("demo", "cpu").flag("--num-shard", num_shard).start();
        // The launcher's children are the shards and the router.
        assert_eq!(server.descendants().len(), num_shard + 1);
        assert_eq!(texts(&server), expected, "{num_shard} shards");
        assert_eq!(server.stop().status.code(), Some(0));
    }
}

#[test]
fn devices_of_one_process_say_what_one_says() {
    if !is_plugin_there("cpu") {
        return;
    }
    let builder = Server::builder("demo", "xla-cpu").flag("--devices-per-shard", 2);
    let server = builder.flag("--max-batch-size", 1).flag("--max-total-tokens", 128).start();
    assert_eq!(texts(&server), whole());
}

#[test]
fn both_modes_of_the_window_say_the_same() {
    let server = Server::demo().flag("--step-window", 1).start();
    assert_eq!(texts(&server), texts(&Server::demo().start()));
}

#[test]
fn a_count_that_is_not_possible_lists_those_that_are() {
    let finished = Server::builder("demo", "cpu").flag("--num-shard", 4).spawn().wait();
    assert_eq!(finished.status.code(), Some(2), "{:?}", finished.log);
    let log = finished.log.join("\n");
    assert!(log.contains("num_attention_heads is") && log.contains("--num-shard may be 1, 2, 6"), "{log}");
}
