//! Checks the doors, the files in which a reader starts to add something. Each starts with "To add", and some must name
//! every file of their folder.

use crate::tree::{SourceFile, read, rust_files};

/// The doors that list the files of a folder, each with that folder.
const DOORS: [(&str, &str); 3] = [
    ("model/src/models/mod.rs", "model/src/models"),
    ("model/src/sampling/mod.rs", "model/src/sampling"),
    ("router/src/routes/mod.rs", "router/src/routes"),
];

#[test]
fn doors_say_how_to_add() {
    for (door, _) in DOORS.iter().chain(&[("proto/src/sampling.rs", ""), ("devices/src/lib.rs", "")]) {
        assert!(read(door).starts_with("//! To add "), "{door} does not start with \"To add\"");
    }
}

#[test]
fn every_file_of_a_folder_is_in_its_door() {
    for (door, folder) in DOORS {
        let text = read(door);
        let is_in_folder = |file: &SourceFile| file.path.parent() == Some(folder.as_ref());
        for file in rust_files(folder).into_iter().filter(|file| is_in_folder(file) && !file.is_test()) {
            let name = file.path.file_stem().and_then(|name| name.to_str()).expect("names are text");
            let is_listed = name == "mod"
                || name == "tests"
                || text.contains(&format!("{name}::"))
                || text.contains(&format!("mod {name};"));
            assert!(is_listed, "{door} has no row for {name}");
        }
    }
}
