//! Checks the rules in the section "English" of CONTRIBUTING.md that a machine can check.

use crate::tree::all_rust_files;

const MAX_COLUMNS: usize = 120;
/// First words of a comment after which it does not name its subject.
const EMPTY_BEGINNINGS: [&str; 4] = ["What ", "Whether ", "Who ", "Of "];
/// Phrases for which programmers have a word.
const ROUNDABOUT: [&str; 4] = ["so many", "that which", "no number", "none the worse"];

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
    let is_roundabout = |comment: &Comment<'_>| ROUNDABOUT.iter().any(|phrase| comment.text.contains(phrase));
    assert_eq!(offenders(is_roundabout), Vec::<String>::new());
}
