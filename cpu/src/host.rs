//! Borrows candle tensors as slices, and turns vectors into tensors.
//!
//! Entry points: [`View`], which borrows a tensor's elements, and [`tensor`] and [`shaped`], which take ownership of a
//! vector. None of them copies elements.

use candle_core::{CpuStorage, Device, Shape, Storage, StorageRef, Tensor, WithDType};

/// The elements of a contiguous tensor, borrowed.
pub(super) struct View<'a> {
    storage: StorageRef<'a>,
    start: usize,
    end: usize,
}

impl<'a> View<'a> {
    /// Borrows the elements of `tensor`.
    ///
    /// # Errors
    /// When the elements are not contiguous.
    pub(super) fn new(tensor: &'a Tensor) -> candle_core::Result<Self> {
        let (storage, layout) = tensor.storage_and_layout();
        let Some((start, end)) = layout.contiguous_offsets() else {
            candle_core::bail!("a tensor of layout {layout:?} is not contiguous");
        };
        Ok(Self { storage, start, end })
    }

    /// Returns the elements.
    ///
    /// # Panics
    /// When the elements are not f32. The types in the graph rule this out.
    pub(super) fn f32(&self) -> &[f32] {
        self.slice()
    }

    /// Returns the elements.
    ///
    /// # Panics
    /// When the elements are not i32.
    pub(super) fn i32(&self) -> &[i32] {
        self.slice()
    }

    /// Returns the elements.
    ///
    /// # Panics
    /// When the elements are not u32.
    pub(super) fn u32(&self) -> &[u32] {
        self.slice()
    }

    /// Returns the elements, one byte per bool.
    ///
    /// # Panics
    /// When the elements are not bytes.
    pub(super) fn bool(&self) -> &[u8] {
        self.slice()
    }

    fn slice<T: WithDType>(&self) -> &[T] {
        let storage = cpu(&self.storage);
        let elements = storage.as_slice::<T>().expect("graph types say what a value holds");
        &elements[self.start..self.end]
    }
}

fn cpu(storage: &Storage) -> &CpuStorage {
    match storage {
        Storage::Cpu(storage) => storage,
        Storage::Cuda(_) | Storage::Metal(_) => unreachable!("this backend makes tensors on the CPU only"),
    }
}

/// Returns a tensor with one dimension.
pub(super) fn tensor<T: WithDType>(elements: Vec<T>) -> candle_core::Result<Tensor> {
    let len = elements.len();
    Tensor::from_vec(elements, len, &Device::Cpu)
}

/// Returns a tensor of `shape`.
pub(super) fn shaped<T: WithDType>(elements: Vec<T>, shape: impl Into<Shape>) -> candle_core::Result<Tensor> {
    Tensor::from_vec(elements, shape.into(), &Device::Cpu)
}
