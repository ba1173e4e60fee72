//! Tests of the probes on XLA-CPU, and of the numbers on the page.

use devices::plugins::testing::plugin_path;
use devices::{Device, xla_cpu};

use super::page::{bytes, duration, readable};
use super::*;

/// The lines whose values differ between machines, and with the load of a machine.
const OF_MACHINE: [&str; 14] = [
    "plugin",
    "PJRT API",
    "plugin attributes",
    "plugin extensions",
    "platform version",
    "device 0",
    "device 1",
    "topology fingerprint",
    "topology attributes",
    "small program, memory",
    "ahead of time, 1 device(s), serialized",
    "ahead of time, 2 device(s), serialized",
    "one launch",
    "second launched while the first runs",
];

fn options(plugin_path: PathBuf, first: usize) -> ProbeOptions {
    let platform = Platform::new(Device::XLA_CPU, &xla_cpu::PLATFORM);
    ProbeOptions { platform, plugin_path: Some(plugin_path), num_devices: Some(2), first, slices: |_, _| Vec::new() }
}

fn events(options: &ProbeOptions) -> Vec<ProbeEvent> {
    let mut events = Vec::new();
    probe(options, &mut |event| events.push(event));
    events
}

fn lines(events: Vec<ProbeEvent>) -> Vec<ProbeLine> {
    let line = |event| match event {
        ProbeEvent::Line(line) => Some(line),
        ProbeEvent::Begin(_) => None,
    };
    events.into_iter().filter_map(line).collect()
}

/// Returns the text of a line. `_` replaces the whole value if [`OF_MACHINE`] names the line, otherwise times, speeds,
/// their units, numbers of repetitions and fingerprints.
fn redacted(line: &ProbeLine) -> String {
    let ProbeLine { name, value } = line;
    if value.is_ok() && OF_MACHINE.contains(&name.as_str()) {
        return format!("{name}: _");
    }
    let value = value.as_ref().map_or_else(|reason| format!("failed: {reason}"), Clone::clone);
    let words: Vec<&str> = value.split(' ').collect();
    let bare = |word: &str| word.trim_matches([',', ';', '(', ')']).to_owned();
    let is_number = |index: usize| words.get(index).is_some_and(|word| bare(word).parse::<f64>().is_ok());
    let is_unit =
        |index: usize| words.get(index).is_some_and(|word| ["µs", "ms", "s", "GB/s"].contains(&bare(word).as_str()));
    let is_fingerprint = |word: &str| word.len() >= 16 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let text = words.iter().enumerate().map(|(index, word)| {
        let repeats = index > 0 && words[index - 1] == "of" && value.contains("(median of");
        let is_of_time = is_number(index) && (is_unit(index + 1) || repeats);
        let is_of_machine = is_of_time || is_fingerprint(word) || index > 0 && is_unit(index) && is_number(index - 1);
        if is_of_machine { word.replace(&bare(word), "_") } else { (*word).to_owned() }
    });
    format!("{name}: {}", text.collect::<Vec<_>>().join(" "))
}

#[test]
fn every_probe_has_a_result_on_xla_cpu() {
    let Some(path) = plugin_path(Device::XLA_CPU) else { return };
    let events = events(&options(path, 0));
    let begun: Vec<usize> = events
        .iter()
        .filter_map(|event| match event {
            ProbeEvent::Begin(index) => Some(*index),
            ProbeEvent::Line(_) => None,
        })
        .collect();
    assert_eq!(begun, (0..PROBES.len()).collect::<Vec<_>>());
    let page: Vec<String> = lines(events).iter().map(redacted).collect();
    insta::assert_snapshot!(page.join("\n"));
}

#[test]
fn a_child_goes_on_where_another_one_ended() {
    let Some(path) = plugin_path(Device::XLA_CPU) else { return };
    let lines = lines(events(&options(path, SLICES - 1)));
    let (last, ahead) = lines.split_at(lines.len() - 2);
    assert!(!last.is_empty() && last.iter().all(|line| line.name.starts_with("ahead of time, 2")), "{lines:?}");
    assert_eq!(ahead.iter().map(|line| line.name.as_str()).collect::<Vec<_>>(), ["topologies by name", "teardown"]);
}

#[test]
fn without_a_plugin_every_probe_says_so() {
    let lines = lines(events(&options("/no/such/file".into(), 0)));
    assert_eq!(lines.len(), PROBES.len());
    let reasons: Vec<String> = lines.into_iter().filter_map(|line| line.value.err()).collect();
    assert!(reasons[0].contains("--plugin-path is \"/no/such/file\""), "{reasons:?}");
    assert_eq!(reasons[1..], vec!["not tried, because there is no client"; PROBES.len() - 1]);
}

#[test]
fn numbers_have_units() {
    assert_eq!(duration(Duration::from_nanos(12_340)), "12.3 µs");
    assert_eq!(duration(Duration::from_micros(2_350)), "2.35 ms");
    assert_eq!(duration(Duration::from_millis(61_500)), "61.50 s");
    assert_eq!(bytes(512), "512 bytes");
    assert_eq!(bytes(3 << 20), "3145728 bytes (3.0 MiB)");
    assert_eq!(readable(b"a1-b2"), "a1-b2");
    assert_eq!(readable(&[0, 0xab]), "00ab");
}

#[test]
fn chips_fill_a_box() {
    let device = |coords: Option<[i64; 3]>| pjrt::DeviceDescription {
        id: 0,
        process_index: 0,
        kind: String::new(),
        debug_string: String::new(),
        attributes: coords.into_iter().map(|coords| ("coords".to_owned(), Value::I64List(coords.to_vec()))).collect(),
    };
    let devices = [[2, 0, 0], [3, 3, 0], [2, 1, 0]].map(|coords| device(Some(coords)));
    assert_eq!(slices::bounds(&devices.iter().collect::<Vec<_>>()), Some(vec![2, 4, 1]));
    assert_eq!(slices::bounds(&[&device(None)]), None);
    assert_eq!(slices::bounds(&[]), None);
}
