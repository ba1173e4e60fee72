//! The checkpoints of the matrix, and which of them a changed file of a model family concerns.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use matrix::Form;

use crate::root;

const MODELS: &str = "model/src/models";
const FIXTURES: &str = "integration-tests/fixtures";

/// A file that concerns more checkpoints than this concerns no family in particular: the core checks it. Of a change
/// that concerns more, some are drawn.
const MAX_CHECKPOINTS: usize = 40;

/// The checkpoints and the families that they belong to.
#[derive(Debug)]
pub(crate) struct Families {
    /// The modules of `model::models` that build or read a checkpoint, by the name of the checkpoint.
    modules: BTreeMap<String, Vec<String>>,
}

impl Families {
    /// Reads the table of architectures, the modules that it names and the checkpoints.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub(crate) fn read() -> Result<Self, String> {
        let table = text(&root().join(MODELS).join("architectures.rs"))?;
        let builders = builders(&table);
        let folder = root().join(FIXTURES).join("families");
        let mut modules = BTreeMap::new();
        for name in names(&folder)? {
            let config = text(&folder.join(&name).join("config.json"))?;
            let builder = builders.iter().find(|(architecture, _)| config.contains(&format!("\"{architecture}\"")));
            let builder = builder.ok_or_else(|| format!("no architecture of {name} is in architectures.rs"))?.1;
            modules.insert(name, related(builder)?);
        }
        Ok(Self { modules })
    }

    /// Returns the names of the checkpoints of a form: folders, or files and lists of tensors without their endings.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub(crate) fn checkpoints(form: &Form) -> Result<Vec<String>, String> {
        let names = names(&root().join(FIXTURES).join(form.folder))?;
        Ok(names.into_iter().map(|name| name.trim_end_matches(".gguf").trim_end_matches(".json").to_owned()).collect())
    }

    /// Returns the checkpoints that the changed files concern.
    pub(crate) fn touched(&self, files: &[String]) -> Touched<'_> {
        let by_file = files.iter().map(|file| {
            let is_touched = |(name, modules): &(&String, &Vec<String>)| {
                modules.iter().any(|module| is_of_module(file, module)) || is_of_checkpoint(file, name)
            };
            self.modules.iter().filter(is_touched).map(|(name, _)| name.as_str()).collect::<Vec<_>>()
        });
        let mut touched: Vec<&str> = by_file.filter(|names| names.len() <= MAX_CHECKPOINTS).flatten().collect();
        touched.sort_unstable();
        touched.dedup();
        if touched.len() <= MAX_CHECKPOINTS { Touched::Few(touched) } else { Touched::Many(touched) }
    }
}

/// The checkpoints that a change concerns.
#[derive(Debug)]
pub(crate) enum Touched<'a> {
    /// So few that a run computes all of them in every form.
    Few(Vec<&'a str>),
    /// So many that a run draws from them.
    Many(Vec<&'a str>),
}

fn is_of_module(file: &str, module: &str) -> bool {
    let rest = file.strip_prefix(MODELS).and_then(|file| file[1..].strip_prefix(module));
    rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

fn is_of_checkpoint(file: &str, checkpoint: &str) -> bool {
    let file = file.strip_prefix(FIXTURES).unwrap_or_default();
    let folder = file.strip_prefix("/families/").and_then(|file| file.split('/').next());
    let converted = file.strip_prefix("/gguf-families/").and_then(|file| file.split(['+', '.', '/']).next());
    folder == Some(checkpoint) || converted == Some(checkpoint)
}

/// Returns the pairs of an architecture and the module of its builder from the text of the table.
fn builders(table: &str) -> Vec<(&str, &str)> {
    let rows = table.lines().filter_map(|line| line.trim().strip_prefix("(\"")?.split_once("\", "));
    rows.filter_map(|(architecture, builder)| Some((architecture, builder.split_once("::")?.0))).collect()
}

/// Returns a module and the modules beside it that it names.
fn related(module: &str) -> Result<Vec<String>, String> {
    let folder = root().join(MODELS);
    let text = text(&folder.join(format!("{module}.rs"))).or_else(|_| text(&folder.join(module).join("mod.rs")))?;
    let is_word =
        |text: &str, word: &str| text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == word);
    let beside = names(&folder)?.into_iter().map(|name| name.trim_end_matches(".rs").to_owned());
    let mut modules: Vec<String> = beside.filter(|name| is_word(&text, name) && name != module).collect();
    modules.push(module.to_owned());
    Ok(modules)
}

fn names(folder: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

fn text(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touched(file: &str) -> Vec<String> {
        let families = Families::read().unwrap();
        match families.touched(&[file.to_owned()]) {
            Touched::Few(names) => names.into_iter().map(str::to_owned).collect(),
            Touched::Many(names) => panic!("one file touches {} checkpoints", names.len()),
        }
    }

    #[test]
    fn a_file_of_a_family_touches_its_checkpoints() {
        assert_eq!(touched("model/src/models/afmoe.rs"), ["afmoe", "afmoe-listed"]);
        assert!(touched("model/src/models/sigmoid_experts.rs").contains(&"afmoe".to_owned()));
        assert!(touched("model/src/models/gemma4/mod.rs").contains(&"gemma4-unified".to_owned()));
        assert!(touched("model/src/models/decoder.rs").is_empty(), "all families use it");
    }

    #[test]
    fn a_file_of_a_checkpoint_touches_it() {
        assert_eq!(touched("integration-tests/fixtures/families/llama-yarn/config.json"), ["llama-yarn"]);
        assert_eq!(touched("integration-tests/fixtures/gguf-families/mixtral+each.gguf"), ["mixtral"]);
    }

    #[test]
    fn every_core_checkpoint_exists() {
        for form in &matrix::FORMS {
            let names = Families::checkpoints(form).unwrap();
            if let matrix::Core::Only(core) = form.core {
                core.iter().for_each(|name| assert!(names.contains(&(*name).to_owned()), "{name}"));
            }
        }
    }
}
