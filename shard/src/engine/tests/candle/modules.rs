//! The modules of candle-transformers without a row, with the reasons, and a test that no module is forgotten.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::gguf;
use super::rows::ROWS;

/// The modules that have no row, by reason.
const NOT_COMPARED: &[(&str, &[&str])] = &[
    ("Code that others use.", &["llama2_c_weights", "with_tracing"]),
    (
        "Candle cannot read a small checkpoint: only published sizes can be chosen from outside (mpt, yi), or there is \
         a configuration without a model (persimmon).",
        &["mpt", "persimmon", "yi"],
    ),
    (
        "A form of checkpoints that this server does not read, of a family that it does: ChatGLM's form of GLM-4, \
         Phi's first form, llama2.c's files, or GGUF files of families that are read only from safetensors.",
        &[
            "codegeex4_9b",
            "glm4",
            "llama2_c",
            "mixformer",
            "quantized_glm4",
            "quantized_llama2_c",
            "quantized_mistral",
            "quantized_mixformer",
            "quantized_mpt",
            "quantized_phi",
            "quantized_phi3",
            "quantized_qwen3_moe",
            "quantized_stable_lm",
        ],
    ),
    (
        "A language model that this server does not serve.",
        &[
            "based",
            "chatglm",
            "granitemoehybrid",
            "lfm2",
            "mamba",
            "mamba2",
            "quantized_lfm2",
            "quantized_recurrent_gemma",
            "quantized_rwkv_v5",
            "quantized_rwkv_v6",
            "recurrent_gemma",
            "rwkv_v5",
            "rwkv_v6",
            "rwkv_v7",
        ],
    ),
    (
        "A language model behind images or speech, of a kind that this server does not serve.",
        &[
            "csm",
            "llava",
            "metavoice",
            "moondream",
            "paddleocr_vl",
            "paligemma",
            "parler_tts",
            "pixtral",
            "quantized_metavoice",
            "quantized_moondream",
            "voxtral",
        ],
    ),
    (
        "Not a language model, or one with an encoder.",
        &[
            "beit",
            "bert",
            "blip",
            "blip_text",
            "chinese_clip",
            "clip",
            "colpali",
            "convmixer",
            "convnext",
            "dac",
            "debertav2",
            "depth_anything_v2",
            "dinov2",
            "dinov2reg4",
            "distilbert",
            "efficientnet",
            "efficientvit",
            "encodec",
            "eva2",
            "fastvit",
            "flux",
            "hiera",
            "jina_bert",
            "marian",
            "mimi",
            "mmdit",
            "mobileclip",
            "mobilenetv4",
            "mobileone",
            "modernbert",
            "nomic_bert",
            "nvembed_v2",
            "openclip",
            "quantized_blip",
            "quantized_blip_text",
            "quantized_t5",
            "repvgg",
            "resnet",
            "segformer",
            "segment_anything",
            "siglip",
            "snac",
            "stable_diffusion",
            "stella_en_v5",
            "t5",
            "trocr",
            "vgg",
            "vit",
            "whisper",
            "wuerstchen",
            "xlm_roberta",
            "z_image",
        ],
    ),
];

/// Returns cargo's description of candle-transformers.
fn package() -> Value {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version", "1", "--offline", "--locked", "--filter-platform", &platform]);
    let output = test_support::output(cargo.current_dir(env!("CARGO_MANIFEST_DIR")));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    packages.iter().find(|package| package["name"] == "candle-transformers").unwrap().clone()
}

/// Returns the public modules of `candle_transformers::models`, from its source.
fn modules() -> BTreeSet<String> {
    let package = package();
    let manifest = std::path::Path::new(package["manifest_path"].as_str().unwrap());
    let source = std::fs::read_to_string(manifest.with_file_name("src").join("models/mod.rs")).unwrap();
    let names = source.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    names.map(str::to_owned).collect()
}

/// Returns the folder of the repository.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The page and the program that times candle must not describe another version than the one that is compared.
#[test]
fn one_version_of_candle_is_named_everywhere() {
    let package = package();
    let version = package["version"].as_str().unwrap();
    let texts = [
        ("docs/oracle.md", format!("The version is {version}.")),
        ("bench/peers/candle_transformers/Cargo.toml", format!("candle-transformers = \"{version}\"")),
    ];
    for (path, text) in texts {
        let file = std::fs::read_to_string(root().join(path)).unwrap();
        assert!(file.contains(&text), "{path} lacks {text}");
    }
}

/// After an update of candle, a new module needs a row or a reason.
#[test]
fn every_module_of_candle_has_a_row_or_a_reason() {
    let compared: BTreeSet<&str> =
        ROWS.iter().map(|row| row.module).chain(gguf::ROWS.iter().map(|(module, ..)| *module)).collect();
    let page = std::fs::read_to_string(root().join("docs/oracle.md")).unwrap();
    for module in &compared {
        assert!(page.contains(&format!("| `{module}` |")), "docs/oracle.md has no row for {module}");
    }
    let others: Vec<&str> = NOT_COMPARED.iter().flat_map(|(_, modules)| *modules).copied().collect();
    let both: Vec<_> = others.iter().filter(|module| compared.contains(*module)).collect();
    assert!(both.is_empty(), "both compared and not: {both:?}");
    let listed: BTreeSet<String> = compared.into_iter().chain(others).map(str::to_owned).collect();
    assert_eq!(listed, modules());
}
