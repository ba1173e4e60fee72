//! Tests of `plan`, for which a temporary folder may stand in for a machine's root directory, of the exit status when a
//! device is missing, and of flags and variables.

use std::io::Read as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use integration_tests::executable;
use test_support::{exit_status, output};

/// Runs the launcher with these arguments. Its environment has only these variables and a temporary home.
fn launcher(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let home = tempfile::tempdir().expect("a temporary directory");
    let mut command = Command::new(executable());
    command.args(arguments).env_clear().env("HOME", home.path()).envs(environment.iter().copied());
    output(&mut command)
}

/// Creates a folder that looks like the root directory of a host with `num_chips` TPU v6e chips.
fn host(num_chips: u32) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a temporary directory");
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a path in a folder")).expect("a new directory");
        std::fs::write(path, text).expect("a new file");
    };
    for chip in 0..num_chips {
        let folder = format!("sys/bus/pci/devices/0000:00:0{}.0", chip + 4);
        write(&format!("{folder}/vendor"), "0x1ae0\n");
        write(&format!("{folder}/device"), "0x006f\n");
        symlink(format!("../../iommu_groups/{chip}"), root.path().join(folder).join("iommu_group"))
            .expect("a new link");
        write(&format!("dev/vfio/{chip}"), "");
    }
    root
}

fn plan(root: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let root = root.to_str().expect("temporary paths are text");
    launcher(&[&["plan", "--sysfs-root", root], arguments].concat(), environment)
}

fn stdout(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("plans are text")
}

#[test]
fn two_shards_on_the_processor() {
    let text = stdout(launcher(&["plan", "--device", "cpu", "--num-shard", "2", "--port", "8080"], &[]));
    for part in [
        "device   cpu (asked for)\n",
        "\nshard-0  shard --model-id demo --device cpu --shard 0 --num-shards 2 --devices-per-shard 1 --collective-path /proc/",
        "\nshard-1  shard --model-id demo --device cpu --shard 1 ",
        "  socket <private directory>/shard-1\n",
        "\nrouter   router --model-id demo --num-shards 2 --port 8080\n",
    ] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

#[test]
fn a_model_of_the_hub_is_planned_without_asking_it() {
    let nowhere = [("HF_ENDPOINT", "http://127.0.0.1:1")];
    let text = stdout(launcher(&["plan", "--device", "cpu", "--model-id", "org/name", "--revision", "v1"], &nowhere));
    for part in ["shard --model-id <snapshot of org/name> --device cpu", "router --model-id org/name --num-shards 1"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

#[test]
fn a_tpu_host_is_a_folder() {
    let root = host(4);
    let text = stdout(plan(root.path(), &["--device", "tpu", "--num-shard", "4"], &[("TPU_LOG_DIR", "/logs")]));
    for part in [
        "chip 3   v6e    /dev/vfio/3    PCI 0000:00:07.0  1 device(s)\n",
        "  TPU_PROCESS_BOUNDS            2,2,1 ",
        "  CLOUD_TPU_TASK_ID    3 ",
    ] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    let log_line = text.lines().find(|line| line.contains("TPU_LOG_DIR")).unwrap();
    assert!(log_line.contains("/logs") && log_line.ends_with("yours"), "{log_line}");
}

#[test]
fn chips_in_use_are_shown_in_the_plan() {
    let root = host(4);
    std::fs::create_dir_all(root.path().join("proc/4711/fd")).unwrap();
    std::fs::write(root.path().join("proc/4711/cmdline"), "python3\0train.py\0").unwrap();
    symlink("/dev/vfio/2", root.path().join("proc/4711/fd/5")).unwrap();
    let text = stdout(plan(root.path(), &["--device", "tpu", "--num-shard", "4"], &[]));
    let error = "error: /dev/vfio/2 is in use by process 4711 (python3 train.py): end that process first\n";
    assert!(text.contains(error), "{text}");
}

#[test]
fn without_a_plan_the_exit_status_says_whose_fault_it_is() {
    let root = host(4);
    for (arguments, environment, status, sentence) in [
        (&["--device", "tpu", "--num-shard", "3"][..], &[][..], 2, "use --devices-per-shard 1 with --num-shard 1 or 4"),
        (&["--device", "tpu"], &[("TPU_VISIBLE_CHIPS", "9")], 2, "chips of this host, 0 to 3"),
        (&["--devices-per-shard", "0"], &[], 2, "0 is not in 1.."),
    ] {
        let output = plan(root.path(), arguments, environment);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{error}");
        assert!(error.contains(sentence), "{error}");
    }
    let empty = tempfile::tempdir().unwrap();
    let output = plan(empty.path(), &["--device", "tpu"], &[]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!(output.stderr, b"error: device tpu: no TPU chip on the bus\n");
}

#[test]
fn a_plan_that_cannot_be_written_is_a_failure() {
    // Every write to `/dev/full` fails, as on a full disk.
    let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has this device");
    let mut command = Command::new(executable());
    command.args(["plan", "--device", "cpu"]).env_clear().env("HOME", std::env::temp_dir()).stdout(full);
    let mut launcher = command.stderr(Stdio::piped()).spawn().expect("the launcher starts");
    let status = exit_status(&mut launcher, "a plan that cannot be written");
    let mut error = String::new();
    launcher.stderr.take().expect("a pipe").read_to_string(&mut error).expect("errors are text");
    assert_eq!(status.code(), Some(1), "{error}");
    assert!(error.contains("error: stdout cannot be written: No space left"), "{error}");
}

#[test]
fn a_device_without_its_plugin_is_missed_before_anything_starts() {
    let output = launcher(&["--device", "xla-cpu", "--port", "0"], &[]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let log = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("device xla-cpu: ") && log.contains("plugin fetch cpu"), "{log}");
}

/// Returns the exit status and the output of the launcher with these flags and variables.
fn said(flags: &[&str], environment: &[(&str, &str)]) -> (Option<i32>, String) {
    let output = launcher(flags, environment);
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[test]
fn unsupported_flags_of_tgi_are_named() {
    for (name, value, sentence) in [
        ("lora-adapters", "a,b", "is not supported: adapters are not loaded; merge one into its model"),
        ("rope-scaling", "dynamic", "is not supported: positions are scaled as the model says"),
        ("cuda-memory-fraction", "0.8", "limit its largest part with --kv-cache-memory"),
    ] {
        let (flag, variable) = (format!("--{name}"), name.to_uppercase().replace('-', "_"));
        for serving in [&["plan", "--device", "cpu"][..], &["--device", "cpu", "--port", "0"]] {
            let (status, text) = said(&[serving, &[&flag, value]].concat(), &[]);
            assert!(status == Some(2) && text.contains(sentence) && text.contains(&flag), "{text}");
            let (status, text) = said(serving, &[(&variable, value)]);
            assert!(status == Some(2) && text.contains(sentence), "{text}");
            assert!(text.contains(&format!("the environment variable {variable}")), "{text}");
        }
    }
    let harmless = ["--trust-remote-code", "--cuda-graphs", "1,2", "--disable-custom-kernels"];
    let (status, text) = said(
        &[&["plan", "--device", "cpu"], &harmless[..]].concat(),
        &[("SPECULATE", "2"), ("NGROK_AUTHTOKEN", "s3cret")],
    );
    assert_eq!(status, Some(0), "{text}");
    for part in [
        "note: --trust-remote-code changes nothing: code of a model's repository is never run\n",
        "note: --cuda-graphs changes nothing: ",
        "warning: the environment variable SPECULATE has no effect: ",
        "note: the environment variable NGROK_AUTHTOKEN changes nothing: ",
    ] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    assert!(!text.contains("s3cret"), "{text}");
}

#[test]
fn an_empty_variable_is_not_set() {
    let names = ["QUANTIZE", "NUM_SHARD", "MAX_TOTAL_TOKENS", "SHARDED", "DTYPE", "PORT", "DEVICE", "KV_CACHE_MEMORY"];
    let more = ["TRUST_REMOTE_CODE", "ROPE_SCALING", "JSON_OUTPUT", "UDS", "TLS_CERTFILE", "TLS_KEYFILE"];
    let empty: Vec<(&str, &str)> = names.iter().chain(&more).map(|name| (*name, "")).collect();
    let text = stdout(launcher(&["plan"], &empty));
    assert!(text.contains("shard --model-id demo --device cpu") && text.contains("--port 3000"), "{text}");
}

#[test]
fn an_empty_variable_opens_nothing() {
    for (variable, value) in [
        ("API_KEY", ""),
        ("API_KEY", " "),
        ("API_KEY", ","),
        ("API_KEY_FILE", ""),
        ("CORS_ALLOW_ORIGIN", ""),
        ("SLICE_SECRET_FILE", ""),
    ] {
        for flags in [&["plan", "--device", "cpu"][..], &["--device", "cpu"]] {
            let (status, text) = said(flags, &[(variable, value)]);
            let name = format!("the environment variable {variable}");
            assert!(status == Some(2) && text.contains(&name), "{variable} {value:?}: {status:?} {text}");
        }
    }
}

#[test]
fn numbers_out_of_range_are_refused_with_the_range() {
    for (flag, value, range) in [
        ("--num-shard", "5000000", "0..=64"),
        ("--num-shard", "65", "0..=64"),
        ("--validation-workers", "65536", "0..=512"),
        ("--slice-timeout", "18446744073709551615", "1..=31536000"),
        ("--slice-timeout", "31536001", "1..=31536000"),
        ("--slice-timeout", "0", "1..=31536000"),
    ] {
        let (status, text) = said(&["--device", "cpu", flag, value], &[]);
        let expected = format!("{value} is not in {range}");
        assert!(status == Some(2) && text.contains(flag) && text.contains(&expected), "{flag}: {status:?} {text}");
    }
}

#[test]
fn an_alias_has_a_variable_too_and_what_is_wrong_with_one_names_it() {
    for (variable, value) in
        [("GRACEFUL_TERMINATION_TIMEOUT", "soon"), ("NUM_SHARD", "two"), ("QUANTIZE", "gptq"), ("PORT", "-1")]
    {
        let (status, text) = said(&["plan", "--device", "cpu"], &[(variable, value)]);
        let name = format!("'{value}' for the environment variable {variable}: ");
        assert!(status == Some(2) && text.contains(&name) && !text.contains("for '--"), "{text}");
    }
    let (status, text) = said(&["--device", "cpu", "--port", "0"], &[("SSL_CERTFILE", "/nowhere")]);
    assert!(status == Some(2) && text.contains("`tls_certfile` is set and `tls_keyfile` is not"), "{text}");
    // A flag takes precedence over its variable, and an error names the flag.
    let (status, text) = said(&["plan", "--device", "cpu", "--num-shard=x"], &[("NUM_SHARD", "2")]);
    assert!(status == Some(2) && text.contains("'x' for '--num-shard"), "{text}");
    stdout(launcher(&["plan", "--device", "cpu", "--shutdown-timeout", "3"], &[("GRACEFUL_TERMINATION_TIMEOUT", "x")]));
}
