//! Tests of downloads that go wrong: a Hub that refuses, a network that breaks, a process that is killed.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;

use integration_tests::{COMMIT, Hub, HubFault, MODEL_ID};
use test_support::exit_status;

use crate::hub::{User, tiny};

const LARGE: &str = "model-00001-of-00002.safetensors";
/// An allowance for bytes that the Hub sends before it notices that the client is gone.
const SLACK: u64 = 1 << 17;

/// Returns files that only look like a model: two large weight files with their index, and small files.
fn sharded(large_bytes: usize) -> BTreeMap<String, Vec<u8>> {
    let bytes = |seed: u32, len: usize| -> Vec<u8> {
        let mut state = seed;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..len).map(next).collect()
    };
    let index = format!(r#"{{"weight_map": {{"a": "{LARGE}", "b": "model-00002-of-00002.safetensors"}}}}"#);
    let files = [
        ("config.json", bytes(1, 700)),
        ("tokenizer.json", bytes(2, 90_000)),
        ("model.safetensors.index.json", index.into_bytes()),
        (LARGE, bytes(3, large_bytes)),
        ("model-00002-of-00002.safetensors", bytes(4, large_bytes / 2)),
    ];
    files.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect()
}

fn size(files: &BTreeMap<String, Vec<u8>>) -> u64 {
    files.values().map(|bytes| bytes.len() as u64).sum()
}

#[test]
fn a_transient_fault_is_tried_again() {
    let files = sharded(3 << 20);
    type Faults<'a> = &'a [(&'static str, &'static str, usize, HubFault)];
    let cases: [(&str, Faults<'_>); 9] = [
        ("the list", &[("GET", "/api/models/", 2, HubFault::Status(503, Vec::new()))]),
        ("half of the list", &[("GET", "/api/models/", 1, HubFault::Stall(50))]),
        ("a cut list", &[("GET", "/api/models/", 1, HubFault::Cut(50))]),
        ("a slow answer", &[("HEAD", "tokenizer.json", 1, HubFault::Status(408, Vec::new()))]),
        ("too many", &[("HEAD", "config.json", 1, HubFault::Status(429, vec![("Retry-After", "1".into())]))]),
        ("a cut", &[("GET", LARGE, 1, HubFault::Cut(0)), ("GET", "blobs/", 3, HubFault::Cut(1 << 20))]),
        ("silence", &[("GET", "/blobs/", 1, HubFault::Stall(100_000))]),
        ("no ranges", &[("GET", "/blobs/", 2, HubFault::Cut(1 << 20)), ("GET", "/blobs/", 2, HubFault::NoRanges)]),
        ("the other host", &[("GET", "/blobs/", 2, HubFault::Status(500, Vec::new()))]),
    ];
    std::thread::scope(|scope| {
        for (name, faults) in &cases {
            let files = &files;
            scope.spawn(move || {
                let hub = Hub::start(files.clone(), None);
                for (method, part, times, fault) in *faults {
                    hub.fault(method, part, *times, fault.clone());
                }
                let user = User::new(&hub);
                let log = user.download(&[("HF_HUB_DOWNLOAD_TIMEOUT", "2")]);
                user.check(files);
                assert!(log.contains("trying again in"), "{name}: {log}");
            });
        }
    });
}

#[test]
fn a_cut_download_goes_on_where_it_was() {
    let files = sharded(3 << 20);
    let hub = Hub::start(files.clone(), None);
    hub.fault("GET", "/blobs/model-00001", 1, HubFault::Cut(2 << 20));
    let user = User::new(&hub);
    user.download(&[]);
    user.check(&files);
    assert_eq!(hub.num_bytes_sent(), size(&files), "bytes came twice");
    let ranges: Vec<_> =
        hub.requests().into_iter().filter_map(|request| request.headers.get("range").cloned()).collect();
    // The range is requested from the Hub, and then from the host to which it redirects.
    assert_eq!(ranges, [format!("bytes={}-", 2 << 20), format!("bytes={}-", 2 << 20)]);
}

/// Checks that a download exits with `status`, that its error contains all of these words, and that no ref is written.
/// `fault` is a method, a text and a fault, which hits every request with this method whose path contains the text.
fn check_failure(
    fault: (&'static str, &'static str, HubFault),
    environment: &[(&str, &str)],
    status: i32,
    words: &[&str],
) {
    let hub = Hub::start(tiny(), None);
    let (method, part, fault) = fault;
    hub.fault(method, part, usize::MAX, fault);
    let user = User::new(&hub);
    let (error, found) = user.failure(environment);
    for word in words {
        assert!(error.contains(word), "{word} is not in: {error}");
    }
    assert_eq!(found, status, "{error}");
    assert!(!user.cached("refs").exists(), "{error}");
}

fn code(status: u16, code: &str) -> HubFault {
    HubFault::Status(status, vec![("X-Error-Code", code.to_owned())])
}

#[test]
fn a_refusal_says_what_to_do() {
    let no_token = "no token was used: set HF_TOKEN";
    let token = [("HF_TOKEN", "hf_x")];
    let with_token = "the token that was used is from HF_TOKEN";
    check_failure(("GET", "/api/", code(401, "RepoNotFound")), &[], 2, &["has no model \"org/tiny\"", no_token]);
    check_failure(("GET", "/api/", code(404, "RepoNotFound")), &token, 2, &["has no model", "private", with_token]);
    check_failure(("GET", "/api/", code(404, "RevisionNotFound")), &[], 2, &["no revision \"main\"", "/tree/main"]);
    check_failure(("HEAD", "config", code(401, "GatedRepo")), &[], 2, &["is gated", "/org/tiny", no_token]);
    check_failure(("HEAD", "config", code(403, "GatedRepo")), &token, 2, &["accept its licence", with_token]);
    check_failure(("GET", "/api/", code(403, "")), &token, 2, &["refused (status 403)", with_token]);
    let message = "Invalid credentials in Authorization header".to_owned();
    let bad_token = HubFault::Status(401, vec![("X-Error-Message", message)]);
    check_failure(("GET", "/api/", bad_token), &token, 2, &["does not know the token from HF_TOKEN"]);
    let busy = HubFault::Status(429, vec![("Retry-After", "300".to_owned())]);
    check_failure(("GET", "/api/", busy), &[], 1, &["too many requests without a token", "some minutes"]);
    check_failure(
        ("GET", "/api/", code(418, "")),
        &[],
        2,
        &["/api/models/org/tiny/revision/main responds with status 418"],
    );
    check_failure(("HEAD", "tokenizer.json", code(404, "EntryNotFound")), &[], 2, &["has no file tokenizer.json"]);
}

#[test]
fn wrong_bytes_are_not_kept() {
    let large = "/blobs/model";
    check_failure(("GET", large, HubFault::WrongByte), &[], 1, &["checksum of model.safetensors is ", "the Hub says "]);
    check_failure(
        ("GET", "/config.json", HubFault::WrongByte),
        &[],
        1,
        &["checksum of config.json is ", "the Hub says "],
    );
    check_failure(("GET", large, HubFault::Longer(5)), &[], 2, &["bytes from 0 of 269517, expected from 0 of 269512"]);
    let etag = HubFault::Header("X-Linked-Etag", "\"../../x\"".to_owned());
    check_failure(("HEAD", "model.safetensors", etag), &[], 2, &["no usable ETag"]);
    let size = HubFault::Header("X-Linked-Size", "1000000000000000000".to_owned());
    check_failure(("HEAD", "model.safetensors", size), &[], 1, &["needs 1.00 EB more", "HF_HUB_CACHE"]);
}

#[test]
fn models_in_other_forms_are_named() {
    let check = |names: &[&str], words: &[&str]| {
        let hub = Hub::start(names.iter().map(|name| ((*name).to_owned(), b"{}".to_vec())), None);
        let (error, status) = User::new(&hub).failure(&[]);
        assert!(words.iter().all(|word| error.contains(word)) && status == 2, "{error}");
    };
    check(&["config.json", "pytorch_model.bin", "tokenizer.json"], &["pickles (pytorch_model.bin)", "save_pretrained"]);
    check(&["a.Q5_0.gguf", "a.Q8_0.gguf"], &["several GGUF files: a.Q5_0.gguf, a.Q8_0.gguf", "org/tiny:Q8_0"]);
    check(&["config.json", "model.safetensors"], &["no tokenizer.json"]);
    check(
        &["config.json", "tokenizer.json", "model.safetensors.index.json"],
        &["index.json is invalid: it has no weight_map"],
    );
}

#[test]
fn ids_that_are_none_are_refused_before_anything_is_asked() {
    let hub = Hub::start(tiny(), None);
    let user = User::new(&hub);
    for (arguments, words) in [
        (["gpt2", "--revision", "main"], "model id \"gpt2\" is not"),
        (["org/tiny", "--revision", "../../x"], "has no revision \"../../x\""),
    ] {
        let output = user.run(&arguments, &[]);
        let log = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.code() == Some(2) && log.contains(words), "{log}");
    }
    assert_eq!(hub.requests(), []);
}

/// Returns a user who has downloaded the model and in whose cache `model.safetensors` was then replaced by an
/// unfinished file, which `make` writes.
fn with_unfinished(hub: &Hub, make: impl FnOnce(&Path, Vec<u8>)) -> User {
    let user = User::new(hub);
    user.download(&[]);
    let link = user.cached("snapshots").join(COMMIT).join("model.safetensors");
    let blob = std::fs::canonicalize(&link).expect("a link");
    let bytes = std::fs::read(&blob).expect("a blob");
    std::fs::remove_file(link).expect("a link that can go");
    std::fs::remove_file(&blob).expect("a blob that can go");
    make(&blob.with_extension("incomplete"), bytes);
    hub.requests();
    user
}

#[test]
fn leftovers_of_an_earlier_download_are_checked() {
    let files = tiny();
    let hub = Hub::start(files.clone(), None);
    for (bytes_to_keep, is_damaged, num_gets) in [(1000, false, 2), (1000, true, 4), (usize::MAX, false, 0)] {
        let user = with_unfinished(&hub, |path, mut bytes| {
            bytes.truncate(bytes_to_keep);
            bytes[7] ^= u8::from(is_damaged);
            std::fs::write(path, bytes).unwrap();
        });
        user.download(&[]);
        user.check(&files);
        let requests = hub.requests();
        let gets = requests.iter().filter(|request| request.method == "GET" && request.path.contains("model.safe"));
        assert_eq!(gets.count(), num_gets, "{bytes_to_keep} bytes, damaged: {is_damaged}");
    }
    let user = with_unfinished(&hub, |path, mut bytes| {
        bytes.push(0);
        std::fs::write(path, bytes).unwrap();
    });
    user.download(&[]);
    user.check(&files);
}

#[test]
fn a_full_disk_is_named_and_keeps_what_is_there() {
    let hub = Hub::start(tiny(), None);
    // Every write to `/dev/full` fails, as on a full disk.
    let user = with_unfinished(&hub, |path, _| std::os::unix::fs::symlink("/dev/full", path).unwrap());
    let (error, status) = user.failure(&[]);
    assert_eq!(status, 1, "{error}");
    assert!(error.contains("No space left on device") && error.contains("HF_HUB_CACHE to a larger disk"), "{error}");
}

#[test]
fn a_download_that_was_killed_goes_on() {
    let files = sharded(3 << 20);
    let total = size(&files);
    // The process is killed at a random point of the download, or when all bytes were sent but some files may not be in
    // their place.
    let mut random = fastrand::Rng::with_seed(50);
    let mut num_resumed = 0;
    for round in 0..50 {
        let hub = Hub::start(files.clone(), None);
        let user = User::new(&hub);
        let kill_after = random.u64(0..=total + total / 10).min(total);
        hub.limit(kill_after);
        let mut child = user.command(&[MODEL_ID], &[]).stdout(Stdio::null()).spawn().expect("the launcher starts");
        hub.wait_for_limit();
        child.kill().expect("a child that can be killed");
        exit_status(&mut child, "a download that was killed");
        hub.limit(u64::MAX);
        hub.requests();
        let offline = user.run(&[MODEL_ID], &[("HF_HUB_OFFLINE", "1")]);
        if offline.status.code() == Some(0) {
            // The download had finished before the kill.
            user.check(&files);
        }
        user.download(&[]);
        user.check(&files);
        let is_resumed = hub.requests().iter().any(|request| request.headers.contains_key("range"));
        num_resumed += usize::from(is_resumed);
        assert!(hub.num_bytes_sent() <= kill_after + total + SLACK, "round {round}");
    }
    assert!(num_resumed >= 10, "only {num_resumed} of 50 downloads went on from what was there");
}
