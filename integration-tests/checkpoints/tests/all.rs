//! Derives every checkpoint, which fails if one is not as transformers or llama.cpp's converter wrote it.

#[test]
fn every_checkpoint_is_as_it_was_written() {
    for name in checkpoints::names("families") {
        let folder = checkpoints::folder(&format!("families/{name}"));
        assert!(folder.join("model.safetensors").exists(), "{name}");
        assert!(folder.join("config.json").exists(), "{name}");
    }
    for folder in ["gguf-families", "gguf-split"] {
        for name in checkpoints::names(folder) {
            assert!(checkpoints::file(&format!("{folder}/{name}")).exists(), "{name}");
        }
    }
}

#[test]
#[should_panic(expected = "families/nothing is not a folder")]
fn a_folder_that_does_not_exist_is_named() {
    _ = checkpoints::folder("families/nothing");
}

#[test]
#[should_panic(expected = "has neither gguf-families/nothing.gguf nor a list of its tensors")]
fn a_file_that_does_not_exist_is_named() {
    _ = checkpoints::file("gguf-families/nothing.gguf");
}
