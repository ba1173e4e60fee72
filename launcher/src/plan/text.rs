//! Formats a plan for people: the machine, the processes, and every variable with its reason.

use std::fmt::Write as _;

use devices::tpu::Chip;

use super::{ChildPlan, LaunchPlan, Machine};
use crate::tpu::devices_per_chip;
use crate::variables::Variable;

/// The flags that the text shows of a child's arguments.
const FLAGS: [&str; 7] =
    ["--model-id", "--device", "--shard", "--num-shards", "--devices-per-shard", "--collective-path", "--port"];

/// Returns the text of a plan. `device` names the device and why it was chosen; the `remarks` follow the plan, one per
/// line.
pub(crate) fn text(plan: &LaunchPlan, machine: &Machine, device: &str, remarks: &[String]) -> String {
    let mut text = format!("device   {device}\n");
    for (index, chip) in machine.chips.iter().enumerate() {
        let is_used = plan.slice.as_ref().is_some_and(|slice| slice.chips.contains(&index));
        text += &chip_line(index, chip, is_used);
    }
    if plan.hosts.num() > 1 {
        text += &hosts(plan);
    }
    let common = common_variables(plan);
    if !common.is_empty() {
        text += "\nevery shard\n";
        text += &table(&common);
    }
    for shard in &plan.shards {
        let own: Vec<&Variable> = shard.child.variables.iter().filter(|variable| !common.contains(variable)).collect();
        let _ = write!(text, "\n{:<8} {}\n", shard.child.id.to_string(), short_argv(&shard.child));
        let _ = writeln!(text, "  socket {}", shard.endpoint);
        text += &table(&own);
    }
    match &plan.router {
        Some(router) => _ = write!(text, "\n{:<8} {}\n", "router", short_argv(router)),
        None => text += "\nno router: host 0 has it, and this host serves only /health and /metrics\n",
    }
    let notes = plan.slice.iter().flat_map(|slice| slice.notes.clone());
    let notes = notes.map(|note| format!("note: {note}"));
    let lines: Vec<String> = notes.chain(remarks.iter().cloned()).map(|line| line + "\n").collect();
    if lines.is_empty() { text } else { text + "\n" + &lines.concat() }
}

/// The hosts of the slice, with their doors and shards.
fn hosts(plan: &LaunchPlan) -> String {
    let num_shard = plan.shards.len();
    let mut text = format!(
        "slice    {} hosts with {} shard(s), this is host {}\n",
        plan.hosts.num(),
        plan.endpoints.len(),
        plan.hosts.index
    );
    for (index, host) in plan.hosts.all.iter().enumerate() {
        let (first, last) = (index * num_shard, (index + 1) * num_shard - 1);
        let shards = if first == last { format!("shard {first}") } else { format!("shards {first} to {last}") };
        let door =
            if index == 0 { format!("{}  router", host.name) } else { format!("{}  door {}", host.name, host.port) };
        let own = if index == plan.hosts.index { "  this host" } else { "" };
        let _ = writeln!(text, "host {index:<3} {door}, {shards}{own}");
    }
    for (host, id, endpoint) in plan.remote_shards() {
        let _ = writeln!(text, "relay    {endpoint} to {id} of host {host}");
    }
    text
}

fn chip_line(index: usize, chip: &Chip, is_used: bool) -> String {
    let (name, devices) = (chip.generation.name(), devices_per_chip(chip.generation));
    let use_of_it = if is_used { "" } else { "  not used" };
    let (node, address) = (chip.node.display().to_string(), &chip.pci_address);
    format!("chip {index:<3} {name:<6} {node:<14} PCI {address}  {devices} device(s){use_of_it}\n")
}

/// The variables that have the same value in all shards; empty for a single shard.
fn common_variables(plan: &LaunchPlan) -> Vec<&Variable> {
    let Some((first, others)) = plan.shards.split_first() else { return Vec::new() };
    let is_everywhere = |variable: &&Variable| {
        others.iter().all(|shard| shard.child.variables.contains(variable)) && !others.is_empty()
    };
    first.child.variables.iter().filter(is_everywhere).collect()
}

fn table(variables: &[&Variable]) -> String {
    let width = |text: fn(&Variable) -> usize| variables.iter().map(|variable| text(variable)).max().unwrap_or(0);
    let names = width(|variable| variable.name.len());
    let values = width(|variable| variable.value.len()).min(32);
    let mut table = String::new();
    for Variable { name, value, reason, is_yours } in variables.iter().copied() {
        let reason = if *is_yours { "yours" } else { reason };
        let _ = writeln!(table, "  {name:<names$}  {value:<values$}  {reason}");
    }
    table
}

/// The child's subcommand, and those of its flags that are in [`FLAGS`].
fn short_argv(child: &ChildPlan) -> String {
    let words = child.argv.iter().map(|word| word.to_string_lossy());
    // Some arguments are a flag and its value in one word.
    let split = |word: &str| match word.split_once('=').filter(|_| word.starts_with("--")) {
        Some((flag, value)) => vec![flag.to_owned(), value.to_owned()],
        None => vec![word.to_owned()],
    };
    let words: Vec<String> = words.flat_map(|word| split(&word)).collect();
    let pairs = words.windows(2).filter(|pair| FLAGS.contains(&pair[0].as_str())).map(|pair| pair.join(" "));
    words.first().cloned().into_iter().chain(pairs).collect::<Vec<_>>().join(" ")
}
