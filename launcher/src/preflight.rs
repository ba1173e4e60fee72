//! What can be found wrong before any process starts: a model that is not there, a port that is taken, no place for
//! the sockets. Fails in milliseconds instead of after a model has been loaded.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use model_files::ModelFiles;
use router::Endpoint;
use tempfile::TempDir;

use crate::args::LaunchArgs;
use crate::error::LauncherError;
use crate::plan::{self, Place};

/// Where the shards' sockets go: what the user named, or a directory of this launch only.
#[derive(Debug)]
pub(crate) struct SocketPlace {
    shard_uds_path: String,
    /// Removed when the launch ends.
    _directory: Option<TempDir>,
}

/// Checks flags and address, and finds a place for the sockets.
///
/// # Errors
/// The first thing that is wrong, with what to do about it.
pub(crate) fn check(args: &LaunchArgs) -> Result<SocketPlace, LauncherError> {
    if !ModelFiles::is_hub_id(&args.model.model_id) {
        ModelFiles::open(&args.model.model_id)?;
    }
    let errors = router::check_flags(&args.http, &args.chat);
    if !errors.is_empty() {
        return Err(LauncherError::Arguments(errors));
    }
    let endpoint = Endpoint::resolve(&args.http);
    endpoint.map_err(|error| LauncherError::Arguments(vec![error.to_string()]))?.probe()?;
    match &args.shard_uds_path {
        Some(path) => Ok(SocketPlace { shard_uds_path: path.clone(), _directory: None }),
        None => SocketPlace::private(&candidates()),
    }
}

/// Checks the model's files and the limits that depend on them, as shards and router will: without weights.
///
/// # Errors
/// The first thing that is wrong.
pub(crate) fn check_model(args: &LaunchArgs, place: &Place<'_>, num_shards: usize) -> Result<(), LauncherError> {
    let world_size = u32::try_from(num_shards).unwrap_or(u32::MAX);
    let router_args = plan::router_args(args, place, world_size);
    shard::check(&plan::shard_args(args, place, 0, world_size), &router::wishes(&router_args))?;
    router::check(&router_args).map_err(Box::new)?;
    Ok(())
}

/// Places where a private directory may be made; a container's root may be read-only, `/dev/shm` seldom is.
fn candidates() -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    runtime.into_iter().chain([std::env::temp_dir(), PathBuf::from("/dev/shm")]).collect()
}

impl SocketPlace {
    /// A directory that only this user may enter. Its name is drawn: in containers all launchers have the same process id, and may
    /// have a directory in common.
    fn private(candidates: &[PathBuf]) -> Result<Self, LauncherError> {
        let mut builder = tempfile::Builder::new();
        builder.prefix("text-generation-").permissions(Permissions::from_mode(0o700));
        if let Some(directory) = candidates.iter().find_map(|candidate| builder.tempdir_in(candidate).ok()) {
            let shard_uds_path = directory.path().join("shard").display().to_string();
            return Ok(Self { shard_uds_path, _directory: Some(directory) });
        }
        let tried = candidates.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        Err(LauncherError::NoRuntimeDirectory { tried })
    }

    /// Path of the sockets without `-<rank>`.
    pub(crate) fn shard_uds_path(&self) -> &str {
        &self.shard_uds_path
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_first_writable_candidate_is_taken_and_removed() {
        let root = tempfile::tempdir().unwrap();
        let candidates = [root.path().join("missing"), root.path().to_path_buf()];
        let place = SocketPlace::private(&candidates).unwrap();
        let other = SocketPlace::private(&candidates).unwrap();
        assert_ne!(place.shard_uds_path(), other.shard_uds_path());
        let directory = Path::new(place.shard_uds_path()).parent().unwrap().to_path_buf();
        assert_eq!(directory.parent(), Some(root.path()));
        assert_eq!(directory.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        drop(place);
        assert!(!directory.exists());
    }

    #[test]
    fn no_candidate_is_an_error_that_names_them() {
        let error = SocketPlace::private(&[PathBuf::from("/no/such/place")]).unwrap_err().to_string();
        assert!(error.contains("/no/such/place") && error.contains("--shard-uds-path"), "{error}");
    }
}
