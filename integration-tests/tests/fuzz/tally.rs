//! Counts requests by their outcomes, and prints violations as soon as they are found.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use crate::requests::Request;
use crate::worker::Outcome;

/// The number of violations after which the test stops.
const MAX_VIOLATIONS: usize = 20;
/// The maximum number of bytes of an answer that are printed.
const MAX_PRINTED_BYTES: usize = 300;

/// The outcomes that are counted: groups of statuses, lost answers, and clients that left.
const COLUMNS: [&str; 6] = ["2xx", "4xx", "424", "5xx", "lost", "left"];

/// The position of a request in a run: the number of its client, and its number among the client's requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) worker: u64,
    pub(crate) number: u64,
}

/// The number of requests by route and by outcome, and the number of violations.
#[derive(Debug)]
pub(crate) struct Tally {
    seed: u64,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    rows: BTreeMap<&'static str, [u64; COLUMNS.len()]>,
    num_violations: usize,
}

impl Tally {
    /// Creates an empty tally.
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, counts: Mutex::default() }
    }

    /// Counts a request, and prints its fault if it has one. Returns false when the test should stop because of too
    /// many violations.
    pub(crate) fn add(&self, request: &Request, place: Place, outcome: &Outcome, fault: Option<&str>) -> bool {
        let mut counts = self.lock();
        counts.rows.entry(request.path).or_default()[column(outcome)] += 1;
        if let Some(fault) = fault {
            counts.num_violations += 1;
            self.print(counts.num_violations, request, place, outcome);
            println!("{fault}\n");
        }
        counts.num_violations < MAX_VIOLATIONS
    }

    /// The number of violations so far.
    pub(crate) fn num_violations(&self) -> usize {
        self.lock().num_violations
    }

    /// The counts so far, as a table.
    pub(crate) fn table(&self) -> String {
        let counts = self.lock();
        let mut total = [0_u64; COLUMNS.len()];
        counts.rows.values().flat_map(|row| row.iter().enumerate()).for_each(|(index, count)| total[index] += count);
        let cells = |cells: [String; COLUMNS.len()]| cells.map(|cell| format!("{cell:>8}")).concat();
        let line = |name: &str, row: [u64; COLUMNS.len()]| {
            format!("{name:<26}{:>8}{}\n", row.iter().sum::<u64>(), cells(row.map(|count| count.to_string())))
        };
        let head = format!("{:<26}{:>8}{}\n", "route", "all", cells(COLUMNS.map(str::to_owned)));
        let rows = counts.rows.iter().map(|(path, row)| line(path, *row));
        [head].into_iter().chain(rows).chain([line("all", total)]).collect()
    }

    fn print(&self, number: usize, request: &Request, Place { worker, number: place }: Place, outcome: &Outcome) {
        let body = request.body.to_string().replace('\'', r"'\''");
        println!("violation {number}: seed {}, worker {worker}, request {place}", self.seed);
        println!("curl localhost:3000{} -H 'content-type: application/json' -d '{body}'", request.path);
        if let Outcome::Answered(answer) = outcome {
            println!("{} {}", answer.status, &answer.text[..answer.text.floor_char_boundary(MAX_PRINTED_BYTES)]);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().expect("no thread panics with the lock")
    }
}

fn column(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Answered(answer) => match answer.status {
            200..300 => 0,
            424 => 2,
            400..500 => 1,
            _ => 3,
        },
        Outcome::Lost(_) => 4,
        Outcome::Left => 5,
    }
}
