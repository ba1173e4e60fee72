//! `cargo bench -p collectives --bench all_reduce`: measures an all-reduce between two processes, then between four,
//! through shared memory and through TCP on loopback.
//!
//! The benchmark starts one process of itself per rank. The time of a call is that of the slowest rank. All ranks meet
//! before each call, so that the time contains no earlier work. The benchmark prints the load average, because on a
//! busy machine p99 rises first.

use std::fs;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use collectives::{CollectiveError, Group, Mesh};
use rustix::fs::MemfdFlags;
use rustix::io::FdFlags;

const WORLD_SIZES: [usize; 2] = [2, 4];
const SIZES_KIB: [usize; 4] = [4, 64, 1024, 16384];
const SECONDS_PER_SIZE: f32 = 1.0;
const MIN_CALLS: usize = 20;
const MAX_CALLS: usize = 20_000;
const WARM_UP_CALLS: usize = 5;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, command, place, rank, num_ranks] = arguments.as_slice()
        && command == "rank"
    {
        let number = |text: &str| text.parse::<usize>().map_err(io::Error::other);
        let ranks = Ranks::join(place, number(rank)?, number(num_ranks)?).map_err(io::Error::other)?;
        return run_rank(ranks).map_err(io::Error::other);
    }
    let num_cores = std::thread::available_parallelism()?;
    for num_ranks in WORLD_SIZES {
        let load = fs::read_to_string("/proc/loadavg")?;
        let load = load.split(' ').next().unwrap_or_default();
        writeln!(io::stdout(), "{num_ranks} ranks on {num_cores} cores, load {load}: shared memory, then TCP")?;
        start_ranks(num_ranks)?;
        start_ranks_with_sockets(num_ranks)?;
    }
    Ok(())
}

/// A rank's way to the others.
enum Ranks {
    SharedMemory(Group),
    Tcp(Mesh),
}

impl Ranks {
    /// Joins the ranks. `place` is the path of shared memory, or the numbers of inherited sockets with commas.
    fn join(place: &str, rank: usize, num_ranks: usize) -> Result<Self, CollectiveError> {
        const DEADLINE: Duration = Duration::from_secs(60);
        if place.starts_with('/') {
            return Group::open(Path::new(place), rank, num_ranks, DEADLINE).map(Self::SharedMemory);
        }
        let sockets: Vec<Option<RawFd>> = place.split(',').map(|number| number.parse().ok()).collect();
        Mesh::inherited(rank, &sockets, DEADLINE).map(Self::Tcp)
    }

    fn rank(&self) -> usize {
        match self {
            Self::SharedMemory(group) => group.rank(),
            Self::Tcp(mesh) => mesh.rank(),
        }
    }

    fn num_ranks(&self) -> usize {
        match self {
            Self::SharedMemory(group) => group.num_ranks(),
            Self::Tcp(mesh) => mesh.num_ranks(),
        }
    }

    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        match self {
            Self::SharedMemory(group) => group.all_reduce(values),
            Self::Tcp(mesh) => mesh.all_reduce(values),
        }
    }

    fn all_gather(&mut self, part: &[f32], num_rows: usize, gathered: &mut [f32]) -> Result<(), CollectiveError> {
        match self {
            Self::SharedMemory(group) => group.all_gather(part, num_rows, gathered),
            Self::Tcp(mesh) => mesh.all_gather(part, num_rows, gathered),
        }
    }
}

/// Starts ranks that are connected by TCP on loopback.
fn start_ranks_with_sockets(num_ranks: usize) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut sockets: Vec<Vec<Option<OwnedFd>>> =
        (0..num_ranks).map(|_| (0..num_ranks).map(|_| None).collect()).collect();
    for (one, two) in (0..num_ranks).flat_map(|one| (0..one).map(move |two| (one, two))) {
        let connected = TcpStream::connect(listener.local_addr()?)?;
        let (accepted, _) = listener.accept()?;
        connected.set_nodelay(true)?;
        accepted.set_nodelay(true)?;
        sockets[one][two] = Some(connected.into());
        sockets[two][one] = Some(accepted.into());
    }
    let start = |(rank, sockets): (usize, Vec<Option<OwnedFd>>)| {
        for socket in sockets.iter().flatten() {
            rustix::io::fcntl_setfd(socket, FdFlags::empty())?;
        }
        let numbers =
            sockets.iter().map(|socket| socket.as_ref().map_or("-".into(), |own| own.as_raw_fd().to_string()));
        let numbers = numbers.collect::<Vec<_>>().join(",");
        Command::new("/proc/self/exe").args(["rank", &numbers, &rank.to_string(), &num_ranks.to_string()]).spawn()
    };
    wait_for(sockets.into_iter().enumerate().map(start).collect::<io::Result<Vec<_>>>()?)
}

fn start_ranks(num_ranks: usize) -> io::Result<()> {
    // The file has no close-on-exec flag, so the ranks inherit it.
    let memory = rustix::fs::memfd_create("all_reduce", MemfdFlags::empty())?;
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let start = |rank: usize| {
        let arguments = ["rank".into(), path.clone(), rank.to_string(), num_ranks.to_string()];
        Command::new("/proc/self/exe").args(arguments).spawn()
    };
    wait_for((0..num_ranks).map(start).collect::<io::Result<Vec<_>>>()?)
}

fn wait_for(ranks: Vec<std::process::Child>) -> io::Result<()> {
    for mut rank in ranks {
        let status = rank.wait()?;
        if !status.success() {
            return Err(io::Error::other(format!("a rank ended: {status}")));
        }
    }
    Ok(())
}

fn run_rank(mut group: Ranks) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let (rank, num_ranks) = (group.rank(), group.num_ranks());
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

fn time_call(group: &mut Ranks, input: &[f32], values: &mut [f32]) -> Result<f32, CollectiveError> {
    values.copy_from_slice(input);
    group.all_reduce(&mut [])?;
    let start = Instant::now();
    group.all_reduce(values)?;
    Ok(start.elapsed().as_secs_f32())
}

/// The number of calls, chosen by rank 0 for all ranks.
fn num_calls(group: &mut Ranks, seconds: f32) -> Result<usize, CollectiveError> {
    let own = (SECONDS_PER_SIZE / seconds).clamp(MIN_CALLS as f32, MAX_CALLS as f32).floor();
    let mut votes = [if group.rank() == 0 { own } else { 0.0 }];
    group.all_reduce(&mut votes)?;
    Ok(votes[0] as usize)
}

/// The time of the slowest rank for each call, sorted.
fn longest_of_ranks(group: &mut Ranks, seconds: &[f32]) -> Result<Vec<f32>, CollectiveError> {
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
