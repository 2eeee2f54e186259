//! A rank's transport over MPI's sends and receives.
//!
//! A message of up to [`JOINED`] bytes is one message of MPI: a header and the data behind it. A longer message is two messages of MPI:
//! the header, then the data. All have the tag of the lane, and MPI keeps the order of messages from one rank to another with one tag. So
//! rounds and operations need no tags of their own, of which MPI has too few.

use super::foreign::Request;
use super::group::{DATA_TAG, Group, LAST_TAG};
use super::node::{Node, nap};
use crate::contract::Fingerprint;
use crate::contract::deadline::{after, clock};
use crate::schedule::Combine;
use crate::transport::{CallHeader, Event, Frame, Monitor, Native, POINT_TO_POINT, Payload, Transport};
use crate::{Call, DType, Error, Operation, Rank, Result};
use allfold_kernels::fused::CallBuffers;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of a header: sequence, fingerprint, round, length.
const HEADER: usize = 40;
/// Data of up to this many bytes are sent together with the header.
const JOINED: usize = 4096;
/// After this time without any event a rank announces its operation to the others, and sleeps for [`NAP`] between checks.
const ANNOUNCE: Duration = Duration::from_millis(10);
const NAP: Duration = Duration::from_micros(100);

pub(super) struct Endpoint {
    pub(super) node: Arc<Node>,
    pub(super) group: Arc<Group>,
    pub(super) call: Arc<Call>,
    fingerprint: Fingerprint,
    due: Instant,
    /// The time since which nothing has happened.
    idle: Option<Instant>,
    announced: bool,
    sends: VecDeque<Outgoing>,
    recvs: VecDeque<Incoming>,
    ready: VecDeque<Event>,
    /// The operation of the latest message of each peer. A peer announces only an operation in which it waits.
    latest: BTreeMap<Rank, u64>,
    /// The error of the latest send or receive that could not be posted.
    broken: Option<Error>,
}

struct Outgoing {
    to: Rank,
    lane: u32,
    parts: Vec<Request>,
}

struct Incoming {
    from: Rank,
    lane: u32,
    bytes: usize,
    header: Option<Request>,
    body: Option<Request>,
    /// The message's round, once its header has arrived and fits.
    round: u64,
    /// The message's payload.
    data: Option<Payload>,
}

/// The tag of a lane.
fn tag(lane: u32) -> Result<c_int> {
    if lane == POINT_TO_POINT {
        return Ok(DATA_TAG);
    }
    let tag = c_int::try_from(lane).ok().and_then(|lane| lane.checked_add(DATA_TAG + 1));
    tag.filter(|tag| *tag <= LAST_TAG)
        .ok_or_else(|| Error::Argument(format!("lane {lane}: MPI has too few tags for so many lanes")))
}

impl Endpoint {
    pub fn new(node: Arc<Node>, group: Arc<Group>) -> Endpoint {
        let call = Arc::new(Call::plain(Operation::PointToPoint, 0, 0, DType::U8));
        let (sends, recvs, ready) = Default::default();
        let fingerprint = Fingerprint::default();
        let (due, idle, announced, broken) = (clock(), None, false, None);
        let latest = BTreeMap::new();
        Endpoint { node, group, call, fingerprint, due, idle, announced, sends, recvs, ready, latest, broken }
    }

    fn is_point_to_point(&self) -> bool {
        self.call.operation == Operation::PointToPoint
    }

    fn send(&self, to: Rank, lane: u32, frame: Frame) -> Result<Outgoing> {
        let (comm, tag, data) = (self.group.comm()?, tag(lane)?, frame.payload);
        let joined = data.len() <= JOINED;
        let mut header = self.node.pool.take(HEADER + if joined { data.len() } else { 0 });
        header[..8].copy_from_slice(&self.call.sequence.to_le_bytes());
        header[8..24].copy_from_slice(&self.fingerprint.0);
        header[24..32].copy_from_slice(&frame.round.to_le_bytes());
        header[32..40].copy_from_slice(&(data.len() as u64).to_le_bytes());
        if joined {
            header[HEADER..].copy_from_slice(&data);
        }
        let mut parts = vec![comm.send(header, to, tag)?];
        if !joined {
            parts.push(comm.send(data, to, tag)?);
        }
        Ok(Outgoing { to, lane, parts })
    }

    fn recv(&self, from: Rank, lane: u32, bytes: usize) -> Result<Incoming> {
        let (comm, tag, pool) = (self.group.comm()?, tag(lane)?, &self.node.pool);
        // The buffer has space for any header, so that a peer's call can be read even if it is another operation.
        let header = Some(comm.recv(pool.take(HEADER + JOINED), from, tag)?);
        let body = (bytes > JOINED).then(|| comm.recv(pool.take(bytes), from, tag)).transpose()?;
        Ok(Incoming { from, lane, bytes, header, body, round: 0, data: None })
    }

    /// Checks all requests once. Returns whether any of them is complete.
    fn look(&mut self) -> Result<bool> {
        let before = self.ready.len();
        let mut failed = None;
        let ready = &mut self.ready;
        self.sends.retain_mut(|send| {
            send.parts.retain_mut(|part| match part.test() {
                Ok(over) => over.is_none(),
                Err(error) => {
                    failed.get_or_insert((send.to, error.to_string()));
                    false
                }
            });
            if send.parts.is_empty() {
                ready.push_back(Event::Sent { to: send.to, lane: send.lane });
            }
            !send.parts.is_empty()
        });
        let mut dry: Vec<(Rank, u32)> = Vec::new();
        let mut at = 0;
        while at < self.recvs.len() && failed.is_none() {
            let channel = (self.recvs[at].from, self.recvs[at].lane);
            if dry.contains(&channel) {
                at += 1;
                continue;
            }
            match self.advance(at) {
                Ok(Some(payload)) => {
                    let (from, lane) = channel;
                    let round = self.recvs[at].round;
                    self.recvs.remove(at);
                    let frame = Frame { call: self.call.clone(), round, payload };
                    self.ready.push_back(Event::Received { from, lane, frame });
                }
                Ok(None) => {
                    dry.push(channel);
                    at += 1;
                }
                Err(Wrong::Disagree(sequence, theirs)) => {
                    return Err(self.disagree(channel.0, sequence, theirs));
                }
                Err(Wrong::Frame(what)) => failed = Some((channel.0, what)),
            }
        }
        match failed {
            Some((peer, what)) => Err(self.group.fail(self.protocol(peer, what))),
            None => Ok(self.ready.len() > before),
        }
    }

    /// Advances a receive. Returns its bytes once all have arrived.
    fn advance(&mut self, at: usize) -> std::result::Result<Option<Payload>, Wrong> {
        let (mine, call) = (self.fingerprint, &self.call);
        let recv = &mut self.recvs[at];
        if let Some(header) = &mut recv.header {
            let Some(len) = header.test().map_err(said)? else { return Ok(None) };
            let came = recv.header.take().and_then(Request::into_payload);
            let came = came.ok_or_else(|| Wrong::Frame("a header was lost".into()))?;
            if len < HEADER {
                return Err(Wrong::Frame(format!("a header of {len} bytes")));
            }
            let word =
                |at: usize| came[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            let (sequence, bytes) = (word(0), word(32));
            let mut theirs = Fingerprint::default();
            theirs.0.copy_from_slice(&came[8..24]);
            if sequence != call.sequence || theirs != mine {
                return Err(Wrong::Disagree(sequence, theirs));
            }
            if self.call.operation != Operation::PointToPoint {
                self.latest.insert(recv.from, sequence);
            }
            recv.round = word(24);
            let inside = len - HEADER;
            if bytes != recv.bytes as u64 || (recv.body.is_none() && inside != recv.bytes) {
                return Err(Wrong::Frame(format!("expected {} bytes, got {bytes}", recv.bytes)));
            }
            if recv.body.is_none() {
                let mut data = came.another(inside);
                data.copy_from_slice(&came[HEADER..len]);
                recv.data = Some(data);
            }
        }
        if let Some(body) = &mut recv.body {
            let Some(len) = body.test().map_err(said)? else { return Ok(None) };
            if len != recv.bytes {
                return Err(Wrong::Frame(format!("expected {} bytes, got {len}", recv.bytes)));
            }
            recv.data = recv.body.take().and_then(Request::into_payload);
        }
        Ok(recv.data.take())
    }

    fn protocol(&self, peer: Rank, what: String) -> Error {
        let call = Box::new(self.call.as_ref().clone());
        Error::Protocol { rank: self.group.me(), peer, call, round: 0, what }
    }

    fn disagree(&self, peer: Rank, sequence: u64, theirs: Fingerprint) -> Error {
        let error = match self.is_point_to_point() {
            false => self.group.calls(|calls| calls.disagree(peer, sequence, theirs)),
            true => match theirs.call(sequence, "") {
                Some(theirs) => {
                    let (mine, theirs) = (Box::new(self.call.as_ref().clone()), Box::new(theirs));
                    Error::Mismatch { rank: self.group.me(), mine, peer, theirs }
                }
                None => self.protocol(peer, "the peer announced an unknown call".into()),
            },
        };
        self.group.fail(error)
    }

    fn late(&self, round: u64) -> Error {
        let mut waiting_on = match self.is_point_to_point() {
            true => Vec::new(),
            false => self
                .group
                .calls(|calls| calls.absent(self.call.sequence, |rank| self.latest.get(&rank).copied())),
        };
        let busy: Vec<Rank> =
            self.recvs.iter().map(|recv| recv.from).chain(self.sends.iter().map(|send| send.to)).collect();
        let entered = waiting_on.is_empty();
        if entered {
            waiting_on = busy;
            waiting_on.sort();
            waiting_on.dedup();
        }
        let (call, after) = (Box::new(self.call.as_ref().clone()), self.node.options.deadline);
        Error::DeadlineExceeded { rank: self.group.me(), waiting_on, entered, call, round, after }
    }

    /// The loss of a peer whose point-to-point message this rank waits for.
    fn lost(&self) -> Option<Error> {
        let peers = self.recvs.iter().map(|recv| recv.from).chain(self.sends.iter().map(|send| send.to));
        let point_to_point = self.is_point_to_point();
        self.group.calls(|calls| {
            let lost = peers.into_iter().find(|peer| point_to_point && calls.left(*peer).is_some())?;
            Some(calls.lose(lost, Some(&self.call)))
        })
    }

    /// Called between two checks: reads the other ranks' control messages, then yields, or sleeps if nothing has happened for
    /// [`ANNOUNCE`].
    pub(super) fn rest(&mut self, round: u64) -> Result<()> {
        let now = clock();
        let since = now.saturating_duration_since(*self.idle.get_or_insert(now));
        self.group.listen()?;
        if now >= self.due {
            let error = self.late(round);
            return Err(self.group.fail(error));
        }
        if since < ANNOUNCE {
            std::thread::yield_now();
            return Ok(());
        }
        if !self.announced && !self.is_point_to_point() {
            self.announced = true;
            self.group.announce(&self.call);
        }
        // A rank that left sent its last messages before it announced its departure, and MPI has had time to deliver them.
        if let Some(error) = self.lost() {
            return Err(self.group.fail(error));
        }
        nap(NAP);
        Ok(())
    }

    /// Records that something has happened, so that the thread yields between checks and does not sleep.
    pub(super) fn stir(&mut self) {
        self.idle = None;
    }
}

/// What is wrong with a received message.
enum Wrong {
    Disagree(u64, Fingerprint),
    Frame(String),
}

fn said(error: Error) -> Wrong {
    Wrong::Frame(error.to_string())
}

impl Transport for Endpoint {
    fn enter(&mut self, call: &Arc<Call>) -> Result<()> {
        // The messages of a failed operation and their memory are abandoned.
        self.sends.clear();
        self.recvs.clear();
        self.ready.clear();
        self.call = call.clone();
        self.fingerprint = Fingerprint::of(call);
        (self.announced, self.idle) = (false, None);
        self.due = after(self.node.options.deadline);
        // Control messages are read twice: MPI fetches what has arrived during the first call and reports it in the second.
        self.group.listen().and_then(|()| self.group.listen())?;
        match self.is_point_to_point() {
            true => Ok(()),
            false => self.group.calls(|calls| calls.enter(call)).map_err(|error| self.group.fail(error)),
        }
    }

    fn alloc(&self, bytes: usize) -> Payload {
        self.node.pool.take(bytes)
    }

    fn post_send(&mut self, to: Rank, lane: u32, frame: Frame) {
        match self.send(to, lane, frame) {
            Ok(send) => self.sends.push_back(send),
            Err(error) => drop(self.broken.get_or_insert(error)),
        }
    }

    fn post_recv(&mut self, from: Rank, lane: u32, bytes: usize, _how: Combine) {
        match self.recv(from, lane, bytes) {
            Ok(recv) => self.recvs.push_back(recv),
            Err(error) => drop(self.broken.get_or_insert(error)),
        }
    }

    fn wait(&mut self, round: u64) -> Result<Event> {
        if let Some(error) = self.broken.take() {
            return Err(self.group.fail(error));
        }
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.stir();
                return Ok(event);
            }
            if !self.look()? {
                self.rest(round)?;
            }
        }
    }

    fn done(&mut self) {
        if !self.is_point_to_point() {
            self.group.calls(|calls| calls.done());
        }
    }

    fn fail(&mut self, error: Error) -> Error {
        self.group.fail(error)
    }

    fn native(&mut self) -> Option<&mut dyn Native> {
        Some(self)
    }

    fn monitor(&mut self) -> Option<&mut dyn Monitor> {
        Some(self)
    }
}

impl Monitor for Endpoint {
    fn failure(&mut self) -> Result<()> {
        self.group.listen()
    }

    fn declare(&mut self) -> Result<()> {
        if !self.announced {
            self.announced = true;
            self.group.announce(&self.call);
        }
        self.failure()
    }

    fn deadline(&self) -> Duration {
        self.node.options.deadline
    }

    fn complete(&mut self) {
        self.done();
    }
}

impl Native for Endpoint {
    fn provides(&self, call: &Call) -> bool {
        self.node.options.native && super::foreign::Native::of(call).is_some()
    }

    fn run_native(&mut self, header: CallHeader<'_>, buffers: CallBuffers<'_>) -> Result<()> {
        self.collective(&Arc::new(header.write()), buffers)
    }
}
