//! All-reduce (f32, sum) between ranks of one host, over sizes: one JSON line each, in the form of records.
//!
//! `cargo run --release -p allfold-collectives --example shared_memory -- threads 2 4 268435456 4`
//!
//! The arguments are `threads`, `messages`, `shm` (threads that map a segment each) or `processes`, the number of ranks, and the sizes in
//! bytes: first, last, factor. Calls are timed as in the peers under `benches/peers`: a warm-up, a barrier, a loop of calls, the mean
//! over ranks. Every result is checked. Between processes each size is measured twice: on memory of the caller's own, which is copied,
//! and on registered buffers.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_collectives::tcp::{Deadlines, PeerOptions, Security};
use allfold_collectives::{Buffer, Communicator, Error, Rank, ReduceOp, World};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;

/// How often a size is called: enough for a few milliseconds.
fn calls(bytes: usize) -> u64 {
    ((64 << 20) / bytes.max(4096)).clamp(10, 4000) as u64
}

fn all_reduce(comm: &Communicator, bytes: usize, in_place: bool, registered: bool) -> Result<f64, Error> {
    let (n, rank) = (comm.size() as f32, comm.rank().0 as f32);
    let first = if in_place { 0.0 } else { rank + 1.0 };
    let filled = || {
        let mut buffer = if registered { comm.buffer(bytes / 4) } else { Buffer::zeroed(bytes / 4) };
        buffer.fill(first);
        buffer
    };
    let (input, mut output) = (filled(), filled());
    let mut call = || match in_place {
        true => comm.all_reduce(&mut output, ReduceOp::Sum),
        false => comm.all_reduce_into(&input, &mut output, ReduceOp::Sum),
    };
    let calls = calls(bytes);
    for _ in 0..calls / 4 + 2 {
        call()?;
    }
    comm.barrier()?;
    let start = comm.now();
    for _ in 0..calls {
        call()?;
    }
    let mean = (comm.now() - start).0 as f64 / calls as f64 / 1e6;
    let want = if in_place { 0.0 } else { n * (n + 1.0) / 2.0 };
    assert!(output.iter().all(|sum| *sum == want), "wrong results");
    let mut all = [mean];
    comm.all_reduce(&mut all, ReduceOp::Avg)?;
    Ok(all[0])
}

fn sweep(comm: &Communicator, backend: &str, sizes: [usize; 3]) -> Result<(), Error> {
    let mut bytes = sizes[0];
    let forms = [(false, false), (true, false), (false, true), (true, true)];
    while bytes <= sizes[1] {
        for (in_place, registered) in forms.into_iter().filter(|form| backend == "shm" || !form.1) {
            let us = all_reduce(comm, bytes, in_place, registered)?;
            if comm.rank() == Rank(0) {
                println!(
                    "{{\"schema\": 1, \"kind\": \"collective\", \"measured\": true, \"backend\": \"{backend}\", \
                     \"collective\": \"all_reduce\", \"ranks\": {}, \"dtype\": \"f32\", \"op\": \"sum\", \
                     \"bytes\": {bytes}, \"in_place\": {in_place}, \"registered\": {registered}, \"iterations\": {}, \"time_us\": {us:.3}, \
                     \"algbw_gbps\": {:.3}}}",
                    comm.size(),
                    calls(bytes),
                    bytes as f64 / us / 1e3
                );
            }
        }
        bytes *= sizes[2];
    }
    Ok(())
}

/// One process per rank: starts this program again, with its rank and the addresses of all ranks.
fn processes(ranks: u32, sizes: &[String]) {
    let listeners: Vec<_> =
        (0..ranks).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
    let ports: Vec<String> = listeners.iter().map(|l| l.local_addr().unwrap().port().to_string()).collect();
    drop(listeners);
    let start = |rank: u32| {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new(program);
        command.arg("rank").arg(rank.to_string()).args(sizes).arg(ports.join(","));
        command.spawn().unwrap()
    };
    let children: Vec<_> = (0..ranks).map(start).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
}

fn rank(rank: u32, sizes: [usize; 3], ports: &str) -> Result<(), Error> {
    let addresses: Vec<SocketAddr> =
        ports.split(',').map(|port| (Ipv4Addr::LOCALHOST, port.parse::<u16>().unwrap()).into()).collect();
    let listener = TcpListener::bind(addresses[rank as usize]).unwrap();
    let (security, deadlines) = (Security::Loopback, Deadlines::default());
    let mut comm = Communicator::over_tcp(PeerOptions {
        rank: Rank(rank),
        job: [7; 16],
        epoch: 0,
        listener,
        addresses,
        host: None,
        security,
        deadlines,
    })?;
    assert!(comm.share_memory()?, "these processes share no memory");
    sweep(&comm, "shm", sizes)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    assert!(
        arguments.len() >= 5,
        "usage: shared_memory threads|messages|shm|processes RANKS FIRST LAST FACTOR"
    );
    let ranks: u32 = arguments[1].parse().unwrap();
    let sizes = [2, 3, 4].map(|at: usize| arguments[at].parse::<usize>().unwrap());
    let world = match arguments[0].as_str() {
        "processes" => return processes(ranks, &arguments[2..5]),
        "rank" => return rank(ranks, sizes, &arguments[5]).unwrap(),
        "shm" => World::shm(ranks).any(),
        "messages" => World::threads(ranks).messages().any(),
        _ => World::threads(ranks).any(),
    };
    world.run(|comm: Communicator| sweep(&comm, &arguments[0], sizes)).unwrap();
}
