//! Tests of GGUF files from the Hub: the choice of one quantization, the files in the cache, and serving the model.

use std::collections::BTreeMap;

use integration_tests::{COMMIT, Hub, MODEL_ID, Server};
use serde_json::{Value, json};

use crate::hub::User;

/// Returns files of these names; those that end in `Q8_0.gguf` are a model that can be served.
fn files(names: &[&str]) -> BTreeMap<String, Vec<u8>> {
    let model = checkpoints::file("gguf/llama-q8/model.gguf");
    let model = std::fs::read(model).expect("a fixture");
    let bytes = |name: &str| if name.ends_with("Q8_0.gguf") { model.clone() } else { name.as_bytes().to_vec() };
    names.iter().map(|name| ((*name).to_owned(), bytes(name))).collect()
}

/// Returns those of the files that have these names.
fn some(files: &BTreeMap<String, Vec<u8>>, names: &[&str]) -> BTreeMap<String, Vec<u8>> {
    names.iter().map(|name| ((*name).to_owned(), files[*name].clone())).collect()
}

/// Downloads a model and returns the log, or the last line of it if `status` is not 0.
fn download(user: &User, model: &str, environment: &[(&str, &str)], status: i32) -> String {
    let output = user.run(&[model], environment);
    let log = String::from_utf8(output.stdout).expect("a log is text");
    assert_eq!(output.status.code(), Some(status), "{log}");
    if status == 0 { log } else { log.lines().last().unwrap_or_default().to_owned() }
}

#[test]
fn only_the_files_of_one_quantization_are_downloaded() {
    let names = [
        "README.md",
        "m-Q4_K_M.gguf",
        "m-Q5_K_M-00001-of-00002.gguf",
        "m-Q5_K_M-00002-of-00002.gguf",
        "m.q8_0.gguf",
        "mmproj-m-Q8_0.gguf",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ];
    let all = files(&names);
    let hub = Hub::start(all.clone(), None);
    let chosen: [(&str, &[&str]); 3] = [
        ("org/tiny:Q8_0", &["m.q8_0.gguf"]),
        ("org/tiny:q5_k_m", &["m-Q5_K_M-00001-of-00002.gguf", "m-Q5_K_M-00002-of-00002.gguf"]),
        ("org/tiny", &["config.json", "model.safetensors", "tokenizer.json"]),
    ];
    for (model, names) in chosen {
        let user = User::new(&hub);
        let log = download(&user, model, &[], 0);
        user.check(&some(&all, names));
        let folder = user.cached("snapshots").join(COMMIT).display().to_string();
        let path = if names.len() < 3 { format!("{folder}/{}", names[0]) } else { folder };
        assert!(log.contains(&path), "{log}");
        hub.requests();
        download(&user, model, &[("HF_HUB_OFFLINE", "1")], 0);
        let error = download(&user, "org/tiny:Q4_K_M", &[("HF_HUB_OFFLINE", "1")], 2);
        assert!(error.contains("*Q4_K_M*.gguf") && error.contains("download-weights org/tiny:Q4_K_M"), "{error}");
        assert_eq!(hub.requests(), []);
    }
    let error = download(&User::new(&hub), "org/tiny:Q2_K", &[], 2);
    let listed = "no GGUF file of Q2_K; it has m-Q4_K_M.gguf, m-Q5_K_M-00001-of-00002.gguf, m.q8_0.gguf";
    assert!(error.contains(listed), "{error}");
}

#[test]
fn without_a_quantization_the_usual_one_is_chosen() {
    let all = files(&["README.md", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-Q8_0.gguf"]);
    let hub = Hub::start(all.clone(), None);
    let user = User::new(&hub);
    // Another quantization in the cache changes nothing.
    download(&user, "org/tiny:Q8_0", &[], 0);
    let output = user.run(&[MODEL_ID, "--revision", COMMIT], &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    user.check(&some(&all, &["m-Q4_K_M.gguf", "m-Q8_0.gguf"]));
}

#[test]
fn a_gguf_file_is_served_by_the_name_of_its_quantization() {
    let hub = Hub::start(files(&["README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf"]), None);
    let user = User::new(&hub);
    let server =
        || Server::model("org/tiny:Q8_0").env("HF_HOME", user.home().display()).env("HF_ENDPOINT", hub.endpoint());
    let body = json!({"inputs": "the little", "parameters": {"max_new_tokens": 8}});
    for offline in ["0", "1"] {
        let server = server().env("HF_HUB_OFFLINE", offline).start();
        let info = server.client().get("/info").json();
        assert_eq!((&info["model_id"], &info["model_sha"]), (&Value::from("org/tiny:Q8_0"), &Value::from(COMMIT)));
        let generated = server.client().post("/generate", &body).json();
        assert!(generated["generated_text"].is_string(), "{generated}");
        let finished = server.stop();
        assert_eq!(finished.status.code(), Some(0), "{:#?}", finished.log);
    }
}
