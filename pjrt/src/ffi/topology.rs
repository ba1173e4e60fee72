//! Argument structs of the functions of topologies, and of the function that compiles for a topology.

use std::ffi::c_char;

use super::executable::SerializedDeleter;
use super::values::{NamedValue, Program};
use super::{Arguments, RawClient, RawDeviceDescription, RawExecutable, RawSerialized, RawTopology, Struct};

/// `PJRT_TopologyDescription_Create_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct TopologyCreate {
    pub(crate) name: *const c_char,
    pub(crate) name_size: usize,
    pub(crate) create_options: *const NamedValue,
    pub(crate) num_options: usize,
    pub(crate) topology: *mut RawTopology,
}

impl Arguments for TopologyCreate {
    const NAME: &'static str = "PJRT_TopologyDescription_Create";
}

/// `PJRT_TopologyDescription_Destroy_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct TopologyDestroy {
    pub(crate) topology: *mut RawTopology,
}

impl Arguments for TopologyDestroy {
    const NAME: &'static str = "PJRT_TopologyDescription_Destroy";
}

/// `PJRT_TopologyDescription_PlatformName_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct TopologyPlatformName {
    pub(crate) topology: *mut RawTopology,
    pub(crate) name: *const c_char,
    pub(crate) name_size: usize,
}

impl Arguments for TopologyPlatformName {
    const NAME: &'static str = "PJRT_TopologyDescription_PlatformName";
}

/// `PJRT_TopologyDescription_PlatformVersion_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct TopologyPlatformVersion {
    pub(crate) topology: *mut RawTopology,
    pub(crate) version: *const c_char,
    pub(crate) version_size: usize,
}

impl Arguments for TopologyPlatformVersion {
    const NAME: &'static str = "PJRT_TopologyDescription_PlatformVersion";
}

/// `PJRT_TopologyDescription_GetDeviceDescriptions_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct TopologyDevices {
    pub(crate) topology: *mut RawTopology,
    pub(crate) descriptions: *const *mut RawDeviceDescription,
    pub(crate) num_descriptions: usize,
}

impl Arguments for TopologyDevices {
    const NAME: &'static str = "PJRT_TopologyDescription_GetDeviceDescriptions";
}

/// `PJRT_TopologyDescription_Serialize_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct TopologySerialize {
    pub(crate) topology: *mut RawTopology,
    pub(crate) bytes: *const c_char,
    pub(crate) bytes_size: usize,
    pub(crate) serialized: *mut RawSerialized,
    pub(crate) deleter: Option<SerializedDeleter>,
}

impl Arguments for TopologySerialize {
    const NAME: &'static str = "PJRT_TopologyDescription_Serialize";
}

/// `PJRT_TopologyDescription_Attributes_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct TopologyAttributes {
    pub(crate) topology: *mut RawTopology,
    pub(crate) attributes: *const NamedValue,
    pub(crate) num_attributes: usize,
}

impl Arguments for TopologyAttributes {
    const NAME: &'static str = "PJRT_TopologyDescription_Attributes";
}

/// `PJRT_TopologyDescription_Fingerprint_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct TopologyFingerprint {
    pub(crate) topology: *mut RawTopology,
    pub(crate) fingerprint: u64,
}

impl Arguments for TopologyFingerprint {
    const NAME: &'static str = "PJRT_TopologyDescription_Fingerprint";
}

/// `PJRT_Compile_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct TopologyCompile {
    pub(crate) topology: *mut RawTopology,
    pub(crate) program: *const Struct<Program>,
    pub(crate) compile_options: *const c_char,
    pub(crate) compile_options_size: usize,
    pub(crate) client: *mut RawClient,
    pub(crate) executable: *mut RawExecutable,
}

impl Arguments for TopologyCompile {
    const NAME: &'static str = "PJRT_Compile";
}
