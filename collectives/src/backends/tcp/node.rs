//! One rank's process: its groups, its control connections, and the control frames of its peers.
//!
//! ```text
//! peers ==control==> reader task --> Node --> RemoteCallTable of the group, waker --> the thread in a collective
//!                    writer task <-- outbox <-- Node <-- a call that enters, fails or leaves
//! ```
//!
//! The tasks run on one small runtime per process, in addition to the computing threads, so that a busy rank still answers.

use super::super::Host;
use super::agreement::{Agreement, Message, Outgoing};
use super::frame::{FrameHeader, Kind};
use super::group::Group;
use super::groups::{Groups, News};
use super::mailbox::Fragment;
use super::options::Deadlines;
use super::outbox::Outbox;
use crate::backends::codec::{Reader, Writer};
use crate::contract::Fingerprint;
use crate::contract::deadline::{LOOK, clock};
use crate::transport::Pool;
use crate::{Call, Error, Lost, Rank, Result};
use allfold_base::lock;
use allfold_kernels::fused::Pipe;
use allfold_net::Authenticator;
use allfold_net::handshake::{HandshakeAnswer, PeerIdentity, Purpose};
use allfold_net::peer_stream::PeerStream;
use allfold_net::shared_memory_link::SegmentOffer;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

pub(super) struct Node {
    pub rank: Rank,
    pub job: [u8; 16],
    pub epoch: u32,
    pub authenticator: Authenticator,
    pub deadlines: Deadlines,
    /// The deadline of an operation in nanoseconds: the only deadline that may change. `deadlines` holds the others.
    operation: AtomicU64,
    pub host: Option<Host>,
    pub addresses: Vec<SocketAddr>,
    pub pool: Pool,
    groups: Mutex<Groups>,
    pub peers: Mutex<Vec<Peer>>,
    /// Signalled when a control connection was made or finally failed.
    pub changed: Condvar,
    pub closing: AtomicBool,
    /// Whether the process has lacked a descriptor to accept a connection since it last accepted one.
    pub starved: Arc<AtomicBool>,
    /// Number of refused connections.
    pub refused: AtomicU64,
    /// Number of handshakes, of either side, that failed over the secret.
    pub distrusted: AtomicU64,
}

/// The state of another rank, as this rank has it.
#[derive(Default)]
pub(super) struct Peer {
    pub outbox: Option<Outbox>,
    pub lost: Option<Lost>,
    /// Whether the peer announced that it sends nothing more.
    bye: bool,
    /// The reason why this rank can never connect to the peer.
    pub refused: Option<Error>,
    /// Whether this rank is connecting its control connection to the peer.
    pub connecting: bool,
}

impl Peer {
    /// Whether the peer is lost or has announced its end.
    fn is_over(&self) -> bool {
        self.bye || self.lost.is_some()
    }
}

fn nanoseconds(deadline: Duration) -> u64 {
    u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX)
}

impl Node {
    #[allow(clippy::too_many_arguments, reason = "made in one place")]
    pub fn new(
        rank: Rank,
        job: [u8; 16],
        epoch: u32,
        authenticator: Authenticator,
        deadlines: Deadlines,
        host: Option<Host>,
        addresses: Vec<SocketAddr>,
    ) -> Result<Node> {
        let size = addresses.len() as u32;
        let world = Group::new(0, (0..size).map(Rank).collect(), rank)?;
        Ok(Node {
            rank,
            job,
            epoch,
            authenticator,
            deadlines,
            operation: AtomicU64::new(nanoseconds(deadlines.operation)),
            host,
            addresses,
            pool: Pool::default(),
            groups: Mutex::new(Groups::new(world)),
            peers: Mutex::new((0..size).map(|_| Peer::default()).collect()),
            changed: Condvar::new(),
            closing: AtomicBool::new(false),
            starved: Arc::default(),
            refused: AtomicU64::new(0),
            distrusted: AtomicU64::new(0),
        })
    }

    /// The number of ranks.
    pub fn size(&self) -> u32 {
        self.addresses.len() as u32
    }

    pub fn group(&self, id: u32) -> Arc<Group> {
        lock(&self.groups).get(id)
    }

    /// The deadline of an operation.
    pub fn deadline(&self) -> Duration {
        Duration::from_nanos(self.operation.load(Ordering::Relaxed))
    }

    /// Sets the deadline of operations that begin from now on.
    pub fn set_deadline(&self, deadline: Duration) {
        self.operation.store(nanoseconds(deadline), Ordering::Relaxed);
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Makes the group that has this number on the wire, and delivers the messages that arrived for it before. Returns its
    /// number in this process.
    pub fn subgroup(&self, stream: u64, members: Vec<Rank>) -> Result<u32> {
        let me = members.iter().position(|member| *member == self.rank).unwrap_or_default();
        let group = Arc::new(Group::new(stream, members, Rank(me as u32))?);
        let (id, early) = {
            let mut groups = lock(&self.groups);
            // Both locks are held: the end of a connection is either seen here, or removes its peer from the group's senders
            // afterwards.
            let peers = lock(&self.peers);
            let is_connected = |rank: &Rank| *rank != self.rank && !peers[rank.index()].is_over();
            groups.make(group.clone(), group.members.iter().copied().filter(is_connected).collect())
        };
        early.into_iter().for_each(|(from, news)| self.take(&group, from, news));
        let lost: Vec<(Rank, Lost)> = lock(&self.peers)
            .iter()
            .zip(0..)
            .filter_map(|(peer, rank)| peer.lost.clone().map(|cause| (Rank(rank), cause)))
            .collect();
        for (peer, cause) in lost {
            self.lose_in(&group, peer, cause);
        }
        Ok(id)
    }

    /// The answer to a connection with this identity.
    pub fn answer(&self, identity: &PeerIdentity) -> HandshakeAnswer {
        let other = identity.rank;
        if identity.job != self.job {
            let mut first = [0; 8];
            first.copy_from_slice(&self.job[..8]);
            return HandshakeAnswer::Job(u64::from_le_bytes(first));
        }
        if identity.epoch != self.epoch {
            return HandshakeAnswer::Epoch(self.epoch);
        }
        if identity.size != self.size() {
            return HandshakeAnswer::Size(self.size());
        }
        if identity.peer != self.rank {
            return HandshakeAnswer::Peer(self.rank.0);
        }
        // The higher one of two ranks connects.
        if other.0 >= self.size() || other <= self.rank {
            return HandshakeAnswer::Duplicate(other.0);
        }
        if self.is_closing() {
            return HandshakeAnswer::Gone;
        }
        let taken = lock(&self.peers)[other.index()].outbox.is_some();
        match identity.purpose {
            Purpose::Control if taken => HandshakeAnswer::Duplicate(other.0),
            Purpose::Control => HandshakeAnswer::Welcome,
            Purpose::Data | Purpose::PointToPoint if taken => HandshakeAnswer::Welcome,
            _ => HandshakeAnswer::Duplicate(other.0),
        }
    }

    /// Decides on a peer's connection; also opens the memory for its messages, if the peer is on this host and sends a handle to it.
    pub fn admit(&self, identity: &PeerIdentity) -> (HandshakeAnswer, Option<Pipe>) {
        let answer = self.answer(identity);
        match SegmentOffer::accept(&identity.memory, self.host.filter(|_| answer.is_welcome())) {
            Some(pipe) => (HandshakeAnswer::SharedMemoryLink, Some(pipe)),
            None => (answer, None),
        }
    }

    /// Stores a peer's control connection. Of several connections the first counts.
    pub fn keep(&self, peer: Rank, outbox: Outbox) {
        lock(&self.peers)[peer.index()].outbox.get_or_insert(outbox);
        self.changed.notify_all();
    }

    pub fn deliver(&self, stream: u64, from: Rank, news: News) {
        let found = lock(&self.groups).deliver(stream, from, news);
        if let Some((group, news)) = found {
            self.take(&group, from, news);
        }
    }

    fn take(&self, group: &Group, from: Rank, news: News) {
        match news {
            News::Said(Kind::Bye, _) => lock(&self.groups).end_sender(Some(group.stream), from),
            News::Said(kind, bytes) => self.heard(group, from, kind, &bytes),
            News::PeerStream(purpose, stream) => self.attach(group, purpose, from, stream),
        }
    }

    fn attach(&self, group: &Group, purpose: Purpose, from: Rank, stream: PeerStream) {
        if let Some(rank) = group.rank_of(from) {
            group.arrive(purpose, rank, stream);
        }
    }

    /// Sends a control frame to a peer.
    fn send(&self, peer: Rank, kind: Kind, payload: &[u8]) {
        if let Some(outbox) = &lock(&self.peers)[peer.index()].outbox {
            let header = FrameHeader::control(kind, self.epoch, payload);
            outbox.send([&header.encode()[..], payload].concat());
        }
    }

    /// Sends frames that belong together to a peer: no frame of another thread is sent between them.
    pub fn send_all(&self, peer: Rank, frames: impl Iterator<Item = Vec<u8>>) {
        if let Some(outbox) = &lock(&self.peers)[peer.index()].outbox {
            frames.for_each(|frame| outbox.send(frame));
        }
    }

    fn tell_all(&self, group: &Group, kind: Kind, payload: &[u8]) {
        for member in group.members.iter().filter(|member| **member != self.rank) {
            self.send(*member, kind, payload);
        }
    }

    /// Handles an event of the agreement on a group's survivors, and sends the messages that follow.
    fn agree(&self, group: &Group, happens: impl FnOnce(&mut Agreement) -> Outgoing) {
        group.agreement(|agreement| {
            // The messages are sent under the lock, so that a rank's last message is its latest state.
            for (to, message) in happens(agreement) {
                let mut news = Writer::default();
                message.write(news.word(group.stream), group.members.len() as u32);
                self.send(group.members[to.index()], Kind::Shrink, &news.0);
            }
        });
        group.ring();
    }

    /// The survivors of a failed group; see [`super::agreement`].
    pub fn survivors(&self, group: &Group) -> Result<Vec<Rank>> {
        self.agree(group, Agreement::ask);
        let begun = clock();
        loop {
            let seen = group.waker.news();
            if let Some(left) = group.agreement(|agreement| agreement.decided().cloned()) {
                return match left.contains(&group.me) {
                    true => Ok(left.into_iter().collect()),
                    false => Err(Error::Poisoned {
                        cause: format!("the other ranks continued without rank {}", group.me),
                    }),
                };
            }
            let waited = clock().saturating_duration_since(begun);
            if waited >= self.deadline() {
                self.agree(group, Agreement::give_up);
            }
            let timeout = self.deadline().saturating_sub(waited).max(Duration::from_millis(20));
            group.waker.sleep(seen, timeout.min(LOOK));
        }
    }

    /// Announces the operation that this rank is in.
    pub fn announce(&self, group: &Group, call: &Call) {
        let mut news = Writer::default();
        news.word(group.stream).call(call);
        self.tell_all(group, Kind::Enter, &news.0);
    }

    /// Fails a group. Returns the group's first error.
    pub fn fail(&self, group: &Group, error: Error) -> Error {
        let (first, counts) = group.calls(|calls| (calls.fail(&error), calls.failure()));
        if first {
            let mut news = Writer::default();
            news.word(group.stream).error(&error);
            self.tell_all(group, Kind::Fail, &news.0);
        }
        group.ring();
        counts.unwrap_or(error)
    }

    /// This rank leaves a group. If the group has failed, the rank sends the failure to the other ranks first.
    pub fn leave(&self, group: &Group, operations: u64, cause: &Lost) {
        if let Some(error) = group.calls(|calls| calls.cause().cloned()) {
            let mut news = Writer::default();
            news.word(group.stream).error(&error);
            self.tell_all(group, Kind::Fail, &news.0);
        }
        let mut news = Writer::default();
        news.word(group.stream).word(operations).lost(cause);
        self.tell_all(group, Kind::Leave, &news.0);
    }

    /// Ends a group after this rank has left it: the rank sends nothing more about the group, and the group's connections end.
    pub fn release(&self, id: u32) {
        let Some(group) = lock(&self.groups).end(id) else { return };
        let mut news = Writer::default();
        news.word(group.stream);
        self.tell_all(&group, Kind::Bye, &news.0);
        let mut peers = lock(&self.peers);
        for (peer, stream) in group.wires() {
            // A peer that has left already has no outbox, so there is nothing to end.
            if let Some(outbox) = &mut peers[group.members[peer.index()].index()].outbox {
                outbox.part(stream);
            }
        }
    }

    /// Whether this rank is a member of a group, and so needs connections for it.
    pub fn is_member(&self, stream: u64) -> bool {
        lock(&self.groups).is_member(stream)
    }

    /// Handles a control frame of a peer. Returns an error if the frame is invalid.
    pub fn control(&self, from: Rank, kind: Kind, payload: Vec<u8>) -> std::result::Result<(), String> {
        match kind {
            Kind::Beat => return Ok(()),
            Kind::Bye if payload.is_empty() => {
                lock(&self.peers)[from.index()].bye = true;
                return Ok(());
            }
            Kind::Data => return Err("a message on the control connection".into()),
            Kind::Enter | Kind::Leave | Kind::Fail | Kind::Shrink | Kind::Message | Kind::Bye => {}
        }
        let stream = Reader { rest: &payload, known: "" }.word().ok_or("a control frame without a group")?;
        self.deliver(stream, from, News::Said(kind, payload));
        Ok(())
    }

    fn heard(&self, group: &Group, from: Rank, kind: Kind, payload: &[u8]) {
        let Some(peer) = group.rank_of(from) else { return };
        let mut news = Reader { rest: payload, known: group.calls(|calls| calls.known) };
        let found = match kind {
            Kind::Enter => (|| {
                let _group = news.word()?;
                let sequence = news.word()?;
                let theirs = Fingerprint(*news.rest.first_chunk()?);
                group.calls(|calls| calls.announced(peer, sequence, theirs))
            })(),
            Kind::Leave => (|| {
                let (_group, operations, cause) = (news.word()?, news.word()?, news.lost()?);
                self.agree(group, |agreement| agreement.lose(peer));
                group.calls(|calls| calls.leave(peer, operations, cause))
            })(),
            Kind::Shrink => {
                let size = group.members.len() as u32;
                let message = news.word().and_then(|_group| Message::read(&mut news, size));
                if let Some(message) = message {
                    self.agree(group, |agreement| agreement.handle(peer, message));
                }
                None
            }
            Kind::Message => {
                let fragment = Fragment::decode(payload);
                let arrived =
                    fragment.map(|fragment| group.mailbox(|mailbox| mailbox.arrive(peer, fragment)));
                match arrived {
                    Some(Ok(true)) => None,
                    Some(Err(full)) => Some(full.error(group.me, peer)),
                    _ => return,
                }
            }
            Kind::Fail => {
                let error = news.word().and_then(|_group| news.error());
                if let Some(error) = error {
                    group.calls(|calls| calls.fail(&error));
                }
                None
            }
            _ => None,
        };
        if let Some(error) = found {
            self.fail(group, error);
        }
        group.ring();
    }

    /// A control connection has ended.
    pub fn ended(&self, peer: Rank, cause: Lost) {
        let expected = {
            let mut peers = lock(&self.peers);
            let place = &mut peers[peer.index()];
            if !place.bye {
                place.lost.get_or_insert_with(|| cause.clone());
            }
            place.bye || self.is_closing()
        };
        if !expected {
            let groups = lock(&self.groups).all();
            groups.iter().for_each(|group| self.lose_in(group, peer, cause.clone()));
        }
        lock(&self.groups).end_sender(None, peer);
        // The outbox is closed only now: if only one direction of the connection has failed, the peer still receives the failure.
        lock(&self.peers)[peer.index()].outbox = None;
        self.changed.notify_all();
    }

    fn lose_in(&self, group: &Group, peer: Rank, cause: Lost) {
        let Some(rank) = group.rank_of(peer) else { return };
        let cause = match cause {
            Lost::Silent { after, .. } => Lost::Silent { by: group.me, after },
            other => other,
        };
        self.agree(group, |agreement| agreement.lose(rank));
        if let Some(error) = group.calls(|calls| calls.leave(rank, 0, cause)) {
            self.fail(group, error);
        }
        group.ring();
    }

    /// How long a rank that ends waits until its last frames are sent.
    pub fn drain_timeout(&self) -> Duration {
        self.deadlines.handshake.min(Duration::from_secs(1))
    }

    /// Announces to all peers that this rank closes, and waits up to a limit until everything is sent.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        let outboxes: Vec<Outbox> = {
            let mut peers = lock(&self.peers);
            peers.iter_mut().filter_map(|peer| peer.outbox.take()).collect()
        };
        let bye = FrameHeader::control(Kind::Bye, self.epoch, &[]).encode();
        outboxes.iter().for_each(|outbox| outbox.send(bye.to_vec()));
        outboxes.into_iter().for_each(|outbox| outbox.drain(self.drain_timeout()));
    }
}
