//! The sampling parameters of a step's rows as columns, in the layout that devices read.
//!
//! Entry point: [`SamplingInputs`]. Columns that only random sampling reads have neutral values for greedy rows. So a
//! graph with all processors chooses the same token for a greedy row as the row's own graph.

use proto::SamplingParams;

use super::column::{ColumnRow, Number};
use super::columns;
use crate::fingerprint::Fingerprint;

/// The values of all [`columns`], with one entry for each row that samples.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingInputs {
    columns: Vec<Vec<Number>>,
}

impl Default for SamplingInputs {
    /// Returns columns without rows.
    fn default() -> Self {
        Self { columns: columns().map(|_| Vec::new()).collect() }
    }
}

impl SamplingInputs {
    /// Adds a row that has generated `num_generated` tokens before this step.
    pub fn push(&mut self, params: &SamplingParams, num_generated: u32) {
        let row = ColumnRow { params, num_generated };
        for (column, numbers) in columns().zip(&mut self.columns) {
            numbers.push(column.number(&row));
        }
    }

    /// Returns `fingerprint` with all values added.
    pub fn fingerprint(&self, fingerprint: Fingerprint) -> Fingerprint {
        fingerprint.numbers(self.columns.iter().flatten().map(|number| u64::from(number.bits())))
    }

    /// Returns the values of all [`columns`], in their order, each `[rows]`.
    pub fn columns(&self) -> &[Vec<Number>] {
        &self.columns
    }

    /// Returns the values of the column `name`, `[rows]`.
    ///
    /// # Panics
    /// When no column has this name.
    pub fn column(&self, name: &str) -> &[Number] {
        let index = columns().position(|column| column.name == name).expect("a graph reads columns of its samplers");
        &self.columns[index]
    }
}
