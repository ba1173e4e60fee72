//! The matrix of tests: tiny checkpoints, times the forms in which each is computed. A cell is one checkpoint in one
//! form.
//!
//! [`FORMS`] is the table of forms, each with its core: the checkpoints that every run computes in it. `cargo xtask ci`
//! draws more cells and names them in a file; the tests ask [`Cells`] for the checkpoints of a form. It draws nothing
//! itself and runs nothing.

mod cells;
mod forms;

pub use cells::{CELLS_VARIABLE, Cells, Choice, FAMILY_VARIABLE, left_out_path};
pub use forms::{Core, FORMS, Form, form};
