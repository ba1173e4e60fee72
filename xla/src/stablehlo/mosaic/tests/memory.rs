//! The memory of a core, as the interpreter has it: arrays, copies under way, and semaphores.
//!
//! Entry point: [`Memory`]. A copy may write its target at any time between its start and the end of the wait for it,
//! so until then the target can neither be read nor written. A semaphore counts bytes, not copies: a wait tells that
//! copies are done only if all bytes of all copies with the semaphore have been waited for.

use half::bf16;

use super::super::value::{Element, Type};

/// The error of a kernel.
pub(super) type Fault = String;

/// The elements of an array or a vector. Bools and indices are integers too.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Elements {
    Integers(Vec<i32>),
    Floats(Vec<f32>),
}

/// An array.
#[derive(Debug, Clone)]
pub(super) struct Array {
    pub(super) dims: Vec<usize>,
    pub(super) element: Element,
    pub(super) elements: Elements,
}

/// A part of an array, which has a start and a size in each dimension of the array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) array: usize,
    pub(super) starts: Vec<usize>,
    pub(super) sizes: Vec<usize>,
}

#[derive(Debug)]
struct Copy {
    source: Part,
    target: Part,
    semaphore: (usize, usize),
}

/// The arrays of a core.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) arrays: Vec<Array>,
    under_way: Vec<Copy>,
    /// The bytes that were waited for, by array and index of the semaphore, while its copies are under way.
    waited: Vec<((usize, usize), usize)>,
}

impl Elements {
    /// Returns the elements at `indices`.
    pub(super) fn at(&self, indices: impl Iterator<Item = usize>) -> Self {
        match self {
            Self::Integers(values) => Self::Integers(indices.map(|index| values[index]).collect()),
            Self::Floats(values) => Self::Floats(indices.map(|index| values[index]).collect()),
        }
    }

    fn put(&mut self, indices: impl Iterator<Item = usize>, values: &Self) {
        match (self, values) {
            (Self::Integers(own), Self::Integers(values)) => {
                indices.zip(values).for_each(|(to, value)| own[to] = *value)
            }
            (Self::Floats(own), Self::Floats(values)) => indices.zip(values).for_each(|(to, value)| own[to] = *value),
            (own, _) => panic!("other elements are written to {own:?}"),
        }
    }
}

impl Array {
    /// Returns an array whose contents must not reach a result: NaN, or integers that are no index.
    pub(super) fn spoilt(ty: &Type) -> Self {
        let len = ty.dims().iter().product();
        let elements = match ty.element() {
            Element::F32 | Element::Bf16 => Elements::Floats(vec![f32::NAN; len]),
            Element::I1 | Element::I32 | Element::Index | Element::Semaphore => {
                Elements::Integers(vec![0x5a5a_5a5a; len])
            }
        };
        Self { dims: ty.dims().to_vec(), element: ty.element(), elements }
    }
}

impl Part {
    /// Returns the offsets of the part's elements in an array of the sizes `dims`.
    fn offsets(&self, dims: &[usize]) -> impl Iterator<Item = usize> + use<'_> {
        let mut strides = vec![1; dims.len()];
        for dim in (1..dims.len()).rev() {
            strides[dim - 1] = strides[dim] * dims[dim];
        }
        let len: usize = self.sizes.iter().product();
        (0..len).map(move |mut index| {
            let mut offset = 0;
            for dim in (0..self.sizes.len()).rev() {
                offset += (self.starts[dim] + index % self.sizes[dim]) * strides[dim];
                index /= self.sizes[dim];
            }
            offset
        })
    }

    fn overlaps(&self, other: &Self) -> bool {
        let mut dims = (0..self.sizes.len()).map(|dim| {
            let [own, theirs] = [self, other].map(|part| part.starts[dim]..part.starts[dim] + part.sizes[dim]);
            own.start < theirs.end && theirs.start < own.end
        });
        self.array == other.array && dims.all(|overlaps| overlaps)
    }
}

impl Memory {
    /// Adds an array, and returns its index.
    pub(super) fn add(&mut self, array: Array) -> usize {
        self.arrays.push(array);
        self.arrays.len() - 1
    }

    /// Returns the part of `part` that begins at `starts` in it and has the sizes `sizes`.
    pub(super) fn part(&self, part: &Part, starts: &[i32], sizes: &[usize]) -> Result<Part, Fault> {
        let dims = &part.sizes;
        let fits = |dim: usize| usize::try_from(starts[dim]).is_ok_and(|start| start + sizes[dim] <= dims[dim]);
        if starts.len() != dims.len() || !(0..dims.len()).all(fits) {
            return Err(format!("{sizes:?} from {starts:?} on is not in {dims:?}"));
        }
        let starts = part.starts.iter().zip(starts).map(|(own, start)| own + *start as usize).collect();
        Ok(Part { array: part.array, starts, sizes: sizes.to_vec() })
    }

    /// Returns the elements of a part.
    pub(super) fn read(&self, part: &Part) -> Result<Elements, Fault> {
        self.check_rest(part, "read")?;
        let array = &self.arrays[part.array];
        Ok(array.elements.at(part.offsets(&array.dims)))
    }

    /// Writes the elements of a part.
    pub(super) fn write(&mut self, part: &Part, values: &Elements) -> Result<(), Fault> {
        self.check_rest(part, "written")?;
        self.put(part, values);
        Ok(())
    }

    fn put(&mut self, part: &Part, values: &Elements) {
        let Array { dims, element, elements } = &mut self.arrays[part.array];
        if let (Element::Bf16, Elements::Floats(values)) = (&element, values) {
            assert!(values.iter().all(|value| value.is_nan() || bf16::from_f32(*value).to_f32() == *value), "bf16");
        }
        elements.put(part.offsets(dims), values);
    }

    fn check_rest(&self, part: &Part, verb: &str) -> Result<(), Fault> {
        let clash = self.under_way.iter().find(|copy| copy.target.overlaps(part));
        clash.map_or(Ok(()), |copy| Err(format!("{part:?} is {verb} while {copy:?} is under way")))
    }

    /// Starts a copy.
    pub(super) fn start_copy(&mut self, [source, target, semaphore]: [&Part; 3]) -> Result<(), Fault> {
        self.check_rest(source, "read")?;
        self.check_rest(target, "written")?;
        let semaphore = Self::semaphore(semaphore);
        self.under_way.push(Copy { source: source.clone(), target: target.clone(), semaphore });
        Ok(())
    }

    /// Waits for the bytes of `target`.
    pub(super) fn wait(&mut self, semaphore: &Part, target: &Part) -> Result<(), Fault> {
        let semaphore = Self::semaphore(semaphore);
        let copies = self.under_way.iter().filter(|copy| copy.semaphore == semaphore);
        let started: usize = copies.map(|copy| self.bytes(&copy.target)).sum();
        let before = self.waited.iter().position(|(known, _)| *known == semaphore);
        let before = before.map_or(0, |index| self.waited.swap_remove(index).1);
        let waited = before + self.bytes(target);
        if waited > started {
            return Err(format!("semaphore {semaphore:?} waits for {waited} bytes of {started}, so for ever"));
        }
        if waited < started {
            self.waited.push((semaphore, waited));
            return Ok(());
        }
        let (done, others) = self.under_way.drain(..).partition(|copy| copy.semaphore == semaphore);
        self.under_way = others;
        let done: Vec<Copy> = done;
        for Copy { source, target, .. } in done {
            let values = self.read(&source)?;
            self.put(&target, &values);
        }
        Ok(())
    }

    /// Returns an error if a copy was not waited for.
    pub(super) fn check_end(&self) -> Result<(), Fault> {
        self.under_way.first().map_or(Ok(()), |copy| Err(format!("{copy:?} is under way at the end")))
    }

    fn bytes(&self, part: &Part) -> usize {
        part.sizes.iter().product::<usize>() * self.arrays[part.array].element.size_bytes()
    }

    fn semaphore(part: &Part) -> (usize, usize) {
        assert_eq!(part.sizes, [1], "one semaphore");
        (part.array, part.starts[0])
    }
}
