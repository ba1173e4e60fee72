//! `cargo bench -p collectives --bench all_reduce`: measures an all-reduce between two processes, then between four.
//!
//! The benchmark starts one process of itself per rank. The time of a call is that of the slowest rank. All ranks meet
//! before each call, so that the time contains no earlier work. The benchmark prints the load average, because on a
//! busy machine p99 rises first.

use std::fs;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use collectives::{CollectiveError, Group};
use rustix::fs::MemfdFlags;

const WORLD_SIZES: [usize; 2] = [2, 4];
const SIZES_KIB: [usize; 4] = [4, 64, 1024, 16384];
const SECONDS_PER_SIZE: f32 = 1.0;
const MIN_CALLS: usize = 20;
const MAX_CALLS: usize = 20_000;
const WARM_UP_CALLS: usize = 5;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, command, path, rank, num_ranks] = arguments.as_slice()
        && command == "rank"
    {
        let number = |text: &str| text.parse::<usize>().map_err(io::Error::other);
        return run_rank(Path::new(path), number(rank)?, number(num_ranks)?).map_err(io::Error::other);
    }
    let num_cores = std::thread::available_parallelism()?;
    for num_ranks in WORLD_SIZES {
        let load = fs::read_to_string("/proc/loadavg")?;
        let load = load.split(' ').next().unwrap_or_default();
        writeln!(io::stdout(), "{num_ranks} ranks on {num_cores} cores, load {load}")?;
        start_ranks(num_ranks)?;
    }
    Ok(())
}

fn start_ranks(num_ranks: usize) -> io::Result<()> {
    // The file has no close-on-exec flag, so the ranks inherit it.
    let memory = rustix::fs::memfd_create("all_reduce", MemfdFlags::empty())?;
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let start = |rank: usize| {
        let arguments = ["rank".into(), path.clone(), rank.to_string(), num_ranks.to_string()];
        Command::new("/proc/self/exe").args(arguments).spawn()
    };
    let ranks = (0..num_ranks).map(start).collect::<io::Result<Vec<_>>>()?;
    for mut rank in ranks {
        let status = rank.wait()?;
        if !status.success() {
            return Err(io::Error::other(format!("a rank ended: {status}")));
        }
    }
    Ok(())
}

fn run_rank(path: &Path, rank: usize, num_ranks: usize) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut group = Group::open(path, rank, num_ranks, Duration::from_secs(60))?;
    for size_kib in SIZES_KIB {
        let input = vec![rank as f32 + 0.5; size_kib * 1024 / size_of::<f32>()];
        let mut values = input.clone();
        let mut first = f32::INFINITY;
        for _ in 0..WARM_UP_CALLS {
            first = first.min(time_call(&mut group, &input, &mut values)?);
        }
        let num_calls = num_calls(&mut group, first)?;
        let mut seconds = Vec::with_capacity(num_calls);
        for _ in 0..num_calls {
            seconds.push(time_call(&mut group, &input, &mut values)?);
        }
        let longest = longest_of_ranks(&mut group, &seconds)?;
        if rank == 0 {
            report(size_kib, &longest)?;
        }
        let sum = (0..num_ranks).map(|rank| rank as f32 + 0.5).sum::<f32>();
        if values.iter().any(|value| *value != sum) {
            return Err(format!("{size_kib} KiB: a sum is not {sum}").into());
        }
    }
    Ok(group.all_reduce(&mut [])?)
}

fn time_call(group: &mut Group, input: &[f32], values: &mut [f32]) -> Result<f32, CollectiveError> {
    values.copy_from_slice(input);
    group.all_reduce(&mut [])?;
    let start = Instant::now();
    group.all_reduce(values)?;
    Ok(start.elapsed().as_secs_f32())
}

/// The number of calls, chosen by rank 0 for all ranks.
fn num_calls(group: &mut Group, seconds: f32) -> Result<usize, CollectiveError> {
    let own = (SECONDS_PER_SIZE / seconds).clamp(MIN_CALLS as f32, MAX_CALLS as f32).floor();
    let mut votes = [if group.rank() == 0 { own } else { 0.0 }];
    group.all_reduce(&mut votes)?;
    Ok(votes[0] as usize)
}

/// The time of the slowest rank for each call, sorted.
fn longest_of_ranks(group: &mut Group, seconds: &[f32]) -> Result<Vec<f32>, CollectiveError> {
    let mut gathered = vec![0.0; seconds.len() * group.num_ranks()]; // [calls, ranks]
    group.all_gather(seconds, seconds.len(), &mut gathered)?;
    let longest = |call: &[f32]| call.iter().copied().fold(0.0, f32::max);
    let mut longest: Vec<f32> = gathered.chunks(group.num_ranks()).map(longest).collect();
    longest.sort_by(f32::total_cmp);
    Ok(longest)
}

fn report(size_kib: usize, sorted_seconds: &[f32]) -> io::Result<()> {
    let microseconds = |share: f32| 1e6 * sorted_seconds[(share * (sorted_seconds.len() - 1) as f32) as usize];
    let (median, p99) = (microseconds(0.5), microseconds(0.99));
    let gigabytes = (size_kib * 1024) as f32 / median / 1e3;
    writeln!(io::stdout(), "{size_kib:>6} KiB  median {median:9.1} us  p99 {p99:9.1} us  {gigabytes:5.1} GB/s")
}
