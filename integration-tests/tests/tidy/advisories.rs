//! Compares the locked versions of other people's crates with the recorded advisories of the RustSec database.
//!
//! `integration-tests/supply_chain/record_advisories.py` records them. The first line of the table has the date.

use semver::{Version, VersionReq};

use crate::tree::read;

const TABLE: &str = "integration-tests/supply_chain/advisories.txt";
/// Advisories that concern a locked version, with the reason why the version stays.
const EXCUSED: [(&str, &str); 1] =
    [("RUSTSEC-2024-0436", "paste is a finished macro of tokenizers and gemm, without a known defect")];

/// A row of the table.
struct Advisory {
    id: String,
    name: String,
    kind: String,
    /// Versions that are not affected.
    spared: Vec<VersionReq>,
}

fn advisories() -> Vec<Advisory> {
    let advisory = |line: &str| {
        let columns: Vec<&str> = line.split('\t').collect();
        let [id, name, kind, spared] = columns[..] else { panic!("{line:?} has not four columns") };
        let spared = spared.split(';').filter(|text| !text.is_empty()).map(|text| VersionReq::parse(text).expect(id));
        Advisory { id: id.to_owned(), name: name.to_owned(), kind: kind.to_owned(), spared: spared.collect() }
    };
    read(TABLE).lines().filter(|line| !line.starts_with('#')).map(advisory).collect()
}

/// Returns the names and versions in a lock file.
fn locked(lock: &str) -> Vec<(String, Version)> {
    let value = |block: &str, key: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
        line.map(|line| line.trim_end_matches('"').to_owned())
    };
    let package = |block: &str| {
        // Our own crates have no source.
        value(block, "source")?;
        Some((value(block, "name")?, Version::parse(&value(block, "version")?).ok()?))
    };
    lock.split("[[package]]").filter_map(package).collect()
}

/// Returns the advisories that concern a lock file, as `id (kind): crate version`.
fn concerning(lock: &str) -> Vec<String> {
    let advisories = advisories();
    let mut found = Vec::new();
    for (name, version) in locked(lock) {
        let is_affected = |advisory: &&Advisory| {
            advisory.name == name && !advisory.spared.iter().any(|spared| spared.matches(&version))
        };
        let affecting = advisories.iter().filter(is_affected);
        found.extend(affecting.map(|Advisory { id, kind, .. }| format!("{id} ({kind}): {name} {version}")));
    }
    found
}

#[test]
fn no_locked_crate_has_an_advisory() {
    let mut found = concerning(&read("Cargo.lock"));
    found.retain(|row| !EXCUSED.iter().any(|(id, _)| row.starts_with(id)));
    assert_eq!(found, Vec::<String>::new(), "{}", read(TABLE).lines().next().unwrap_or_default());
}

#[test]
fn excused_advisories_concern_the_lock_file() {
    let found = concerning(&read("Cargo.lock"));
    for (id, reason) in EXCUSED {
        assert!(found.iter().any(|row| row.starts_with(id)), "{id} no longer needs its excuse: {reason}");
    }
}

#[test]
fn a_vulnerable_version_is_found() {
    let lock = |version: &str| {
        format!("[[package]]\nname = \"tokio\"\nversion = \"{version}\"\nsource = \"registry+https://example\"\n")
    };
    let found = concerning(&lock("1.5.0"));
    assert!(found.contains(&"RUSTSEC-2021-0072 (vulnerability): tokio 1.5.0".to_owned()), "{found:?}");
    assert!(!concerning(&lock("1.8.1")).iter().any(|row| row.starts_with("RUSTSEC-2021-0072")));
}
