//! Tests of function tables that differ from the header: of older and newer plugins, with missing functions, or with
//! other extensions.

use std::sync::atomic::Ordering;

use super::upload;
use crate::extension::ExtensionKind;
use crate::ffi::buffer::BufferReadyEvent;
use crate::ffi::client::{ClientCreate, DescriptionAttributes, DeviceMemoryStats};
use crate::ffi::topology::TopologyFingerprint;
use crate::ffi::values::{ErrorDestroy, ErrorGetCode, ErrorMessage, PluginAttributes};
use crate::testing::{Kind, LAYOUTS_KIND, Table, client, control};
use crate::{Client, Code, Error, Topology};

#[test]
fn a_shorter_table_lacks_its_last_functions() {
    let mut table = Table::full();
    table.version = (0, 81);
    table.cut_before::<TopologyFingerprint>();
    let plugin = table.open().expect("an older plugin");
    assert_eq!(plugin.api_version(), (0, 81));
    let topology = Topology::new(&plugin, "any", &[]).expect("a topology");
    assert_eq!(topology.fingerprint(), None);
    table.struct_size += 7;
    let plugin = table.open().expect("a size within a pointer");
    assert_eq!(Topology::new(&plugin, "any", &[]).expect("a topology").fingerprint(), None);
}

#[test]
fn a_missing_function_is_an_error_with_the_version() {
    let mut table = Table::full();
    table.remove::<BufferReadyEvent>();
    table.remove::<DeviceMemoryStats>();
    table.remove::<DescriptionAttributes>();
    let client = Client::new(&table.open().expect("a plugin"), &[]).expect("a client without attributes");
    let error = upload(&client, 0, &[1]).ready().expect_err("missing");
    insta::assert_snapshot!(error, @"the plugin has no PJRT_Buffer_ReadyEvent (its PJRT API is 0.104)");
    assert!(error.is_unimplemented() && error.code().is_none());
    assert!(client.devices()[0].memory_stats().expect_err("missing").is_unimplemented());
    assert_eq!(client.devices()[0].coords(), None);
    table.cut_before::<ClientCreate>();
    let error = Client::new(&table.open().expect("a plugin"), &[]).expect_err("missing");
    assert!(matches!(error, Error::Missing { function: "PJRT_Client_Create", version: (0, 104) }));
}

#[test]
fn a_newer_plugin_finds_zeros_behind_our_structs() {
    control().newer_by.store(100, Ordering::SeqCst);
    let buffer = upload(&client(), 0, &[1]);
    assert_eq!(buffer.to_host().and_then(crate::Download::wait).expect("the bytes"), [1]);
    drop(buffer);
    control().newer_by.store(200, Ordering::SeqCst);
    let error = Table::full().open().expect_err("more than we pad");
    insta::assert_snapshot!(
        error,
        @"PJRT_Plugin_Initialize: invalid argument: Unexpected PJRT_Plugin_Initialize_Args size"
    );
    control().assert_clean();
}

#[test]
fn other_versions_and_stumps_of_tables_are_refused() {
    let mut table = Table::full();
    table.version = (1, 0);
    let error = table.open().expect_err("another major version");
    insta::assert_snapshot!(
        error,
        @"fake.so is not a usable PJRT plugin: its PJRT API is 1.0, but only 0.x is supported"
    );
    for size in [8, 16, 39] {
        table.struct_size = size;
        let error = table.open().expect_err("a stump");
        assert_eq!(
            error.to_string(),
            format!("fake.so is not a usable PJRT plugin: its function table has only {size} bytes")
        );
    }
    table.version = (0, 1);
    table.struct_size = 40;
    let plugin = table.open().expect("a table without functions");
    assert!(matches!(Client::new(&plugin, &[]), Err(Error::Missing { .. })));
}

#[test]
fn extensions_are_found_wherever_they_are() {
    let plugin = Table::full().open().expect("a plugin");
    assert_eq!(plugin.extensions(), [ExtensionKind::PhaseCompile, ExtensionKind::Layouts, ExtensionKind::Other(77)]);
    let mut table = Table::full();
    table.extensions = Vec::new();
    let client = Client::new(&table.open().expect("a plugin"), &[]).expect("a client");
    assert!(upload(&client, 0, &[1]).layout().expect_err("no extension").is_unimplemented());
    drop(client);
    table.extensions = vec![(LAYOUTS_KIND, 3)];
    let client = Client::new(&table.open().expect("a plugin"), &[]).expect("a client");
    let error = upload(&client, 0, &[1]).layout().expect_err("an older extension");
    assert!(matches!(error, Error::Missing { function: "PJRT_Layouts_PJRT_Buffer_MemoryLayout", .. }));
    drop(client);
    control().assert_clean();
}

#[test]
fn a_layout_that_is_not_told_is_destroyed() {
    let client = client();
    let buffer = upload(&client, 0, &[1]);
    control().fail("PJRT_Layouts_MemoryLayout_Serialize", 13, "no words");
    assert!(buffer.layout().is_err());
    assert_eq!(control().alive(Kind::Layout), 0);
}

#[test]
fn errors_are_read_and_destroyed() {
    control().fail("PJRT_Plugin_Initialize", 7, "not you");
    let error = Table::full().open().expect_err("failed");
    insta::assert_snapshot!(error, @"PJRT_Plugin_Initialize: permission denied: not you");
    control().fail("PJRT_Plugin_Attributes", 12, "none");
    assert!(Table::full().open().expect("without attributes").attributes().is_empty());
    control().assert_clean();
    let mut table = Table::full();
    table.remove::<ErrorMessage>();
    table.remove::<ErrorGetCode>();
    table.remove::<PluginAttributes>();
    control().fail("PJRT_Client_Create", 7, "not you");
    let error = Client::new(&table.open().expect("a plugin"), &[]).expect_err("failed");
    assert_eq!((error.code(), error.to_string().as_str()), (Some(Code::Unknown), "PJRT_Client_Create: unknown: "));
    control().assert_clean();
    table.remove::<ErrorDestroy>();
    assert!(table.open().is_ok());
}

#[test]
fn a_client_that_cannot_be_read_is_destroyed() {
    let plugin = Table::full().open().expect("a plugin");
    for function in ["PJRT_Client_Devices", "PJRT_DeviceDescription_Kind", "PJRT_Client_PlatformName"] {
        control().fail(function, 13, "no");
        assert!(Client::new(&plugin, &[]).is_err());
        control().assert_clean();
    }
    let client = client();
    control().fail("PJRT_LoadedExecutable_AddressableDevices", 13, "no");
    assert!(client.compile(b"1 1", &crate::CompileOptions::default()).is_err());
    drop(client);
    control().assert_clean();
}
