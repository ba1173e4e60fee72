//! Checks that tests which are skipped say so in one way.

use crate::tree::{SourceFile, all_rust_files};

/// Functions that say that the test is skipped, after which it returns early.
const SAY_SKIPPED: [&str; 16] = [
    "skipped(",
    "plugin_path(",
    "is_plugin_there(",
    "is_testable(",
    "on_xla(",
    "on_xla_devices(",
    "xla_fixture(",
    "xla_fixture_for(",
    " client()",
    " plugin()",
    " open(Device",
    " alone else",
    " unshare()",
    "Link::new(",
    " run(&",
    " error(arguments",
];

/// The crate that counts skipped tests, and the rules of waits and skips.
const OWN: [&str; 2] = ["test-support/src/", "tests/tidy/"];

/// Tests that return early for another reason: another test starts them as a child process, or they are one.
const RETURN_EARLY: [(&str, &str); 4] = [
    ("collectives/tests/processes.rs", "a_rank"),
    ("launcher/src/tpu/diagnosis.rs", "holds_a_lock_for_another_test"),
    ("xla/src/cache.rs", "an_entry_that_ended_a_process_is_not_loaded_again"),
    ("pjrt/tests/tpu.rs", "two_processes_compile_the_same_bytes"),
];

fn is_in(file: &SourceFile, path: &str) -> bool {
    file.path.to_string_lossy().contains(path)
}

#[test]
fn skipped_tests_say_so_in_one_way() {
    let mut found = Vec::new();
    let message = ["\"skipped", ": "].concat();
    for file in all_rust_files().iter().filter(|file| !OWN.iter().any(|path| is_in(file, path))) {
        let lines = file.test_lines().filter(|(_, line)| line.contains(&message) && !line.contains("the words on the"));
        found.extend(lines.map(|(number, _)| format!("{}:{number}: use test_support::skipped", file.path.display())));
    }
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn tests_return_early_only_if_they_are_skipped() {
    let mut found = Vec::new();
    for file in all_rust_files().iter().filter(|file| !OWN.iter().any(|path| is_in(file, path))) {
        for (name, number) in silent_returns(file) {
            if !RETURN_EARLY.iter().any(|(path, test)| is_in(file, path) && *test == name) {
                found.push(format!("{}:{number}: {name} returns without `skipped`", file.path.display()));
            }
        }
    }
    assert_eq!(found, Vec::<String>::new());
}

/// Returns the tests that return early without a call of [`SAY_SKIPPED`] in the same statement, and the lines.
fn silent_returns(file: &SourceFile) -> Vec<(String, usize)> {
    let lines: Vec<(usize, &str)> = file.test_lines().collect();
    let mut found = Vec::new();
    let mut test: Option<(String, usize)> = None;
    for (index, (number, line)) in lines.iter().enumerate() {
        let indentation = line.len() - line.trim_start().len();
        if line.trim() == "#[test]" {
            let after = lines[index..].iter().find_map(|(_, line)| line.trim_start().strip_prefix("fn "));
            let name = after.and_then(|after| after.split('(').next()).unwrap_or_default();
            test = Some((name.to_owned(), indentation));
        }
        let Some((name, outer)) = &test else { continue };
        if *line == format!("{}}}", " ".repeat(*outer)) {
            test = None;
        } else if line.contains("return;") || line.contains("else { return }") {
            let statement = lines[index.saturating_sub(2)..=index].iter().map(|(_, line)| *line);
            let statement = statement.collect::<String>();
            if !SAY_SKIPPED.iter().any(|call| statement.contains(call)) {
                found.push((name.clone(), *number));
            }
        }
    }
    found
}
