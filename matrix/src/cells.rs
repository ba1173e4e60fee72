//! The cells that a run takes, as the tests read them.
//!
//! A file of cells has the time at which drawing ends in its first line, in seconds since 1970, and one cell in each
//! other line: `core`, `touched` or `drawn`, the form and the checkpoint, separated by spaces. After the time, tests
//! leave out the drawn cells that they have not begun, and append them to another file.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::Form;

/// The environment variable with the path of the file of cells. Without it a run takes the core.
pub const CELLS_VARIABLE: &str = "HILO_CELLS";
/// The environment variable with a part of the names of checkpoints. A run then takes all of these in every form.
pub const FAMILY_VARIABLE: &str = "HILO_TEST_FAMILY";

/// The reason why a run takes a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Choice {
    /// Every run takes it.
    Core,
    /// The change under test touches it.
    Touched,
    /// It was drawn.
    Drawn,
}

impl Choice {
    /// Returns the word for the choice in files and lists.
    pub fn word(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Touched => "touched",
            Self::Drawn => "drawn",
        }
    }

    fn read(word: &str) -> Option<Self> {
        [Self::Core, Self::Touched, Self::Drawn].into_iter().find(|choice| choice.word() == word)
    }
}

/// The cells of one form that a run takes, in the order in which it computes them. The iterator ends early when the
/// time of a run is over.
#[derive(Debug)]
pub struct Cells {
    form: &'static str,
    /// Names in the order of their choice.
    chosen: std::vec::IntoIter<(Choice, String)>,
    until: Option<SystemTime>,
    left_out: Option<PathBuf>,
}

impl Cells {
    /// Returns the checkpoints among `all` that this process computes in `form`.
    ///
    /// # Panics
    /// When the file of cells cannot be read, or names a checkpoint that is not in `all`.
    pub fn of(form: &'static Form, all: impl IntoIterator<Item = String>) -> Self {
        let family = std::env::var(FAMILY_VARIABLE).ok();
        let file = std::env::var_os(CELLS_VARIABLE).map(PathBuf::from);
        let mut all: Vec<String> = all.into_iter().collect();
        all.sort();
        match (family, file) {
            (Some(part), _) => {
                all.retain(|name| name.contains(&part));
                Self::always(form, all)
            }
            (None, None) => {
                all.retain(|name| form.is_core(name));
                Self::always(form, all)
            }
            (None, Some(path)) => Self::read(form, &all, &path),
        }
    }

    fn always(form: &'static Form, names: Vec<String>) -> Self {
        let chosen: Vec<_> = names.into_iter().map(|name| (Choice::Core, name)).collect();
        Self { form: form.name, chosen: chosen.into_iter(), until: None, left_out: None }
    }

    fn read(form: &'static Form, all: &[String], path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (until, lines) = text.split_once('\n').expect("a file of cells has several lines");
        let until = UNIX_EPOCH + Duration::from_secs(until.parse().expect("the first line is a time"));
        let mut chosen: Vec<_> = lines.lines().filter_map(|line| cell(line, form)).collect();
        for (_, name) in &chosen {
            assert!(all.contains(name), "{} names {name}, which is no checkpoint of {}", path.display(), form.name);
        }
        chosen.sort_by_key(|(choice, _)| *choice);
        let left_out = Some(left_out_path(path));
        Self { form: form.name, chosen: chosen.into_iter(), until: Some(until), left_out }
    }

    fn leave_out(&self, name: &str) {
        let Some(path) = &self.left_out else { return };
        let file = OpenOptions::new().create(true).append(true).open(path);
        let write = |mut file: File| file.write_all(format!("{} {name}\n", self.form).as_bytes());
        file.and_then(write).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

impl Iterator for Cells {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        loop {
            let (choice, name) = self.chosen.next()?;
            let is_late = self.until.is_some_and(|until| SystemTime::now() > until);
            if choice == Choice::Drawn && is_late {
                self.leave_out(&name);
                continue;
            }
            return Some(name);
        }
    }
}

/// Returns the path of the file to which tests append the cells that they leave out.
pub fn left_out_path(cells: &Path) -> PathBuf {
    cells.with_extension("left-out")
}

/// Returns the choice and the checkpoint in a line, if the line is about `form`.
fn cell(line: &str, form: &Form) -> Option<(Choice, String)> {
    let words: Vec<&str> = line.split(' ').collect();
    let [choice, of, name] = words[..] else { panic!("{line:?} is no cell") };
    let choice = Choice::read(choice).unwrap_or_else(|| panic!("{choice:?} is no choice"));
    (of == form.name).then(|| (choice, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::form;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    /// Returns a file of cells and the folder that contains it.
    fn file(until: u64, cells: &str) -> (PathBuf, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cells");
        std::fs::write(&path, format!("{until}\n{cells}")).unwrap();
        (path, folder)
    }

    #[test]
    fn cells_of_a_form_come_by_choice() {
        let (path, _folder) = file(u64::MAX / 4, "drawn xla a\ncore cpu c\ntouched xla b\ncore xla c\n");
        let cells = Cells::read(form("xla"), &names(&["a", "b", "c"]), &path);
        assert_eq!(cells.collect::<Vec<_>>(), names(&["c", "b", "a"]));
    }

    #[test]
    fn only_drawn_cells_are_left_out_after_the_time() {
        let (path, _folder) = file(1, "drawn xla a\ntouched xla b\ncore xla c\n");
        let cells = Cells::read(form("xla"), &names(&["a", "b", "c"]), &path);
        assert_eq!(cells.collect::<Vec<_>>(), names(&["c", "b"]));
        assert_eq!(std::fs::read_to_string(left_out_path(&path)).unwrap(), "xla a\n");
    }

    #[test]
    #[should_panic(expected = "names d, which is no checkpoint of xla")]
    fn a_cell_without_a_checkpoint_is_an_error() {
        let (path, _folder) = file(1, "core xla d\n");
        Cells::read(form("xla"), &names(&["a"]), &path);
    }
}
