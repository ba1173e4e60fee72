//! Comparison of arrays, up to the tolerance that an operation allows.
//!
//! Entry points: [`arrays`], [`floats`], [`Tolerance`].

use cpu::oracle::{Array, Elements};

/// The largest difference between two numbers that a comparison allows. NaN equals NaN, and both zeroes are equal, with
/// every tolerance.
#[derive(Debug, Clone)]
pub(super) enum Tolerance {
    /// No difference.
    Exact,
    /// `absolute`, plus `relative` times the magnitude of the expected number.
    Close { relative: f32, absolute: f32 },
    /// A limit for each element.
    Each(Vec<f32>),
}

/// Compares shapes, types and elements.
pub(super) fn arrays(actual: &Array, expected: &Array, tolerance: &Tolerance, what: &str) {
    assert_eq!(actual.dims, expected.dims, "shape of {what}");
    match (&actual.elements, &expected.elements) {
        (Elements::F32(actual), Elements::F32(expected)) => floats(actual, expected, tolerance, what),
        (actual, expected) => assert_eq!(actual, expected, "{what}"),
    }
}

/// Compares elements.
pub(super) fn floats(actual: &[f32], expected: &[f32], tolerance: &Tolerance, what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (index, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        let limit = match tolerance {
            Tolerance::Exact => 0.0,
            Tolerance::Close { relative, absolute } => relative * expected.abs() + absolute,
            Tolerance::Each(limits) => limits[index],
        };
        let is_same = actual == expected || (actual.is_nan() && expected.is_nan());
        let agrees = is_same || (expected.is_finite() && (actual - expected).abs() <= limit);
        assert!(agrees, "element {index}: {actual} instead of {expected}, tolerance {limit}: {what}");
    }
}
