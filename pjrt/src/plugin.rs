//! A plugin: a shared library that stays open until the process ends.

#![expect(unsafe_code, reason = "loads a library and wraps the table that it returns")]

use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::api::Api;
use crate::error::Error;
use crate::extension::ExtensionKind;
use crate::ffi::values::{PluginAttributes, PluginInitialize};
use crate::ffi::{Arguments, Table};
use crate::named_value::{Value, find, read_values};

/// The C function that every plugin exports.
const ENTRY_POINT: &[u8] = b"GetPjrtApi\0";
/// The only major version of the API that this crate supports.
const MAJOR: i32 = 0;

/// The plugins that [`Plugin::open`] has returned. A plugin in this list is not initialised again.
static OPENED: Mutex<Vec<Arc<Plugin>>> = Mutex::new(Vec::new());

/// A PJRT plugin that is loaded and initialised.
///
/// A plugin is never unloaded, because plugins may start threads and register exit handlers that outlive any owner.
///
/// # Trust
///
/// [`Plugin::open`] runs the code of a library, which may do anything, like a program that is started with
/// [`std::process::Command`]. The function is not `unsafe`, because no check of a caller could make it safer: the path
/// comes from the operator, who chooses the plugin as they choose the executable. This crate promises only that its
/// own calls keep the contract of the C header if the plugin keeps the contract too. Some breaches are noticed and
/// returned as errors, such as [`Error::Contract`] and [`Error::Table`].
///
/// # Environment
///
/// Some plugins read environment variables, log to stderr, and write files. This crate never changes the environment
/// of its process. These effects of variables were found by trials:
///
/// | Plugin | Variable | Effect |
/// |---|---|---|
/// | `libtpu.so` | `TPU_SKIP_MDS_QUERY=1` | no queries of the metadata server (30 s each outside of the cloud) |
/// | | `TPU_LOG_DIR=disabled` or `TPU_MIN_LOG_LEVEL=3` | no files in `/tmp/tpu_logs` |
/// | | `TPU_ACCELERATOR_TYPE=v5litepod-4` or `TPU_HOST_BOUNDS=1,1,1` | without a TPU: no complaint about host bounds |
/// | | `ALLOW_MULTIPLE_LIBTPU_LOAD=1` | without a TPU: no `/tmp/libtpu_lockfile`, so several processes may compile |
/// | | `TPU_WORKER_HOSTNAMES=localhost` | without a TPU: no complaint about worker names |
/// | `xla_cpu_pjrt.so` | `TF_CPP_MIN_LOG_LEVEL=1` | no informational lines |
#[derive(Debug)]
pub struct Plugin {
    path: PathBuf,
    api: Api,
    attributes: Vec<(String, Value)>,
}

impl Plugin {
    /// Opens a plugin and initialises it. If this function has opened the library before, returns the same plugin.
    ///
    /// The path is resolved as by `dlopen`: a path without a slash is looked for in the loader's search path.
    ///
    /// # Errors
    /// [`Error::Open`] if the library cannot be loaded or lacks `GetPjrtApi`, [`Error::Table`] if its function table is
    /// unusable or has another major version, [`Error::Pjrt`] or [`Error::Contract`] if its initialisation or the query
    /// of its attributes fails.
    pub fn open(path: &Path) -> Result<Arc<Self>, Error> {
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |source| Error::Open { path: path.to_owned(), source: Arc::new(source) };
        // SAFETY: the caller wants to run the code of this library. Its initialisers may do anything, which is inherent
        // in plugins.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(failed)?;
        // Threads and exit handlers of the plugin need its code until the process ends.
        let library = ManuallyDrop::new(library);
        // SAFETY: the header declares `const PJRT_Api* GetPjrtApi()`.
        let entry = unsafe { library.get::<unsafe extern "C" fn() -> *mut Table>(ENTRY_POINT) }.map_err(failed)?;
        // SAFETY: the function takes no arguments and may be called at any time.
        let table = NonNull::new(unsafe { entry() }).ok_or_else(|| not_usable(path, "GetPjrtApi returned null"))?;
        if let Some(plugin) = opened.iter().find(|plugin| plugin.api.table() == table) {
            return Ok(Arc::clone(plugin));
        }
        // SAFETY: the table belongs to the plugin, whose library is never closed.
        let plugin = Arc::new(unsafe { Self::from_table(path, table) }?);
        opened.push(Arc::clone(&plugin));
        Ok(plugin)
    }

    /// Initialises the plugin with this function table, which belongs to a library or to a test.
    ///
    /// # Safety
    /// As for [`Api::new`].
    pub(crate) unsafe fn from_table(path: &Path, table: NonNull<Table>) -> Result<Self, Error> {
        // SAFETY: the caller promised that the table is valid, and every table starts with its size.
        let size = unsafe { (*table.as_ptr()).struct_size };
        if size < size_of::<Table>() {
            return Err(not_usable(path, &format!("its function table has only {size} bytes")));
        }
        // SAFETY: the caller promised that the table is valid, and the table's head is complete.
        let api = unsafe { Api::new(table) };
        let (major, minor) = api.version();
        if major != MAJOR {
            return Err(not_usable(path, &format!("its PJRT API is {major}.{minor}, but only {MAJOR}.x is supported")));
        }
        // SAFETY: the function has no inputs, and it is called before the functions that need an initialised plugin.
        match unsafe { api.call(PluginInitialize {}) } {
            Ok(_) | Err(Error::Missing { .. }) => {}
            Err(error) => return Err(error),
        }
        // SAFETY: the function has no inputs.
        let attributes = match unsafe { api.call(PluginAttributes { attributes: std::ptr::null(), num_attributes: 0 }) }
        {
            // SAFETY: the attributes live until the process ends.
            Ok(out) => unsafe { read_values(out.attributes, out.num_attributes, PluginAttributes::NAME) }?,
            Err(error) if error.is_unimplemented() => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok(Self { path: path.to_owned(), api, attributes })
    }

    /// The path with which the plugin was first opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The major and minor version of the C API with which the plugin was built.
    pub fn api_version(&self) -> (i32, i32) {
        self.api.version()
    }

    /// The plugin's attributes, such as `xla_version`, `stablehlo_current_version`, `stablehlo_minimum_version`.
    pub fn attributes(&self) -> &[(String, Value)] {
        &self.attributes
    }

    /// The attribute with this name.
    pub fn attribute(&self, name: &str) -> Option<&Value> {
        find(&self.attributes, name)
    }

    /// The kinds of the plugin's extensions, in the plugin's order.
    pub fn extensions(&self) -> Vec<ExtensionKind> {
        self.api.extensions().map(|(kind, _)| kind).collect()
    }

    /// The plugin's functions.
    pub(crate) fn api(&self) -> &Api {
        &self.api
    }
}

/// Loads a library for the rest of the process. A plugin that later needs a library of the same `SONAME` gets this one.
///
/// The path is resolved as by `dlopen`: a path without a slash is looked for in the loader's search path.
///
/// # Errors
/// [`Error::Library`] when there is no such library, or when it or a library that it needs cannot be loaded.
pub fn load_library(path: &Path) -> Result<(), Error> {
    // SAFETY: the caller wants to run the code of this library, whose initialisers may do anything, as in `open`.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|source| Error::Library { path: path.to_owned(), source: Arc::new(source) })?;
    let _ = ManuallyDrop::new(library);
    Ok(())
}

fn not_usable(path: &Path, message: &str) -> Error {
    Error::Table { path: path.to_owned(), message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_loaded_by_name_or_path_and_a_missing_one_is_named() {
        load_library(Path::new("libc.so.6")).unwrap();
        let error = load_library(Path::new("libno-such.so.7")).unwrap_err().to_string();
        assert!(error.starts_with("libno-such.so.7: cannot open shared object file"), "{error}");
        let folder = std::env::temp_dir();
        let error = load_library(&folder).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: ", folder.display())), "{error}");
    }
}
