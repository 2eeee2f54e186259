//! The speed of collectives over loopback TCP, compared with raw sockets in the same run.
//!
//! ```sh
//! cargo run --release -p allfold-collectives --example loopback -- 2 all_reduce 4096 1048576 67108864
//! ```
//!
//! `raw` is the rate of as many threads that only write and read as many bytes at the same time ([`duplex`]), before and after; busbw /
//! raw is the part of this rate that the collective reaches. Ranks are threads of this process, each with sockets of its own. With
//! `--per-host RANKS`, messages are sent through memory as if each host had this many ranks; `--algo NAME` and `--window STEPS` choose
//! another algorithm, and how many of its steps are in flight.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a measurement, on real time")]

use allfold_collectives::tcp::{Secret, Security, duplex};
use allfold_collectives::world::OnSockets;
use allfold_collectives::{Collective, Communicator, Error, ReduceOp, World};
use std::time::Instant;

/// Median seconds of a call.
fn call(world: &World<OnSockets>, collective: Collective, bytes: usize) -> Result<f64, Error> {
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
            // The slowest rank's time counts, and all ranks stop together.
            comm.all_reduce(&mut took, ReduceOp::Max)?;
            times.push(took[0]);
            if took[1] > 0.0 && times.len() >= 5 {
                break;
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times)
    });
    let times = &times?[0];
    Ok(times[times.len() / 2])
}

/// Ends the program with a message, because the command line is invalid.
fn usage(why: &str) -> ! {
    eprintln!(
        "loopback: {why}\nusage: loopback [--tls | --fabric] [--per-host RANKS] [--algo NAME] [--window STEPS] \
         [--segment BYTES] [RANKS [COLLECTIVE [BYTES ..]]]"
    );
    std::process::exit(2)
}

fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| usage(&format!("`{word}` is no number that can stand there")))
}

fn main() {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let mode = words.iter().position(|word| word == "--tls" || word == "--fabric").map(|at| words.remove(at));
    let option = |words: &mut Vec<String>, name: &str| {
        let at = words.iter().position(|word| word == name)?;
        let value = words.get(at + 1).cloned().unwrap_or_else(|| usage(&format!("{name} needs a value")));
        words.drain(at..at + 2);
        Some(value)
    };
    let each = option(&mut words, "--per-host");
    let (algorithm, window) = (option(&mut words, "--algo"), option(&mut words, "--window"));
    let segment = option(&mut words, "--segment");
    let ranks: u32 = words.first().map_or(2, |word| number(word));
    let name = words.get(1).map_or("all_reduce", |word| word);
    let collective = Collective::ALL.iter().copied().find(|collective| collective.name() == name);
    let collective = collective.unwrap_or_else(|| usage(&format!("there is no collective `{name}`")));
    let sizes: Vec<usize> = words.iter().skip(2).map(|word| number(word)).collect();
    let mut world = match mode.as_deref() {
        Some("--tls") => World::tcp(ranks).security(Security::Tls(Secret::random().unwrap())),
        Some(_) => World::tcp(ranks).security(Security::TrustedFabric(Secret::random().unwrap())),
        None => World::tcp(ranks),
    };
    if let Some(ranks) = each {
        world = world.ranks_per_host(number(&ranks));
    }
    if let Some(name) = algorithm {
        world = world.algorithm(collective, &name);
    }
    if let Some(bytes) = segment {
        world = world.segment(number(&bytes));
    }
    if let Some(steps) = window {
        world = world.window(number(&steps));
    }
    println!("{name}, {ranks} ranks, {}", mode.as_deref().unwrap_or("loopback"));
    println!("{:>12} {:>12} {:>10} {:>10} {:>8}", "bytes", "us", "busbw", "raw", "of raw");
    for bytes in sizes {
        let each = (bytes.max(1 << 20) as f64 * collective.bus_factor(ranks)) as usize;
        let raw = || each as f64 / duplex(ranks, each).unwrap() / 1e9;
        let before = raw();
        let seconds = call(&world, collective, bytes).unwrap_or_else(|error| usage(&error.to_string()));
        let limit = before.max(raw());
        let busbw = bytes as f64 / seconds / 1e9 * collective.bus_factor(ranks);
        println!(
            "{bytes:>12} {:>12.1} {busbw:>10.3} {limit:>10.3} {:>7.0}%",
            seconds * 1e6,
            100.0 * busbw / limit
        );
    }
}
