//! From programs to executables: all of a warm-up's, several at once, most of them from the cache of earlier starts.
//!
//! Door: [`Compiler::compile`]. What was compiled and what was found is counted: nothing is compiled after warm-up.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use ::pjrt::{Client, CompileOptions, LoadedExecutable};

use super::cache::{Cached, ProgramCache};
use super::program::{Program, ProgramKey};
use crate::backend::{BackendError, Progress};

/// Compilers recurse deeply over large programs.
const STACK_BYTES: usize = 64 << 20;

/// A program that can run.
#[derive(Debug)]
pub(super) struct Executable {
    pub(super) loaded: LoadedExecutable,
    /// Names of its last arguments, in order.
    pub(super) weights: Vec<String>,
}

/// Compiles programs for the device of a client.
#[derive(Debug)]
pub(super) struct Compiler {
    client: Client,
    options: CompileOptions,
    cache: ProgramCache,
}

impl Compiler {
    /// A compiler for one device.
    pub(super) fn new(client: &Client, device_id: i64, cache: ProgramCache) -> Self {
        Self { client: client.clone(), options: CompileOptions::partitioned(&[device_id]), cache }
    }

    /// Compiles `programs`, in order on as many threads as there are processors. `progress` hears of each.
    ///
    /// # Errors
    /// The first that the compiler refuses, or that would copy its state in every step.
    pub(super) fn compile(
        &self,
        programs: &[(ProgramKey, Program)],
        progress: &mut Progress<'_>,
    ) -> Result<Vec<Executable>, BackendError> {
        let num_threads = std::thread::available_parallelism().map_or(1, usize::from).min(programs.len().max(1));
        let next = AtomicUsize::new(0);
        let done = Mutex::new((0, progress));
        let total = programs.len() as u64;
        let work = || {
            let mut compiled = Vec::new();
            while let Some((_, program)) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
                let executable = self.compile_one(program)?;
                let index = programs.iter().position(|(_, known)| known.name == program.name).unwrap_or_default();
                compiled.push((index, executable));
                let mut done = done.lock().expect("progress does not panic");
                done.0 += 1;
                let count = done.0;
                (done.1)("compile programs", count, total);
            }
            Ok(compiled)
        };
        let results = std::thread::scope(|scope| {
            let spawn = |index| {
                let thread = std::thread::Builder::new().name(format!("compile-{index}")).stack_size(STACK_BYTES);
                thread.spawn_scoped(scope, work)
            };
            let threads = (0..num_threads).map(spawn).collect::<Result<Vec<_>, _>>();
            let threads = threads.map_err(|source| BackendError::CompileThread { source })?;
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Vec<_>, BackendError>>| {
                thread.join().expect("the compiler's thread does not panic")
            };
            threads.into_iter().map(join).collect::<Result<Vec<_>, BackendError>>()
        })?;
        let mut executables: Vec<(usize, Executable)> = results.into_iter().flatten().collect();
        executables.sort_by_key(|(index, _)| *index);
        Ok(executables.into_iter().map(|(_, executable)| executable).collect())
    }

    /// Compiles a program, or loads what an earlier start has compiled.
    pub(super) fn compile_one(&self, program: &Program) -> Result<Executable, BackendError> {
        let start = Instant::now();
        let failed = |source| BackendError::Program { program: program.name.clone(), source };
        let entry = self.cache.entry(&self.client, program, &self.options);
        let (loaded, origin) = match entry.lock_and_load(&self.client) {
            Cached::Found(loaded) => (loaded, "cache"),
            Cached::Missing(guard) => {
                let loaded = self.client.compile(program.text.as_bytes(), &self.options).map_err(failed)?;
                guard.store(&loaded);
                (loaded, "compiler")
            }
        };
        let stats = loaded.executable().memory_stats();
        check_in_place(program, stats)?;
        let seconds = start.elapsed().as_secs_f64();
        tracing::info!(program = program.name, seconds = format_args!("{seconds:.2}"), from = origin, "program");
        let weights = program.weights.iter().map(|spec| spec.name.clone()).collect();
        Ok(Executable { loaded, weights })
    }
}

/// A donated argument that no result takes over would be copied, silently, in every step.
fn check_in_place(
    program: &Program,
    stats: Result<::pjrt::CompiledMemoryStats, ::pjrt::Error>,
) -> Result<(), BackendError> {
    let stats = match stats {
        Ok(stats) => stats,
        Err(error) if error.is_unimplemented() => return Ok(()),
        Err(source) => return Err(BackendError::Program { program: program.name.clone(), source }),
    };
    let alias_bytes = u64::try_from(stats.alias_bytes).unwrap_or(0);
    if alias_bytes < program.donated_bytes {
        let Program { name, donated_bytes, .. } = program;
        return Err(BackendError::NotInPlace { program: name.clone(), alias_bytes, donated_bytes: *donated_bytes });
    }
    Ok(())
}
