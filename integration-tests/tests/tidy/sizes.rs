//! Checks that files are short, start with a comment about their purpose, have specific names, and contain none of some
//! forbidden words.

use crate::tree::{SourceFile, all_rust_files};

/// The maximum number of lines of a file.
const MAX_LINES: usize = 600;
/// The maximum number of lines of a door (a file that starts with "To add"), without its unit tests.
const MAX_DOOR_LINES: usize = 150;
/// Names of files that say nothing about the contents.
const FORBIDDEN_NAMES: [&str; 5] = ["utils", "common", "helpers", "misc", "types"];

fn offenders(is_bad: impl Fn(&SourceFile) -> bool) -> Vec<String> {
    all_rust_files().iter().filter(|file| is_bad(file)).map(|file| file.path.display().to_string()).collect()
}

#[test]
fn files_are_short() {
    assert_eq!(offenders(|file| file.text.lines().count() > MAX_LINES), Vec::<String>::new());
}

#[test]
fn doors_are_shorter() {
    let is_door = |file: &SourceFile| file.text.starts_with("//! To add");
    assert_eq!(
        offenders(|file| is_door(file) && file.product().lines().count() > MAX_DOOR_LINES),
        Vec::<String>::new()
    );
}

#[test]
fn files_start_with_what_they_are_for() {
    assert_eq!(offenders(|file| !file.text.starts_with("//! ")), Vec::<String>::new());
}

#[test]
fn names_name_the_thing() {
    let is_bad = |file: &SourceFile| FORBIDDEN_NAMES.iter().any(|name| file.path.file_stem() == Some(name.as_ref()));
    assert_eq!(offenders(is_bad), Vec::<String>::new());
}

#[test]
fn nothing_is_left_for_later_without_a_number() {
    let marker = ["TO", "DO"].concat();
    let is_bad = |file: &SourceFile| file.text.lines().any(|line| line.contains(&marker) && !line.contains('#'));
    assert_eq!(offenders(is_bad), Vec::<String>::new());
}

#[test]
fn argument_trains_are_never_excused() {
    let lint = ["too_many", "arguments"].join("_");
    assert_eq!(offenders(|file| file.text.contains(&lint)), Vec::<String>::new());
}
