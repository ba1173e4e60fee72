//! The lists that a run prints.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use matrix::{Choice, FORMS};

use super::choice::{Chosen, Item};
use super::lanes::lines;
use super::steps::{STEPS, Step};

/// Times of steps that have ended, and the units that were left out for lack of time.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// Step, true for its drawn units, estimate and time.
    steps: Vec<(&'static Step, bool, u64, Duration)>,
    left_out: Vec<String>,
}

impl Times {
    pub(crate) fn add(&mut self, step: &'static Step, is_drawn: bool, estimate: u64, time: Duration) {
        self.steps.push((step, is_drawn, estimate, time));
    }

    pub(crate) fn leave_out(&mut self, names: impl Iterator<Item = String>) {
        self.left_out.extend(names);
    }

    /// Returns how many times as long as estimated the steps took; at least 0.5.
    pub(crate) fn factor(&self) -> f64 {
        let estimate: u64 = self.steps.iter().map(|(_, _, estimate, _)| estimate).sum();
        let time: f64 = self.steps.iter().map(|(_, _, _, time)| time.as_secs_f64()).sum();
        // Little has ended at the beginning, and says little.
        let known = 60.0;
        ((time + known) / (estimate as f64 + known)).max(0.5)
    }
}

/// Returns the list of units and cells that a run takes, for people.
pub(crate) fn list(chosen: &Chosen) -> String {
    let mut text = format!("The choice for {}:\n", chosen.of);
    if chosen.is_shallow {
        text += "(The clone lacks the commits before this one, so nothing counts as touched.)\n";
    }
    let names = STEPS.iter().map(|step| step.name).chain(FORMS.iter().map(|form| form.name));
    for name in names {
        text += &format!("  {name}\n");
        for choice in [Choice::Core, Choice::Touched, Choice::Drawn] {
            let taken = chosen.taken.iter().filter(|(of, _)| *of == choice).map(|(_, item)| item);
            text += &names_of(choice.word(), name, taken);
        }
        text += &names_of("left", name, chosen.left.iter());
    }
    text
}

/// Returns a line with the names of the items in a step or form, or nothing if there are none.
fn names_of<'a>(word: &str, step: &str, items: impl Iterator<Item = &'a Item>) -> String {
    let names: Vec<&str> = items.map(Item::names).filter(|(of, _)| *of == step).map(|(_, name)| name).collect();
    if names.is_empty() { String::new() } else { format!("    {word}: {}\n", names.join(" ")) }
}

/// Returns the end of a run for people: times, what was left out, skipped tests, and how to repeat the choice.
pub(crate) fn end(chosen: &Chosen, times: &Times, folder: &Path, altogether: Duration) -> String {
    let mut text = String::from("\n");
    for (step, is_drawn, estimate, time) in &times.steps {
        let drawn = if *is_drawn { ", drawn" } else { "" };
        text += &format!("{:5} s of {estimate:4}  {}{drawn}\n", time.as_secs(), step.name);
    }
    text += &format!("{:5} s          altogether\n", altogether.as_secs());
    let cells = lines(folder, "cells.left-out").into_iter().map(|line| line.replace(' ', "/"));
    let left_out: Vec<String> = times.left_out.iter().cloned().chain(cells).collect();
    if !left_out.is_empty() {
        text += &format!("\nLeft out for lack of time, {}: .ci/run {}\n", left_out.len(), left_out.join(" "));
    }
    let mut skips: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in lines(folder, "skips") {
        let (test, reason) = line.split_once('\t').unwrap_or((&line, "without a reason"));
        skips.entry(reason.to_owned()).or_default().push(test.to_owned());
    }
    for (reason, tests) in skips {
        text += &format!("\nSkipped, {} tests: {reason}: {}\n", tests.len(), tests.join(" "));
    }
    text + &format!("\nThe same choice again: .ci/run --like {}\n", chosen.of)
}
