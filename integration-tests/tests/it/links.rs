//! Tests of a slice of two hosts whose link is cut or loses packets. The second host is in a network namespace of its
//! own, which needs the rights of root, `ip` and `iptables`.

use std::process::Command;

use integration_tests::{Server, ServerBuilder, SseStream};
use serde_json::{Value, json};
use test_support::{output, skipped_unless_required};

use crate::failures::{last_error, terminal_event, wait_until_gone};

/// The environment variable whose value 1 says that namespaces can be made. A test that cannot make one then fails
/// instead of being skipped.
const REQUIRE_VARIABLE: &str = "HILO_REQUIRE_NAMESPACES";

/// A link between this namespace, with host 0, and another one, with host 1.
struct Link {
    number: u8,
    namespace: String,
}

impl Link {
    /// Makes the namespace and the link; `None` if this process may not.
    fn new(number: u8) -> Option<Self> {
        let namespace = format!("hilo-{}-{number}", std::process::id());
        let made = run(&["ip", "netns", "add", &namespace]);
        if let Err(reason) = made {
            skipped_unless_required(REQUIRE_VARIABLE, &reason);
            return None;
        }
        let link = Self { number, namespace };
        let [one, two] = [link.device(0), link.device(1)];
        let namespace = link.namespace.as_str();
        must(&["ip", "link", "add", &one, "type", "veth", "peer", "name", &two, "netns", namespace]);
        must(&["ip", "address", "add", &format!("{}/30", link.address(0)), "dev", &one]);
        must(&["ip", "-n", namespace, "address", "add", &format!("{}/30", link.address(1)), "dev", &two]);
        must(&["ip", "link", "set", &one, "up"]);
        must(&["ip", "-n", namespace, "link", "set", &two, "up"]);
        must(&["ip", "-n", namespace, "link", "set", "lo", "up"]);
        Some(link)
    }

    fn device(&self, host: u8) -> String {
        format!("h{}n{}e{host}", std::process::id() % 100_000, self.number)
    }

    /// An address of the block for benchmark tests (RFC 2544), which no network routes.
    fn address(&self, host: u8) -> String {
        format!("198.18.{}.{}", self.number, host + 1)
    }

    fn cut(&self) {
        must(&["ip", "link", "set", &self.device(0), "down"]);
    }

    /// Loses a fifth of the packets in both directions.
    fn lose_packets(&self) {
        for chain in ["INPUT", "OUTPUT"] {
            let loss = ["-m", "statistic", "--mode", "random", "--probability", "0.2", "-j", "DROP"];
            let rule = ["ip", "netns", "exec", &self.namespace, "iptables", "-A", chain];
            must(&[&rule[..], &loss].concat());
        }
    }

    /// Returns the number of packets that were lost on purpose.
    fn num_lost(&self) -> u64 {
        let list = ["netns", "exec", &self.namespace, "iptables", "--list", "--verbose", "--exact", "--numeric"];
        let output = output(Command::new("ip").args(list));
        let table = String::from_utf8_lossy(&output.stdout).into_owned();
        let rules = table.lines().filter(|line| line.contains(" DROP "));
        rules.filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok()).sum()
    }

    /// Starts both hosts.
    fn start(&self, secret: &str) -> [Server; 2] {
        let host = |index: u8| -> ServerBuilder {
            let builder = Server::builder("demo", "cpu")
                .flag("--slice-hosts", format!("{},{}", self.address(0), self.address(1)));
            builder.flag("--slice-index", index).flag("--slice-secret-file", secret)
        };
        let second = host(1).in_namespace(&self.namespace).spawn();
        [host(0).start(), second]
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The link ends with the namespace.
        let _ = run(&["ip", "netns", "delete", &self.namespace]);
    }
}

fn run(words: &[&str]) -> Result<(), String> {
    match Command::new(words[0]).args(&words[1..]).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{words:?}: {}", String::from_utf8_lossy(&output.stderr))),
        Err(error) => Err(format!("{words:?}: {error}")),
    }
}

fn must(words: &[&str]) {
    run(words).expect("the command succeeds");
}

/// Returns the path of a new secret.
fn secret(folder: &tempfile::TempDir) -> String {
    let path = folder.path().join("secret");
    std::fs::write(&path, "the secret of a test").expect("a file");
    path.display().to_string()
}

/// Checks that a host has ended because of the other one, or of the other one's shard.
fn ended_for(host: Server, reasons: [&str; 2]) {
    let finished = host.wait();
    let error = last_error(&finished.log);
    assert!(reasons.iter().any(|reason| error.contains(reason)), "{error}");
    assert_eq!(finished.status.code(), Some(17), "{error}");
}

#[test]
fn a_link_that_is_cut_ends_every_stream_with_one_error() {
    let Some(link) = Link::new(1) else { return };
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = link.start(&secret(&folder));
    let pids = [first.descendants(), second.descendants()].concat();
    let body = json!({"inputs": "Once upon a time", "parameters": {
        "max_new_tokens": 900, "do_sample": true, "temperature": 3.0, "seed": 7
    }});
    let client = first.client();
    let mut streams: Vec<SseStream> = (0..8).map(|_| client.stream("/generate_stream", &body).unwrap()).collect();
    for stream in &mut streams {
        assert!(stream.next().unwrap().get("token").is_some());
    }
    link.cut();
    let ends: Vec<Value> = streams.into_iter().map(terminal_event).collect();
    assert!(ends.iter().any(|end| end["error_type"] == "generation"), "{ends:?}");
    ended_for(first, ["host 1 (198.18.1.2:8495) is lost: nothing came from it for 8 s", "for rank 1"]);
    ended_for(second, ["host 0 (198.18.1.1:8495) is lost: nothing came from it for 8 s", "for rank 0"]);
    wait_until_gone(&pids);
}

#[test]
fn a_link_that_is_cut_while_nothing_runs_is_noticed() {
    let Some(link) = Link::new(2) else { return };
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = link.start(&secret(&folder));
    let pids = [first.descendants(), second.descendants()].concat();
    link.cut();
    let [one, two] = ["host 1 (198.18.2.2:8495) is lost", "host 0 (198.18.2.1:8495) is lost"];
    ended_for(first, [one, one]);
    ended_for(second, [two, two]);
    wait_until_gone(&pids);
}

#[test]
fn a_link_that_loses_packets_is_only_slower() {
    let Some(link) = Link::new(3) else { return };
    let expected = Server::builder("demo", "cpu").start().client().generate("Once upon a time", 12);
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = link.start(&secret(&folder));
    link.lose_packets();
    let body = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 12}});
    let end = terminal_event(first.client().stream("/generate_stream", &body).unwrap());
    assert!(link.num_lost() > 0, "no packet was lost");
    // A packet that is lost six times in a row takes longer than a step may, which ends the slice as documented.
    if end["error_type"] == "generation" {
        assert_eq!(first.wait().status.code(), Some(17));
        assert_eq!(second.wait().status.code(), Some(17));
    } else {
        assert_eq!(end["generated_text"], expected.as_str());
        assert_eq!(first.stop().status.code(), Some(0));
        assert_eq!(second.wait().status.code(), Some(0));
    }
}
