//! A rank's transport over sockets.
//!
//! The calling thread moves the bytes itself: it tries every connection with pending work in turn, spins for a while if nothing moved,
//! then sleeps until a socket is ready or the waker wakes it.

use super::control;
use super::expected::Target;
use super::fault::{Fault, unreached};
use super::group::{Group, Links};
use super::node::Node;
use super::peer_connection::{Done, FrameContext, PeerConnection, Source};
use crate::contract::deadline::{after, clock};
use crate::contract::{Fingerprint, interrupt};
use crate::schedule::{Combine, Span};
use crate::transport::{Direct, Event, Frame, Memory, Monitor, NoMemory, Payload, Transport};
use crate::{Call, Error, Lost, Operation, Rank, Result};
use allfold_kernels::fused::Wants;
use allfold_net::handshake::Purpose;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a thread polls its sockets before it sleeps: about as long as waking a sleeping thread takes.
const LOOK: Duration = Duration::from_micros(60);
/// After this time without progress a rank announces its operation to the others.
const ANNOUNCE: Duration = Duration::from_millis(10);
/// How long the control connection has to report that a peer has ended. After that a broken connection counts as a failure of the
/// network.
const VERDICT: Duration = Duration::from_millis(100);
/// Limit in bytes on messages that arrive before their receive is posted, beyond `count` elements of the call for each rank.
const ASIDE: usize = 4 << 20;

/// Size of a chunk's pieces: a piece and its result fit into a core's second-level cache.
const PIECE: u64 = 512 << 10;

pub(super) struct Endpoint {
    node: Arc<Node>,
    group: Arc<Group>,
    /// The group's connections, which the endpoint owns while an operation runs.
    links: Links,
    purpose: Option<Purpose>,
    call: Arc<Call>,
    fingerprint: Fingerprint,
    aside: usize,
    due: Instant,
    /// The time since which no byte has moved.
    idle: Option<Instant>,
    announced: bool,
    seen: u64,
    ready: VecDeque<Event>,
    done: Vec<Done>,
    /// The error of a send or receive that could not be posted.
    broken: Option<Error>,
}

impl Endpoint {
    pub fn new(node: Arc<Node>, group: Arc<Group>) -> Endpoint {
        let call = Arc::new(Call::plain(Operation::PointToPoint, 0, 0, crate::DType::U8));
        Endpoint {
            node,
            group,
            links: Links::new(),
            purpose: None,
            call,
            fingerprint: Fingerprint::default(),
            aside: 0,
            due: clock(),
            idle: None,
            announced: false,
            seen: 0,
            ready: VecDeque::new(),
            done: Vec::new(),
            broken: None,
        }
    }

    /// The link to a peer. Of two ranks the higher one connects, when the link is first used.
    fn link(&mut self, peer: Rank) -> &mut PeerConnection {
        let (node, group) = (&self.node, &self.group);
        let purpose = self.purpose.unwrap_or(Purpose::Data);
        let broken = &mut self.broken;
        self.links.entry(peer).or_insert_with(|| {
            let world = group.members[peer.index()];
            if world < node.rank {
                let concerned = Arc::downgrade(group);
                let failed = move |node: &Node, error: Error| {
                    let cause = Lost::Disconnected(unreached(&error));
                    if let Some(group) = concerned.upgrade() {
                        node.fail(&group, Error::lost(peer, cause, None));
                    }
                };
                let timeout = node.deadlines.dead;
                let started = control::connect(node, world, purpose, group.stream, timeout, failed);
                if let Err(error) = started {
                    broken.get_or_insert(error);
                }
            }
            PeerConnection::new(peer)
        })
    }

    /// Returns the connections to the group.
    fn release(&mut self) {
        if let Some(purpose) = self.purpose.take() {
            self.group.put_back(purpose, std::mem::take(&mut self.links));
        }
    }

    /// Tries every connection once. Returns whether anything moved.
    fn pump(&mut self, round: u64, memory: &mut dyn Memory) -> Result<bool> {
        let context = FrameContext {
            comm: self.group.comm(),
            epoch: self.node.epoch,
            sequence: self.call.sequence,
            fingerprint: self.fingerprint,
            pool: &self.node.pool,
            aside: self.aside,
        };
        let mut moved = false;
        let mut wrong = None;
        for link in self.links.values_mut() {
            if !link.wants_in() && !link.wants_out() {
                continue;
            }
            if link.stream().is_none() {
                let purpose = self.purpose.unwrap_or(Purpose::Data);
                match self.group.arrived(purpose, link.peer) {
                    Some(stream) => link.attach(stream),
                    None => continue,
                }
            }
            let peer = link.peer;
            let sent = link.pump_out(&context, memory, &mut self.done);
            let result = sent.and_then(|sent| Ok(link.pump_in(&context, memory, &mut self.done)? | sent));
            self.ready.extend(self.done.drain(..).map(|done| match done {
                Done::Sent { lane } => Event::Sent { to: peer, lane },
                Done::Landed { lane } => Event::Landed { from: peer, lane },
                Done::Received { lane, round, payload } => Event::Received {
                    from: peer,
                    lane,
                    frame: Frame { call: self.call.clone(), round, payload },
                },
            }));
            match result {
                Ok(any) => moved |= any,
                Err(fault) => {
                    wrong = Some((peer, fault));
                    break;
                }
            }
        }
        match wrong {
            Some((peer, fault)) => Err(self.blame(peer, round, fault)),
            None => Ok(moved),
        }
    }

    /// The error of the group for a broken connection.
    fn blame(&mut self, peer: Rank, round: u64, fault: Fault) -> Error {
        let rank = self.group.me;
        let call = self.call.clone();
        let protocol = |what: String| {
            let call = Box::new(call.as_ref().clone());
            Error::Protocol { rank, peer, call, round, what }
        };
        let error = match fault {
            Fault::Wrong(what) => protocol(what),
            Fault::Disagree(sequence, theirs) => match self.purpose {
                // Point-to-point messages are numbered per pair of ranks, so the peer's call has the number of this rank's call.
                Some(Purpose::PointToPoint) => match theirs.call(sequence, "") {
                    Some(theirs) => {
                        let mine = Box::new(self.call.as_ref().clone());
                        Error::Mismatch { rank, mine, peer, theirs: Box::new(theirs) }
                    }
                    None => protocol("the peer announced an unknown call".into()),
                },
                _ => self.group.calls(|calls| calls.disagree(peer, sequence, theirs)),
            },
            Fault::Truncated | Fault::Ended(_) | Fault::Ahead(_) => {
                // A peer that has passed this operation has recorded its call, and reports a difference.
                if let Fault::Ahead(_) = fault {
                    self.node.announce(&self.group, &self.call);
                }
                // If a process died, all its connections end, the control connection too: then the rank is to blame.
                match (self.verdict(peer), fault) {
                    (Some(error), _) => error,
                    (None, Fault::Ended(how)) => {
                        Error::lost(peer, Lost::Disconnected(how), Some(Box::new(self.call.as_ref().clone())))
                    }
                    (None, Fault::Ahead(at)) => protocol(format!(
                        "messages of this operation are missing, and the peer is at operation {at} already"
                    )),
                    (None, _) => protocol("the connection ended in the middle of a frame".into()),
                }
            }
        };
        self.node.fail(&self.group, error)
    }

    /// Waits briefly for the control connections to report the cause: the group's failure, or the loss of this peer.
    fn verdict(&self, peer: Rank) -> Option<Error> {
        let until = clock() + VERDICT;
        loop {
            let found = self.group.calls(|calls| {
                let lost = calls.left(peer).map(|_| calls.lose(peer, Some(&self.call)));
                calls.failure().or(lost)
            });
            if found.is_some() || clock() >= until {
                return found;
            }
            self.nap(until);
        }
    }

    /// Checks for a failure of the group, and for the loss of a peer whose point-to-point message this rank waits for.
    fn news(&mut self) -> Result<()> {
        let peers: Vec<Rank> = match self.purpose {
            Some(Purpose::PointToPoint) => {
                let waiting = self.links.values().filter(|link| link.wants_in() || link.wants_out());
                waiting.filter(|link| link.stream().is_none()).map(|link| link.peer).collect()
            }
            _ => Vec::new(),
        };
        let (failure, lost) = self.group.calls(|calls| {
            let lost = peers.iter().find(|peer| calls.left(**peer).is_some()).copied();
            (calls.failure(), lost)
        });
        if let Some(error) = failure {
            return Err(error);
        }
        let Some(peer) = lost else { return Ok(()) };
        // The peer's connection may have been made, but not passed to this thread yet.
        let until = clock() + VERDICT;
        while clock() < until {
            if let Some(stream) = self.group.arrived(Purpose::PointToPoint, peer) {
                self.link(peer).attach(stream);
                return Ok(());
            }
            self.nap(until);
        }
        let error = self.group.calls(|calls| calls.lose(peer, Some(&self.call)));
        Err(self.node.fail(&self.group, error))
    }

    /// Sleeps briefly, or until woken.
    fn nap(&self, until: Instant) {
        let waker = &self.group.waker;
        let seen = waker.news();
        if waker.prepare_sleep(seen) {
            let timeout = until.saturating_duration_since(clock()).min(Duration::from_millis(2));
            let mut fds = [PollFd::new(waker, PollFlags::IN)];
            // After an interruption or a timeout the caller checks the connections again.
            let _ = poll(&mut fds, Some(&timespec(timeout)));
        }
        waker.finish_sleep();
    }

    /// Sleeps until a socket is ready, the waker wakes it, or `timeout` is over.
    fn park(&mut self, timeout: Duration) {
        let waker = &self.group.waker;
        let mut fds = vec![PollFd::new(waker, PollFlags::IN)];
        let mut idle = waker.prepare_sleep(self.seen);
        for link in self.links.values() {
            let (wants, stream) = (Wants { bytes: link.wants_in(), room: link.wants_out() }, link.stream());
            let Some(stream) = stream.filter(|_| wants.bytes || wants.room) else { continue };
            match stream.prepare_sleep(wants) {
                Some(flags) => fds.push(PollFd::from_borrowed_fd(stream.as_fd(), flags)),
                None => idle = false,
            }
        }
        if idle {
            let _ = poll(&mut fds, Some(&timespec(timeout)));
        }
        self.links.values_mut().for_each(PeerConnection::finish_sleep);
        waker.finish_sleep();
    }

    fn late(&self, round: u64) -> Error {
        let latest = |rank: Rank| self.links.get(&rank).and_then(|link| link.latest);
        let mut waiting_on = match self.purpose {
            Some(Purpose::PointToPoint) => Vec::new(),
            _ => self.group.calls(|calls| calls.absent(self.call.sequence, latest)),
        };
        let entered = waiting_on.is_empty();
        if entered {
            let busy = self.links.values().filter(|link| link.wants_in() || link.wants_out());
            waiting_on = busy.map(|link| link.peer).collect();
        }
        let call = Box::new(self.call.as_ref().clone());
        let after = self.node.deadline();
        Error::DeadlineExceeded { rank: self.group.me, waiting_on, entered, call, round, after }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}

impl Transport for Endpoint {
    fn enter(&mut self, call: &Arc<Call>) -> Result<()> {
        self.release();
        self.ready.clear();
        self.call = call.clone();
        self.fingerprint = Fingerprint::of(call);
        self.announced = false;
        self.idle = None;
        let bytes = usize::try_from(call.count).unwrap_or(usize::MAX).saturating_mul(call.dtype.size());
        self.aside = bytes.saturating_mul(self.group.members.len()).saturating_add(ASIDE);
        self.due = after(self.node.deadline());
        let point_to_point = call.operation == Operation::PointToPoint;
        let purpose = if point_to_point { Purpose::PointToPoint } else { Purpose::Data };
        let entered = self.group.calls(|calls| match point_to_point {
            true => calls.failure().map_or(Ok(()), Err),
            false => calls.enter(call),
        });
        entered.map_err(|error| self.node.fail(&self.group, error))?;
        let taken = || Error::System("two operations of one communicator run at once".into());
        self.links = self.group.take(purpose).ok_or_else(taken)?;
        self.purpose = Some(purpose);
        Ok(())
    }

    fn alloc(&self, bytes: usize) -> Payload {
        self.node.pool.take(bytes)
    }

    fn post_send(&mut self, to: Rank, lane: u32, frame: Frame) {
        let Ok(round) = u32::try_from(frame.round) else { return self.endless(frame.round) };
        self.link(to).send(lane, round, Source::Payload(frame.payload));
    }

    fn post_recv(&mut self, from: Rank, lane: u32, bytes: usize, _how: Combine) {
        let payload = self.node.pool.take(bytes);
        self.link(from).expect(lane, None, bytes, Target::Payload(payload));
    }

    fn wait(&mut self, round: u64) -> Result<Event> {
        self.progress(round, &mut NoMemory)
    }

    fn done(&mut self) {
        if self.purpose == Some(Purpose::Data) {
            self.group.calls(|calls| calls.done());
        }
        self.release();
    }

    fn fail(&mut self, error: Error) -> Error {
        self.node.fail(&self.group, error)
    }

    fn direct(&mut self) -> Option<&mut dyn Direct> {
        Some(self)
    }

    fn monitor(&mut self) -> Option<&mut dyn Monitor> {
        Some(self)
    }
}

impl Monitor for Endpoint {
    fn failure(&mut self) -> Result<()> {
        self.group.failure().map_or(Ok(()), Err)
    }

    fn declare(&mut self) -> Result<()> {
        if !self.announced {
            self.announced = true;
            self.node.announce(&self.group, &self.call);
        }
        self.failure()
    }

    fn deadline(&self) -> Duration {
        self.node.deadline()
    }

    fn complete(&mut self) {
        self.done();
    }
}

impl Endpoint {
    fn endless(&mut self, round: u64) {
        let what = "rounds beyond 2^32 cannot be sent over TCP".to_string();
        let call = Box::new(self.call.as_ref().clone());
        self.broken = Some(Error::Schedule { rank: self.group.me, call, round, what });
    }
}

impl Direct for Endpoint {
    fn piece(&self) -> u64 {
        PIECE
    }

    fn send_from(&mut self, to: Rank, lane: u32, round: u64, span: Span, bytes: usize) {
        let Ok(round) = u32::try_from(round) else { return self.endless(round) };
        self.link(to).send(lane, round, Source::Span(span, bytes));
    }

    fn recv_into(&mut self, from: Rank, lane: u32, round: u64, span: Span, how: Combine, bytes: usize) {
        let Ok(round) = u32::try_from(round) else { return self.endless(round) };
        self.link(from).expect(lane, Some(round), bytes, Target::Span(span, how));
    }

    fn progress(&mut self, round: u64, memory: &mut dyn Memory) -> Result<Event> {
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.idle = None;
                return Ok(event);
            }
            let news = self.group.waker.news();
            if news != self.seen {
                self.seen = news;
                self.news()?;
            }
            if self.pump(round, memory)? {
                self.idle = None;
                continue;
            }
            let now = clock();
            let since = now.saturating_duration_since(*self.idle.get_or_insert(now));
            if now >= self.due {
                let error = self.late(round);
                return Err(self.node.fail(&self.group, error));
            }
            if since < LOOK {
                std::thread::yield_now();
                continue;
            }
            if let Some(why) = interrupt::asked() {
                let error = Error::Aborted { by: self.group.me, why };
                return Err(self.node.fail(&self.group, error));
            }
            let mut timeout = interrupt::pause(self.due.saturating_duration_since(now));
            if !self.announced && self.purpose == Some(Purpose::Data) {
                if since >= ANNOUNCE {
                    self.announced = true;
                    self.node.announce(&self.group, &self.call);
                } else {
                    timeout = timeout.min(ANNOUNCE - since);
                }
            }
            self.park(timeout);
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.release();
    }
}
