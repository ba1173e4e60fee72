//! Tests of `health`: it finds the server by the server's flags or by the launcher's process id, and its exit status
//! says if the server is healthy.

use std::process::{Command, Output};

use integration_tests::{Server, executable};
use test_support::output;

/// Runs `health` with these flags.
fn health(flags: &[&str]) -> Output {
    let mut command = Command::new(executable());
    command.env_remove("HOSTNAME").env_remove("PORT").arg("health").args(flags);
    output(&mut command)
}

#[test]
fn a_server_on_a_port_is_healthy_until_it_ends() {
    let server = Server::mock().flag("--hostname", "127.0.0.1").start();
    let url = server.client().url("");
    let port = url.rsplit_once(':').unwrap().1;
    let asked = health(&["--port", port]);
    assert!(asked.status.success() && asked.stdout.is_empty() && asked.stderr.is_empty(), "{asked:?}");
    assert_eq!(server.stop().status.code(), Some(0));
    let asked = health(&["--port", port]);
    assert_eq!(asked.status.code(), Some(1), "{asked:?}");
    let error = String::from_utf8(asked.stderr).unwrap();
    assert!(error.starts_with(&format!("error: no HTTP response from http://127.0.0.1:{port}/health: ")), "{error}");
}

#[test]
fn a_launcher_says_where_its_server_listens() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("http");
    let server = Server::mock().flag("--uds", socket.display()).start();
    let asked = health(&["--pid", &server.pid().to_string()]);
    assert!(asked.status.success(), "{asked:?}");
    let asked = health(&["--pid", &server.child("shard").to_string()]);
    assert_eq!(asked.status.code(), Some(1), "{asked:?}");
    let error = String::from_utf8_lossy(&asked.stderr);
    assert!(error.contains("is not a text-generation-launcher that serves a model"), "{asked:?}");
    assert_eq!(server.stop().status.code(), Some(0));
}

#[test]
fn a_server_with_tls_is_asked_whatever_its_certificate_names() {
    let directory = tempfile::tempdir().unwrap();
    let pair = rcgen::generate_simple_self_signed(["elsewhere".to_owned()]).unwrap();
    let [certfile, keyfile] = ["cert.pem", "key.pem"].map(|name| directory.path().join(name));
    std::fs::write(&certfile, pair.cert.pem()).unwrap();
    std::fs::write(&keyfile, pair.signing_key.serialize_pem()).unwrap();
    let [certfile, keyfile] = [certfile, keyfile].map(|path| path.display().to_string());
    let server = Server::mock().flag("--tls-certfile", &certfile).flag("--tls-keyfile", &keyfile).start();
    let url = server.client().url("");
    let port = url.rsplit_once(':').unwrap().1;
    let asked = health(&["--port", port, "--tls-certfile", &certfile]);
    assert!(asked.status.success(), "{asked:?}");
    assert_eq!(health(&["--port", port]).status.code(), Some(1), "without TLS");
    assert_eq!(server.stop().status.code(), Some(0));
}
