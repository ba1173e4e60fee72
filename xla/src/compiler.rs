//! Turns programs into executables, several at once. Programs with a usable entry in the cache are loaded from there.
//!
//! Entry points: [`Compiler::compile`] for the devices of a client, [`Compiler::compile_ahead`] for a topology that
//! need not be on this machine. The log has one line per program with its source and the time taken.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use backend::Progress;
use model::Fingerprint;
use pjrt::{Client, CompileOptions, CompiledMemoryStats, LoadedExecutable, Topology};

use super::cache::{self, Cached, ProgramCache, Target};
use super::program::Program;
use super::weights;
use crate::error::XlaError;

/// Stack size of a compiler thread: compilers recurse deeply over large programs.
const STACK_BYTES: usize = 64 << 20;

/// A program that can run.
#[derive(Debug)]
pub(super) struct Executable {
    pub(super) loaded: LoadedExecutable,
    /// The names of the weights' arrays, which are the last arguments, in order.
    pub(super) weights: Vec<String>,
    /// The hash of the program's key in the cache. A plugin's fingerprint may differ between a program that was
    /// compiled and the same program loaded from the cache.
    pub(super) fingerprint: u64,
    /// True if the program was compiled now and not loaded from the cache.
    pub(super) is_new: bool,
    /// The time that compiling or loading the program took.
    pub(super) seconds: f64,
}

/// A program compiled for devices that need not be on this machine.
#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) seconds: f64,
    /// `None` if the program was in the cache.
    pub(super) executable: Option<pjrt::Executable>,
}

/// Compiles programs for one target.
#[derive(Debug)]
pub(super) struct Compiler {
    target: Target,
    options: CompileOptions,
    cache: ProgramCache,
}

impl Compiler {
    /// Returns a compiler that stores its executables in `cache`.
    pub(super) fn new(target: Target, options: CompileOptions, cache: ProgramCache) -> Self {
        Self { target, options, cache }
    }

    /// Compiles `programs` for the devices of `client`, or loads them from the cache, on at most as many threads as
    /// there are processors. Returns the executables in the order of `programs`. `progress` is called after each
    /// program.
    ///
    /// # Errors
    /// When a program does not compile or would copy its state in every step, or a thread cannot be started.
    pub(super) fn compile(
        &self,
        client: &Client,
        programs: &[Program],
        progress: &mut Progress<'_>,
    ) -> Result<Vec<Executable>, XlaError> {
        in_parallel(programs, |program| self.compile_one(client, program), progress)
    }

    /// Compiles a program, or loads its executable from the cache.
    pub(super) fn compile_one(&self, client: &Client, program: &Program) -> Result<Executable, XlaError> {
        let start = Instant::now();
        let key = cache::key(&self.target, program, &self.options);
        let entry = self.cache.entry(&program.name, &key);
        let (loaded, is_new) = match entry.lock_and_load(|bytes| client.load(bytes, None)) {
            Cached::Found(loaded) => (loaded, false),
            Cached::Missing(guard) => {
                let compiled = client.compile(program.text.as_bytes(), &self.options);
                let loaded = compiled.map_err(|source| program.failed(source))?;
                guard.store(loaded.executable());
                (loaded, true)
            }
        };
        let stats = match loaded.executable().memory_stats() {
            // An executable from the cache was checked when it was compiled, and may have lost its statistics since.
            Err(error) if !is_new => {
                tracing::debug!(program = program.name, %error, "a program from the cache has no memory statistics");
                None
            }
            stats => Some(stats),
        };
        stats.map_or(Ok(()), |stats| check_in_place(program, stats))?;
        log(program, is_new, start);
        let weights = program.weights.iter().flat_map(weights::arrays).map(|(name, _)| name).collect();
        let fingerprint = Fingerprint::default().bytes(key.as_bytes()).value();
        Ok(Executable { loaded, weights, fingerprint, is_new, seconds: start.elapsed().as_secs_f64() })
    }

    /// Compiles those of `programs` that are not in the cache for the devices of `topology`, and stores them there.
    /// `progress` is called after each program.
    ///
    /// # Errors
    /// As [`Compiler::compile`].
    pub(super) fn compile_ahead(
        &self,
        topology: &Topology,
        programs: &[Program],
        progress: &mut Progress<'_>,
    ) -> Result<Vec<Compiled>, XlaError> {
        in_parallel(programs, |program| self.compile_one_ahead(topology, program), progress)
    }

    fn compile_one_ahead(&self, topology: &Topology, program: &Program) -> Result<Compiled, XlaError> {
        let start = Instant::now();
        let entry = self.cache.entry(&program.name, &cache::key(&self.target, program, &self.options));
        let executable = match entry.lock_and_load(|_| Ok(())) {
            Cached::Found(()) => None,
            Cached::Missing(guard) => {
                let compiled = topology.compile(program.text.as_bytes(), &self.options);
                let executable = compiled.map_err(|source| program.failed(source))?;
                check_in_place(program, executable.memory_stats())?;
                guard.store(&executable);
                Some(executable)
            }
        };
        log(program, executable.is_some(), start);
        Ok(Compiled { seconds: start.elapsed().as_secs_f64(), executable })
    }
}

/// Calls `work` for every program, several at a time, and returns the results in the order of the programs. After an
/// error, no further program is begun.
fn in_parallel<T: Send>(
    programs: &[Program],
    work: impl Fn(&Program) -> Result<T, XlaError> + Sync,
    progress: &mut Progress<'_>,
) -> Result<Vec<T>, XlaError> {
    let num_threads = std::thread::available_parallelism().map_or(1, usize::from).min(programs.len().max(1));
    let next = AtomicUsize::new(0);
    let done = Mutex::new((0, progress));
    let total = programs.len() as u64;
    let work_on_some = || {
        let mut results = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(program) = programs.get(index) else {
                return Ok(results);
            };
            let result = work(program).inspect_err(|_| next.store(programs.len(), Ordering::Relaxed))?;
            results.push((index, result));
            let mut done = done.lock().expect("progress does not panic");
            done.0 += 1;
            let count = done.0;
            (done.1)("compile programs", count, total);
        }
    };
    let results = std::thread::scope(|scope| {
        let spawn = |index| {
            let thread = std::thread::Builder::new().name(format!("compile-{index}")).stack_size(STACK_BYTES);
            thread.spawn_scoped(scope, work_on_some)
        };
        let threads = (0..num_threads).map(spawn).collect::<Result<Vec<_>, _>>();
        let threads = threads.map_err(|source| XlaError::Thread { work: "compiling", source })?;
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Vec<_>, XlaError>>| {
            thread.join().expect("the compiler's thread does not panic")
        };
        threads.into_iter().map(join).collect::<Result<Vec<_>, XlaError>>()
    })?;
    let mut results: Vec<(usize, T)> = results.into_iter().flatten().collect();
    results.sort_by_key(|(index, _)| *index);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

fn log(program: &Program, is_new: bool, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    let from = if is_new { "compiler" } else { "cache" };
    tracing::info!(program = program.name, seconds = format_args!("{seconds:.2}"), from, "program");
}

/// Checks that results take over the memory of all donated arguments. Otherwise the program would silently copy the
/// other arguments in every step. Executables without memory statistics are not checked.
fn check_in_place(program: &Program, stats: Result<CompiledMemoryStats, pjrt::Error>) -> Result<(), XlaError> {
    let stats = match stats {
        Ok(stats) => stats,
        Err(error) if error.is_unimplemented() => return Ok(()),
        Err(source) => return Err(program.failed(source)),
    };
    let alias_bytes = u64::try_from(stats.alias_bytes).unwrap_or(0);
    if alias_bytes < program.donated_bytes {
        let Program { name, donated_bytes, .. } = program;
        return Err(XlaError::NotInPlace { program: name.clone(), alias_bytes, donated_bytes: *donated_bytes });
    }
    Ok(())
}
