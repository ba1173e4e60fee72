//! Checks before any process starts. A local model that does not exist, a port that is taken, or a missing directory
//! for the sockets is then an error at once, not after a model has been loaded.

use model_files::ModelFiles;
use router::HttpEndpoint;

use crate::args::LaunchArgs;
use crate::error::LauncherError;
use crate::plan::{self, LaunchPlan, Place};
use crate::socket_place::SocketPlace;

/// Checks a local model's files, the flags and the addresses, and finds a directory for the sockets.
///
/// # Errors
/// The first problem that is found.
pub(crate) fn check(args: &LaunchArgs) -> Result<SocketPlace, LauncherError> {
    if !ModelFiles::is_hub_id(&args.model.model_id) {
        ModelFiles::open(&args.model.model_id)?;
    }
    let errors = router::check_flags(&args.http, &args.chat);
    if !errors.is_empty() {
        return Err(LauncherError::Arguments(errors));
    }
    let endpoint = HttpEndpoint::resolve(&args.http);
    endpoint.map_err(|error| LauncherError::Arguments(vec![error.to_string()]))?.probe()?;
    SocketPlace::new(args.shard_uds_path.as_deref())
}

/// Checks the addresses at which the router will publish events of the KV cache.
///
/// # Errors
/// When the router cannot listen there.
pub(crate) fn check_kv_events(args: &LaunchArgs) -> Result<(), LauncherError> {
    args.batching.kv_events_config.as_ref().map_or(Ok(()), |config| Ok(router::probe_kv_events(config)?))
}

/// Checks the model's files except the weights, and the limits that depend on them, with the same code as the shards
/// and the router.
///
/// # Errors
/// The first problem.
pub(crate) fn check_model(args: &LaunchArgs, place: &Place<'_>, plan: &LaunchPlan) -> Result<(), LauncherError> {
    let num_shards = u32::try_from(plan.endpoints.len()).unwrap_or(u32::MAX);
    let router_args = plan::router_args(args, place, num_shards);
    let shard_args = plan::shard_args(args, place, 0, [num_shards, plan.devices_per_shard])?;
    shard::check(&shard_args, &router::wishes(&router_args))?;
    router::check(&router_args).map_err(Box::new)?;
    Ok(())
}
