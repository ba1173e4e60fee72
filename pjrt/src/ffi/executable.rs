//! Argument structs of the functions of executables and of loaded executables.

use std::ffi::{c_char, c_void};

use super::values::{NamedValue, Program};
use super::{
    Arguments, RawBuffer, RawClient, RawDevice, RawEvent, RawExecutable, RawLoadedExecutable, RawSerialized, Struct,
};

/// The function that frees serialized bytes. It must be called only once for the bytes.
pub(crate) type SerializedDeleter = unsafe extern "C" fn(*mut RawSerialized);

/// `PJRT_ExecuteOptions`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ExecuteOptions {
    pub(crate) send_callbacks: *mut c_void,
    pub(crate) recv_callbacks: *mut c_void,
    pub(crate) num_send_ops: usize,
    pub(crate) num_recv_ops: usize,
    pub(crate) launch_id: i32,
    pub(crate) between: u32,
    pub(crate) non_donatable_input_indices: *const i64,
    pub(crate) num_non_donatable_input_indices: usize,
    pub(crate) context: *mut c_void,
    pub(crate) call_location: *const c_char,
    pub(crate) num_tasks: usize,
    pub(crate) task_ids: *mut i32,
    pub(crate) incarnation_ids: *mut i64,
    pub(crate) multi_slice_config: *mut c_void,
}

/// `PJRT_Executable_Destroy_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ExecutableDestroy {
    pub(crate) executable: *mut RawExecutable,
}

impl Arguments for ExecutableDestroy {
    const NAME: &'static str = "PJRT_Executable_Destroy";
}

/// `PJRT_Executable_Name_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ExecutableName {
    pub(crate) executable: *mut RawExecutable,
    pub(crate) name: *const c_char,
    pub(crate) name_size: usize,
}

impl Arguments for ExecutableName {
    const NAME: &'static str = "PJRT_Executable_Name";
}

/// `PJRT_Executable_NumReplicas_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ExecutableNumReplicas {
    pub(crate) executable: *mut RawExecutable,
    pub(crate) num_replicas: usize,
}

impl Arguments for ExecutableNumReplicas {
    const NAME: &'static str = "PJRT_Executable_NumReplicas";
}

/// `PJRT_Executable_NumPartitions_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ExecutableNumPartitions {
    pub(crate) executable: *mut RawExecutable,
    pub(crate) num_partitions: usize,
}

impl Arguments for ExecutableNumPartitions {
    const NAME: &'static str = "PJRT_Executable_NumPartitions";
}

/// `PJRT_Executable_NumOutputs_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ExecutableNumOutputs {
    pub(crate) executable: *mut RawExecutable,
    pub(crate) num_outputs: usize,
}

impl Arguments for ExecutableNumOutputs {
    const NAME: &'static str = "PJRT_Executable_NumOutputs";
}

/// `PJRT_Executable_SizeOfGeneratedCodeInBytes_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ExecutableSizeOfGeneratedCode {
    pub(crate) executable: *mut RawExecutable,
    pub(crate) size: i64,
}

impl Arguments for ExecutableSizeOfGeneratedCode {
    const NAME: &'static str = "PJRT_Executable_SizeOfGeneratedCodeInBytes";
}

/// `PJRT_Executable_Fingerprint_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ExecutableFingerprint {
    pub(crate) executable: *mut RawExecutable,
    pub(crate) fingerprint: *const c_char,
    pub(crate) fingerprint_size: usize,
}

impl Arguments for ExecutableFingerprint {
    const NAME: &'static str = "PJRT_Executable_Fingerprint";
}

/// `PJRT_Executable_GetCostAnalysis_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ExecutableGetCostAnalysis {
    pub(crate) executable: *mut RawExecutable,
    pub(crate) num_properties: usize,
    pub(crate) properties: *const NamedValue,
}

impl Arguments for ExecutableGetCostAnalysis {
    const NAME: &'static str = "PJRT_Executable_GetCostAnalysis";
}

/// `PJRT_Executable_GetCompiledMemoryStats_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ExecutableMemoryStats {
    pub(crate) executable: *mut RawExecutable,
    pub(crate) generated_code: i64,
    pub(crate) argument: i64,
    pub(crate) output: i64,
    pub(crate) alias: i64,
    pub(crate) temp: i64,
    pub(crate) host_generated_code: i64,
    pub(crate) host_argument: i64,
    pub(crate) host_output: i64,
    pub(crate) host_alias: i64,
    pub(crate) host_temp: i64,
    pub(crate) peak_memory: i64,
    pub(crate) total_size: i64,
    pub(crate) total_allocation: i64,
    pub(crate) indefinite_allocations: i64,
    pub(crate) peak_unpadded_heap: i64,
}

impl Arguments for ExecutableMemoryStats {
    const NAME: &'static str = "PJRT_Executable_GetCompiledMemoryStats";
}

/// `PJRT_Executable_OutputElementTypes_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ExecutableOutputElementTypes {
    pub(crate) executable: *mut RawExecutable,
    pub(crate) types: *mut i32,
    pub(crate) num_types: usize,
}

impl Arguments for ExecutableOutputElementTypes {
    const NAME: &'static str = "PJRT_Executable_OutputElementTypes";
}

/// `PJRT_Executable_OutputDimensions_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ExecutableOutputDimensions {
    pub(crate) executable: *mut RawExecutable,
    pub(crate) num_outputs: usize,
    pub(crate) dims: *const i64,
    pub(crate) dim_sizes: *const usize,
}

impl Arguments for ExecutableOutputDimensions {
    const NAME: &'static str = "PJRT_Executable_OutputDimensions";
}

/// `PJRT_Executable_ParameterMemoryKinds_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ExecutableParameterMemoryKinds {
    pub(crate) executable: *mut RawExecutable,
    pub(crate) num_parameters: usize,
    pub(crate) kinds: *const *const c_char,
    pub(crate) kind_sizes: *const usize,
}

impl Arguments for ExecutableParameterMemoryKinds {
    const NAME: &'static str = "PJRT_Executable_ParameterMemoryKinds";
}

/// `PJRT_Executable_OptimizedProgram_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ExecutableOptimizedProgram {
    pub(crate) executable: *mut RawExecutable,
    pub(crate) program: *mut Struct<Program>,
}

impl Arguments for ExecutableOptimizedProgram {
    const NAME: &'static str = "PJRT_Executable_OptimizedProgram";
}

/// `PJRT_Executable_Serialize_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ExecutableSerialize {
    pub(crate) executable: *const RawExecutable,
    pub(crate) bytes: *const c_char,
    pub(crate) bytes_size: usize,
    pub(crate) serialized: *mut RawSerialized,
    pub(crate) deleter: Option<SerializedDeleter>,
}

impl Arguments for ExecutableSerialize {
    const NAME: &'static str = "PJRT_Executable_Serialize";
}

/// `PJRT_Executable_DeserializeAndLoad_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ExecutableDeserializeAndLoad {
    pub(crate) client: *mut RawClient,
    pub(crate) bytes: *const c_char,
    pub(crate) bytes_size: usize,
    pub(crate) loaded_executable: *mut RawLoadedExecutable,
    pub(crate) options: *const c_char,
    pub(crate) options_size: usize,
}

impl Arguments for ExecutableDeserializeAndLoad {
    const NAME: &'static str = "PJRT_Executable_DeserializeAndLoad";
}

/// `PJRT_LoadedExecutable_Destroy_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct LoadedExecutableDestroy {
    pub(crate) executable: *mut RawLoadedExecutable,
}

impl Arguments for LoadedExecutableDestroy {
    const NAME: &'static str = "PJRT_LoadedExecutable_Destroy";
}

/// `PJRT_LoadedExecutable_GetExecutable_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct LoadedExecutableGetExecutable {
    pub(crate) loaded_executable: *mut RawLoadedExecutable,
    pub(crate) executable: *mut RawExecutable,
}

impl Arguments for LoadedExecutableGetExecutable {
    const NAME: &'static str = "PJRT_LoadedExecutable_GetExecutable";
}

/// `PJRT_LoadedExecutable_AddressableDevices_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct LoadedExecutableAddressableDevices {
    pub(crate) executable: *mut RawLoadedExecutable,
    pub(crate) devices: *const *mut RawDevice,
    pub(crate) num_devices: usize,
}

impl Arguments for LoadedExecutableAddressableDevices {
    const NAME: &'static str = "PJRT_LoadedExecutable_AddressableDevices";
}

/// `PJRT_LoadedExecutable_Execute_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct LoadedExecutableExecute {
    pub(crate) executable: *mut RawLoadedExecutable,
    pub(crate) options: *mut Struct<ExecuteOptions>,
    pub(crate) argument_lists: *const *const *mut RawBuffer,
    pub(crate) num_devices: usize,
    pub(crate) num_args: usize,
    pub(crate) output_lists: *const *mut *mut RawBuffer,
    pub(crate) device_complete_events: *mut *mut RawEvent,
    pub(crate) execute_device: *mut RawDevice,
}

impl Arguments for LoadedExecutableExecute {
    const NAME: &'static str = "PJRT_LoadedExecutable_Execute";
}
