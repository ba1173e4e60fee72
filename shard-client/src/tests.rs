//! Tests of the protocol with correct shards and with faulty ones: wrong numbers, wrong versions, silence, garbage.
//!
//! Shards are tasks that listen on real sockets. Tests of a deadline pause tokio's clock, so the deadline passes at
//! once.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use endpoint::Endpoint;
use proto::{Opening, Row, Sample, Warmup, command};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::*;
use fake_shard::{FakeShard, within};

/// The build of the router in these tests.
const BUILD: &str = "b0b0";

async fn connect(directory: &TempDir, num_shards: u32) -> Result<ShardGroup, ShardClientError> {
    let path = directory.path().join("shard");
    let shards = (0..num_shards).map(|shard| Endpoint::of_shard(path.to_str().unwrap(), shard).unwrap());
    ShardGroup::connect(&shards.collect::<Vec<_>>(), Some(BUILD.to_owned())).await
}

/// Returns an address at which nobody listens. Outgoing connections of other tests use 127.0.0.1, so they do not take
/// this port.
fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
    format!("tcp://{}", listener.local_addr().unwrap())
}

fn release(slot: u32) -> command::Kind {
    command::Kind::Release(proto::Release { slots: vec![slot] })
}

fn open(slot: u32) -> command::Kind {
    let opening = Some(Box::new(Opening { sampling: Some(proto::SamplingParams::greedy()), ..Opening::default() }));
    let (token_ids, new_blocks, token) = (vec![8, 9], vec![0], Some(Sample::default()));
    let row = Row { slot, token_ids, new_blocks, opening, token, ..Row::default() };
    command::Kind::Step(proto::Step { rows: vec![row] })
}

/// Sends the commands of a step and waits for the reply.
async fn step(group: &mut ShardGroup, commands: Vec<command::Kind>) -> Result<proto::StepReply, ShardClientError> {
    group.send(commands, 1).await?;
    group.next_step().await
}

async fn check_error(directory: &TempDir, expected: &str) {
    let error = connect(directory, 1).await.unwrap_err().to_string();
    assert_eq!(error.replace(&directory.path().display().to_string(), ""), expected);
}

#[tokio::test]
async fn all_shards_get_the_same_commands_and_shard_0_replies() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shard");
    let shards =
        [FakeShard { num_slots: 8, ..FakeShard::default() }, FakeShard { num_slots: 5, ..FakeShard::default() }];
    let stats = shards.each_ref().map(|shard| Arc::clone(&shard.stats));
    for (number, shard) in shards.into_iter().enumerate() {
        shard.listen(&path, number as u32, 2);
    }
    let mut group = connect(&directory, 2).await.unwrap();
    assert_eq!(group.info().await.unwrap().block_size, 16);
    assert_eq!(group.warmup(Warmup::default(), 16).await.unwrap().sizes.unwrap().num_slots, 5, "the least of both");
    let reply = step(&mut group, vec![open(3)]).await.unwrap();
    assert_eq!((reply.rows.len(), reply.rows[0].slot), (1, 3));
    let reply = step(&mut group, vec![release(3), open(3)]).await.unwrap();
    assert_eq!(reply.rows.len(), 1);
    group.send(vec![release(3)], 0).await.unwrap();
    group.leave().await.unwrap();
    for stats in stats {
        assert_eq!((stats.num_opened.load(Ordering::Relaxed), stats.num_released.load(Ordering::Relaxed)), (2, 2));
        assert_eq!(stats.num_leaves.load(Ordering::Relaxed), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_is_not_there_is_named() {
    check_error(&tempfile::tempdir().unwrap(), "no connection to shard 0 at /shard-0 within 60 s").await;
    let address = free_address();
    let error = ShardGroup::connect(&[address.parse().unwrap()], None).await.unwrap_err().to_string();
    assert_eq!(error, format!("no connection to shard 0 at {address} within 60 s"));
}

#[tokio::test]
async fn a_shard_that_listens_on_tcp_gives_the_same_tokens() {
    let directory = tempfile::tempdir().unwrap();
    let address = free_address();
    let prefixes = [directory.path().join("shard"), address.into()];
    let mut tokens = Vec::new();
    for prefix in &prefixes {
        let shard = FakeShard::default().listen(prefix, 0, 1);
        let endpoint = Endpoint::of_shard(prefix.to_str().unwrap(), 0).unwrap();
        let mut group = ShardGroup::connect(&[endpoint], None).await.unwrap();
        tokens.push(step(&mut group, vec![open(0)]).await.unwrap().rows);
        shard.abort();
        let error = within("the failure", group.failure()).await;
        assert_eq!(error.to_string(), "shard 0 closed the connection");
    }
    assert_eq!(tokens[0], tokens[1]);
}

#[tokio::test(start_paused = true)]
async fn a_shard_of_another_version_or_rank_is_refused() {
    let listen = |shard: FakeShard, number, num_shards| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shard");
        shard.listen(&path, number, num_shards);
        directory
    };
    let directory = listen(FakeShard { protocol_version: 99, ..FakeShard::default() }, 0, 1);
    check_error(
        &directory,
        &format!(
            "shard 0 speaks version 99 of the protocol, but this router speaks version {}; use one release for the router and all shards",
            proto::PROTOCOL_VERSION
        ),
    )
    .await;
    let directory = listen(FakeShard::default(), 0, 2);
    check_error(&directory, "the shard at socket 0 is shard 0 of 2, but shard 0 of 1 was expected").await;
}

#[tokio::test]
async fn the_router_names_its_build_to_shards_and_says_why_one_refuses_it() {
    for (build, refusal) in [(BUILD, None), ("c0c0", Some("shard 0: client Some(\"b0b0\"), shard Some(\"c0c0\")"))] {
        let directory = tempfile::tempdir().unwrap();
        FakeShard { build: Some(build), ..FakeShard::default() }.listen(&directory.path().join("shard"), 0, 1);
        match refusal {
            None => assert!(connect(&directory, 1).await.is_ok()),
            Some(refusal) => check_error(&directory, refusal).await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_hangs_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let shard = FakeShard { steps: Arc::new(Semaphore::new(0)), ..FakeShard::default() };
    shard.listen(&directory.path().join("shard"), 0, 1);
    let mut group = connect(&directory, 1).await.unwrap();
    let error = step(&mut group, vec![open(0)]).await.unwrap_err().to_string();
    insta::assert_snapshot!(error, @"shard 0 made no progress with a step for 20.0 s");
}

#[tokio::test(start_paused = true)]
async fn a_long_step_goes_on_while_it_makes_progress() {
    let directory = tempfile::tempdir().unwrap();
    let (steps, progress) = (Arc::new(Semaphore::new(0)), Arc::<AtomicU64>::default());
    let shard = FakeShard { steps: Arc::clone(&steps), beats: Some(Arc::clone(&progress)), ..FakeShard::default() };
    shard.listen(&directory.path().join("shard"), 0, 1);
    let mut group = connect(&directory, 1).await.unwrap();
    group.send(vec![open(0)], 1).await.unwrap();
    // Waits are abandoned again and again, as by the batcher, for ten times the deadline of a step.
    for _ in 0..2_000 {
        assert!(timeout(Duration::from_millis(100), group.next_step()).await.is_err());
        progress.fetch_add(1, Ordering::Relaxed);
    }
    steps.add_permits(1);
    assert_eq!(group.next_step().await.unwrap().rows.len(), 1);
    // Without progress the next step ends, although the shard gives signs of life and no wait lasts for a tick.
    group.send(vec![open(1)], 1).await.unwrap();
    let error = loop {
        if let Ok(ended) = timeout(Duration::from_millis(100), group.next_step()).await {
            break ended.unwrap_err().to_string();
        }
    };
    insta::assert_snapshot!(error, @"shard 0 made no progress with a step for 20.0 s");
}

#[tokio::test(start_paused = true)]
async fn a_command_without_room_waits_while_the_shard_makes_progress() {
    let directory = tempfile::tempdir().unwrap();
    let progress = Arc::<AtomicU64>::default();
    let shard =
        FakeShard { steps: Arc::new(Semaphore::new(0)), beats: Some(Arc::clone(&progress)), ..FakeShard::default() };
    shard.listen(&directory.path().join("shard"), 0, 1);
    let mut group = connect(&directory, 1).await.unwrap();
    group.send(vec![open(0)], 1).await.unwrap();
    // More than the buffers of a socket take. The shard reads nothing before its step ends.
    let row = Row { slot: 1, token_ids: vec![8; 4 << 20], ..Row::default() };
    let mut sent = std::pin::pin!(group.send(vec![command::Kind::Step(proto::Step { rows: vec![row] })], 1));
    for _ in 0..100 {
        assert!(timeout(Duration::from_secs(1), sent.as_mut()).await.is_err());
        progress.fetch_add(1, Ordering::Relaxed);
    }
    let error = sent.await.unwrap_err().to_string();
    insta::assert_snapshot!(error, @"shard 0 made no progress with a step for 20.0 s");
}

#[tokio::test(start_paused = true)]
async fn a_shard_without_a_sign_of_life_is_noticed_in_a_step_and_while_it_is_idle() {
    for is_idle in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shard");
        let steps = || Arc::new(Semaphore::new(0));
        FakeShard { steps: steps(), ..FakeShard::default() }.listen(&path, 0, 2);
        FakeShard { steps: steps(), beats: None, ..FakeShard::default() }.listen(&path, 1, 2);
        let mut group = connect(&directory, 2).await.unwrap();
        let mut beating = group.beating();
        let doubt = tokio::spawn(async move { beating.wait_for(|are_beating| !are_beating).await.is_ok() });
        let error = if is_idle { group.failure().await } else { step(&mut group, vec![open(0)]).await.unwrap_err() };
        insta::allow_duplicates! {
            insta::assert_snapshot!(error, @"shard 1 gave no sign of life for 10 s");
        }
        assert!(doubt.await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn time_in_which_the_router_did_not_run_is_no_silence() {
    let directory = tempfile::tempdir().unwrap();
    let shard = FakeShard { beats: None, ..FakeShard::default() };
    shard.listen(&directory.path().join("shard"), 0, 1);
    let mut group = connect(&directory, 1).await.unwrap();
    for _ in 0..20 {
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(futures_util::FutureExt::now_or_never(group.failure()).is_none());
    }
    insta::assert_snapshot!(group.failure().await, @"shard 0 gave no sign of life for 10 s");
}

#[tokio::test]
async fn a_step_is_sent_before_the_last_one_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    let steps = Arc::new(Semaphore::new(0));
    let shard = FakeShard { steps: Arc::clone(&steps), ..FakeShard::default() };
    shard.listen(&directory.path().join("shard"), 0, 1);
    let mut group = connect(&directory, 1).await.unwrap();
    group.send(vec![open(0)], 2).await.unwrap();
    group.send(vec![open(1)], 2).await.unwrap();
    group.send(vec![release(0)], 0).await.unwrap();
    // An abandoned wait loses no reply.
    for slot in [0, 1] {
        assert!(futures_util::FutureExt::now_or_never(group.next_step()).is_none());
        steps.add_permits(1);
        assert_eq!(group.next_step().await.unwrap().rows[0].slot, slot);
    }
    group.leave().await.unwrap();
}

#[tokio::test]
async fn shards_that_do_different_things_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shard");
    FakeShard { fingerprint: 16, ..FakeShard::default() }.listen(&path, 0, 2);
    FakeShard { fingerprint: 17, ..FakeShard::default() }.listen(&path, 1, 2);
    let mut group = connect(&directory, 2).await.unwrap();
    let error = step(&mut group, vec![open(0)]).await.unwrap_err().to_string();
    let expected = "shard 1 ran other programs or inputs than shard 0: its fingerprint is 0000000000000011, but that of shard 0 is \
                    0000000000000010";
    assert_eq!(error, expected);
}

#[tokio::test(start_paused = true)]
async fn two_silent_shards_are_named_and_a_dead_one_is_the_cause() {
    let silent = || FakeShard { steps: Arc::new(Semaphore::new(0)), ..FakeShard::default() };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shard");
    silent().listen(&path, 0, 2);
    silent().listen(&path, 1, 2);
    let mut group = connect(&directory, 2).await.unwrap();
    let error = step(&mut group, vec![open(0)]).await.unwrap_err().to_string();
    insta::assert_snapshot!(error, @"shard 0 and 1 made no progress with a step for 20.0 s");

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shard");
    silent().listen(&path, 0, 2);
    FakeShard { dies_at_step: Some(1), ..FakeShard::default() }.listen(&path, 1, 2);
    let mut group = connect(&directory, 2).await.unwrap();
    let error = step(&mut group, vec![open(0)]).await.unwrap_err().to_string();
    insta::assert_snapshot!(error, @"shard 1 closed the connection");
}

#[tokio::test]
async fn an_error_of_a_shard_is_passed_on() {
    let directory = tempfile::tempdir().unwrap();
    FakeShard::default().listen(&directory.path().join("shard"), 0, 1);
    let mut group = connect(&directory, 1).await.unwrap();
    group.send(vec![release(4)], 0).await.unwrap();
    let error = within("the failure", group.failure()).await.to_string();
    insta::assert_snapshot!(error, @"shard 0: slot 4 is not open");
}

#[tokio::test]
async fn the_end_of_an_idle_shard_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let shard = FakeShard::default().listen(&directory.path().join("shard"), 0, 1);
    let mut group = connect(&directory, 1).await.unwrap();
    shard.abort();
    let error = within("the failure", group.failure()).await;
    insta::assert_snapshot!(error, @"shard 0 closed the connection");
}

#[tokio::test]
async fn bytes_that_are_no_frame_are_an_error() {
    for (bytes, expected) in
        [(&[255; 8][..], "shard 0 sent a message that is not a reply"), (&[2, 0, 0], "shard 0 closed the connection")]
    {
        let directory = tempfile::tempdir().unwrap();
        let listener =
            UnixListener::bind(Path::new(&proto::socket_path(directory.path().join("shard").to_str().unwrap(), 0)))
                .unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut hello = [0; 10];
            tokio::io::AsyncReadExt::read_exact(&mut stream, &mut hello).await.unwrap();
            stream.write_all(bytes).await.unwrap();
        });
        check_error(&directory, expected).await;
    }
}
