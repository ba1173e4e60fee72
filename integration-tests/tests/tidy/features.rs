//! Checks the features of our crates. Tests, black-box tests and clients share one build, in which the features that
//! only tests need are on, so such a feature may add a module but must not change code.

use crate::tree::{CRATES, all_rust_files, read};

/// Features that only tests and benches need, as pairs of a crate and a feature.
const TEST_FEATURES: [(&str, &str); 4] =
    [("cpu", "oracle"), ("devices", "testing"), ("pjrt", "testing"), ("xla", "testing")];

/// Returns the features in the manifest of a crate.
fn features(folder: &str) -> Vec<String> {
    let manifest = read(&format!("{folder}/Cargo.toml"));
    let lines = manifest.lines().skip_while(|line| *line != "[features]").skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    lines.filter_map(|line| Some(line.split_once(" = ")?.0.to_owned())).collect()
}

#[test]
fn features_are_listed() {
    let all = CRATES.iter().flat_map(|folder| features(folder).into_iter().map(move |name| (*folder, name)));
    let all: Vec<(&str, String)> = all.collect();
    let mut listed: Vec<_> = TEST_FEATURES.iter().map(|(folder, name)| (*folder, (*name).to_owned())).collect();
    listed.sort();
    let mut all_sorted = all.clone();
    all_sorted.sort();
    assert_eq!(all_sorted, listed, "a feature is not in TEST_FEATURES of tidy/features.rs");
}

#[test]
fn features_of_tests_only_add_items() {
    let asks = ["feature", " = \""].concat();
    let mut changes = Vec::new();
    for file in all_rust_files() {
        let lines: Vec<&str> = file.text.lines().map(str::trim).collect();
        let is_about_ours = |line: &str| line.contains(&asks) && !line.contains("target_feature");
        for (index, line) in lines.iter().enumerate().filter(|(_, line)| is_about_ours(line)) {
            let item = lines[index..].iter().find(|line| !line.starts_with(['#', '/']));
            let adds = item.is_some_and(|item| {
                ["pub mod ", "mod ", "pub use ", "pub fn ", "pub(crate) fn "].iter().any(|word| item.starts_with(word))
            });
            if !(line.starts_with("#[cfg(") && adds) {
                changes.push(format!("{}:{}: {line}", file.path.display(), index + 1));
            }
        }
    }
    assert_eq!(changes, Vec::<String>::new());
}
