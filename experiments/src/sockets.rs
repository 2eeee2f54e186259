//! What loopback sockets of this machine do at best: the limit of collectives over TCP, measured beside them.

use crate::failure::{Failure, Outcome};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Barrier;
use std::time::Instant;

/// What is written and read at once, and again and again: it stays in a core's cache.
const PIECE: usize = 256 << 10;
/// Bytes each way per try.
const EACH: usize = 64 << 20;
/// The best of so many.
const TRIES: usize = 5;

/// GB/s (1e9 bytes) each way of two threads that write and read at once over one connection and do nothing else.
///
/// # Errors
/// No loopback socket can be had.
pub fn duplex_gbps() -> Outcome<f64> {
    let failed = |error: std::io::Error| Failure::run(format!("loopback sockets: {error}"));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    let near = TcpStream::connect(listener.local_addr().map_err(failed)?).map_err(failed)?;
    let (far, _) = listener.accept().map_err(failed)?;
    let barrier = Barrier::new(2);
    let times = std::thread::scope(|scope| {
        let other = scope.spawn(|| exchange(far, &barrier));
        let mine = exchange(near, &barrier);
        (mine, other.join())
    });
    let (mine, Ok(theirs)) = times else { return Err(Failure::run("loopback sockets: a thread panicked")) };
    let seconds = mine.map_err(failed)?.max(theirs.map_err(failed)?);
    Ok(EACH as f64 / seconds / 1e9)
}

/// Seconds of the best try. Every try is made, whatever becomes of one, so that the other side does not wait for ever.
fn exchange(mut socket: TcpStream, barrier: &Barrier) -> std::io::Result<f64> {
    let (out, mut into) = (vec![1u8; PIECE], vec![1u8; PIECE]);
    let mut best =
        socket.set_nodelay(true).and_then(|()| socket.set_nonblocking(true)).map(|()| f64::INFINITY);
    for _ in 0..TRIES {
        barrier.wait();
        let tried = once(&mut socket, &out, &mut into);
        best = best.and_then(|best| tried.map(|seconds| best.min(seconds)));
    }
    best
}

#[allow(clippy::disallowed_methods, reason = "a measurement of real time")]
fn once(socket: &mut TcpStream, out: &[u8], into: &mut [u8]) -> std::io::Result<f64> {
    let start = Instant::now();
    let (mut sent, mut got) = (0, 0);
    while sent < EACH || got < EACH {
        let mut moved = false;
        match socket.write(&out[..PIECE.min(EACH - sent)]) {
            Ok(some) => (sent, moved) = (sent + some, some > 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        match socket.read(&mut into[..PIECE.min(EACH - got)]) {
            Ok(0) if got < EACH => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(some) => (got, moved) = (got + some, moved || some > 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if !moved {
            std::thread::yield_now();
        }
    }
    Ok(start.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    #[test]
    fn sockets_carry_something() {
        let rate = super::duplex_gbps().unwrap();
        assert!(rate > 0.001 && rate < 1000.0, "{rate}");
    }
}
