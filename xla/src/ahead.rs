//! Compiles programs for devices that need not be on this machine, and reports the compiler's statistics for each
//! program.
//!
//! Entry points: [`AheadOfTime::open`] for devices of a topology, [`AheadOfTime::attached`] for a device of this
//! machine, then [`AheadOfTime::compile`]. A server with the same devices, plugin, model and sizes has the same
//! programs and cache keys, so it can load the compiled programs from the cache.

use std::path::PathBuf;
use std::sync::Arc;

use backend::{BackendError, MemoryPlan, ModelGraphs, Progress, StateLayout};
use model::graph::StateBytes;
use pjrt::{Client, DeviceDescription, Executable, Plugin, Topology, Value};

use super::bucket::Buckets;
use super::cache::{ProgramCache, Target};
use super::compiler::{self, Compiled, Compiler};
use super::hlo::{Collectives, HloModule};
use super::platform::Platform;
use super::program::{Program, Programs, Reference};
use crate::error::XlaError;

/// The devices to compile for, which need not be on this machine, and the plugin that compiles.
#[derive(Debug)]
pub struct AheadOfTime {
    platform: Platform,
    place: Place,
    devices: Vec<DeviceDescription>,
    memory: Memory,
}

/// The source of the devices: a topology, or a client on this machine.
#[derive(Debug)]
enum Place {
    Elsewhere { plugin: Arc<Plugin>, topology: Topology },
    Here(Client),
}

/// The memory of one device: its own, or the host's.
#[derive(Debug, Clone, Copy)]
enum Memory {
    Own { bytes: u64 },
    Host(MemoryPlan),
}

/// The time that compiling a program, or finding it in the cache, took, and the program's costs.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgramFigures {
    pub name: String,
    pub seconds: f64,
    /// `None` if the program was in the cache.
    pub cost: Option<ProgramCost>,
}

/// The memory of a program on one device, and the costs of one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProgramCost {
    pub flops: f64,
    /// Bytes read and written, as the compiler counts them: the body of a loop counts once.
    pub accessed_bytes: f64,
    /// Bytes of scratch memory during a run.
    pub temp_bytes: u64,
    /// Bytes of results that take over the memory of donated arguments.
    pub alias_bytes: u64,
    pub(crate) argument_bytes: u64,
    pub code_bytes: u64,
    /// Bytes read from the device's memory, summed over the operands of the optimised program. Each row of a decoding
    /// program is assumed to have [`REFERENCE_CONTEXT`](super::program::REFERENCE_CONTEXT) tokens.
    pub read_bytes: u64,
    /// The bytes that count as the minimum that a decoding or sampling program must read, with the same assumption; 0
    /// for other programs.
    pub minimum_bytes: u64,
    /// The bytes that a decoding program reads and must read if one row's context is long and the others' are short;
    /// `None` for other programs.
    pub mixed_bytes: Option<[u64; 2]>,
    /// The compiler's estimate of the time, in cycles, with the same assumption; 0 if it has none. Transfers and
    /// kernels do not count.
    pub cycles: u64,
    pub collectives: Collectives,
}

impl AheadOfTime {
    /// Opens the plugin of `platform`, and its topology `name`.
    ///
    /// # Errors
    /// When the plugin cannot be opened, or cannot describe the topology.
    pub fn open(
        platform: Platform,
        plugin_path: Option<&std::path::Path>,
        name: &str,
        options: &[(&str, Value)],
    ) -> Result<Self, BackendError> {
        let plugin = platform.open_plugin(plugin_path)?;
        Ok(Self::of_topology(platform, &plugin, name, options)?)
    }

    /// As [`AheadOfTime::open`], with a plugin that is open.
    pub(super) fn of_topology(
        platform: Platform,
        plugin: &Arc<Plugin>,
        name: &str,
        options: &[(&str, Value)],
    ) -> Result<Self, XlaError> {
        let failed = |source| XlaError::Topology { name: name.to_owned(), source };
        let topology = Topology::new(plugin, name, options).map_err(failed)?;
        let devices = topology.device_descriptions().map_err(failed)?;
        let memory = Memory::Own { bytes: platform.memory_bytes(&topology).map_err(failed)?.unwrap_or(0) };
        let platform = platform.for_kind(devices.first().map_or("", |device| &device.kind));
        let plugin = Arc::clone(plugin);
        Ok(Self { platform, place: Place::Elsewhere { plugin, topology }, devices, memory })
    }

    /// Opens the first device of `platform` on this machine, for a kind of device that uses the host's memory.
    ///
    /// # Errors
    /// When the plugin cannot be opened or finds no device, or the host's memory cannot be determined.
    pub fn attached(platform: Platform, plugin_path: Option<&std::path::Path>) -> Result<Self, BackendError> {
        let client = platform.open(plugin_path)?;
        let device = client.addressable_devices().into_iter().next();
        let device = device.ok_or(XlaError::NoDevice { device: platform.device, wanted: 1, found: 0 })?;
        let devices = vec![device.description().clone()];
        Ok(Self { platform, place: Place::Here(client), devices, memory: Memory::Host(MemoryPlan::of_host(1)?) })
    }

    /// Returns the number of devices. All devices run one model together.
    pub fn num_devices(&self) -> usize {
        self.devices.len()
    }

    /// Returns the kind of the devices, such as `TPU v5 lite`.
    pub fn device_kind(&self) -> &str {
        self.devices.first().map_or("", |device| &device.kind)
    }

    /// Returns the bytes of one device's memory, 0 if the plugin does not report them. For a device that uses the
    /// host's memory, returns the bytes available there.
    pub fn memory_bytes(&self) -> u64 {
        match self.memory {
            Memory::Own { bytes } => bytes,
            Memory::Host(plan) => plan.available_bytes,
        }
    }

    /// Returns the memory for the states of a rank of `graphs`. The weights are subtracted only if the device has its
    /// own memory.
    pub fn memory(&self, graphs: &ModelGraphs) -> MemoryPlan {
        match self.memory {
            Memory::Own { bytes } => MemoryPlan::of_device(bytes, graphs.weights_bytes()),
            Memory::Host(plan) => plan,
        }
    }

    /// Returns the bytes that a rank of `graphs` keeps between steps.
    pub fn state_bytes(&self, graphs: &ModelGraphs) -> StateBytes {
        self.platform.form.state_bytes(graphs)
    }

    /// Returns every program that a server of `graphs` with states of `layout` can need.
    ///
    /// # Errors
    /// When the graph of a sampler, or of the log-probabilities of prompt tokens, cannot be built.
    pub fn programs(&self, graphs: &ModelGraphs, layout: StateLayout) -> Result<Vec<Program>, BackendError> {
        let programs = Programs::new(graphs, layout, self.devices.len(), self.platform.form);
        let buckets = Buckets::new(layout, &self.platform.form);
        let print = |key| programs.print(key).map_err(XlaError::from);
        Ok(programs.keys(&buckets).into_iter().map(print).collect::<Result<_, _>>()?)
    }

    /// Compiles `programs` and stores them in the folder `cache`, or nowhere if it is `None`. Programs with a usable
    /// entry in the cache are not compiled again. `progress` is called after each program.
    ///
    /// # Errors
    /// For example, when a program does not compile because it needs too much memory.
    pub fn compile(
        &self,
        programs: &[Program],
        cache: Option<PathBuf>,
        progress: &mut Progress<'_>,
    ) -> Result<Vec<ProgramFigures>, BackendError> {
        let compiler = self.compiler(cache)?;
        match &self.place {
            Place::Elsewhere { topology, .. } => {
                let compiled = compiler.compile_ahead(topology, programs, progress)?;
                let figures = |(program, compiled): (&Program, Compiled)| {
                    figures(program, compiled.seconds, compiled.executable.as_ref())
                };
                Ok(programs.iter().zip(compiled).map(figures).collect::<Result<_, _>>()?)
            }
            Place::Here(client) => {
                let compiled = compiler.compile(client, programs, progress)?;
                let figures = |(program, compiled): (&Program, compiler::Executable)| {
                    let executable = compiled.is_new.then(|| compiled.loaded.executable());
                    figures(program, compiled.seconds, executable)
                };
                Ok(programs.iter().zip(compiled).map(figures).collect::<Result<_, _>>()?)
            }
        }
    }

    /// Returns the compiler for these devices. It stores its executables in `cache`.
    ///
    /// # Errors
    /// When the plugin does not describe the platform or the devices.
    pub(super) fn compiler(&self, cache: Option<PathBuf>) -> Result<Compiler, XlaError> {
        let mut ids: Vec<i64> = self.devices.iter().map(|device| device.id).collect();
        ids.sort_unstable();
        let target = match &self.place {
            Place::Elsewhere { plugin, topology } => Target::of_topology(plugin, topology),
            Place::Here(client) => Ok(Target::of_client(client)),
        };
        let target = target.map_err(|source| self.platform.failed(source))?;
        Ok(Compiler::new(target, self.platform.compile_options(&ids), ProgramCache::new(cache)))
    }
}

fn figures(program: &Program, seconds: f64, executable: Option<&Executable>) -> Result<ProgramFigures, XlaError> {
    let cost = executable.map(|executable| cost(program, executable)).transpose()?;
    Ok(ProgramFigures { name: program.name.clone(), seconds, cost })
}

fn cost(program: &Program, executable: &Executable) -> Result<ProgramCost, XlaError> {
    let failed = |source| program.failed(source);
    let costs = executable.cost_analysis().map_err(failed)?;
    let cost = |name: &str| match costs.iter().find(|(known, _)| known == name) {
        Some((_, Value::F32(value))) => f64::from(*value),
        Some((_, Value::I64(value))) => *value as f64,
        Some((_, Value::String(_) | Value::I64List(_) | Value::Bool(_))) | None => 0.0,
    };
    let stats = executable.memory_stats().map_err(failed)?;
    let (format, bytes) = executable.optimized_program().map_err(failed)?;
    let module = HloModule::parse(&format, &bytes);
    let module = module.map_err(|source| XlaError::Hlo { program: program.name.clone(), source: Box::new(source) })?;
    let read = |reference: Reference| module.reads(reference.assumed);
    let bytes = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
    Ok(ProgramCost {
        flops: cost("flops"),
        accessed_bytes: cost("bytes accessed"),
        temp_bytes: bytes(stats.temp_bytes),
        alias_bytes: bytes(stats.alias_bytes),
        argument_bytes: bytes(stats.argument_bytes),
        code_bytes: bytes(stats.generated_code_bytes),
        read_bytes: read(program.reference),
        minimum_bytes: program.reference.minimum_bytes,
        mixed_bytes: program.mixed_reference.map(|mixed| [read(mixed), mixed.minimum_bytes]),
        cycles: module.cycles(program.reference.assumed),
        collectives: module.collectives(),
    })
}
