//! The facts about the plugin and the client, with the times that opening them takes.

use std::time::Duration;

use pjrt::{Client, Plugin, Value};

use super::page::{Page, bytes, duration};

/// The maximum number of characters of a plugin's text that the page shows.
const MAX_CHARS: usize = 100;

/// Adds the lines about the plugin, which took `time` to open.
pub(super) fn plugin(plugin: &Plugin, time: Duration, page: &mut Page<'_>) {
    let path = plugin.path();
    let size = std::fs::metadata(path).map_or_else(|error| error.to_string(), |file| bytes(file.len()));
    page.line("plugin", format!("{}, {size}", path.display()));
    let (major, minor) = plugin.api_version();
    page.line("PJRT API", format!("{major}.{minor}"));
    page.line("plugin attributes", attributes(plugin.attributes()));
    let extensions: Vec<String> = plugin.extensions().iter().map(|kind| format!("{kind:?}")).collect();
    page.line("plugin extensions", extensions.join(", "));
    page.line("time to open the plugin", duration(time));
}

/// Adds the lines about the client, which took `time` to create.
pub(super) fn client(client: &Client, time: Duration, page: &mut Page<'_>) {
    page.line("platform", client.platform_name());
    page.line("platform version", one_line(client.platform_version()));
    page.line("process index", client.process_index().to_string());
    page.line("time to create the client", duration(time));
}

/// Returns attributes as `name=value`, separated by commas.
pub(super) fn attributes(attributes: &[(String, Value)]) -> String {
    let text = |(name, value): &(String, Value)| {
        let value = match value {
            Value::String(text) => one_line(text),
            Value::I64(value) => value.to_string(),
            Value::I64List(values) => numbers(values),
            Value::F32(value) => value.to_string(),
            Value::Bool(value) => value.to_string(),
        };
        format!("{name}={value}")
    };
    if attributes.is_empty() {
        return "none".to_owned();
    }
    attributes.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Returns numbers separated by commas.
pub(super) fn numbers(values: &[i64]) -> String {
    values.iter().map(i64::to_string).collect::<Vec<_>>().join(",")
}

/// Returns the start of a text on one line.
fn one_line(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.chars().count() <= MAX_CHARS {
        return words;
    }
    let start: String = words.chars().take(MAX_CHARS).collect();
    format!("{start}… ({} bytes)", text.len())
}
