//! One rank's connection to one peer for the messages of one group: posted sends and receives and their progress.
//!
//! ```text
//! posted sends     [ message | message | .. ]  -- fragment: header + bytes where they lie --> kernel
//! posted receives  [ lane 0: 3 of 8 fragments | lane 1: .. ]  <-- header, then bytes into their buffer --
//!                  a fragment for a lane without a posted receive is put aside; without any posted receive nothing is read
//! ```
//!
//! Bytes are checksummed, reduced and written a fragment at a time, while the fragment is in the cache.

use super::expected::{Expected, Target};
use super::fault::{Fault, ended};
use super::frame::{FRAGMENT, FrameHeader, HEADER, Kind, crc32c};
use crate::Rank;
use crate::contract::Fingerprint;
use crate::schedule::Span;
use crate::transport::{Memory, Payload, Pool};
use allfold_net::peer_stream::PeerStream;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::ops::Range;

/// The most bytes that are read ahead: enough to read a header and a small message in one call.
const AHEAD: usize = 16 << 10;

/// The fields that every frame of the current operation must have.
pub(super) struct FrameContext<'a> {
    pub comm: u32,
    pub epoch: u32,
    pub sequence: u64,
    pub fingerprint: Fingerprint,
    pub pool: &'a Pool,
    /// The most bytes per peer that are stored for lanes on which no receive is posted yet.
    pub aside: usize,
}

/// The source of a message's bytes.
pub(super) enum Source {
    Payload(Payload),
    /// This many bytes of the caller's memory.
    Span(Span, usize),
}

/// A posted send or receive that is complete.
pub(super) enum Done {
    Sent { lane: u32 },
    Landed { lane: u32 },
    Received { lane: u32, round: u64, payload: Payload },
}

struct Message {
    lane: u32,
    round: u32,
    source: Source,
    /// The number of bytes that were sent in complete fragments.
    sent: usize,
}

impl Message {
    /// The bytes of a part of the message, if they are contiguous.
    fn lies<'a>(&'a self, part: &Range<usize>, memory: &'a mut dyn Memory) -> Option<&'a [u8]> {
        match &self.source {
            Source::Payload(payload) => payload.get(part.clone()),
            Source::Span(span, _) => memory.source(*span, part.clone()),
        }
    }
}

/// The fragment that is being sent.
struct Outgoing {
    header: [u8; HEADER],
    bytes: usize,
    /// A copy of the fragment's bytes, if they are not contiguous in memory.
    copy: Option<Payload>,
    /// Bytes written of the header and the payload.
    written: usize,
}

/// The fragment that is being received.
struct Incoming {
    header: FrameHeader,
    read: usize,
    to: To,
}

enum To {
    /// The expected receive with this number.
    Expected(usize),
    /// The fragment belongs to a lane on which no receive is posted yet.
    Aside(Payload),
}

#[derive(Default)]
pub(super) struct PeerConnection {
    pub peer: Rank,
    stream: Option<PeerStream>,
    sends: VecDeque<Message>,
    outgoing: Option<Outgoing>,
    expected: VecDeque<Expected>,
    incoming: Option<Incoming>,
    ahead: Box<[u8]>,
    /// The bytes `from..to` of `ahead` were read and are not used yet.
    from: usize,
    to: usize,
    aside: VecDeque<(FrameHeader, Payload)>,
    /// Aligned memory for received bytes that are then reduced or copied into the buffer.
    scratch: Option<Payload>,
    /// The latest operation that the peer is known to have entered.
    pub latest: Option<u64>,
}

impl PeerConnection {
    pub fn new(peer: Rank) -> PeerConnection {
        PeerConnection { peer, ahead: vec![0; AHEAD].into_boxed_slice(), ..PeerConnection::default() }
    }

    pub fn attach(&mut self, stream: PeerStream) {
        self.stream = Some(stream);
    }

    pub fn stream(&self) -> Option<&PeerStream> {
        self.stream.as_ref()
    }

    pub fn into_peer_stream(self) -> Option<PeerStream> {
        self.stream
    }

    /// Called by the thread that slept until this connection was ready, after it has woken up.
    pub fn finish_sleep(&mut self) {
        self.stream.iter_mut().for_each(PeerStream::finish_sleep);
    }

    /// Ends the sending direction.
    pub fn finish(&mut self) {
        self.stream.iter_mut().for_each(PeerStream::finish);
    }

    pub fn send(&mut self, lane: u32, round: u32, source: Source) {
        self.sends.push_back(Message { lane, round, source, sent: 0 });
    }

    /// Posts a receive. `round`: the round that its frames must have; `None` if the caller compares the round.
    pub fn expect(&mut self, lane: u32, round: Option<u32>, bytes: usize, target: Target) {
        self.expected.push_back(Expected { lane, round, bytes, done: 0, target });
    }

    pub fn wants_in(&self) -> bool {
        !self.expected.is_empty()
    }

    pub fn wants_out(&self) -> bool {
        !self.sends.is_empty()
    }

    /// Sends at most one fragment. Returns whether any byte moved.
    pub fn pump_out(
        &mut self,
        context: &FrameContext<'_>,
        memory: &mut dyn Memory,
        done: &mut Vec<Done>,
    ) -> Result<bool, Fault> {
        let (Some(stream), Some(message)) = (&mut self.stream, self.sends.front_mut()) else {
            return Ok(false);
        };
        let all = match &message.source {
            Source::Payload(payload) => payload.len(),
            Source::Span(_, bytes) => *bytes,
        };
        let part = message.sent..all.min(message.sent + FRAGMENT);
        let last = part.end == all;
        if self.outgoing.is_none() {
            let copy = match (&message.source, message.lies(&part, memory)) {
                (Source::Span(span, _), None) => {
                    let mut bytes = context.pool.take(part.len());
                    if !memory.copy_out(*span, part.start, &mut bytes) {
                        return Err(Fault::Wrong(format!(
                            "{span:?} cannot be sent: nothing was written there"
                        )));
                    }
                    Some(bytes)
                }
                _ => None,
            };
            let bytes = copy.as_deref().or_else(|| message.lies(&part, memory)).unwrap_or_default();
            let header = FrameHeader {
                kind: Kind::Data,
                last,
                comm: context.comm,
                epoch: context.epoch,
                sequence: context.sequence,
                round: message.round,
                lane: message.lane,
                at: (message.sent / FRAGMENT) as u32,
                bytes: bytes.len() as u32,
                fingerprint: context.fingerprint,
                payload_crc: if stream.is_authentic() { 0 } else { crc32c(bytes) },
            };
            self.outgoing = Some(Outgoing { header: header.encode(), bytes: bytes.len(), copy, written: 0 });
        }
        let Some(outgoing) = &mut self.outgoing else { return Ok(false) };
        let rest = match &outgoing.copy {
            Some(copy) => &copy[..],
            None => message.lies(&part, memory).unwrap_or_default(),
        };
        let total = HEADER + outgoing.bytes;
        let mut moved = false;
        while outgoing.written < total {
            let head = &outgoing.header[outgoing.written.min(HEADER)..];
            let body = &rest[outgoing.written.saturating_sub(HEADER)..];
            match stream.write(head, body) {
                Ok(0) => return Err(Fault::Ended("takes no more bytes".into())),
                Ok(bytes) => {
                    outgoing.written += bytes;
                    moved = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(moved),
                Err(error) => return Err(ended(error)),
            }
        }
        if last && !stream.flush().map_err(ended)? {
            return Ok(moved);
        }
        message.sent += outgoing.bytes;
        self.outgoing = None;
        if last {
            done.push(Done::Sent { lane: message.lane });
            self.sends.pop_front();
        }
        Ok(true)
    }

    /// Receives at most one fragment. Returns whether any byte moved.
    pub fn pump_in(
        &mut self,
        context: &FrameContext<'_>,
        memory: &mut dyn Memory,
        done: &mut Vec<Done>,
    ) -> Result<bool, Fault> {
        if self.expected.is_empty() {
            return Ok(false);
        }
        if self.settle(memory, done)? {
            return Ok(true);
        }
        if self.stream.is_none() {
            return Ok(false);
        }
        let mut moved = false;
        if self.incoming.is_none() {
            match self.header(context)? {
                Some(header) => self.incoming = Some(self.place(header, context)?),
                None => return Ok(false),
            }
            moved = true;
        }
        Ok(self.body(memory, context.pool, done)? || moved)
    }

    /// The next header, compared with the operation.
    fn header(&mut self, context: &FrameContext<'_>) -> Result<Option<FrameHeader>, Fault> {
        while self.to - self.from < HEADER {
            if self.from > 0 {
                self.ahead.copy_within(self.from..self.to, 0);
                (self.from, self.to) = (0, self.to - self.from);
            }
            // If a large message is expected, only a header is read ahead: the payload is read directly into its buffer.
            let large = self.expected.iter().any(|e| e.bytes - e.done > AHEAD - HEADER);
            let limit = if large { HEADER } else { AHEAD };
            let Some(stream) = &mut self.stream else { return Ok(None) };
            match stream.read(&mut self.ahead[self.to..limit]) {
                Ok(0) if self.to == self.from => return Err(Fault::Ended("closed the connection".into())),
                Ok(0) => return Err(Fault::Truncated),
                Ok(bytes) => self.to += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof && self.to > self.from => {
                    return Err(Fault::Truncated);
                }
                Err(error) => return Err(ended(error)),
            }
        }
        let Some(bytes) = self.ahead[self.from..self.to].first_chunk() else { return Ok(None) };
        let header = FrameHeader::decode(bytes).map_err(Fault::Wrong)?;
        if header.kind != Kind::Data {
            return Err(Fault::Wrong(format!("a frame of kind {:?} among messages", header.kind)));
        }
        if (header.comm, header.epoch) != (context.comm, context.epoch) {
            return Err(Fault::Wrong(format!(
                "a frame of communicator {:#x} in epoch {}, expected {:#x} in epoch {}",
                header.comm, header.epoch, context.comm, context.epoch
            )));
        }
        self.latest = self.latest.max(Some(header.sequence));
        if header.sequence > context.sequence {
            return Err(Fault::Ahead(header.sequence));
        }
        if header.sequence < context.sequence || header.fingerprint != context.fingerprint {
            return Err(Fault::Disagree(header.sequence, header.fingerprint));
        }
        self.from += HEADER;
        Ok(Some(header))
    }

    /// The destination of a fragment.
    fn place(&mut self, header: FrameHeader, context: &FrameContext<'_>) -> Result<Incoming, Fault> {
        let to = match self.expected.iter().position(|e| e.lane == header.lane) {
            Some(at) => {
                self.expected[at].admits(&header)?;
                To::Expected(at)
            }
            None => {
                let bytes = header.bytes as usize;
                let held: usize = self.aside.iter().map(|(_, payload)| payload.len() + HEADER).sum();
                if held + bytes > context.aside {
                    return Err(Fault::Wrong(format!(
                        "more than {} bytes for lanes on which no receive is posted",
                        context.aside
                    )));
                }
                To::Aside(context.pool.take(bytes))
            }
        };
        Ok(Incoming { header, read: 0, to })
    }

    /// Reads the fragment's bytes into their destination, and accounts for the fragment once it is complete.
    fn body(&mut self, memory: &mut dyn Memory, pool: &Pool, done: &mut Vec<Done>) -> Result<bool, Fault> {
        let (Some(stream), Some(incoming)) = (&mut self.stream, &mut self.incoming) else { return Ok(false) };
        let bytes = incoming.header.bytes as usize;
        let (dest, through) = match &mut incoming.to {
            To::Aside(payload) => (&mut payload[..], false),
            To::Expected(at) => self.expected[*at].dest(&incoming.header, &mut self.scratch, memory, pool)?,
        };
        let mut moved = false;
        while incoming.read < bytes {
            let into = &mut dest[incoming.read..];
            let there = (self.to - self.from).min(into.len());
            if there > 0 {
                into[..there].copy_from_slice(&self.ahead[self.from..self.from + there]);
                self.from += there;
                incoming.read += there;
                continue;
            }
            match stream.read(into) {
                Ok(0) => return Err(Fault::Truncated),
                Ok(bytes) => incoming.read += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(moved),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Err(Fault::Truncated),
                Err(error) => return Err(ended(error)),
            }
            moved = true;
        }
        let sum = if stream.is_authentic() { 0 } else { crc32c(dest) };
        if sum != incoming.header.payload_crc {
            return Err(Fault::Wrong("its payload's checksum is wrong".into()));
        }
        let Some(Incoming { header, to, .. }) = self.incoming.take() else { return Ok(true) };
        match to {
            To::Aside(payload) => self.aside.push_back((header, payload)),
            To::Expected(at) => {
                let scratch = self.scratch.as_ref().and_then(|scratch| scratch.get(..bytes));
                self.expected[at].take(&header, scratch.filter(|_| through), memory);
                self.over(at, &header, done);
            }
        }
        Ok(true)
    }

    /// Delivers the fragments that were stored for a lane on which a receive is posted by now.
    fn settle(&mut self, memory: &mut dyn Memory, done: &mut Vec<Done>) -> Result<bool, Fault> {
        // The receive that the incoming fragment belongs to must keep its index.
        if self.aside.is_empty() || self.incoming.is_some() {
            return Ok(false);
        }
        let posted =
            |(header, _): &(FrameHeader, Payload)| self.expected.iter().position(|e| e.lane == header.lane);
        let found = self.aside.iter().enumerate().find_map(|(i, stored)| posted(stored).map(|at| (i, at)));
        let Some((header, payload, at)) =
            found.and_then(|(i, at)| self.aside.remove(i).map(|(header, payload)| (header, payload, at)))
        else {
            return Ok(false);
        };
        let expected = &mut self.expected[at];
        expected.admits(&header)?;
        if let Target::Payload(into) = &mut expected.target {
            let from = header.at as usize * FRAGMENT;
            into[from..from + payload.len()].copy_from_slice(&payload);
        }
        expected.take(&header, Some(&payload), memory);
        self.over(at, &header, done);
        Ok(true)
    }

    /// Completes a receive if all of its bytes have arrived.
    fn over(&mut self, at: usize, header: &FrameHeader, done: &mut Vec<Done>) {
        if !header.last {
            return;
        }
        if let Some(Expected { lane, target, .. }) = self.expected.remove(at) {
            done.push(match target {
                Target::Payload(payload) => Done::Received { lane, round: header.round.into(), payload },
                Target::Span(..) => Done::Landed { lane },
            });
        }
    }
}
