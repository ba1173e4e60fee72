//! Fake buffers and layouts. The test decides if transfers happen at once or later. Transfers use the memory that the
//! wrapper lends.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use super::devices::FakeDevice;
use super::events::{Core, new_event};
use super::{Control, Kind, Table, control, enter, enter_with};
use crate::ElementType;
use crate::ffi::buffer::{
    BufferDestroy, BufferDevice, BufferDimensions, BufferElementType, BufferOnDeviceSizeInBytes, BufferReadyEvent,
    BufferToHostBuffer,
};
use crate::ffi::client::{ClientBufferFromHostBuffer, host_buffer_semantics};
use crate::ffi::layouts::{LayoutDestroy, LayoutOfBuffer, LayoutSerialize};
use crate::ffi::{RawBuffer, RawDevice, RawError, RawLayout, RawSerialized, Struct};

/// The bytes of a buffer, empty until they have been copied or computed.
type Content = Arc<Mutex<Vec<u8>>>;

fn bytes_of(content: &Content) -> std::sync::MutexGuard<'_, Vec<u8>> {
    content.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the bytes of a buffer of `size` bytes.
fn read(content: Option<&Content>, size: usize) -> Vec<u8> {
    content.map_or_else(|| vec![0; size], |content| bytes_of(content).clone())
}

/// A buffer. Programs make hundreds of buffers in a launch, so a buffer of zeros is cheap.
pub(super) struct FakeBuffer {
    /// `None` for zeros.
    content: Option<Content>,
    element_type: i32,
    dims: Arc<[i64]>,
    device: *mut RawDevice,
    /// The work that makes the content; `None` if it has ended.
    ready: Option<Arc<Core>>,
    control: Arc<Control>,
}

impl FakeBuffer {
    fn leak(self) -> *mut RawBuffer {
        self.control.born(Kind::Buffer);
        Box::into_raw(Box::new(self)).cast()
    }

    /// Returns the work that makes the content.
    fn work(&self) -> Arc<Core> {
        self.ready.clone().unwrap_or_else(|| Core::ended(&self.control))
    }

    fn size(&self) -> usize {
        let elements: i64 = self.dims.iter().product();
        let element = ElementType::from_number(self.element_type).expect("a known type").host_bytes();
        element * usize::try_from(elements).expect("small")
    }

    /// Creates a buffer on `device` that gets the bytes of `self`, each plus one.
    pub(super) fn successor(&self, device: *mut RawDevice) -> *mut RawBuffer {
        let (from, size, content) = (self.content.clone(), self.size(), Content::default());
        let target = Arc::clone(&content);
        let control = Arc::clone(&self.control);
        let ready = Core::start(&control, move || {
            *bytes_of(&target) = read(from.as_ref(), size).iter().map(|byte| byte.wrapping_add(1)).collect();
        });
        let (content, ready) = (Some(content), Some(ready));
        Self { content, element_type: self.element_type, dims: Arc::clone(&self.dims), device, ready, control }.leak()
    }

    /// Creates a buffer on `device` that gets zeros.
    pub(super) fn zeros(
        control: &Arc<Control>,
        (element_type, dims): (ElementType, &Arc<[i64]>),
        device: *mut RawDevice,
    ) -> *mut RawBuffer {
        Self {
            content: None,
            element_type: element_type.number(),
            dims: Arc::clone(dims),
            device,
            ready: control.is_deferred(false).then(|| Core::start(control, || ())),
            control: Arc::clone(control),
        }
        .leak()
    }
}

struct Lent(*mut u8, usize);

// SAFETY: the memory is lent to the plugin until the plugin reports that it no longer uses the memory.
unsafe impl Send for Lent {}

impl Lent {
    /// Reads the lent memory. Called when the transfer happens.
    fn read(&self) -> Vec<u8> {
        // SAFETY: the memory is lent until the event fires or the C function returns, which happens after this call.
        unsafe { std::slice::from_raw_parts(self.0.cast_const(), self.1) }.to_vec()
    }

    /// Writes the lent memory. Called when the transfer happens.
    fn write(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.1, "the destination is too small");
        // SAFETY: the memory is lent until the event fires, which happens after this call; the length was checked.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0, bytes.len()) };
    }
}

pub(super) fn fill(table: &mut Table) {
    table.set::<ClientBufferFromHostBuffer>(from_host);
    table.set::<BufferDestroy>(destroy);
    table.set::<BufferElementType>(element_type);
    table.set::<BufferDimensions>(dimensions);
    table.set::<BufferOnDeviceSizeInBytes>(size);
    table.set::<BufferReadyEvent>(ready_event);
    table.set::<BufferDevice>(device);
    table.set::<BufferToHostBuffer>(to_host);
    table.set::<LayoutOfBuffer>(layout_of_buffer);
    table.set::<LayoutDestroy>(layout_destroy);
    table.set::<LayoutSerialize>(layout_serialize);
}

/// Borrows a buffer.
///
/// # Safety
/// `buffer` comes from [`FakeBuffer::leak`] and is not destroyed while the reference is used.
pub(super) unsafe fn fake<'a>(buffer: *mut RawBuffer) -> &'a FakeBuffer {
    // SAFETY: the caller promised that the buffer comes from `leak` and exists.
    unsafe { &*buffer.cast::<FakeBuffer>() }
}

unsafe extern "C-unwind" fn from_host(call: *mut Struct<ClientBufferFromHostBuffer>) -> *mut RawError {
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call.
    let control = unsafe { FakeDevice::control((*call).fields.device) };
    // SAFETY: as above.
    let error = unsafe { enter_with(&control, call) };
    if !error.is_null() {
        return error;
    }
    // SAFETY: as above.
    let fields = unsafe { &mut (*call).fields };
    // SAFETY: the caller lends the dimensions for the whole call.
    let dims = unsafe { crate::api::array(fields.dims, fields.num_dims) }.into();
    let content = Content::default();
    let mut buffer = FakeBuffer {
        content: Some(Arc::clone(&content)),
        element_type: fields.element_type,
        dims,
        device: fields.device,
        ready: None,
        control: Arc::clone(&control),
    };
    let lent = Lent(fields.data.cast_mut().cast::<u8>(), buffer.size());
    if fields.host_buffer_semantics == host_buffer_semantics::IMMUTABLE_ONLY_DURING_CALL {
        *bytes_of(&content) = lent.read();
    } else {
        buffer.ready = Some(Core::start(&control, move || *bytes_of(&content) = lent.read()));
    }
    fields.done_with_host_buffer = new_event(buffer.work());
    fields.buffer = buffer.leak();
    std::ptr::null_mut()
}

unsafe extern "C-unwind" fn destroy(call: *mut Struct<BufferDestroy>) -> *mut RawError {
    // SAFETY: all buffers come from `leak` and are destroyed only once.
    let buffer = unsafe { Box::from_raw((*call).fields.buffer.cast::<FakeBuffer>()) };
    buffer.control.died(Kind::Buffer);
    std::ptr::null_mut()
}

unsafe extern "C-unwind" fn element_type(call: *mut Struct<BufferElementType>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with a buffer that has not been destroyed.
    unsafe { (*call).fields.element_type = fake((*call).fields.buffer).element_type };
    // SAFETY: as above.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn dimensions(call: *mut Struct<BufferDimensions>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with a buffer that has not been destroyed.
    unsafe {
        let dims = &fake((*call).fields.buffer).dims;
        (*call).fields.dims = dims.as_ptr();
        (*call).fields.num_dims = dims.len();
        enter(call)
    }
}

unsafe extern "C-unwind" fn size(call: *mut Struct<BufferOnDeviceSizeInBytes>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with a buffer that has not been destroyed.
    unsafe { (*call).fields.size = fake((*call).fields.buffer).size() };
    // SAFETY: as above.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn ready_event(call: *mut Struct<BufferReadyEvent>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with a buffer that has not been destroyed.
    unsafe { (*call).fields.event = new_event(fake((*call).fields.buffer).work()) };
    std::ptr::null_mut()
}

unsafe extern "C-unwind" fn device(call: *mut Struct<BufferDevice>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with a buffer that has not been destroyed.
    unsafe { (*call).fields.device = fake((*call).fields.buffer).device };
    // SAFETY: as above.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn to_host(call: *mut Struct<BufferToHostBuffer>) -> *mut RawError {
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call.
    let error = unsafe { enter(call) };
    if !error.is_null() {
        return error;
    }
    // SAFETY: as above.
    let fields = unsafe { &mut (*call).fields };
    // SAFETY: the caller passes a valid argument struct with a buffer that has not been destroyed.
    let buffer = unsafe { fake(fields.buffer) };
    // SAFETY: the caller lends the layout for the whole call.
    let layout = unsafe { &(*fields.host_layout).fields.tiled };
    // SAFETY: as above.
    let order = unsafe { crate::api::array(layout.minor_to_major, layout.minor_to_major_size) };
    assert!(order.iter().rev().copied().eq(0..i64::try_from(buffer.dims.len()).expect("small")), "row-major");
    if fields.dst.is_null() {
        fields.dst_size = buffer.size();
        return std::ptr::null_mut();
    }
    let lent = Lent(fields.dst.cast::<u8>(), fields.dst_size);
    let (content, size) = (buffer.content.clone(), buffer.size());
    let write = move || lent.write(&read(content.as_ref(), size));
    fields.event = new_event(Core::start_download(&buffer.control, write));
    std::ptr::null_mut()
}

const LAYOUT: &str = "{0}";

unsafe extern "C-unwind" fn layout_of_buffer(call: *mut Struct<LayoutOfBuffer>) -> *mut RawError {
    control().born(Kind::Layout);
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call.
    unsafe { (*call).fields.layout = Box::into_raw(Box::new(control())).cast::<RawLayout>() };
    // SAFETY: as above.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn layout_destroy(call: *mut Struct<LayoutDestroy>) -> *mut RawError {
    // SAFETY: `layout_of_buffer` made the layout, which is destroyed only once.
    unsafe { Box::from_raw((*call).fields.layout.cast::<Arc<Control>>()) }.died(Kind::Layout);
    std::ptr::null_mut()
}

unsafe extern "C-unwind" fn layout_serialize(call: *mut Struct<LayoutSerialize>) -> *mut RawError {
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call.
    let error = unsafe { enter(call) };
    if error.is_null() {
        // SAFETY: as above.
        let fields = unsafe { &mut (*call).fields };
        (fields.bytes, fields.bytes_size, fields.serialized) = lend_bytes(LAYOUT.as_bytes().to_vec());
        fields.deleter = Some(free_bytes);
    }
    error
}

/// Lends bytes until [`free_bytes`] is called. Returns their start, their number and the object that owns them.
pub(super) fn lend_bytes(bytes: Vec<u8>) -> (*const std::ffi::c_char, usize, *mut RawSerialized) {
    control().born(Kind::Serialized);
    let serialized = Box::into_raw(Box::new((bytes, control())));
    // SAFETY: the box was made on the line above.
    let bytes = unsafe { &(*serialized).0 };
    (bytes.as_ptr().cast(), bytes.len(), serialized.cast::<c_void>().cast())
}

/// Frees lent bytes.
///
/// # Safety
/// `serialized` comes from [`lend_bytes`] and is freed only once.
pub(super) unsafe extern "C" fn free_bytes(serialized: *mut RawSerialized) {
    // SAFETY: the caller promised that `serialized` comes from `lend_bytes` and is freed only once.
    let lent = unsafe { Box::from_raw(serialized.cast::<(Vec<u8>, Arc<Control>)>()) };
    lent.1.died(Kind::Serialized);
}
