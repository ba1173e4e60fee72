//! `plugin list`: every plugin, its pinned version, and its path on this machine.

use devices::plugins::{self, Plugin, PluginError, Surroundings, find};

use super::notice::megabytes;

const HEADINGS: [&str; 5] = ["KIND", "PACKAGE", "VERSION", "SIZE", "FOUND"];

/// Returns the table with aligned columns. The size is that of the plugin's file, or that of its wheel if the file was
/// not found.
pub(crate) fn table(surroundings: &Surroundings) -> String {
    let headings = HEADINGS.map(str::to_owned);
    let rows: Vec<[String; 5]> =
        std::iter::once(headings).chain(plugins::all().map(|plugin| row(plugin, surroundings))).collect();
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

fn row(plugin: &Plugin, surroundings: &Surroundings) -> [String; 5] {
    let Plugin { name, package, version, wheel, .. } = plugin;
    let wheel_size = || format!("{} wheel", megabytes(wheel.size_bytes));
    let (size, found) = match find(plugin, None, surroundings) {
        Ok(found) => {
            let size = found.path.metadata().map_or_else(|_| "unknown".to_owned(), |file| megabytes(file.len()));
            (size, format!("{} ({})", found.path.display(), found.source))
        }
        Err(PluginError::NotFound { .. }) => {
            (wheel_size(), format!("not found; text-generation-launcher plugin fetch {name}"))
        }
        Err(error @ PluginError::Named { .. }) => (wheel_size(), error.to_string()),
    };
    [(*name).to_owned(), (*package).to_owned(), (*version).to_owned(), size, found]
}
