//! Tests with sockets: subscribers, replays, and peers that misbehave.

use std::collections::{BTreeSet, VecDeque};

use endpoint::Endpoint;
use scheduler::{BlockEvent, BlockHash};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};

use super::*;
use crate::testing::{FakeShard, TestServer, json, request_limits, within};

/// A peer that speaks the protocol.
struct Client<S> {
    stream: S,
    received: Vec<u8>,
}

impl Client<TcpStream> {
    async fn connect(address: &str, socket_type: &str) -> Self {
        let stream = TcpStream::connect(address.strip_prefix("tcp://").unwrap()).await.unwrap();
        Self::shake_hands(stream, socket_type).await
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    async fn shake_hands(mut stream: S, socket_type: &str) -> Self {
        let mut hello = vec![0; 64];
        (hello[0], hello[9], hello[10], hello[11]) = (0xFF, 0x7F, 3, 1);
        hello[12..16].copy_from_slice(b"NULL");
        let ready =
            [b"\x05READY\x0bSocket-Type\0\0\0", &[socket_type.len() as u8][..], socket_type.as_bytes()].concat();
        hello.extend([4, ready.len() as u8]);
        hello.extend(ready);
        stream.write_all(&hello).await.unwrap();
        let mut client = Self { stream, received: Vec::new() };
        client.take(64).await;
        let (flags, body) = client.frame().await;
        assert!(flags == 4 && body.starts_with(b"\x05READY"), "{body:?}");
        client
    }

    async fn send(&mut self, frames: &[&[u8]]) {
        let mut bytes = Vec::new();
        zmtp::write_message(frames, &mut bytes);
        self.stream.write_all(&bytes).await.unwrap();
    }

    /// Subscribes, and waits until the server knows. It reads in order, and answers a heartbeat.
    async fn subscribe(&mut self, topic: &[u8]) {
        self.send(&[&[&[1], topic].concat()]).await;
        self.stream.write_all(b"\x04\x08\x04PING\0\0x").await.unwrap();
        assert_eq!(self.frame().await, (4, b"\x04PONGx".to_vec()));
    }

    async fn take(&mut self, num_bytes: usize) -> Vec<u8> {
        let mut buffer = [0; 1 << 12];
        let filled = async {
            while self.received.len() < num_bytes {
                let num_read = self.stream.read(&mut buffer).await.unwrap();
                assert_ne!(num_read, 0, "the server closed the connection");
                self.received.extend(&buffer[..num_read]);
            }
        };
        within("bytes of the server", filled).await;
        self.received.drain(..num_bytes).collect()
    }

    async fn frame(&mut self) -> (u8, Vec<u8>) {
        let flags = self.take(1).await[0];
        let size = if flags & 2 == 0 {
            self.take(1).await[0].into()
        } else {
            u64::from_be_bytes(self.take(8).await.try_into().unwrap()) as usize
        };
        (flags, self.take(size).await)
    }

    async fn message(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            let (flags, body) = self.frame().await;
            frames.push(body);
            if flags & 1 == 0 {
                return frames;
            }
        }
    }

    /// Returns the number of the next message, after its topic was checked.
    async fn number(&mut self, topic: &[u8]) -> i64 {
        let frames = self.message().await;
        let [at, number, payload] = &frames[frames.len() - 3..] else { panic!("{frames:?}") };
        let number = i64::from_be_bytes(number.as_slice().try_into().unwrap());
        let is_end = number == -1;
        assert_eq!((at.as_slice(), payload.is_empty()), (if is_end { b"" } else { topic }, is_end));
        number
    }

    async fn numbers(&mut self, topic: &[u8], num: usize) -> Vec<i64> {
        let mut numbers = Vec::new();
        for _ in 0..num {
            numbers.push(self.number(topic).await);
        }
        numbers
    }
}

fn config(rest: &str) -> KvEventsConfig {
    let local = r#""endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*""#;
    format!(r#"{{"enable_kv_cache_events": true, {local}{rest}}}"#).parse().unwrap()
}

fn open(config: &KvEventsConfig) -> KvEvents {
    start(config, (100, 1), (Counter::noop(), Gauge::noop())).unwrap()
}

/// Returns the event that the first block of a prompt was stored.
fn stored(hash: u64) -> BlockEvent {
    BlockEvent::Stored { parent: None, blocks: vec![BlockHash(hash)], token_ids: vec![7] }
}

fn removed(hash: u64) -> BlockEvent {
    BlockEvent::Removed { blocks: vec![BlockHash(hash)] }
}

fn events(num_tokens: usize) -> Vec<BlockEvent> {
    vec![BlockEvent::Stored { parent: None, blocks: vec![BlockHash(1)], token_ids: vec![70_000; num_tokens] }]
}

/// A consumer: the blocks that it knows.
#[derive(Debug, Default, PartialEq, Eq)]
struct Index(BTreeSet<u64>);

impl Index {
    /// Applies the events of a message, which were made by [`stored`] and [`removed`].
    fn take(&mut self, frames: &[Vec<u8>]) {
        let payload = frames.last().unwrap();
        let mut found: Vec<(usize, &str)> = Vec::new();
        for name in ["AllBlocksCleared", "BlockStored", "BlockRemoved"] {
            let is_at = |at: &usize| payload[*at..].starts_with(name.as_bytes());
            found.extend((0..payload.len()).filter(is_at).map(|at| (at, name)));
        }
        found.sort_unstable();
        for (at, name) in found {
            match name {
                "AllBlocksCleared" => self.0.clear(),
                "BlockStored" => hashes(&payload[at..]).for_each(|hash| _ = self.0.insert(hash)),
                _ => hashes(&payload[at..]).for_each(|hash| _ = self.0.remove(&hash)),
            }
        }
    }
}

/// Returns the hashes of an event, all of which are below 128.
fn hashes(event: &[u8]) -> impl Iterator<Item = u64> {
    const NAME: &[u8] = b"block_hashes";
    let at = (0..event.len()).find(|at| event[*at..].starts_with(NAME)).unwrap() + NAME.len();
    let num = event[at] & 0xF;
    event[at + 1..=at + usize::from(num)].iter().map(|hash| u64::from(*hash))
}

#[tokio::test]
async fn subscribers_get_what_is_published_after_they_subscribed() {
    let KvEvents { mut sink, source } = open(&config(r#", "topic": "kv@a""#));
    let mut first = Client::connect(&source.endpoint, "SUB").await;
    first.subscribe(b"kv@").await;
    sink.publish(&events(1));
    assert_eq!(first.number(b"kv@a").await, 0);
    let mut second = Client::connect(&source.endpoint, "XSUB").await;
    second.send(&[b"\x01"]).await;
    assert_eq!(second.number(b"kv@a").await, 0, "all blocks come first");
    let mut other = Client::connect(&source.endpoint, "SUB").await;
    other.subscribe(b"kv@b").await;
    (0..3).for_each(|_| sink.publish(&events(1)));
    assert_eq!(first.numbers(b"kv@a", 3).await, [1, 2, 3]);
    assert_eq!(second.numbers(b"kv@a", 3).await, [1, 2, 3]);
    first.send(&[b"\0kv@"]).await;
    for client in [&mut first, &mut other] {
        client.subscribe(b"kv@other").await;
    }
    sink.publish(&events(1));
    assert_eq!(second.number(b"kv@a").await, 4);
    for client in [&mut first, &mut other] {
        // Only the heartbeat is answered.
        client.subscribe(b"kv@other").await;
    }
}

#[tokio::test]
async fn missed_events_are_sent_again() {
    let KvEvents { mut sink, source } = open(&config(r#", "buffer_steps": 3"#));
    let mut subscriber = Client::connect(&source.endpoint, "SUB").await;
    subscriber.subscribe(b"").await;
    (0..5).for_each(|_| sink.publish(&events(1)));
    assert_eq!(subscriber.numbers(b"", 5).await, [0, 1, 2, 3, 4]);
    let address = source.replay_endpoint.unwrap();
    let mut dealer = Client::connect(&address, "DEALER").await;
    dealer.send(&[b"", &3_u64.to_be_bytes()]).await;
    dealer.send(&[b"no delimiter"]).await;
    dealer.send(&[b"", b"more than 8 bytes"]).await;
    dealer.send(&[b"", &[0]]).await;
    dealer.send(&[b"", &u64::MAX.to_be_bytes()]).await;
    assert_eq!(dealer.numbers(b"", 3).await, [3, 4, -1]);
    // Number 0 is gone, so all blocks come, with the number of the last message.
    assert_eq!(dealer.numbers(b"", 2).await, [4, -1]);
    let frames = dealer.message().await;
    assert_eq!(frames, [b"".to_vec(), b"".to_vec(), (-1_i64).to_be_bytes().to_vec(), b"".to_vec()]);
    let mut request = Client::connect(&address, "REQ").await;
    request.send(&[b"", &4_u64.to_be_bytes()]).await;
    assert_eq!(request.message().await[..3], [b"".to_vec(), b"".to_vec(), 4_u64.to_be_bytes().to_vec()]);
}

#[tokio::test]
async fn a_subscriber_that_does_not_read_holds_nobody_up() {
    let KvEvents { mut sink, source } = open(&config(r#", "hwm": 50"#));
    let mut slow = Client::connect(&source.endpoint, "SUB").await;
    slow.subscribe(b"").await;
    let mut fast = Client::connect(&source.endpoint, "SUB").await;
    fast.subscribe(b"").await;
    // 200 messages of about 1.2 MB are more than the sockets and the log hold.
    let num_messages = 200;
    for number in 0..num_messages {
        sink.publish(&events(250_000));
        assert_eq!(fast.number(b"").await, number);
    }
    let mut numbers = vec![slow.number(b"").await];
    while numbers.last() != Some(&(num_messages - 1)) {
        numbers.push(slow.number(b"").await);
    }
    assert_eq!(numbers[0], 0);
    assert!(numbers.is_sorted() && numbers.len() < 150, "{numbers:?}");
}

/// Reads messages until the one with this number, and applies them.
async fn follow(client: &mut Client<TcpStream>, index: &mut Index, last: u64) {
    loop {
        let frames = client.message().await;
        index.take(&frames);
        if frames[1] == last.to_be_bytes() {
            return;
        }
    }
}

#[tokio::test]
async fn a_subscriber_that_joins_late_knows_all_blocks() {
    let KvEvents { mut sink, source } = open(&config(r#", "hwm": 1, "buffer_steps": 1"#));
    (1..=9).for_each(|hash| sink.publish(&[stored(hash)]));
    sink.publish(&[removed(4), removed(5)]);
    let mut late = Client::connect(&source.endpoint, "SUB").await;
    late.send(&[b"\x01"]).await;
    let mut index = Index(BTreeSet::from([77]));
    follow(&mut late, &mut index, 9).await;
    assert_eq!(index.0, BTreeSet::from([1, 2, 3, 6, 7, 8, 9]));
    sink.publish(&[removed(9)]);
    follow(&mut late, &mut index, 10).await;
    assert_eq!(index.0, BTreeSet::from([1, 2, 3, 6, 7, 8]));
}

#[tokio::test]
async fn a_subscriber_that_missed_messages_is_right_again() {
    let metrics = crate::metrics::Metrics::new(&request_limits(), &crate::metrics::Served::example()).unwrap();
    let config = config(r#", "hwm": 3, "buffer_steps": 3"#);
    let KvEvents { mut sink, source } =
        start(&config, (100, 1), (metrics.kv_events_dropped.clone(), metrics.kv_events_subscribers.clone())).unwrap();
    let mut subscriber = Client::connect(&source.endpoint, "SUB").await;
    subscriber.subscribe(b"").await;
    // One thread runs this test, so the subscriber's task gets no turn between these.
    (1..=50).for_each(|hash| sink.publish(&[stored(hash)]));
    (1..=40).for_each(|hash| sink.publish(&[removed(hash)]));
    let mut index = Index(BTreeSet::from([33]));
    follow(&mut subscriber, &mut index, 89).await;
    assert_eq!(index.0, (41..=50).collect());
    assert!(metrics.render().contains("\nhilo_kv_events_dropped_total 90\n"));
}

#[tokio::test]
async fn a_replay_of_messages_that_are_gone_brings_all_blocks() {
    let KvEvents { mut sink, source } = open(&config(r#", "hwm": 2, "buffer_steps": 2"#));
    (1..=9).for_each(|hash| sink.publish(&[stored(hash)]));
    let mut dealer = Client::connect(&source.replay_endpoint.unwrap(), "DEALER").await;
    for first in [0_u64, 6] {
        dealer.send(&[b"", &first.to_be_bytes()]).await;
        let mut index = Index::default();
        index.take(&dealer.message().await);
        assert_eq!(index.0, (1..=9).collect());
        assert_eq!(dealer.number(b"").await, -1);
    }
    dealer.send(&[b"", &7_u64.to_be_bytes()]).await;
    assert_eq!(dealer.numbers(b"", 3).await, [7, 8, -1]);
}

#[tokio::test]
async fn the_first_message_clears_what_a_server_before_had() {
    let KvEvents { mut sink, source } = open(&config(""));
    let mut subscriber = Client::connect(&source.endpoint, "SUB").await;
    subscriber.subscribe(b"").await;
    sink.publish(&[stored(1)]);
    sink.publish(&[stored(2)]);
    let mut index = Index(BTreeSet::from([9]));
    index.take(&subscriber.message().await);
    assert_eq!(index.0, BTreeSet::from([1]));
    index.take(&subscriber.message().await);
    assert_eq!(index.0, BTreeSet::from([1, 2]));
}

#[tokio::test]
async fn the_server_connects_to_a_subscriber_that_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let text = format!(r#"{{"enable_kv_cache_events": true, "endpoint": "tcp://{address}"}}"#);
    let config: KvEventsConfig = text.parse().unwrap();
    probe(&config).unwrap();
    let KvEvents { mut sink, source } = open(&config);
    assert_eq!(source.endpoint, format!("tcp://{address}"));
    for number in 0..2 {
        let (stream, _) = within("a connection of the server", listener.accept()).await.unwrap();
        let mut subscriber = Client::shake_hands(stream, "SUB").await;
        if number == 0 {
            subscriber.subscribe(b"").await;
        } else {
            subscriber.send(&[b"\x01"]).await;
            assert_eq!(subscriber.number(b"").await, number - 1, "all blocks come first");
        }
        sink.publish(&events(1));
        assert_eq!(subscriber.number(b"").await, number);
    }
}

#[tokio::test]
async fn a_path_works_too_and_its_file_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kv");
    let text = format!(r#"{{"enable_kv_cache_events": true, "endpoint": "ipc://{}"}}"#, path.display());
    let config: KvEventsConfig = text.parse().unwrap();
    probe(&config).unwrap();
    assert!(!path.exists());
    let KvEvents { mut sink, source: _ } = open(&config);
    let stream = UnixStream::connect(&path).await.unwrap();
    let mut subscriber = Client::shake_hands(stream, "SUB").await;
    subscriber.subscribe(b"").await;
    sink.publish(&events(1));
    assert_eq!(subscriber.number(b"").await, 0);
    assert!(probe(&config).unwrap_err().to_string().contains("is in use"));
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let Endpoint::Tcp { port, .. } = format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap() else {
        panic!("not TCP")
    };
    let text = format!(
        r#"{{"enable_kv_cache_events": true, "endpoint": "ipc:///x", "replay_endpoint": "tcp://127.0.0.1:{port}"}}"#
    );
    let config: KvEventsConfig = text.replace("ipc:///x", "tcp://127.0.0.1:*").parse().unwrap();
    let error = probe(&config).unwrap_err().to_string();
    let expected =
        format!("`replay_endpoint` of `kv_events_config`: cannot listen on 127.0.0.1:{port}: Address already in use");
    assert!(error.starts_with(&expected), "{error}");
    let off = KvEventsConfig { enable_kv_cache_events: false, ..config };
    assert!(probe(&off).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_says_nothing_or_something_else_is_cut_off() {
    let KvEvents { sink: _sink, source } = open(&config(""));
    let address = source.endpoint.strip_prefix("tcp://").unwrap();
    let mut rest = Vec::new();
    TcpStream::connect(address).await.unwrap().read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest.len(), 64, "the greeting comes first");
    let mut http = TcpStream::connect(address).await.unwrap();
    http.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    let _ = http.read_to_end(&mut rest).await;
    assert!(rest.len() <= 64);
}

/// Returns the events of a message as text, which contains the names of their types.
fn types(payload: &[u8]) -> VecDeque<&'static str> {
    let text = String::from_utf8_lossy(payload).into_owned();
    let mut found: Vec<(usize, &str)> = Vec::new();
    for name in ["BlockStored", "BlockRemoved"] {
        found.extend(text.match_indices(name).map(|(at, _)| (at, name)));
    }
    found.sort_unstable();
    found.into_iter().map(|(_, name)| name).collect()
}

#[tokio::test]
async fn prompts_are_published_unless_they_have_a_salt() {
    let flag = r#"--kv-events-config={"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:*"}"#;
    let server = TestServer::start(FakeShard::default(), &[flag]).await;
    let sources = json(&server.get("/kv_event_sources").await.text);
    let mut subscriber = Client::connect(sources["0"]["endpoint"].as_str().unwrap(), "SUB").await;
    subscriber.subscribe(b"").await;
    let prompt = "a b c d e f g h i j k l m n o p q r";
    let ask = |salt: Option<&str>| json!({"inputs": prompt, "parameters": {"max_new_tokens": 2, "cache_salt": salt}});
    server.post_ok("/generate", &ask(Some("secret"))).await;
    server.post_ok("/generate", &ask(None)).await;
    server.post_ok("/generate", &ask(None)).await;
    let frames = subscriber.message().await;
    assert_eq!(frames[..2], [b"".to_vec(), 0_u64.to_be_bytes().to_vec()]);
    assert_eq!(types(&frames[2]), ["BlockStored"]);
    // Nothing follows: the salted prompt is private, and the second prompt was in the cache.
    subscriber.subscribe(b"").await;
}

#[tokio::test]
async fn peers_that_subscribe_to_nothing_keep_no_gateway_out() {
    let KvEvents { mut sink, source } = open(&config(r#", "topic": "kv@a""#));
    let mut idle = Vec::new();
    for number in 0..70 {
        let mut peer = Client::connect(&source.endpoint, "SUB").await;
        if number % 2 == 0 {
            peer.subscribe(b"another topic").await;
        }
        idle.push(peer);
    }
    let mut gateway = Client::connect(&source.endpoint, "SUB").await;
    gateway.subscribe(b"kv@").await;
    sink.publish(&events(1));
    assert_eq!(gateway.number(b"kv@a").await, 0);
    assert_eq!(within("the end of the oldest", idle[0].stream.read(&mut [0])).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn peers_that_ask_for_nothing_keep_no_replay_out() {
    let KvEvents { mut sink, source } = open(&config(""));
    sink.publish(&events(1));
    let address = source.replay_endpoint.unwrap();
    let mut idle = Vec::new();
    for _ in 0..20 {
        idle.push(Client::connect(&address, "DEALER").await);
    }
    let mut dealer = Client::connect(&address, "DEALER").await;
    dealer.send(&[b"", &0_u64.to_be_bytes()]).await;
    assert_eq!(dealer.numbers(b"", 2).await, [0, -1]);
}
