//! Tests that the structs have the sizes that a C compiler gives to those of the header (API 0.104, x86-64).

use crate::ffi::executable::ExecuteOptions;
use crate::ffi::functions::{LAYOUTS, TABLE};
use crate::ffi::values::{MemoryLayout, NamedValue, Program, TiledLayout};
use crate::ffi::{Arguments, ExtensionBase, Struct, Table, buffer, client, executable, layouts, topology, values};

/// The number of bytes of zeros after the fields of a [`Struct`].
const PADDING: usize = 128;

/// Returns the name of a C function, and the size of its argument struct without the zeros at the end.
fn row<A: Arguments>() -> (&'static str, usize) {
    (A::NAME, size_of::<Struct<A>>() - PADDING)
}

#[test]
fn events_and_errors_have_the_size_of_the_header() {
    let rows = [
        (row::<values::ErrorDestroy>(), 24),
        (row::<values::ErrorMessage>(), 40),
        (row::<values::ErrorGetCode>(), 32),
        (row::<values::PluginInitialize>(), 16),
        (row::<values::PluginAttributes>(), 32),
        (row::<values::EventDestroy>(), 24),
        (row::<values::EventIsReady>(), 32),
        (row::<values::EventAwait>(), 24),
        (row::<values::EventOnReady>(), 40),
    ];
    for ((name, size), expected) in rows {
        assert_eq!(size, expected, "{name}");
    }
}

#[test]
fn clients_and_devices_have_the_size_of_the_header() {
    let rows = [
        (row::<client::ClientCreate>(), 88),
        (row::<client::ClientDestroy>(), 24),
        (row::<client::ClientPlatformName>(), 40),
        (row::<client::ClientPlatformVersion>(), 40),
        (row::<client::ClientProcessIndex>(), 32),
        (row::<client::ClientTopologyDescription>(), 32),
        (row::<client::ClientDevices>(), 40),
        (row::<client::ClientAddressableDevices>(), 40),
        (row::<client::ClientCompile>(), 56),
        (row::<client::ClientBufferFromHostBuffer>(), 120),
        (row::<client::DescriptionId>(), 32),
        (row::<client::DescriptionProcessIndex>(), 32),
        (row::<client::DescriptionAttributes>(), 40),
        (row::<client::DescriptionKind>(), 40),
        (row::<client::DescriptionDebugString>(), 40),
        (row::<client::DeviceGetDescription>(), 32),
        (row::<client::DeviceLocalHardwareId>(), 32),
        (row::<client::DeviceMemoryStats>(), 192),
        (row::<client::DevicePoisonExecution>(), 72),
    ];
    for ((name, size), expected) in rows {
        assert_eq!(size, expected, "{name}");
    }
}

#[test]
fn buffers_have_the_size_of_the_header() {
    let rows = [
        (row::<buffer::BufferDestroy>(), 24),
        (row::<buffer::BufferElementType>(), 32),
        (row::<buffer::BufferDimensions>(), 40),
        (row::<buffer::BufferOnDeviceSizeInBytes>(), 32),
        (row::<buffer::BufferToHostBuffer>(), 56),
        (row::<buffer::BufferReadyEvent>(), 32),
        (row::<buffer::BufferDevice>(), 32),
    ];
    for ((name, size), expected) in rows {
        assert_eq!(size, expected, "{name}");
    }
}

#[test]
fn executables_have_the_size_of_the_header() {
    let rows = [
        (row::<executable::ExecutableDestroy>(), 24),
        (row::<executable::ExecutableName>(), 40),
        (row::<executable::ExecutableNumReplicas>(), 32),
        (row::<executable::ExecutableNumPartitions>(), 32),
        (row::<executable::ExecutableNumOutputs>(), 32),
        (row::<executable::ExecutableSizeOfGeneratedCode>(), 32),
        (row::<executable::ExecutableFingerprint>(), 40),
        (row::<executable::ExecutableGetCostAnalysis>(), 40),
        (row::<executable::ExecutableMemoryStats>(), 144),
        (row::<executable::ExecutableOutputElementTypes>(), 40),
        (row::<executable::ExecutableOutputDimensions>(), 48),
        (row::<executable::ExecutableParameterMemoryKinds>(), 48),
        (row::<executable::ExecutableOptimizedProgram>(), 32),
        (row::<executable::ExecutableSerialize>(), 56),
        (row::<executable::ExecutableDeserializeAndLoad>(), 64),
        (row::<executable::LoadedExecutableDestroy>(), 24),
        (row::<executable::LoadedExecutableGetExecutable>(), 32),
        (row::<executable::LoadedExecutableAddressableDevices>(), 40),
        (row::<executable::LoadedExecutableExecute>(), 80),
    ];
    for ((name, size), expected) in rows {
        assert_eq!(size, expected, "{name}");
    }
}

#[test]
fn topologies_have_the_size_of_the_header() {
    let rows = [
        (row::<topology::TopologyCreate>(), 56),
        (row::<topology::TopologyDestroy>(), 24),
        (row::<topology::TopologyPlatformName>(), 40),
        (row::<topology::TopologyPlatformVersion>(), 40),
        (row::<topology::TopologyDevices>(), 40),
        (row::<topology::TopologySerialize>(), 56),
        (row::<topology::TopologyAttributes>(), 40),
        (row::<topology::TopologyFingerprint>(), 32),
        (row::<topology::TopologyCompile>(), 64),
    ];
    for ((name, size), expected) in rows {
        assert_eq!(size, expected, "{name}");
    }
}

#[test]
fn layouts_have_the_size_of_the_header() {
    let rows = [
        (row::<layouts::LayoutDestroy>(), 24),
        (row::<layouts::LayoutSerialize>(), 56),
        (row::<layouts::LayoutOfBuffer>(), 32),
        (row::<layouts::LayoutOfClient>(), 56),
        (row::<layouts::LayoutOfTopology>(), 56),
    ];
    for ((name, size), expected) in rows {
        assert_eq!(size, expected, "{name}");
    }
}

#[test]
fn other_structs_have_the_size_of_the_header() {
    assert_eq!(size_of::<NamedValue>(), 56);
    assert_eq!(size_of::<TiledLayout>(), 56);
    assert_eq!(size_of::<Struct<Program>>() - PADDING, 48);
    assert_eq!(size_of::<Struct<MemoryLayout>>() - PADDING, 80);
    assert_eq!(size_of::<Struct<ExecuteOptions>>() - PADDING, 120);
    assert_eq!(size_of::<Table>() + TABLE.len() * size_of::<*const ()>(), 1120);
    assert_eq!(size_of::<ExtensionBase>() + LAYOUTS.len() * size_of::<*const ()>(), 72);
}
