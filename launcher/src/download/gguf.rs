//! Selects the GGUF files of one quantization from the names of a model's files.
//!
//! Entry point: [`choose`]. Nothing here reads a file or uses the network.

use std::collections::BTreeMap;

use model_files::Part;

/// The quantization that is chosen if none is asked for and the model has several.
const USUAL: &str = "Q4_K_M";
const ENDING: &str = ".gguf";
/// The start of the names of files with towers for images.
const TOWERS: &str = "mmproj";

/// The reason why no files can be chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Undecided {
    /// The model has none of the quantization. These are the models that there are, by their first files.
    None(Vec<String>),
    /// Several models fit.
    Several(Vec<String>),
    /// Files of the set are missing.
    Missing(Vec<String>),
}

/// Returns the files of the model with the quantization, the first one first. Without a quantization, returns those of
/// Q4_K_M, or those of the only model.
///
/// # Errors
/// When no model or several fit, or a file of a set is missing.
pub(crate) fn choose(names: &[String], quantization: Option<&str>) -> Result<Vec<String>, Undecided> {
    // Each model in several files is one entry, with the number of its files.
    let mut models: BTreeMap<String, usize> = BTreeMap::new();
    for name in names.iter().filter(|name| is_model(name)) {
        match Part::of(name) {
            Some(part) => models.insert(part.name(1), part.count),
            None => models.insert(name.clone(), 1),
        };
    }
    let all = || models.keys().cloned().collect::<Vec<_>>();
    let fits = |quantization: &str| all().into_iter().filter(|name| has(name, quantization)).collect::<Vec<_>>();
    let fitting = match quantization {
        Some(quantization) => fits(quantization),
        None => match fits(USUAL) {
            usual if usual.len() == 1 => usual,
            _ => all(),
        },
    };
    let first = match fitting.as_slice() {
        [] => return Err(Undecided::None(all())),
        [first] => first.clone(),
        _ => return Err(Undecided::Several(fitting)),
    };
    let files = match Part::of(&first) {
        Some(part) => (1..=models[&first]).map(|number| part.name(number)).collect(),
        None => vec![first],
    };
    let missing: Vec<String> = files.iter().filter(|file| !names.contains(file)).cloned().collect();
    if missing.is_empty() { Ok(files) } else { Err(Undecided::Missing(missing)) }
}

/// True if the file is a model, and its name has no characters with a meaning in a URL.
fn is_model(name: &str) -> bool {
    let own = name.rsplit('/').next().unwrap_or(name);
    let is_plain = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains(['\\', '?', '#', '%']);
    own.ends_with(ENDING) && !own.to_ascii_lowercase().starts_with(TOWERS) && name.split('/').all(is_plain)
}

/// True if the name has the quantization as a word of its own, in any case.
fn has(name: &str, quantization: &str) -> bool {
    let (name, wanted) = (name.to_ascii_lowercase(), quantization.to_ascii_lowercase());
    let is_end = |letter: Option<char>| letter.is_none_or(|letter| !letter.is_ascii_alphanumeric() && letter != '_');
    let is_start = |letter: Option<char>| letter.is_none_or(|letter| !letter.is_ascii_alphanumeric());
    name.match_indices(&wanted)
        .any(|(at, found)| is_start(name[..at].chars().next_back()) && is_end(name[at + found.len()..].chars().next()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 10] = [
        "README.md",
        "mmproj-model-f16.gguf",
        "m-Q4_K_M.gguf",
        "m-Q4_K_S.gguf",
        "m-IQ4_K_M.gguf",
        "m-IQ4_XS.gguf",
        "m.q8_0.gguf",
        "BF16/m-BF16-00001-of-00002.gguf",
        "BF16/m-BF16-00002-of-00002.gguf",
        "m-Q6_K-00001-of-00002.gguf",
    ];

    fn chosen(names: &[&str], quantization: Option<&str>) -> Result<Vec<String>, Undecided> {
        choose(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), quantization)
    }

    #[test]
    fn a_quantization_is_a_word_of_the_name() {
        let one = |name: &str| Ok(vec![name.to_owned()]);
        assert_eq!(chosen(&NAMES, Some("Q4_K_M")), one("m-Q4_K_M.gguf"));
        assert_eq!(chosen(&NAMES, Some("q4_k_m")), one("m-Q4_K_M.gguf"));
        assert_eq!(chosen(&NAMES, Some("Q8_0")), one("m.q8_0.gguf"));
        assert_eq!(chosen(&NAMES, Some("iq4_xs")), one("m-IQ4_XS.gguf"));
        assert_eq!(chosen(&NAMES, None), one("m-Q4_K_M.gguf"));
        assert_eq!(chosen(&["x/m-Q5_0.gguf"], None), one("x/m-Q5_0.gguf"));
        let both = ["BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf"].map(str::to_owned);
        assert_eq!(chosen(&NAMES, Some("bf16")), Ok(both.to_vec()));
    }

    #[test]
    fn the_quantizations_that_exist_are_listed() {
        let there = [
            "BF16/m-BF16-00001-of-00002.gguf",
            "m-IQ4_K_M.gguf",
            "m-IQ4_XS.gguf",
            "m-Q4_K_M.gguf",
            "m-Q4_K_S.gguf",
            "m-Q6_K-00001-of-00002.gguf",
            "m.q8_0.gguf",
        ]
        .map(str::to_owned)
        .to_vec();
        for other in ["Q4_K", "Q4_XS", "Q2_K", "F16", "mmproj"] {
            assert_eq!(chosen(&NAMES, Some(other)), Err(Undecided::None(there.clone())), "{other}");
        }
        let two = ["a-Q5_0.gguf", "a-Q8_0.gguf"];
        assert_eq!(chosen(&two, None), Err(Undecided::Several(two.map(str::to_owned).to_vec())));
        assert_eq!(chosen(&["README.md"], None), Err(Undecided::None(Vec::new())));
        let missing = vec!["m-Q6_K-00002-of-00002.gguf".to_owned()];
        assert_eq!(chosen(&NAMES, Some("Q6_K")), Err(Undecided::Missing(missing)));
        for odd in ["../m-Q4_0.gguf", "a?b.gguf", ".m.gguf"] {
            assert_eq!(chosen(&[odd], None), Err(Undecided::None(Vec::new())), "{odd}");
        }
    }
}
