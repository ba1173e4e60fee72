//! Fake executables. A program is a text of two numbers: its parameters and its outputs. An output has the bytes of an
//! argument, each plus one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::buffers::{fake, free_bytes, lend_bytes};
use super::devices::FakeOwner;
use super::events::{Core, new_error, new_event};
use super::{Control, Kind, Seen, Table, control, enter};
use crate::ffi::client::ClientCompile;
use crate::ffi::executable::{
    ExecutableDeserializeAndLoad, ExecutableDestroy, ExecutableMemoryStats, ExecutableNumOutputs,
    ExecutableOptimizedProgram, ExecutableParameterMemoryKinds, ExecutableSerialize,
    LoadedExecutableAddressableDevices, LoadedExecutableDestroy, LoadedExecutableExecute,
    LoadedExecutableGetExecutable,
};
use crate::ffi::topology::TopologyCompile;
use crate::ffi::{RawClient, RawDevice, RawError, RawExecutable, RawLoadedExecutable, Struct};

const FORMAT: &str = "fake";

#[derive(Clone)]
struct FakeProgram {
    text: String,
    parameters: usize,
    outputs: usize,
}

impl FakeProgram {
    fn parse(code: &[u8]) -> Option<Self> {
        let text = String::from_utf8(code.to_vec()).ok()?;
        let (parameters, outputs) = text.split_once(' ')?;
        let (parameters, outputs) = (parameters.parse().ok()?, outputs.parse().ok()?);
        Some(Self { text, parameters, outputs })
    }
}

struct FakeExecutable {
    program: FakeProgram,
    control: Arc<Control>,
}

struct FakeLoaded {
    program: FakeProgram,
    devices: Vec<*mut RawDevice>,
    control: Arc<Control>,
}

pub(super) fn fill(table: &mut Table) {
    table.set::<ClientCompile>(compile);
    table.set::<TopologyCompile>(topology_compile);
    table.set::<ExecutableDeserializeAndLoad>(load);
    table.set::<ExecutableDestroy>(destroy);
    table.set::<ExecutableNumOutputs>(num_outputs);
    table.set::<ExecutableParameterMemoryKinds>(parameters);
    table.set::<ExecutableMemoryStats>(memory_stats);
    table.set::<ExecutableSerialize>(serialize);
    table.set::<ExecutableOptimizedProgram>(optimized_program);
    table.set::<LoadedExecutableDestroy>(loaded_destroy);
    table.set::<LoadedExecutableGetExecutable>(get_executable);
    table.set::<LoadedExecutableAddressableDevices>(addressable_devices);
    table.set::<LoadedExecutableExecute>(execute);
}

/// Compiles a program and loads it on the devices of `client`.
///
/// # Safety
/// `client` is a client of this plugin that has not been destroyed.
unsafe fn new_loaded(code: &[u8], client: *mut RawClient) -> Result<*mut RawLoadedExecutable, *mut RawError> {
    let program = FakeProgram::parse(code).ok_or_else(|| new_error(3, "not a fake program"))?;
    // SAFETY: the caller promised that the client exists.
    let devices = unsafe { &(*client.cast::<FakeOwner>()).devices }.iter().map(|device| device.cast()).collect();
    control().born(Kind::LoadedExecutable);
    Ok(Box::into_raw(Box::new(FakeLoaded { program, devices, control: control() })).cast())
}

fn new_executable(program: FakeProgram) -> *mut RawExecutable {
    control().born(Kind::Executable);
    Box::into_raw(Box::new(FakeExecutable { program, control: control() })).cast()
}

/// Borrows the program of an executable.
///
/// # Safety
/// `executable` comes from [`new_executable`] and is not destroyed while the reference is used.
unsafe fn program<'a>(executable: *const RawExecutable) -> &'a FakeProgram {
    // SAFETY: the caller promised that the executable comes from `new_executable` and exists.
    unsafe { &(*executable.cast::<FakeExecutable>()).program }
}

unsafe extern "C-unwind" fn compile(call: *mut Struct<ClientCompile>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct. The memory to which it points is lent for the whole call.
    unsafe {
        let lent = &(*(*call).fields.program).fields;
        let code = crate::api::array(lent.code.cast::<u8>(), lent.code_size);
        match new_loaded(code, (*call).fields.client) {
            Ok(loaded) => (*call).fields.executable = loaded,
            Err(error) => return error,
        }
        enter(call)
    }
}

unsafe extern "C-unwind" fn topology_compile(call: *mut Struct<TopologyCompile>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct. The memory to which it points is lent for the whole call.
    let code = unsafe {
        let lent = &(*(*call).fields.program).fields;
        crate::api::array(lent.code.cast::<u8>(), lent.code_size)
    };
    let Some(program) = FakeProgram::parse(code) else { return new_error(3, "not a fake program") };
    // SAFETY: as above.
    unsafe { (*call).fields.executable = new_executable(program) };
    std::ptr::null_mut()
}

unsafe extern "C-unwind" fn load(call: *mut Struct<ExecutableDeserializeAndLoad>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct. The memory to which it points is lent for the whole call.
    unsafe {
        let fields = &mut (*call).fields;
        match new_loaded(crate::api::array(fields.bytes.cast::<u8>(), fields.bytes_size), fields.client) {
            Ok(loaded) => fields.loaded_executable = loaded,
            Err(error) => return error,
        }
    }
    std::ptr::null_mut()
}

unsafe extern "C-unwind" fn destroy(call: *mut Struct<ExecutableDestroy>) -> *mut RawError {
    // SAFETY: `new_executable` made the executable, which is destroyed only once.
    unsafe { Box::from_raw((*call).fields.executable.cast::<FakeExecutable>()) }.control.died(Kind::Executable);
    std::ptr::null_mut()
}

unsafe extern "C-unwind" fn num_outputs(call: *mut Struct<ExecutableNumOutputs>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with an executable that has not been destroyed.
    unsafe { (*call).fields.num_outputs = program((*call).fields.executable).outputs };
    // SAFETY: as above.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn parameters(call: *mut Struct<ExecutableParameterMemoryKinds>) -> *mut RawError {
    if control().hides_parameters.load(Ordering::SeqCst) {
        return new_error(12, "too old");
    }
    // SAFETY: the caller passes a valid argument struct with an executable that has not been destroyed.
    unsafe { (*call).fields.num_parameters = program((*call).fields.executable).parameters };
    std::ptr::null_mut()
}

unsafe extern "C-unwind" fn memory_stats(call: *mut Struct<ExecutableMemoryStats>) -> *mut RawError {
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call. The function
    // does not set the peak, like an older plugin.
    unsafe { (*call).fields.alias = 8 };
    std::ptr::null_mut()
}

unsafe extern "C-unwind" fn serialize(call: *mut Struct<ExecutableSerialize>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with an executable that has not been destroyed.
    unsafe {
        let fields = &mut (*call).fields;
        let bytes = program(fields.executable).text.clone().into_bytes();
        (fields.bytes, fields.bytes_size, fields.serialized) = lend_bytes(bytes);
        fields.deleter = Some(free_bytes);
    }
    std::ptr::null_mut()
}

unsafe extern "C-unwind" fn optimized_program(call: *mut Struct<ExecutableOptimizedProgram>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with an executable that exists and a program that it owns.
    unsafe {
        let text = &program((*call).fields.executable).text;
        let out = &mut (*(*call).fields.program).fields;
        if !out.code.is_null() {
            assert!(out.code_size >= text.len(), "the destination is too small");
            std::ptr::copy_nonoverlapping(text.as_ptr(), out.code.cast::<u8>(), text.len());
        }
        out.code_size = text.len();
        out.format = FORMAT.as_ptr().cast();
        out.format_size = FORMAT.len();
    }
    std::ptr::null_mut()
}

unsafe extern "C-unwind" fn loaded_destroy(call: *mut Struct<LoadedExecutableDestroy>) -> *mut RawError {
    // SAFETY: `new_loaded` made the executable, which is destroyed only once.
    let loaded = unsafe { Box::from_raw((*call).fields.executable.cast::<FakeLoaded>()) };
    loaded.control.died(Kind::LoadedExecutable);
    std::ptr::null_mut()
}

unsafe extern "C-unwind" fn get_executable(call: *mut Struct<LoadedExecutableGetExecutable>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with an executable that has not been destroyed.
    unsafe {
        let loaded = &*(*call).fields.loaded_executable.cast::<FakeLoaded>();
        (*call).fields.executable = new_executable(loaded.program.clone());
    }
    std::ptr::null_mut()
}

unsafe extern "C-unwind" fn addressable_devices(
    call: *mut Struct<LoadedExecutableAddressableDevices>,
) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with an executable that has not been destroyed.
    unsafe {
        let loaded = &*(*call).fields.executable.cast::<FakeLoaded>();
        (*call).fields.devices = loaded.devices.as_ptr();
        (*call).fields.num_devices = loaded.devices.len();
        enter(call)
    }
}

unsafe extern "C-unwind" fn execute(call: *mut Struct<LoadedExecutableExecute>) -> *mut RawError {
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call.
    let error = unsafe { enter(call) };
    if !error.is_null() {
        return error;
    }
    // SAFETY: the objects and lists in the argument struct exist for the whole call.
    let fields = unsafe { &mut (*call).fields };
    // SAFETY: as above.
    let (loaded, options) = unsafe { (&*fields.executable.cast::<FakeLoaded>(), &(*fields.options).fields) };
    // SAFETY: as above.
    let kept =
        unsafe { crate::api::array(options.non_donatable_input_indices, options.num_non_donatable_input_indices) };
    let seen = Seen {
        launch_id: options.launch_id,
        kept: kept.to_vec(),
        num_args: fields.num_args,
        is_on_one_device: !fields.execute_device.is_null(),
    };
    *control().seen.lock().expect("no panic while it is held") = Some(seen);
    if fields.num_args != loaded.program.parameters {
        return new_error(3, "wrong number of arguments");
    }
    for index in 0..fields.num_devices {
        let device = if fields.execute_device.is_null() { loaded.devices[index] } else { fields.execute_device };
        // SAFETY: the lists have the lengths that the argument struct declares.
        unsafe {
            let arguments = crate::api::array(*fields.argument_lists.add(index), fields.num_args);
            let outputs = *fields.output_lists.add(index);
            for output in 0..loaded.program.outputs {
                *outputs.add(output) = fake(arguments[output % arguments.len()]).successor(device);
            }
            *fields.device_complete_events.add(index) = new_event(Core::start(|| ()));
        }
    }
    std::ptr::null_mut()
}
