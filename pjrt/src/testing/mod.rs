//! A fake plugin in Rust, so that the wrapper's unsafe code can run under Miri, and code that uses the wrapper without
//! a device. Other crates use the fake plugin with the feature `testing`.
//!
//! Entry points: [`client`], [`plugin`], and [`control`] for the [`Control`] of a test, which sets the devices
//! ([`Slice`]), counts the objects, records executions and decides when work ends. The plugin's objects are boxes,
//! so Miri detects uses after free, double frees and leaks. `Table` builds a function table of any size, with or
//! without extensions.

#![expect(unsafe_code, reason = "plays the C side")]

mod buffers;
mod control;
mod devices;
mod events;
mod executables;
mod programs;
mod slice;

use std::path::Path;
use std::ptr::{NonNull, without_provenance};
use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, Mutex, PoisonError};

pub use control::{Control, Kind, Seen, control};
pub use slice::{Slice, SliceDevice};

use crate::ffi::functions::{LAYOUTS, Place, TABLE};
use crate::ffi::values::{
    ErrorDestroy, ErrorGetCode, ErrorMessage, EventAwait, EventDestroy, EventIsReady, EventOnReady, PluginAttributes,
    PluginInitialize,
};
use crate::ffi::{Arguments, Function, InfallibleFunction, Struct};
use crate::{Client, Error, Plugin};

/// The number of words in `PJRT_Api` before the function pointers.
const HEAD: usize = 5;
/// The number of words in an extension before the function pointers.
const EXTENSION_HEAD: usize = 3;
/// The number that stands for the Layouts extension in PJRT's C header file.
pub(crate) const LAYOUTS_KIND: usize = 4;

/// All tables, which exist until the process ends. Miri does not report them as leaks, because they are in this list.
static TABLES: Mutex<Vec<AtomicPtr<*const ()>>> = Mutex::new(Vec::new());

/// A function table under construction.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) version: (i32, i32),
    functions: Vec<*const ()>,
    layouts: Vec<*const ()>,
    /// The kinds and function counts of the extensions in the chain.
    pub(crate) extensions: Vec<(usize, usize)>,
    pub(crate) struct_size: usize,
}

impl Table {
    /// Returns a table with all functions of the fake plugin.
    pub(crate) fn full() -> Self {
        let mut table = Self {
            version: (0, 104),
            functions: vec![std::ptr::null(); TABLE.len()],
            layouts: vec![std::ptr::null(); LAYOUTS.len()],
            extensions: vec![(9, 2), (LAYOUTS_KIND, LAYOUTS.len()), (77, 0)],
            struct_size: (HEAD + TABLE.len()) * size_of::<*const ()>(),
        };
        table.set_infallible::<ErrorDestroy>(events::error_destroy);
        table.set_infallible::<ErrorMessage>(events::error_message);
        table.set::<ErrorGetCode>(events::error_get_code);
        table.set::<PluginInitialize>(devices::plugin_initialize);
        table.set::<PluginAttributes>(devices::plugin_attributes);
        table.set::<EventDestroy>(events::destroy);
        table.set::<EventIsReady>(events::is_ready);
        table.set::<EventAwait>(events::wait);
        table.set::<EventOnReady>(events::on_ready);
        devices::fill(&mut table);
        buffers::fill(&mut table);
        executables::fill(&mut table);
        table
    }

    /// Stores the pointer to a function at the function's index.
    pub(crate) fn set<A: Arguments>(&mut self, function: Function<A>) {
        self.put::<A>(function as *const ());
    }

    fn set_infallible<A: Arguments>(&mut self, function: InfallibleFunction<A>) {
        self.put::<A>(function as *const ());
    }

    /// Replaces the pointer to a function by null.
    #[cfg(test)]
    pub(crate) fn remove<A: Arguments>(&mut self) {
        self.put::<A>(std::ptr::null());
    }

    /// Declares a size that ends the table just before this function.
    #[cfg(test)]
    pub(crate) fn cut_before<A: Arguments>(&mut self) {
        let Place::Table(index) = A::PLACE else { panic!("not in the table") };
        self.struct_size = (HEAD + index) * size_of::<*const ()>();
    }

    fn put<A: Arguments>(&mut self, pointer: *const ()) {
        match A::PLACE {
            Place::Table(index) => self.functions[index] = pointer,
            Place::Layouts(index) => self.layouts[index] = pointer,
        }
    }

    /// Writes the table into memory that is never freed. The memory has the declared size, rounded up to whole words.
    pub(crate) fn leak(&self) -> NonNull<crate::ffi::Table> {
        let mut next: *const () = std::ptr::null();
        for (kind, count) in self.extensions.iter().rev() {
            let size = (EXTENSION_HEAD + count) * size_of::<*const ()>();
            let mut words = vec![without_provenance(size), without_provenance(*kind), next];
            words.extend(self.layouts.iter().cycle().take(*count));
            next = leak_words(words).as_ptr().cast_const().cast();
        }
        let version =
            usize::try_from(self.version.0).expect("small") | usize::try_from(self.version.1).expect("small") << 32;
        let head = [
            without_provenance(self.struct_size),
            next,
            without_provenance(3 * size_of::<usize>()),
            std::ptr::null(),
            without_provenance(version),
        ];
        let mut words = head.to_vec();
        words.extend(&self.functions);
        words.truncate(self.struct_size.div_ceil(size_of::<*const ()>()).max(1));
        leak_words(words).cast()
    }

    /// Opens a plugin with this table.
    pub(crate) fn open(&self) -> Result<Arc<Plugin>, Error> {
        // SAFETY: the declared size is correct, and the functions do what the header says.
        unsafe { Plugin::from_table(Path::new("fake.so"), self.leak()) }.map(Arc::new)
    }
}

fn leak_words(words: Vec<*const ()>) -> NonNull<*const ()> {
    let words = NonNull::from(Box::leak(words.into_boxed_slice())).cast::<*const ()>();
    TABLES.lock().unwrap_or_else(PoisonError::into_inner).push(AtomicPtr::new(words.as_ptr()));
    words
}

/// Opens the fake plugin with all functions.
///
/// # Panics
/// When the test has made a function fail that sets up a plugin.
pub fn plugin() -> Arc<Plugin> {
    Table::full().open().expect("a full table")
}

/// Creates a client of the fake plugin with all functions. The client has the devices of [`Control::set_slice`], two
/// by default.
///
/// # Panics
/// When the test has made a function fail that sets up a plugin or that [`Client::new`] calls.
pub fn client() -> Client {
    Client::new(&plugin(), &[]).expect("a fake client")
}

/// The common part of most fake functions. Returns an error if the struct is smaller than the plugin demands, or if the
/// test has requested that this function fails.
///
/// # Safety
/// `call` is a valid pointer to the argument struct.
unsafe fn enter<A: Arguments>(call: *mut Struct<A>) -> *mut crate::ffi::RawError {
    // SAFETY: the caller promised that the pointer is valid.
    unsafe { enter_with(&control(), call) }
}

/// As [`enter`], with the control of an object instead of the thread's.
///
/// # Safety
/// As for [`enter`].
unsafe fn enter_with<A: Arguments>(control: &Control, call: *mut Struct<A>) -> *mut crate::ffi::RawError {
    // SAFETY: the caller promised that the pointer is valid.
    let size = unsafe { (*call).struct_size };
    if size < control.demanded_size::<A>() {
        return events::new_error(3, &format!("Unexpected {}_Args size", A::NAME));
    }
    match control.take_failure(A::NAME) {
        Some((code, message)) => events::new_error(code, &message),
        None => std::ptr::null_mut(),
    }
}
