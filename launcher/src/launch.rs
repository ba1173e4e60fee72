//! Runs a launch, from its arguments to its end, and prints the plan of a launch.
//!
//! Entry points: [`run_as_process`] and [`show`]. Both choose a device, look at the machine, make a [`LaunchPlan`]
//! and check it against the machine. A launch then passes the plan to the supervisor.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use devices::plugins::Surroundings;
use devices::tpu::{self as chips, Chip};
use devices::{Asked, Choice, Device, Ranks};
use model_files::ModelFiles;
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::Value;
use signal_hook::iterator::Signals;

use crate::args::{LaunchArgs, PlanArgs};
use crate::download::{self, Snapshot, Wanted};
use crate::error::{self, LauncherError};
use crate::event::{self, Event};
use crate::hosts::{self, Assembly, Caller, News, Secret, Slice, SliceArgs, Tls};
use crate::plan::text::text;
use crate::plan::{LaunchPlan, Machine, Place};
use crate::shared_memory::SharedMemory;
use crate::socket_place::SocketLock;
use crate::supervisor::{self, Connections};
use crate::tpu::diagnosis::{Diagnosis, Inspection};
use crate::tpu::{FIRST_PORT, MAX_DEVICES_PER_HOST, diagnosis, free_ports};
use crate::{identity, preflight, variables};

/// Serves until a signal arrives or something fails. `docs/exit-codes.md` lists the exit statuses.
/// `signals` are those that the process has caught since its start.
pub(crate) fn run_as_process(args: &LaunchArgs, signals: io::Result<Signals>) -> ExitCode {
    if let Err(error) = telemetry::init(args.log.json_output, &args.log.log_level) {
        let _ = clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{error}\n")).print();
        return ExitCode::from(2);
    }
    match run(args, signals) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let status = error.exit_status();
            telemetry::fatal(&error::text(&error));
            ExitCode::from(status)
        }
    }
}

/// Prints the plan of [`run_as_process`] on stdout. An error that prevents a plan goes to stderr, with the exit status
/// of a launch.
pub(crate) fn show(args: &PlanArgs) -> ExitCode {
    match plan_as_text(args) {
        Ok(text) => telemetry::print_result(&text, ExitCode::SUCCESS),
        Err(error) => {
            let status = error.exit_status();
            let _ = writeln!(std::io::stderr().lock(), "error: {}", error::text(&error));
            ExitCode::from(status)
        }
    }
}

fn run(args: &LaunchArgs, signals: io::Result<Signals>) -> Result<(), LauncherError> {
    let mut signals = signals.map_err(LauncherError::Signals)?;
    raise_file_limit();
    args.foreign.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    args.foreign.notes().iter().for_each(|note| tracing::info!("{note}"));
    let sockets = preflight::check(args)?;
    let surroundings = Surroundings::of_process();
    let Choice { device, reason } = choose(args, &surroundings);
    if args.model.device == Asked::Auto {
        tracing::info!(%device, reason, "device chosen automatically");
    }
    if let Some(missing) = devices::missing(device, args.model.plugin_path.as_deref(), &surroundings) {
        return Err(LauncherError::Device { device, reasons: vec![missing] });
    }
    let machine = machine(args, device, &surroundings.root);
    let memory = SharedMemory::for_launch(device, args.num_shard.unwrap_or(1))?;
    let collective_path = memory.as_ref().map(SharedMemory::path);
    let planned = unresolved(args);
    let shard_uds_path = sockets.shard_uds_path();
    let place = Place {
        device,
        shard_uds_path,
        collective_path,
        snapshot: planned.as_ref(),
        device_counts: device_counts(args, device, None),
    };
    let plan = LaunchPlan::new(args, &place, &machine)?;
    let secret = secret(args, &plan)?;
    let Diagnosis { errors, warnings } = diagnose(&plan, &machine, &surroundings.root);
    for warning in warnings.iter().chain(plan.slice.iter().flat_map(|slice| &slice.notes)) {
        tracing::warn!("{warning}");
    }
    if !errors.is_empty() {
        return Err(LauncherError::Device { device, reasons: errors });
    }
    // Until this launch ends.
    let _lock = SocketLock::take(args.shard_uds_path.as_deref(), plan.hosts.index)?;
    warnings_of_secrets(args, plan.hosts.is_first()).iter().for_each(|warning| tracing::warn!("{warning}"));
    if plan.hosts.is_first() {
        preflight::check_kv_events(args)?;
    }
    // Before the other hosts are awaited, so that an error costs no wait.
    if wanted(args).is_none() {
        preflight::check_model(args, &place, &plan)?;
    }
    let (events_tx, events) = event::channel();
    let page = page(args, &plan)?;
    let slice = match secret {
        None => Slice::default(),
        Some(secret) => {
            let assembly = assembly(args, &plan, secret)?;
            match hosts::assemble(&assembly, &mut signals, (&events_tx, &events))? {
                Some(slice) => slice,
                None => return Ok(()),
            }
        }
    };
    let connections = Connections { slice, page, events_tx, events };
    match prepare(args, (&place, plan), &machine, (&mut signals, &connections)) {
        Ok(Some(plan)) => supervisor::run(&plan, signals, connections),
        Ok(None) => {
            connections.slice.end(&News::Left);
            Ok(())
        }
        Err(error) => {
            connections.slice.end(&News::Failed(error.to_string()));
            Err(error)
        }
    }
}

/// Downloads the model if it is one of the Hub, and checks its files; those of other models were checked before.
/// Returns the plan with the files; `None` if a signal, or the end of another host, comes first.
fn prepare(
    args: &LaunchArgs,
    (place, plan): (&Place<'_>, LaunchPlan),
    machine: &Machine,
    (signals, connections): (&mut Signals, &Connections),
) -> Result<Option<LaunchPlan>, LauncherError> {
    let Some(wanted) = wanted(args) else { return Ok(Some(plan)) };
    let (mut kept, mut end) = (Vec::new(), None);
    let mut is_stopped = || {
        for event in connections.events.try_iter() {
            match event {
                Event::Host(host, news) if news.is_end() => end = Some((host, news)),
                event => kept.push(event),
            }
        }
        end.is_some() || signals.pending().next().is_some()
    };
    let resolved = download::resolve(&wanted, &machine.environment, &mut is_stopped)?;
    // The supervisor handles the news of hosts that have downloaded before this one.
    kept.into_iter().for_each(|event| _ = connections.events_tx.send(event));
    if let Some((host, news)) = end {
        return news.loss(&plan.hosts.name(host)).map_or(Ok(None), Err);
    }
    let Some(snapshot) = resolved else { return Ok(None) };
    let place = Place {
        snapshot: Some(&snapshot),
        device_counts: device_counts(args, place.device, Some(&snapshot)),
        ..place.clone()
    };
    let plan = LaunchPlan::new(args, &place, machine)?;
    preflight::check_model(args, &place, &plan)?;
    Ok(Some(plan))
}

/// Raises the limit of open files to the most that this user may have, for this process and its children. Each client
/// of the router takes a file, and so does each pair of shards on two hosts.
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!("the limit of open files stays as it is: {error}");
    }
}

/// Returns a warning for each secret that others can read, and one if clients on other machines need no key.
fn warnings_of_secrets(args: &LaunchArgs, has_router: bool) -> Vec<String> {
    let LaunchArgs { http, slice, .. } = args;
    let files = [
        ("--slice-secret-file", slice.slice_secret_file.as_deref()),
        ("--api-key-file", http.api_key_file.as_deref()),
        ("--tls-keyfile", http.tls_keyfile.as_deref()),
    ];
    let readable = files.into_iter().filter_map(|(flag, path)| hosts::readable_by_all(flag, path?));
    let open = http.open_address().filter(|_| has_router).map(|address| {
        format!(
            "no API key is set and the server listens on {address}: everybody who reaches it may call; set API_KEY or \
             --api-key-file, or listen on --hostname 127.0.0.1"
        )
    });
    readable.chain(open).collect()
}

/// Reads the secret of the slice; `None` if this host is alone.
fn secret(args: &LaunchArgs, plan: &LaunchPlan) -> Result<Option<Secret>, LauncherError> {
    if plan.hosts.num() == 1 {
        return Ok(None);
    }
    let SliceArgs { slice_secret_file: file, slice_tls, .. } = &args.slice;
    let secret = match (file, slice_tls) {
        (None, true) => {
            Err("--slice-tls needs --slice-secret-file, because only the secret authenticates a host".into())
        }
        (file, _) => Secret::read(file.as_deref(), &plan.hosts),
    };
    secret.map(Some).map_err(|error| LauncherError::Arguments(vec![error]))
}

fn assembly<'a>(args: &LaunchArgs, plan: &'a LaunchPlan, secret: Secret) -> Result<Assembly<'a>, LauncherError> {
    let failed = |source| LauncherError::Spawn { name: "encryption between hosts".to_owned(), source };
    let tls = args.slice.slice_tls.then(Tls::new).transpose().map_err(failed)?;
    Ok(Assembly {
        hosts: &plan.hosts,
        caller: Caller { secret, tls },
        settings: with_build(&plan.settings),
        endpoints: plan.endpoints.clone(),
        num_shard: args.num_shard.unwrap_or(1),
        sums: plan.sums,
        timeout: Duration::from_secs(args.slice.slice_timeout),
    })
}

/// Returns the settings with the build of this executable. It comes first, because another build may have other flags.
fn with_build(settings: &Value) -> Value {
    let build = (hosts::BUILD.to_owned(), Value::from(identity::build().to_string()));
    Value::Object(std::iter::once(build).chain(settings.as_object().cloned().unwrap_or_default()).collect())
}

/// Starts the pages of a host that has no router, or none yet. Before the router chooses a port, or makes a socket,
/// there is no place for pages.
fn page(args: &LaunchArgs, plan: &LaunchPlan) -> Result<Option<Arc<router::HostPage>>, LauncherError> {
    if plan.hosts.is_first() && (args.http.port == 0 || args.http.uds.is_some()) {
        return Ok(None);
    }
    let facts = router::HostFacts {
        index: plan.hosts.index,
        num_hosts: plan.hosts.num(),
        first: plan.hosts.all[0].name.clone(),
    };
    let page = router::HostPage::start(&args.http, facts);
    page.map(|page| Some(Arc::new(page))).map_err(|error| LauncherError::Router(Box::new(error)))
}

fn plan_as_text(args: &PlanArgs) -> Result<String, LauncherError> {
    let surroundings = Surroundings { root: args.sysfs_root.clone(), ..Surroundings::of_process() };
    let launch = &args.launch;
    let Choice { device, reason } = choose(launch, &surroundings);
    let machine = machine(launch, device, &surroundings.root);
    if device.ranks == Ranks::Slice && machine.chips.is_empty() {
        // Without chips there is nothing to plan. A missing plugin does not prevent a plan.
        let missing = devices::missing(device, None, &surroundings).unwrap_or_default();
        return Err(LauncherError::Device { device, reasons: vec![missing] });
    }
    let memory = SharedMemory::for_launch(device, launch.num_shard.unwrap_or(1))?;
    let collective_path = memory.as_ref().map(SharedMemory::path);
    let shard_uds_path = launch.shard_uds_path.clone().unwrap_or_else(|| "<private directory>/shard".to_owned());
    let snapshot = unresolved(launch);
    let place = Place {
        device,
        shard_uds_path: &shard_uds_path,
        collective_path,
        snapshot: snapshot.as_ref(),
        device_counts: device_counts(launch, device, None),
    };
    let plan = LaunchPlan::new(launch, &place, &machine)?;
    let Diagnosis { errors, warnings } = diagnose(&plan, &machine, &surroundings.root);
    let errors = errors.iter().map(|error| format!("error: {error}"));
    let warnings = warnings.into_iter().chain(launch.foreign.warnings()).map(|warning| format!("warning: {warning}"));
    let secret = secret(launch, &plan).err().map(|error| format!("error: {}", error::text(&error)));
    let notes = launch.foreign.notes().into_iter().map(|note| format!("note: {note}"));
    let remarks: Vec<String> = errors.chain(secret).chain(warnings).chain(notes).collect();
    Ok(text(&plan, &machine, &format!("{device} ({reason})"), &remarks))
}

fn choose(args: &LaunchArgs, surroundings: &Surroundings) -> Choice {
    devices::choose(args.model.device, args.model.plugin_path.as_deref(), surroundings)
}

/// Returns the numbers of devices that the model can be split over, if the number is not given and a device needs one;
/// `None` if they are not known, as before a download.
fn device_counts(args: &LaunchArgs, device: Device, snapshot: Option<&Snapshot>) -> Option<Vec<u32>> {
    let is_open = device.ranks == Ranks::Slice && args.devices_per_shard.is_none();
    let folder = snapshot.map(|snapshot| snapshot.path.display().to_string());
    let model_id = folder.or_else(|| wanted(args).is_none().then(|| args.model.model_id.clone()))?;
    if is_open { shard::device_counts(&model_id, MAX_DEVICES_PER_HOST) } else { None }
}

/// The model to download, or `None` if the model's id is not one of the Hub.
fn wanted(args: &LaunchArgs) -> Option<Wanted<'_>> {
    ModelFiles::is_hub_id(&args.model.model_id).then(|| Wanted {
        model_id: &args.model.model_id,
        revision: args.model.revision.as_deref(),
        hub: &args.hub,
        json_output: args.log.json_output,
    })
}

/// A placeholder for the model's folder, for a plan that is made before the Hub is asked. `None` if the model's id is
/// not one of the Hub.
fn unresolved(args: &LaunchArgs) -> Option<Snapshot> {
    wanted(args).map(|wanted| Snapshot {
        path: PathBuf::from(format!("<snapshot of {}>", wanted.model_id)),
        commit: wanted.revision.map(str::to_owned),
    })
}

/// The facts about this machine that the plan depends on.
fn machine(args: &LaunchArgs, device: Device, root: &Path) -> Machine {
    let is_slice = device.ranks == Ranks::Slice;
    let num_shard = args.num_shard.unwrap_or(1) as usize;
    Machine {
        chips: if is_slice { chips::find(root).usable } else { Vec::new() },
        environment: variables::environment(),
        ports: if is_slice { free_ports(FIRST_PORT, num_shard, args.http.port) } else { Vec::new() },
    }
}

fn diagnose(plan: &LaunchPlan, machine: &Machine, root: &Path) -> Diagnosis {
    let Some(slice) = &plan.slice else { return Diagnosis::default() };
    let chips: Vec<&Chip> = slice.chips.iter().map(|index| &machine.chips[*index]).collect();
    let name = "ALLOW_MULTIPLE_LIBTPU_LOAD";
    let planned = plan.shards.iter().flat_map(|shard| &shard.child.variables).find(|variable| variable.name == name);
    let allow_multiple = planned.map(|variable| variable.value.as_str()).or_else(|| machine.environment.get(name));
    let takes_lock = !allow_multiple.is_some_and(|value| value == "1" || value.eq_ignore_ascii_case("true"));
    let memlock_bytes = getrlimit(Resource::Memlock).current;
    diagnosis::check(&Inspection { root, chips: &chips, takes_lock, memlock_bytes })
}
