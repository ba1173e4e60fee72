//! Tests of plans as values.

use clap::Parser;
use devices::Asked;

use super::*;
use crate::args::{Args, Part};

fn plan(flags: &[&str]) -> Result<LaunchPlan, LauncherError> {
    let args = Args::parse_from(["text-generation-launcher"].iter().chain(flags));
    let shard_uds_path = args.launch.shard_uds_path.as_deref().unwrap_or("/run/hilo/shard");
    let device = match args.launch.model.device {
        Asked::Auto => Device::CPU,
        Asked::Device(device) => device,
    };
    let place = Place {
        device,
        shard_uds_path,
        collective_path: Some("/proc/self/fd/3".into()),
        snapshot: None,
        device_counts: None,
    };
    let machine = Machine { chips: Vec::new(), environment: Environment::default(), ports: Vec::new() };
    LaunchPlan::new(&args.launch, &place, &machine)
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
    let shard = shard.part;
    assert_eq!((shard.model.model_id.as_str(), shard.shard, shard.num_shards), ("/models/x", 0, 1));
    assert_eq!(shard.uds_path, plan.shards[0].endpoint);
    assert!(shard.json_output);
    let Part::Router(router) = parse(plan.router.as_ref().unwrap()) else { panic!("not a router") };
    let router = router.part;
    assert_eq!((router.http.port, router.batching.max_batch_size), (8080, Some(7)));
    assert_eq!((router.limits.max_total_tokens, router.num_shards), (Some(99), 1));
    assert_eq!(Endpoint::of_shard(&router.shard_uds_path, 0), Ok(plan.shards[0].endpoint.clone()));
}

#[test]
fn each_rank_has_its_address() {
    for (prefix, expected) in
        [("/tmp/s", ["/tmp/s-0", "/tmp/s-1"]), ("tcp://[::1]:9000", ["tcp://[::1]:9000", "tcp://[::1]:9001"])]
    {
        let plan = plan(&["--device", "mock", "--num-shard", "2", "--shard-uds-path", prefix]).unwrap();
        let endpoints: Vec<String> = plan.shards.iter().map(|shard| shard.endpoint.to_string()).collect();
        assert_eq!(endpoints, expected);
    }
}

#[test]
fn an_address_that_a_shard_cannot_have_is_named() {
    for (prefix, sentence) in [
        ("tcp://127.0.0.1", "is not an address; it must be a path"),
        ("tcp://127.0.0.1:65535", "has no port for shard 1"),
    ] {
        let errors = errors(&["--device", "mock", "--num-shard", "2", "--shard-uds-path", prefix]);
        let expected = format!("`shard_uds_path`: {prefix:?} {sentence}");
        assert!(errors.len() == 1 && errors[0].starts_with(&expected), "{errors:?}");
    }
}

#[test]
fn a_long_socket_path_names_its_length() {
    let path = format!("/tmp/{}", "x".repeat(120));
    let errors = errors(&["--shard-uds-path", &path]);
    assert!(errors[0].contains("has 127 bytes, but a Unix socket allows 107"), "{errors:?}");
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
    assert!(errors.contains(&"`num_shard` is 0, but must be at least 1".to_owned()), "{errors:?}");
}

#[test]
fn a_revision_of_local_files_is_refused() {
    assert!(errors(&["--revision", "main"])[0].contains("`revision` is \"main\", but \"demo\""));
}

#[test]
fn every_shard_knows_its_rank_and_what_all_share() {
    let plan = plan(&["--device", "mock", "--num-shard", "3", "--devices-per-shard", "2"]).unwrap();
    for (rank, shard) in (0..).zip(&plan.shards) {
        let args = ["text-generation-launcher".into()].into_iter().chain(shard.child.argv.iter().cloned());
        let Some(Part::Shard(args)) = Args::parse_from(args).part else { panic!("not a shard") };
        let args = args.part;
        assert_eq!((args.shard, args.num_shards, args.devices_per_shard), (rank, 3, 2));
        assert_eq!(args.collective_path, Some("/proc/self/fd/3".into()));
        assert_eq!(args.uds_path.to_string(), format!("/run/hilo/shard-{rank}"));
    }
    assert_eq!(plan.shards.len(), 3);
}

#[test]
fn a_sharded_model_has_more_than_one_shard() {
    assert!(errors(&["--sharded", "true"])[0].contains("`sharded` is true"));
}

#[test]
fn counts_that_a_device_cannot_have_are_refused() {
    let two_devices = errors(&["--device", "cpu", "--devices-per-shard", "2"]);
    assert!(two_devices[0].contains("`devices_per_shard` is 2"), "{two_devices:?}");
    for device in ["xla-cpu", "cuda"] {
        let two_shards = errors(&["--device", device, "--num-shard", "2"]);
        assert!(two_shards[0].contains("use --devices-per-shard"), "{two_shards:?}");
    }
}
