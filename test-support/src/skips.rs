//! Skipped tests. A test that lacks something of the machine, such as a plugin, says so and returns early. The test
//! runner shows nothing of a test that passes, so each skip is also written to a file, if one is named.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// The environment variable with the path of the file that gets one line for each skip: the test's name, a tab, the
/// reason. The file is created if it does not exist.
const FILE_VARIABLE: &str = "HILO_SKIPS";

/// Says that the current test, or a part of it, is skipped. The caller then returns.
///
/// # Panics
///
/// When the file that `HILO_SKIPS` names cannot be written.
#[expect(clippy::print_stdout, reason = "the output of a test")]
pub fn skipped(reason: &str) {
    println!("skipped: {reason}");
    if let Some(path) = std::env::var_os(FILE_VARIABLE) {
        let written = append(Path::new(&path), &line(reason));
        written.unwrap_or_else(|error| panic!("{FILE_VARIABLE}: {}: {error}", path.display()));
    }
}

/// Says that the current test is skipped, unless the environment variable `requirement` is 1. That value promises that
/// this machine has what the test needs.
///
/// # Panics
///
/// When `requirement` is 1.
pub fn skipped_unless_required(requirement: &str, reason: &str) {
    assert!(std::env::var_os(requirement).is_none_or(|value| value != "1"), "{requirement}=1, but {reason}");
    skipped(reason);
}

/// Returns the line of a skip by this thread. The test runner gives a thread the name of its test.
fn line(reason: &str) -> String {
    let thread = std::thread::current();
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{}\t{reason}\n", thread.name().unwrap_or("a thread without a name"))
}

/// Appends a line with one write, so that lines of processes at the same time do not mix.
fn append(path: &Path, line: &str) -> io::Result<()> {
    File::options().create(true).append(true).open(path)?.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const NAME: &str = "skips::tests::a_skip_is_a_line_of_the_file";

    #[test]
    fn a_skip_is_a_line_of_the_file() {
        if std::env::var_os("HILO_TEST_CHILD").is_some() {
            skipped("no plugin\n  of a kind");
            skipped_unless_required("HILO_TEST_REQUIREMENT", "no namespaces");
            return;
        }
        let path = std::env::temp_dir().join(format!("hilo-skips-{}", std::process::id()));
        let run = |requirement: &str| {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", NAME]).env("HILO_TEST_CHILD", "1");
            let output = crate::output(child.env(FILE_VARIABLE, &path).env("HILO_TEST_REQUIREMENT", requirement));
            (output.status.success(), String::from_utf8(output.stdout).unwrap())
        };
        assert!(run("0").0);
        let (succeeds, text) = run("1");
        assert!(!succeeds && text.contains("HILO_TEST_REQUIREMENT=1, but no namespaces"), "{text}");
        let lines = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let [plugin, namespaces] = ["no plugin of a kind", "no namespaces"].map(|reason| format!("{NAME}\t{reason}\n"));
        assert_eq!(lines, [&plugin[..], &namespaces, &plugin].concat());
    }
}
