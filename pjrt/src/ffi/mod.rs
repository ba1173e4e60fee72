//! The types of the C API: argument structs of the newest header (0.104), written by hand.
//!
//! Every C struct starts with its own size and an extension pointer. A Rust struct here lists only the fields after
//! these; [`Struct`] adds the two before the fields, and zeros after them. A newer plugin needs at least its own size
//! and reads zeros in fields that we do not know; an older one ignores the rest. Trailing padding is a named field, so
//! that it is zero too. Modules: `functions` (names and indices), `values`, `client`, `buffer`, `executable`,
//! `topology`, `layouts`. No function is called here.

pub(crate) mod buffer;
pub(crate) mod client;
pub(crate) mod executable;
pub(crate) mod functions;
pub(crate) mod layouts;
pub(crate) mod topology;
pub(crate) mod values;

use std::marker::{PhantomData, PhantomPinned};

use functions::{Place, place};

/// The number of 8-byte words of zeros after every struct: room for fields of newer headers.
const PADDING_WORDS: usize = 16;

/// A C struct: size, extension pointer, fields, zeros.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Struct<F> {
    pub(crate) struct_size: usize,
    extension_start: *const ExtensionBase,
    pub(crate) fields: F,
    padding: [u64; PADDING_WORDS],
}

impl<F> Struct<F> {
    /// The struct with its size declared and no extension.
    pub(crate) fn new(fields: F) -> Self {
        let extension_start = std::ptr::null();
        Self { struct_size: size_of::<Self>(), extension_start, fields, padding: [0; PADDING_WORDS] }
    }
}

/// The argument struct of one function.
pub(crate) trait Arguments {
    /// The function's name in the header.
    const NAME: &'static str;
    /// The place of its pointer.
    const PLACE: Place = place(Self::NAME);
}

/// The type of all functions of the table but two. Plugins are written in C++, and some let exceptions out.
pub(crate) type Function<A> = unsafe extern "C-unwind" fn(*mut Struct<A>) -> *mut RawError;
/// The type of `PJRT_Error_Destroy` and `PJRT_Error_Message`, which cannot fail.
pub(crate) type InfallibleFunction<A> = unsafe extern "C-unwind" fn(*mut Struct<A>);

/// The head of `PJRT_Api`. As many function pointers follow as fit into `struct_size`.
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

/// The head of every extension; its function pointers follow.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ExtensionBase {
    pub(crate) struct_size: usize,
    pub(crate) kind: i32,
    pub(crate) next: *const ExtensionBase,
}

/// An object whose contents only the plugin knows.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Opaque<Kind> {
    bytes: [u8; 0],
    kind: PhantomData<Kind>,
    pinned: PhantomPinned,
}

/// Names of the opaque objects.
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
/// The owner of serialized bytes: of an executable, a topology or a layout.
pub(crate) type RawSerialized = Opaque<kinds::Serialized>;
