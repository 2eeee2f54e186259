//! How fast collectives are over loopback TCP, beside raw sockets in the same run.
//!
//! ```sh
//! cargo run --release -p allfold-collectives --example loopback -- 2 all_reduce 4096 1048576 67108864
//! ```
//!
//! `raw` is what two threads reach that do nothing but write and read at once, each way, with messages of the
//! collective's own fragments; busbw / raw is what the collective makes of it. Ranks are threads of this process, each
//! with sockets of its own.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a measurement, on real time")]

use allfold_collectives::tcp::{FRAGMENT, Secret, Security};
use allfold_collectives::{Collective, Communicator, Error, ReduceOp, World};
use socket2::SockRef;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

/// The socket buffers that the backend asks for on loopback.
const NEAR: usize = 512 << 10;

/// GB/s each way of two threads that exchange `bytes` over one connection, the best of several times.
fn raw(bytes: usize) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    let barrier = std::sync::Barrier::new(2);
    let exchange = |mut socket: TcpStream| {
        socket.set_nodelay(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        SockRef::from(&socket).set_send_buffer_size(NEAR).unwrap();
        SockRef::from(&socket).set_recv_buffer_size(NEAR).unwrap();
        let (out, mut into) = (vec![1u8; bytes], vec![1u8; bytes]);
        let mut best = f64::INFINITY;
        for _ in 0..5 {
            barrier.wait();
            let start = Instant::now();
            let (mut sent, mut got) = (0, 0);
            while sent < bytes || got < bytes {
                let mut moved = false;
                match socket.write(&out[sent..bytes.min(sent + FRAGMENT)]) {
                    Ok(some) => (sent, moved) = (sent + some, some > 0),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => panic!("{error}"),
                }
                match socket.read(&mut into[got..bytes.min(got + FRAGMENT)]) {
                    Ok(some) => (got, moved) = (got + some, moved || some > 0),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => panic!("{error}"),
                }
                if !moved {
                    std::thread::yield_now();
                }
            }
            best = best.min(start.elapsed().as_secs_f64());
        }
        best
    };
    let best = std::thread::scope(|scope| {
        let other = scope.spawn(|| exchange(far));
        exchange(near).max(other.join().unwrap())
    });
    bytes as f64 / best / 1e9
}

/// Median seconds of a call.
fn call(world: &World, collective: Collective, bytes: usize) -> f64 {
    let count = bytes / 4;
    let times = world.run(|comm: Communicator| -> Result<Vec<f64>, Error> {
        let n = comm.size() as usize;
        let mut data = vec![1f32; count];
        let block = vec![1f32; count / n];
        let mut out = vec![0f32; count / n];
        let mut times = Vec::new();
        let begun = Instant::now();
        while times.len() < 400 {
            comm.barrier()?;
            let start = Instant::now();
            match collective {
                Collective::AllReduce => comm.all_reduce(&mut data, ReduceOp::Max)?,
                Collective::AllGather => comm.all_gather(&block, &mut data[..n * block.len()])?,
                Collective::ReduceScatter => {
                    comm.reduce_scatter(&data[..n * block.len()], &mut out, ReduceOp::Sum)?
                }
                _ => comm.broadcast(&mut data, allfold_collectives::Rank(0))?,
            }
            let mut took =
                [start.elapsed().as_secs_f64(), f64::from(u8::from(begun.elapsed().as_secs_f64() >= 1.0))];
            // The slowest rank's time counts, and all stop together.
            comm.all_reduce(&mut took, ReduceOp::Max)?;
            times.push(took[0]);
            if took[1] > 0.0 && times.len() >= 5 {
                break;
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times)
    });
    let times = &times.unwrap()[0];
    times[times.len() / 2]
}

fn main() {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let mode = words.iter().position(|word| word == "--tls" || word == "--fabric").map(|at| words.remove(at));
    let ranks: u32 = words.first().map_or(2, |word| word.parse().unwrap());
    let name = words.get(1).map_or("all_reduce", |word| word);
    let collective = *Collective::ALL.iter().find(|collective| collective.name() == name).unwrap();
    let sizes: Vec<usize> = words.iter().skip(2).map(|word| word.parse().unwrap()).collect();
    let world = match mode.as_deref() {
        Some("--tls") => World::tcp(ranks).security(Security::Tls(Secret::random().unwrap())),
        Some(_) => World::tcp(ranks).security(Security::TrustedFabric(Secret::random().unwrap())),
        None => World::tcp(ranks),
    };
    println!("{name}, {ranks} ranks, {}", mode.as_deref().unwrap_or("loopback"));
    println!("{:>12} {:>12} {:>10} {:>10} {:>8}", "bytes", "us", "busbw", "raw", "of raw");
    for bytes in sizes {
        let limit = raw(bytes.clamp(1 << 20, 64 << 20));
        let seconds = call(&world, collective, bytes);
        let busbw = bytes as f64 / seconds / 1e9 * collective.bus_factor(ranks);
        println!(
            "{bytes:>12} {:>12.1} {busbw:>10.3} {limit:>10.3} {:>7.0}%",
            seconds * 1e6,
            100.0 * busbw / limit
        );
    }
}
