//! Quantizes the rows of one or several matrices, and arranges them in the layout that the devices read.
//!
//! Entry points: [`types`], [`RoundedRows`]. The crate `numbers` does the rounding, so the values are the same on all
//! devices. int8 and fp8 values have the layout of the original floats. int4 values are
//! `[.., groups, inputs of a group, outputs]`, and their factors `[.., groups, outputs]`, so that in both arrays the
//! outputs are the lanes of vectors. With this layout the program that a TPU's compiler makes multiplies values by
//! factors while it reads them, and does not write the products to memory.

use model::graph::{DType, WeightSpec};
use numbers::int4::{self, GROUP_INPUTS};
use numbers::{Rounding, fp8, int8};

use super::stablehlo::Type;

/// Returns the types of the arrays of a quantized weight of `shape` `[.., outputs, inputs]`: values, scales
/// `[.., outputs]`, and for int4 also factors.
pub(super) fn types(rounding: Rounding, shape: &[usize]) -> Vec<Type> {
    let Sizes { stack, outputs, inputs } = Sizes::of(shape);
    let scales = Type::new([stack, &[outputs]].concat(), DType::F32);
    match rounding {
        Rounding::Int8 | Rounding::Fp8 => vec![Type::new(shape, DType::Rounded(rounding)), scales],
        Rounding::Int4 => {
            let groups = inputs.div_ceil(GROUP_INPUTS);
            let numbers = Type::new([stack, &[groups, GROUP_INPUTS, outputs]].concat(), DType::I4);
            vec![numbers, scales, Type::new([stack, &[groups, outputs]].concat(), DType::I8)]
        }
    }
}

/// A rank's part of a quantized weight; its rows are appended in order.
pub(super) struct RoundedRows {
    rounding: Rounding,
    outputs: usize,
    inputs: usize,
    num_rows: usize,
    /// The bytes of the values, which are the first array of [`types`]. An int4 value takes one byte here.
    numbers: Vec<u8>,
    scales: Vec<u8>,
    factors: Vec<u8>,
}

/// The sizes of one or several matrices.
struct Sizes<'a> {
    /// The dimensions before the matrices; empty for a single matrix.
    stack: &'a [usize],
    outputs: usize,
    inputs: usize,
}

impl<'a> Sizes<'a> {
    fn of(shape: &'a [usize]) -> Self {
        let [stack @ .., outputs, inputs] = shape else { unreachable!("only matrices are quantized") };
        Self { stack, outputs: *outputs, inputs: *inputs }
    }
}

impl RoundedRows {
    /// Returns a new value for a rank's part of the quantized weight `spec`, without any rows yet.
    pub(super) fn new(spec: &WeightSpec) -> Self {
        let shape = spec.local_shape();
        let rounding = spec.rounding.expect("the weight is quantized");
        let Sizes { outputs, inputs, .. } = Sizes::of(&shape);
        let [numbers, scales, factors] = {
            let mut types = types(rounding, &shape).into_iter();
            [(); 3].map(|()| vec![0; types.next().map_or(0, |ty| ty.size_bytes() as usize)])
        };
        Self { rounding, outputs, inputs, num_rows: 0, numbers, scales, factors }
    }

    /// Quantizes `rows`, which are whole rows, and appends them.
    pub(super) fn append(&mut self, rows: &[f32]) {
        let num_groups = self.inputs.div_ceil(GROUP_INPUTS);
        let mut groups = vec![[0; GROUP_INPUTS]; num_groups];
        let mut factors = vec![0; num_groups];
        for row in rows.chunks(self.inputs) {
            let first = self.num_rows * self.inputs;
            let scale = match self.rounding {
                Rounding::Int8 => int8::round_row(row, &mut self.numbers[first..first + self.inputs]),
                Rounding::Fp8 => fp8::round_row(row, &mut self.numbers[first..first + self.inputs]),
                Rounding::Int4 => {
                    let scale = int4::round_row(row, &mut groups, &mut factors);
                    self.put_column(&groups, &factors);
                    scale
                }
            };
            self.scales[self.num_rows * size_of::<f32>()..][..size_of::<f32>()].copy_from_slice(&scale.to_le_bytes());
            self.num_rows += 1;
        }
    }

    /// Writes the int4 values and factors of the next row (one output) as a column of its matrix.
    fn put_column(&mut self, groups: &[[i8; GROUP_INPUTS]], factors: &[i8]) {
        let (matrix, output) = (self.num_rows / self.outputs, self.num_rows % self.outputs);
        let first = matrix * groups.len();
        let column = |array: &mut Vec<u8>, first: usize, values: &mut dyn Iterator<Item = i8>| {
            let places = array[first * self.outputs + output..].iter_mut().step_by(self.outputs);
            places.zip(values).for_each(|(place, value)| *place = value.cast_unsigned());
        };
        column(&mut self.numbers, first * GROUP_INPUTS, &mut groups.iter().flatten().copied());
        column(&mut self.factors, first, &mut factors.iter().copied());
    }

    /// Returns the bytes of each array, in the order of [`types`].
    pub(super) fn into_arrays(self) -> Vec<Vec<u8>> {
        let Self { rounding, numbers, scales, factors, .. } = self;
        match rounding {
            Rounding::Int8 | Rounding::Fp8 => vec![numbers, scales],
            Rounding::Int4 => vec![numbers, scales, factors],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::graph::{Partition, Source};
    use numbers::FloatType;

    fn rounded(rounding: Rounding, shape: &[usize], rows: &[f32]) -> [Vec<i8>; 3] {
        let (name, shape, source) = ("w".to_owned(), shape.to_vec(), Source::Whole);
        let (dtype, partition, rounding) = (FloatType::F32, Partition::Replicated, Some(rounding));
        let spec = WeightSpec { name, shape, dtype, partition, num_ranks: 1, num_copies: 1, source, rounding };
        let mut rounded = RoundedRows::new(&spec);
        let (first, rest) = rows.split_at(spec.shape[spec.shape.len() - 1]);
        rounded.append(first);
        rounded.append(rest);
        let RoundedRows { numbers, scales, factors, .. } = rounded;
        [numbers, scales, factors].map(|bytes| bytes.into_iter().map(u8::cast_signed).collect())
    }

    fn scales(bytes: &[i8]) -> Vec<f32> {
        let word = |bytes: &[i8]| f32::from_le_bytes([0, 1, 2, 3].map(|index: usize| bytes[index].cast_unsigned()));
        bytes.chunks(4).map(word).collect()
    }

    #[test]
    fn rows_of_eight_bits_have_a_scale() {
        let rows = [0.0, -127.0, 2.5, 3.5, 126.4, 1e-31, 0.0, 0.0, 0.0, 0.0, -0.5, 0.25, 0.0, 0.0, 0.0];
        let [numbers, found, factors] = rounded(Rounding::Int8, &[3, 5], &rows);
        assert_eq!(scales(&found), [1.0, 0.0, 0.5 / 127.0]);
        assert_eq!(numbers, [0, -127, 2, 4, 126, 0, 0, 0, 0, 0, -127, 64, 0, 0, 0]);
        assert!(factors.is_empty());
    }

    #[test]
    fn outputs_of_four_bits_are_columns_of_their_matrix() {
        // Two matrices of two outputs and 33 inputs: a whole group, and a group with one input.
        let row = |value: f32, last: f32| (0..33).map(move |input| if input < 32 { value } else { last });
        let rows: Vec<f32> = [(-120.0, 8.0), (56.0, -120.0), (0.0, 0.0), (-64.0, 120.0)]
            .into_iter()
            .flat_map(|(value, last)| row(value, last))
            .collect();
        let [numbers, found, factors] = rounded(Rounding::Int4, &[2, 2, 33], &rows);
        assert_eq!(scales(&found), [1.0, 1.0, 0.0, 1.0]);
        let number = |matrix: usize, input: usize, output: usize| numbers[(matrix * 64 + input) * 2 + output];
        let factor = |matrix: usize, input: usize, output: usize| factors[(matrix * 2 + input / 32) * 2 + output];
        for (index, value) in rows.iter().enumerate() {
            let (matrix, output, input) = (index / 66, index / 33 % 2, index % 33);
            let found = i32::from(number(matrix, input, output)) * i32::from(factor(matrix, input, output));
            assert_eq!(found as f32, *value, "{matrix} {output} {input}");
        }
        assert!((33..64).all(|input| number(0, input, 0) == 0 && number(1, input, 1) == 0));
        assert_eq!([numbers.len(), factors.len()], [2 * 64 * 2, 2 * 2 * 2]);
    }

    #[test]
    fn rows_of_floats_of_a_byte_have_a_scale() {
        let [numbers, found, factors] = rounded(Rounding::Fp8, &[2, 3], &[1.75, -0.5, 0.0, 0.0, 1e-31, 0.0]);
        assert_eq!(scales(&found), [1.0 / 256.0, 0.0]);
        assert_eq!(numbers.into_iter().map(i8::cast_unsigned).collect::<Vec<_>>(), [0x7e, 0xf0, 0, 0, 0, 0]);
        assert!(factors.is_empty());
    }

    #[test]
    fn types_are_those_of_the_arrays() {
        let text = |rounding| types(rounding, &[3, 10, 65]).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(text(Rounding::Int8), ["tensor<3x10x65xi8>", "tensor<3x10xf32>"]);
        assert_eq!(text(Rounding::Fp8), ["tensor<3x10x65xf8E4M3FN>", "tensor<3x10xf32>"]);
        assert_eq!(text(Rounding::Int4), ["tensor<3x3x32x10xi4>", "tensor<3x10xf32>", "tensor<3x3x10xi8>"]);
    }
}
