//! Tests of the keys of Gemma 4.

use super::*;
use crate::graph::StateBytes;

const SIZES: &str = r#""vocab_size": 16, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]"#;

fn graph(more: &str) -> Result<String, String> {
    let config = Config::parse(format!("{{{SIZES}{more}}}").as_bytes()).unwrap();
    let model = build(&config, FloatType::Bf16, 1).map_err(|error| error.to_string())?;
    Ok(model.decoder.to_string())
}

fn count(graph: &str, part: &str) -> usize {
    graph.lines().filter(|line| line.contains(part)).count()
}

#[test]
fn both_forms_of_the_sizes_of_layers_agree() {
    let published = r#", "global_head_dim": 16, "num_global_key_value_heads": 1, "attention_k_eq_v": true"#;
    let of_layer = r#"{"head_dim": 16, "num_key_value_heads": 1}"#;
    let written = format!(r#", "attention_k_eq_v": true, "per_layer_config": {{"01": {of_layer}, "3": {of_layer}}}"#);
    assert_eq!(graph(published), graph(&written));
    let built = graph(published).unwrap();
    assert_eq!((count(&built, "k_proj.weight"), count(&built, "v_proj.weight")), (4, 2), "{built}");
    assert_eq!(count(&built, "[tokens, 4, 16] float32"), 8, "{built}");
    let default = graph(r#", "num_global_key_value_heads": 1, "head_dim": 512, "global_head_dim": 512"#);
    assert_eq!(graph(r#", "head_dim": 512"#), default);
}

#[test]
fn layers_share_the_states_of_their_kind() {
    let built = graph(r#", "num_kv_shared_layers": 2, "use_double_wide_mlp": true, "global_head_dim": 16"#).unwrap();
    let attention: Vec<&str> = built.lines().filter(|line| line.contains("attention %")).collect();
    let states = ["keys=1 values=2", "keys=3 values=4", "keys=1 values=2", "keys=3 values=4"];
    assert!(attention.iter().zip(states).all(|(line, states)| line.contains(states)), "{built}");
    assert_eq!((count(&built, "paged_attention"), count(&built, "shared_attention")), (2, 2), "{built}");
    assert_eq!(count(&built, "k_proj.weight"), 2, "{built}");
    assert_eq!((count(&built, "[24, 32]"), count(&built, "[48, 32]")), (4, 4), "{built}");
}

/// Layers that share have no cache, and each other layer has that of its own heads.
#[test]
fn a_token_takes_the_memory_of_its_layers() {
    let more = r#""num_kv_shared_layers": 2, "global_head_dim": 16, "num_global_key_value_heads": 1,
        "attention_k_eq_v": true"#;
    let config = Config::parse(format!("{{{SIZES}, {more}}}").as_bytes()).unwrap();
    let model = build(&config, FloatType::Bf16, 1).unwrap();
    let bytes = StateBytes::of(model.decoder.states(), |len| 2 * len as u64);
    assert_eq!(bytes.per_token, 2 * 2 * (2 * 8 + 16));
}

#[test]
fn the_last_layer_has_no_window() {
    let changed =
        r#", "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]"#;
    assert_eq!(graph(changed), graph(""));
    let by_default = graph(r#", "layer_types": null, "num_hidden_layers": 7"#).unwrap();
    assert_eq!(count(&by_default, "scale=1 window=512"), 5, "{by_default}");
}

#[test]
fn images_change_nothing() {
    assert_eq!(graph(r#", "use_bidirectional_attention": "vision""#), graph(""));
}

#[test]
fn other_values_are_refused_by_name() {
    let shared = "expected so few that each kind of layer occurs before these layers";
    let cases = [
        (
            r#", "use_bidirectional_attention": "all""#,
            r#"config.json: use_bidirectional_attention is "all"; only "vision" is supported"#.to_owned(),
        ),
        (r#", "num_kv_shared_layers": 3"#, format!("config.json: num_kv_shared_layers is 3, {shared}")),
        (r#", "num_kv_shared_layers": 5"#, format!("config.json: num_kv_shared_layers is 5, {shared}")),
        (
            r#", "per_layer_config": {"1": {"sliding_window": 3}}"#,
            "config.json: per_layer_config.1.sliding_window is 3; only null is supported".to_owned(),
        ),
        (
            r#", "per_layer_config": {"1": {"head_dim": 0}}"#,
            "config.json: per_layer_config.1.head_dim is 0, expected a positive integer up to 65536".to_owned(),
        ),
        (
            r#", "per_layer_config": {"4": {"head_dim": 8}}"#,
            "config.json: per_layer_config.4 is {\"head_dim\":8}, expected an object at the index of one of 4 layers"
                .to_owned(),
        ),
        (r#", "enable_moe_block": true"#, "config.json has no top_k_experts".to_owned()),
        (
            r#", "rope_parameters": {"full_attention": {"rope_type": "proportional"}}"#,
            "config.json has no rope_parameters.sliding_attention".to_owned(),
        ),
        (
            r#", "sliding_window_pattern": 3"#,
            "config.json: sliding_window_pattern is 3; only null is supported".to_owned(),
        ),
    ];
    for (more, expected) in cases {
        assert_eq!(graph(more).unwrap_err(), expected);
    }
}

#[test]
fn the_12b_has_no_experts() {
    let json = format!(r#"{{{SIZES}, "enable_moe_block": true}}"#);
    let error = build_unified(&Config::parse(json.as_bytes()).unwrap(), FloatType::F32, 1).unwrap_err().to_string();
    insta::assert_snapshot!(error, @"config.json: enable_moe_block is true; only false is supported");
}
