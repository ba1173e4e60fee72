//! Fake executables, loaded or not.

use std::ffi::c_char;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::buffers::{FakeBuffer, fake, free_bytes, lend_bytes};
use super::devices::FakeOwner;
use super::events::{Core, new_error, new_event};
use super::programs::{FakeProgram, Output};
use super::{Control, Kind, Seen, Table, control, enter};
use crate::CompileOptions;
use crate::ffi::client::ClientCompile;
use crate::ffi::executable::{
    ExecutableDeserializeAndLoad, ExecutableDestroy, ExecutableMemoryStats, ExecutableNumOutputs,
    ExecutableOptimizedProgram, ExecutableParameterMemoryKinds, ExecutableSerialize,
    LoadedExecutableAddressableDevices, LoadedExecutableDestroy, LoadedExecutableExecute,
    LoadedExecutableGetExecutable,
};
use crate::ffi::topology::TopologyCompile;
use crate::ffi::values::Program;
use crate::ffi::{RawClient, RawDevice, RawError, RawExecutable, RawLoadedExecutable, Struct};

const FORMAT: &str = "fake";

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

/// Loads a program on the devices of `client`.
///
/// # Safety
/// `client` is a client of this plugin that has not been destroyed.
unsafe fn new_loaded(
    program: Option<FakeProgram>,
    client: *mut RawClient,
) -> Result<*mut RawLoadedExecutable, *mut RawError> {
    let program = program.ok_or_else(|| new_error(3, "not a fake program"))?;
    // SAFETY: the caller promised that the client exists.
    let client = unsafe { &*client.cast::<FakeOwner>() };
    let (devices, control) = (client.running_on(&program.devices), Arc::clone(&client.control));
    control.born(Kind::LoadedExecutable);
    Ok(Box::into_raw(Box::new(FakeLoaded { program, devices, control })).cast())
}

fn new_executable(program: FakeProgram, control: &Arc<Control>) -> *mut RawExecutable {
    control.born(Kind::Executable);
    Box::into_raw(Box::new(FakeExecutable { program, control: Arc::clone(control) })).cast()
}

/// Borrows the program of an executable.
///
/// # Safety
/// `executable` comes from [`new_executable`] and is not destroyed while the reference is used.
unsafe fn program<'a>(executable: *const RawExecutable) -> &'a FakeProgram {
    // SAFETY: the caller promised that the executable comes from `new_executable` and exists.
    unsafe { &(*executable.cast::<FakeExecutable>()).program }
}

/// Compiles a program.
///
/// # Safety
/// `code` and the compile options exist.
unsafe fn compiled(code: *const Struct<Program>, options: (*const c_char, usize)) -> Option<FakeProgram> {
    // SAFETY: the caller promised that the memory exists.
    let (code, options) = unsafe {
        let code = &(*code).fields;
        (crate::api::array(code.code.cast::<u8>(), code.code_size), crate::api::array(options.0.cast(), options.1))
    };
    FakeProgram::compile(code, &CompileOptions::assigned_ids(options))
}

unsafe extern "C-unwind" fn compile(call: *mut Struct<ClientCompile>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct. The memory to which it points is lent for the whole call.
    unsafe {
        let fields = &mut (*call).fields;
        let program = compiled(fields.program, (fields.compile_options, fields.compile_options_size));
        if let Some(program) = &program {
            (*fields.client.cast::<FakeOwner>()).control.push_program(&program.text);
        }
        match new_loaded(program, fields.client) {
            Ok(loaded) => fields.executable = loaded,
            Err(error) => return error,
        }
        enter(call)
    }
}

unsafe extern "C-unwind" fn topology_compile(call: *mut Struct<TopologyCompile>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct. The memory to which it points is lent for the whole call.
    unsafe {
        let fields = &mut (*call).fields;
        let program = compiled(fields.program, (fields.compile_options, fields.compile_options_size));
        let Some(program) = program else { return new_error(3, "not a fake program") };
        let control = &(*fields.topology.cast::<FakeOwner>()).control;
        control.push_program(&program.text);
        fields.executable = new_executable(program, control);
    }
    std::ptr::null_mut()
}

unsafe extern "C-unwind" fn load(call: *mut Struct<ExecutableDeserializeAndLoad>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct. The memory to which it points is lent for the whole call.
    unsafe {
        let fields = &mut (*call).fields;
        let program = FakeProgram::load(crate::api::array(fields.bytes.cast::<u8>(), fields.bytes_size));
        match new_loaded(program, fields.client) {
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
    unsafe { (*call).fields.num_outputs = program((*call).fields.executable).outputs.len() };
    // SAFETY: as above.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn parameters(call: *mut Struct<ExecutableParameterMemoryKinds>) -> *mut RawError {
    if control().hides_parameters.load(Ordering::SeqCst) {
        return new_error(12, "too old");
    }
    // SAFETY: the caller passes a valid argument struct with an executable that has not been destroyed.
    unsafe { (*call).fields.num_parameters = program((*call).fields.executable).num_parameters };
    std::ptr::null_mut()
}

unsafe extern "C-unwind" fn memory_stats(call: *mut Struct<ExecutableMemoryStats>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with an executable that has not been destroyed. The function
    // does not set the peak, like a plugin that is too old to know the field.
    unsafe { (*call).fields.alias = i64::try_from(program((*call).fields.executable).alias_bytes).expect("small") };
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
        (*call).fields.executable = new_executable(loaded.program.clone(), &loaded.control);
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
    loaded.control.push_execution(Seen {
        program: loaded.program.name.clone(),
        launch_id: options.launch_id,
        kept: kept.to_vec(),
        num_args: fields.num_args,
        is_on_one_device: !fields.execute_device.is_null(),
        has_events: !fields.device_complete_events.is_null(),
    });
    if fields.num_args != loaded.program.num_parameters {
        return new_error(3, "wrong number of arguments");
    }
    for index in 0..fields.num_devices {
        let device = if fields.execute_device.is_null() { loaded.devices[index] } else { fields.execute_device };
        // SAFETY: the lists have the lengths that the argument struct declares.
        unsafe {
            let arguments = crate::api::array(*fields.argument_lists.add(index), fields.num_args);
            let outputs = *fields.output_lists.add(index);
            for (number, output) in loaded.program.outputs.iter().enumerate() {
                *outputs.add(number) = match output {
                    Output::Successor => fake(arguments[number % arguments.len()]).successor(device),
                    Output::Zeros(ty, dims) => FakeBuffer::zeros(&loaded.control, (*ty, dims), device),
                };
            }
            if !fields.device_complete_events.is_null() {
                *fields.device_complete_events.add(index) = new_event(Core::start(&loaded.control, || ()));
            }
        }
    }
    std::ptr::null_mut()
}
