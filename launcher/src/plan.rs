//! Arguments to processes: which children run, with which argv, variables and sockets. A pure value: no file, no socket,
//! no process is touched here, so every plan can be tested by looking at it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use shard::Device;

use crate::args::LaunchArgs;
use crate::error::LauncherError;
use crate::event::ChildId;

/// What plugins find in a shard's environment unless the user has set it to something else.
///
/// `TPU_SKIP_MDS_QUERY` is not among them: a machine with a TPU learns from the metadata server which TPU it has.
const PLUGIN_VARIABLES: [PluginVariable; 3] = [
    // Plugins report the course of each compilation on stderr; from 1 on they write only warnings and errors.
    PluginVariable { devices: &[Device::XlaCpu, Device::Tpu, Device::Cuda], name: "TF_CPP_MIN_LOG_LEVEL", value: "1" },
    // The part of libtpu that drives the device has a level of its own; what fails comes back as an error anyway.
    PluginVariable { devices: &[Device::Tpu], name: "TPU_MIN_LOG_LEVEL", value: "3" },
    // libtpu would fill /tmp/tpu_logs, which nobody empties and which a container may not be able to write.
    PluginVariable { devices: &[Device::Tpu], name: "TPU_LOG_DIR", value: "disabled" },
];

/// A variable that the plugins of some devices read.
struct PluginVariable {
    devices: &'static [Device],
    name: &'static str,
    value: &'static str,
}

/// One process to start: this executable with these arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChildPlan {
    pub(crate) id: ChildId,
    pub(crate) argv: Vec<OsString>,
    /// Variables and their values where the launcher's own environment, which the child inherits, has none.
    pub(crate) default_variables: Vec<(&'static str, &'static str)>,
}

/// A shard: the process and the socket it will listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShardPlan {
    pub(crate) child: ChildPlan,
    pub(crate) socket: PathBuf,
}

/// Everything the supervisor does, decided beforehand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LaunchPlan {
    pub(crate) shards: Vec<ShardPlan>,
    pub(crate) router: ChildPlan,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) json_output: bool,
}

impl LaunchPlan {
    /// Plans the processes; the socket of each rank is `<shard_uds_path>-<rank>`.
    ///
    /// # Errors
    /// [`LauncherError::Arguments`] with everything that is wrong.
    pub(crate) fn new(args: &LaunchArgs, shard_uds_path: &str) -> Result<Self, LauncherError> {
        let world_size = args.num_shard.unwrap_or(1);
        let errors = check(args, shard_uds_path);
        if !errors.is_empty() {
            return Err(LauncherError::Arguments(errors));
        }
        let shards = (0..world_size).map(|rank| shard(args, shard_uds_path, rank, world_size)).collect();
        Ok(Self {
            shards,
            router: router(args, shard_uds_path.to_owned(), world_size),
            shutdown_timeout: Duration::from_secs(args.shutdown_timeout),
            json_output: args.log.json_output,
        })
    }
}

fn check(args: &LaunchArgs, shard_uds_path: &str) -> Vec<String> {
    let mut errors = Vec::new();
    match (args.sharded, args.num_shard) {
        (_, Some(0)) => errors.push("`num_shard` cannot be < 1".to_owned()),
        (Some(true), None | Some(1)) => errors.push("`sharded` is true but `num_shard` is not > 1".to_owned()),
        (_, Some(num_shard)) if num_shard > 1 => {
            errors.push(format!("`num_shard` is {num_shard}, this version runs exactly 1 shard"));
        }
        _ => {}
    }
    let path = proto::socket_path(shard_uds_path, args.num_shard.unwrap_or(1).saturating_sub(1));
    if path.len() > proto::MAX_SOCKET_PATH_BYTES {
        let max = proto::MAX_SOCKET_PATH_BYTES;
        errors.push(format!(
            "socket path {path} has {} bytes, a Unix socket allows {max}; use a shorter --shard-uds-path",
            path.len()
        ));
    }
    if let Some(revision) = &args.model.revision {
        let model_id = &args.model.model_id;
        errors.push(format!(
            "`revision` is {revision:?}, but {model_id:?} does not come from the Hub and has no revisions"
        ));
    }
    errors.extend(args.limits.check(&args.batching));
    errors
}

fn shard(args: &LaunchArgs, shard_uds_path: &str, rank: u32, world_size: u32) -> ShardPlan {
    let socket = proto::socket_path(shard_uds_path, rank);
    let shard_args = shard::ShardArgs {
        model: args.model.clone(),
        uds_path: socket.clone().into(),
        rank,
        world_size,
        devices_per_shard: 1,
        collective_path: None,
        json_output: true,
        log_level: args.log.log_level.clone(),
    };
    let mut child = child(ChildId::Shard(rank), "shard", shard_args.to_argv());
    let variables = PLUGIN_VARIABLES.iter().filter(|variable| variable.devices.contains(&args.model.device));
    child.default_variables = variables.map(|variable| (variable.name, variable.value)).collect();
    ShardPlan { child, socket: socket.into() }
}

fn router(args: &LaunchArgs, shard_uds_path: String, world_size: u32) -> ChildPlan {
    let router_args = router::RouterArgs {
        model_id: args.model.model_id.clone(),
        revision: args.model.revision.clone(),
        shard_uds_path,
        world_size,
        shutdown_timeout: args.shutdown_timeout,
        http: args.http.clone(),
        limits: args.limits.clone(),
        batching: args.batching.clone(),
        json_output: true,
        log_level: args.log.log_level.clone(),
    };
    child(ChildId::Router, "router", router_args.to_argv())
}

fn child(id: ChildId, subcommand: &str, mut argv: Vec<OsString>) -> ChildPlan {
    argv.insert(0, subcommand.into());
    ChildPlan { id, argv, default_variables: Vec::new() }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Part};

    fn plan(flags: &[&str]) -> Result<LaunchPlan, LauncherError> {
        let args = Args::parse_from(["text-generation-launcher"].iter().chain(flags));
        LaunchPlan::new(&args.launch, args.launch.shard_uds_path.as_deref().unwrap_or("/run/hilo/shard"))
    }

    fn errors(flags: &[&str]) -> Vec<String> {
        match plan(flags) {
            Err(LauncherError::Arguments(errors)) => errors,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn children_parse_what_the_plan_gives_them() {
        let plan =
            plan(&["--model-id", "/models/x", "--port", "8080", "--max-batch-size", "7", "--max-total-tokens", "99"])
                .unwrap();
        let parse = |child: &ChildPlan| {
            let argv = std::iter::once(OsString::from("text-generation-launcher")).chain(child.argv.iter().cloned());
            Args::try_parse_from(argv).unwrap().part.unwrap()
        };
        let Part::Shard(shard) = parse(&plan.shards[0].child) else { panic!("not a shard") };
        assert_eq!((shard.model.model_id.as_str(), shard.rank, shard.world_size), ("/models/x", 0, 1));
        assert_eq!(shard.uds_path, plan.shards[0].socket);
        assert!(shard.json_output);
        let Part::Router(router) = parse(&plan.router) else { panic!("not a router") };
        assert_eq!((router.http.port, router.batching.max_batch_size), (8080, Some(7)));
        assert_eq!((router.limits.max_total_tokens, router.world_size), (Some(99), 1));
        assert_eq!(proto::socket_path(&router.shard_uds_path, 0), plan.shards[0].socket.display().to_string());
    }

    #[test]
    fn plugins_are_told_to_be_quiet() {
        let variables = |device| plan(&["--device", device]).unwrap().shards[0].child.default_variables.clone();
        let quiet = ("TF_CPP_MIN_LOG_LEVEL", "1");
        assert_eq!(variables("xla-cpu"), [quiet]);
        assert_eq!(variables("cuda"), [quiet]);
        assert_eq!(variables("tpu"), [quiet, ("TPU_MIN_LOG_LEVEL", "3"), ("TPU_LOG_DIR", "disabled")]);
        assert_eq!(variables("cpu"), []);
        assert_eq!(variables("mock"), []);
        assert_eq!(plan(&["--device", "tpu"]).unwrap().router.default_variables, []);
    }

    #[test]
    fn each_rank_has_its_socket() {
        assert_eq!(plan(&["--shard-uds-path", "/tmp/s"]).unwrap().shards[0].socket, PathBuf::from("/tmp/s-0"));
    }

    #[test]
    fn a_long_socket_path_names_its_length() {
        let path = format!("/tmp/{}", "x".repeat(120));
        let errors = errors(&["--shard-uds-path", &path]);
        assert!(errors[0].contains("has 127 bytes, a Unix socket allows 107"), "{errors:?}");
    }

    #[test]
    fn all_bad_arguments_are_reported_at_once() {
        let errors = errors(&[
            "--num-shard",
            "0",
            "--validation-workers",
            "0",
            "--max-input-tokens",
            "9",
            "--max-total-tokens",
            "9",
        ]);
        assert_eq!(errors.len(), 3, "{errors:?}");
        assert!(errors.contains(&"`num_shard` cannot be < 1".to_owned()), "{errors:?}");
    }

    #[test]
    fn a_revision_of_local_files_is_refused() {
        assert!(errors(&["--revision", "main"])[0].contains("`revision` is \"main\", but \"demo\""));
    }

    #[test]
    fn more_than_one_shard_is_refused_by_name() {
        assert!(errors(&["--num-shard", "2"])[0].contains("`num_shard` is 2"));
        assert!(errors(&["--sharded", "true"])[0].contains("`sharded` is true"));
    }
}
