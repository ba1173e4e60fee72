//! Structs for errors, events, named values, programs, layouts and the set-up of plugins.

use std::ffi::{c_char, c_void};

use super::{Arguments, RawError, RawEvent};

/// `PJRT_Error_Destroy_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ErrorDestroy {
    pub(crate) error: *mut RawError,
}

impl Arguments for ErrorDestroy {
    const NAME: &'static str = "PJRT_Error_Destroy";
}

/// `PJRT_Error_Message_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ErrorMessage {
    pub(crate) error: *const RawError,
    pub(crate) message: *const c_char,
    pub(crate) message_size: usize,
}

impl Arguments for ErrorMessage {
    const NAME: &'static str = "PJRT_Error_Message";
}

/// `PJRT_Error_GetCode_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ErrorGetCode {
    pub(crate) error: *const RawError,
    pub(crate) code: i32,
    pub(crate) tail: u32,
}

impl Arguments for ErrorGetCode {
    const NAME: &'static str = "PJRT_Error_GetCode";
}

/// `PJRT_Plugin_Initialize_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct PluginInitialize {}

impl Arguments for PluginInitialize {
    const NAME: &'static str = "PJRT_Plugin_Initialize";
}

/// `PJRT_Plugin_Attributes_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct PluginAttributes {
    pub(crate) attributes: *const NamedValue,
    pub(crate) num_attributes: usize,
}

impl Arguments for PluginAttributes {
    const NAME: &'static str = "PJRT_Plugin_Attributes";
}

/// `PJRT_NamedValue`. It is an element of arrays, so its size must be exact, and it is not wrapped in a
/// [`super::Struct`].
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct NamedValue {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *const c_void,
    pub(crate) name: *const c_char,
    pub(crate) name_size: usize,
    pub(crate) kind: i32,
    pub(crate) value: NamedValueUnion,
    pub(crate) value_size: usize,
}

/// The numbers in [`NamedValue::kind`].
pub(crate) mod named_value_kind {
    pub(crate) const STRING: i32 = 0;
    pub(crate) const I64: i32 = 1;
    pub(crate) const I64_LIST: i32 = 2;
    pub(crate) const F32: i32 = 3;
    pub(crate) const BOOL: i32 = 4;
}

/// The value of a [`NamedValue`]. The kind selects the member.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union NamedValueUnion {
    pub(crate) string: *const c_char,
    pub(crate) int: i64,
    pub(crate) ints: *const i64,
    pub(crate) float: f32,
    pub(crate) boolean: u8,
}

impl std::fmt::Debug for NamedValueUnion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NamedValueUnion")
    }
}

/// `PJRT_Program`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Program {
    pub(crate) code: *mut c_char,
    pub(crate) code_size: usize,
    pub(crate) format: *const c_char,
    pub(crate) format_size: usize,
}

/// `PJRT_Buffer_MemoryLayout` with the tiled variant of its union, which is the larger variant.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct MemoryLayout {
    pub(crate) tiled: TiledLayout,
    pub(crate) kind: i32,
    pub(crate) tail: u32,
}

/// The value of [`MemoryLayout::kind`] for a tiled layout.
pub(crate) const MEMORY_LAYOUT_TILED: i32 = 0;

/// `PJRT_Buffer_MemoryLayout_Tiled`. It is inside a union, so its size must be exact.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct TiledLayout {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *const c_void,
    pub(crate) minor_to_major: *const i64,
    pub(crate) minor_to_major_size: usize,
    pub(crate) tile_dims: *const i64,
    pub(crate) tile_dim_sizes: *const usize,
    pub(crate) num_tiles: usize,
}

/// `PJRT_Event_Destroy_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct EventDestroy {
    pub(crate) event: *mut RawEvent,
}

impl Arguments for EventDestroy {
    const NAME: &'static str = "PJRT_Event_Destroy";
}

/// `PJRT_Event_IsReady_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct EventIsReady {
    pub(crate) event: *mut RawEvent,
    pub(crate) is_ready: u8,
    pub(crate) tail: [u8; 7],
}

impl Arguments for EventIsReady {
    const NAME: &'static str = "PJRT_Event_IsReady";
}

/// `PJRT_Event_Await_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct EventAwait {
    pub(crate) event: *mut RawEvent,
}

impl Arguments for EventAwait {
    const NAME: &'static str = "PJRT_Event_Await";
}

/// `PJRT_Event_OnReadyCallback`. The callback owns the error. `user_arg` is the value that was registered.
pub(crate) type OnReadyCallback = unsafe extern "C" fn(error: *mut RawError, user_arg: *mut c_void);

/// `PJRT_Event_OnReady_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct EventOnReady {
    pub(crate) event: *mut RawEvent,
    pub(crate) callback: OnReadyCallback,
    pub(crate) user_arg: *mut c_void,
}

impl Arguments for EventOnReady {
    const NAME: &'static str = "PJRT_Event_OnReady";
}
