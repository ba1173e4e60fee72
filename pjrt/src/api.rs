//! The plugin's function table. Functions are found by an offset that is checked against the table's size, and called
//! with zero-padded structs. Errors of the plugin become [`Error`].
//!
//! All C functions are called here. Code above this module only uses the structs of [`crate::ffi`].

#![expect(unsafe_code, reason = "reads the plugin's table and calls its functions")]

use std::ffi::c_char;
use std::ptr::NonNull;

use crate::error::{Code, Error};
use crate::extension::ExtensionKind;
use crate::ffi::functions::Place;
use crate::ffi::values::{ErrorDestroy, ErrorGetCode, ErrorMessage};
use crate::ffi::{Arguments, ExtensionBase, Function, InfallibleFunction, RawError, Struct, Table};

/// More extensions than any plugin has, so that a walk along a cyclic chain ends.
const MAX_EXTENSIONS: usize = 256;

/// The function table of a plugin. A plain pointer suffices: table and library exist until the process ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Api {
    table: NonNull<Table>,
    layouts: Option<NonNull<ExtensionBase>>,
}

// SAFETY: table and extensions are never written after the plugin was initialised, and PJRT functions may be called
// from any thread.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

impl Api {
    /// Wraps a function table.
    ///
    /// # Safety
    /// `table` points to a `PJRT_Api` whose declared size is correct, as are those of its extensions. All exist until
    /// the process ends and behave as the header says.
    pub(crate) unsafe fn new(table: NonNull<Table>) -> Self {
        let api = Self { table, layouts: None };
        let layouts = api.extensions().find(|(kind, _)| *kind == ExtensionKind::Layouts).map(|(_, base)| base);
        Self { layouts, ..api }
    }

    /// The major and minor version of the plugin's API.
    pub(crate) fn version(&self) -> (i32, i32) {
        // SAFETY: the caller of `new` promised a valid table.
        let version = unsafe { &raw const (*self.table.as_ptr()).version };
        // SAFETY: every version of the table contains this field.
        unsafe { ((*version).major, (*version).minor) }
    }

    /// The address of the table, which identifies the plugin.
    pub(crate) fn table(&self) -> NonNull<Table> {
        self.table
    }

    /// The size of the table in bytes, as the plugin declares it.
    pub(crate) fn table_size(&self) -> usize {
        // SAFETY: the caller of `new` promised a valid table.
        unsafe { (*self.table.as_ptr()).struct_size }
    }

    /// The extensions, in the plugin's order.
    pub(crate) fn extensions(&self) -> impl Iterator<Item = (ExtensionKind, NonNull<ExtensionBase>)> {
        // SAFETY: the caller of `new` promised a valid table.
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

    /// Calls a function that may fail, and returns its arguments with the outputs filled in.
    ///
    /// # Safety
    /// The inputs among `arguments` meet the header's requirements for this function: objects are alive, lengths are
    /// correct.
    pub(crate) unsafe fn call<A: Arguments>(&self, arguments: A) -> Result<A, Error> {
        let mut call = Struct::new(arguments);
        // SAFETY: the caller promised the requirements.
        unsafe { self.call_struct(&mut call) }?;
        Ok(call.fields)
    }

    /// As [`Api::call`], for arguments that are used for more than one call.
    ///
    /// # Safety
    /// As for [`Api::call`].
    pub(crate) unsafe fn call_struct<A: Arguments>(&self, call: &mut Struct<A>) -> Result<(), Error> {
        let pointer = self.pointer(A::PLACE).ok_or_else(|| self.missing::<A>())?;
        // SAFETY: the header gives this type to the function with this index.
        let function: Function<A> = unsafe { std::mem::transmute(pointer) };
        // SAFETY: the struct has the header's layout and lives during the call; the caller promised the rest.
        let error = unsafe { call_or_abort(function, call) };
        // SAFETY: the error of a call belongs to the caller.
        unsafe { self.take_error(A::NAME, error) }
    }

    /// Converts an error of the plugin into [`Error`] and destroys it. Null is no error.
    ///
    /// # Safety
    /// `error` is null or an error of this plugin that nothing else destroys.
    pub(crate) unsafe fn take_error(&self, function: &'static str, error: *mut RawError) -> Result<(), Error> {
        if error.is_null() {
            return Ok(());
        }
        let mut message = Struct::new(ErrorMessage { error, message: std::ptr::null(), message_size: 0 });
        // SAFETY: the error is alive.
        unsafe { self.call_infallible(&mut message) };
        // SAFETY: the message lives as long as the error.
        let message = unsafe { text(message.fields.message, message.fields.message_size) };
        // SAFETY: the error is alive. A failure of this call returns null or an error of its own, which is then
        // destroyed.
        let code = unsafe { self.error_code(error) };
        let mut destroy = Struct::new(ErrorDestroy { error });
        // SAFETY: nothing else destroys the error.
        unsafe { self.call_infallible(&mut destroy) };
        Err(Error::Pjrt { function, code, message })
    }

    /// Returns the code of an error.
    ///
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
        // SAFETY: the second error belongs to this call.
        unsafe { self.call_infallible(&mut destroy) };
        Code::Unknown
    }

    /// Calls one of the two functions that cannot fail. A no-op if the plugin lacks it.
    ///
    /// # Safety
    /// As for [`Api::call`].
    unsafe fn call_infallible<A: Arguments>(&self, call: &mut Struct<A>) {
        if let Some(pointer) = self.pointer(A::PLACE) {
            // SAFETY: the header gives this type to the two functions.
            let function: InfallibleFunction<A> = unsafe { std::mem::transmute(pointer) };
            // SAFETY: the caller promised the requirements.
            unsafe { function(call) };
        }
    }

    fn missing<A: Arguments>(&self) -> Error {
        Error::Missing { function: A::NAME, version: self.version() }
    }

    /// The pointer to a function; `None` if it is outside the size that the plugin declares, or null.
    fn pointer(&self, place: Place) -> Option<NonNull<()>> {
        let (base, size, head, index) = match place {
            Place::Table(index) => (self.table.cast::<u8>(), self.table_size(), size_of::<Table>(), index),
            Place::Layouts(index) => {
                let layouts = self.layouts?;
                // SAFETY: the caller of `new` promised valid extensions.
                let size = unsafe { (*layouts.as_ptr()).struct_size };
                (layouts.cast::<u8>(), size, size_of::<ExtensionBase>(), index)
            }
        };
        let offset = head + index * size_of::<*mut ()>();
        if offset + size_of::<*mut ()>() > size {
            return None;
        }
        // SAFETY: the pointer is inside the declared size. It is aligned, because the head's size and the step are
        // multiples of a pointer's size.
        NonNull::new(unsafe { base.add(offset).cast::<*mut ()>().read() })
    }
}

/// Calls a function of the plugin. A C++ exception that leaves it ends the process here, because this function cannot
/// unwind. The plugin's state is unknown after an exception.
///
/// # Safety
/// As for [`Api::call`].
unsafe extern "C" fn call_or_abort<A: Arguments>(function: Function<A>, call: *mut Struct<A>) -> *mut RawError {
    // SAFETY: the caller promised the requirements.
    unsafe { function(call) }
}

/// Copies text from C's pointer and length. Null and zero give empty text, and bytes that are not UTF-8 are replaced.
///
/// # Safety
/// `start` is null or points to `size` readable bytes.
pub(crate) unsafe fn text(start: *const c_char, size: usize) -> String {
    // SAFETY: the caller promised the bytes; a `c_char` is a byte.
    String::from_utf8_lossy(unsafe { array(start.cast::<u8>(), size) }).into_owned()
}

/// Borrows an array from C's pointer and length. Null and zero give an empty slice.
///
/// # Safety
/// `start` is null or points to `size` aligned values that are not written while the slice is used.
pub(crate) unsafe fn array<'a, T>(start: *const T, size: usize) -> &'a [T] {
    if start.is_null() || size == 0 {
        return &[];
    }
    // SAFETY: the caller promised the values, and `start` is not null.
    unsafe { std::slice::from_raw_parts(start, size) }
}
