//! Tests of a shard over a real socket, mostly with the mock: the handshake, the conversation, and the ways in which a
//! shard can end.
//!
//! Sockets are in temporary directories, and TCP ports are free. Every wait has a deadline.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;
use std::time::Duration;

use build_id::BuildId;
use devices::{Asked, DecodeAttention, Device};
use endpoint::{Endpoint, Stream};
use proto::shard_error::Kind;
use proto::{
    Command, Fit, HEADER_BYTES, Hello, Info, Leave, Opening, PROTOCOL_VERSION, Release, Reply, Row, RowReply, Sample,
    SamplingParams, ShardError, Step, StepReply, Warmup, WarmupReply, command, frame, reply,
};
use shard::{KvCacheDtype, ModelArgs, ShardArgs, ShardRunError};
use test_support::{join, until};

const DEADLINE: Duration = Duration::from_secs(30);

struct Shard {
    thread: JoinHandle<Result<(), ShardRunError>>,
    endpoint: Endpoint,
    _directory: Option<tempfile::TempDir>,
}

struct Client {
    stream: Stream,
    sequence_number: u64,
}

fn hello(protocol_version: u32, build: Option<&str>) -> command::Kind {
    command::Kind::Hello(Hello { protocol_version, build: build.map(str::to_owned) })
}

impl Shard {
    fn start(model_id: &str, device: Device) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::Unix(directory.path().join("shard-0"));
        Self { _directory: Some(directory), ..Self::start_at(endpoint, model_id, device) }
    }

    fn start_at(endpoint: Endpoint, model_id: &str, device: Device) -> Self {
        let args = ShardArgs {
            model: ModelArgs {
                model_id: model_id.to_owned(),
                revision: None,
                dtype: None,
                device: Asked::Device(device),
                plugin_path: None,
                program_cache: None,
                quantize: None,
                kv_cache_dtype: KvCacheDtype::Auto,
                threads: None,
                cpu_isa: None,
                attention: DecodeAttention::Loop,
                mock_step_us: None,
            },
            uds_path: endpoint.clone(),
            shard: 0,
            num_shards: 1,
            devices_per_shard: 1,
            shards_on_host: None,
            collective_path: None,
            peer_sockets: None,
            json_output: true,
            log_level: "info".to_owned(),
        };
        let thread = std::thread::spawn(move || shard::run(&args));
        Self { thread, endpoint, _directory: None }
    }

    /// Returns the result of the shard. Its socket file is gone by then.
    fn end(self) -> Result<(), String> {
        let result = join(self.thread, "the end of the shard").map_err(|error| error.to_string());
        if let Endpoint::Unix(path) = &self.endpoint {
            assert!(!path.exists());
        }
        result
    }
}

impl Client {
    fn connect(endpoint: &Endpoint) -> Self {
        let mut stream = None;
        until("a shard that listens", || {
            stream = endpoint.connect().ok();
            stream.is_some()
        });
        let stream = stream.unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        Self { stream, sequence_number: 0 }
    }

    /// Returns a connected client that has received the reply to Hello.
    fn greeted(endpoint: &Endpoint) -> Self {
        let mut client = Self::connect(endpoint);
        let reply = client.call(hello(PROTOCOL_VERSION, Some(BuildId::of_process().as_str()))).unwrap();
        let reply::Kind::Hello(hello) = reply else { panic!("{reply:?}") };
        assert_eq!((hello.shard, hello.num_shards, hello.pid), (0, 1, std::process::id()));
        client
    }

    fn send(&mut self, kind: command::Kind) {
        self.sequence_number += 1;
        let mut buffer = Vec::new();
        frame::encode(&Command { sequence_number: self.sequence_number, kind: Some(kind) }, &mut buffer).unwrap();
        self.stream.write_all(&buffer).unwrap();
    }

    fn receive(&mut self) -> Option<Reply> {
        loop {
            let mut header = [0; HEADER_BYTES];
            self.stream.read_exact(&mut header).ok()?;
            let mut body = vec![0; frame::body_len(header).unwrap()];
            self.stream.read_exact(&mut body).ok()?;
            let reply: Reply = frame::decode(&body).unwrap();
            if !matches!(reply.kind, Some(reply::Kind::Beat(_))) {
                return Some(reply);
            }
        }
    }

    /// Returns the reply to one command, ignoring progress.
    fn call(&mut self, kind: command::Kind) -> Result<reply::Kind, ShardError> {
        self.send(kind);
        loop {
            let reply = self.receive().expect("the shard answers");
            assert_eq!(reply.sequence_number, self.sequence_number);
            match reply.kind.unwrap() {
                reply::Kind::Progress(progress) => assert!(progress.done <= progress.total, "{progress:?}"),
                reply::Kind::Error(error) => return Err(error),
                kind => return Ok(kind),
            }
        }
    }

    fn warmup(&mut self) -> WarmupReply {
        let reply = self.call(command::Kind::Warmup(Warmup::default())).unwrap();
        let reply::Kind::Warmup(reply) = reply else { panic!("{reply:?}") };
        reply
    }

    fn step(&mut self, kind: command::Kind) -> Result<StepReply, ShardError> {
        let reply = self.call(kind)?;
        let reply::Kind::Step(reply) = reply else { panic!("{reply:?}") };
        Ok(reply)
    }

    fn leave(&mut self) {
        assert!(matches!(self.call(command::Kind::Leave(Leave {})), Ok(reply::Kind::Done(_))));
    }
}

fn prompt(slot: u32, token_ids: &[u32]) -> command::Kind {
    let row = Row {
        slot,
        token_ids: token_ids.to_vec(),
        new_blocks: vec![slot],
        opening: Some(Box::new(Opening { sampling: Some(SamplingParams::greedy()), ..Opening::default() })),
        token: Some(Sample::default()),
        ..Row::default()
    };
    command::Kind::Step(Step { rows: vec![row] })
}

fn decode(slot: u32, position: u32) -> command::Kind {
    let row = Row { slot, position, token: Some(Sample::default()), ..Row::default() };
    command::Kind::Step(Step { rows: vec![row] })
}

/// Returns the token of a step's only row.
fn token_id(reply: &StepReply) -> u32 {
    reply.rows[0].token.as_ref().unwrap().token_id
}

#[test]
fn a_whole_conversation() {
    let shard = Shard::start("demo", Device::MOCK);
    // The launcher disconnects in this way after it has checked that the shard is ready.
    drop(Client::greeted(&shard.endpoint));
    let mut client = Client::greeted(&shard.endpoint);
    let Ok(reply::Kind::Info(info)) = client.call(command::Kind::Info(Info {})) else { panic!("no info") };
    assert_eq!((info.architecture.as_str(), info.device.as_str(), info.block_size), ("LlamaForCausalLM", "mock", 16));
    assert!(!info.eos_token_ids.is_empty());
    let Ok(reply::Kind::Fit(fit)) = client.call(command::Kind::Fit(Fit { wishes: None })) else { panic!("no limits") };
    let limits = client.warmup();
    assert!(fit.num_slots > 1 && fit.num_blocks > 1);
    assert_eq!(limits.sizes, Some(fit));
    assert!(limits.slowest_token_ns > 0);
    let first = client.step(prompt(0, &[5, 6, 7])).unwrap();
    let other = client.step(prompt(1, &[5, 6, 8])).unwrap();
    assert_ne!(token_id(&first), token_id(&other));
    let second = client.step(decode(0, 3)).unwrap();
    assert!(matches!(client.call(command::Kind::Release(Release { slots: vec![0, 1] })), Ok(reply::Kind::Done(_))));
    // After the same prompt and the same first token, the second token is the same.
    let again = client.step(prompt(3, &[5, 6, 7, token_id(&first)])).unwrap();
    assert_eq!(token_id(&again), token_id(&second));
    client.leave();
    assert_eq!(shard.end(), Ok(()));
}

#[test]
fn a_bad_command_is_answered_and_the_next_one_works() {
    let shard = Shard::start("demo", Device::MOCK);
    let mut client = Client::greeted(&shard.endpoint);
    let error = client.step(prompt(0, &[1])).unwrap_err();
    let message = "the router sent a command before warm-up, which is a defect of this server";
    assert_eq!((error.kind(), error.message.as_str()), (Kind::Protocol, message));
    client.warmup();
    let message = "the router sent a wrong command, which is a defect of this server: slot 5 is not open";
    assert_eq!(client.step(decode(5, 0)).unwrap_err().message, message);
    let error = client.call(hello(PROTOCOL_VERSION, Some(BuildId::of_process().as_str()))).unwrap_err();
    assert_eq!(error.kind(), Kind::Protocol);
    assert!(client.step(prompt(0, &[1])).is_ok());
    client.leave();
    assert_eq!(shard.end(), Ok(()));
}

#[test]
fn a_command_with_another_number_is_not_carried_out() {
    let shard = Shard::start("demo", Device::MOCK);
    let mut client = Client::greeted(&shard.endpoint);
    client.warmup();
    client.sequence_number += 1;
    let error = client.step(prompt(0, &[1])).unwrap_err();
    assert_eq!(error.kind(), Kind::Protocol);
    insta::assert_snapshot!(error.message, @"the command has number 4, but 3 is expected");
    assert!(client.step(prompt(0, &[1])).is_ok(), "slot 0 is still free, and the numbers go on from here");
    client.leave();
    assert_eq!(shard.end(), Ok(()));
}

#[test]
fn the_first_command_must_be_hello_in_the_same_version() {
    let shard = Shard::start("demo", Device::MOCK);
    let error = Client::connect(&shard.endpoint).call(command::Kind::Info(Info {})).unwrap_err();
    assert_eq!(error.kind(), Kind::Protocol);
    let mut client = Client::connect(&shard.endpoint);
    let error = client.call(hello(99, Some("another"))).unwrap_err();
    assert_eq!(error.kind(), Kind::Version);
    assert_eq!(error.message, format!("protocol version is 99, but this shard speaks {PROTOCOL_VERSION}"));
    assert!(client.receive().is_none());
    let mut noise = Client::connect(&shard.endpoint);
    noise.stream.write_all(&[0xff; 64]).unwrap();
    assert!(noise.receive().is_none());
    Client::greeted(&shard.endpoint).leave();
    assert_eq!(shard.end(), Ok(()));
}

#[test]
fn a_client_of_another_build_is_refused_and_both_builds_are_named() {
    let shard = Shard::start("demo", Device::MOCK);
    let mut client = Client::connect(&shard.endpoint);
    let error = client.call(hello(PROTOCOL_VERSION, Some("c0ffee"))).unwrap_err();
    assert_eq!(error.kind(), Kind::Version);
    let own = BuildId::of_process();
    let both = format!("the client is build c0ffee, but this shard is build {own}; if the executable was replaced");
    assert!(error.message.starts_with(&both), "{}", error.message);
    assert!(client.receive().is_none());
    // Another program names no build. The shard takes it, and refuses nobody who comes after the one that it refused.
    let mut client = Client::connect(&shard.endpoint);
    assert!(client.call(hello(PROTOCOL_VERSION, None)).is_ok());
    client.leave();
    assert_eq!(shard.end(), Ok(()));
}

#[test]
fn a_router_that_goes_after_warmup_ends_the_shard() {
    let shard = Shard::start("demo", Device::MOCK);
    let mut client = Client::greeted(&shard.endpoint);
    client.warmup();
    drop(client);
    assert_eq!(shard.end(), Err("the router is gone: the connection was closed".to_owned()));
}

#[test]
fn noise_after_warmup_ends_the_shard() {
    let shard = Shard::start("demo", Device::MOCK);
    let mut client = Client::greeted(&shard.endpoint);
    client.warmup();
    client.stream.write_all(&u32::MAX.to_le_bytes()).unwrap();
    let message = shard.end().unwrap_err();
    insta::assert_snapshot!(
        message,
        @"the router is gone: a frame of 4294967295 bytes is larger than the 67108864 bytes allowed"
    );
}

#[test]
fn a_model_that_cannot_be_loaded_ends_the_shard() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("config.json"), r#"{"architectures": ["BertModel"], "vocab_size": 5}"#)
        .unwrap();
    std::fs::write(directory.path().join("model.safetensors"), b"").unwrap();
    let shard = Shard::start(directory.path().to_str().unwrap(), Device::CPU);
    let message = shard.end().unwrap_err();
    assert!(message.starts_with("the model cannot be loaded: "), "{message}");
    assert!(message.contains("model.safetensors is not a complete safetensors file"), "{message}");
}

#[test]
fn the_demo_model_generates_on_the_cpu() {
    let shard = Shard::start("demo", Device::CPU);
    let mut client = Client::greeted(&shard.endpoint);
    client.warmup();
    let first = client.step(prompt(2, &[10, 11, 12])).unwrap();
    assert!(first.rows[0].token.as_ref().unwrap().logprob <= 0.0);
    assert_eq!(first.rows[0].slot, 2);
    assert!(client.step(decode(2, 3)).is_ok());
    client.leave();
    assert_eq!(shard.end(), Ok(()));
}

/// Returns an address with a free port. Connections start from other addresses, so none of them takes the port.
fn free_address() -> Endpoint {
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap()
}

/// Returns the tokens after a prompt.
fn generate(shard: Shard) -> Vec<RowReply> {
    let mut client = Client::greeted(&shard.endpoint);
    client.warmup();
    let mut tokens = client.step(prompt(0, &[10, 11, 12])).unwrap().rows;
    for position in 3..9 {
        tokens.extend(client.step(decode(0, position)).unwrap().rows);
    }
    client.leave();
    assert_eq!(shard.end(), Ok(()));
    tokens
}

#[test]
fn tcp_and_a_unix_socket_give_the_same_tokens() {
    let tokens = generate(Shard::start("demo", Device::CPU));
    assert_eq!(tokens.len(), 7);
    assert_eq!(generate(Shard::start_at(free_address(), "demo", Device::CPU)), tokens);
}

#[test]
fn a_shard_listens_on_free_loopback_addresses_only() {
    let everywhere = "tcp://0.0.0.0:9000".parse().unwrap();
    let message = Shard::start_at(everywhere, "demo", Device::MOCK).end().unwrap_err();
    insta::assert_snapshot!(
        message,
        @"cannot listen on tcp://0.0.0.0:9000: 0.0.0.0 is not a loopback address, and connections are not authenticated; use a Unix path or a loopback address, such as tcp://127.0.0.1:9000 or tcp://[::1]:9000"
    );
    let taken = free_address();
    let _listener = taken.bind().unwrap();
    let message = Shard::start_at(taken, "demo", Device::MOCK).end().unwrap_err();
    assert!(message.starts_with("cannot listen on 127.0.0.2:") && message.contains("in use"), "{message}");
}
