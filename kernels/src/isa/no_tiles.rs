//! A stand-in for AMX on other architectures: a type `Tiles` that has no values.

use crate::lines::{Ahead, Block, Line};

/// An uninhabited type: its methods can never be called.
pub(crate) enum Tiles {}

impl Tiles {
    pub(crate) fn add_bf16_product(&self, _left: &[Line], _right: &[Line], _ahead: Ahead, _sums: &mut Block<f32>) {
        match *self {}
    }

    pub(crate) fn bf16_dots(&self, _left: &[Line], _right: &[Line], _half: usize, _dots: &mut Block<f32>) {
        match *self {}
    }

    pub(crate) fn add_int8_product(&self, _left: &[Line], _right: &[Line], _ahead: Ahead, _sums: &mut Block<i32>) {
        match *self {}
    }
}
