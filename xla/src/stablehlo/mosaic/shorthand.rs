//! Shorthands of the decode kernel for integers, loops and parts of arrays.
//!
//! Entry points: the methods of [`Decoder`], and [`Place`].

use backend::BLOCK_SIZE;

use super::decode::{Chunk, Decoder};
use super::emitter::Binary;
use super::value::{Element, Value};

/// An index along one dimension of an array.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place<'a> {
    Fixed(usize),
    /// The index is an integer of the kernel.
    At(&'a Value),
}

impl Decoder<'_> {
    /// Returns an integer.
    pub(super) fn integer(&mut self, value: usize) -> Value {
        self.emitter.integer(value as i64)
    }

    /// Returns a vector whose elements are all equal to the integer `value`.
    pub(super) fn splat(&mut self, value: usize, dims: &[usize]) -> Value {
        let value = self.integer(value);
        self.emitter.broadcast(&value, dims)
    }

    /// Applies `op` to numbers or vectors of one type.
    pub(super) fn binary(&mut self, op: Binary, a: &Value, b: &Value) -> Value {
        self.emitter.binary(op, a, b)
    }

    /// Returns an integer times a constant.
    pub(super) fn times(&mut self, x: &Value, factor: usize) -> Value {
        let factor = self.integer(factor);
        self.binary(Binary::Multiply, x, &factor)
    }

    /// Repeats `body` for the integers from `start` up to but without `end`.
    pub(super) fn repeat(&mut self, start: &Value, end: &Value, body: impl FnOnce(&mut Self, &Value)) {
        let index = self.emitter.begin_loop(start, end);
        body(self, &index);
        self.emitter.end_loop();
    }

    /// Carries out `then` if `condition` is true, else `otherwise`.
    pub(super) fn branch(
        &mut self,
        condition: &Value,
        then: impl FnOnce(&mut Self),
        otherwise: impl FnOnce(&mut Self),
    ) {
        self.emitter.begin_branch(condition);
        then(self);
        self.emitter.begin_otherwise();
        otherwise(self);
        self.emitter.end_branch();
    }

    /// Carries out `then` if `condition` is true.
    pub(super) fn when(&mut self, condition: &Value, then: impl FnOnce(&mut Self)) {
        self.branch(condition, then, |_| ());
    }

    /// Returns the lanes `from..from + len` of the keys (index 0) or the values (index 1) of a chunk, `[keys, len]`.
    pub(super) fn lanes_of_chunk(&mut self, index: usize, chunk: &Chunk, [from, len]: [usize; 2]) -> Value {
        let num_blocks = self.kernel.chunk_blocks;
        let array = &self.arrays.scratch.slots[index];
        let [slot, zero, from] = [self.emitter.as_index(&chunk.slot), self.emitter.index(0), self.emitter.index(from)];
        let lanes = self.emitter.load(array, &[&slot, &zero, &zero, &from], &[1, num_blocks, BLOCK_SIZE, len]);
        self.emitter.reshape(&lanes, &[num_blocks * BLOCK_SIZE, len])
    }

    /// Reads the part `[rows, lanes]` of an array in vector memory that the indices `place` select.
    pub(super) fn load(&mut self, array: &Value, place: &[Place<'_>], dims: &[usize]) -> Value {
        let indices = self.indices(array, place);
        let ones = vec![1; place.len()];
        let x = self.emitter.load(array, &indices.iter().collect::<Vec<_>>(), &[&ones, dims].concat());
        self.emitter.reshape(&x, dims)
    }

    /// Writes `x` `[rows, lanes]` over the part of an array in vector memory that the indices `place` select.
    pub(super) fn store(&mut self, x: &Value, array: &Value, place: &[Place<'_>]) {
        let indices = self.indices(array, place);
        let ones = vec![1; place.len()];
        let x = self.emitter.reshape(x, &[&ones, x.dims()].concat());
        self.emitter.store(&x, array, &indices.iter().collect::<Vec<_>>());
    }

    /// Reads a part of the state, or the sinks of a group, `[queries, lanes]` f32.
    pub(super) fn load_state(&mut self, array: &Value, group: usize) -> Value {
        debug_assert_eq!(array.ty.element(), Element::F32);
        self.load(array, &[Place::Fixed(group)], &array.dims()[1..])
    }

    /// Writes a part of the state, `[queries, lanes]` f32.
    pub(super) fn store_state(&mut self, x: &Value, array: &Value, group: usize) {
        self.store(x, array, &[Place::Fixed(group)]);
    }

    /// Returns the indices of the first element of the part that `place` selects.
    fn indices(&mut self, array: &Value, place: &[Place<'_>]) -> Vec<Value> {
        let start = std::iter::repeat_n(&Place::Fixed(0), array.dims().len() - place.len());
        let index = |place: &Place<'_>| match place {
            Place::Fixed(index) => self.emitter.index(*index),
            Place::At(index) => self.emitter.as_index(index),
        };
        place.iter().chain(start).map(index).collect()
    }
}
