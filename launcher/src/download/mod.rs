//! Downloads models from the Hugging Face Hub. Before any process starts, a model id `organisation/name` is turned into
//! a path in the cache that Python's tools also use. `demo` and local directories are not handled here.
//!
//! Entry points: [`resolve`] for a launch, [`run_as_process`] for `download-weights`. `settings` reads the environment,
//! `hub` sends requests, `files` and `gguf` select, `cache` and `blob` store, `checksum` compares, `snapshot` does a
//! whole download on its own thread, and `progress` shows it. After a signal this thread is not joined, because the
//! next download continues from the files that it leaves.

mod blob;
mod cache;
mod checksum;
mod error;
mod files;
mod gguf;
mod hub;
mod progress;
mod retry;
mod settings;
mod snapshot;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use model_files::{HubModel, ModelFiles};
use proto::exit_status;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

pub(crate) use self::cache::Snapshot;
pub(crate) use self::error::HubError;
use self::progress::{Display, Event};
use self::retry::Stop;
pub(crate) use self::settings::INPUTS;
use self::settings::Settings;
use self::snapshot::Download;
use crate::args::{DownloadArgs, HubArgs};
use crate::environment::Environment;
use crate::terminal::Terminal;
use crate::variables::environment;

const DEFAULT_REVISION: &str = "main";
/// The maximum time until a signal or another request to stop is noticed.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum number of queued events. At this limit, the threads that download wait for the display.
const MAX_QUEUED_EVENTS: usize = 64;

/// A model on the Hub, and the flags for its download.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) model_id: &'a str,
    pub(crate) revision: Option<&'a str>,
    pub(crate) hub: &'a HubArgs,
    pub(crate) json_output: bool,
}

/// Downloads the model if needed, and returns its path and commit. With `--weights-cache-override` it returns that
/// folder. Returns `None` if `is_stopped` returned true first; it is called several times a second.
///
/// # Errors
/// When a setting or the revision is invalid, the Hub refuses the request, or the Hub's current files are not in the
/// cache and cannot be downloaded. If only the Hub's list of files cannot be read, for a temporary reason, a complete
/// model in the cache is returned without an error.
pub(crate) fn resolve(
    wanted: &Wanted<'_>,
    environment: &Environment,
    is_stopped: &mut dyn FnMut() -> bool,
) -> Result<Option<Snapshot>, HubError> {
    let model = wanted.model_id.to_owned();
    let revision = wanted.revision.unwrap_or(DEFAULT_REVISION).to_owned();
    if let Some(folder) = &wanted.hub.weights_cache_override {
        return Ok(Some(Snapshot { path: folder.clone(), commit: None }));
    }
    let settings = Settings::new(wanted.hub, environment)?;
    if !is_revision(&revision) {
        return Err(HubError::NoRevision { model, revision, endpoint: settings.endpoint });
    }
    let mut display = Display::new(settings.has_bars && Terminal::new(wanted.json_output).has_bars());
    let (events_tx, events) = sync_channel(MAX_QUEUED_EVENTS);
    let stop = Arc::new(Stop::default());
    let stopped = Arc::clone(&stop);
    let download = move || {
        let outcome = match HubModel::parse(&model) {
            Some(named) => Download::new(named, &revision, &settings, events_tx.clone(), &stopped).run(),
            None => Err(HubError::NoHubId(model)),
        };
        // The error is ignored, because there is no receiver after a signal.
        let _ = events_tx.send(Event::Ended(outcome));
    };
    std::thread::Builder::new().name("download".into()).spawn(download).map_err(HubError::Thread)?;
    let outcome = watch(&events, is_stopped, &mut display);
    stop.set();
    if let Ok(Some(Snapshot { path, .. })) = &outcome {
        tracing::info!(path = %path.display(), "{} is in the cache", wanted.model_id);
    }
    outcome
}

/// Downloads a model and logs its folder. `docs/exit-codes.md` lists the exit statuses.
pub(crate) fn run_as_process(args: &DownloadArgs) -> ExitCode {
    if let Err(error) = telemetry::init(args.log.json_output, &args.log.log_level) {
        let _ = clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{error}\n")).print();
        return ExitCode::from(exit_status::CONFIGURATION);
    }
    match download(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            telemetry::fatal(&error.to_string());
            ExitCode::from(error.exit_status())
        }
    }
}

fn download(args: &DownloadArgs) -> Result<(), HubError> {
    let DownloadArgs { model_id, revision, extension: _, hub, log } = args;
    if Path::new(model_id).is_dir() || model_id == model_files::DEMO_MODEL_ID {
        tracing::info!("{model_id:?} is not from the Hub; there is nothing to download");
        return Ok(());
    }
    if !ModelFiles::is_hub_id(model_id) {
        return Err(HubError::NoHubId(model_id.clone()));
    }
    let mut signals = watch_signals().map_err(HubError::Signals)?;
    let wanted = Wanted { model_id, revision: revision.as_deref(), hub, json_output: log.json_output };
    let mut is_stopped = || signals.pending().next().is_some();
    resolve(&wanted, &environment(), &mut is_stopped)?.map(drop).ok_or(HubError::Stopped)
}

/// Installs handlers of SIGINT, SIGTERM and SIGHUP, and returns the signals that they catch.
pub(crate) fn watch_signals() -> std::io::Result<Signals> {
    Signals::new([SIGINT, SIGTERM, SIGHUP])
}

fn watch(
    events: &Receiver<Event>,
    is_stopped: &mut dyn FnMut() -> bool,
    display: &mut Display,
) -> Result<Option<Snapshot>, HubError> {
    loop {
        if is_stopped() {
            return Ok(None);
        }
        match events.recv_timeout(SIGNAL_INTERVAL) {
            Ok(Event::Ended(outcome)) => return outcome.map(Some),
            Ok(event) => display.show(event),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(HubError::Silent),
        }
    }
}

/// True if the revision can be used in a URL and as the name of a ref.
fn is_revision(revision: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && !part.starts_with('.');
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+/@=".contains(&byte);
    revision.split('/').all(is_part) && revision.bytes().all(is_letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_stay_where_they_belong() {
        for good in ["main", "v1.0", "refs/pr/12", "0123456789abcdef0123456789abcdef01234567", "gptq-4bit-32g"] {
            assert!(is_revision(good), "{good}");
        }
        for bad in ["", "/etc", "../x", "a/../b", "a//b", "a?b", "a b", "a%2e", "a\n"] {
            assert!(!is_revision(bad), "{bad}");
        }
    }
}
