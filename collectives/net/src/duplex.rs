//! Measures the best rate of this machine's sockets: the limit of a collective over TCP, measured in the same run.

use super::socket;
use crate::format::FRAGMENT;
use crate::{Error, Result};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Barrier;
use std::time::Instant;

/// The number of tries. The result is their median.
const TRIES: usize = 5;

/// A socket to one peer, and its buffers.
struct Half {
    socket: TcpStream,
    out: Vec<u8>,
    into: Vec<u8>,
}

/// The seconds in which each of `ranks` threads sends `bytes` bytes and receives as many, divided among its connections to all
/// other threads. The threads only copy between memory of that size and loopback sockets, a fragment at a time; the sockets have
/// the settings of the TCP backend. A try counts the slowest thread; the result is the median of the tries.
///
/// # Errors
/// A loopback socket cannot be made, or breaks.
pub fn duplex(ranks: u32, bytes: usize) -> Result<f64> {
    let failed = |error: io::Error| Error::System(format!("cannot create loopback sockets: {error}"));
    let halves = mesh(ranks.max(2) as usize, bytes).map_err(failed)?;
    let barrier = Barrier::new(halves.len());
    let results: Vec<_> = std::thread::scope(|scope| {
        let start = |halves| scope.spawn(|| exchange(halves, &barrier));
        let threads: Vec<_> = halves.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    let mut slowest = [0f64; TRIES];
    for result in results {
        let panicked = |_| Error::System("loopback sockets: a thread panicked".into());
        let times = result.map_err(panicked)?.map_err(failed)?;
        slowest.iter_mut().zip(times).for_each(|(slowest, time)| *slowest = slowest.max(time));
    }
    slowest.sort_by(f64::total_cmp);
    Ok(slowest[TRIES / 2])
}

/// The ends of connections between all pairs, by threads.
fn mesh(ranks: usize, bytes: usize) -> io::Result<Vec<Vec<Half>>> {
    let mut all: Vec<Vec<Half>> = (0..ranks).map(|_| Vec::new()).collect();
    let each = bytes.div_ceil(ranks - 1);
    for one in 0..ranks {
        for other in 0..one {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            socket::listen(&listener);
            let near = socket::connect_now(listener.local_addr()?)?;
            let (far, _) = listener.accept()?;
            for (socket, at) in [(near, one), (far, other)] {
                socket.set_nodelay(true)?;
                socket.set_nonblocking(true)?;
                all[at].push(Half { socket, out: vec![1; each], into: vec![1; each] });
            }
        }
    }
    Ok(all)
}

/// The seconds of every try. All tries are made even after one fails, so that the other threads do not wait for ever.
fn exchange(mut halves: Vec<Half>, barrier: &Barrier) -> io::Result<[f64; TRIES]> {
    let mut times = Ok([0.0; TRIES]);
    for at in 0..TRIES {
        barrier.wait();
        match (once(&mut halves), &mut times) {
            (Ok(seconds), Ok(times)) => times[at] = seconds,
            (Err(error), Ok(_)) => {
                // Closing these ends lets the other ends see the failure, too.
                halves.clear();
                times = Err(error);
            }
            (_, Err(_)) => {}
        }
    }
    times
}

#[allow(clippy::disallowed_methods, reason = "a measurement of real time")]
fn once(halves: &mut [Half]) -> io::Result<f64> {
    let start = Instant::now();
    let mut at = vec![(0, 0); halves.len()];
    loop {
        let (mut moved, mut left) = (false, false);
        for (Half { socket, out, into }, (sent, got)) in halves.iter_mut().zip(&mut at) {
            if *sent < out.len() {
                let end = out.len().min(*sent + FRAGMENT);
                let some = if_ready(socket.write(&out[*sent..end]))?;
                *sent += some;
                moved |= some > 0;
            }
            if *got < into.len() {
                let end = into.len().min(*got + FRAGMENT);
                let some = match socket.read(&mut into[*got..end]) {
                    Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                    other => if_ready(other)?,
                };
                *got += some;
                moved |= some > 0;
            }
            left |= *sent < out.len() || *got < into.len();
        }
        if !left {
            return Ok(start.elapsed().as_secs_f64());
        }
        if !moved {
            std::thread::yield_now();
        }
    }
}

/// Counts a socket that is not ready as 0 bytes moved.
fn if_ready(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_reaches_the_rank_that_it_is_sent_to() {
        let mut all = mesh(3, 2 << 20).unwrap();
        for (rank, halves) in all.iter_mut().enumerate() {
            assert_eq!(halves.len(), 2);
            halves.iter_mut().for_each(|half| half.out.fill(10 + rank as u8));
        }
        std::thread::scope(|scope| {
            for halves in &mut all {
                scope.spawn(|| once(halves).unwrap());
            }
        });
        let came = all.iter().map(|halves| {
            let whole =
                |half: &Half| half.into.iter().all(|byte| *byte == half.into[0]).then_some(half.into[0]);
            let mut from: Vec<Option<u8>> = halves.iter().map(whole).collect();
            from.sort();
            from
        });
        let others = [[Some(11), Some(12)], [Some(10), Some(12)], [Some(10), Some(11)]];
        assert_eq!(came.collect::<Vec<_>>(), others);
    }
    #[test]
    fn an_exchange_of_few_and_of_many_bytes_ends_with_a_time() {
        for bytes in [1 << 10, 4 << 20] {
            let seconds = duplex(2, bytes).unwrap();
            assert!(seconds.is_finite() && seconds > 0.0, "{bytes} bytes took {seconds} s");
        }
    }
}
