//! The types of the C API, from its header (API 0.104), written by hand.
//!
//! An argument struct of C starts with its own size and an extension pointer. Its Rust struct here lists only the
//! fields after these two; [`Struct`] adds the two before the fields, and zeros after the fields. A plugin with a newer
//! header may demand a longer struct: it reads zeros in the fields that this crate does not know. A plugin with an
//! older header ignores the fields that it does not know. Padding at the end of an argument struct is a named field, so
//! that it is zero too. A C `bool` is a `u8`, because a Rust `bool` with another value than 0 and 1 is undefined
//! behaviour. No C function is called here.

pub(crate) mod buffer;
pub(crate) mod client;
pub(crate) mod executable;
pub(crate) mod functions;
pub(crate) mod layouts;
pub(crate) mod topology;
pub(crate) mod values;

use std::marker::{PhantomData, PhantomPinned};

use functions::{Place, place};

/// The number of 8-byte words of zeros after every struct, which are room for the fields of newer headers.
const PADDING_WORDS: usize = 16;

/// A C struct: its size, an extension pointer, the fields, and zeros. The declared size includes the zeros.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Struct<F> {
    pub(crate) struct_size: usize,
    extension_start: *const ExtensionBase,
    pub(crate) fields: F,
    padding: [u64; PADDING_WORDS],
}

impl<F> Struct<F> {
    /// Returns a struct with these fields and without an extension.
    pub(crate) fn new(fields: F) -> Self {
        let extension_start = std::ptr::null();
        Self { struct_size: size_of::<Self>(), extension_start, fields, padding: [0; PADDING_WORDS] }
    }
}

/// The argument struct of one C function.
pub(crate) trait Arguments {
    /// The function's name in the header.
    const NAME: &'static str;
    /// The place of the function's pointer.
    const PLACE: Place = place(Self::NAME);
}

/// The type of the functions of the table and of the Layouts extension, except those of type [`InfallibleFunction`].
/// The functions may unwind, because plugins are written in C++ and some let exceptions out.
pub(crate) type Function<A> = unsafe extern "C-unwind" fn(*mut Struct<A>) -> *mut RawError;
/// The type of `PJRT_Error_Destroy` and `PJRT_Error_Message`, which cannot fail.
pub(crate) type InfallibleFunction<A> = unsafe extern "C-unwind" fn(*mut Struct<A>);

/// The head of `PJRT_Api`. Function pointers follow and fill the rest of `struct_size` bytes.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Table {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *const ExtensionBase,
    pub(crate) version: Version,
}

/// `PJRT_Api_Version`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Version {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *const ExtensionBase,
    pub(crate) major: i32,
    pub(crate) minor: i32,
}

/// The head of every extension. The extension's own fields follow: function pointers in the Layouts extension.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ExtensionBase {
    pub(crate) struct_size: usize,
    pub(crate) kind: i32,
    pub(crate) next: *const ExtensionBase,
}

/// An object of the plugin, whose contents only the plugin knows.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Opaque<Kind> {
    bytes: [u8; 0],
    kind: PhantomData<Kind>,
    pinned: PhantomPinned,
}

/// Types that tell the opaque objects apart.
pub(crate) mod kinds {
    #[derive(Debug)]
    pub(crate) enum Error {}
    #[derive(Debug)]
    pub(crate) enum Event {}
    #[derive(Debug)]
    pub(crate) enum Client {}
    #[derive(Debug)]
    pub(crate) enum Device {}
    #[derive(Debug)]
    pub(crate) enum Memory {}
    #[derive(Debug)]
    pub(crate) enum DeviceDescription {}
    #[derive(Debug)]
    pub(crate) enum Topology {}
    #[derive(Debug)]
    pub(crate) enum Executable {}
    #[derive(Debug)]
    pub(crate) enum LoadedExecutable {}
    #[derive(Debug)]
    pub(crate) enum Buffer {}
    #[derive(Debug)]
    pub(crate) enum Layout {}
    #[derive(Debug)]
    pub(crate) enum Serialized {}
}

pub(crate) type RawError = Opaque<kinds::Error>;
pub(crate) type RawEvent = Opaque<kinds::Event>;
pub(crate) type RawClient = Opaque<kinds::Client>;
pub(crate) type RawDevice = Opaque<kinds::Device>;
pub(crate) type RawMemory = Opaque<kinds::Memory>;
pub(crate) type RawDeviceDescription = Opaque<kinds::DeviceDescription>;
pub(crate) type RawTopology = Opaque<kinds::Topology>;
pub(crate) type RawExecutable = Opaque<kinds::Executable>;
pub(crate) type RawLoadedExecutable = Opaque<kinds::LoadedExecutable>;
pub(crate) type RawBuffer = Opaque<kinds::Buffer>;
pub(crate) type RawLayout = Opaque<kinds::Layout>;
/// The object that owns the bytes of a serialized executable, topology or layout.
pub(crate) type RawSerialized = Opaque<kinds::Serialized>;
