//! TLS 1.3 records after the handshake (RFC 8446, section 5), sealed and opened on the way between the caller's bytes
//! and the kernel's:
//!
//! ```text
//! caller's bytes -- seal --> sealed -- write --> kernel -- read --> raw -- open --> caller's bytes
//! ```
//!
//! rustls makes the handshake and stores the traffic secrets, as it does for kernels that have TLS. Its own record layer would copy every
//! byte three more times.

mod aead;
mod refusal;

use crate::format::{FRAGMENT, HEADER};
use aead::{Aead, NONCE, TAG};
use refusal::invalid;
use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{AlertDescription, ConnectionTrafficSecrets, ContentType, ExtractedSecrets, HandshakeType};
use std::io::{self, ErrorKind};
use std::ops::Range;

/// The size in bytes of a record's prefix: its type, a version, and the number of bytes that follow.
pub(crate) const PREFIX: usize = 5;
/// The most content of a record, in bytes.
const CONTENT: usize = 1 << 14;
/// The bytes of a record in addition to its content: the prefix before it, and the content type and the tag after it.
const AROUND: usize = PREFIX + 1 + TAG;
/// The most bytes that may follow a prefix: a peer may pad its content.
const LONGEST: usize = CONTENT + 256;
/// The size in bytes of a whole frame of a message when sealed: a frame is written at once.
const SEALED: usize = HEADER + FRAGMENT + (FRAGMENT / CONTENT + 2) * AROUND;
/// Bytes kept free for other sealed records: a key update, an alert.
const SPARE: usize = 4 * (AROUND + 8);
/// The most bytes that are read at once.
const RAW: usize = 256 << 10;
/// The number of records under one key. AES-GCM allows 2^24.5 (RFC 8446, section 5.5); a key is renewed far more often, so that renewals
/// are frequent enough to be tested.
const REKEY: u64 = 1 << 20;
/// The most records in a row without application data that a peer may send.
const EMPTY: u32 = 32;

/// rustls's part of a connection: the secrets that the next keys are derived from.
pub(crate) enum Session {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

/// What [`Records::open`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    Bytes(usize),
    /// No complete record has arrived: more bytes must be read.
    Wanting,
    /// The other side announced that it sends nothing more.
    Closed,
}

/// The key of one direction, and the state of its nonces.
struct Key {
    aead: Aead,
    iv: [u8; NONCE],
    /// The number of the next record.
    next: u64,
}

/// The records of both directions of a connection.
pub(crate) struct Records {
    session: Session,
    sealing: Key,
    opening: Key,
    sealed: Box<[u8]>,
    /// The range of the sealed bytes that the kernel has not taken yet.
    held: Range<usize>,
    /// The bytes that were read from the kernel.
    raw: Box<[u8]>,
    /// The range of the read bytes that is not decrypted yet.
    left: Range<usize>,
    /// The range of the read bytes that is decrypted and not taken yet.
    plain: Range<usize>,
    /// The number of records without application data since the last record with some.
    empty: u32,
    rekey: u64,
    /// The peer has requested a new key.
    asked: bool,
    said_goodbye: bool,
    heard_goodbye: bool,
    broken: bool,
}

/// The reason for refusing a record, as a TLS alert.
type Refused = AlertDescription;

impl Key {
    fn new((next, secrets): (u64, ConnectionTrafficSecrets)) -> io::Result<Key> {
        let (aead, iv) = Aead::new(&secrets)?;
        Ok(Key { aead, iv, next })
    }

    /// The nonce of the next record. Each nonce is returned once.
    fn nonce(&mut self) -> [u8; NONCE] {
        let mut nonce = self.iv;
        nonce[4..].iter_mut().zip(self.next.to_be_bytes()).for_each(|(byte, of)| *byte ^= of);
        self.next += 1;
        nonce
    }
}

/// The prefix of a record with this many bytes behind the prefix.
fn prefix(bytes: usize) -> [u8; PREFIX] {
    let [high, low] = (bytes as u16).to_be_bytes();
    [ContentType::ApplicationData.into(), 3, 3, high, low]
}

/// A record's content type, and the length of its content in bytes: after the content come the type's byte, then zeros.
fn unpad(plain: &[u8]) -> Result<(ContentType, usize), Refused> {
    let length = plain.iter().rposition(|byte| *byte != 0).ok_or(Refused::UnexpectedMessage)?;
    if length > CONTENT {
        return Err(Refused::RecordOverflow);
    }
    Ok((ContentType::from(plain[length]), length))
}

impl Records {
    /// The records of a connection after its handshake. `early`: the bytes that were read beyond the handshake.
    pub fn new(secrets: ExtractedSecrets, session: Session, early: &[u8]) -> io::Result<Records> {
        let mut raw = vec![0; RAW].into_boxed_slice();
        let start = raw
            .get_mut(..early.len())
            .ok_or_else(|| invalid("the peer sent more data with the TLS handshake than fits the buffer"))?;
        start.copy_from_slice(early);
        Ok(Records {
            session,
            sealing: Key::new(secrets.tx)?,
            opening: Key::new(secrets.rx)?,
            sealed: vec![0; SEALED + SPARE].into_boxed_slice(),
            held: 0..0,
            raw,
            left: 0..early.len(),
            plain: 0..0,
            empty: 0,
            rekey: REKEY,
            asked: false,
            said_goodbye: false,
            heard_goodbye: false,
            broken: false,
        })
    }

    /// The sealed bytes that are to be written.
    pub fn held(&self) -> &[u8] {
        &self.sealed[self.held.clone()]
    }

    /// Records that `bytes` of the sealed bytes have been written.
    pub fn written(&mut self, bytes: usize) {
        self.held.start += bytes;
        if self.held.is_empty() {
            self.held = 0..0;
        }
    }

    /// Seals `first`, then `second`, as far as there is space; returns the number of bytes taken. All bytes that were sealed
    /// before must have been written.
    pub fn seal(&mut self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        if self.said_goodbye || self.broken {
            return Err(ErrorKind::BrokenPipe.into());
        }
        if first.len() + second.len() <= CONTENT {
            return self.data(first, second);
        }
        let mut taken = 0;
        for piece in first.chunks(CONTENT).chain(second.chunks(CONTENT)) {
            match self.data(&[], piece)? {
                0 => break,
                bytes => taken += bytes,
            }
        }
        Ok(taken)
    }

    /// Seals a record of application data, if the output buffer has space for it.
    fn data(&mut self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        let bytes = first.len() + second.len();
        if self.held.end + bytes + AROUND + SPARE > self.sealed.len() {
            return Ok(0);
        }
        if self.asked || self.sealing.next >= self.rekey {
            self.renew()?;
        }
        self.record(ContentType::ApplicationData, first, second)?;
        Ok(bytes)
    }

    /// Announces a new key to the other side and uses it from then on.
    fn renew(&mut self) -> io::Result<()> {
        // A message of one byte, 0: the peer need not renew its own key.
        let message = [HandshakeType::KeyUpdate.into(), 0, 0, 1, 0];
        self.record(ContentType::Handshake, &message, &[])?;
        let secrets = match &mut self.session {
            Session::Client(session) => session.update_tx_secret(),
            Session::Server(session) => session.update_tx_secret(),
        };
        self.sealing = Key::new(secrets.map_err(invalid)?)?;
        self.asked = false;
        Ok(())
    }

    /// Seals one record into the output buffer.
    fn record(&mut self, kind: ContentType, first: &[u8], second: &[u8]) -> io::Result<()> {
        let bytes = first.len() + second.len();
        let space = self.sealed.get_mut(self.held.end..self.held.end + bytes + AROUND);
        let space = space.ok_or_else(|| invalid("the buffer has no space for a TLS record"))?;
        let (front, rest) = space.split_at_mut(PREFIX);
        front.copy_from_slice(&prefix(bytes + 1 + TAG));
        let nonce = self.sealing.nonce();
        self.sealing.aead.seal(nonce, front, (first, second, kind.into()), rest)?;
        self.held.end += bytes + AROUND;
        Ok(())
    }

    /// Announces that nothing more will be sent. Only the first call has an effect.
    pub fn close(&mut self) {
        if !std::mem::replace(&mut self.said_goodbye, true) && !self.broken {
            self.alert(AlertDescription::CloseNotify);
        }
    }

    fn alert(&mut self, what: AlertDescription) {
        let level = if what == AlertDescription::CloseNotify { 1 } else { 2 };
        // If the buffer has no space for the alert, the connection ends without it.
        let _ = self.record(ContentType::Alert, &[level, what.into()], &[]);
    }

    /// The buffer into which bytes are to be read.
    pub fn read_buffer(&mut self) -> &mut [u8] {
        if self.plain.is_empty() && self.left.start > 0 {
            self.raw.copy_within(self.left.clone(), 0);
            (self.left, self.plain) = (0..self.left.len(), 0..0);
        }
        &mut self.raw[self.left.end..]
    }

    /// Records that `bytes` bytes have been read into the buffer.
    ///
    /// # Errors
    /// 0 bytes: the other side closed the connection without an alert.
    pub fn filled(&mut self, bytes: usize) -> io::Result<()> {
        if bytes == 0 {
            let what = "the peer closed its connection without a close_notify of TLS";
            return Err(io::Error::new(ErrorKind::UnexpectedEof, what));
        }
        self.left.end += bytes;
        Ok(())
    }

    /// Decrypts the records that have arrived into `into`, up to its length.
    ///
    /// # Errors
    /// A record that is damaged, or not allowed here. An alert with the reason is sealed; the connection cannot be used any more.
    pub fn open(&mut self, into: &mut [u8]) -> io::Result<Opened> {
        if self.broken {
            return Err(invalid("TLS has failed before"));
        }
        self.open_all(into).map_err(|(alert, what)| {
            self.broken = true;
            if !self.said_goodbye {
                self.alert(alert);
            }
            invalid(what)
        })
    }

    fn open_all(&mut self, into: &mut [u8]) -> Result<Opened, (Refused, String)> {
        let mut done = 0;
        while done < into.len() {
            let there = self.plain.len().min(into.len() - done);
            if there > 0 {
                let from = self.plain.start;
                into[done..done + there].copy_from_slice(&self.raw[from..from + there]);
                (self.plain.start, done) = (from + there, done + there);
                continue;
            }
            if self.heard_goodbye {
                break;
            }
            let refused = |alert: Refused| (alert, format!("TLS refuses a record: {alert:?}"));
            let Some(body) = self.whole().map_err(refused)? else { break };
            let (kind, content) = self.open_one(body, &mut into[done..]).map_err(refused)?;
            let (at, bytes) = match &content {
                Content::Placed(bytes) => (&into[done..], *bytes),
                Content::Raw(range) => (&self.raw[range.start..], range.len()),
            };
            if kind == ContentType::ApplicationData {
                self.empty = if bytes == 0 { self.empty + 1 } else { 0 };
                match content {
                    Content::Placed(bytes) => done += bytes,
                    Content::Raw(range) => self.plain = range,
                }
            } else {
                self.empty += 1;
                let mut message = [0; 8];
                let message = message.get_mut(..bytes).ok_or(refused(Refused::DecodeError))?;
                message.copy_from_slice(&at[..bytes]);
                self.handle(kind, message)?;
            }
            if self.empty > EMPTY {
                return Err((Refused::UnexpectedMessage, "TLS: too many records without content".into()));
            }
        }
        Ok(match done {
            0 if self.heard_goodbye => Opened::Closed,
            0 if !into.is_empty() => Opened::Wanting,
            bytes => Opened::Bytes(bytes),
        })
    }

    /// The range of the next record behind its prefix, if it has arrived completely.
    fn whole(&self) -> Result<Option<Range<usize>>, Refused> {
        let Some(front) = self.raw[self.left.clone()].first_chunk::<PREFIX>() else { return Ok(None) };
        let bytes = usize::from(u16::from_be_bytes([front[3], front[4]]));
        if ContentType::from(front[0]) != ContentType::ApplicationData {
            return Err(Refused::UnexpectedMessage);
        }
        if bytes > LONGEST {
            return Err(Refused::RecordOverflow);
        }
        if bytes <= TAG {
            return Err(Refused::DecodeError);
        }
        let start = self.left.start + PREFIX;
        Ok((start + bytes <= self.left.end).then_some(start..start + bytes))
    }

    /// Decrypts one record: into `into` if that has space for the content and its type, otherwise in place.
    fn open_one(&mut self, body: Range<usize>, into: &mut [u8]) -> Result<(ContentType, Content), Refused> {
        let (before, from) = self.raw.split_at_mut(body.start);
        let sealed = &mut from[..body.len()];
        let (nonce, front) = (self.opening.nonce(), &before[body.start - PREFIX..]);
        self.left.start = body.end;
        let mut place = into.get_mut(..sealed.len() - TAG);
        let opened = self.opening.aead.open(nonce, front, sealed, place.as_deref_mut());
        opened.map_err(|_| Refused::BadRecordMac)?;
        if let Some(place) = place {
            let (kind, bytes) = unpad(place)?;
            return Ok((kind, Content::Placed(bytes)));
        }
        let (kind, bytes) = unpad(&sealed[..body.len() - TAG])?;
        Ok((kind, Content::Raw(body.start..body.start + bytes)))
    }

    /// Handles a record that is not data: an alert, a new key.
    fn handle(&mut self, kind: ContentType, message: &[u8]) -> Result<(), (Refused, String)> {
        match (kind, message) {
            (ContentType::Alert, [_, what]) => match AlertDescription::from(*what) {
                AlertDescription::CloseNotify => self.heard_goodbye = true,
                AlertDescription::UserCanceled => {}
                what => return Err((Refused::CloseNotify, format!("the peer's TLS failed: {what:?}"))),
            },
            (ContentType::Handshake, [kind, 0, 0, 1, asks @ (0 | 1)])
                if HandshakeType::from(*kind) == HandshakeType::KeyUpdate =>
            {
                let secrets = match &mut self.session {
                    Session::Client(session) => session.update_rx_secret(),
                    Session::Server(session) => session.update_rx_secret(),
                };
                let failed = |error: String| (Refused::InternalError, error);
                let secrets = secrets.map_err(|error| failed(error.to_string()))?;
                self.opening = Key::new(secrets).map_err(|error| failed(error.to_string()))?;
                self.asked |= *asks == 1;
            }
            _ => return Err((Refused::UnexpectedMessage, format!("TLS: a message of {kind:?} among data"))),
        }
        Ok(())
    }
}

/// Where the content of a decrypted record is.
enum Content {
    /// This many bytes were decrypted into the caller's buffer.
    Placed(usize),
    /// The decrypted bytes are at this range of the read buffer.
    Raw(Range<usize>),
}

#[cfg(test)]
mod tests;
