//! Tests of plans for all kinds of TPU hosts, in the form that `plan` prints, and of requests that are refused.

use clap::Parser;
use devices::Device;
use insta::assert_snapshot;

use super::testing;
use crate::args::Args;
use crate::environment::Environment;
use crate::error::LauncherError;
use crate::plan::text::text;
use crate::plan::{LaunchPlan, Machine, Place};

const V3: &str = "0x0027";
const V4: &str = "0x005e";
const V5P: &str = "0x0062";
const V5E: &str = "0x0063";
const V6E: &str = "0x006f";
const TPU7X: &str = "0x0076";

/// A host with TPU chips: its chips, its environment and its free ports.
struct Host {
    machine: Machine,
}

fn host(device: &str, num_chips: u32, environment: &[(&'static str, &str)]) -> Host {
    let environment = environment.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    let chips = testing::Machine::new(device, num_chips).chips();
    Host { machine: Machine { chips, environment: Environment(environment), ports: (8476..8476 + 16).collect() } }
}

impl Host {
    fn plan(&self, num_shard: u32, devices_per_shard: u32) -> Result<LaunchPlan, LauncherError> {
        let [num_shard, devices_per_shard] = [num_shard, devices_per_shard].map(|count| count.to_string());
        let args = Args::parse_from([
            "text-generation-launcher",
            "--device",
            "tpu",
            "--num-shard",
            &num_shard,
            "--devices-per-shard",
            &devices_per_shard,
        ]);
        self.plan_of(&args, None)
    }

    fn plan_of(&self, args: &Args, device_counts: Option<&[u32]>) -> Result<LaunchPlan, LauncherError> {
        let place = Place {
            device: Device::TPU,
            shard_uds_path: "/run/s",
            collective_path: None,
            snapshot: None,
            device_counts: device_counts.map(<[u32]>::to_vec),
        };
        LaunchPlan::new(&args.launch, &place, &self.machine)
    }

    /// Returns the number of devices of one shard, and the chips that it opens, if only `flags` are given.
    fn defaults(&self, flags: &[&str], device_counts: Option<&[u32]>) -> (u32, usize) {
        let flags = ["text-generation-launcher", "--device", "tpu"].iter().chain(flags);
        let plan = self.plan_of(&Args::parse_from(flags), device_counts).unwrap();
        (plan.devices_per_shard, plan.slice.unwrap().chips.len())
    }

    fn text(&self, num_shard: u32, devices_per_shard: u32) -> String {
        text(&self.plan(num_shard, devices_per_shard).unwrap(), &self.machine, "tpu (asked for)", &[])
    }

    fn errors(&self, num_shard: u32, devices_per_shard: u32) -> Vec<String> {
        match self.plan(num_shard, devices_per_shard) {
            Err(LauncherError::Arguments(errors)) => errors,
            other => panic!("{other:?}"),
        }
    }

    /// The values of a variable, one per shard that has it.
    fn values(&self, num_shard: u32, devices_per_shard: u32, name: &str) -> Vec<String> {
        let plan = self.plan(num_shard, devices_per_shard).unwrap();
        let variables = plan.shards.iter().flat_map(|shard| &shard.child.variables);
        variables.filter(|variable| variable.name == name).map(|variable| variable.value.clone()).collect()
    }
}

#[test]
fn one_process_per_chip() {
    assert_snapshot!("v4-8", host(V4, 4, &[]).text(4, 1));
    assert_snapshot!("v5e-4", host(V5E, 4, &[]).text(4, 1));
    assert_snapshot!("v5e-8", host(V5E, 8, &[]).text(8, 1));
    assert_snapshot!("v6e-8", host(V6E, 8, &[]).text(8, 1));
    assert_snapshot!("v5p-8", host(V5P, 4, &[]).text(4, 2));
    assert_snapshot!("tpu7x-8-chips", host(TPU7X, 4, &[]).text(4, 2));
}

#[test]
fn a_v5p_chip_is_two_devices() {
    let flags = |yours: &str| host(V5P, 4, &[("LIBTPU_INIT_ARGS", yours)]).values(1, 8, "LIBTPU_INIT_ARGS").remove(0);
    let ours = "--xla_tpu_use_enhanced_launch_barrier=false --deepsea_chip_config_name=legacy";
    assert_eq!(flags(""), ours);
    let megacore = "--deepsea_chip_config_name=megacore";
    assert_eq!(flags(megacore), format!("{megacore} --xla_tpu_use_enhanced_launch_barrier=false"));
    assert!(host(V5P, 4, &[]).errors(8, 1)[0].contains("4 visible TPU v5p chip(s) of 2 device(s) each"));
}

#[test]
fn one_process_per_core() {
    assert_snapshot!("tpu7x-8-cores", host(TPU7X, 4, &[]).text(8, 1));
    assert_eq!(host(TPU7X, 1, &[]).values(2, 1, "TPU_PROCESS_BOUNDS"), ["1,1,1,2"; 2]);
    assert_eq!(host(TPU7X, 2, &[]).values(4, 1, "TPU_PROCESS_BOUNDS"), ["1,2,1,2"; 4]);
}

#[test]
fn one_process_for_a_whole_host() {
    assert_snapshot!("v5e-1", host(V5E, 1, &[]).text(1, 1));
    assert_snapshot!("v6e-8-one-process", host(V6E, 8, &[]).text(1, 8));
    assert_eq!(host(TPU7X, 4, &[]).values(1, 8, "TPU_CHIPS_PER_PROCESS_BOUNDS"), ["2,2,1"]);
}

#[test]
fn one_process_has_all_devices_unless_told_otherwise() {
    assert_eq!(host(V5E, 4, &[]).defaults(&[], None), (4, 4));
    assert_eq!(host(V6E, 8, &[("TPU_VISIBLE_CHIPS", "4,5,6,7")]).defaults(&[], None), (4, 4));
    assert_eq!(host(V5P, 4, &[]).defaults(&[], None), (8, 4));
    assert_eq!(host(TPU7X, 4, &[]).defaults(&["--num-shard", "1"], None), (8, 4));
    assert_eq!(host(V6E, 8, &[]).defaults(&["--num-shard", "8"], None), (1, 8));
    assert_eq!(host(V6E, 8, &[]).defaults(&["--devices-per-shard", "2"], None), (2, 2));
    let worker = [("TPU_WORKER_HOSTNAMES", "t0,t1,t2,t3"), ("TPU_WORKER_ID", "2")];
    assert_eq!(host(V6E, 4, &worker).defaults(&[], None), (4, 4));
}

/// A model with six heads and two KV heads can be split over two devices, but not over four or eight.
#[test]
fn one_process_has_the_devices_over_which_the_model_can_be_split() {
    assert_eq!(host(V6E, 8, &[]).defaults(&[], Some(&[1, 2, 3, 6])), (2, 2));
    assert_eq!(host(V6E, 8, &[]).defaults(&[], Some(&[1, 3, 9])), (1, 1));
    assert_eq!(host(V5P, 4, &[]).defaults(&[], Some(&[1, 2, 4])), (4, 2));
    let plan = host(V6E, 8, &[]).plan_of(&Args::parse_from(["l", "--device", "tpu"]), Some(&[1, 2])).unwrap();
    insta::assert_snapshot!(
        plan.slice.unwrap().notes[0],
        @"2 of 8 chips are used: the model cannot be split over more, or no form has more"
    );
}

#[test]
fn a_part_of_a_host() {
    assert_snapshot!("v6e-8-one-chip", host(V6E, 8, &[]).text(1, 1));
    assert_snapshot!("v6e-8-half", host(V6E, 8, &[("TPU_VISIBLE_CHIPS", "4,5,6,7")]).text(4, 1));
    let half = host(V6E, 8, &[("TPU_VISIBLE_DEVICES", "4,5,6,7")]);
    assert_eq!(half.values(1, 4, "TPU_VISIBLE_CHIPS"), ["4,5,6,7"]);
    assert_eq!(half.values(1, 4, "TPU_CHIPS_PER_PROCESS_BOUNDS"), ["2,2,1"]);
    assert_eq!(half.values(1, 2, "TPU_VISIBLE_CHIPS"), ["4,5"]);
}

#[test]
fn several_processes_with_several_chips_each() {
    let host = host(V6E, 8, &[]);
    assert_eq!(host.values(2, 4, "TPU_PROCESS_BOUNDS"), ["1,2,1"; 2]);
    assert_eq!(host.values(2, 4, "TPU_VISIBLE_CHIPS"), ["0,1,2,3", "4,5,6,7"]);
    assert_eq!(host.values(4, 2, "TPU_PROCESS_BOUNDS"), ["2,2,1"; 4]);
    assert_eq!(host.values(4, 2, "TPU_CHIPS_PER_PROCESS_BOUNDS"), ["1,2,1"; 4]);
    assert!(host.text(4, 2).contains("note: several processes with several chips each"));
}

#[test]
fn one_shard_with_one_device_has_a_chip_of_two() {
    let host = host(TPU7X, 4, &[]);
    assert_eq!(host.values(1, 1, "TPU_CHIPS_PER_PROCESS_BOUNDS"), ["1,1,1"]);
    assert_eq!(host.values(1, 1, "TPU_ACCELERATOR_TYPE"), ["tpu7x-2"]);
    assert!(host.text(1, 1).contains("--devices-per-shard 2 uses both"));
    assert!(host.errors(3, 1)[0].ends_with(
        "use --devices-per-shard 1 with --num-shard 1 or 8, or --devices-per-shard 2 with --num-shard 1 or 4"
    ));
}

#[test]
fn several_hosts() {
    let environment = [("TPU_WORKER_HOSTNAMES", "t0,t1,t2,t3"), ("TPU_WORKER_ID", "2")];
    let worker = host(V6E, 4, &environment);
    assert_snapshot!("v6e-16-process-per-host", worker.text(1, 4));
    assert_snapshot!("v6e-16-process-per-chip", worker.text(4, 1));
    let pair = |device, id| host(device, 4, &[("TPU_WORKER_HOSTNAMES", "a,b"), ("TPU_WORKER_ID", id)]);
    assert_eq!(pair(V4, "1").values(4, 1, "TPU_PROCESS_BOUNDS"), ["2,2,2"; 4]);
    assert_eq!(pair(V4, "1").values(4, 1, "CLOUD_TPU_TASK_ID"), ["4", "5", "6", "7"]);
    assert_eq!(pair(V5P, "0").values(1, 8, "TPU_PROCESS_BOUNDS"), ["1,1,2"]);
    assert_eq!(pair(V5P, "0").values(1, 8, "TPU_ACCELERATOR_TYPE"), ["v5p-16"]);
    assert_eq!(pair(TPU7X, "0").values(8, 1, "TPU_PROCESS_BOUNDS"), ["2,2,2,2"; 8]);
    let plan = worker.plan(1, 4).unwrap();
    assert_eq!((plan.hosts.num(), plan.endpoints.len(), plan.router), (4, 4, None));
}

#[test]
fn other_counts_are_refused_with_those_that_work() {
    let host = host(V6E, 8, &[]);
    assert_eq!(
        host.errors(3, 1),
        [
            "`num_shard` is 3 and `devices_per_shard` 1, but this host has 8 visible TPU v6e chip(s) of 1 device(s) each: \
          use --devices-per-shard 1 with --num-shard 1 or 8"
        ]
    );
    assert!(host.errors(3, 2)[0].ends_with(
        "use --devices-per-shard 2 with --num-shard 1 or 4, or --devices-per-shard 1 with --num-shard 1 or 8"
    ));
    assert!(host.errors(1, 3)[0].ends_with("--devices-per-shard may be 1 or 2 or 4 or 8"));
    let two = [("TPU_WORKER_HOSTNAMES", "a,b"), ("TPU_WORKER_ID", "0")];
    assert!(super::tests::host(V4, 4, &two).errors(1, 1)[0].ends_with("use --devices-per-shard 1 with --num-shard 4"));
    let three = ("TPU_VISIBLE_CHIPS", "0,1,2");
    assert!(super::tests::host(V5P, 4, &[three]).errors(3, 1)[0].contains("--devices-per-shard 1 with --num-shard 1,"));
    let few = super::tests::host(V4, 4, &[two[0], two[1], three]).errors(1, 1);
    assert!(few[0].ends_with("1, 2, 4 or 8 chips must be visible (TPU_VISIBLE_CHIPS)"), "{few:?}");
}

#[test]
fn the_users_own_values_win() {
    let environment = [("TPU_PROCESS_BOUNDS", "4,2,1"), ("TPU_LOG_DIR", "/logs"), ("LIBTPU_INIT_ARGS", "--x=1")];
    let own = host(V6E, 8, &environment);
    assert_eq!(own.values(8, 1, "TPU_PROCESS_BOUNDS"), ["4,2,1"; 8]);
    assert_eq!(own.values(8, 1, "TPU_HOST_BOUNDS"), ["4,2,1"; 8]);
    let text = own.text(8, 1);
    assert_eq!(text.matches("  yours\n").count(), 2, "{text}");
    let flags = "--x=1 --xla_tpu_use_enhanced_launch_barrier=false";
    assert_eq!(own.values(8, 1, "LIBTPU_INIT_ARGS"), [flags; 8]);
    assert_eq!(host(V6E, 8, &[("TPU_TOPOLOGY", "4x2")]).values(8, 1, "TPU_PROCESS_BOUNDS"), ["4,2,1"; 8]);
    let addresses = host(V5E, 4, &[("TPU_PROCESS_ADDRESSES", "h:1,h:2,h:3,h:4")]);
    assert_eq!(addresses.values(4, 1, "TPU_PROCESS_PORT"), ["1", "2", "3", "4"]);
    assert_eq!(host(V5E, 4, &[("TPU_PROCESS_PORT", "99")]).values(1, 1, "TPU_PROCESS_ADDRESSES"), ["localhost:99"]);
}

#[test]
fn variables_of_gke_for_one_process_do_not_keep_several_from_starting() {
    let pod = [
        ("TPU_HOST_BOUNDS", "1,1,1"),
        ("TPU_CHIPS_PER_HOST_BOUNDS", "2,2,1"),
        ("TPU_WORKER_ID", "0"),
        ("TPU_WORKER_HOSTNAMES", "localhost"),
        ("TPU_ACCELERATOR_TYPE", "v6e-4"),
        ("TPU_TOPOLOGY", "2x2"),
    ];
    let pod = host(V6E, 4, &pod);
    assert_eq!(pod.values(4, 1, "TPU_PROCESS_BOUNDS"), ["2,2,1"; 4]);
    let note =
        "note: TPU_HOST_BOUNDS is \"1,1,1\", but this plan needs 2,2,1, which its processes get in TPU_PROCESS_BOUNDS";
    assert!(pod.text(4, 1).contains(note));
    assert!(!pod.text(1, 4).contains("note: TPU_HOST_BOUNDS"));
}

#[test]
fn contradictions_that_must_fail_are_named_all_at_once() {
    let environment =
        [("TPU_PROCESS_BOUNDS", "1,1,1"), ("CLOUD_TPU_TASK_ID", "0"), ("TPU_PROCESS_ADDRESSES", "localhost:8476")];
    assert_eq!(
        host(V6E, 4, &environment).errors(4, 1),
        [
            "TPU_PROCESS_BOUNDS is \"1,1,1\", which is not sizes x,y,z with the product 4, this plan's number of \
             processes: unset it",
            "TPU_PROCESS_ADDRESSES has 1 addresses, but this plan has 4 process(es): unset it",
            "CLOUD_TPU_TASK_ID is \"0\", but each of the 4 shards needs its own: unset it",
        ]
    );
    for (name, value, sentence) in [
        ("TPU_VISIBLE_CHIPS", "4", "not a list of different chips of this host, 0 to 3"),
        ("TPU_VISIBLE_CHIPS", "1,1", "not a list of different chips"),
        ("TPU_WORKER_HOSTNAMES", "a,,b", "not a list of different host names"),
        ("TPU_WORKER_HOSTNAMES", "a,b", "set TPU_WORKER_ID"),
        ("TPU_WORKER_ID", "1", "no other host is named: name all hosts with --slice-hosts"),
        ("TPU_TOPOLOGY", "2x2x2x2", "not a shape such as 2x4"),
        ("TPU_CHIPS_PER_PROCESS_BOUNDS", "2,2,1", "the product 1, this plan's number of chips per process: unset it"),
        ("TPU_CHIPS_PER_PROCESS_BOUNDS", "1", "is \"1\", which is not sizes x,y,z with the product 1"),
        ("TPU_PROCESS_ADDRESSES", "a:1,b,c:3,d:4", "\"b\", which is not host:port"),
    ] {
        let errors = host(V6E, 4, &[(name, value)]).errors(4, 1);
        assert!(errors.iter().any(|error| error.contains(sentence)), "{name}={value}: {errors:?}");
    }
}

#[test]
fn kinds_without_plans_are_named() {
    assert!(host(V3, 4, &[]).errors(4, 1)[0].contains("TPU v2 or v3 chips, which are not supported"));
    assert!(host("0x0083", 4, &[]).errors(4, 1)[0].contains("TPU tpu8i chips"));
    assert!(host("0x007c", 4, &[]).errors(4, 1)[0].contains("TPU tpu8t chips"));
}

#[test]
fn variables_that_libtpu_prefers_to_the_plan_are_refused() {
    for (name, advice) in [
        ("TPU_VISIBLE_DEVICE_PATHS", "name the chips with TPU_VISIBLE_CHIPS"),
        ("TPU_PROCESS_ADDRESSES_PATH", "list the addresses in TPU_PROCESS_ADDRESSES"),
    ] {
        let expected = format!("{name} is \"/dev/x\", which libtpu prefers to this plan: unset it and {advice}");
        for num_shard in [1, 4] {
            assert_eq!(host(V6E, 4, &[(name, "/dev/x")]).errors(num_shard, 1), [expected.as_str()]);
        }
    }
}

#[test]
fn each_process_gets_the_ports_of_its_chips() {
    const NAME: &str = "TPU_RUNTIME_METRICS_PORTS";
    let machine = |ports| host(V6E, 4, &[(NAME, ports)]);
    assert_eq!(machine("8431,8432,8433,8434").values(4, 1, NAME), ["8431", "8432", "8433", "8434"]);
    assert_eq!(machine("8431,8432, 8433,8434").values(1, 4, NAME), ["8431,8432,8433,8434"]);
    let two = host(V6E, 4, &[(NAME, "8431,8432,8433,8434"), ("TPU_VISIBLE_CHIPS", "2,3")]);
    assert_eq!(two.values(2, 1, NAME), ["8433", "8434"]);
    assert_eq!(host(V6E, 4, &[]).values(4, 1, NAME), Vec::<String>::new());
    for ports in ["8431", "a,b,c,d"] {
        let expected =
            format!("{NAME} is {ports:?}, which is not a list of 4 ports, one for each chip of this host: unset it");
        assert_eq!(machine(ports).errors(4, 1), [expected]);
    }
    // Both processes of a chip would get its port.
    let of_chips = "TPU_RUNTIME_METRICS_PORTS has one port for each chip, but each chip has two processes: unset it";
    assert_eq!(host(TPU7X, 2, &[(NAME, "8431,8432")]).errors(4, 1), [of_chips]);
    let one_chip = host(TPU7X, 2, &[(NAME, "8431,8432"), ("TPU_VISIBLE_CHIPS", "0")]);
    assert_eq!(one_chip.errors(2, 1), [of_chips]);
}
