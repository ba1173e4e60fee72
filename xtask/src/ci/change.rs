//! The change under test, as git knows it.

use std::process::Command;

use crate::root;

/// Commits that are at most this much older than the newest one belong to the same change, in seconds.
const ONE_CHANGE_SECONDS: u64 = 4 * 3600;

/// A change: some commits, and the files that they touch.
#[derive(Debug)]
pub(crate) struct Change {
    /// The newest commit.
    pub(crate) commit: String,
    /// The changed files, with their paths in the repository. `None` if the clone lacks the commits before.
    pub(crate) files: Option<Vec<String>>,
}

impl Change {
    /// Reads a commit or a range such as `A..B`. Without one, reads the newest commits and the changes that are not
    /// committed.
    ///
    /// The newest commits are those of the last four hours before the newest. So each clone finds the same commits.
    ///
    /// # Errors
    /// When git fails.
    pub(crate) fn read(which: Option<&str>) -> Result<Self, String> {
        let head = which.unwrap_or("HEAD");
        if head.contains("..") {
            let newest = git(&["rev-list", "--max-count=1", head])?;
            let files = git(&["diff", "--name-only", head])?;
            return Ok(Self { commit: newest.trim().to_owned(), files: Some(sorted(&files)) });
        }
        let commit = git(&["rev-parse", &format!("{head}^{{commit}}")])?.trim().to_owned();
        if git(&["rev-parse", "--quiet", "--verify", &format!("{commit}^")]).is_err() {
            return Ok(Self { commit, files: None });
        }
        let time = git(&["log", "-1", "--format=%ct", &commit])?;
        let time: u64 = time.trim().parse().map_err(|_| format!("git says the time of {commit} is {time:?}"))?;
        let since = format!("--since=@{}", time.saturating_sub(ONE_CHANGE_SECONDS));
        let mut files = git(&["log", &since, "--name-only", "--format=", &commit])?;
        if which.is_none() {
            files += &git(&["diff", "--name-only", "HEAD"])?;
            files += &git(&["ls-files", "--others", "--exclude-standard"])?;
        }
        Ok(Self { commit, files: Some(sorted(&files)) })
    }

    /// A number that only depends on the commit.
    pub(crate) fn seed(&self) -> u64 {
        u64::from_str_radix(&self.commit[..self.commit.len().min(16)], 16).unwrap_or_default()
    }

    /// True if the change touches a file whose path begins with one of `prefixes`. A prefix that begins with `*` is the
    /// end of a path.
    pub(crate) fn touches(&self, prefixes: &[&str]) -> bool {
        let is_in = |file: &str, prefix: &str| match prefix.strip_prefix('*') {
            Some(end) => file.ends_with(end),
            None => file.starts_with(prefix),
        };
        self.files.iter().flatten().any(|file| prefixes.iter().any(|prefix| is_in(file, prefix)))
    }
}

fn sorted(lines: &str) -> Vec<String> {
    let mut files: Vec<String> = lines.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    files.sort();
    files.dedup();
    files
}

/// Returns the output of a command of git in the repository.
fn git(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("git").args(arguments).current_dir(root()).output();
    let output = output.map_err(|error| format!("git cannot be started: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("git {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}
