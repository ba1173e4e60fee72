//! The words on the command line.

/// The time in seconds after which nothing that was drawn begins.
const SECONDS: u64 = 2400;

pub(crate) const HELP: &str = "\
.ci/run [OPTION ...] [STEP ...] [STEP/UNIT ...]

Without arguments: the core, what the newest change touches, and a sample of the rest, drawn by the hash of the commit.

  --list [CHANGE]   prints what a run of this commit or range of commits takes, and runs nothing
  --like COMMIT     takes what the run of this commit took
  --seconds N       begins nothing that was drawn after N seconds (2400)
  --full            everything, also the images from source and black-box tests of the release build
  STEP, STEP/UNIT   only these, whole: `.ci/run clients/openai xla/llama-yarn`; `--list` names them
";

/// A request for a run or a list.
#[derive(Debug, PartialEq)]
pub(crate) enum Mode {
    Help,
    /// Lists the choice for a commit or range, or for the newest change.
    List(Option<String>),
    /// Runs the choice for a commit, or for the newest change.
    Run(Option<String>),
    Full,
    /// Runs units and steps with these names.
    Named(Vec<String>),
}

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) mode: Mode,
    /// The time in seconds after which nothing that was drawn begins.
    pub(crate) seconds: u64,
}

impl Options {
    /// Parses words.
    ///
    /// # Errors
    /// When an option is unknown, lacks its value, or does not go with another.
    pub(crate) fn parse(words: &[String]) -> Result<Self, String> {
        let (mut modes, mut names, mut seconds) = (Vec::new(), Vec::new(), SECONDS);
        let mut words = words.iter().map(String::as_str).peekable();
        while let Some(word) = words.next() {
            match word {
                "--help" | "-h" => modes.push(Mode::Help),
                "--full" => modes.push(Mode::Full),
                "--list" => modes.push(Mode::List(words.next_if(|word| !word.starts_with('-')).map(str::to_owned))),
                "--like" => {
                    let commit = words.next().ok_or("--like needs a commit, as in --like HEAD~2")?;
                    modes.push(Mode::Run(Some(commit.to_owned())));
                }
                "--seconds" => {
                    let number = words.next().unwrap_or_default();
                    let error = |_| format!("--seconds needs a whole number of seconds, not {number:?}");
                    seconds = number.parse().map_err(error)?;
                }
                word if word.starts_with('-') => return Err(format!("there is no option {word}\n\n{HELP}")),
                name => names.push(name.to_owned()),
            }
        }
        if !names.is_empty() {
            modes.push(Mode::Named(names));
        }
        if modes.len() > 1 {
            return Err(format!("--list, --like, --full and names of steps exclude each other\n\n{HELP}"));
        }
        Ok(Self { mode: modes.pop().unwrap_or(Mode::Run(None)), seconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<(Mode, u64), String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&words).map(|options| (options.mode, options.seconds))
    }

    #[test]
    fn words_choose_one_mode() {
        assert_eq!(parse(""), Ok((Mode::Run(None), SECONDS)));
        assert_eq!(parse("--list"), Ok((Mode::List(None), SECONDS)));
        assert_eq!(parse("--list HEAD~3..HEAD"), Ok((Mode::List(Some("HEAD~3..HEAD".to_owned())), SECONDS)));
        assert_eq!(parse("--like abc --seconds 60"), Ok((Mode::Run(Some("abc".to_owned())), 60)));
        assert_eq!(parse("it/hosts xla"), Ok((Mode::Named(vec!["it/hosts".to_owned(), "xla".to_owned()]), SECONDS)));
    }

    #[test]
    fn wrong_words_are_named() {
        assert!(parse("--fast").unwrap_err().starts_with("there is no option --fast"));
        assert!(parse("--seconds soon").unwrap_err().contains("\"soon\""));
        assert!(parse("--full --list").unwrap_err().contains("exclude each other"));
    }
}
