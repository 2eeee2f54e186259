//! A proxy in front of the ranks' listeners that does to real connections what fault rules say: the same rules, with the
//! same meaning, that the simulator takes.
//!
//! ```text
//! rank 3 == connection ==> proxy of rank 1 == connection ==> rank 1
//!                            |  handshake: passed on; says who connects, and for what
//!                            '- frames: each is asked about: pass, drop, damage, repeat, delay, cut
//! ```
//!
//! It reads headers, so it stands before plain connections only. Over TCP a message that never comes, comes twice or is
//! overtaken cannot happen on its own; what the rules make of it shows what the frames' own checks find.

use super::control::runtime;
use super::frame::{HEADER, Header, Kind};
use crate::{Error, Rank, Result};
use allfold_base::lock;
use allfold_net::handshake::{OPENING, PROOF, WELCOME};
use allfold_sim::Faults;
use allfold_sim::Picos;
use allfold_sim::fault::{Death, Message};
use socket2::SockRef;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;

/// A frame on its way.
#[derive(Clone, Copy, Debug)]
pub struct Passing {
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// Whether it belongs to an operation; else to the control connection.
    pub is_data: bool,
    /// The operation of the frame.
    pub operation: u64,
    /// The round of the frame.
    pub round: u64,
    /// Which fragment of its message.
    pub at: u32,
    /// Bytes after its header.
    pub bytes: usize,
    /// The how-manieth message from its sender to its receiver, from 1.
    pub nth: u64,
    /// Since the proxy began.
    pub time: Duration,
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The frame passes.
    Pass,
    /// The frame is dropped.
    Drop,
    /// This bit of header and payload, modulo how many there are, is flipped.
    Flip(u64),
    /// The frame is sent twice.
    Twice,
    /// The frame and all frames behind it are delayed.
    Wait(Duration),
    /// The connection ends after this many bytes of it: cleanly, or by a reset.
    #[cfg_attr(not(any(test, feature = "testing")), allow(dead_code, reason = "a judge of a test cuts"))]
    Cut {
        /// Bytes of the frame that still pass.
        after: usize,
        /// By a reset.
        reset: bool,
    },
    /// All connections of its sender are reset: its process is gone.
    Kill,
}

/// Decides what the proxy does to each frame.
pub trait Judge: Send + Sync {
    /// Asked once per frame, and again after every [`Action::Wait`].
    fn judge(&self, frame: &Passing) -> Action;
}

impl<F: Fn(&Passing) -> Action + Send + Sync> Judge for F {
    fn judge(&self, frame: &Passing) -> Action {
        self(frame)
    }
}

/// Fault rules; random ones delay, drop or damage the same messages in every run.
pub struct Rules {
    faults: Faults,
    delayed: Mutex<BTreeMap<(Rank, Rank, u64), Duration>>,
}

impl Rules {
    /// These.
    pub fn new(faults: Faults) -> Rules {
        Rules { faults, delayed: Mutex::default() }
    }
}

impl Judge for Rules {
    fn judge(&self, frame: &Passing) -> Action {
        let at = Picos(u64::try_from(frame.time.as_nanos() * 1_000).unwrap_or(u64::MAX));
        for rank in [frame.from, frame.to] {
            let dead = match self.faults.death(rank) {
                Some(Death::At(time)) => at >= time,
                Some(Death::In { operation, round }) => {
                    frame.is_data
                        && rank == frame.from
                        && (frame.operation, frame.round) >= (operation, round)
                }
                None => false,
            };
            if dead && rank == frame.from {
                return Action::Kill;
            }
        }
        if self.faults.apart(frame.from, frame.to, at) {
            return Action::Wait(Duration::from_millis(1));
        }
        if !frame.is_data {
            return Action::Pass;
        }
        let Passing { from, to, operation, round, nth, .. } = *frame;
        let verdict = self.faults.verdict(&Message { from, to, operation, round, nth, at });
        let late = verdict.delay + verdict.held.unwrap_or_default();
        if late > Picos::ZERO && frame.at == 0 {
            let mut delayed = lock(&self.delayed);
            let until =
                *delayed.entry((from, to, nth)).or_insert(frame.time + Duration::from_nanos(late.0 / 1_000));
            if frame.time < until {
                return Action::Wait(until - frame.time);
            }
            delayed.remove(&(from, to, nth));
        }
        match (verdict.dropped, verdict.corrupted, verdict.duplicated) {
            (true, ..) => Action::Drop,
            // The payload's bits; a frame without one has those of its header.
            (_, Some(bit), _) if frame.bytes > 0 => {
                Action::Flip(8 * HEADER as u64 + bit % (8 * frame.bytes as u64))
            }
            (_, Some(bit), _) => Action::Flip(bit),
            (_, _, true) => Action::Twice,
            _ => Action::Pass,
        }
    }
}

/// Listeners that pass connections on, one before each rank's own. They end when dropped, and all connections with them.
pub struct Proxy {
    addresses: Vec<SocketAddr>,
    stop: Arc<watch::Sender<Stopped>>,
}

/// The pairs of ranks whose connections the proxy resets.
#[derive(Default)]
struct Stopped {
    killed: BTreeSet<Rank>,
    over: bool,
}

impl Stopped {
    fn ends(&self, one: Rank, other: Rank) -> bool {
        self.over || self.killed.contains(&one) || self.killed.contains(&other)
    }
}

struct Shared {
    judge: Arc<dyn Judge>,
    start: Instant,
    /// Messages so far, by sender and receiver.
    counts: Mutex<BTreeMap<(Rank, Rank), u64>>,
    stop: Arc<watch::Sender<Stopped>>,
}

impl Proxy {
    /// Before these listeners, in order of ranks.
    ///
    /// # Errors
    /// No loopback port can be had.
    pub fn start(targets: &[SocketAddr], judge: Arc<dyn Judge>) -> Result<Proxy> {
        let failed = |error: std::io::Error| {
            Error::System(format!("cannot start the proxy that injects faults: {error}"))
        };
        let runtime = runtime()?;
        let _guard = runtime.enter();
        let stop = Arc::new(watch::Sender::new(Stopped::default()));
        #[allow(clippy::disallowed_methods, reason = "connections are on real time, and so are their faults")]
        let start = Instant::now();
        let shared = Arc::new(Shared { judge, start, counts: Mutex::default(), stop: stop.clone() });
        let mut addresses = Vec::with_capacity(targets.len());
        for target in targets.iter().copied() {
            let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            addresses.push(listener.local_addr().map_err(failed)?);
            let listener = TcpListener::from_std(listener).map_err(failed)?;
            let (shared, mut over) = (shared.clone(), stop.subscribe());
            runtime.spawn(async move {
                loop {
                    let accepted = tokio::select! {
                        accepted = listener.accept() => accepted,
                        _ = over.wait_for(|stopped| stopped.over) => return,
                    };
                    if let Ok((socket, _)) = accepted {
                        tokio::spawn(connection(socket, target, shared.clone()));
                    }
                }
            });
        }
        Ok(Proxy { addresses, stop })
    }

    /// Where to connect to instead, in order of ranks.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.send_modify(|stopped| stopped.over = true);
    }
}

async fn connection(near: TcpStream, target: SocketAddr, shared: Arc<Shared>) {
    let Ok(far) = TcpStream::connect(target).await else { return };
    for socket in [&near, &far] {
        let _ = socket.set_nodelay(true);
    }
    let reset = Arc::new(watch::Sender::new(false));
    // Kept to the end, so that a reset is sent only once both directions have stopped.
    let (near_fd, far_fd) = (SockRef::from(&near).try_clone(), SockRef::from(&far).try_clone());
    let (mut near_in, near_out) = tokio::io::split(near);
    let (mut far_in, far_out) = tokio::io::split(far);
    let shaken = shake(&mut near_in, near_out, &mut far_in, far_out).await;
    let Some(Shaken { near_out, far_out, is_data, from, to }) = shaken else { return };
    let mut stop = shared.stop.subscribe();
    let mut cut = reset.subscribe();
    let direction = |from, to| Direction { from, to, is_data, shared: &shared, reset: &reset };
    let (forth, back) = (direction(from, to), direction(to, from));
    let there = forth.pass_on(near_in, far_out);
    let back = back.pass_on(far_in, near_out);
    tokio::select! {
        _ = async { tokio::join!(there, back) } => return,
        _ = stop.wait_for(|stopped| stopped.ends(from, to)) => {}
        _ = cut.wait_for(|cut| *cut) => {}
    }
    for socket in [near_fd, far_fd].into_iter().flatten() {
        let _ = socket.set_linger(Some(Duration::ZERO));
    }
}

/// A connection whose handshake was passed on: its two directions, its purpose and its two ranks.
struct Shaken {
    near_out: WriteHalf<TcpStream>,
    far_out: WriteHalf<TcpStream>,
    is_data: bool,
    from: Rank,
    to: Rank,
}

/// Passes a handshake on.
async fn shake(
    near_in: &mut ReadHalf<TcpStream>,
    mut near_out: WriteHalf<TcpStream>,
    far_in: &mut ReadHalf<TcpStream>,
    mut far_out: WriteHalf<TcpStream>,
) -> Option<Shaken> {
    let mut opening = [0; OPENING];
    near_in.read_exact(&mut opening).await.ok()?;
    far_out.write_all(&opening).await.ok()?;
    far_in.read_exact(&mut opening).await.ok()?;
    near_out.write_all(&opening).await.ok()?;
    let mut proof = [0; PROOF];
    near_in.read_exact(&mut proof).await.ok()?;
    far_out.write_all(&proof).await.ok()?;
    let mut welcome = [0; WELCOME];
    far_in.read_exact(&mut welcome).await.ok()?;
    near_out.write_all(&welcome).await.ok()?;
    let identity = allfold_net::handshake::PeerIdentity::peek(&proof)?;
    let is_data = identity.purpose != allfold_net::handshake::Purpose::Control;
    Some(Shaken { near_out, far_out, is_data, from: identity.rank, to: identity.peer })
}

/// One direction of a connection.
struct Direction<'a> {
    from: Rank,
    to: Rank,
    is_data: bool,
    shared: &'a Shared,
    reset: &'a watch::Sender<bool>,
}

/// What follows on a frame.
enum Next {
    /// The next one.
    Frame,
    /// The end of this direction.
    End,
    /// The proxy passes nothing on; the caller that chose this ends the connection.
    Silence,
}

impl Direction<'_> {
    /// Passes frames on, as the judge says, until there are no more.
    async fn pass_on(&self, mut near: ReadHalf<TcpStream>, mut far: WriteHalf<TcpStream>) {
        let (mut nth, mut frame) = (0, Vec::new());
        while let Some(header) = read(&mut near, &mut frame).await {
            // The dead say nothing: not even that they have lost those from whom they were cut off a moment earlier.
            if self.shared.stop.borrow().ends(self.from, self.to) {
                return std::future::pending().await;
            }
            if header.at == 0 && header.kind == Kind::Data {
                let mut counts = lock(&self.shared.counts);
                let count = counts.entry((self.from, self.to)).or_default();
                *count += 1;
                nth = *count;
            }
            let action = self.judge(&header, nth).await;
            match self.act(action, &mut frame, &mut far).await {
                Next::Frame => {}
                Next::End => break,
                Next::Silence => return std::future::pending().await,
            }
        }
        let _ = far.shutdown().await;
    }

    /// The judge's last word on a frame, after all the waiting that it wants.
    async fn judge(&self, header: &Header, nth: u64) -> Action {
        loop {
            let passing = Passing {
                from: self.from,
                to: self.to,
                is_data: self.is_data,
                operation: header.sequence,
                round: header.round.into(),
                at: header.at,
                bytes: header.bytes as usize,
                nth,
                time: self.shared.start.elapsed(),
            };
            match self.shared.judge.judge(&passing) {
                Action::Wait(long) => sleep(long).await,
                other => return other,
            }
        }
    }

    /// Does to a frame what was decided.
    async fn act(&self, action: Action, frame: &mut [u8], far: &mut WriteHalf<TcpStream>) -> Next {
        let sent = match action {
            Action::Drop => Ok(()),
            Action::Flip(bit) => {
                let bit = (bit % (8 * frame.len() as u64)) as usize;
                frame[bit / 8] ^= 1 << (bit % 8);
                far.write_all(frame).await
            }
            Action::Twice => far.write_all(&[&frame[..], frame].concat()).await,
            Action::Cut { after, reset: hard } => {
                let _ = far.write_all(&frame[..after.min(frame.len())]).await;
                if !hard {
                    return Next::End;
                }
                // Waits until the frames that were passed on have arrived: the reset would overtake them.
                sleep(Duration::from_millis(5)).await;
                self.reset.send_replace(true);
                return Next::Silence;
            }
            Action::Kill => {
                self.shared.stop.send_modify(|stopped| _ = stopped.killed.insert(self.from));
                return Next::Silence;
            }
            Action::Pass | Action::Wait(_) => far.write_all(frame).await,
        };
        if sent.is_ok() { Next::Frame } else { Next::End }
    }
}

/// Reads the next frame, header first; none where there is no more, or what comes is no frame.
async fn read(socket: &mut ReadHalf<TcpStream>, frame: &mut Vec<u8>) -> Option<Header> {
    frame.resize(HEADER, 0);
    socket.read_exact(&mut frame[..HEADER]).await.ok()?;
    let header = Header::decode(frame.first_chunk()?).ok()?;
    frame.resize(HEADER + header.bytes as usize, 0);
    socket.read_exact(&mut frame[HEADER..]).await.ok()?;
    Some(header)
}
