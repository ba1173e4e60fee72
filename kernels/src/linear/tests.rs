//! Linear layers against f64, and the promise that a row's result depends on nothing but the row.

use std::ops::Range;

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::floats::FloatType;
use crate::numbers::numbers;

/// A weight in one of the three types, and the same values in f64.
struct Weight {
    packed: PackedWeight,
    values: Vec<f64>,
}

fn pack(dtype: usize, outputs: usize, inputs: usize, values: &[f32]) -> Weight {
    let bf16_values: Vec<bf16> = values.iter().copied().map(bf16::from_f32).collect();
    let f16_values: Vec<f16> = values.iter().copied().map(f16::from_f32).collect();
    match dtype {
        0 => Weight {
            packed: PackedWeight::pack(outputs, inputs, WeightData::F32(values)),
            values: values.iter().map(|value| f64::from(*value)).collect(),
        },
        1 => Weight {
            packed: PackedWeight::pack(outputs, inputs, WeightData::Bf16(&bf16_values)),
            values: bf16_values.iter().map(|value| value.to_f64()).collect(),
        },
        _ => Weight {
            packed: PackedWeight::pack(outputs, inputs, WeightData::F16(&f16_values)),
            values: f16_values.iter().map(|value| value.to_f64()).collect(),
        },
    }
}

fn check_against_f64(isa: Isa, dtype: usize, (rows, outputs, inputs): (usize, usize, usize), has_bias: bool) {
    let x = numbers(rows * inputs, 1);
    let weight = pack(dtype, outputs, inputs, &numbers(outputs * inputs, 2));
    let bias = has_bias.then(|| numbers(outputs, 3));
    let mut y = vec![f32::NAN; rows * outputs];
    linear_on(isa, &x, &weight.packed, bias.as_deref(), &mut y);
    for row in 0..rows {
        for output in 0..outputs {
            let bias = bias.as_ref().map_or(0.0, |bias| f64::from(bias[output]));
            let (mut exact, mut magnitude) = (bias, bias.abs());
            for input in 0..inputs {
                let product = f64::from(x[row * inputs + input]) * weight.values[output * inputs + input];
                exact += product;
                magnitude += product.abs();
            }
            let error = (f64::from(y[row * outputs + output]) - exact).abs();
            // One rounding per step, each at most half a unit in the last place of a partial sum.
            let bound = magnitude * f64::from(f32::EPSILON) * (inputs as f64).sqrt().max(4.0);
            assert!(error <= bound, "{isa} dtype {dtype} row {row} output {output}: off by {error}, allowed {bound}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_shape_agrees_with_f64(
        rows in 1_usize..40, outputs in 1_usize..200, inputs in 1_usize..80, dtype in 0_usize..3, has_bias: bool,
    ) {
        for isa in Isa::available() {
            check_against_f64(isa, dtype, (rows, outputs, inputs), has_bias);
        }
    }
}

#[test]
fn several_passes_agree_with_f64() {
    for isa in Isa::available() {
        for dtype in 0..3 {
            check_against_f64(isa, dtype, (27, 161, 2 * PASS_INPUTS + 5), true);
        }
    }
}

#[test]
fn a_row_is_the_same_alone_and_among_others() {
    let (rows, outputs, inputs) = (37, 300, PASS_INPUTS + 77);
    let x = numbers(rows * inputs, 4);
    for (isa, dtype) in Isa::available().into_iter().flat_map(|isa| (0..3).map(move |dtype| (isa, dtype))) {
        let weight = pack(dtype, outputs, inputs, &numbers(outputs * inputs, 5)).packed;
        let mut alone = vec![0.0; rows * outputs];
        for (x, y) in x.chunks(inputs).zip(alone.chunks_mut(outputs)) {
            linear_on(isa, x, &weight, None, y);
        }
        for together in 2..=rows {
            let mut y = vec![0.0; together * outputs];
            linear_on(isa, &x[..together * inputs], &weight, None, &mut y);
            assert_eq!(y, alone[..y.len()], "{isa} dtype {dtype}: {together} rows together");
        }
    }
}

#[test]
fn more_rows_than_are_blocked_at_a_time() {
    let (rows, outputs, inputs) = (MAX_BLOCKED_ROWS + 3, 40, 24);
    let x = numbers(rows * inputs, 6);
    let weight = pack(1, outputs, inputs, &numbers(outputs * inputs, 7)).packed;
    let mut y = vec![0.0; rows * outputs];
    linear(&x, &weight, None, &mut y);
    let mut last = vec![0.0; outputs];
    linear(&x[(rows - 1) * inputs..], &weight, None, &mut last);
    assert_eq!(last, y[(rows - 1) * outputs..]);
}

#[test]
fn threads_do_not_change_a_bit() {
    for (rows, outputs, inputs) in [(1, 1000, 700), (5, 500, 700), (130, 96, 1300), (300, 20, 500)] {
        let x = numbers(rows * inputs, 8);
        let weight = pack(1, outputs, inputs, &numbers(outputs * inputs, 9)).packed;
        for isa in Isa::available() {
            let [one, two, many] = [1, 2, 7].map(|num_threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(num_threads).build().unwrap();
                let mut y = vec![0.0; rows * outputs];
                pool.install(|| linear_on(isa, &x, &weight, None, &mut y));
                y
            });
            assert!(one == two && one == many, "{isa} [{rows}, {outputs}, {inputs}]");
        }
    }
}

#[test]
fn fused_instruction_sets_agree_bit_for_bit() {
    let fused: Vec<Isa> = Isa::available().into_iter().filter(|isa| *isa != Isa::Portable).collect();
    let (rows, outputs, inputs) = (17, 130, 600);
    let x = numbers(rows * inputs, 10);
    for dtype in 0..3 {
        let weight = pack(dtype, outputs, inputs, &numbers(outputs * inputs, 11)).packed;
        let results = fused.iter().map(|isa| {
            let mut y = vec![0.0; rows * outputs];
            linear_on(*isa, &x, &weight, None, &mut y);
            y
        });
        let results: Vec<Vec<f32>> = results.collect();
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "dtype {dtype}");
    }
}

#[test]
fn a_packed_row_is_read_back() {
    let (outputs, inputs) = (45, 7);
    for dtype in 0..3 {
        let weight = pack(dtype, outputs, inputs, &numbers(outputs * inputs, 12));
        for output in 0..outputs {
            let mut row = vec![0.0; inputs];
            weight.packed.copy_row(output, &mut row);
            let row: Vec<f64> = row.into_iter().map(f64::from).collect();
            assert_eq!(row, weight.values[output * inputs..][..inputs]);
        }
    }
}

#[test]
fn rows_packed_piece_by_piece_are_the_same() {
    // Several pieces, and a last panel that is not full.
    for [outputs, inputs] in [[45, 7], [200, 3000]] {
        let values = numbers(outputs * inputs, 15);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let rows = |rows: Range<usize>, take: &mut dyn FnMut(&[u8])| {
            take(&bytes[rows.start * inputs * 4..rows.end * inputs * 4]);
        };
        for (dtype, packed) in [FloatType::F32, FloatType::Bf16, FloatType::F16].into_iter().enumerate() {
            let whole = pack(dtype, outputs, inputs, &values).packed;
            let pieces = PackedWeight::pack_stored([outputs, inputs], FloatType::F32, packed, &rows);
            let (mut row, mut expected) = (vec![0.0; inputs], vec![0.0; inputs]);
            for output in 0..outputs {
                pieces.copy_row(output, &mut row);
                whole.copy_row(output, &mut expected);
                assert_eq!(row, expected, "dtype {dtype}, output {output}");
            }
        }
    }
}

#[test]
fn no_rows_are_fine() {
    let weight = pack(0, 3, 2, &numbers(6, 13)).packed;
    linear(&[], &weight, None, &mut []);
}

#[test]
#[should_panic(expected = "x holds 5 values, not 1 rows of 2 inputs")]
fn lengths_that_do_not_fit_panic() {
    let weight = pack(0, 3, 2, &numbers(6, 14)).packed;
    linear(&[0.0; 5], &weight, None, &mut [0.0; 3]);
}
