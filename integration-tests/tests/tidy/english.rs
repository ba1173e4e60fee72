//! Checks the rules in the section "English" of CONTRIBUTING.md that a machine can check.

use crate::tree::all_rust_files;

const MAX_COLUMNS: usize = 120;
/// First words of a comment after which it does not name its subject.
const EMPTY_BEGINNINGS: [&str; 4] = ["What ", "Whether ", "Who ", "Of "];
/// First words of a test's name after which the name is no claim.
const EMPTY_NAMES: [&str; 4] = ["what_", "whether_", "who_", "of_"];
/// Phrases for which programmers have a word. They are also found across the lines of a comment.
const ROUNDABOUT: [&str; 4] = ["so many", "that which", "no number", "none the worse"];
/// Idioms that are hard to read, such as "attends keys" for "attends to keys".
const IDIOMS: [&str; 4] = ["attends the ", "attends all ", "attends any ", "attends keys"];

/// A line of a comment.
struct Comment<'a> {
    line: usize,
    text: &'a str,
    /// True if this line begins the comment.
    is_first: bool,
    columns: usize,
}

fn comments(source: &str) -> impl Iterator<Item = Comment<'_>> {
    let mut was_comment = false;
    source.lines().enumerate().filter_map(move |(index, line)| {
        let text = line.trim_start().strip_prefix("//");
        let is_first = !was_comment;
        was_comment = text.is_some();
        let text = text?.trim_start_matches(['/', '!']).trim_start();
        Some(Comment { line: index + 1, text, is_first, columns: line.chars().count() })
    })
}

/// Returns the lines of comments that break a rule, as `file:line: comment`.
fn offenders(is_bad: impl Fn(&Comment<'_>) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for file in all_rust_files() {
        // This file contains the forbidden phrases.
        if file.path.ends_with("tidy/english.rs") {
            continue;
        }
        let bad = comments(&file.text).filter(&is_bad);
        found.extend(bad.map(|Comment { line, text, .. }| format!("{}:{line}: {text}", file.path.display())));
    }
    found
}

#[test]
fn comments_fit_on_a_screen() {
    assert_eq!(offenders(|comment| comment.columns > MAX_COLUMNS), Vec::<String>::new());
}

#[test]
fn comments_name_the_thing() {
    let is_empty = |comment: &Comment<'_>| EMPTY_BEGINNINGS.iter().any(|word| comment.text.starts_with(word));
    assert_eq!(offenders(|comment| comment.is_first && is_empty(comment)), Vec::<String>::new());
}

#[test]
fn comments_use_the_words_of_the_trade() {
    let mut found = Vec::new();
    for file in all_rust_files().iter().filter(|file| !file.path.ends_with("tidy/english.rs")) {
        for (line, text) in whole_comments(&file.text) {
            for phrase in ROUNDABOUT.iter().chain(&IDIOMS).filter(|phrase| text.contains(**phrase)) {
                found.push(format!("{}:{line}: \"{phrase}\" in: {text}", file.path.display()));
            }
        }
    }
    assert_eq!(found, Vec::<String>::new());
}

/// Returns each comment as one line, with the number of its first line.
fn whole_comments(source: &str) -> Vec<(usize, String)> {
    let mut whole: Vec<(usize, String)> = Vec::new();
    for Comment { line, text, is_first, .. } in comments(source) {
        match whole.last_mut().filter(|_| !is_first) {
            Some((_, before)) => *before = [before, text].join(" "),
            None => whole.push((line, text.to_owned())),
        }
    }
    whole
}

#[test]
fn a_phrase_is_found_across_lines() {
    let source = "fn one() {}\n    // The cache may have another one than that\n    // which the list gives.\nfn two() {}\n// so\n";
    let expected = "The cache may have another one than that which the list gives.".to_owned();
    assert_eq!(whole_comments(source), [(2, expected), (5, "so".to_owned())]);
}

#[test]
fn names_of_tests_are_claims() {
    let mut found = Vec::new();
    for file in all_rust_files() {
        let mut is_test = false;
        for (number, line) in file.text.lines().enumerate() {
            let line = line.trim_start();
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            let name = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
            let Some(name) = name else { continue };
            if is_test && EMPTY_NAMES.iter().any(|word| name.starts_with(word)) {
                found.push(format!("{}:{}: {line}", file.path.display(), number + 1));
            }
            is_test = false;
        }
    }
    assert_eq!(found, Vec::<String>::new());
}
