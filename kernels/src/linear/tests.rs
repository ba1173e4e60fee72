//! Tests of linear layers against f64. The result of a row must depend only on that row.

use std::ops::Range;

use half::{bf16, f16};
use numbers::FloatType;
use numbers::int4::{GROUP_INPUTS, round_row};
use numbers::mxfp4;
use proptest::prelude::*;

use super::packed_weight::Stored;
use super::*;
use crate::lines::{Line, STEP_LINES};
use crate::testing::numbers;

/// The weight types of floats, for which packing only rounds the weights.
const FLOATS: [WeightType; 3] = [WeightType::F32, WeightType::Bf16, WeightType::F16];
const ALL: [WeightType; 6] =
    [WeightType::F32, WeightType::Bf16, WeightType::F16, WeightType::Int8, WeightType::Int4, WeightType::Mxfp4];

fn pack(isa: Isa, dtype: WeightType, sizes: [usize; 2], values: &[f32]) -> PackedWeight {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let row_bytes = sizes[1] * size_of::<f32>();
    let rows =
        |rows: Range<usize>, take: &mut dyn FnMut(&[u8])| take(&bytes[rows.start * row_bytes..rows.end * row_bytes]);
    PackedWeight::pack_for(isa, &Stored { sizes, dtype: FloatType::F32, rows: &rows }, dtype)
}

fn rounded(dtype: WeightType, value: f32) -> f32 {
    match dtype {
        WeightType::F32 | WeightType::Int8 | WeightType::Int4 | WeightType::Mxfp4 => value,
        WeightType::Bf16 => bf16::from_f32(value).to_f32(),
        WeightType::F16 => f16::from_f32(value).to_f32(),
    }
}

/// Returns `value`, an element of x, as it is multiplied with a float weight of this type: rounded to bf16 or
/// unchanged.
fn as_multiplied(isa: Isa, dtype: WeightType, value: f32) -> f32 {
    if isa.rounds_to_bf16() && dtype == WeightType::Bf16 {
        return bf16::from_f32(value).to_f32();
    }
    value
}

fn check_against_f64(isa: Isa, dtype: WeightType, (rows, outputs, inputs): (usize, usize, usize), has_bias: bool) {
    let x = numbers(rows * inputs, 1);
    let values = numbers(outputs * inputs, 2);
    let weight = pack(isa, dtype, [outputs, inputs], &values);
    let bias = has_bias.then(|| numbers(outputs, 3));
    let mut y = vec![f32::NAN; rows * outputs];
    linear_on(isa, &x, &weight, bias.as_deref(), &mut y);
    for row in 0..rows {
        for output in 0..outputs {
            let bias = bias.as_ref().map_or(0.0, |bias| f64::from(bias[output]));
            let (mut exact, mut magnitude) = (bias, bias.abs());
            for input in 0..inputs {
                let value = as_multiplied(isa, dtype, x[row * inputs + input]);
                let product = f64::from(value) * f64::from(rounded(dtype, values[output * inputs + input]));
                exact += product;
                magnitude += product.abs();
            }
            let error = (f64::from(y[row * outputs + output]) - exact).abs();
            // One rounding per step, each at most half a unit in the last place of a partial sum.
            let bound = magnitude * f64::from(f32::EPSILON) * (inputs as f64).sqrt().max(4.0);
            assert!(error <= bound, "{isa} {dtype:?} row {row} output {output}: off by {error}, allowed {bound}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_shape_agrees_with_f64(
        rows in 1_usize..70, outputs in 1_usize..200, inputs in 1_usize..80, dtype in 0_usize..3, has_bias: bool,
    ) {
        for isa in Isa::available() {
            check_against_f64(isa, FLOATS[dtype], (rows, outputs, inputs), has_bias);
        }
    }
}

/// Returns the scale of int8 values, the largest magnitude divided by 127, and the values as multiples of that scale.
fn int8_of(values: &[f32]) -> (f32, Vec<i64>) {
    let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    (largest / 127.0, values.iter().map(|value| (value * (127.0 / largest)).round_ties_even() as i64).collect())
}

/// Returns the scale of an output with int4 weights, and its weights as multiples of that scale.
fn int4_of(weight: &PackedWeight, output: usize, values: &[f32]) -> (f32, Vec<i64>) {
    let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let scale = largest / 120.0;
    let mut row = vec![0.0; values.len()];
    weight.copy_row(output, &mut row);
    (scale, row.iter().map(|value| (value / scale).round() as i64).collect())
}

/// Sums of integers are exact, so every instruction set must return the same bits.
fn check_integers(dtype: WeightType, (rows, outputs, inputs): (usize, usize, usize), has_bias: bool) {
    let (x, values) = (numbers(rows * inputs, 20), numbers(outputs * inputs, 21));
    let bias = has_bias.then(|| numbers(outputs, 22));
    let weights: Vec<(f32, Vec<i64>)> = match dtype {
        WeightType::Int4 => {
            let weight = pack(Isa::Portable, dtype, [outputs, inputs], &values);
            values.chunks(inputs).enumerate().map(|(output, values)| int4_of(&weight, output, values)).collect()
        }
        _ => values.chunks(inputs).map(int8_of).collect(),
    };
    let mut expected = Vec::with_capacity(rows * outputs);
    for x in x.chunks(inputs) {
        let (x_scale, x) = int8_of(x);
        expected.extend(weights.iter().enumerate().map(|(output, (scale, weights))| {
            let sum: i64 = x.iter().zip(weights).map(|(x, weight)| x * weight).sum();
            sum as f32 * (x_scale * scale) + bias.as_ref().map_or(0.0, |bias| bias[output])
        }));
    }
    for isa in Isa::available() {
        let weight = pack(isa, dtype, [outputs, inputs], &values);
        let mut y = vec![f32::NAN; rows * outputs];
        linear_on(isa, &x, &weight, bias.as_deref(), &mut y);
        assert!(y == expected, "{isa} {dtype:?} [{rows}, {outputs}, {inputs}]");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_shape_of_integers_is_exact(
        rows in 1_usize..70, outputs in 1_usize..100, inputs in 1_usize..200, has_bias: bool, is_int4: bool,
    ) {
        let dtype = if is_int4 { WeightType::Int4 } else { WeightType::Int8 };
        check_integers(dtype, (rows, outputs, inputs), has_bias);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A single row takes two panels at a time.
    #[test]
    fn any_shape_of_a_single_row_is_right(outputs in 1_usize..400, inputs in 1_usize..200, has_bias: bool) {
        for dtype in [WeightType::Int8, WeightType::Int4] {
            check_integers(dtype, (1, outputs, inputs), has_bias);
        }
        for isa in Isa::available() {
            check_against_f64(isa, WeightType::Bf16, (1, outputs, inputs), has_bias);
        }
    }
}

#[test]
fn several_passes_of_integers_are_exact() {
    for dtype in [WeightType::Int8, WeightType::Int4] {
        // The inputs need several passes on every instruction set. The longest passes are those of AVX2, with 32768
        // lines of x: 8192 inputs of int4 for 256 rows.
        check_integers(dtype, (256, 33, 9000), true);
    }
}

/// Returns the largest error of a weight in steps of its group, and the squared error relative to the squares of the
/// weights.
fn int4_errors(values: &[f32]) -> (f32, f32) {
    let weight = pack(isa::active(), WeightType::Int4, [1, values.len()], values);
    let mut row = vec![0.0; values.len()];
    weight.copy_row(0, &mut row);
    let errors = || values.iter().zip(&row).map(|(value, row)| value - row);
    let groups = values.chunks(32).map(|group| group.iter().fold(0.0_f32, |largest, value| largest.max(value.abs())));
    let steps = groups.flat_map(|largest| std::iter::repeat_n(largest / 8.0, 32));
    let largest = errors().zip(steps).map(|(error, step)| error.abs() / step).fold(0.0, f32::max);
    let squares = |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>();
    (largest, squares(&mut errors()) / squares(&mut values.iter().copied()))
}

#[test]
fn int4_rows_are_read_back_within_a_step() {
    // The weights are evenly spread over [-1, 1): a step of 1 / 7.5 has a squared error of step² / 12, 0.0044 of the
    // weights' square.
    let (largest, squared) = int4_errors(&numbers(64 * 32, 24));
    assert!(largest <= 1.2 && squared > 0.003 && squared < 0.0055, "{largest} steps, {squared}");
    // A small group beside a larger one of the same output still has several factors to choose from.
    let uneven: Vec<f32> =
        numbers(64 * 32, 25).iter().enumerate().map(|(i, value)| value * if i % 64 < 32 { 1.0 } else { 0.2 }).collect();
    let (largest, squared) = int4_errors(&uneven);
    assert!(largest <= 1.8 && squared < 0.006, "{largest} steps, {squared}");
}

#[test]
fn other_layouts_have_the_same_integers() {
    for inputs in [1, 32, 70] {
        let row = numbers(inputs, 27);
        let mut steps = vec![Line([0; 16]); inputs.div_ceil(64) * tiled_weight::Format::Int4.step_lines()];
        let scale = int4::pack(&mut steps, 5, &row);
        let mut packed = vec![0.0; inputs];
        int4::copy_row(&steps, 5, &mut packed);
        let num_groups = inputs.div_ceil(GROUP_INPUTS);
        let (mut integers, mut factors) = (vec![[1; GROUP_INPUTS]; num_groups], vec![1; num_groups]);
        assert_eq!(round_row(&row, &mut integers, &mut factors), scale);
        let products = integers.iter().zip(&factors).flat_map(|(group, factor)| group.map(|integer| integer * factor));
        let (products, missing): (Vec<i8>, Vec<i8>) =
            (products.clone().take(inputs).collect(), products.skip(inputs).collect());
        assert_eq!(products.into_iter().map(f32::from).collect::<Vec<_>>(), packed, "{inputs} inputs");
        assert!(missing.into_iter().all(|product| product == 0), "{inputs} inputs");
    }
}

#[test]
fn unpacked_steps_are_the_integers_that_are_multiplied() {
    let [outputs, inputs] = [32, 128];
    let values = numbers(outputs * inputs, 26);
    let step_lines = tiled_weight::Format::Int4.step_lines();
    let mut steps = vec![Line([0; 16]); 2 * step_lines];
    let scales: Vec<f32> =
        values.chunks(inputs).enumerate().map(|(output, row)| int4::pack(&mut steps, output, row)).collect();
    assert!(scales.iter().all(|scale| *scale > 0.0));
    for (idx, step) in steps.chunks(step_lines).enumerate() {
        let mut unpacked = vec![Line([0; 16]); STEP_LINES];
        int4::unpack_step(step, &mut unpacked);
        for output in 0..outputs {
            let mut row = vec![0.0; inputs];
            int4::copy_row(&steps, output, &mut row);
            let words = unpacked[output / 16 * 16..][..16].iter().map(|line| line.0[output % 16]);
            let bytes: Vec<f32> =
                words.flat_map(|word| word.to_le_bytes().map(|byte| f32::from(byte.cast_signed()))).collect();
            assert_eq!(bytes, row[idx * 64..][..64], "step {idx}, output {output}");
        }
    }
}

#[test]
fn int8_rows_are_read_back_within_half_a_step() {
    let [outputs, inputs] = [45, 130];
    let values = numbers(outputs * inputs, 23);
    let weight = pack(isa::active(), WeightType::Int8, [outputs, inputs], &values);
    for (output, values) in values.chunks(inputs).enumerate() {
        let mut row = vec![0.0; inputs];
        weight.copy_row(output, &mut row);
        let (scale, _) = int8_of(values);
        let largest = row.iter().zip(values).map(|(row, value)| (row - value).abs()).fold(0.0, f32::max);
        assert!(largest > 0.0 && largest <= 0.501 * scale, "output {output}: off by {largest}, a step is {scale}");
    }
}

#[test]
fn zeros_and_what_is_no_number_survive_integers() {
    let types = [WeightType::Int8, WeightType::Int4];
    for (isa, dtype) in Isa::available().into_iter().flat_map(|isa| types.map(move |dtype| (isa, dtype))) {
        let weight = pack(isa, dtype, [2, 3], &[0.0, 0.0, 0.0, 1.0, -2.0, 0.5]);
        let mut y = [1.0; 8];
        let x = [0.0, 0.0, 0.0, 1e-38, 0.0, 0.0, 1.0, f32::NAN, 1.0, 1.0, f32::INFINITY, 1.0];
        linear_on(isa, &x, &weight, None, &mut y);
        assert_eq!(y[..4], [0.0; 4], "{isa}");
        assert!(y[5].is_nan() && y[7].is_nan(), "{isa}: {y:?}");
        let weight = pack(isa, dtype, [2, 3], &[1.0, f32::NAN, 1.0, f32::NEG_INFINITY, 1.0, 1.0]);
        linear_on(isa, &[1.0; 3], &weight, None, &mut y[..2]);
        assert!(y[..2].iter().all(|y| !y.is_finite()), "{isa} {dtype:?}: {y:?}");
    }
}

#[test]
fn several_passes_agree_with_f64() {
    for isa in Isa::available() {
        for dtype in FLOATS {
            check_against_f64(isa, dtype, (27, 161, 2 * PASS_INPUTS + 5), true);
        }
    }
}

#[test]
fn a_row_is_the_same_alone_and_among_others() {
    let (rows, outputs, inputs) = (37, 300, PASS_INPUTS + 77);
    let x = numbers(rows * inputs, 4);
    for (isa, dtype) in Isa::available().into_iter().flat_map(|isa| ALL.map(move |dtype| (isa, dtype))) {
        let weight = pack(isa, dtype, [outputs, inputs], &numbers(outputs * inputs, 5));
        let mut alone = vec![0.0; rows * outputs];
        for (x, y) in x.chunks(inputs).zip(alone.chunks_mut(outputs)) {
            linear_on(isa, x, &weight, None, y);
        }
        for together in 2..=rows {
            let mut y = vec![0.0; together * outputs];
            linear_on(isa, &x[..together * inputs], &weight, None, &mut y);
            assert_eq!(y, alone[..y.len()], "{isa} {dtype:?}: {together} rows together");
        }
    }
}

#[test]
fn rows_of_every_part_are_as_each_alone() {
    let (rows, outputs, inputs) = (MAX_BLOCKED_ROWS + 3, 40, 24);
    let x = numbers(rows * inputs, 6);
    for (isa, dtype) in Isa::available().into_iter().flat_map(|isa| ALL.map(move |dtype| (isa, dtype))) {
        let weight = pack(isa, dtype, [outputs, inputs], &numbers(outputs * inputs, 7));
        let mut y = vec![0.0; rows * outputs];
        linear_on(isa, &x, &weight, None, &mut y);
        for row in [0, 255, 256, 300, MAX_BLOCKED_ROWS - 1, MAX_BLOCKED_ROWS, rows - 1] {
            let mut alone = vec![0.0; outputs];
            linear_on(isa, &x[row * inputs..][..inputs], &weight, None, &mut alone);
            assert_eq!(alone, y[row * outputs..][..outputs], "{isa} {dtype:?}: row {row}");
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    for (rows, outputs, inputs) in [(1, 1000, 700), (5, 500, 700), (130, 96, 1300), (300, 20, 500)] {
        let x = numbers(rows * inputs, 8);
        for isa in Isa::available() {
            let weight = pack(isa, WeightType::Bf16, [outputs, inputs], &numbers(outputs * inputs, 9));
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
    // For bf16 and MXFP4 weights, instruction sets that round x to bf16 are left out. AMX multiplies f32 and f16
    // weights with AVX-512.
    let fused: Vec<Isa> = Isa::available().into_iter().filter(|isa| *isa != Isa::Portable).collect();
    let (rows, outputs, inputs) = (17, 130, 600);
    let x = numbers(rows * inputs, 10);
    for dtype in FLOATS.into_iter().chain([WeightType::Mxfp4]) {
        let rounds = |isa: &&Isa| isa.rounds_to_bf16() && matches!(dtype, WeightType::Bf16 | WeightType::Mxfp4);
        let results = fused.iter().filter(|isa| !rounds(isa)).map(|isa| {
            let weight = pack(*isa, dtype, [outputs, inputs], &numbers(outputs * inputs, 11));
            let mut y = vec![0.0; rows * outputs];
            linear_on(*isa, &x, &weight, None, &mut y);
            y
        });
        let results: Vec<Vec<f32>> = results.collect();
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{dtype:?}");
    }
}

/// Returns the numbers nearest to `values` `[outputs, inputs]` that MXFP4 has.
fn in_mxfp4(values: &[f32], inputs: usize) -> Vec<f32> {
    let blocks = values.chunks(inputs).flat_map(|row| row.chunks(mxfp4::BLOCK));
    let rounded = blocks.flat_map(|block| {
        let (scale, floats) = mxfp4::round_block(block);
        floats.into_iter().take(block.len()).map(move |float| mxfp4::number(float) * mxfp4::scale(scale))
    });
    rounded.collect()
}

/// Returns a group of x as it is multiplied with levels: rounded to bf16, or to multiples of the power of two that
/// makes the largest magnitude 16 bits with its sign.
fn group_by_levels(isa: Isa, group: &[f32]) -> Vec<f64> {
    if isa.rounds_to_bf16() {
        return group.iter().map(|value| f64::from(bf16::from_f32(*value).to_f32())).collect();
    }
    let largest = group.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
    let unit = f64::from(largest).log2().floor().exp2() / 16384.0;
    group.iter().map(|value| (f64::from(*value) / unit).round_ties_even().min(32767.0) * unit).collect()
}

/// Checks three rows of a product of levels: against f64 with the exact weights `[outputs, inputs]`, and against the
/// product of the row alone.
pub(super) fn check_levels(
    isa: Isa,
    (weight, exact): (&PackedWeight, &[f32]),
    (x, bias): (&[f32], Option<&[f32]>),
    y: &[f32],
) {
    let [inputs, outputs] = [weight.num_inputs(), weight.num_outputs()];
    let rows: Vec<_> = x.chunks(inputs).zip(y.chunks(outputs)).enumerate().collect();
    for (row, (x, y)) in [0, rows.len() / 2, rows.len() - 1].map(|row| rows[row]) {
        let mut alone = vec![f32::NAN; outputs];
        linear_on(isa, x, weight, bias, &mut alone);
        assert!(y == alone, "{isa}, row {row} of [{outputs}, {inputs}] differs from the row alone");
        let x: Vec<f64> = x.chunks(32).flat_map(|group| group_by_levels(isa, group)).collect();
        for (output, (y, weights)) in y.iter().zip(exact.chunks(inputs)).enumerate() {
            let bias = bias.map_or(0.0, |bias| f64::from(bias[output]));
            let products = x.iter().zip(weights).map(|(x, weight)| x * f64::from(*weight));
            let (sum, magnitude) = products
                .fold((bias, bias.abs()), |(sum, magnitude), product| (sum + product, magnitude + product.abs()));
            let error = (f64::from(*y) - sum).abs();
            assert!(error <= 1e-5 * magnitude, "{isa}, row {row}, output {output} of {inputs} inputs: {y}, not {sum}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn mxfp4_multiplies_as_the_same_numbers_in_bf16(
        rows in prop_oneof![Just(1), 1_usize..70], outputs in 1_usize..200, inputs in 1_usize..200, has_bias: bool,
    ) {
        check_mxfp4([rows, outputs, inputs], has_bias);
    }
}

fn check_mxfp4([rows, outputs, inputs]: [usize; 3], has_bias: bool) {
    let x = numbers(rows * inputs, 40);
    // The magnitudes of outputs differ, and with them the scales.
    let values = numbers(outputs * inputs, 41).into_iter().enumerate();
    let values: Vec<f32> = values.map(|(idx, value)| value * (idx / inputs % 7) as f32).collect();
    let bias = has_bias.then(|| numbers(outputs, 42));
    let exact = in_mxfp4(&values, inputs);
    for isa in Isa::available() {
        let product = |dtype, values: &[f32]| {
            let weight = pack(isa, dtype, [outputs, inputs], values);
            let mut y = vec![f32::NAN; rows * outputs];
            linear_on(isa, &x, &weight, bias.as_deref(), &mut y);
            (weight, y)
        };
        let (weight, y) = product(WeightType::Mxfp4, &values);
        if !isa.has_tiles() {
            check_levels(isa, (&weight, &exact), (&x, bias.as_deref()), &y);
        } else {
            let (_, expected) = product(WeightType::Bf16, &exact);
            assert!(y == expected, "{isa} [{rows}, {outputs}, {inputs}]");
        }
        for (output, exact) in exact.chunks(inputs).enumerate() {
            let mut row = vec![f32::NAN; inputs];
            weight.copy_row(output, &mut row);
            assert_eq!(row, exact, "{isa}, output {output}");
        }
    }
}

#[test]
fn any_size_of_x_multiplies_mxfp4() {
    let (outputs, inputs) = (33, 70);
    let exact = in_mxfp4(&numbers(outputs * inputs, 44), inputs);
    for isa in Isa::available() {
        let weight = pack(isa, WeightType::Mxfp4, [outputs, inputs], &exact);
        for rows in [1, 3] {
            for size in [1e-30, 1e-15, 1e30] {
                let x: Vec<f32> = numbers(rows * inputs, 45).into_iter().map(|value| value * size).collect();
                let mut y = vec![f32::NAN; rows * outputs];
                linear_on(isa, &x, &weight, None, &mut y);
                check_levels(isa, (&weight, &exact), (&x, None), &y);
            }
            // A number that is not finite makes all outputs of its row NaN or infinite, and no others.
            for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = numbers(rows * inputs, 46);
                x[(rows - 1) * inputs + 40] = wrong;
                let mut y = vec![f32::NAN; rows * outputs];
                linear_on(isa, &x, &weight, None, &mut y);
                let (right, wrong) = y.split_at((rows - 1) * outputs);
                assert!(right.iter().all(|value| value.is_finite()), "{isa}");
                let is_zero = |output: &usize| exact[output * inputs + 40] == 0.0;
                let mut wrong = wrong.iter().enumerate();
                assert!(wrong.all(|(output, value)| !value.is_finite() || is_zero(&output)), "{isa}");
            }
        }
    }
}

#[test]
fn several_passes_of_mxfp4_are_those_of_bf16() {
    check_mxfp4([70, 161, 2 * PASS_INPUTS + 5], true);
    check_mxfp4([300, 33, 9000], false);
}

#[test]
fn mxfp4_takes_half_a_byte_per_weight_and_a_line_per_block() {
    let weight = pack(isa::active(), WeightType::Mxfp4, [64, 96], &numbers(64 * 96, 43));
    assert_eq!(weight.size_bytes(), 64 * 96 / 2 + 2 * 3 * 64);
}

#[test]
fn a_packed_row_is_read_back() {
    // The weight is read in several steps, and its last panel is not full.
    for (sizes, isa) in
        [[45, 7], [200, 3000]].into_iter().flat_map(|sizes| Isa::available().into_iter().map(move |isa| (sizes, isa)))
    {
        let [outputs, inputs] = sizes;
        let values = numbers(outputs * inputs, 12);
        for dtype in FLOATS {
            let weight = pack(isa, dtype, sizes, &values);
            assert!(weight.size_bytes() >= outputs * inputs * 2);
            for (output, values) in values.chunks(inputs).enumerate() {
                let mut row = vec![0.0; inputs];
                weight.copy_row(output, &mut row);
                let expected: Vec<f32> = values.iter().map(|value| rounded(dtype, *value)).collect();
                assert_eq!(row, expected, "{isa} {dtype:?}, output {output}");
            }
        }
    }
}

#[test]
fn no_rows_give_no_outputs() {
    for (isa, dtype) in Isa::available().into_iter().flat_map(|isa| ALL.map(move |dtype| (isa, dtype))) {
        let weight = pack(isa, dtype, [3, 2], &numbers(6, 13));
        let mut y = [7.0; 3];
        linear_on(isa, &[], &weight, None, &mut y[..0]);
        assert_eq!(y, [7.0; 3], "{isa} {dtype:?}");
    }
}

#[test]
#[should_panic(expected = "x holds 5 values, not 1 rows of 2 inputs")]
fn lengths_that_do_not_fit_panic() {
    let weight = pack(isa::active(), WeightType::F32, [3, 2], &numbers(6, 14));
    linear(&[0.0; 5], &weight, None, &mut [0.0; 3]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_network_computes_what_its_layers_do(
        rows in 1_usize..140, inputs in 1_usize..90, between in 1_usize..200, outputs in 1_usize..70, dtypes in [0..6_usize, 0..6],
    ) {
        for isa in Isa::available() {
            check_network(isa, [rows, inputs, between, outputs], dtypes.map(|dtype| ALL[dtype]));
        }
    }
}

/// Checks that a gated network has the same bits as its layers one after the other. `inward` is the type of gate and
/// up, `outward` that of down.
fn check_network(isa: Isa, [rows, inputs, between, outputs]: [usize; 4], [inward, outward]: [WeightType; 2]) {
    let x = numbers(rows * inputs, 30);
    let [gate, up] = [31, 32].map(|seed| pack(isa, inward, [between, inputs], &numbers(between * inputs, seed)));
    let down = pack(isa, outward, [outputs, between], &numbers(outputs * between, 33));
    let [mut opened, mut raised, mut gated] = [(); 3].map(|()| vec![f32::NAN; rows * between]);
    linear_on(isa, &x, &gate, None, &mut opened);
    linear_on(isa, &x, &up, None, &mut raised);
    activation::gated_on(isa, Activation::Silu, [&opened, &raised], &mut gated);
    let [mut expected, mut y] = [(); 2].map(|()| vec![f32::NAN; rows * outputs]);
    linear_on(isa, &gated, &down, None, &mut expected);
    gated_mlp_on(isa, &x, [&gate, &up, &down], Activation::Silu, &mut y);
    assert!(y == expected, "{isa} {inward:?} {outward:?} [{rows}, {inputs}, {between}, {outputs}]");
}

#[test]
fn a_large_network_computes_what_its_layers_do() {
    for isa in Isa::available() {
        for dtype in [WeightType::Bf16, WeightType::Int8, WeightType::Int4] {
            check_network(isa, [530, 1100, 2400, 72], [dtype; 2]);
            // The inputs need several passes on every instruction set, and the sums of several panels are kept between
            // passes.
            check_network(isa, [256, 9000, 600, 40], [dtype; 2]);
        }
    }
}

#[test]
fn layers_of_one_x_are_as_each_alone() {
    let inputs = 100;
    let sizes = [70, 1, 33];
    let mixed = [WeightType::Int8, WeightType::Bf16, WeightType::F32];
    for isa in Isa::available() {
        for types in ALL.map(|dtype| [dtype; 3]).into_iter().chain([mixed]) {
            let weights: Vec<PackedWeight> = types
                .iter()
                .zip(sizes)
                .map(|(dtype, outputs)| {
                    pack(isa, *dtype, [outputs, inputs], &numbers(outputs * inputs, outputs as u64))
                })
                .collect();
            for rows in [0, 1, 40, MAX_BLOCKED_ROWS + 3] {
                let (x, bias) = (numbers(rows * inputs, 1), numbers(sizes[0], 2));
                let bias_of = |layer: usize| (layer == 0).then_some(bias.as_slice());
                let mut together: Vec<Vec<f32>> = sizes.iter().map(|outputs| vec![f32::NAN; rows * outputs]).collect();
                let layers = weights.iter().zip(&mut together).enumerate();
                let layers = layers.map(|(idx, (weight, y))| Layer { weight, bias: bias_of(idx), y });
                linear_each_on(isa, &x, layers.collect());
                for (idx, (weight, together)) in weights.iter().zip(&together).enumerate() {
                    let mut alone = vec![f32::NAN; rows * sizes[idx]];
                    linear_on(isa, &x, weight, bias_of(idx), &mut alone);
                    assert!(*together == alone, "{isa} {types:?} layer {idx} of {rows} rows");
                }
            }
        }
    }
}
