//! Tests of the identity of an executable: where it is shown, and that processes of two builds do not work together.
//! Copies of the executable with changed bytes in the note of its build id stand for other builds.

use std::path::Path;
use std::process::{Command, Stdio};

use integration_tests::{Server, ServerBuilder, executable};
use serde_json::{Value, json};
use test_support::output;

use crate::failures::last_error;

/// The header of the note: the lengths of the name and of the SHA-1, the type, and the name.
const NOTE: &[u8; 16] = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0";

/// A port for HTTP, which is free at the addresses of these tests.
const HTTP_PORT: u16 = 3000;

/// Returns the offset of the note in an executable.
fn note(bytes: &[u8]) -> usize {
    bytes.windows(NOTE.len()).position(|window| window == NOTE).expect("the linker wrote a build id with 20 bytes")
}

/// Makes a copy of the executable in which the byte at this distance from the beginning of the note is inverted.
/// Another process writes it: a file that this process writes is open in every child that another test starts
/// meanwhile, and a file that is open for writing cannot be executed.
fn copy(path: &Path, distance: usize) {
    let bytes = std::fs::read(executable()).expect("the executable");
    let offset = note(&bytes) + distance;
    let script = r#"cp "$0" "$1" && printf "\\$2" | dd of="$1" bs=1 seek="$3" conv=notrunc status=none"#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).args([executable(), path]).args([format!("{:03o}", !bytes[offset]), offset.to_string()]);
    let copied = output(&mut shell);
    assert!(copied.status.success(), "{copied:?}");
}

/// Returns a fact that `--version` prints.
fn fact(executable: &Path, name: &str) -> String {
    let page = output(Command::new(executable).arg("--version"));
    assert!(page.status.success() && page.stderr.is_empty(), "{page:?}");
    let page = String::from_utf8(page.stdout).expect("text");
    assert!(page.starts_with("text-generation-launcher 0."), "{page}");
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("{name} is missing: {page}")).to_owned()
}

/// Returns the build id that the linker wrote.
fn linked() -> String {
    let bytes = std::fs::read(executable()).expect("the executable");
    let start = note(&bytes) + NOTE.len();
    bytes[start..start + 20].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn host(index: usize, number: u8) -> ServerBuilder {
    let address = |index| format!("127.79.{number}.{}", index + 1);
    let server = Server::mock().flag("--slice-hosts", [0, 1].map(address).join(",")).flag("--slice-index", index);
    server.flag("--hostname", address(index)).flag("--port", HTTP_PORT)
}

#[test]
fn a_server_names_its_build_in_every_place() {
    let id = linked();
    assert_eq!(fact(executable(), "build"), id);
    let (commit, target) = (fact(executable(), "commit"), fact(executable(), "target"));
    let is_commit = |text: &str| text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(commit == "unknown" || is_commit(commit.strip_suffix("-dirty").unwrap_or(&commit)), "{commit}");
    let server = Server::builder("demo", "cpu").flag("--num-shard", 2).start();
    let info = server.client().get("/info").json();
    assert_eq!((&info["build"]["id"], &info["build"]["target"]), (&json!(id), &json!(target)));
    assert_eq!(info["sha"], if commit == "unknown" { Value::Null } else { json!(commit) });
    let body = json!({"model": "demo", "prompt": "Once", "max_tokens": 1});
    let answer = server.client().post("/v1/completions", &body).json();
    let fingerprint = answer["system_fingerprint"].as_str().expect("a fingerprint");
    assert_eq!(info["system_fingerprint"], fingerprint);
    let instruction_set = fingerprint.strip_prefix(&format!("0.1.0-{}-2-cpu-", &id[..12]));
    let known = ["portable", "avx2", "avx-vnni", "avx512", "avx512-vnni", "avx512-bf16", "amx"];
    assert!(instruction_set.is_some_and(|name| known.contains(&name)), "{fingerprint}");
}

#[test]
fn a_host_of_another_build_is_refused_and_both_builds_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let other = folder.path().join("other");
    copy(&other, NOTE.len());
    let ids = [fact(executable(), "build"), fact(&other, "build")];
    assert_ne!(ids[0], ids[1]);
    let second = host(1, 1).spawn();
    let finished = host(0, 1).executable(&other).spawn().wait();
    let error = last_error(&finished.log);
    assert!(error.contains("host 1 (127.79.1.2:8495): the build is "), "{error}");
    let [own, others] = ids.map(|id| error.find(&id).unwrap_or_else(|| panic!("{id} is not named: {error}")));
    assert!(others < own && error.contains("run the same executable or image on every host"), "{error}");
    assert_eq!(finished.status.code(), Some(2), "{error}");
    // The host that refused goes on waiting for the right one.
    assert_eq!(host(0, 1).start().stop().status.code(), Some(0));
    assert_eq!(second.wait().status.code(), Some(0));
}

#[test]
fn an_executable_without_a_build_id_serves_and_is_named_by_its_contents() {
    let folder = tempfile::tempdir().expect("a folder");
    let unnamed = folder.path().join("unnamed");
    // The type of the note, so that the build id is none.
    copy(&unnamed, 8);
    let id = fact(&unnamed, "build");
    assert!(id.strip_prefix("sha256-").is_some_and(|hash| hash.len() == 64), "{id}");
    let server = Server::mock().executable(&unnamed).start();
    let info = server.client().get("/info").json();
    assert_eq!(info["build"]["id"], id);
    let start = format!("0.1.0-{}-1-mock", &id[..7 + 12]);
    assert_eq!(info["system_fingerprint"], start);
    assert!(!server.client().generate("Once", 5).is_empty());
    assert_eq!(server.stop().status.code(), Some(0));
}

#[test]
fn a_shard_refuses_a_router_of_another_build_and_both_builds_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let (other, sockets) = (folder.path().join("other"), folder.path().join("shard"));
    copy(&other, NOTE.len());
    let sockets = sockets.display().to_string();
    let mut shard = Command::new(&other);
    shard.args(["shard", "--device", "mock", "--uds-path", &format!("{sockets}-0")]).stdout(Stdio::null());
    let mut shard = shard.spawn().expect("the shard starts");
    let mut router = Command::new(executable());
    router.args(["router", "--hostname", "127.0.0.1", "--port", "0", "--shard-uds-path", &sockets]);
    let ended = output(&mut router);
    shard.kill().and_then(|()| shard.wait()).expect("the shard was there");
    let log = String::from_utf8_lossy(&ended.stdout).into_owned();
    let [own, others] = [executable(), &other].map(|executable| fact(executable, "build"));
    let expected = format!("shard 0: the client is build {own}, but this shard is build {others}");
    assert!(log.contains(&expected), "{log}");
    assert_eq!(ended.status.code(), Some(17), "{log}");
}
