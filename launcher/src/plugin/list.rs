//! `plugin list`: every plugin and the packages of its libraries, with their pinned versions, sizes and paths on this
//! machine.

use std::path::PathBuf;

use devices::plugins::{self, FoundPlugin, Package, Plugin, PluginError, Surroundings, find};

use super::notice::megabytes;

const HEADINGS: [&str; 5] = ["KIND", "PACKAGE", "VERSION", "SIZE", "FOUND"];

/// Returns the table with aligned columns. The rows of a plugin's libraries come after that of the plugin. The size is
/// that of the files, or that of the wheel if a file was not found.
pub(crate) fn table(surroundings: &Surroundings) -> String {
    let headings = HEADINGS.map(str::to_owned);
    let rows: Vec<[String; 5]> =
        std::iter::once(headings).chain(plugins::all().flat_map(|plugin| rows(plugin, surroundings))).collect();
    let widths: [usize; 5] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn rows(plugin: &Plugin, surroundings: &Surroundings) -> Vec<[String; 5]> {
    let found = find(plugin, None, surroundings);
    let libraries = plugin.library_packages().iter().map(|package| library_row(plugin, package, found.as_ref().ok()));
    let libraries: Vec<[String; 5]> = libraries.collect();
    std::iter::once(row(plugin, found)).chain(libraries).collect()
}

fn row(plugin: &Plugin, found: Result<FoundPlugin, PluginError>) -> [String; 5] {
    let Plugin { name, package, version, wheel, .. } = plugin;
    let (size, found) = match found {
        Ok(found) => {
            let size = found.path.metadata().map_or_else(|_| "unknown".to_owned(), |file| megabytes(file.len()));
            (size, format!("{} ({})", found.path.display(), found.source))
        }
        Err(PluginError::NotFound { .. }) => (wheel_size(wheel.size_bytes), format!("not found; {}", fetch(plugin))),
        Err(error @ (PluginError::Named { .. } | PluginError::Untrusted { .. } | PluginError::Libraries { .. })) => {
            (wheel_size(wheel.size_bytes), error.to_string())
        }
    };
    [(*name).to_owned(), (*package).to_owned(), (*version).to_owned(), size, found]
}

/// Returns the row of a package with libraries. Only files beside the plugin are looked for, as the pinned version has
/// them; the system may have others.
fn library_row(plugin: &Plugin, package: &Package, found: Option<&FoundPlugin>) -> [String; 5] {
    let site = found.and_then(|found| plugin.site_folder(&found.path));
    let paths: Vec<PathBuf> = site
        .iter()
        .flat_map(|site| package.files.iter().map(|file| site.join(file)))
        .filter(|path| path.extension() != Some("txt".as_ref()))
        .collect();
    let sizes: Option<Vec<u64>> = paths
        .iter()
        .map(|path| path.metadata().ok().filter(std::fs::Metadata::is_file).map(|file| file.len()))
        .collect();
    let (size, place) = match (sizes, paths.first().and_then(|path| path.parent())) {
        (Some(sizes), Some(folder)) => {
            (megabytes(sizes.iter().sum()), format!("{} (beside the plugin)", folder.display()))
        }
        (None | Some(_), _) if found.is_some() => {
            (wheel_size(package.wheel.size_bytes), format!("not beside the plugin; {}", fetch(plugin)))
        }
        (None | Some(_), _) => (wheel_size(package.wheel.size_bytes), format!("not found; {}", fetch(plugin))),
    };
    [String::new(), package.name.to_owned(), package.version.to_owned(), size, place]
}

fn fetch(plugin: &Plugin) -> String {
    format!("text-generation-launcher plugin fetch {}", plugin.name)
}

fn wheel_size(bytes: u64) -> String {
    format!("{} wheel", megabytes(bytes))
}
