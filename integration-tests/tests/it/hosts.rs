//! Tests of a model over several hosts. Each host is a launcher at a loopback address of its own; each test has a
//! network of its own, so that tests can run at the same time. `links.rs` cuts links between network namespaces.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use integration_tests::{Client, Server, ServerBuilder, SseStream, pause, send_signal};
use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::DEADLINE;

use crate::failures::{last_error, terminal_event, wait_until_gone};

const PROMPTS: [&str; 3] = ["Once upon a time", "<|user|>What is 3 + 4?<|assistant|>", "Lily has a"];

/// A port for HTTP, which is free at the addresses of each test.
const HTTP_PORT: u16 = 3000;
const DOOR_PORT: u16 = 8495;

/// The maximum time until a page shows what a test waits for.
const PAGE_DEADLINE: Duration = Duration::from_secs(60);

/// The hosts of one test: the number of its network, and how many hosts there are.
#[derive(Clone, Copy)]
struct Net {
    number: u8,
    num_hosts: usize,
}

impl Net {
    fn address(self, host: usize) -> String {
        format!("127.77.{}.{}", self.number, host + 1)
    }

    fn url(self, host: usize) -> String {
        format!("http://{}:{HTTP_PORT}", self.address(host))
    }

    /// Adds the flags of one host.
    fn host(self, builder: ServerBuilder, host: usize) -> ServerBuilder {
        let all: Vec<String> = (0..self.num_hosts).map(|host| self.address(host)).collect();
        let builder = builder.flag("--slice-hosts", all.join(",")).flag("--slice-index", host);
        builder.flag("--hostname", self.address(host)).flag("--port", HTTP_PORT)
    }

    /// Starts all hosts, the first one last, and waits until the slice serves.
    fn start(self, builder: impl Fn() -> ServerBuilder) -> Vec<Server> {
        let others: Vec<Server> = (1..self.num_hosts).map(|host| self.host(builder(), host).spawn()).collect();
        std::iter::once(self.host(builder(), 0).start()).chain(others).collect()
    }
}

/// Returns two answers to each prompt: the first greedy, the second with drawn tokens.
fn texts(client: &Client, prompts: &[&str]) -> Vec<Value> {
    let greedy = json!({"max_new_tokens": 40, "details": true, "decoder_input_details": true});
    let sampled = json!({"max_new_tokens": 40, "do_sample": true, "temperature": 1.5, "top_p": 0.9, "seed": 3});
    let body = |prompt: &str, parameters: &Value| json!({"inputs": prompt, "parameters": parameters});
    let bodies = prompts.iter().flat_map(|prompt| [body(prompt, &greedy), body(prompt, &sampled)]);
    let answers = bodies.map(|body| client.post("/generate", &body));
    answers
        .map(|answer| {
            assert_eq!(answer.status, 200, "{}", answer.text);
            answer.json()
        })
        .collect()
}

/// Opens streams that go on for as long as the model allows, and reads the first token of each.
fn streams(client: &Client, number: usize) -> Vec<SseStream> {
    let body = json!({"inputs": "Once upon a time", "parameters": {
        "max_new_tokens": 900, "do_sample": true, "temperature": 3.0, "seed": 7
    }});
    let mut streams: Vec<_> =
        (0..number).map(|_| client.stream("/generate_stream", &body).expect("an answer")).collect();
    for stream in &mut streams {
        assert!(stream.next().expect("a first event").get("token").is_some());
    }
    streams
}

/// Checks that each stream ends with one event, and at least one with an error.
fn each_ends_once(streams: Vec<SseStream>) {
    let ends: Vec<Value> = streams.into_iter().map(terminal_event).collect();
    let errors: Vec<&Value> = ends.iter().filter(|end| end.get("error").is_some()).collect();
    assert!(!errors.is_empty(), "every stream had ended before the host did");
    assert!(errors.iter().all(|error| error["error_type"] == "generation"), "{errors:?}");
}

fn descendants(hosts: &[Server]) -> Vec<i32> {
    hosts.iter().flat_map(Server::descendants).collect()
}

/// Starts a slice whose hosts have `num_shard` shards each, and compares its answers: with those of as many shards on
/// one host, which have the same probabilities, and with those of one shard, which have the same texts. Drawn tokens
/// are not compared with those of one shard: its sums are rounded differently, which can change a token.
fn same_on_one_host(net: Net, num_shard: usize, model: &dyn Fn() -> ServerBuilder, prompts: &[&str]) {
    let all = net.num_hosts * num_shard;
    let greedy = |answers: &[Value]| -> Vec<Value> {
        answers.iter().step_by(2).map(|answer| answer["generated_text"].clone()).collect()
    };
    let one_shard = texts(&model().start().client(), prompts);
    let one_host = texts(&model().flag("--num-shard", all).start().client(), prompts);
    let hosts = net.start(|| model().flag("--num-shard", num_shard));
    let answers = texts(&hosts[0].client(), prompts);
    assert!(answers == one_host, "{answers:?} is not {one_host:?}");
    assert_eq!(greedy(&answers), greedy(&one_shard));
    for host in hosts {
        host.signal(Signal::TERM);
        let finished = host.wait();
        assert_eq!(finished.status.code(), Some(0), "{}", finished.log.join("\n"));
    }
}

#[test]
fn several_hosts_say_what_one_says() {
    same_on_one_host(Net { number: 1, num_hosts: 2 }, 1, &demo, &PROMPTS);
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "the secret of a test").unwrap();
    let encrypted = || demo().flag("--slice-secret-file", secret.display()).env("SLICE_TLS", "true");
    same_on_one_host(Net { number: 2, num_hosts: 2 }, 3, &encrypted, &PROMPTS);
}

/// Makes a model of four heads in `folder`: weights of a fixture, and a tokenizer with a word for each token.
fn model_of_four_heads(folder: &Path) {
    let fixture = checkpoints::folder("families/arcee");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture.join(file), folder.join(file)).expect("a copy");
    }
    let vocab: serde_json::Map<String, Value> = (0..128).map(|id| (format!("w{id}"), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"}
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).expect("a file");
}

#[test]
fn four_hosts_say_what_one_says() {
    let folder = tempfile::tempdir().unwrap();
    model_of_four_heads(folder.path());
    let model = || Server::builder(folder.path().to_str().unwrap(), "cpu");
    same_on_one_host(Net { number: 3, num_hosts: 4 }, 1, &model, &["w1 w2 w3", "w100"]);
}

/// Waits until a page has this status, and returns its text.
fn page(url: &str, path: &str, status: u16) -> String {
    let deadline = Instant::now() + PAGE_DEADLINE;
    loop {
        match Client::new(url).try_get(path) {
            Ok(page) if page.status == status => return page.text,
            other => assert!(Instant::now() < deadline, "{path} has no status {status}: {other:?}"),
        }
        pause(Duration::from_millis(20));
    }
}

#[test]
fn hosts_without_a_router_show_their_health() {
    let net = Net { number: 4, num_hosts: 3 };
    let second = net.host(Server::mock(), 1).spawn();
    assert_eq!(page(&net.url(1), "/health", 503), "host 1 of 3: assembling\n");
    let first = net.host(Server::mock(), 0).spawn();
    let third = net.host(Server::mock(), 2).spawn();
    assert_eq!(page(&net.url(2), "/health", 200), "host 2 of 3: serving\n");
    assert!(page(&net.url(1), "/metrics", 200).contains("hilo_slice_host_stage{stage=\"serving\"} 1\n"));
    assert!(page(&net.url(1), "/v1/models", 421).contains("send requests to host 0, 127.77.4.1"));
    for host in [first, second, third] {
        assert_eq!(host.stop().status.code(), Some(0));
    }
}

#[test]
fn a_signal_at_any_host_lets_requests_finish() {
    // Whoever stops a slice stops all its hosts, at about the same time and in any order.
    for (number, asked) in [(5, &[0][..]), (6, &[1]), (7, &[1, 0]), (8, &[0, 1])] {
        let net = Net { number, num_hosts: 2 };
        let hosts = net.start(|| Server::mock().flag("--mock-step-us", 5000));
        let pids = descendants(&hosts);
        let body = json!({"inputs": "Once", "parameters": {"max_new_tokens": 200}});
        let mut stream = hosts[0].client().stream("/generate_stream", &body).unwrap();
        stream.next().unwrap();
        for host in asked {
            hosts[*host].signal(Signal::TERM);
            stream.next().unwrap();
        }
        let end = terminal_event(stream);
        assert!(end["generated_text"].is_string(), "{end}");
        for host in hosts {
            let finished = host.wait();
            assert_eq!(finished.status.code(), Some(0), "{:?}", finished.log);
        }
        wait_until_gone(&pids);
    }
}

#[test]
fn a_signal_ends_every_host_while_a_step_does_not_end() {
    for (number, asked) in [(19, 0), (20, 1)] {
        let net = Net { number, num_hosts: 2 };
        let hosts = net.start(|| demo().flag("--shutdown-timeout", 0));
        let pids = descendants(&hosts);
        let streams = streams(&hosts[0].client(), 3);
        for host in &hosts {
            send_signal(host.child("shard"), Signal::STOP);
        }
        hosts[asked].signal(Signal::TERM);
        let ends: Vec<Value> = streams.into_iter().map(terminal_event).collect();
        assert!(ends.iter().any(|end| end["error_type"] == "stopping"), "{ends:?}");
        for host in hosts {
            let finished = host.wait();
            assert_eq!(finished.status.code(), Some(0), "{}", finished.log.join("\n"));
        }
        wait_until_gone(&pids);
    }
}

#[test]
fn a_signal_before_the_slice_serves_ends_it() {
    // Each step of the warm-up takes long.
    let slow = || Server::mock().flag("--mock-step-us", 2_000_000);
    for (number, asked) in [(17, 0), (18, 1)] {
        let net = Net { number, num_hosts: 2 };
        let hosts: Vec<Server> = (0..2).map(|host| net.host(slow(), host).spawn()).collect();
        let deadline = Instant::now() + PAGE_DEADLINE;
        while hosts.iter().any(|host| host.children("shard").is_empty()) {
            assert!(Instant::now() < deadline, "the shards do not start");
            pause(Duration::from_millis(20));
        }
        let pids = descendants(&hosts);
        hosts[asked].signal(Signal::TERM);
        for host in hosts {
            let finished = host.wait();
            assert_eq!(finished.status.code(), Some(0), "{}", finished.log.join("\n"));
        }
        wait_until_gone(&pids);
    }
}

/// Ends a process of the second of two hosts, and checks that every stream ends once, that both launchers end with
/// status 17, that each names the other host or its own child, and that no process is left. Expected texts of the first
/// host are alternatives with `|` between them.
fn lose(
    number: u8,
    server: impl Fn() -> ServerBuilder,
    hurt: impl FnOnce(&Server),
    [first_says, second_says]: [&str; 2],
) {
    let net = Net { number, num_hosts: 2 };
    let mut hosts = net.start(server);
    let pids = descendants(&hosts);
    let streams = streams(&hosts[0].client(), 8);
    hurt(&hosts[1]);
    each_ends_once(streams);
    let second = hosts.pop().expect("a second host");
    let finished = hosts.pop().expect("a first host").wait();
    let error = last_error(&finished.log);
    assert!(first_says.split('|').any(|says| error.contains(says)), "{error}");
    assert_eq!(finished.status.code(), Some(17), "{error}");
    if second_says.is_empty() {
        // Its launcher was killed or is stopped.
        drop(second);
    } else {
        let finished = second.wait();
        let error = last_error(&finished.log);
        assert!(error.contains(second_says), "{error}");
        assert_eq!(finished.status.code(), Some(17), "{error}");
    }
    wait_until_gone(&pids);
}

fn demo() -> ServerBuilder {
    Server::builder("demo", "cpu")
}

#[test]
fn a_host_whose_launcher_is_killed_ends_the_slice() {
    let first_says = "host 1 (127.77.10.2:8495) is lost: it ended without a word";
    lose(10, demo, |host| host.signal(Signal::KILL), [first_says, ""]);
}

#[test]
fn a_host_whose_launcher_is_stopped_ends_the_slice() {
    let first_says = "host 1 (127.77.11.2:8495) is lost: nothing came from it for 8 s";
    // The streams take longer than the silence until the host counts as lost.
    let slow = || Server::mock().flag("--mock-step-us", 20_000);
    lose(11, slow, |host| host.signal(Signal::STOP), [first_says, ""]);
}

#[test]
fn a_host_whose_shard_is_killed_ends_the_slice() {
    let kill = |host: &Server| send_signal(host.child("shard"), Signal::KILL);
    lose(
        12,
        demo,
        kill,
        ["host 1 (127.77.12.2:8495) has failed: shard-1 was killed by signal 9", "shard-1 was killed by"],
    );
}

#[test]
fn a_host_whose_shard_is_stopped_ends_the_slice() {
    let stop = |host: &Server| send_signal(host.child("shard"), Signal::STOP);
    // Shard 0 waits for rank 1 and says so, or the router misses the signs of life of shard 1 before.
    lose(
        13,
        demo,
        stop,
        ["waited 10.0|shard 1 gave no sign of life", "shard-1 was stopped by a signal such as SIGSTOP"],
    );
}

/// The promised maximum time from the moment at which a launcher is stopped to the end of the hosts that run.
const STOPPED_DEADLINE: Duration = Duration::from_secs(12);

#[test]
fn a_launcher_of_host_0_that_is_stopped_ends_the_others_and_every_stream() {
    let net = Net { number: 30, num_hosts: 3 };
    let hosts = net.start(|| Server::mock().flag("--mock-step-us", 20_000));
    let streams = streams(&hosts[0].client(), 4);
    hosts[0].signal(Signal::STOP);
    let mut hosts = hosts.into_iter();
    let _first = hosts.next();
    for host in hosts {
        let finished = host.wait();
        let error = last_error(&finished.log);
        assert!(error.contains("host 0 (127.77.30.1:8495) is lost: nothing came from it for 8 s"), "{error}");
        assert_eq!(finished.status.code(), Some(17), "{error}");
        assert!(finished.took < STOPPED_DEADLINE, "{:?}", finished.took);
    }
    each_ends_once(streams);
}

#[test]
fn a_router_that_is_stopped_ends_the_slice() {
    let net = Net { number: 31, num_hosts: 2 };
    let mut hosts = net.start(Server::mock);
    let pids = descendants(&hosts);
    send_signal(hosts[0].child("router"), Signal::STOP);
    let second = hosts.pop().expect("a second host").wait();
    let first = hosts.pop().expect("a first host").wait();
    for finished in [first, second] {
        let error = last_error(&finished.log);
        assert!(error.contains("router gave no sign of life for 10 s"), "{error}");
        assert_eq!(finished.status.code(), Some(17), "{error}");
    }
    wait_until_gone(&pids);
}

#[test]
fn the_others_end_with_host_0_and_may_be_started_again() {
    let net = Net { number: 14, num_hosts: 2 };
    let mut hosts = net.start(Server::mock);
    let pids = descendants(&hosts);
    hosts[0].signal(Signal::KILL);
    let finished = hosts.pop().unwrap().wait();
    assert_eq!(finished.status.code(), Some(17));
    let error = last_error(&finished.log);
    assert!(error.contains("host 0 (127.77.14.1:8495) is lost: it ended without a word"), "{error}");
    wait_until_gone(&pids);
    // Both hosts of a slice are started again by whoever started them, in any order.
    drop(hosts);
    let first = net.host(Server::mock(), 0).spawn();
    let second = net.host(Server::mock(), 1).spawn();
    page(&net.url(0), "/health", 200);
    // A host that is started again alone ends the slice for the other, and then waits for it.
    second.signal(Signal::KILL);
    assert_eq!(first.wait().status.code(), Some(17));
    let second = net.host(Server::mock(), 1).spawn();
    assert_eq!(page(&net.url(1), "/health", 503), "host 1 of 2: assembling\n");
    let first = net.host(Server::mock(), 0).start();
    assert_eq!(first.stop().status.code(), Some(0));
    assert_eq!(second.wait().status.code(), Some(0));
}

#[test]
fn missing_hosts_are_named() {
    let net = Net { number: 15, num_hosts: 3 };
    let second = net.host(Server::mock(), 1).flag("--slice-timeout", 3).spawn();
    let first = net.host(Server::mock(), 0).flag("--slice-timeout", 2).spawn().wait();
    let error = last_error(&first.log);
    let expected = "the slice is not complete after 2 s of 2 s (--slice-timeout); missing: host 2 (127.77.15.3:8495): \
                    Connection refused";
    assert!(error.contains(expected), "{error}");
    assert_eq!(first.status.code(), Some(17));
    let second = second.wait();
    let error = last_error(&second.log);
    assert!(error.contains("host 0 (127.77.15.1:8495) has failed: the slice is not complete"), "{error}");
    assert_eq!(second.status.code(), Some(17));
    let alone = net.host(Server::mock(), 2).flag("--slice-timeout", 1).spawn().wait();
    let error = last_error(&alone.log);
    assert!(
        error.contains("host 0 (127.77.15.1:8495) has not connected within 1 s of 1 s (--slice-timeout)"),
        "{error}"
    );
    assert_eq!(alone.status.code(), Some(17));
}

#[test]
fn hosts_that_do_not_belong_together_are_refused_and_the_others_go_on() {
    let net = Net { number: 16, num_hosts: 2 };
    let folder = tempfile::tempdir().unwrap();
    let secret = |name: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("the secret called {name}")).unwrap();
        path.display().to_string()
    };
    let (right, wrong) = (secret("right"), secret("wrong"));
    let with = |secret: &str| Server::mock().flag("--slice-secret-file", secret);
    let second = net.host(with(&right), 1).spawn();
    assert_eq!(page(&net.url(1), "/health", 503), "host 1 of 2: assembling\n");
    for (builder, expected) in [
        (with(&wrong), "host 1 (127.77.16.2:8495): it has another secret"),
        (with(&right).flag("--dtype", "float16"), "--dtype is \"float16\" on host 0, but not set there"),
        (
            with(&right).env("SLICE_TLS", "true"),
            "host 1 (127.77.16.2:8495): it has no --slice-tls, but this host has --slice-tls; pass --slice-tls on every",
        ),
        (with(&right).flag("--num-shard", 2), "--num-shard is 2 on host 0, but 1 there; start all hosts with the same"),
    ] {
        let finished = net.host(builder, 0).spawn().wait();
        let error = last_error(&finished.log);
        assert!(error.contains(expected), "{error}");
        assert_eq!(finished.status.code(), Some(2), "{error}");
    }
    // Programs that are no hosts, and a host of another version.
    let greet = |bytes: &[u8]| {
        let mut stream = TcpStream::connect((net.address(1), DOOR_PORT)).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(bytes).unwrap();
        let mut greeting = [0; 11];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"HILODOOR\x02\0\0");
        let _ = stream.read_to_end(&mut Vec::new());
    };
    greet(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    greet(&[&b"HILODOOR\x07\0"[..], &[0; 32]].concat());
    let _silent = TcpStream::connect((net.address(1), DOOR_PORT)).unwrap();
    let first = net.host(with(&right), 0).start();
    // A second router finds the slice taken until its time is over, and the slice does not notice.
    let rival = with(&right).flag("--slice-hosts", "127.77.16.9,127.77.16.2").flag("--slice-index", 0);
    let finished = rival.flag("--hostname", "127.77.16.9").flag("--slice-timeout", 1).spawn().wait();
    let error = last_error(&finished.log);
    assert!(error.contains("host 1 (127.77.16.2:8495): it belongs to the slice of the host at 127."), "{error}");
    assert_eq!(finished.status.code(), Some(17));
    assert!(!first.client().generate("Once", 5).is_empty());
    assert_eq!(first.stop().status.code(), Some(0));
    assert_eq!(second.wait().status.code(), Some(0));
}

#[test]
fn a_secret_is_needed_beyond_loopback() {
    let finished = Server::mock().flag("--slice-hosts", "192.0.2.1,192.0.2.2").flag("--slice-index", 0).spawn().wait();
    let error = last_error(&finished.log);
    assert!(error.contains("such as 192.0.2.1: pass --slice-secret-file, the same on every host"), "{error}");
    assert_eq!(finished.status.code(), Some(2));
}

#[test]
fn two_hosts_with_index_0_are_named_at_once() {
    let net = Net { number: 21, num_hosts: 2 };
    let first = net.host(Server::mock(), 0).spawn();
    page(&net.url(0), "/health", 503);
    let copied = net.host(Server::mock(), 0).flag("--hostname", net.address(1)).spawn().wait();
    let error = last_error(&copied.log);
    let expected =
        "host 0 (127.77.21.1:8495): it is host 0 of this slice, and so is this host; start each host with an";
    assert!(error.contains(expected), "{error}");
    assert_eq!(copied.status.code(), Some(2));
    let second = net.host(Server::mock(), 1).spawn();
    page(&net.url(0), "/health", 200);
    assert_eq!(first.stop().status.code(), Some(0));
    assert_eq!(second.wait().status.code(), Some(0));
}

#[test]
fn hosts_at_one_address_and_port_are_named_in_any_order() {
    let host = |index: usize| {
        let server = Server::mock().flag("--slice-hosts", "localhost:8496,127.0.0.1:8496");
        let server = server.flag("--slice-index", index).flag("--hostname", format!("127.77.24.{}", index + 1));
        server.flag("--port", HTTP_PORT).spawn()
    };
    let is_refused = |expected: &str| {
        let finished = host(0).wait();
        let error = last_error(&finished.log);
        assert!(error.contains(expected), "{error}");
        assert_eq!(finished.status.code(), Some(2), "{error}");
    };
    is_refused("host 1 (127.0.0.1:8496): it is this host itself; start each host with an index of its own");
    let _second = host(1);
    page("http://127.77.24.2:3000", "/health", 503);
    // The door opens a moment after the page.
    let deadline = Instant::now() + PAGE_DEADLINE;
    while TcpStream::connect("127.0.0.1:8496").is_err() {
        assert!(Instant::now() < deadline, "host 1 does not open its door");
        pause(Duration::from_millis(20));
    }
    is_refused("host 0 (localhost:8496): the index of the host is 0 on host 0, but 1 there; start each host with an");
}

#[test]
fn a_wrong_number_of_shards_is_named_before_other_hosts_are_awaited() {
    let net = Net { number: 23, num_hosts: 2 };
    for host in [0, 1] {
        let finished = net.host(demo(), host).flag("--num-shard", 5).spawn().wait();
        let error = last_error(&finished.log);
        assert!(error.contains("--num-shard may be"), "{error}");
        assert_eq!(finished.status.code(), Some(2), "{error}");
    }
}

#[test]
fn strangers_keep_no_slice_from_starting() {
    let net = Net { number: 22, num_hosts: 2 };
    let second = net.host(Server::mock(), 1).spawn();
    page(&net.url(1), "/health", 503);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                // Each holds 24 silent connections, and connects again when one is closed.
                let mut held: Vec<TcpStream> = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    held.retain(|stream| {
                        let _ = stream.set_nonblocking(true);
                        !matches!((&mut &*stream).read(&mut [0; 64]), Ok(0))
                    });
                    while held.len() < 24
                        && let Ok(stream) = TcpStream::connect((net.address(1), DOOR_PORT))
                    {
                        held.push(stream);
                    }
                    pause(Duration::from_millis(1));
                }
            });
        }
        let first = net.host(Server::mock(), 0).spawn();
        let shown = std::panic::catch_unwind(|| page(&net.url(0), "/health", 200));
        is_over.store(true, Ordering::Relaxed);
        shown.expect("the slice serves");
        assert!(!Client::new(&net.url(0)).generate("Once", 5).is_empty());
        assert_eq!(first.stop().status.code(), Some(0));
    });
    let finished = second.wait();
    assert_eq!(finished.status.code(), Some(0));
    assert!(finished.log.len() < 100, "the log has {} lines", finished.log.len());
}
