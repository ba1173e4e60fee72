//! Tests of models from the Hub, as a user gets them: the requests to the Hub, the files in the cache, and serving the
//! model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use integration_tests::{COMMIT, Hub, HubFault, HubRequest, MODEL_ID, OLD_MODEL_ID, Server, executable};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use test_support::{join_scoped, output};

/// A user of a Hub, with a separate cache.
pub(crate) struct User {
    folder: TempDir,
    endpoint: String,
}

impl User {
    pub(crate) fn new(hub: &Hub) -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary directory"), endpoint: hub.endpoint() }
    }

    /// The user's `HF_HOME`.
    pub(crate) fn home(&self) -> PathBuf {
        self.folder.path().join("hf")
    }

    /// The path of a file or folder of the model in the user's cache.
    pub(crate) fn cached(&self, path: &str) -> PathBuf {
        self.home().join("hub/models--org--tiny").join(path)
    }

    /// Returns the command `download-weights` with these arguments and environment variables. The only other variables
    /// are those for the user's folders and the endpoint.
    pub(crate) fn command(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Command {
        let mut command = Command::new(executable());
        command.arg("download-weights").args(arguments).env_clear();
        command.env("HOME", self.folder.path()).env("HF_HOME", self.home()).env("HF_ENDPOINT", &self.endpoint);
        command.envs(environment.iter().copied());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
        output(&mut self.command(arguments, environment))
    }

    /// Downloads the model and returns the log.
    pub(crate) fn download(&self, environment: &[(&str, &str)]) -> String {
        let output = self.run(&[MODEL_ID], environment);
        let log = String::from_utf8(output.stdout).expect("a log is text");
        assert_eq!(output.status.code(), Some(0), "{log}{}", String::from_utf8_lossy(&output.stderr));
        log
    }

    /// Runs a download that must fail. Returns the last line of its log and its exit status.
    pub(crate) fn failure(&self, environment: &[(&str, &str)]) -> (String, i32) {
        let output = self.run(&[MODEL_ID], environment);
        let log = String::from_utf8(output.stdout).expect("a log is text");
        let status = output.status.code().expect("an exit status");
        assert_ne!(status, 0, "{log}");
        (log.lines().last().unwrap_or_default().to_owned(), status)
    }

    /// Checks that the snapshot contains exactly these files and that no unfinished file is left.
    pub(crate) fn check(&self, files: &BTreeMap<String, Vec<u8>>) {
        let names = |folder: &Path| {
            let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
            let mut names: Vec<_> = entries
                .map(|entry| entry.expect("an entry").file_name().into_string().expect("names are text"))
                .collect();
            names.sort();
            names
        };
        let snapshot = self.cached("snapshots").join(COMMIT);
        assert_eq!(names(&snapshot), files.keys().cloned().collect::<Vec<_>>());
        for (name, bytes) in files {
            let found = std::fs::read(snapshot.join(name)).expect("a file");
            assert!(found == *bytes, "{name} has other bytes ({} of {})", found.len(), bytes.len());
        }
        let unfinished: Vec<_> =
            names(&self.cached("blobs")).into_iter().filter(|name| name.ends_with(".incomplete")).collect();
        assert_eq!(unfinished, Vec::<String>::new());
        assert_eq!(std::fs::read_to_string(self.cached("refs/main")).expect("a ref"), COMMIT);
    }
}

/// Returns the files of a small checkpoint that can be served, by name.
pub(crate) fn tiny() -> BTreeMap<String, Vec<u8>> {
    let folder = checkpoints::folder("tiny-llama-tied");
    let names =
        ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    names.into_iter().map(|name| (name.to_owned(), std::fs::read(folder.join(name)).expect("a fixture"))).collect()
}

/// Adds files that repositories often contain and that the server does not need.
pub(crate) fn with_others(files: &BTreeMap<String, Vec<u8>>) -> BTreeMap<String, Vec<u8>> {
    let others = ["README.md", ".gitattributes", "pytorch_model.bin", "tf_model.h5", "consolidated.safetensors"];
    files.clone().into_iter().chain(others.into_iter().map(|name| (name.to_owned(), b"not needed".to_vec()))).collect()
}

#[test]
fn only_what_is_needed_is_asked_for_and_once() {
    let files = tiny();
    let hub = Hub::start(with_others(&files), None);
    let user = User::new(&hub);
    let log = user.download(&[("HF_HUB_USER_AGENT_ORIGIN", "tests")]);
    user.check(&files);
    assert!(
        log.contains("downloading model.safetensors, 269.51 kB") && log.contains("org/tiny is in the cache"),
        "{log}"
    );
    assert!(log.contains(&user.cached("snapshots").join(COMMIT).display().to_string()), "{log}");
    let requests = hub.requests();
    for name in files.keys() {
        let is_wanted = |request: &&HubRequest| {
            let path = request.path.split('?').next().unwrap_or_default();
            request.method == "GET" && path.rsplit('/').next() == Some(name)
        };
        let gets = requests.iter().filter(is_wanted);
        // Large files are requested from the Hub first, which redirects to the other host.
        let expected = if name == "model.safetensors" { [false, true].as_slice() } else { &[false] };
        assert_eq!(gets.map(|request| request.is_elsewhere).collect::<Vec<_>>(), expected, "{name}");
    }
    for request in requests {
        assert!(!request.path.contains("README") && !request.path.contains("consolidated"), "{request:?}");
        let agent = &request.headers["user-agent"];
        assert!(agent.contains("hilo/") && agent.contains("origin/tests"), "{agent}");
    }
    user.download(&[]);
    let again: Vec<_> = hub.requests().into_iter().map(|request| request.path).collect();
    assert_eq!(again, ["/api/models/org/tiny/revision/main"], "what is there is asked for again");
    user.run(&[MODEL_ID, "--revision", COMMIT], &[]);
    assert_eq!(hub.requests(), [], "a commit never changes");
}

#[test]
fn revisions_are_branches_pull_requests_and_commits() {
    let hub = Hub::start(tiny(), None);
    for (revision, ref_path) in [("refs/pr/1", Some("refs/refs/pr/1")), (COMMIT, None)] {
        let user = User::new(&hub);
        let output = user.run(&[MODEL_ID, "--revision", revision], &[]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(user.cached("snapshots").join(COMMIT).join("config.json").is_file());
        assert_eq!(ref_path.map(|path| user.cached(path).is_file()), ref_path.map(|_| true));
        assert!(!user.cached("refs/main").exists());
    }
}

#[test]
fn the_token_goes_to_the_hub_and_nowhere_else() {
    let files = tiny();
    let hub = Hub::start(files.clone(), Some("hf_secret"));
    let user = User::new(&hub);
    let log = user.download(&[("HF_TOKEN", "hf_secret"), ("LOG_LEVEL", "trace")]);
    user.check(&files);
    assert!(!log.contains("hf_secret"), "the token is in the log");
    for request in hub.requests() {
        assert_eq!(request.headers.contains_key("authorization"), !request.is_elsewhere, "{request:?}");
    }
    // The token can also be in the file that Python's tools write.
    let user = User::new(&hub);
    std::fs::create_dir_all(user.home()).unwrap();
    std::fs::write(user.home().join("token"), "hf_secret\n").unwrap();
    user.download(&[]);
    user.check(&files);
}

#[test]
fn a_model_that_moved_is_found() {
    for token in [None, Some("hf_secret")] {
        let hub = Hub::start(tiny(), token);
        let output = User::new(&hub).run(&[OLD_MODEL_ID], &[("HF_TOKEN", token.unwrap_or_default())]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
}

#[test]
fn a_wrong_flag_ends_the_launch_before_the_download() {
    let hub = Hub::start(tiny(), None);
    let server = Server::model(MODEL_ID).flag("--validation-workers", 0).env("HF_ENDPOINT", hub.endpoint());
    let finished = server.env("HF_HUB_OFFLINE", "0").spawn().wait();
    assert_eq!(finished.status.code(), Some(2), "{:#?}", finished.log);
    assert_eq!(hub.requests(), []);
}

#[test]
fn offline_means_not_a_single_call() {
    let files = tiny();
    let hub = Hub::start(files.clone(), None);
    let user = User::new(&hub);
    let offline = [("HF_HUB_OFFLINE", "1")];
    let (error, status) = user.failure(&offline);
    assert_eq!(status, 2, "{error}");
    for part in ["HF_HUB_OFFLINE is set", "config.json, tokenizer.json, model.safetensors; ", "download-weights"] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
    assert_eq!(hub.requests(), []);
    user.download(&[]);
    hub.requests();
    user.download(&offline);
    assert_eq!(hub.requests(), []);
    std::fs::remove_file(user.cached("snapshots").join(COMMIT).join("model.safetensors")).unwrap();
    let (error, _) = user.failure(&offline);
    assert!(error.contains(": model.safetensors; "), "{error}");
    // The blobs are still in the cache and are not downloaded again.
    user.download(&[]);
    assert!(hub.requests().iter().all(|request| !request.is_elsewhere));
    user.check(&files);
}

#[test]
fn a_hub_that_does_not_answer_leaves_what_is_in_the_cache() {
    let hub = Hub::start(tiny(), None);
    let user = User::new(&hub);
    user.download(&[]);
    // Nothing listens on this port.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endpoint = format!("http://127.0.0.1:{port}");
    let log = user.download(&[("HF_ENDPOINT", &endpoint)]);
    assert!(log.contains("WARN") && log.contains("the model is taken from the cache"), "{log}");
    hub.fault("GET", "/api/", 1, HubFault::Status(503, Vec::new()));
    assert!(user.download(&[]).contains("responds with status 503; the model is taken from the cache"));
    let (error, status) = User::new(&hub).failure(&[("HF_ENDPOINT", &endpoint)]);
    assert_eq!(status, 1, "{error}");
    assert!(error.contains(&format!("{endpoint} cannot be reached")) && error.contains("HF_HUB_OFFLINE=1"), "{error}");
    assert_eq!(error.matches("cannot be reached").count(), 1, "{error}");
}

#[test]
fn concurrent_downloads_share_one() {
    let mut files = tiny();
    files.insert("model.safetensors".into(), vec![7; 3 << 20]);
    let hub = Hub::start(files.clone(), None);
    let user = User::new(&hub);
    std::thread::scope(|scope| {
        let downloads: Vec<_> = (0..4).map(|_| scope.spawn(|| user.download(&[]))).collect();
        for download in downloads {
            join_scoped(download, "a download");
        }
    });
    user.check(&files);
    assert_eq!(hub.num_bytes_sent(), files.values().map(|bytes| bytes.len() as u64).sum::<u64>());
}

#[test]
fn a_model_is_served_and_later_without_the_hub() {
    let hub = Hub::start(with_others(&tiny()), None);
    let user = User::new(&hub);
    let body = json!({"inputs": "abc", "parameters": {"max_new_tokens": 8}});
    let answer = |server: &Server| {
        let info = server.client().get("/info").json();
        assert_eq!((&info["model_id"], &info["model_sha"]), (&Value::from(MODEL_ID), &Value::from(COMMIT)));
        server.client().post("/generate", &body).json()
    };
    let server = || Server::model(MODEL_ID).env("HF_HOME", user.home().display()).env("HF_ENDPOINT", hub.endpoint());
    let first = server().env("HF_HUB_OFFLINE", "0").start();
    let generated = answer(&first);
    assert!(generated["generated_text"].is_string(), "{generated}");
    let finished = first.stop();
    assert_eq!(finished.status.code(), Some(0), "{:#?}", finished.log);
    hub.requests();
    let second = server().env("HF_HUB_OFFLINE", "1").start();
    assert_eq!(answer(&second), generated);
    assert_eq!(hub.requests(), []);
}

#[test]
fn a_signal_ends_a_launch_that_downloads() {
    let hub = Hub::start(tiny(), None);
    hub.limit(1000);
    let user = User::new(&hub);
    let server = Server::model(MODEL_ID).env("HF_HOME", user.home().display()).env("HF_ENDPOINT", hub.endpoint());
    let server = server.env("HF_HUB_OFFLINE", "0").spawn();
    hub.wait_for_limit();
    server.signal(Signal::TERM);
    let finished = server.wait();
    assert_eq!(finished.status.code(), Some(0), "{:#?}", finished.log);
}

#[test]
fn a_folder_in_place_of_the_hub_is_taken_as_it_is() {
    let folder = checkpoints::folder("tiny-llama-tied");
    let server = Server::model(MODEL_ID).flag("--weights-cache-override", folder.display()).start();
    assert_eq!(server.client().get("/info").json()["model_id"], MODEL_ID);
    let finished = server.stop();
    assert_eq!(finished.status.code(), Some(0), "{:#?}", finished.log);
}
