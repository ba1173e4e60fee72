//! Checks of documents: the paths in some of them and the flags in docs/limits.md exist, ARCHITECTURE.md (the map)
//! names every crate and every page about decisions, and every row of the lineage (`docs/lineage.md`) has a test or a
//! reason.

use crate::tree::{CRATES, read, root};

const LINEAGE: &str = "docs/lineage.md";
const DECISIONS: &str = "docs/decisions";
/// The tables of the lineage: the letter that starts the numbers of their rows, and the number of rows.
const LINEAGE_TABLES: [(char, usize); 5] = [('D', 15), ('G', 25), ('X', 8), ('P', 10), ('R', 19)];
/// The words that start the reason in a row without a test, or with a test for only a part of it.
const REASONS: [&str; 3] = ["deliberately different: ", "not here: ", "open: "];

/// A row of the lineage.
struct Row<'a> {
    number: &'a str,
    text: &'a str,
}

/// The texts between backticks, each as a pair: first the text between the previous quotation and this one, then this
/// one.
fn quotes(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut parts = text.split('`');
    std::iter::from_fn(move || Some((parts.next()?, parts.next()?)))
}

/// True if the word has the form of a path in this repository.
fn is_path(word: &str) -> bool {
    let has_extension = [".rs", ".md", ".toml", ".proto", ".json", ".py"].iter().any(|end| word.ends_with(end));
    (word.contains('/') && has_extension || word.ends_with('/'))
        && !word.contains([' ', '<', '*', '$', ':', '{'])
        && !word.starts_with('/')
}

fn lineage_rows(text: &str) -> impl Iterator<Item = Row<'_>> {
    text.lines().filter_map(|text| {
        let (number, _) = text.strip_prefix("| ")?.split_once(" |")?;
        let is_row = number.ends_with(|last: char| last.is_ascii_digit());
        is_row.then_some(Row { number, text })
    })
}

/// The paths of the pages about decisions, relative to the repository.
fn decisions() -> Vec<String> {
    let entries = std::fs::read_dir(root().join(DECISIONS)).expect("there are decisions");
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("a readable folder").file_name();
    entries.map(|entry| format!("{DECISIONS}/{}", name(entry).display())).collect()
}

/// The text of a file; empty if there is no such file.
fn text_of(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_default()
}

/// True if the file has a test with this name.
fn has_test(file: &str, test: &str) -> bool {
    let starts = [format!("fn {test}("), format!("async fn {test}(")];
    let is_test = |lines: [&str; 2]| {
        let [attribute, function] = lines.map(str::trim_start);
        attribute.starts_with("#[")
            && attribute.contains("test")
            && starts.iter().any(|start| function.starts_with(start))
    };
    let text = text_of(file);
    text.lines().zip(text.lines().skip(1)).any(|(attribute, function)| is_test([attribute, function]))
}

/// Returns the files, tests and names in a row of the lineage that do not exist. In a row, `file` · `test` · `test`
/// names tests of a file, and `file` `name` names something that the file contains.
fn missing(row: &str) -> Vec<String> {
    let (mut missing, mut file) = (Vec::new(), "");
    for (before, quoted) in quotes(row) {
        let is_missing = match before {
            " · " => !has_test(file, quoted),
            " " if !file.is_empty() => quoted.rsplit("::").next().is_none_or(|name| !text_of(file).contains(name)),
            _ => {
                file = if is_path(quoted) || root().join(quoted).is_file() { quoted } else { "" };
                !file.is_empty() && !root().join(file).exists()
            }
        };
        if is_missing {
            missing.push(if quoted == file { quoted.to_owned() } else { format!("{file} {quoted}") });
        }
    }
    missing
}

#[test]
fn paths_in_the_documents_exist() {
    let documents = ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"].map(String::from).into_iter();
    for document in documents.chain(decisions()) {
        let text = read(&document);
        let paths = quotes(&text).map(|(_, quoted)| quoted).filter(|word| is_path(word));
        let missing: Vec<&str> = paths.filter(|path| !root().join(path).exists()).collect();
        assert_eq!(missing, Vec::<&str>::new(), "{document}");
    }
}

#[test]
fn the_map_links_every_decision() {
    let text = read("ARCHITECTURE.md");
    let missing: Vec<String> = decisions().into_iter().filter(|page| !text.contains(page.as_str())).collect();
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn flags_in_the_limits_exist() {
    let args = ["launcher/src/args.rs", "router/src/args.rs", "shard/src/args.rs"].map(read).concat();
    let text = read("docs/limits.md");
    let flags = quotes(&text).filter_map(|(_, quoted)| quoted.strip_prefix("--"));
    let names = flags.filter_map(|flag| flag.split([' ', '=']).next());
    let is_missing = |name: &&str| !args.contains(&format!(" {}: ", name.replace('-', "_")));
    assert_eq!(names.filter(is_missing).collect::<Vec<_>>(), Vec::<&str>::new());
}

#[test]
fn the_lineage_has_every_row_once() {
    let text = read(LINEAGE);
    let numbers: Vec<&str> = lineage_rows(&text).map(|row| row.number).collect();
    let expected = LINEAGE_TABLES.iter().flat_map(|(letter, len)| (1..=*len).map(move |row| format!("{letter}{row}")));
    assert_eq!(numbers, expected.collect::<Vec<_>>());
}

#[test]
fn the_lineage_names_what_is_there() {
    let text = read(LINEAGE);
    let mut all = Vec::new();
    for row in lineage_rows(&text) {
        all.extend(missing(row.text).into_iter().map(|what| format!("{}: {what}", row.number)));
    }
    assert_eq!(all, Vec::<String>::new());
}

#[test]
fn each_row_of_the_lineage_has_a_test_or_a_reason() {
    let text = read(LINEAGE);
    let has_neither = |row: &Row<'_>| {
        let evidence = row.text.rsplit(" | ").next().unwrap_or_default();
        !evidence.contains("` · `") && !REASONS.iter().any(|reason| evidence.contains(reason))
    };
    let rows: Vec<&str> = lineage_rows(&text).filter(has_neither).map(|row| row.number).collect();
    assert_eq!(rows, Vec::<&str>::new());
}

#[test]
fn the_map_names_every_room() {
    let text = read("ARCHITECTURE.md");
    for name in CRATES {
        assert!(text.contains(&format!("`{name}/`")), "ARCHITECTURE.md does not name {name}/");
    }
}

#[test]
fn the_change_log_has_a_place_for_changes() {
    assert!(read("CHANGELOG.md").contains("## Unreleased"));
}
