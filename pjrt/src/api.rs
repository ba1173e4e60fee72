//! The plugin's function table and its Layouts extension. A function is found by its offset, which is checked against
//! the declared size, and called with a zero-padded struct. Errors of the plugin become [`Error`].
//!
//! The functions of the table and of the extension are called only here.

#![expect(unsafe_code, reason = "reads the plugin's table and calls its functions")]

use std::ffi::c_char;
use std::ptr::NonNull;

use crate::error::{Code, Error};
use crate::extension::ExtensionKind;
use crate::ffi::functions::Place;
use crate::ffi::values::{ErrorDestroy, ErrorGetCode, ErrorMessage};
use crate::ffi::{Arguments, ExtensionBase, Function, InfallibleFunction, RawError, Struct, Table};

/// The maximum number of extensions that are read. With this limit, a walk along a cyclic chain ends.
const MAX_EXTENSIONS: usize = 256;

/// The function table of a plugin. A plain pointer suffices, because the table exists until the process ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Api {
    table: NonNull<Table>,
    layouts: Option<NonNull<ExtensionBase>>,
}

// SAFETY: this crate only reads the table and the extensions, the header declares the table as constant, and PJRT
// functions may be called from any thread.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

impl Api {
    /// Wraps a function table.
    ///
    /// # Safety
    /// `table` points to a `PJRT_Api`. Its declared size and the sizes of its extensions are correct. The table and its
    /// extensions exist until the process ends and behave as the header says.
    pub(crate) unsafe fn new(table: NonNull<Table>) -> Self {
        let api = Self { table, layouts: None };
        let layouts = api.extensions().find(|(kind, _)| *kind == ExtensionKind::Layouts).map(|(_, base)| base);
        Self { layouts, ..api }
    }

    /// The major and minor version of the plugin's API.
    pub(crate) fn version(&self) -> (i32, i32) {
        // SAFETY: the caller of `new` promised that the table is valid.
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
        // SAFETY: the caller of `new` promised that the table is valid.
        unsafe { (*self.table.as_ptr()).struct_size }
    }

    /// The extensions, in the plugin's order.
    pub(crate) fn extensions(&self) -> impl Iterator<Item = (ExtensionKind, NonNull<ExtensionBase>)> {
        // SAFETY: the caller of `new` promised that the table is valid.
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
    /// The inputs among `arguments` meet the header's requirements for this function. For example, objects have not
    /// been destroyed, and lengths are correct.
    pub(crate) unsafe fn call<A: Arguments>(&self, arguments: A) -> Result<A, Error> {
        let mut call = Struct::new(arguments);
        // SAFETY: the caller promised that the requirements are met.
        unsafe { self.call_struct(&mut call) }?;
        Ok(call.fields)
    }

    /// Like [`Api::call`], but leaves the outputs in `call`, so that the struct can be used for more than one call.
    ///
    /// # Safety
    /// As for [`Api::call`].
    pub(crate) unsafe fn call_struct<A: Arguments>(&self, call: &mut Struct<A>) -> Result<(), Error> {
        let pointer = self.pointer(A::PLACE).ok_or_else(|| self.missing::<A>())?;
        // SAFETY: the header gives this type to the function with this index.
        let function: Function<A> = unsafe { std::mem::transmute(pointer) };
        // SAFETY: the struct has the header's layout and lives for the whole call. The caller promised that the
        // function's requirements are met.
        let error = unsafe { call_or_abort(function, call) };
        // SAFETY: the error of a call belongs to the caller of the C function, and nothing else destroys it.
        unsafe { self.take_error(A::NAME, error) }
    }

    /// Converts an error of the plugin into [`Error`] and destroys the plugin's error. Null means success.
    ///
    /// # Safety
    /// `error` is null or an error of this plugin that nothing else destroys.
    pub(crate) unsafe fn take_error(&self, function: &'static str, error: *mut RawError) -> Result<(), Error> {
        if error.is_null() {
            return Ok(());
        }
        let mut message = Struct::new(ErrorMessage { error, message: std::ptr::null(), message_size: 0 });
        // SAFETY: the error has not been destroyed yet.
        unsafe { self.call_infallible(&mut message) };
        // SAFETY: the message lives as long as the error.
        let message = unsafe { text(message.fields.message, message.fields.message_size) };
        // SAFETY: the error has not been destroyed yet.
        let code = unsafe { self.error_code(error) };
        let mut destroy = Struct::new(ErrorDestroy { error });
        // SAFETY: nothing else destroys the error.
        unsafe { self.call_infallible(&mut destroy) };
        Err(Error::Pjrt { function, code, message })
    }

    /// Returns the code of an error. [`Code::Unknown`] if the plugin cannot return the code.
    ///
    /// # Safety
    /// `error` is an error of this plugin that has not been destroyed.
    unsafe fn error_code(&self, error: *const RawError) -> Code {
        let Some(pointer) = self.pointer(ErrorGetCode::PLACE) else { return Code::Unknown };
        // SAFETY: the header gives this function this type.
        let function: Function<ErrorGetCode> = unsafe { std::mem::transmute(pointer) };
        let mut call = Struct::new(ErrorGetCode { error, code: 0, tail: 0 });
        // SAFETY: the caller promised that the error has not been destroyed.
        let second = unsafe { call_or_abort(function, &raw mut call) };
        if second.is_null() {
            return Code::from_number(call.fields.code);
        }
        let mut destroy = Struct::new(ErrorDestroy { error: second });
        // SAFETY: the second error is the result of this call, so nothing else destroys it.
        unsafe { self.call_infallible(&mut destroy) };
        Code::Unknown
    }

    /// Calls one of the two functions that cannot fail, see [`InfallibleFunction`]. A no-op if the plugin lacks the
    /// function.
    ///
    /// # Safety
    /// As for [`Api::call`].
    unsafe fn call_infallible<A: Arguments>(&self, call: &mut Struct<A>) {
        if let Some(pointer) = self.pointer(A::PLACE) {
            // SAFETY: the header gives this type to the two functions.
            let function: InfallibleFunction<A> = unsafe { std::mem::transmute(pointer) };
            // SAFETY: the caller promised that the requirements are met.
            unsafe { function(call) };
        }
    }

    fn missing<A: Arguments>(&self) -> Error {
        Error::Missing { function: A::NAME, version: self.version() }
    }

    /// Returns the pointer to a function. `None` if the pointer is null or outside the size that the plugin declares.
    fn pointer(&self, place: Place) -> Option<NonNull<()>> {
        let (base, size, head, index) = match place {
            Place::Table(index) => (self.table.cast::<u8>(), self.table_size(), size_of::<Table>(), index),
            Place::Layouts(index) => {
                let layouts = self.layouts?;
                // SAFETY: the caller of `new` promised that the extensions are valid.
                let size = unsafe { (*layouts.as_ptr()).struct_size };
                (layouts.cast::<u8>(), size, size_of::<ExtensionBase>(), index)
            }
        };
        let offset = head + index * size_of::<*mut ()>();
        if offset + size_of::<*mut ()>() > size {
            return None;
        }
        // SAFETY: the pointer is inside the declared size. It is aligned, because the head's size is a multiple of a
        // pointer's size.
        NonNull::new(unsafe { base.add(offset).cast::<*mut ()>().read() })
    }
}

/// Calls a function of the plugin. If a C++ exception leaves the plugin's function, the process ends here, because this
/// function cannot unwind. After an exception, the plugin would be in an unknown state.
///
/// # Safety
/// As for [`Api::call`].
unsafe extern "C" fn call_or_abort<A: Arguments>(function: Function<A>, call: *mut Struct<A>) -> *mut RawError {
    // SAFETY: the caller promised that the requirements are met.
    unsafe { function(call) }
}

/// Copies text from a C pointer and a length. If the pointer is null or the length 0, the text is empty. Bytes that are
/// not UTF-8 are replaced.
///
/// # Safety
/// `start` is null or points to `size` readable bytes.
pub(crate) unsafe fn text(start: *const c_char, size: usize) -> String {
    // SAFETY: the caller promised that the bytes are readable, and a `c_char` is a byte.
    String::from_utf8_lossy(unsafe { array(start.cast::<u8>(), size) }).into_owned()
}

/// Borrows an array from a C pointer and a length. If the pointer is null or the length 0, the slice is empty.
///
/// # Safety
/// `start` is null or points to `size` aligned values that are not written while the slice is used.
pub(crate) unsafe fn array<'a, T>(start: *const T, size: usize) -> &'a [T] {
    if start.is_null() || size == 0 {
        return &[];
    }
    // SAFETY: the caller promised that `start` points to `size` values, and `start` is not null.
    unsafe { std::slice::from_raw_parts(start, size) }
}
