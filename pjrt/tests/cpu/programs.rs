//! Tests of the facts that plugins, programs and topologies report, and of errors.

use std::path::Path;
use std::sync::Arc;

use pjrt::{
    Argument, Code, CompileOptions, Device, ElementType, Error, ExecuteOptions, ExtensionKind, OptionValue, Plugin,
    Value,
};

use super::{add, client, download_f32, new_client, plugin, run, upload_f32};

#[test]
fn the_plugin_tells_what_it_is() {
    let Some(client) = client() else { return };
    let plugin = client.plugin();
    assert_eq!(plugin.api_version().0, 0);
    assert!(matches!(plugin.attribute("stablehlo_current_version"), Some(Value::I64List(parts)) if parts.len() == 3));
    assert!(plugin.extensions().contains(&ExtensionKind::Layouts));
    assert!(Arc::ptr_eq(plugin, &Plugin::open(plugin.path()).expect("open already")));
    assert_eq!((client.platform_name(), client.process_index()), ("cpu", 0));
    let ids: Vec<i64> = client.devices().iter().map(Device::id).collect();
    assert_eq!(ids, [0, 1]);
    assert_eq!(client.devices(), client.addressable_devices());
    let device = &client.devices()[1];
    assert_eq!((device.kind(), device.debug_string(), device.coords()), ("cpu", "TFRT_CPU_1", None));
    assert_eq!(client.default_layout(ElementType::Bf16, &[2, 3]).expect("a layout").to_string(), "{1,0}");
}

#[test]
fn a_serialized_program_is_loaded_by_another_client() {
    let Some(client) = client() else { return };
    let program = add(&client, "2xf32", "add");
    let bytes = program.executable().serialize().expect("bytes");
    let other = new_client(client.plugin());
    for options in [None, Some(CompileOptions::default())] {
        let loaded = other.load(&bytes, options.as_ref()).expect("the same plugin");
        let device = &other.addressable_devices()[0];
        let (a, b) = (upload_f32(device, &[1.0, 2.0]), upload_f32(device, &[3.0, 4.0]));
        assert_eq!(download_f32(&run(&loaded, vec![Argument::Donate(a), Argument::Keep(&b)])[0]), [4.0, 6.0]);
    }
    assert!(other.load(&bytes[..bytes.len() / 2], None).is_err());
    let executable = program.executable();
    assert_eq!(executable.name().expect("reported"), "add");
    let flops = executable.cost_analysis().expect("reported").into_iter().find(|(name, _)| name == "flops");
    assert_eq!(flops, Some(("flops".to_owned(), Value::F32(2.0))));
    let (format, optimized) = executable.optimized_program().expect("reported");
    assert!(format.starts_with("hlo") && optimized.windows(3).any(|part| part == b"add"));
    assert!(executable.fingerprint().expect("reported").is_some());
}

#[test]
fn errors_have_code_and_message() {
    let Some(client) = client() else { return };
    let device = &client.addressable_devices()[0];
    let bad = client.compile(b"module { nonsense }", &CompileOptions::default()).expect_err("nonsense");
    assert!(
        matches!(&bad, Error::Pjrt { function: "PJRT_Client_Compile", message, .. } if message.contains("nonsense"))
    );
    let program = add(&client, "2xf32", "add");
    let a = upload_f32(device, &[1.0, 2.0]);
    let few = program.execute(vec![vec![Argument::Keep(&a)]], &ExecuteOptions::default()).expect_err("one is missing");
    assert!(matches!(few, Error::Arguments(_)) || few.code() == Some(Code::InvalidArgument), "{few}");
    let long = upload_f32(device, &[1.0; 3]);
    let arguments = vec![vec![Argument::Keep(&long), Argument::Keep(&a)]];
    let wrong = program.execute(arguments, &ExecuteOptions::default()).expect_err("another shape");
    assert_eq!(wrong.code(), Some(Code::InvalidArgument), "{wrong}");
    let unknown = CompileOptions {
        env_option_overrides: [("xla_no_such_flag".to_owned(), OptionValue::Bool(true))].into(),
        ..CompileOptions::default()
    };
    let text = b"module { func.func @main() -> tensor<f32> {
        %0 = stablehlo.constant dense<1.0> : tensor<f32> return %0 : tensor<f32> } }";
    assert!(client.compile(text, &unknown).expect_err("no such flag").to_string().contains("xla_no_such_flag"));
    let missing = Plugin::open(Path::new("/no/such/plugin.so")).expect_err("no such file");
    assert!(missing.to_string().starts_with("cannot open PJRT plugin /no/such/plugin.so: "), "{missing}");
}

#[test]
fn the_topology_of_a_client_outlives_it() {
    let Some(plugin) = plugin() else { return };
    let topology = new_client(&plugin).topology().expect("a topology");
    assert_eq!(topology.platform_name().expect("reported"), "cpu");
    assert_eq!(topology.device_descriptions().expect("reported").len(), 2);
}
