//! Tests of inputs that pass through unchanged, and of functions of single elements.

use backend::{Batch, RowSampler};
use model::sampling::columns;
use proptest::prelude::*;
use proto::SamplingParams;

use super::case::{greedy, layout};
use super::*;

/// Random numbers, among them special values such as zeroes, infinities and NaN.
fn special_floats(numbers: &mut Numbers, len: usize) -> Vec<f32> {
    const SPECIAL: [f32; 9] =
        [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE];
    let mut values = numbers.floats(len, 80.0);
    for value in &mut values {
        if numbers.below(3) == 0 {
            *value = numbers.one_of(&SPECIAL);
        }
    }
    values
}

proptest! {
    #![proptest_config(cases(4))]

    #[test]
    fn tokens_and_their_arguments_pass_through(
        lens in prop::collection::vec(1..6usize, 1..4),
        [a, b] in prop::array::uniform2(1..5usize),
        constant in any::<f32>(),
        seed in any::<u64>(),
    ) {
        let mut graph = Graph::default();
        let mut outputs = vec![graph.input(Input::TokenIds), graph.input(Input::Positions), graph.constant(constant)];
        let x = tokens(&mut graph, 0, &[a * b]);
        outputs.extend([x, graph.reshape(x, &[a, b]).unwrap(), graph.argument(1, Shape::fixed(&[3]), DType::F32)]);
        let graph = graph.finish(&outputs);
        let mut numbers = Numbers::new(seed);
        let mut batch = Batch::default();
        for (slot, len) in lens.iter().enumerate() {
            batch.push_row(slot, numbers.below(40), &numbers.indices(*len, 1000), &[0, 0, 0]);
        }
        let num_tokens = lens.iter().sum();
        let mut case = Case::new(graph, batch, [lens.len() + 1, 8], layout(4, 1, 48));
        let values = special_floats(&mut numbers, num_tokens * a * b);
        case.arguments = vec![floats(&[num_tokens, a * b], values), floats(&[3], special_floats(&mut numbers, 3))];
        // The values are copied, not computed.
        case.check(&vec![Tolerance::Exact; 6]);
    }

    #[test]
    fn sampling_inputs_and_row_arguments_pass_through(num_rows in 1..6usize, size in 1..4usize, seed in any::<u64>()) {
        let mut graph = Graph::default();
        let mut outputs: Vec<Value> = columns().map(|column| graph.input(column.input())).collect();
        outputs.push(rows(&mut graph, 0, &[size], DType::F32));
        outputs.push(rows(&mut graph, 1, &[size], DType::I32));
        outputs.push(rows(&mut graph, 2, &[], DType::Bool));
        let graph = graph.finish(&outputs);
        let mut numbers = Numbers::new(seed);
        let mut batch = Batch::default();
        let mut num_sampled = 0;
        for slot in 0..num_rows {
            let row = batch.push_row(slot, 0, &vec![1; 1 + numbers.below(8)], &[0]);
            // Some rows only read: for the sampler they are padding.
            if slot == 0 || numbers.below(3) > 0 {
                let params = params(&mut numbers);
                batch.push_sampled(row, 1, &RowSampler { params: params.into(), ..greedy(&graph) });
                num_sampled += 1;
            }
        }
        let mut case = Case::new(graph, batch, [num_rows + 1, 8], layout(6, 1, 16));
        let len = num_sampled * size;
        case.arguments = vec![
            floats(&[num_sampled, size], special_floats(&mut numbers, len)),
            integers(&[num_sampled, size], numbers.indices(len, 1 << 30)),
            Array { dims: vec![num_sampled], elements: Elements::Bool((0..num_sampled).map(|i| i % 2 == 0).collect()) },
        ];
        case.check(&vec![Tolerance::Exact; outputs.len()]);
    }

    #[test]
    fn functions_of_elements(num_rows in 1..5usize, size in 1..40usize, constant in -4.0..4.0f32, seed in any::<u64>()) {
        let mut graph = Graph::default();
        let x = rows(&mut graph, 0, &[size], DType::F32);
        let y = rows(&mut graph, 1, &[size], DType::F32);
        let per_row = rows(&mut graph, 2, &[], DType::F32);
        let [ids, other_ids] = [3, 4].map(|index| rows(&mut graph, index, &[], DType::I32));
        let constant = graph.constant(constant);
        let mut outputs = Vec::new();
        for [a, b] in [[x, y], [x, per_row], [per_row, x], [x, constant], [constant, x], [per_row, constant]] {
            for function in [Binary::Add, Binary::Subtract, Binary::Multiply, Binary::Divide] {
                outputs.push(graph.binary(function, a, b).unwrap());
            }
            let condition = graph.less(a, b).unwrap();
            outputs.extend([condition, graph.select(condition, a, b).unwrap()]);
        }
        let condition = graph.less(per_row, constant).unwrap();
        outputs.extend([
            graph.select(condition, x, y).unwrap(),
            graph.select(condition, constant, x).unwrap(),
            graph.select(condition, ids, other_ids).unwrap(),
            graph.unary(Unary::Negate, x).unwrap(),
            graph.unary(Unary::Abs, x).unwrap(),
            graph.unary(Unary::Exp, x).unwrap(),
        ]);
        let graph = graph.finish(&outputs);
        let mut numbers = Numbers::new(seed);
        let [x, y] = [(); 2].map(|()| floats(&[num_rows, size], special_floats(&mut numbers, num_rows * size)));
        let per_row = floats(&[num_rows], special_floats(&mut numbers, num_rows));
        let [ids, other_ids] = [(); 2].map(|()| integers(&[num_rows], numbers.indices(num_rows, 1 << 30)));
        // IEEE 754 defines the results to the bit, but devices may flush numbers below the smallest normal one to 0.
        let ieee = Tolerance::Close { relative: 0.0, absolute: f32::MIN_POSITIVE };
        let mut tolerances = vec![ieee; outputs.len()];
        // XLA replaces a division by a constant with a product with its inverse.
        for (tolerance, output) in tolerances.iter_mut().zip(&outputs) {
            if let Op::Binary(Binary::Divide) = graph.node(*output).op {
                *tolerance = Tolerance::Close { relative: 2.0 * f32::EPSILON, absolute: f32::MIN_POSITIVE };
            }
        }
        // Both backends use a polynomial that is right to 2 units in the last place.
        tolerances[outputs.len() - 1] = Tolerance::Close { relative: 5e-7, absolute: f32::MIN_POSITIVE };
        Case::plain(graph, num_rows, vec![x, y, per_row, ids, other_ids]).check(&tolerances);
    }
}

fn params(numbers: &mut Numbers) -> SamplingParams {
    SamplingParams {
        temperature: 0.1 + numbers.unit(),
        top_k: numbers.word(),
        top_p: numbers.unit(),
        min_p: numbers.unit(),
        typical_p: numbers.unit(),
        repetition_penalty: 1.0 + numbers.unit(),
        frequency_penalty: numbers.unit() - 0.5,
        presence_penalty: numbers.unit() - 0.5,
        watermark_gamma: numbers.unit(),
        watermark_delta: numbers.unit() - 0.5,
        seed: u64::from(numbers.word()) << 32 | u64::from(numbers.word()),
        is_greedy: numbers.below(3) == 0,
        top_n_tokens: numbers.word() % 6,
        ..SamplingParams::greedy()
    }
}
