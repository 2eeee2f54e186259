//! A proxy in front of the ranks' listeners that applies fault rules to real connections: the same rules as in the simulator, with the
//! same meaning.
//!
//! ```text
//! rank 3 == connection ==> proxy of rank 1 == connection ==> rank 1
//!                            |  handshake: forwarded; names the two ranks and the purpose
//!                            '- frames: a decision for each: pass, drop, damage, repeat, delay, cut
//! ```
//!
//! The proxy reads headers, so it works for plain connections only. TCP itself never loses, repeats or reorders a message; the rules do
//! so to test the checks in the frames.

use super::control::runtime;
use super::frame::{FrameHeader, HEADER, Kind};
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

/// A frame that the proxy is about to forward.
#[derive(Clone, Copy, Debug)]
pub struct Passing {
    /// The rank that sent the frame.
    pub from: Rank,
    /// The rank that the frame is for.
    pub to: Rank,
    /// Whether the frame belongs to an operation; otherwise it is a frame of the control connection.
    pub is_data: bool,
    /// The operation of the frame.
    pub operation: u64,
    /// The round of the frame.
    pub round: u64,
    /// The number of the fragment in its message, from 0.
    pub at: u32,
    /// The number of payload bytes.
    pub bytes: usize,
    /// The number of the message from its sender to its receiver, from 1.
    pub nth: u64,
    /// The time since the proxy began.
    pub time: Duration,
}

/// What the proxy does to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyAction {
    /// The frame passes.
    Pass,
    /// The frame is dropped.
    Drop,
    /// This bit of header and payload, modulo their number of bits, is flipped.
    Flip(u64),
    /// The frame is sent twice.
    Twice,
    /// The frame and all frames behind it are delayed.
    Wait(Duration),
    /// The connection ends within the frame, in an orderly way or by a reset.
    #[cfg_attr(not(any(test, feature = "testing")), allow(dead_code, reason = "a decision of a test cuts"))]
    Cut {
        /// Bytes of the frame that still pass.
        after: usize,
        /// Whether the connection is reset.
        reset: bool,
    },
    /// All connections of the sender are reset, as if its process had died.
    Kill,
}

/// Decides what the proxy does to each frame.
pub trait FrameDecision: Send + Sync {
    /// Called once per frame, and again after every [`ProxyAction::Wait`].
    fn decide(&self, frame: &Passing) -> ProxyAction;
}

impl<F: Fn(&Passing) -> ProxyAction + Send + Sync> FrameDecision for F {
    fn decide(&self, frame: &Passing) -> ProxyAction {
        self(frame)
    }
}

/// Decisions by fault rules. Random rules delay, drop or damage the same messages in every run.
pub struct Rules {
    faults: Faults,
    delayed: Mutex<BTreeMap<(Rank, Rank, u64), Duration>>,
}

impl Rules {
    /// The decisions that follow from these fault rules.
    pub fn new(faults: Faults) -> Rules {
        Rules { faults, delayed: Mutex::default() }
    }
}

impl FrameDecision for Rules {
    fn decide(&self, frame: &Passing) -> ProxyAction {
        let at = Picos(u64::try_from(frame.time.as_nanos() * 1_000).unwrap_or(u64::MAX));
        let dead = match self.faults.death(frame.from) {
            Some(Death::At(time)) => at >= time,
            Some(Death::In { operation, round }) => {
                frame.is_data && (frame.operation, frame.round) >= (operation, round)
            }
            None => false,
        };
        if dead {
            return ProxyAction::Kill;
        }
        if self.faults.is_partitioned(frame.from, frame.to, at) {
            return ProxyAction::Wait(Duration::from_millis(1));
        }
        if !frame.is_data {
            return ProxyAction::Pass;
        }
        let Passing { from, to, operation, round, nth, .. } = *frame;
        let verdict = self.faults.verdict(&Message { from, to, operation, round, nth, at });
        let late = verdict.delay + verdict.held.unwrap_or_default();
        if late > Picos::ZERO && frame.at == 0 {
            let mut delayed = lock(&self.delayed);
            let until =
                *delayed.entry((from, to, nth)).or_insert(frame.time + Duration::from_nanos(late.0 / 1_000));
            if frame.time < until {
                return ProxyAction::Wait(until - frame.time);
            }
            delayed.remove(&(from, to, nth));
        }
        match (verdict.dropped, verdict.corrupted, verdict.duplicated) {
            (true, ..) => ProxyAction::Drop,
            // A bit of the payload is flipped; if the frame has no payload, a bit of the header.
            (_, Some(bit), _) if frame.bytes > 0 => {
                ProxyAction::Flip(8 * HEADER as u64 + bit % (8 * frame.bytes as u64))
            }
            (_, Some(bit), _) => ProxyAction::Flip(bit),
            (_, _, true) => ProxyAction::Twice,
            _ => ProxyAction::Pass,
        }
    }
}

/// Listeners that forward connections, one in front of each rank's own listener. When the proxy is dropped, its listeners and all
/// connections end.
pub struct Proxy {
    addresses: Vec<SocketAddr>,
    stop: Arc<watch::Sender<Stopped>>,
}

/// The ranks whose connections the proxy has ended.
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
    decision: Arc<dyn FrameDecision>,
    start: Instant,
    /// The number of messages so far, by sender and receiver.
    counts: Mutex<BTreeMap<(Rank, Rank), u64>>,
    stop: Arc<watch::Sender<Stopped>>,
}

impl Proxy {
    /// Starts a proxy in front of these listeners, in order of ranks.
    ///
    /// # Errors
    /// No loopback port is available.
    pub fn start(targets: &[SocketAddr], decision: Arc<dyn FrameDecision>) -> Result<Proxy> {
        let failed = |error: std::io::Error| {
            Error::System(format!("cannot start the proxy that injects faults: {error}"))
        };
        let runtime = runtime()?;
        let _guard = runtime.enter();
        let stop = Arc::new(watch::Sender::new(Stopped::default()));
        #[allow(clippy::disallowed_methods, reason = "connections are on real time, and so are their faults")]
        let start = Instant::now();
        let shared = Arc::new(Shared { decision, start, counts: Mutex::default(), stop: stop.clone() });
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

    /// The addresses to connect to in place of the ranks' own, in order of ranks.
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
    // The descriptors stay open to the end, so that a reset is sent only once both directions have stopped.
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

/// A connection whose handshake was forwarded: its two directions, its purpose and its two ranks.
struct Shaken {
    near_out: WriteHalf<TcpStream>,
    far_out: WriteHalf<TcpStream>,
    is_data: bool,
    from: Rank,
    to: Rank,
}

/// Forwards the handshake of a connection.
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

/// What follows after a frame.
enum Next {
    /// The next frame follows.
    Frame,
    /// The direction ends.
    End,
    /// The proxy forwards nothing more; the caller ends the connection.
    Silence,
}

impl Direction<'_> {
    /// Forwards frames, by the decisions on them, until the connection ends.
    async fn pass_on(&self, mut near: ReadHalf<TcpStream>, mut far: WriteHalf<TcpStream>) {
        let (mut nth, mut frame) = (0, Vec::new());
        while let Some(header) = read(&mut near, &mut frame).await {
            // No frame of a killed rank is forwarded any more, not even one in which the rank reports that it lost a peer.
            if self.shared.stop.borrow().ends(self.from, self.to) {
                return std::future::pending().await;
            }
            if header.at == 0 && header.kind == Kind::Data {
                let mut counts = lock(&self.shared.counts);
                let count = counts.entry((self.from, self.to)).or_default();
                *count += 1;
                nth = *count;
            }
            let action = self.decide(&header, nth).await;
            match self.act(action, &mut frame, &mut far).await {
                Next::Frame => {}
                Next::End => break,
                Next::Silence => return std::future::pending().await,
            }
        }
        let _ = far.shutdown().await;
    }

    /// The final decision on a frame, after all delays.
    async fn decide(&self, header: &FrameHeader, nth: u64) -> ProxyAction {
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
            match self.shared.decision.decide(&passing) {
                ProxyAction::Wait(long) => sleep(long).await,
                other => return other,
            }
        }
    }

    /// Applies the decision to a frame.
    async fn act(&self, action: ProxyAction, frame: &mut [u8], far: &mut WriteHalf<TcpStream>) -> Next {
        let sent = match action {
            ProxyAction::Drop => Ok(()),
            ProxyAction::Flip(bit) => {
                let bit = (bit % (8 * frame.len() as u64)) as usize;
                frame[bit / 8] ^= 1 << (bit % 8);
                far.write_all(frame).await
            }
            ProxyAction::Twice => far.write_all(&[&frame[..], frame].concat()).await,
            ProxyAction::Cut { after, reset: hard } => {
                let _ = far.write_all(&frame[..after.min(frame.len())]).await;
                if !hard {
                    return Next::End;
                }
                // Gives the forwarded frames 5 ms to arrive: the reset would overtake them.
                sleep(Duration::from_millis(5)).await;
                self.reset.send_replace(true);
                return Next::Silence;
            }
            ProxyAction::Kill => {
                self.shared.stop.send_modify(|stopped| _ = stopped.killed.insert(self.from));
                return Next::Silence;
            }
            ProxyAction::Pass | ProxyAction::Wait(_) => far.write_all(frame).await,
        };
        if sent.is_ok() { Next::Frame } else { Next::End }
    }
}

/// Reads the next frame, header first. `None` if the connection ended or the bytes are not a frame.
async fn read(socket: &mut ReadHalf<TcpStream>, frame: &mut Vec<u8>) -> Option<FrameHeader> {
    frame.resize(HEADER, 0);
    socket.read_exact(&mut frame[..HEADER]).await.ok()?;
    let header = FrameHeader::decode(frame.first_chunk()?).ok()?;
    frame.resize(HEADER + header.bytes as usize, 0);
    socket.read_exact(&mut frame[HEADER..]).await.ok()?;
    Some(header)
}
