//! Ranks as threads over loopback sockets, with a proxy in front of them that applies a test's decisions.

use allfold_collectives::tcp::{
    Deadlines, FrameDecision, Passing, PeerOptions, Proxy, ProxyAction, Security,
};
use allfold_collectives::{Communicator, Error, Rank, ReduceOp};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, mpsc};
use std::time::Duration;

pub const JOB: [u8; 16] = [7; 16];

/// Deadlines that are short enough for tests and long enough for a busy machine.
pub fn deadlines() -> Deadlines {
    Deadlines {
        operation: Duration::from_secs(20),
        start: Duration::from_secs(20),
        handshake: Duration::from_secs(5),
        beat: Duration::from_millis(50),
        dead: Duration::from_secs(10),
    }
}

/// A decision that passes every frame.
pub fn nothing() -> Arc<dyn FrameDecision> {
    Arc::new(|_: &Passing| ProxyAction::Pass)
}

pub fn listeners(ranks: u32) -> (Vec<TcpListener>, Vec<SocketAddr>) {
    let listeners: Vec<_> = (0..ranks).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
    (listeners, addresses)
}

pub fn peers(
    rank: u32,
    listener: TcpListener,
    addresses: &[SocketAddr],
    deadlines: Deadlines,
) -> PeerOptions {
    let (job, epoch, security) = (JOB, 0, Security::Loopback);
    PeerOptions {
        rank: Rank(rank),
        job,
        epoch,
        listener,
        addresses: addresses.to_vec(),
        host: None,
        security,
        deadlines,
    }
}

/// The result of `body` on every rank, behind a proxy. A hang fails the test, by real time.
pub fn run<R: Send + 'static>(
    ranks: u32,
    decision: Arc<dyn FrameDecision>,
    deadlines: Deadlines,
    body: impl Fn(&Communicator) -> Result<R, Error> + Send + Sync + Clone + 'static,
) -> Vec<Result<R, Error>> {
    let (listeners, addresses) = listeners(ranks);
    let proxy = Proxy::start(&addresses, decision).unwrap();
    let (done, results) = mpsc::channel();
    for (rank, listener) in (0..).zip(listeners) {
        let peers = peers(rank, listener, proxy.addresses(), deadlines);
        let (done, body) = (done.clone(), body.clone());
        std::thread::spawn(move || {
            let result = Communicator::over_tcp(peers).and_then(|comm| body(&comm));
            done.send((rank, result)).unwrap();
        });
    }
    let timeout = deadlines.operation + deadlines.dead + Duration::from_secs(10);
    let mut all: Vec<_> = (0..ranks).map(|_| results.recv_timeout(timeout).expect("a rank hangs")).collect();
    all.sort_by_key(|(rank, _)| *rank);
    all.into_iter().map(|(_, result)| result).collect()
}

/// Sums over all ranks `count` elements that differ by rank and index, and checks every sum.
pub fn sum(comm: &Communicator, count: usize) -> Result<(), Error> {
    let of = |rank: u32, i: usize| (rank as usize * 31 + i % 1000) as f32;
    let mut data: Vec<f32> = (0..count).map(|i| of(comm.rank().0, i)).collect();
    comm.all_reduce(&mut data, ReduceOp::Sum)?;
    for (i, got) in data.into_iter().enumerate() {
        let want: f32 = (0..comm.size()).map(|rank| of(rank, i)).sum();
        assert_eq!(got, want, "a wrong result, element {i}");
    }
    Ok(())
}
