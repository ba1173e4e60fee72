//! The documents name only paths that exist, and the map names every room.

use crate::tree::{CRATES, read, root};

fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn paths_in_the_documents_exist() {
    for document in ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"] {
        let text = read(document);
        let is_path = |word: &&str| {
            let has_extension = [".rs", ".md", ".toml", ".proto", ".json", ".py"].iter().any(|end| word.ends_with(end));
            (word.contains('/') && has_extension || word.ends_with('/'))
                && !word.contains([' ', '<', '*', '$', ':', '{'])
                && !word.starts_with('/')
        };
        let missing: Vec<&str> = quoted(&text).filter(is_path).filter(|path| !root().join(path).exists()).collect();
        assert_eq!(missing, Vec::<&str>::new(), "{document}");
    }
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
