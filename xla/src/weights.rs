//! Loads weights onto the devices.
//!
//! Entry points: [`upload`], and [`arrays`] for the programs that read the weights. The part of a tensor that belongs
//! to a rank is copied to the rank's device: unchanged, or converted if the model is loaded in another type, or
//! quantized (`rounded_rows`). Unless the shards of a host load in turns, a few threads read parts while devices copy
//! earlier ones. The bytes under way are bounded ([`UploadBudget`]).

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use backend::{Membership, ModelGraphs, Stays};
use model::graph::{DType, WeightSpec};
use model::weights::{Checkpoint, TensorPart};
use numbers::{FloatType, floats};
use pjrt::{Buffer, Client, Device, ElementType, HostSlice};

use super::rounded_rows::{self, RoundedRows};
use super::stablehlo::Type;
use super::upload_budget::{Permit, UploadBudget};
use crate::error::XlaError;

/// The maximum number of floats that are quantized at a time, unless a single row has more.
const FLOATS_AT_ONCE: usize = 1 << 20;
/// The maximum number of threads that read weights. Each waits for the disk, or copies at a good part of the memory's
/// bandwidth.
const MAX_THREADS: usize = 8;
/// The budget of a process that shares its host with no other shard is at least this: enough for several tensors of
/// most models.
const MIN_BUDGET_BYTES: u64 = 256 << 20;
/// A budget has room for this number of copies of the largest part.
const COPIES_UNDER_WAY: u64 = 2;

/// The weights of a model.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) graphs: &'a ModelGraphs,
    pub(super) checkpoint: &'a Checkpoint,
}

/// The arrays of a device while they are loaded, by name.
type Loaded = HashMap<String, Buffer>;
/// A function that gets the number of finished weights and the total.
type Progress<'a> = &'a mut (dyn FnMut(u64, u64) + Send);

/// The arrays of a device, sorted by name. All devices of a process have arrays of the same names, so an index is the
/// same on each of them.
#[derive(Debug)]
pub(super) struct Arrays(Vec<(String, Buffer)>);

impl Arrays {
    /// Returns the index of the array `name`.
    ///
    /// # Panics
    /// When the model has no such array.
    pub(super) fn index(&self, name: &str) -> usize {
        let found = self.0.binary_search_by(|(known, _)| known.as_str().cmp(name));
        found.expect("programs take the arrays of the model's weights")
    }

    pub(super) fn get(&self, index: usize) -> &Buffer {
        &self.0[index].1
    }

    /// Replaces the array at `index`.
    pub(super) fn set(&mut self, index: usize, buffer: Buffer) {
        self.0[index].1 = buffer;
    }

    /// The number of arrays.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl From<Loaded> for Arrays {
    fn from(loaded: Loaded) -> Self {
        let mut arrays: Vec<(String, Buffer)> = loaded.into_iter().collect();
        arrays.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Self(arrays)
    }
}

/// Copies every weight of `source` to `devices`, each with its rank, and returns the arrays of each device. The copies
/// have ended. `progress` is called repeatedly with the number of finished weights and the total. If the host's
/// memory is short, its shards, the members of `membership`, load in turns.
///
/// # Errors
/// For example, when a weight is missing or malformed, or a device has no memory for it.
pub(super) fn upload(
    source: Source<'_>,
    membership: &Membership,
    client: &Client,
    devices: &[(usize, Device)],
    progress: Progress<'_>,
) -> Result<Vec<Arrays>, XlaError> {
    let specs = source.graphs.weights();
    let largest = specs.iter().map(|spec| spec.local_bytes()).max().unwrap_or(0);
    let max_at_once = membership.max_loading(&specs, Stays::OnDevice)?;
    let num_members = membership.num_on_host();
    // `max_loading` counts on two copies of the largest part for each rank, so a member of a group gets no minimum.
    let budget_bytes = if num_members > 1 { 0 } else { MIN_BUDGET_BYTES }.max(COPIES_UNDER_WAY * largest);
    let loading = Loading::new((source.checkpoint, client), &specs, devices, budget_bytes);
    progress(0, specs.len() as u64);
    if max_at_once < num_members {
        for index in 0..specs.len() {
            let done = index as u64;
            let _turn = membership.take_turn(max_at_once, &mut || progress(done, specs.len() as u64))?;
            (0..devices.len()).try_for_each(|device| loading.load(index, device))?;
            loading.budget.wait_for_all();
            progress(done + 1, specs.len() as u64);
        }
    } else {
        loading.load_all(progress)?;
    }
    loading.finish()
}

/// An upload of weights to devices.
pub(super) struct Loading<'a> {
    checkpoint: &'a Checkpoint,
    client: &'a Client,
    specs: &'a [&'a WeightSpec],
    devices: &'a [(usize, Device)],
    budget: Arc<UploadBudget>,
    arrays: Vec<Mutex<Loaded>>,
}

/// Bytes that a device copies. They count in the budget until the copy has ended.
struct BytesUnderWay {
    bytes: Vec<u8>,
    _permit: Arc<Permit>,
}

impl AsRef<[u8]> for BytesUnderWay {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<'a> Loading<'a> {
    /// Returns an upload of which `budget_bytes` may be under way.
    pub(super) fn new(
        (checkpoint, client): (&'a Checkpoint, &'a Client),
        specs: &'a [&'a WeightSpec],
        devices: &'a [(usize, Device)],
        budget_bytes: u64,
    ) -> Self {
        let arrays = devices.iter().map(|_| Mutex::new(Loaded::with_capacity(specs.len()))).collect();
        Self { checkpoint, client, specs, devices, budget: UploadBudget::new(budget_bytes), arrays }
    }

    /// Starts the uploads of all weights to all devices, on several threads.
    pub(super) fn load_all(&self, progress: Progress<'_>) -> Result<(), XlaError> {
        let num_parts = self.specs.len() * self.devices.len();
        let total = self.specs.len() as u64;
        let num_threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS).min(num_parts);
        let (next, done) = (AtomicUsize::new(0), Mutex::new((0, progress)));
        let load_some = || -> Result<(), XlaError> {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= num_parts {
                    return Ok(());
                }
                // The devices get a weight one after the other, so that its pages are still in memory.
                let loaded = self.load(index / self.devices.len(), index % self.devices.len());
                // Otherwise the other threads would wait for the bytes of this one.
                loaded.inspect_err(|_| self.budget.close())?;
                let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                done.0 += 1;
                let num_weights = (done.0 / self.devices.len()) as u64;
                (done.1)(num_weights, total);
            }
        };
        std::thread::scope(|scope| {
            let spawn = |index| {
                let thread = std::thread::Builder::new().name(format!("weights-{index}"));
                thread.spawn_scoped(scope, load_some)
            };
            let threads = (1..num_threads).map(spawn).collect::<Result<Vec<_>, _>>();
            let threads = threads.map_err(|source| XlaError::Thread { work: "reading weights", source });
            let own = load_some();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<(), XlaError>>| {
                thread.join().expect("a thread that reads weights does not panic")
            };
            threads?.into_iter().map(join).fold(own, Result::and)
        })
    }

    /// Reads the part of the weight number `weight` that belongs to the rank of the device number `device`, and starts
    /// its upload. Does nothing if another upload has failed.
    fn load(&self, weight: usize, device: usize) -> Result<(), XlaError> {
        let (spec, (rank, target)) = (self.specs[weight], &self.devices[device]);
        let Some(permit) = self.budget.take(spec.local_bytes()) else { return Ok(()) };
        let permit = Arc::new(permit);
        let upload = |ty: &Type, bytes: Vec<u8>| {
            let owner = BytesUnderWay { bytes, _permit: Arc::clone(&permit) };
            let buffer = self.client.upload_owned(owner, element_type(ty.dtype), &ty.dims, target);
            buffer.map_err(|source| failed(&spec.name, source))
        };
        // The plugin may copy the file's pages before the transfer, so the permit is kept until the end.
        let copy = |ty: &Type, bytes: &[u8]| {
            let host = HostSlice::new(element_type(ty.dtype), &ty.dims, bytes);
            let buffer = host.and_then(|host| self.client.upload(host, target));
            let copied = buffer.and_then(|buffer| buffer.ready()?.wait().map(|()| buffer));
            copied.map_err(|source| failed(&spec.name, source))
        };
        let uploaded = self.checkpoint.read(spec, *rank, |stored| match spec.rounding {
            None => {
                let rows = stored.all();
                let bytes = if stored.dtype == spec.dtype {
                    rows.bytes
                } else {
                    Cow::Owned(floats::convert(&rows.bytes, stored.dtype, spec.dtype).into_owned())
                };
                let ty = Type::new(spec.local_shape(), DType::Float(spec.dtype));
                Ok(vec![match bytes {
                    Cow::Borrowed(bytes) => copy(&ty, bytes)?,
                    Cow::Owned(bytes) => upload(&ty, bytes)?,
                }])
            }
            Some(_) => {
                let arrays = arrays(spec).into_iter().zip(rounded_part(stored, spec));
                arrays.map(|((_, ty), bytes)| upload(&ty, bytes)).collect::<Result<Vec<_>, XlaError>>()
            }
        })?;
        let names = arrays(spec).into_iter().map(|(name, _)| name);
        self.arrays[device].lock().unwrap_or_else(PoisonError::into_inner).extend(names.zip(uploaded));
        Ok(())
    }

    /// Waits for the end of all copies, and returns the arrays.
    pub(super) fn finish(self) -> Result<Vec<Arrays>, XlaError> {
        let arrays = self.arrays.into_iter().map(|arrays| arrays.into_inner().unwrap_or_else(PoisonError::into_inner));
        let arrays: Vec<Loaded> = arrays.collect();
        for (name, buffer) in arrays.iter().flatten() {
            let ready = buffer.ready().and_then(|ready| ready.wait());
            ready.map_err(|source| failed(name, source))?;
        }
        Ok(arrays.into_iter().map(Arrays::from).collect())
    }
}

fn failed(weight: &str, source: pjrt::Error) -> XlaError {
    XlaError::Program { program: format!("upload of weight {weight}"), source }
}

/// Returns the name and the type of each array of a rank's part of a weight: the values, then the scales if the weight
/// is quantized, then the factors if it is int4.
pub(super) fn arrays(spec: &WeightSpec) -> Vec<(String, Type)> {
    let numbers = Type::new(spec.local_shape(), DType::Float(spec.dtype));
    let types =
        spec.rounding.map_or_else(|| vec![numbers], |rounding| rounded_rows::types(rounding, &spec.local_shape()));
    let names = ["", ".scale", ".factor"].map(|suffix| format!("{}{suffix}", spec.name));
    names.into_iter().zip(types).collect()
}

/// Quantizes a rank's part of a weight, some rows at a time, and returns the bytes of its arrays.
fn rounded_part(part: &TensorPart<'_>, spec: &WeightSpec) -> Vec<Vec<u8>> {
    let shape = spec.local_shape();
    let row_floats: usize = shape[1..].iter().product();
    let rows_at_once = (FLOATS_AT_ONCE / row_floats.max(1)).max(1);
    let mut rounded = RoundedRows::new(spec);
    let mut values = Vec::new();
    for first in (0..shape[0]).step_by(rows_at_once) {
        let rows = part.rows(first..(first + rows_at_once).min(shape[0]));
        values.clear();
        floats::read(&rows.bytes, part.dtype, &mut values);
        rounded.append(&values);
    }
    rounded.into_arrays()
}

/// Returns PJRT's element type for `dtype`.
pub(super) fn element_type(dtype: DType) -> ElementType {
    match dtype {
        DType::Float(FloatType::F32) => ElementType::F32,
        DType::Float(FloatType::F16) => ElementType::F16,
        DType::Float(FloatType::Bf16) => ElementType::Bf16,
        DType::F8 => ElementType::F8E4M3FN,
        DType::I4 => ElementType::S4,
        DType::I8 => ElementType::S8,
        DType::I32 => ElementType::S32,
        DType::U32 => ElementType::U32,
        DType::Bool => ElementType::Pred,
    }
}
