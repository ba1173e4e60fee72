//! Tests of `fit` and `compile` as a user types them. They run the TPU's own compiler, but need no TPU.
//!
//! The tests need libtpu. Without it they print that they are skipped; with `HILO_REQUIRE_PLUGINS=1` they fail instead.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use integration_tests::{executable, is_plugin_there};
use serde_json::{Value, json};
use test_support::output;

const PROGRAMS: &str = "prefill_1x32,decode_2,sample_2_greedy";

fn fixture(name: &str) -> PathBuf {
    checkpoints::tracked(name)
}

/// Runs the launcher with these arguments and this model. Without libtpu, prints that the test is skipped and returns
/// `None`.
fn run(arguments: &[&str], model: &Path) -> Option<Output> {
    if !is_plugin_there("tpu") {
        return None;
    }
    Some(output(Command::new(executable()).args(arguments).arg("--model-id").arg(model)))
}

fn error(arguments: &[&str], model: &Path) -> Option<String> {
    let output = run(arguments, model)?;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    Some(String::from_utf8(output.stderr).expect("errors are text").trim().to_owned())
}

/// Returns the rows of the table of programs: the name of the program, and the other cells.
fn table(output: &Output) -> Vec<(String, Vec<String>)> {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout.clone()).expect("tables are text");
    let rows = text.lines().skip_while(|line| !line.starts_with("PROGRAM")).skip(1);
    let cells =
        |line: &str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect();
    rows.map(cells).map(|cells: Vec<String>| (cells[0].clone(), cells[1..].to_vec())).collect()
}

#[test]
fn programs_are_compiled_once_for_all_chips_of_a_slice() {
    let cache = tempfile::tempdir().expect("a temporary directory");
    let output = cache.path().display().to_string();
    let arguments =
        ["compile", "--topology", "v5e:2x2", "--output", &output, "--programs", PROGRAMS, "--dtype", "bfloat16"];
    let arguments = [&arguments[..], &["--max-batch-size", "2", "--max-total-tokens", "64"]].concat();
    // The model has 4 query heads, 4 KV heads and a vocabulary of 256 tokens, so each of the 4 chips has a quarter of
    // each.
    let model = checkpoints::folder("tiny-llama-tied");
    let Some(first) = run(&arguments, &model) else { return };
    let rows = table(&first);
    assert_eq!(rows.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), PROGRAMS.split(',').collect::<Vec<_>>());
    for (name, cells) in &rows {
        // A program of the model has two collectives for each of its two layers and one for the embedding. A program of
        // a sampler has one, which collects the logits.
        let collectives = if name.starts_with("sample") { "1" } else { "5" };
        assert_eq!(cells.last().map(String::as_str), Some(collectives), "{name}: {cells:?}");
    }
    let entries = || std::fs::read_dir(cache.path()).expect("the folder was made").flatten();
    let is_executable = |path: &Path| path.extension().is_some_and(|extension| extension == "executable");
    assert_eq!(entries().filter(|entry| is_executable(&entry.path())).count(), 3);
    let second = table(&run(&arguments, &model).expect("libtpu is there"));
    assert!(second.iter().all(|(_, cells)| cells[1] == "cached"), "{second:?}");
}

/// Writes the configuration of a tiny model into `folder`, with the widths multiplied by eight so that eight chips can
/// share its heads.
fn widened(config: &Path, folder: &Path) {
    const WIDTHS: [&str; 15] = [
        "d_model",
        "ffn_hidden_size",
        "hidden_size",
        "intermediate_size",
        "moe_intermediate_size",
        "n_embd",
        "n_head",
        "n_heads",
        "n_inner",
        "num_attention_heads",
        "num_experts",
        "num_key_value_heads",
        "num_kv_heads",
        "num_local_experts",
        "shared_expert_intermediate_size",
    ];
    let json = std::fs::read(config).expect("there is a config.json");
    let mut config: Value = serde_json::from_slice(&json).expect("config.json is JSON");
    let has_text = config.get("text_config").is_some();
    let text = if has_text { &mut config["text_config"] } else { &mut config };
    for key in WIDTHS {
        // A width of 1, such as a single KV head, is not multiplied: every chip has a copy.
        if let Some(width) = text[key].as_u64().filter(|width| *width > 1) {
            text[key] = json!(width * 8);
        }
    }
    std::fs::write(folder.join("config.json"), config.to_string()).expect("write config.json");
}

#[test]
fn decode_programs_of_families_compile_for_eight_chips() {
    const SAMPLE: [&str; 3] = ["falcon-multi-query", "gemma2", "qwen3-moe"];
    let asked = std::env::var("HILO_TEST_FAMILY").ok();
    let families = std::fs::read_dir(fixture("families")).expect("there are families");
    let mut names: Vec<String> =
        families.flatten().map(|family| family.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names.retain(|name| match &asked {
        Some(part) => name.contains(part),
        None => SAMPLE.contains(&name.as_str()),
    });
    assert!(asked.is_some() || names.len() == SAMPLE.len(), "there are only {names:?}");
    for name in names {
        let folder = tempfile::tempdir().expect("a temporary directory");
        widened(&fixture("families").join(&name).join("config.json"), folder.path());
        let output = folder.path().join("programs").display().to_string();
        let arguments = ["compile", "--topology", "v6e:2x4", "--output", &output, "--programs", "decode_2"];
        let arguments =
            [&arguments[..], &["--dtype", "bfloat16"], &["--max-batch-size", "2", "--max-total-tokens", "64"]];
        let Some(output) = run(&arguments.concat(), folder.path()) else { return };
        let rows = table(&output);
        assert_eq!(rows.len(), 1, "{name}: {rows:?}");
        assert!(rows[0].1.last().is_some_and(|count| count != "0"), "{name}: no collectives: {rows:?}");
    }
}

/// Published shapes by the names of models, cut to a layer of each kind: the tiny checkpoint whose config.json is
/// changed, the slice, and the changes.
fn shapes() -> BTreeMap<String, Value> {
    let json = std::fs::read(fixture("shapes.json")).expect("there are shapes");
    serde_json::from_slice(&json).expect("shapes are an object")
}

/// Returns the config.json in a folder of `fixtures`.
fn config_in(folder: &str) -> Value {
    let json = std::fs::read(fixture(folder).join("config.json")).expect("there is a config.json");
    serde_json::from_slice(&json).expect("config.json is JSON")
}

/// Returns the path in `fixtures` of the tiny checkpoint that a shape changes.
fn checkpoint(shape: &Value) -> String {
    format!("families/{}", shape["fixture"].as_str().expect("a fixture"))
}

/// Returns the paths in `fixtures` of all folders in a folder.
fn folders_in(folder: &str) -> Vec<String> {
    let folders = std::fs::read_dir(fixture(folder)).expect("there are folders").flatten();
    folders.map(|entry| format!("{folder}/{}", entry.file_name().to_string_lossy())).collect()
}

/// Changes `config` as RFC 7396 says: objects are merged, and a null removes its key.
fn merge(config: &mut Value, changes: &Value) {
    let (Value::Object(keys), Value::Object(changes)) = (&mut *config, changes) else {
        changes.clone_into(config);
        return;
    };
    for (key, change) in changes {
        if change.is_null() {
            keys.remove(key);
        } else {
            merge(keys.entry(key).or_insert_with(|| json!({})), change);
        }
    }
}

/// Writes the config.json of a published shape into `folder`.
fn write_shape(shape: &Value, folder: &Path) {
    let mut config = config_in(&checkpoint(shape));
    let has_text = config.get("text_config").is_some();
    merge(if has_text { &mut config["text_config"] } else { &mut config }, &shape["changes"]);
    std::fs::write(folder.join("config.json"), config.to_string()).expect("write config.json");
}

/// K-EXAONE's architecture has two names, which differ in their case.
#[test]
fn every_architecture_has_a_shape() {
    let architecture = |folder: &str| config_in(folder)["architectures"][0].to_string().to_lowercase();
    let changed = shapes().values().map(checkpoint).collect();
    let shaped: BTreeSet<_> = [changed, folders_in("configs")].concat().iter().map(|path| architecture(path)).collect();
    for family in folders_in("families") {
        assert!(shaped.contains(&architecture(&family)), "no shape has the architecture of {family}");
    }
}

/// The decode programs of published shapes read at most 1.2 times the least possible. `HILO_TEST_SHAPE=Gemma` checks
/// the shapes whose names contain this part, and `HILO_TEST_SHAPE=` checks all.
#[test]
fn decode_programs_of_published_shapes_read_little() {
    const SAMPLE: [&str; 2] = ["Granite-3.1-3B-A800M", "Youtu-LLM-2B"];
    let asked = std::env::var("HILO_TEST_SHAPE").ok();
    let mut shapes = shapes();
    shapes.retain(|name, _| match &asked {
        Some(part) => name.contains(part),
        None => SAMPLE.contains(&name.as_str()),
    });
    assert!(asked.is_some() || shapes.len() == SAMPLE.len(), "there are only {:?}", shapes.keys());
    for (name, shape) in shapes {
        let folder = tempfile::tempdir().expect("a temporary directory");
        write_shape(&shape, folder.path());
        let output = folder.path().join("programs").display().to_string();
        let arguments = ["compile", "--topology", shape["slice"].as_str().expect("a slice"), "--output", &output];
        let arguments = [&arguments[..], &["--programs", "decode_64,decode_8", "--dtype", "bfloat16"]];
        let Some(output) = run(&arguments.concat(), folder.path()) else { return };
        let rows = table(&output);
        assert_eq!(rows.len(), 2, "{name}: {rows:?}");
        for (program, cells) in &rows {
            for cell in &cells[4..6] {
                let ratio: f64 = cell.parse().expect("a ratio");
                assert!(ratio <= 1.2, "{name}, {program}: {ratio} times the least: {cells:?}");
            }
        }
    }
}

#[test]
fn fit_needs_no_weights() {
    let model = fixture("configs/llama-3.2-1b");
    let arguments = ["fit", "--topology", "v5e:1x1", "--max-total-tokens", "256", "--max-batch-size", "2"];
    let Some(output) = run(&[&arguments[..], &["--max-batch-prefill-tokens", "32"]].concat(), &model) else { return };
    let text = String::from_utf8(output.stdout).expect("reports are text");
    assert_eq!(output.status.code(), Some(0), "{text}");
    for part in
        ["(1 × TPU v5 lite), 2 sequences of 256 tokens", "weights                2357.1 MiB", "32 blocks, 512 tokens"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.trim_end().ends_with("fits"), "{text}");
}

#[test]
fn impossible_topologies_are_named() {
    let model = fixture("configs/llama-3.1-8b");
    let cases: [(&[&str], &str); 4] = [
        (&["fit", "--topology", "v5e:1x1"], "choose a slice with more chips"),
        (&["fit", "--topology", "v5e:8x8"], "num_attention_heads is 32"),
        (&["fit", "--topology", "v7:1x1"], "generation \"v7\" is unknown; allowed are v4, v5e, v5p, v6e, tpu7x"),
        (&["fit", "--topology", "v5e:2x4", "--num-shard", "4"], "all 8 devices of v5e:2x4 share the model"),
    ];
    for (arguments, expected) in cases {
        let Some(error) = error(arguments, &model) else { return };
        assert!(error.contains(expected) && error.lines().count() == 1, "{arguments:?}: {error}");
    }
}
