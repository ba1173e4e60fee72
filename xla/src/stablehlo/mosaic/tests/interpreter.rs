//! Carries out the text of a kernel.
//!
//! Entry point: [`run`]. The interpreter knows the operations that our kernels use. A read or write outside of an
//! array, or in the target of a copy under way, is an error. If an operand has another type than the text says, the
//! interpreter panics. What no operation has written is NaN, or an integer that is no index.

use std::collections::HashMap;
use std::rc::Rc;

use half::bf16;

use super::super::value::{Element, Space, Type};
use super::memory::{Array, Elements, Fault, Memory, Part};
use super::text::{Block, Operation};

/// The name of an operation that a test has removed.
pub(super) const REMOVED: &str = "removed";

/// A value of a kernel.
#[derive(Debug, Clone)]
enum Value {
    Integer(i32),
    Float(f32),
    Vector(Rc<Vector>),
    Part(Part),
}

#[derive(Debug)]
struct Vector {
    dims: Vec<usize>,
    elements: Elements,
}

/// The state of a core.
struct Core {
    memory: Memory,
    values: HashMap<usize, Value>,
}

/// Runs the kernel of `module` for every step of its grid on `operands`, the last of which is the result, and returns
/// the result.
pub(super) fn run(module: &Operation, operands: &[Array]) -> Result<Vec<f32>, Fault> {
    let functions = &module.blocks[0].operations;
    let function = |name: &str| {
        let quoted = format!("\"{name}\"");
        functions.iter().find(|function| function.attribute("sym_name") == quoted).expect("the function exists")
    };
    let kernel = &functions[0];
    let [block] = kernel.blocks.as_slice() else { panic!("a kernel has one block") };
    let num_scalars = kernel.integers("scalar_prefetch")[0];
    let num_scratch = kernel.integers("scratch_operands")[0];
    let (_, types) = block.arguments.split_at(1);
    let (own, scratch) = types.split_at(types.len() - num_scratch);
    assert_eq!(own.len(), operands.len(), "an argument for each operand");
    let windows = windows(kernel.attribute("window_params"));
    assert_eq!(windows.len(), operands.len() - num_scalars, "a window for each operand");

    let mut core = Core { memory: Memory::default(), values: HashMap::new() };
    let whole: Vec<usize> = operands.iter().map(|operand| core.memory.add(operand.clone())).collect();
    let scratch: Vec<usize> = scratch.iter().map(|(_, ty)| core.memory.add(Array::spoilt(ty))).collect();
    for step in 0..kernel.integers("iteration_bounds")[0] {
        let mut arguments = vec![Value::Integer(step as i32)];
        let mut copies = Vec::new();
        for (index, ((_, ty), array)) in own.iter().zip(&whole).enumerate() {
            let window = index.checked_sub(num_scalars).and_then(|index| windows[index].as_ref());
            let Some((transform, bounds)) = window else {
                arguments.push(core.whole(*array));
                continue;
            };
            assert_eq!(ty.dims(), bounds, "the argument is a window");
            let starts = core.call(&function(transform).blocks[0], &arguments[..=num_scalars])?;
            let starts = starts.iter().zip(bounds).map(|(start, size)| Ok(integer(start)? * *size as i32));
            let starts: Vec<i32> = starts.collect::<Result<_, Fault>>()?;
            let Value::Part(all) = core.whole(*array) else { unreachable!() };
            let outside = core.memory.part(&all, &starts, bounds)?;
            let inside = core.memory.add(Array::spoilt(ty));
            let Value::Part(part) = core.whole(inside) else { unreachable!() };
            if index + 1 < own.len() {
                let values = core.memory.read(&outside)?;
                core.memory.write(&part, &values)?;
            } else {
                copies.push((part.clone(), outside));
            }
            arguments.push(Value::Part(part));
        }
        arguments.extend(scratch.iter().map(|array| core.whole(*array)));
        core.call(block, &arguments)?;
        for (inside, outside) in copies {
            let values = core.memory.read(&inside)?;
            core.memory.write(&outside, &values)?;
        }
    }
    core.memory.check_end()?;
    match &core.memory.arrays[*whole.last().expect("a result")].elements {
        Elements::Floats(values) => Ok(values.clone()),
        Elements::Integers(_) => panic!("the result has floats"),
    }
}

/// Returns the functions and the sizes of windows; `None` for arrays without a window.
fn windows(text: &str) -> Vec<Option<(&str, Vec<usize>)>> {
    let text = text.trim_start_matches('[').trim_end_matches(']');
    text.split_terminator('}').map(|text| text.split_once('{').and_then(|(_, text)| window(text))).collect()
}

fn window(text: &str) -> Option<(&str, Vec<usize>)> {
    let (_, rest) = text.split_once('@')?;
    let (name, rest) = rest.split_once(',')?;
    let (_, sizes) = rest.split_once(':')?;
    Some((name, sizes.trim_end_matches('>').split(',').map(|size| size.trim().parse().unwrap()).collect()))
}

impl Core {
    fn whole(&self, array: usize) -> Value {
        let sizes = self.memory.arrays[array].dims.clone();
        Value::Part(Part { array, starts: vec![0; sizes.len()], sizes })
    }

    /// Carries out a block, and returns the operands of its last operation.
    fn call(&mut self, block: &Block, arguments: &[Value]) -> Result<Vec<Value>, Fault> {
        assert_eq!(block.arguments.len(), arguments.len(), "a block gets its arguments");
        for ((number, _), value) in block.arguments.iter().zip(arguments) {
            self.values.insert(*number, value.clone());
        }
        let (last, operations) = block.operations.split_last().expect("a block ends");
        for operation in operations {
            self.carry_out(operation).map_err(|fault| format!("{}: {fault}", operation.name))?;
        }
        assert!(["func.return", "scf.yield"].contains(&last.name.as_str()), "a block ends");
        Ok(self.operands(last))
    }

    fn operands(&self, operation: &Operation) -> Vec<Value> {
        let value = |number: &usize| self.values.get(number).cloned();
        let mut values: Vec<Value> =
            operation.operands.iter().map(|number| value(number).expect("operands come first")).collect();
        if let Some((index, modulus)) = operation.skew
            && let Value::Integer(value) = &mut values[index]
        {
            *value = (*value + 1) % modulus as i32;
        }
        values
    }

    fn carry_out(&mut self, operation: &Operation) -> Result<(), Fault> {
        let operands = self.operands(operation);
        for (operand, ty) in operands.iter().zip(&operation.types) {
            assert!(operand.is_of(ty), "{}: an operand is not {ty}", operation.name);
        }
        match operation.name.as_str() {
            REMOVED => Ok(()),
            "scf.for" => {
                let [start, end, step] = integers(&operands)?[..] else { panic!("a loop has bounds and a step") };
                assert_eq!(step, 1);
                for index in start..end {
                    self.call(&operation.blocks[0], &[Value::Integer(index)])?;
                }
                Ok(())
            }
            "scf.if" => {
                let branch = usize::from(integer(&operands[0])? == 0);
                self.call(&operation.blocks[branch], &[]).map(|_| ())
            }
            "tpu.enqueue_dma" => {
                let [source, target, semaphore] = parts(&operands)[..] else { panic!("a copy has three operands") };
                assert_same(&operation.types[0], &operation.types[1]);
                self.memory.start_copy([source, target, semaphore])
            }
            "tpu.wait_dma2" => {
                let [semaphore, _, target] = parts(&operands)[..] else { panic!("a wait has three operands") };
                assert_same(&operation.types[1], &operation.types[2]);
                self.memory.wait(semaphore, target)
            }
            "memref.store" | "tpu.vector_store" => {
                let (elements, dims) = operands[0].elements();
                let part = self.part_at(&operands[1], &operands[2..], &dims)?;
                self.memory.write(&part, &elements)
            }
            _ => {
                let (number, ty) = operation.result.as_ref().expect("other operations have results");
                let value = self.result(operation, &operands, ty)?;
                assert!(value.is_of(ty), "{}: the result is not {ty}", operation.name);
                self.values.insert(*number, value);
                Ok(())
            }
        }
    }

    /// Returns the part of a whole array that begins at `indices`; for a number, its only element.
    fn part_at(&self, array: &Value, indices: &[Value], dims: &[usize]) -> Result<Part, Fault> {
        let Value::Part(part) = array else { panic!("an array is read or written") };
        let ones = vec![1; part.sizes.len()];
        self.memory.part(part, &integers(indices)?, if dims.is_empty() { &ones } else { dims })
    }

    fn result(&self, operation: &Operation, operands: &[Value], ty: &Type) -> Result<Value, Fault> {
        let unary = |function: fn(f32) -> f32| operands[0].map(function);
        Ok(match operation.name.as_str() {
            "arith.constant" => constant(operation.attribute("value"), ty),
            "arith.index_cast" => operands[0].clone(),
            "math.exp" => unary(f32::exp),
            "math.tanh" => unary(f32::tanh),
            "arith.extf" => operands[0].clone(),
            "arith.truncf" => unary(|value| bf16::from_f32(value).to_f32()),
            "arith.select" => select(operands),
            "arith.cmpi" => {
                let holds = match operation.integers("predicate")[0] {
                    0 => |a, b| i32::from(a == b),
                    2 => |a, b| i32::from(a < b),
                    5 => |a, b| i32::from(a >= b),
                    predicate => panic!("predicate {predicate}"),
                };
                on_integers(operands, |a, b| Ok(holds(a, b)))?
            }
            name if name.starts_with("arith.") => arithmetic(name, operands)?,
            "tpu.iota" => {
                let dim = operation.integers("dimensions")[0];
                let stride: usize = ty.dims()[dim + 1..].iter().product();
                let index = |index: usize| (index / stride % ty.dims()[dim]) as i32;
                vector(ty.dims(), Elements::Integers((0..len(ty)).map(index).collect()))
            }
            "vector.broadcast" => broadcast(&operands[0], ty),
            "vector.shape_cast" => vector(ty.dims(), operands[0].elements().0),
            "vector.extract_strided_slice" => {
                let [starts, sizes] = ["offsets", "sizes"].map(|name| operation.integers(name));
                columns(&operands[0], (starts[1], sizes[1]))
            }
            "tpu.concatenate" => {
                let rows = ty.dims()[0];
                let row = |row: usize| operands.iter().flat_map(move |part| part.row(row, rows));
                vector(ty.dims(), Elements::Floats((0..rows).flat_map(row).collect()))
            }
            "vector.multi_reduction" => reduce(operation.attribute("kind"), operands),
            "tpu.matmul" => matmul(operation.attribute("dimension_numbers"), operands, ty),
            "memref.load" | "vector.load" => {
                let part = self.part_at(&operands[0], &operands[1..], ty.dims())?;
                match (ty, self.memory.read(&part)?) {
                    (Type::Scalar(_), Elements::Integers(values)) => Value::Integer(values[0]),
                    (_, elements) => vector(ty.dims(), elements),
                }
            }
            "tpu.memref_slice" => {
                let Value::Part(part) = &operands[0] else { panic!("an array has parts") };
                Value::Part(self.memory.part(part, &integers(&operands[1..])?, ty.dims())?)
            }
            "tpu.memref_squeeze" => operands[0].clone(),
            name => panic!("{name} is not carried out"),
        })
    }
}

impl Value {
    fn is_of(&self, ty: &Type) -> bool {
        match (self, ty) {
            (Self::Integer(_), Type::Scalar(element)) => {
                matches!(element, Element::I1 | Element::I32 | Element::Index)
            }
            (Self::Float(_), Type::Scalar(element)) => matches!(element, Element::F32 | Element::Bf16),
            (Self::Vector(vector), Type::Vector { dims, element }) => {
                let is_float = matches!(element, Element::F32 | Element::Bf16);
                vector.dims == *dims && is_float == matches!(vector.elements, Elements::Floats(_))
            }
            // Squeezed dimensions are the first, and have one element.
            (Self::Part(part), Type::Array { dims, .. }) => {
                let (squeezed, kept) = part.sizes.split_at(part.sizes.len() - dims.len().min(part.sizes.len()));
                kept == dims && squeezed.iter().all(|size| *size == 1)
            }
            _ => false,
        }
    }

    /// Returns elements and sizes; no sizes for a number.
    fn elements(&self) -> (Elements, Vec<usize>) {
        match self {
            Self::Integer(value) => (Elements::Integers(vec![*value]), Vec::new()),
            Self::Float(value) => (Elements::Floats(vec![*value]), Vec::new()),
            Self::Vector(vector) => (vector.elements.clone(), vector.dims.clone()),
            Self::Part(_) => panic!("an array is no number"),
        }
    }

    fn floats(&self) -> Vec<f32> {
        match self.elements().0 {
            Elements::Floats(values) => values,
            Elements::Integers(_) => panic!("integers are no floats"),
        }
    }

    fn map(&self, function: impl Fn(f32) -> f32) -> Self {
        let values: Vec<f32> = self.floats().into_iter().map(function).collect();
        self.like(Elements::Floats(values))
    }

    /// Returns other elements with the sizes of this value.
    fn like(&self, elements: Elements) -> Self {
        match (self, elements) {
            (Self::Vector(own), elements) => vector(&own.dims, elements),
            (_, Elements::Integers(values)) => Self::Integer(values[0]),
            (_, Elements::Floats(values)) => Self::Float(values[0]),
        }
    }

    /// Returns a row of `num_rows`.
    fn row(&self, row: usize, num_rows: usize) -> Vec<f32> {
        let values = self.floats();
        let len = values.len() / num_rows;
        values[row * len..][..len].to_vec()
    }
}

fn vector(dims: &[usize], elements: Elements) -> Value {
    Value::Vector(Rc::new(Vector { dims: dims.to_vec(), elements }))
}

fn len(ty: &Type) -> usize {
    ty.dims().iter().product()
}

fn integer(value: &Value) -> Result<i32, Fault> {
    match value {
        Value::Integer(value) => Ok(*value),
        _ => Err("an integer is expected".to_owned()),
    }
}

fn integers(values: &[Value]) -> Result<Vec<i32>, Fault> {
    values.iter().map(integer).collect()
}

fn parts(values: &[Value]) -> Vec<&Part> {
    fn part(value: &Value) -> &Part {
        if let Value::Part(part) = value { part } else { panic!("an array is expected") }
    }
    values.iter().map(part).collect()
}

/// Checks that the source and the target of a copy have the same shape and elements.
fn assert_same(source: &Type, target: &Type) {
    assert_eq!((source.dims(), source.element()), (target.dims(), target.element()), "a copy changes nothing");
    let is_memory = |ty: &Type| matches!(ty, Type::Array { space, .. } if *space != Space::Semaphores);
    assert!(is_memory(source) && is_memory(target));
}

fn constant(text: &str, ty: &Type) -> Value {
    let number = |text: &str| text.split(' ').next().expect("a number").parse().expect("an integer");
    match ty {
        Type::Scalar(_) => Value::Integer(number(text)),
        _ => {
            let bits = text.strip_prefix("dense<0x").and_then(|text| text.split('>').next()).expect("bits");
            let value = f32::from_bits(u32::from_str_radix(bits, 16).expect("bits"));
            vector(ty.dims(), Elements::Floats(vec![value; len(ty)]))
        }
    }
}

fn on_integers(operands: &[Value], function: impl Fn(i32, i32) -> Result<i32, Fault>) -> Result<Value, Fault> {
    let [(Elements::Integers(a), _), (Elements::Integers(b), _)] = [operands[0].elements(), operands[1].elements()]
    else {
        panic!("two integers are expected")
    };
    let values = a.into_iter().zip(b).map(|(a, b)| function(a, b)).collect::<Result<_, _>>()?;
    Ok(operands[0].like(Elements::Integers(values)))
}

fn on_floats(operands: &[Value], function: impl Fn(f32, f32) -> f32) -> Value {
    let [a, b] = [operands[0].floats(), operands[1].floats()];
    operands[0].like(Elements::Floats(a.into_iter().zip(b).map(|(a, b)| function(a, b)).collect()))
}

fn arithmetic(name: &str, operands: &[Value]) -> Result<Value, Fault> {
    let whole = |function: fn(i32, i32) -> Option<i32>| {
        on_integers(operands, |a, b| function(a, b).ok_or_else(|| format!("{a} and {b} have no such result")))
    };
    match name {
        "arith.addf" => Ok(on_floats(operands, |a, b| a + b)),
        "arith.subf" => Ok(on_floats(operands, |a, b| a - b)),
        "arith.mulf" => Ok(on_floats(operands, |a, b| a * b)),
        "arith.divf" => Ok(on_floats(operands, |a, b| a / b)),
        // If an operand is NaN, so is the result.
        "arith.maximumf" => Ok(on_floats(operands, |a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { a.max(b) })),
        "arith.addi" => whole(i32::checked_add),
        "arith.subi" => whole(i32::checked_sub),
        "arith.muli" => whole(i32::checked_mul),
        "arith.divsi" => whole(i32::checked_div),
        "arith.remsi" => whole(i32::checked_rem),
        "arith.minsi" => whole(|a, b| Some(a.min(b))),
        "arith.maxsi" => whole(|a, b| Some(a.max(b))),
        "arith.andi" => whole(|a, b| Some(a & b)),
        _ => panic!("{name} is not carried out"),
    }
}

fn select(operands: &[Value]) -> Value {
    let (Elements::Integers(conditions), _) = operands[0].elements() else { panic!("bools are expected") };
    let len = conditions.len();
    let places = conditions.into_iter().enumerate().map(|(index, holds)| if holds == 1 { index } else { len + index });
    let all = match [operands[1].elements().0, operands[2].elements().0] {
        [Elements::Integers(a), Elements::Integers(b)] => Elements::Integers([a, b].concat()),
        [Elements::Floats(a), Elements::Floats(b)] => Elements::Floats([a, b].concat()),
        _ => panic!("both have the same type"),
    };
    operands[1].like(all.at(places))
}

/// Repeats a number, or the one column of a vector.
fn broadcast(x: &Value, ty: &Type) -> Value {
    let (elements, dims) = x.elements();
    let lanes = match dims.as_slice() {
        [] => len(ty),
        [rows, 1] if *rows == ty.dims()[0] => ty.dims()[1],
        _ => panic!("{dims:?} is not broadcast to {ty}"),
    };
    vector(ty.dims(), elements.at((0..len(ty)).map(|index| index / lanes)))
}

fn columns(x: &Value, (from, num_columns): (usize, usize)) -> Value {
    let (elements, dims) = x.elements();
    let places = (0..dims[0]).flat_map(|row| (0..num_columns).map(move |column| (row, from + column)));
    vector(&[dims[0], num_columns], elements.at(places.map(|(row, column)| row * dims[1] + column)))
}

fn reduce(kind: &str, operands: &[Value]) -> Value {
    let (_, dims) = operands[0].elements();
    let values = operands[0].floats();
    let combine = match kind {
        "#vector.kind<add>" => |a: f32, b: f32| a + b,
        "#vector.kind<maximumf>" => |a: f32, b: f32| if a.is_nan() || b.is_nan() { f32::NAN } else { a.max(b) },
        _ => panic!("{kind} is not carried out"),
    };
    let rows = operands[1].floats().into_iter().zip(values.chunks(dims[1]));
    let reduced = rows.map(|(start, row)| row.iter().copied().fold(start, combine)).collect();
    vector(&dims[..1], Elements::Floats(reduced))
}

fn matmul(dimensions: &str, operands: &[Value], ty: &Type) -> Value {
    let is_transposed = match dimensions {
        "#tpu.dot_dimension_numbers<[1], [1], [0], [0], [0, 0, 1, 0], [], []>" => true,
        "#tpu.dot_dimension_numbers<[1], [0], [0], [1], [0, 0, 1, 1], [], []>" => false,
        _ => panic!("{dimensions} is not carried out"),
    };
    let [rows, num_columns] = [ty.dims()[0], ty.dims()[1]];
    let [a, b, mut sums] = [&operands[0], &operands[1], &operands[2]].map(Value::floats);
    let inner = a.len() / rows;
    for row in 0..rows {
        for column in 0..num_columns {
            let factor =
                |index: usize| if is_transposed { column * inner + index } else { index * num_columns + column };
            let products = (0..inner).map(|index| a[row * inner + index] * b[factor(index)]);
            sums[row * num_columns + column] += products.sum::<f32>();
        }
    }
    vector(ty.dims(), Elements::Floats(sums))
}
