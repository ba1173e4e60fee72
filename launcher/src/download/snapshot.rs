//! One download: from a model's name to a folder with all its files.
//!
//! Small files are downloaded first, then the weights, and the revision's ref is written last, so an interrupted
//! download never looks complete. Several threads download one file each. The first thread that fails stops the others.

use std::io::{ErrorKind, Read};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;

use model_files::HubModel;

use super::blob::{CHUNK_BYTES, Incomplete};
use super::cache::{ModelCache, Snapshot, free_bytes};
use super::error::{HubError, Unreached};
use super::files::{self, Weights};
use super::hub::{Hub, Listing, RemoteFile, is_commit};
use super::progress::Event;
use super::retry::{Retry, Stop};
use super::settings::Settings;

/// The maximum number of files that are downloaded at the same time.
const MAX_CONNECTIONS: usize = 4;

/// A model to download, with the settings, the cache and the channel for events.
#[derive(Debug)]
pub(crate) struct Download<'a> {
    model: HubModel<'a>,
    revision: &'a str,
    settings: &'a Settings,
    cache: ModelCache,
    events: SyncSender<Event>,
    stop: &'a Stop,
}

impl<'a> Download<'a> {
    pub(crate) fn new(
        model: HubModel<'a>,
        revision: &'a str,
        settings: &'a Settings,
        events: SyncSender<Event>,
        stop: &'a Stop,
    ) -> Self {
        let cache = ModelCache::new(&settings.cache, model.name, revision);
        Self { model, revision, settings, cache, events, stop }
    }

    /// Completes the model in the cache and returns its snapshot. A complete snapshot is returned as it is if offline
    /// mode is set, if the revision is a commit, or if the Hub cannot be reached or has a temporary problem.
    ///
    /// # Errors
    /// The first final failure. The bytes that were received stay in the cache, unless their checksum is wrong.
    pub(crate) fn run(&self) -> Result<Snapshot, HubError> {
        let cached = match (self.cache.snapshot(self.model.quantization), self.settings.is_offline) {
            (Ok(snapshot), true) => return Ok(snapshot),
            // A commit is immutable, so the Hub need not be asked, unless no quantization is given: the cached one may
            // then differ from the Hub's choice.
            (Ok(snapshot), false) if is_commit(self.revision) && self.is_decided(&snapshot) => return Ok(snapshot),
            (Err(missing), true) => return Err(self.offline(missing)),
            (cached, false) => cached.ok(),
        };
        let hub = Hub::new(self.model.name, self.revision, self.settings)?;
        let listing = match &cached {
            None => self.retrying(|| hub.listing()),
            Some(_) => hub.listing(),
        };
        match (listing, cached) {
            (Ok(listing), _) => self.complete(&hub, &listing),
            (Err(error), Some(snapshot)) if matches!(error, HubError::Unreachable { .. }) || error.is_passing() => {
                self.tell(Event::Fallback { error: error.to_string() })?;
                Ok(snapshot)
            }
            (Err(error), _) => Err(error),
        }
    }

    fn complete(&self, hub: &Hub<'_>, listing: &Listing) -> Result<Snapshot, HubError> {
        let selection = files::select(&self.model, &listing.names)?;
        let folder = self.cache.folder(&listing.commit);
        self.fetch_all(hub, &listing.commit, &selection.small)?;
        let mut path = folder.clone();
        let weights = match selection.weights {
            Weights::Single(name) => vec![name.to_owned()],
            Weights::Indexed(index) => {
                let path = folder.join(index);
                let index = std::fs::read(&path).map_err(super::cache::failed("read", &path))?;
                files::shards(&index)?
            }
            Weights::Gguf(files) => {
                path = files.first().map_or(path, |first| folder.join(first));
                files
            }
        };
        self.fetch_all(hub, &listing.commit, &weights)?;
        if !is_commit(self.revision) {
            self.cache.set_commit(&listing.commit)?;
        }
        Ok(Snapshot { path, commit: Some(listing.commit.clone()) })
    }

    /// True if the snapshot is what the Hub's list of the same files would give.
    fn is_decided(&self, snapshot: &Snapshot) -> bool {
        self.model.quantization.is_some() || snapshot.path == self.cache.folder(self.revision)
    }

    /// Downloads those of the named files that the snapshot lacks.
    fn fetch_all(&self, hub: &Hub<'_>, commit: &str, names: &[String]) -> Result<(), HubError> {
        let folder = self.cache.folder(commit);
        let absent: Vec<&String> = names.iter().filter(|name| !folder.join(name).is_file()).collect();
        if absent.is_empty() {
            return Ok(());
        }
        let files = self.in_parallel(&absent, |name| self.retrying(|| hub.file(commit, name)))?;
        self.check_space(&files)?;
        self.in_parallel(&files, |file| self.fetch(hub, commit, file)).map(drop)
    }

    fn check_space(&self, files: &[RemoteFile]) -> Result<(), HubError> {
        let folder = self.cache.blobs()?;
        let len = |path: &Path| path.metadata().map_or(0, |file| file.len());
        let absent = files.iter().filter(|file| !self.cache.blob(&file.etag).exists());
        let needed = absent.map(|file| file.size_bytes.saturating_sub(len(&self.cache.incomplete(&file.etag))));
        let (needed_bytes, free_bytes) = (needed.fold(0, u64::saturating_add), free_bytes(&folder)?);
        if needed_bytes > free_bytes {
            return Err(HubError::NoSpace { model: self.model.name.to_owned(), needed_bytes, free_bytes, folder });
        }
        Ok(())
    }

    /// Downloads one file unless its blob exists, and links the snapshot to the blob. Another process may download the
    /// same blob, so a lock is held.
    fn fetch(&self, hub: &Hub<'_>, commit: &str, file: &RemoteFile) -> Result<(), HubError> {
        let name = file.name.as_str();
        let blob = self.cache.blob(&file.etag);
        if !blob.is_file() {
            // The error is ignored: if the receiver is gone, the next event stops the download.
            let _lock = self.cache.lock(&file.etag, || drop(self.tell(Event::Waiting { name: name.to_owned() })))?;
            if !blob.is_file() {
                let mut incomplete = Incomplete::open(self.cache.incomplete(&file.etag), file)?;
                let done_bytes = incomplete.len_bytes();
                self.tell(Event::Started { name: name.to_owned(), size_bytes: file.size_bytes, done_bytes })?;
                let mut retry = Retry::default();
                while !incomplete.is_complete()? {
                    let before = incomplete.len_bytes();
                    if let Err(error) = self.receive(hub, file, &mut incomplete) {
                        self.pause(&mut retry, error, incomplete.len_bytes() > before)?;
                    }
                }
                incomplete.place(&blob)?;
                self.tell(Event::Finished { name: name.to_owned() })?;
            }
        }
        self.cache.link(commit, name, &file.etag)
    }

    /// Downloads the rest of a file, in one try.
    fn receive(&self, hub: &Hub<'_>, file: &RemoteFile, incomplete: &mut Incomplete<'_>) -> Result<(), HubError> {
        let name = &file.name;
        let mut part = hub.open(file, incomplete.len_bytes())?;
        if part.start_bytes != incomplete.len_bytes() {
            incomplete.restart()?;
        }
        self.tell(Event::Received { name: name.clone(), done_bytes: incomplete.len_bytes() })?;
        let cut = |received_bytes, reason| {
            Err(HubError::Cut { name: name.clone(), received_bytes, size_bytes: file.size_bytes, reason })
        };
        let mut chunk = vec![0; CHUNK_BYTES];
        while incomplete.len_bytes() < file.size_bytes {
            self.stop.check()?;
            let wanted = usize::try_from(file.size_bytes - incomplete.len_bytes()).unwrap_or(usize::MAX);
            match part.bytes.read(&mut chunk[..wanted.min(CHUNK_BYTES)]) {
                Ok(0) => return cut(incomplete.len_bytes(), "the connection was closed".to_owned()),
                Ok(length) => incomplete.append(&chunk[..length])?,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return cut(incomplete.len_bytes(), error.to_string()),
            }
            self.tell(Event::Received { name: name.clone(), done_bytes: incomplete.len_bytes() })?;
        }
        Ok(())
    }

    /// Calls `work` for all items, for at most [`MAX_CONNECTIONS`] at the same time, and returns the results in any
    /// order.
    fn in_parallel<T: Sync, R: Send>(
        &self,
        items: &[T],
        work: impl Fn(&T) -> Result<R, HubError> + Sync,
    ) -> Result<Vec<R>, HubError> {
        let next = AtomicUsize::new(0);
        let worker = || {
            let mut results = Vec::new();
            while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                results.push(self.stop.check().and_then(|()| work(item)).inspect_err(|_| self.stop.set())?);
            }
            Ok(results)
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = items.iter().take(MAX_CONNECTIONS).map(|_| scope.spawn(worker)).collect();
            let (mut results, mut first_error) = (Vec::new(), None);
            for worker in workers {
                match (worker.join().expect("no worker panics"), &first_error) {
                    (Ok(some), _) => results.extend(some),
                    // `Stopped` is a consequence of another worker's error, so it is replaced by that error.
                    (Err(error), None | Some(HubError::Stopped)) => first_error = Some(error),
                    (Err(_), Some(_)) => {}
                }
            }
            first_error.map_or(Ok(results), Err)
        })
    }

    fn retrying<T>(&self, action: impl Fn() -> Result<T, HubError>) -> Result<T, HubError> {
        let mut retry = Retry::default();
        loop {
            match action() {
                Ok(value) => return Ok(value),
                Err(error) => self.pause(&mut retry, error, false)?,
            }
        }
    }

    /// Waits after a failure until the next try, or returns the error if it is final.
    fn pause(&self, retry: &mut Retry, error: HubError, brought: bool) -> Result<(), HubError> {
        let Some(delay) = retry.delay_after(&error, brought) else { return Err(error) };
        // A refused connection is not reported here: it becomes final within seconds, and the final error is shown.
        if error.unreached() != Some(Unreached::Refused) {
            self.tell(Event::Retrying { error: error.to_string(), delay })?;
        }
        self.stop.wait(delay)
    }

    /// Sends an event.
    ///
    /// # Errors
    /// [`HubError::Stopped`] when the receiver is gone.
    fn tell(&self, event: Event) -> Result<(), HubError> {
        self.events.send(event).map_err(|_| HubError::Stopped)
    }

    fn offline(&self, missing: Vec<String>) -> HubError {
        let quantization = self.model.quantization.map_or_else(String::new, |quantization| format!(":{quantization}"));
        let (model, revision) = (format!("{}{quantization}", self.model.name), self.revision.to_owned());
        HubError::Offline { model, revision, cache: self.settings.cache.clone(), missing }
    }
}
