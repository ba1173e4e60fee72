//! Tests of who the hosts are, of prefaces, of doors and of the wait for hosts.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use devices::Device;
use serde_json::json;
use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::Signals;
use test_support::{accept, join_scoped};

use super::assembly::{Wait, Waited};
use super::door::difference;
use super::preface::{PrefaceError, Purpose, Verdict, answer, call};
use super::tls::{Channel, Tls};
use super::{Hosts, News, Secret, SliceArgs, relay};
use crate::environment::Environment;
use crate::event::{self, Event};

fn args(hosts: &[&str], index: Option<usize>) -> SliceArgs {
    let slice_hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
    SliceArgs { slice_hosts, slice_index: index, slice_port: 8495, ..SliceArgs::default() }
}

fn read(args: &SliceArgs, device: Device, environment: &[(&'static str, &str)]) -> Result<Hosts, Vec<String>> {
    let environment = environment.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    Hosts::read(args, device, &Environment(environment))
}

/// Returns the hosts as text, and the index of this one.
fn shown(hosts: Result<Hosts, Vec<String>>) -> (String, usize) {
    let hosts = hosts.unwrap();
    let all: Vec<String> = hosts.all.iter().map(ToString::to_string).collect();
    (all.join(" "), hosts.index)
}

#[test]
fn hosts_come_from_flags_then_tpu_variables_then_a_leader_worker_set() {
    let tpu = [("TPU_WORKER_HOSTNAMES", "t0,t1"), ("TPU_WORKER_ID", "1")];
    let pods = [("LWS_LEADER_ADDRESS", "set-0.set.space"), ("LWS_GROUP_SIZE", "3"), ("LWS_WORKER_INDEX", "2")];
    let both: Vec<_> = tpu.into_iter().chain(pods).collect();
    let flags = args(&["10.0.0.1", "b:9000", "[::1]:7", "fe80::1"], Some(1));
    assert_eq!(shown(read(&flags, Device::TPU, &both)), ("10.0.0.1:8495 b:9000 [::1]:7 [fe80::1]:8495".into(), 1));
    assert_eq!(shown(read(&args(&[], None), Device::TPU, &both)), ("t0:8495 t1:8495".into(), 1));
    let expected = "set-0.set.space:8495 set-0-1.set.space:8495 set-0-2.set.space:8495";
    assert_eq!(shown(read(&args(&[], None), Device::CPU, &both)), (expected.into(), 2));
    assert_eq!(shown(read(&args(&[], None), Device::CPU, &tpu)), ("localhost:8495".into(), 0));
    let single = [("LWS_LEADER_ADDRESS", "x"), ("LWS_GROUP_SIZE", "1"), ("LWS_WORKER_INDEX", "0")];
    assert_eq!(shown(read(&args(&[], None), Device::CPU, &single)), ("localhost:8495".into(), 0));
    assert_eq!(shown(read(&args(&[], Some(2)), Device::CPU, &pods[..2])).1, 2, "a flag may give the index alone");
}

#[test]
fn bad_hosts_are_named() {
    let two = &["a", "b"][..];
    for (hosts, index, environment, sentence) in [
        (two, None, vec![], "--slice-hosts names 2 hosts: set --slice-index"),
        (
            two,
            Some(2),
            vec![],
            "--slice-index is 2, but --slice-hosts names 2 host(s): it must be a number from 0 to 1",
        ),
        (&["a", "a"][..], Some(0), vec![], "--slice-hosts is \"a,a\", which is not a list of different host names"),
        (&["a", "b c"][..], Some(0), vec![], "\"a,b c\", which is not a list"),
        (&["a", "b:0"][..], Some(0), vec![], "\"a,b:0\", which is not a list"),
        (&[][..], Some(1), vec![], "--slice-index is 1, but no other host is named"),
        (&[][..], None, vec![("LWS_GROUP_SIZE", "many")], "LWS_GROUP_SIZE is \"many\", which is not a number"),
        (&[][..], None, vec![("LWS_GROUP_SIZE", "2")], "LWS_LEADER_ADDRESS is not"),
        (
            &[][..],
            None,
            vec![("LWS_GROUP_SIZE", "2"), ("LWS_LEADER_ADDRESS", "l"), ("LWS_WORKER_INDEX", "x")],
            "LWS_WORKER_INDEX is \"x\", not a number",
        ),
    ] {
        let errors = read(&args(hosts, index), Device::CPU, &environment).unwrap_err();
        assert!(errors[0].contains(sentence), "{errors:?}");
    }
}

#[test]
fn a_secret_is_needed_beyond_loopback() {
    let hosts = |names: &[&str]| read(&args(names, Some(0)), Device::CPU, &[]).unwrap();
    assert!(Secret::read(None, &hosts(&["127.0.0.2", "::1", "localhost"])).is_ok());
    let error = Secret::read(None, &hosts(&["127.0.0.2", "10.0.0.1"])).unwrap_err();
    insta::assert_snapshot!(
        error,
        @"the slice has hosts that are not loopback addresses, such as 10.0.0.1: pass --slice-secret-file, the same on every host; make the file with: head -c 32 /dev/urandom | base64"
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    let with = |text: &str| {
        std::fs::write(&file, text).unwrap();
        Secret::read(Some(&file), &hosts(&["10.0.0.1", "10.0.0.2"]))
    };
    assert!(with("0123456789abcdef\n").is_ok());
    assert!(with("0123456789abcde\n").unwrap_err().contains("has 15 bytes, but a secret needs at least 16"));
    let error = Secret::read(Some(Path::new("/nowhere")), &hosts(&["10.0.0.1"])).unwrap_err();
    insta::assert_snapshot!(
        error,
        @"--slice-secret-file /nowhere cannot be read: No such file or directory (os error 2)"
    );
}

/// Begins a connection between two hosts with these secrets and encryptions, and returns what both sides find.
fn preface(
    secrets: [&Secret; 2],
    tls: [Option<&Tls>; 2],
    decide: impl FnOnce(&Purpose) -> Verdict + Send,
) -> (Result<(), PrefaceError>, Result<Purpose, PrefaceError>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let purpose = Purpose::Join { session: "s".to_owned(), settings: json!({"--device": "cpu"}) };
    std::thread::scope(|scope| {
        let listens = scope.spawn(move || {
            let stream = accept(&listener, "the host that calls");
            answer(stream, (secrets[1], tls[1]), || (), decide).map(|(_, purpose)| purpose)
        });
        let connects = call(TcpStream::connect(address).unwrap(), (secrets[0], tls[0]), &purpose);
        (connects.map(drop), join_scoped(listens, "the side that listens"))
    })
}

#[test]
fn tls_on_one_side_is_named_on_both() {
    let (secret, tls) = (secret("the secret of both"), Tls::new().unwrap());
    for (tls, there) in [([Some(&tls), None], [false, true]), ([None, Some(&tls)], [true, false])] {
        let (connects, listens) = preface([&secret, &secret], tls, |_| panic!("nobody decides"));
        for (error, there) in [connects.unwrap_err(), listens.unwrap_err()].into_iter().zip(there) {
            assert!(matches!(error, PrefaceError::Encryption { there: found } if found == there), "{error}");
            assert!(!error.may_pass());
        }
    }
    let error = PrefaceError::Encryption { there: true }.to_string();
    insta::assert_snapshot!(error, @"it has --slice-tls, but this host has no --slice-tls; pass --slice-tls on every host or on none");
}

#[test]
fn a_stranger_gets_no_proof() {
    use std::io::{Read, Write};

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let secret = secret("0123456789abcdef");
    std::thread::scope(|scope| {
        let listens = scope.spawn(|| {
            let stream = accept(&listener, "the host that calls");
            answer(stream, (&secret, None), || panic!("nothing was proved"), |_| Verdict::Accepted)
        });
        let mut stranger = TcpStream::connect(address).unwrap();
        stranger.set_read_timeout(Some(test_support::DEADLINE)).unwrap();
        stranger.write_all(&[&b"HILODOOR\x02\0\0"[..], &[0; 32], &[0; 32]].concat()).unwrap();
        let mut answer = Vec::new();
        let _ = stranger.read_to_end(&mut answer);
        // The greeting, a nonce, and that the proof is wrong.
        assert_eq!((answer.len(), answer.last()), (11 + 32 + 1, Some(&0)));
        assert!(matches!(join_scoped(listens, "the side that listens"), Err(PrefaceError::Secret)));
    });
}

fn secret(text: &str) -> Secret {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    std::fs::write(&file, text).unwrap();
    Secret::read(Some(&file), &Hosts::alone()).unwrap()
}

#[test]
fn both_sides_of_a_connection_know_the_secret() {
    let [one, two] = ["the first secret", "another secret.."].map(secret);
    let tls = Tls::new().unwrap();
    for tls in [[None; 2], [Some(&tls); 2]] {
        let (connects, listens) = preface([&one, &one], tls, |_| Verdict::Accepted);
        assert!(connects.is_ok());
        assert_eq!(listens.unwrap().session(), "s");
        let (connects, listens) = preface([&one, &two], tls, |_| panic!("whoever lacks the secret is not asked"));
        assert!(matches!(connects, Err(PrefaceError::Secret)), "{connects:?}");
        assert!(matches!(listens, Err(PrefaceError::Secret)), "{listens:?}");
        let (connects, _) = preface([&one, &one], tls, |_| Verdict::Refused("no".to_owned()));
        assert!(matches!(&connects, Err(error @ PrefaceError::Refused(text)) if text == "no" && !error.may_pass()));
        let (connects, _) = preface([&one, &one], tls, |_| Verdict::Busy("later".to_owned()));
        assert!(matches!(&connects, Err(error @ PrefaceError::Busy(text)) if text == "later" && error.may_pass()));
    }
}

/// A program between two hosts that ends TLS on both sides, and passes all bytes on, cannot pass the proofs on.
#[test]
fn nobody_sits_between_two_hosts() {
    use std::io::{Read, Write};

    let (secret, tls) = (secret("the secret of both"), Tls::new().unwrap());
    let [listener, between] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [address, door] = [&listener, &between].map(|listener| listener.local_addr().unwrap());
    let purpose = Purpose::Shard { session: "s".to_owned(), shard: 0 };
    std::thread::scope(|scope| {
        let listens = scope.spawn(|| {
            let stream = accept(&listener, "the host that calls");
            answer(stream, (&secret, Some(&tls)), || (), |_| Verdict::Accepted)
        });
        scope.spawn(|| {
            let (mut one, mut two) = (accept(&between, "the host that calls"), TcpStream::connect(address).unwrap());
            // The greetings are not encrypted.
            for stream in [&mut one, &mut two] {
                stream.write_all(b"HILODOOR\x02\0\x01").unwrap();
                stream.read_exact(&mut [0; 11]).unwrap();
            }
            let until = Instant::now() + test_support::DEADLINE;
            let one = Channel::accepted(one, Some(&tls), until).unwrap().stream;
            let two = Channel::connected(two, Some(&tls), until).unwrap().stream;
            relay::relay(one, two);
        });
        let connects = call(TcpStream::connect(door).unwrap(), (&secret, Some(&tls)), &purpose);
        assert!(matches!(connects, Err(PrefaceError::Secret)), "{connects:?}");
        drop(connects);
        assert!(matches!(join_scoped(listens, "the side that listens"), Err(PrefaceError::Secret)));
    });
}

#[test]
fn a_program_that_is_no_host_is_named() {
    use std::io::{Read, Write};

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let secret = secret("0123456789abcdef");
    for (greeting, expected) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "it is not a host of a slice"),
        (
            &[&b"HILODOOR"[..], &[9, 0], &[0; 32]].concat(),
            "it speaks version 9 between hosts, but this host speaks version 2",
        ),
    ] {
        let purpose = Purpose::Shard { session: String::new(), shard: 0 };
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut stream = accept(&listener, "the host that calls");
                stream.write_all(greeting).unwrap();
                let _ = stream.read(&mut [0; 256]);
            });
            call(TcpStream::connect(address).unwrap(), (&secret, None), &purpose).unwrap_err().to_string()
        });
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn a_host_may_start_its_shards_while_this_one_waits_for_another() {
    let mut signals = Signals::new([SIGUSR1]).unwrap();
    let (events_tx, events) = event::channel();
    for news in [News::Started, News::Serving, News::Assembled] {
        events_tx.send(Event::Host(2, news)).unwrap();
    }
    let (_arrivals_tx, arrivals) = mpsc::sync_channel::<()>(1);
    let mut wait = Wait::new(&mut signals, &events, Instant::now() + Duration::from_secs(60));
    assert!(matches!(wait.receive(&arrivals), Waited::News(2, News::Assembled)));
    wait.hand_over(&events_tx);
    let kept: Vec<Event> = events.try_iter().collect();
    assert!(matches!(kept[..], [Event::Host(2, News::Started), Event::Host(2, News::Serving)]), "{kept:?}");
}

#[test]
fn hosts_of_two_builds_differ_first_in_their_builds() {
    let own = json!({"the build": "0.1.0, build b0", "--num-shard": 1});
    assert_eq!(difference(&own, &own), None);
    let first = json!({"the build": "0.1.0, build c0, commit c0ffee", "--num-shard": 2, "--new": "x"});
    let sentence = difference(&first, &own).unwrap();
    insta::assert_snapshot!(sentence, @r#"the build is "0.1.0, build c0, commit c0ffee" on host 0, but "0.1.0, build b0" there; run the same executable or image on every host"#);
    // A host of the time before builds had names.
    let first = json!({"the release": "0.1.0", "--num-shard": 1});
    let sentence = difference(&first, &own).unwrap();
    assert!(sentence.starts_with("the build is not set on host 0, but \"0.1.0, build b0\" there"), "{sentence}");
}
