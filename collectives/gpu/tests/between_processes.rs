#![allow(missing_docs, clippy::unwrap_used)]
//! Sums and gathers between processes of one host that open each other's GPU memory by CUDA's handles (IPC), on stand-ins for the driver
//! in which that memory is shared memory of the host.

mod processes;

use allfold_collectives::{Communicator, DType, Rank, ReduceOp};
use allfold_cuda::{Gpu, Memory, Queue};
use allfold_gpu::device::{DeviceGroup, ReducePath};
use allfold_standin::{StandinOptions, install, standin_live, standin_violations};
use processes::{joined, ranks};
use std::time::Duration;

/// The value of element `i` of a rank's data.
fn value(rank: usize, i: usize) -> f32 {
    ((rank + 1) * (i % 97 + 1)) as f32
}

/// One rank's group, and its data for each call.
struct Checked<'a> {
    group: DeviceGroup<'a>,
    compute: Queue,
    rank: usize,
    ranks: usize,
}

impl Checked<'_> {
    /// The rank's data of `n` elements for each rank.
    fn data(&self, n: usize) -> Memory {
        let values: Vec<f32> = (0..n * self.ranks).map(|i| value(self.rank, i)).collect();
        self.compute.upload(&values).unwrap()
    }

    /// Checks the elements of the blocks `of` after all sums.
    fn holds(&mut self, what: &str, data: &Memory, of: std::ops::Range<usize>, want: &dyn Fn(usize) -> f32) {
        self.group.join(&self.compute).unwrap();
        self.group.wait(&self.compute, what).unwrap();
        let values: Vec<f32> = self.compute.download(data.all()).unwrap();
        let n = values.len() / self.ranks;
        for (i, value) in values.iter().enumerate().take(of.end * n).skip(of.start * n) {
            assert_eq!(*value, want(i), "{what} of {n} on rank {}: element {i}", self.rank);
        }
    }

    /// Every collective over blocks of `n` elements.
    fn all(&mut self, n: usize) {
        let (rank, ranks, compute) = (self.rank, self.ranks, self.compute.clone());
        let (own, every) = (rank..rank + 1, 0..ranks);
        let sum = move |i: usize| (0..ranks).map(|rank| value(rank, i)).sum::<f32>();
        let data = self.data(n);
        self.group.all_reduce(&compute, DType::F32, ReduceOp::Sum, data.all()).unwrap();
        self.holds("all_reduce", &data, every.clone(), &sum);
        let data = self.data(n);
        self.group.reduce_scatter(&compute, DType::F32, ReduceOp::Sum, data.all()).unwrap();
        self.holds("reduce_scatter", &data, own.clone(), &sum);
        let data = self.data(n);
        self.group.all_gather(&compute, DType::F32, data.all()).unwrap();
        self.holds("all_gather", &data, every.clone(), &|i| value(i / n, i));
        let data = self.data(n);
        self.group.broadcast(&compute, data.all(), Rank(1)).unwrap();
        self.holds("broadcast", &data, every.clone(), &|i| value(1, i));
        let data = self.data(n);
        self.group.reduce(&compute, (DType::F32, ReduceOp::Sum), data.all(), Rank(1)).unwrap();
        self.holds("reduce", &data, if rank == 1 { every.clone() } else { 0..0 }, &sum);
        let data = self.data(n);
        self.group.gather(&compute, data.all(), Rank(0)).unwrap();
        self.holds("gather", &data, if rank == 0 { every.clone() } else { 0..0 }, &|i| value(i / n, i));
        let data = self.data(n);
        self.group.scatter(&compute, data.all(), Rank(1)).unwrap();
        self.holds("scatter", &data, own, &|i| value(1, i));
        let (data, received) = (self.data(n), self.data(n));
        self.group.all_to_all(&compute, data.all(), received.all()).unwrap();
        self.holds("all_to_all", &received, every.clone(), &|i| value(i / n, rank * n + i % n));
        self.group.shift(&compute, data.all(), received.all()).unwrap();
        self.holds("shift", &received, every, &|i| value((rank + ranks - 1) % ranks, i));
    }
}

/// A rank on the stand-in that the options describe: `body` gets its group by the path `device`.
fn rank(comm: &Communicator, options: StandinOptions, body: impl FnOnce(&mut Checked<'_>)) {
    let devices = options.devices;
    install(StandinOptions { delay: Duration::from_micros(20), ..options }).unwrap();
    let gpu = Gpu::open().unwrap();
    let (rank, ranks) = (comm.rank().index(), comm.size() as usize);
    let queue = || Queue::new(gpu.clone(), rank % devices).unwrap();
    let group = DeviceGroup::open(comm, queue(), ReducePath::Device, Duration::from_secs(60)).unwrap();
    let mut checked = Checked { group, compute: queue(), rank, ranks };
    body(&mut checked);
    drop(checked);
    assert_eq!(
        (standin_live().memory, standin_violations()),
        (0, Vec::new()),
        "memory that is left, violations"
    );
}

fn devices(devices: usize) -> StandinOptions {
    StandinOptions { devices, ..StandinOptions::default() }
}

/// D15: two processes, a fused sum; and the other collectives, on a GPU each and on one GPU, of small and of large buffers.
#[test]
fn d15_every_collective_is_right_between_processes() {
    const NAME: &str = "d15_every_collective_is_right_between_processes";
    if let Some(comm) = joined() {
        let gpus = std::env::var("ALLFOLD_TEST_GPUS").unwrap().parse().unwrap();
        return rank(&comm, devices(gpus), |checked| {
            let path = checked.group.described().unwrap();
            assert_eq!(path, "device copies between processes: the configuration chooses it");
            // The second size is more than the memory that ranks share at first, 2 MiB.
            [40, 200_000, 7].into_iter().for_each(|n| checked.all(n));
        });
    }
    for (gpus, count) in [(3, 3), (1, 2)] {
        ranks(NAME, count, |_| vec![("ALLFOLD_TEST_GPUS", gpus.to_string())]);
    }
}

/// Where processes share no memory, the host sums, and says why.
#[test]
fn ranks_that_share_no_memory_sum_over_the_host_and_say_why() {
    const NAME: &str = "ranks_that_share_no_memory_sum_over_the_host_and_say_why";
    let case = || std::env::var("ALLFOLD_TEST_CASE").unwrap();
    if let Some(comm) = joined() {
        let options = match case().as_str() {
            "mig" if comm.rank() == Rank(1) => StandinOptions { ipc: false, ..devices(2) },
            "peers" => StandinOptions { peers: false, ..devices(2) },
            _ => devices(2),
        };
        return rank(&comm, options, |checked| {
            println!("path: {}", checked.group.described().unwrap());
            checked.all(9);
        });
    }
    for (case, why) in [
        ("mig", "rank 1: CUDA refused to share memory with other processes: CUDA_ERROR_NOT_SUPPORTED"),
        (
            "peers",
            "rank 0: CUDA refused to open another process's memory: CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
        ),
        ("hosts", "ranks 0 and 1 are on different hosts"),
    ] {
        let texts = ranks(NAME, 2, |rank| {
            let host = if case == "hosts" { format!("node{rank}") } else { "node".into() };
            vec![("ALLFOLD_TEST_CASE", case.to_string()), ("NCCL_HOSTID", host)]
        });
        for text in texts {
            assert!(text.contains(&format!("path: the host: {why}")), "{case}: {text}");
        }
    }
}

/// Ranks that call different sums end with an error that names both calls.
#[test]
fn ranks_that_disagree_are_told_so_between_processes() {
    const NAME: &str = "ranks_that_disagree_are_told_so_between_processes";
    let Some(comm) = joined() else {
        ranks(NAME, 2, |_| Vec::new());
        return;
    };
    rank(&comm, devices(2), |checked| {
        let (data, compute) = (checked.data(4), checked.compute.clone());
        let op = if checked.rank == 0 { ReduceOp::Sum } else { ReduceOp::Max };
        let error = checked.group.all_reduce(&compute, DType::F32, op, data.all()).unwrap_err().to_string();
        assert!(
            error.contains("ranks disagree: rank") && error.contains("all_reduce(32 bytes of f32"),
            "{error}"
        );
        std::process::exit(match error.contains("max") && error.contains("sum") {
            // The memory of a failed group stays to the end of the process.
            true => {
                println!("test result: ok. 1 passed");
                0
            }
            false => 1,
        });
    });
}
