//! Columns: the parameters that samplers read, with one number for each row.
//!
//! Entry point: [`Column`]. The file of a processor owns the columns that it reads; [`columns`](super::columns) lists
//! all of them.

use proto::SamplingParams;

use crate::graph::{DType, Input};

/// A sampling parameter, or another number, with one value for each row that samples.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// The name in graphs, unique among columns.
    pub name: &'static str,
    of: Of,
    /// True if only random sampling reads the column. For a greedy row the column then has the value of
    /// [`SamplingParams::greedy`].
    is_of_draws: bool,
}

/// The data of a row from which columns are computed.
#[derive(Debug, Clone, Copy)]
pub(super) struct ColumnRow<'a> {
    pub(super) params: &'a SamplingParams,
    /// The number of tokens that the row has generated before this step.
    pub(super) num_generated: u32,
}

/// The value of a column for one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// Single precision.
    F32(f32),
    /// A signed integer.
    I32(i32),
    /// An unsigned integer.
    U32(u32),
}

/// The function that computes a column's value for a row; the variant gives the type of the value.
#[derive(Debug, Clone, Copy)]
enum Of {
    F32(fn(&ColumnRow<'_>) -> f32),
    Limit(fn(&ColumnRow<'_>) -> u32),
    U32(fn(&ColumnRow<'_>) -> u32),
}

impl Column {
    /// Returns a column of floats.
    pub(super) const fn f32(name: &'static str, of: fn(&ColumnRow<'_>) -> f32) -> Self {
        Self { name, of: Of::F32(of), is_of_draws: false }
    }

    /// Returns a column of limits, each a number of tokens, as i32. A limit of 2^31 tokens or more becomes `i32::MAX`,
    /// which limits nothing.
    pub(super) const fn limit(name: &'static str, of: fn(&ColumnRow<'_>) -> u32) -> Self {
        Self { name, of: Of::Limit(of), is_of_draws: false }
    }

    /// Returns a column of unsigned 32-bit integers.
    pub(super) const fn u32(name: &'static str, of: fn(&ColumnRow<'_>) -> u32) -> Self {
        Self { name, of: Of::U32(of), is_of_draws: false }
    }

    /// Marks the column as read only by random sampling: for greedy rows it has the value of
    /// [`SamplingParams::greedy`].
    pub(super) const fn of_draws(self) -> Self {
        Self { is_of_draws: true, ..self }
    }

    /// Returns the column as an input of a graph, `[rows]`.
    pub fn input(&self) -> Input {
        let dtype = match self.of {
            Of::F32(_) => DType::F32,
            Of::Limit(_) => DType::I32,
            Of::U32(_) => DType::U32,
        };
        Input::Sampling { name: self.name, dtype }
    }

    /// Returns the column's value for a row.
    pub(super) fn number(&self, row: &ColumnRow<'_>) -> Number {
        let neutral = SamplingParams::greedy();
        let is_neutral = self.is_of_draws && row.params.is_greedy;
        let row = if is_neutral { &ColumnRow { params: &neutral, ..*row } } else { row };
        match self.of {
            Of::F32(of) => Number::F32(of(row)),
            Of::Limit(of) => Number::I32(i32::try_from(of(row)).unwrap_or(i32::MAX)),
            Of::U32(of) => Number::U32(of(row)),
        }
    }
}

impl Number {
    /// Returns the bit pattern of the number.
    pub fn bits(self) -> u32 {
        match self {
            Self::F32(number) => number.to_bits(),
            Self::I32(number) => number.cast_unsigned(),
            Self::U32(number) => number,
        }
    }
}
