//! The plugin's table of functions: found by size-checked offset, called with zero-padded structs, errors made Rust's.
//!
//! This is the one place where C functions are called; everything above it names a struct of [`crate::ffi`].

#![expect(unsafe_code, reason = "reads the plugin's table and calls its functions")]

use std::ffi::c_char;
use std::ptr::NonNull;

use crate::error::{Code, Error};
use crate::extension::ExtensionKind;
use crate::ffi::functions::Place;
use crate::ffi::values::{ErrorDestroy, ErrorGetCode, ErrorMessage};
use crate::ffi::{Arguments, ExtensionBase, Function, InfallibleFunction, RawError, Struct, Table};

/// More extensions than any plugin has: ends a walk along a chain that loops.
const MAX_EXTENSIONS: usize = 256;

/// The function table of a plugin. Plain pointers: the table and the library live as long as the process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Api {
    table: NonNull<Table>,
    layouts: Option<NonNull<ExtensionBase>>,
}

// SAFETY: the table and the extensions are never written after the plugin is initialised, and PJRT functions may be
// called from any thread.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

impl Api {
    /// Wraps a table.
    ///
    /// # Safety
    /// `table` points to a `PJRT_Api` that says its size truly, as do its extensions; all live for the rest of the
    /// process and do what the header says.
    pub(crate) unsafe fn new(table: NonNull<Table>) -> Self {
        let api = Self { table, layouts: None };
        let layouts = api.extensions().find(|(kind, _)| *kind == ExtensionKind::Layouts).map(|(_, base)| base);
        Self { layouts, ..api }
    }

    /// Major and minor version of the plugin's API.
    pub(crate) fn version(&self) -> (i32, i32) {
        // SAFETY: `new` was promised a valid table.
        let version = unsafe { &raw const (*self.table.as_ptr()).version };
        // SAFETY: the version lies in the part of the table that every version has.
        unsafe { ((*version).major, (*version).minor) }
    }

    /// Where the table lies: which plugin this is.
    pub(crate) fn table(&self) -> NonNull<Table> {
        self.table
    }

    /// Size of the table in bytes, as the plugin says it.
    pub(crate) fn table_size(&self) -> usize {
        // SAFETY: `new` was promised a valid table.
        unsafe { (*self.table.as_ptr()).struct_size }
    }

    /// The extensions, in the plugin's order.
    pub(crate) fn extensions(&self) -> impl Iterator<Item = (ExtensionKind, NonNull<ExtensionBase>)> {
        // SAFETY: `new` was promised a valid table.
        let first = unsafe { (*self.table.as_ptr()).extension_start };
        let next = |base: &NonNull<ExtensionBase>| {
            // SAFETY: every element of the chain has at least the fields of the base.
            NonNull::new(unsafe { (*base.as_ptr()).next }.cast_mut())
        };
        std::iter::successors(NonNull::new(first.cast_mut()), next).take(MAX_EXTENSIONS).map(|base| {
            // SAFETY: as above.
            let kind = unsafe { (*base.as_ptr()).kind };
            (ExtensionKind::from_number(kind), base)
        })
    }

    /// Calls a function that may fail, and gives its arguments back with the outputs filled in.
    ///
    /// # Safety
    /// The inputs among `arguments` are what the header demands of this function: objects are alive, lengths are true.
    pub(crate) unsafe fn call<A: Arguments>(&self, arguments: A) -> Result<A, Error> {
        let mut call = Struct::new(arguments);
        // SAFETY: the caller's promise.
        unsafe { self.call_struct(&mut call) }?;
        Ok(call.fields)
    }

    /// As [`Api::call`], for arguments that are called with more than once.
    ///
    /// # Safety
    /// As for [`Api::call`].
    pub(crate) unsafe fn call_struct<A: Arguments>(&self, call: &mut Struct<A>) -> Result<(), Error> {
        let pointer = self.pointer(A::PLACE).ok_or_else(|| self.missing::<A>())?;
        // SAFETY: the header gives the function at this place this type.
        let function: Function<A> = unsafe { std::mem::transmute(pointer) };
        // SAFETY: the struct has the header's layout and lives for the call; the rest is the caller's promise.
        let error = unsafe { call_or_abort(function, call) };
        // SAFETY: the function's error is ours.
        unsafe { self.take_error(A::NAME, error) }
    }

    /// Turns an error of the plugin into ours and destroys it. Null is no error.
    ///
    /// # Safety
    /// `error` is null or an error of this plugin that nobody else destroys.
    pub(crate) unsafe fn take_error(&self, function: &'static str, error: *mut RawError) -> Result<(), Error> {
        if error.is_null() {
            return Ok(());
        }
        let mut message = Struct::new(ErrorMessage { error, message: std::ptr::null(), message_size: 0 });
        // SAFETY: the error is alive.
        unsafe { self.call_infallible(&mut message) };
        // SAFETY: the message lives as long as the error.
        let message = unsafe { text(message.fields.message, message.fields.message_size) };
        // SAFETY: the error is alive; a failure is null here or an error of its own, which is then destroyed.
        let code = unsafe { self.error_code(error) };
        let mut destroy = Struct::new(ErrorDestroy { error });
        // SAFETY: nobody else destroys it.
        unsafe { self.call_infallible(&mut destroy) };
        Err(Error::Pjrt { function, code, message })
    }

    /// # Safety
    /// `error` is alive.
    unsafe fn error_code(&self, error: *const RawError) -> Code {
        let Some(pointer) = self.pointer(ErrorGetCode::PLACE) else { return Code::Unknown };
        // SAFETY: the header gives this function this type.
        let function: Function<ErrorGetCode> = unsafe { std::mem::transmute(pointer) };
        let mut call = Struct::new(ErrorGetCode { error, code: 0, tail: 0 });
        // SAFETY: the error is alive.
        let second = unsafe { call_or_abort(function, &raw mut call) };
        if second.is_null() {
            return Code::from_number(call.fields.code);
        }
        let mut destroy = Struct::new(ErrorDestroy { error: second });
        // SAFETY: the second error is ours.
        unsafe { self.call_infallible(&mut destroy) };
        Code::Unknown
    }

    /// Calls one of the two functions that cannot fail. Does nothing where it is missing.
    ///
    /// # Safety
    /// As for [`Api::call`].
    unsafe fn call_infallible<A: Arguments>(&self, call: &mut Struct<A>) {
        if let Some(pointer) = self.pointer(A::PLACE) {
            // SAFETY: the header gives the two functions this type.
            let function: InfallibleFunction<A> = unsafe { std::mem::transmute(pointer) };
            // SAFETY: the caller's promise.
            unsafe { function(call) };
        }
    }

    fn missing<A: Arguments>(&self) -> Error {
        Error::Missing { function: A::NAME, version: self.version() }
    }

    /// A function's pointer, if it lies within the size that the plugin declares and is not null.
    fn pointer(&self, place: Place) -> Option<NonNull<()>> {
        let (base, size, head, index) = match place {
            Place::Table(index) => (self.table.cast::<u8>(), self.table_size(), size_of::<Table>(), index),
            Place::Layouts(index) => {
                let layouts = self.layouts?;
                // SAFETY: `new` was promised valid extensions.
                let size = unsafe { (*layouts.as_ptr()).struct_size };
                (layouts.cast::<u8>(), size, size_of::<ExtensionBase>(), index)
            }
        };
        let offset = head + index * size_of::<*mut ()>();
        if offset + size_of::<*mut ()>() > size {
            return None;
        }
        // SAFETY: the pointer lies within the declared size, and is aligned since head and step are.
        NonNull::new(unsafe { base.add(offset).cast::<*mut ()>().read() })
    }
}

/// Calls a function of the plugin. A C++ exception that comes out of it ends the process here, since this function
/// cannot unwind: the plugin's state is unknown after one.
///
/// # Safety
/// As for [`Api::call`].
unsafe extern "C" fn call_or_abort<A: Arguments>(function: Function<A>, call: *mut Struct<A>) -> *mut RawError {
    // SAFETY: the caller's promise.
    unsafe { function(call) }
}

/// Copies text that C gives as a pointer and a length; null and zero are empty, bytes that are not UTF-8 are replaced.
///
/// # Safety
/// `start` is null or points to `size` readable bytes.
pub(crate) unsafe fn text(start: *const c_char, size: usize) -> String {
    // SAFETY: the caller's promise; a `c_char` is a byte.
    String::from_utf8_lossy(unsafe { array(start.cast::<u8>(), size) }).into_owned()
}

/// Borrows an array that C gives as a pointer and a length; null and zero are empty.
///
/// # Safety
/// `start` is null or points to `size` values, aligned, that are not written for as long as the slice is used.
pub(crate) unsafe fn array<'a, T>(start: *const T, size: usize) -> &'a [T] {
    if start.is_null() || size == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(start, size) }
}
